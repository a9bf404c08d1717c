/* config: see config.h. */
#include "router/config.h"
#include "common/err.h"
#include "common/log.h"
#include "common/mem.h"
#include "common/strbuf.h"
#include "router/jsontext.h"

#include <assert.h>
#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#define IN(member) offsetof(struct config, member)
#define WEEK_S 604800

static const struct setting table[] = {
    {"api.listen", SETTING_STRING, IN(api_listen), "127.0.0.1:8000", 0, 0, NULL, NULL,
     "address of the API: HOST:PORT (port 0: any free one) or unix:/path"},
    {"api.worker_ports", SETTING_INT, IN(worker_ports), "0", 0, 65528, NULL, NULL,
     "first of eight ports, on the host of api.listen: what comes by the k-th runs on worker k; 0: "
     "none"},
    {"ops.listen", SETTING_STRING, IN(ops_listen), "127.0.0.1:8001", 0, 0, NULL, NULL,
     "address of health, metrics and administration; empty: none"},
    {"api.tls_cert", SETTING_STRING, IN(tls_cert), NULL, 0, 0, NULL, NULL,
     "PEM file of the certificate chain: TLS on api.listen; read again on SIGHUP"},
    {"api.tls_key", SETTING_STRING, IN(tls_key), NULL, 0, 0, NULL, NULL, "PEM file of its key"},
    {"api.cors_origins", SETTING_STRING, IN(cors_origins), NULL, 0, 0, NULL, NULL,
     "web origins that may read replies: none, * or a list split by commas (default * with keys, "
     "else none)"},
    {"api.trusted_proxies", SETTING_STRING, IN(trusted_proxies), NULL, 0, 0, NULL, NULL,
     "whose X-Forwarded-For, Forwarded and x-gateway-inference-... are believed: addresses and "
     "networks split by commas, unix for a unix socket's peers"},
    {"auth.keys_file", SETTING_STRING, IN(keys_file), NULL, 0, 0, NULL, NULL,
     "file of API keys, name:class:sha256hex[:options] a line; read again on SIGHUP"},
    {"auth.keys", SETTING_STRING, IN(keys), NULL, 0, 0, NULL, NULL,
     "API keys in plain text, split by commas; better in a --config file than as a flag, which "
     "everybody on the machine can see"},
    {"ops.metrics_auth", SETTING_BOOL, IN(metrics_auth), "off", 0, 0, NULL, NULL,
     "ask for a key on /metrics and /version too"},
    {"api.head_bytes_max", SETTING_BYTES, IN(head_bytes_max), "32KiB", 1024, 256 << 10, NULL,
     "bytes", "largest head of a request; over it: 431"},
    {"api.head_fields_max", SETTING_INT, IN(head_fields_max), "100", 8, 100, NULL, NULL,
     "most header fields of a request; over it: 431, over 100: 400"},
    {"api.uri_bytes_max", SETTING_BYTES, IN(uri_bytes_max), "8KiB", 128, 256 << 10, NULL, "bytes",
     "longest request target; over it: 414"},
    {"api.body_bytes_max", SETTING_BYTES, IN(body_bytes_max), "32MiB", 1024, 1 << 30, NULL, "bytes",
     "largest request body; over it: 413"},
    {"api.bodies_bytes_max", SETTING_BYTES, IN(bodies_bytes_max), "1GiB", 64 << 10, 1LL << 40, NULL,
     "bytes", "bodies being received, on all connections together; over it: 503"},
    {"api.body_rate_min", SETTING_BYTES, IN(body_rate_min), "1KiB", 0, 1 << 30, NULL, "bytes/s",
     "slowest body, measured over api.body_rate_after_s; below it: 408"},
    {"api.body_rate_after_s", SETTING_REAL, IN(body_rate_after_s), "10", 0.1, WEEK_S, NULL, "s",
     "time over which the rate of a body is measured"},
    {"api.header_s", SETTING_REAL, IN(header_s), "10", 0.1, WEEK_S, NULL, "s",
     "time for a request's head; over it: close"},
    {"api.body_s", SETTING_REAL, IN(body_s), "60", 0.1, WEEK_S, NULL, "s",
     "time for a request's body; over it: 408"},
    {"api.keepalive_s", SETTING_REAL, IN(keepalive_s), "75", 0.1, WEEK_S, NULL, "s",
     "idle time of a connection; must exceed that of the balancer in front"},
    {"api.write_stall_s", SETTING_REAL, IN(write_stall_s), "60", 0.1, WEEK_S, NULL, "s",
     "time without progress in writing to a client; over it: cancel"},
    {"api.connections_max", SETTING_INT, IN(connections_max), "16384", 1, 1 << 20, NULL, NULL,
     "open connections; over it accepting pauses, after 1 s they get a 503. At most what the limit "
     "of descriptors leaves"},
    {"api.h2_streams_max", SETTING_INT, IN(h2_streams_max), "100", 1, 100, NULL, NULL,
     "requests of one HTTP/2 connection at once; more wait, over 100 are refused"},
    {"api.h2_resets_max", SETTING_INT, IN(h2_resets_max), "200", 1, 1 << 20, NULL, NULL,
     "streams that an HTTP/2 client may reset in 10 s; over it: close"},
    {"api.half_close", SETTING_BOOL, IN(half_close), "off", 0, 0, NULL, NULL,
     "serve an HTTP/1 client that has closed its writing side; off: that is a hang-up"},
    {"queue.requests_max", SETTING_INT, IN(queue_requests_max), "0", 0, 1 << 20, NULL, NULL,
     "waiting requests; over it: 429. 0: 64 per worker"},
    {"queue.tokens_max", SETTING_INT, IN(queue_tokens_max), "2000000", 1, 1LL << 40, NULL, "tokens",
     "prompt tokens of waiting requests; over it: 429"},
    {"queue.wait_s", SETTING_REAL, IN(queue_wait_s), "60", 0, WEEK_S, NULL, "s",
     "longest wait in the queue; over it: 429"},
    {"queue.overload_status", SETTING_CHOICE, IN(overload_status), "429", 0, 0, "429|503|529", NULL,
     "status of a full queue"},
    {"queue.use_client_timeout", SETTING_BOOL, IN(use_client_timeout), "off", 0, 0, NULL, NULL,
     "refuse at once what would wait longer than its client says that it waits "
     "(x-stainless-read-timeout, x-stainless-timeout, x-slo-ttft-ms)"},
    {"route.wait_ready_s", SETTING_REAL, IN(wait_ready_s), "5", 0, WEEK_S, NULL, "s",
     "wait for a ready worker when there is none; over it: 503"},
    {"route.resume_s", SETTING_REAL, IN(resume_s), "120", 0, WEEK_S, NULL, "s",
     "wait of a request whose worker was lost for one like it; over it: an error"},
    {"limits.request_s", SETTING_REAL, IN(request_s), "3600", 0.1, WEEK_S, NULL, "s",
     "longest life of a request; over it: 504"},
    {"limits.output_default", SETTING_INT, IN(output_default), "0", 0, 1 << 30, NULL, "tokens",
     "reply tokens of a request that names no limit; 0: the room left"},
    {"limits.tokenize_bytes_max", SETTING_BYTES, IN(tokenize_bytes_max), "4MiB", 1, 1 << 30, NULL,
     "bytes", "largest body of /tokenize; over it: 413"},
    {"stream.first_byte_s", SETTING_REAL, IN(first_byte_s), "10", 0, WEEK_S, NULL, "s",
     "longest wait for the first token before a stream's status line is sent; 0: at once"},
    {"stream.keepalive_s", SETTING_REAL, IN(stream_keepalive_s), "10", 0.1, WEEK_S, NULL, "s",
     "silence of a stream before a comment line is sent"},
    {"stream.buffer_bytes_max", SETTING_BYTES, IN(stream_buffer_bytes_max), "64KiB", 1024, 1 << 30,
     NULL, "bytes", "text that waits for a slow client; what comes behind it waits as ids"},
    {"stream.done_after_error", SETTING_BOOL, IN(done_after_error), "off", 0, 0, NULL, NULL,
     "end a failed stream with [DONE] too"},
    {"worker.progress_s", SETTING_REAL, IN(progress_s), "10", 0.1, WEEK_S, NULL, "s",
     "time without progress after which a worker with work is hung"},
    {"worker.start_s", SETTING_REAL, IN(start_s), "30", 0.1, WEEK_S, NULL, "s",
     "time for a spawned worker's first word; over it: it is killed and started again"},
    {"start.notify", SETTING_CHOICE, IN(start_notify), "ready", 0, 0, "ready|listening", NULL,
     "when a service manager is told that the start is over"},
    {"ready.workers_min", SETTING_INT, IN(ready_workers_min), "1", 1, 64, NULL, NULL,
     "ready workers for /readyz to say 200"},
    {"drain.settle_s", SETTING_REAL, IN(settle_s), "5", 0, WEEK_S, NULL, "s",
     "after SIGTERM: new requests are served this long still"},
    {"drain.timeout_s", SETTING_REAL, IN(drain_s), "100", 0, WEEK_S, NULL, "s",
     "after that: time for live requests to finish"},
    {"ops.loop_stall_s", SETTING_REAL, IN(loop_stall_s), "5", 0.1, WEEK_S, NULL, "s",
     "a loop that has not turned for so long: /livez says 503"},
    {"sampling.defaults", SETTING_CHOICE, IN(sampling_defaults), "model", 0, 0, "model|openai",
     NULL, "sampling of a request that names none: the checkpoint's, or temperature 1 and top_p 1"},
    {"reply.extras", SETTING_BOOL, IN(reply_extras), "on", 0, 0, NULL, NULL,
     "add the object 'railyard' to replies"},
    {"reply.headers", SETTING_BOOL, IN(reply_headers), "on", 0, 0, NULL, NULL,
     "add X-Railyard-... headers to replies"},
    {"reply.whitespace_s", SETTING_REAL, IN(whitespace_s), "0", 0, WEEK_S, NULL, "s",
     "after stream.first_byte_s a space this often in front of a reply that is not a stream, for "
     "proxies with short idle limits; its status is 200 then, whatever comes. 0: none"},
    {"reply.reasoning_fields", SETTING_CHOICE, IN(reasoning_fields), "both", 0, 0,
     "both|reasoning_content|reasoning", NULL, "the names under which a thought is sent"},
    {"run.dir", SETTING_STRING, IN(run_dir), NULL, 0, 0, NULL, NULL,
     "folder of the workers' sockets (default /run/railyard, else $XDG_RUNTIME_DIR/railyard, else "
     "a "
     "fresh one under /tmp)"},
    {"model.name", SETTING_STRING, IN(model_name), NULL, 0, 0, NULL, NULL,
     "what clients call the model (default: the last part of MODEL's path)"},
    {"model.aliases", SETTING_STRING, IN(model_aliases), NULL, 0, 0, NULL, NULL,
     "more names, split by commas"},
    {"template.plain_control_text", SETTING_BOOL, IN(plain_control_text), "on", 0, 0, NULL, NULL,
     "control tokens that a client spells are plain text"},
    {"template.rules", SETTING_CHOICE, IN(template_rules), "auto", 0, 0,
     "auto|3.5|3.5-small|3.6|3.8|3.8-large", NULL, "chat template rules"},
    {"template.late_system", SETTING_CHOICE, IN(late_system), "error", 0, 0, "error|user", NULL,
     "a system message that is not at the head: refuse it, or send it as a user turn"},
    {"log.level", SETTING_CHOICE, IN(log_level), "info", 0, 0, "debug|info|warn|error", NULL,
     "least level of the log on stderr"},
    {"log.access", SETTING_STRING, IN(access_log), "stderr", 0, 0, NULL, NULL,
     "one JSON line per request: stderr, off, or a file to append to"},
    {"workers", SETTING_INT, IN(workers), "0", 0, 64, NULL, NULL,
     "worker processes; 0: one per visible GPU, at least one"},
    {"backend", SETTING_CHOICE, IN(backend), "auto", 0, 0, "auto|cpu|cuda", NULL,
     "handed on to workers: where they compute"},
    {"embedding", SETTING_CHOICE, IN(embedding), "auto", 0, 0, "auto|card|host", NULL,
     "handed on to workers: where the embedding's rows live"},
    {"context", SETTING_INT, IN(context), "0", 0, 1 << 30, NULL, "tokens",
     "handed on to workers: longest prompt and reply of a stream; 0: what fits"},
    {"streams", SETTING_INT, IN(streams), "0", 0, 1024, NULL, NULL,
     "handed on to workers: streams at once; 0: what fits"},
    {"threads", SETTING_INT, IN(threads), "0", 0, 256, NULL, NULL,
     "handed on to workers: threads of the CPU backend; 0: one per CPU"},
    {"chunk", SETTING_INT, IN(chunk), "0", 0, 1 << 20, NULL, "tokens",
     "handed on to workers: prompt tokens filled in one round; 0: the engine's default"},
    {"memory-fraction", SETTING_REAL, IN(memory_fraction), "1", 0.01, 1, NULL, NULL,
     "handed on to workers: part of the free memory they take"},
    {"kv", SETTING_CHOICE, IN(kv), "auto", 0, 0, "auto|bf16|fp8|f32", NULL,
     "handed on to workers: type of keys and values"},
    {"drafter", SETTING_STRING, IN(drafter), "auto", 1, 0, NULL, NULL,
     "handed on to workers: auto (the checkpoint's MTP head and copies), none, or the folder of a "
     "drafter"},
    {"draft-kinds", SETTING_STRING, IN(draft_kinds), "all", 1, 0, NULL, NULL,
     "handed on to workers: kinds of drafts allowed, a list of copy,mtp,dflash,dflash2"},
    {"draft-rows", SETTING_INT_OR_0, IN(draft_rows), "0", 2, 32, NULL, "rows",
     "handed on to workers: rows of one stream in a round; 0: the engine's default"},
    {"drafter-quantize-min", SETTING_INT, IN(drafter_quantize_min), "0", 0, SETTING_INT_MAX, NULL,
     "values",
     "handed on to workers: a block drafter's matrices of so many values become 4 bits; 0: as its "
     "file says"},
    {"draft-vocab", SETTING_STRING, IN(draft_vocab), "auto", 0, 0, NULL, NULL,
     "handed on to workers: ids that drafts are made of: auto (the drafter's own, else common and "
     "control ones), all, or a list of FIRST-LAST"},
    {"costs", SETTING_STRING, IN(costs), NULL, 0, 0, NULL, NULL,
     "handed on to workers: file of what rows and drafts cost, by which drafts are as many as pay"},
    {"debug.fault", SETTING_CHOICE, IN(debug_fault), "none", 0, 0,
     "none|ulp|stale-conv|short-s|short-conv|window-rope|lost-tap|lost-branch", NULL,
     "handed on to workers: a planted fault, for the tests that must find it"},
};
static bool is_secret(const struct setting *t) {
    return t->offset == IN(keys);
}

enum { SETTING_COUNT = sizeof table / sizeof *table };
static const char *const handed_on[] = {"backend",     "embedding",       "context",
                                        "streams",     "threads",         "chunk",
                                        "kv",          "memory-fraction", "drafter",
                                        "draft-kinds", "draft-rows",      "drafter-quantize-min",
                                        "draft-vocab", "costs",           "debug.fault"};

// What is looked up when it is used, by the request loop or in a snapshot.
static const char *const reloadable[] = {"queue.requests_max",
                                         "queue.tokens_max",
                                         "queue.wait_s",
                                         "queue.use_client_timeout",
                                         "route.wait_ready_s",
                                         "route.resume_s",
                                         "limits.request_s",
                                         "limits.output_default",
                                         "limits.tokenize_bytes_max",
                                         "ready.workers_min",
                                         "drain.settle_s",
                                         "drain.timeout_s",
                                         "ops.loop_stall_s",
                                         "log.level"};

static bool is_blank(const char *s, size_t len) {
    return strspn(s, " ") >= len;
}

// A name that a client cannot say is a slip of whoever wrote it.
static int check_names(const struct config *c, struct err *e) {
    const struct setting *name = settings_find(&c->settings, "model.name");
    if (c->settings.given[name - table] && is_blank(c->model_name, strlen(c->model_name)))
        return err_set(e, ST_INVAL, "setting model.name: wanted a name, found '%.200s'",
                       c->model_name);
    const char *p = c->model_aliases;
    for (bool more = *p; more;) {
        size_t n = strcspn(p, ",");
        if (is_blank(p, n))
            return err_set(e, ST_INVAL,
                           "setting model.aliases: wanted names split by commas, found '%.200s'",
                           c->model_aliases);
        more = p[n] == ',';
        p += n + more;
    }
    return ST_OK;
}

int config_init(struct config *c, int argc, char **argv, struct err *e) {
    *c = (struct config){.argc = argc, .argv = argv};
    settings_init(&c->settings, table, SETTING_COUNT, c);
    const char **args = mem_calloc((size_t)argc + 1, sizeof *args);
    int n = 0;
    int st = settings_parse(&c->settings, argc, argv, args, &n, e);
    if (!st && n > 1)
        st = err_set(e, ST_INVAL, "wanted one MODEL, found '%.100s' behind it", args[1]);
    if (!st && n == 1) c->model = args[0];
    if (!st) st = check_names(c, e);
    free(args);
    return st;
}

void config_fini(struct config *c) {
    if (c->settings.table) settings_fini(&c->settings);
}

void config_help(const char *subcommand) {
    struct config c = {0};
    settings_init(&c.settings, table, SETTING_COUNT, &c);
    printf("railyard %s MODEL [--setting=value ...]\n\nMODEL is the folder of a checkpoint.\n\n",
           subcommand);
    settings_help(&c.settings, stdout);
    settings_fini(&c.settings);
    printf("\nRead again from the --config file on SIGHUP:");
    for (size_t i = 0; i < sizeof reloadable / sizeof *reloadable; i++)
        printf("%s%s", i % 5 ? " " : "\n  ", reloadable[i]);
    printf("\n");
}

/* ---- read again ---- */

static bool is_reloadable(const char *name) {
    for (size_t i = 0; i < sizeof reloadable / sizeof *reloadable; i++)
        if (!strcmp(name, reloadable[i])) return true;
    return false;
}

static void print_value(const struct config *c, const struct setting *t, struct strbuf *out) {
    strbuf_reset(out);
    settings_print(&c->settings, t, out);
}

// What the start itself fills in where nothing is set.
static bool filled_in(const struct config *fresh, const struct setting *t) {
    return (t->offset == IN(workers) && !fresh->workers) ||
           (t->offset == IN(run_dir) && !*fresh->run_dir);
}

static struct config *copy(struct config *from) {
    struct config *c = mem_calloc(1, sizeof *c);
    struct strbuf value = {0};
    struct err e = {0};
    *c = (struct config){
        .argc = from->argc, .argv = from->argv, .model = from->model, .replaced = from};
    settings_init(&c->settings, table, SETTING_COUNT, c);
    for (size_t i = 0; i < SETTING_COUNT; i++) {
        print_value(from, &table[i], &value);
        int st = settings_set(&c->settings, table[i].name, strbuf_str(&value),
                              from->settings.given[i], &e);
        assert(st == ST_OK); // it was one there
    }
    strbuf_fini(&value);
    return c;
}

static void add_name(struct strbuf *list, const char *name) {
    strbuf_printf(list, "%s%s", list->len ? " " : "", name);
}

// Takes over what differs in fresh and may change.
static void take_over(struct config **next, struct config *now, const struct config *fresh,
                      struct strbuf *changed, struct strbuf *kept) {
    struct strbuf old = {0}, new = {0};
    for (size_t i = 0; i < SETTING_COUNT; i++) {
        const struct setting *t = &table[i];
        struct err e = {0};
        print_value(now, t, &old);
        print_value(fresh, t, &new);
        if (!strcmp(strbuf_str(&old), strbuf_str(&new)) || filled_in(fresh, t)) continue;
        if (!is_reloadable(t->name)) {
            add_name(kept, t->name);
            continue;
        }
        add_name(changed, t->name);
        if (!*next) *next = copy(now);
        (*next)->settings.given[i] = 0;
        int st = settings_set(&(*next)->settings, t->name, strbuf_str(&new),
                              fresh->settings.given[i], &e);
        assert(st == ST_OK);
    }
    strbuf_fini(&old);
    strbuf_fini(&new);
}

int config_reload(struct config **ret, struct config *now, struct strbuf *ret_changed,
                  struct strbuf *ret_kept, struct err *e) {
    struct config fresh;
    struct config *next = NULL;
    int st = config_init(&fresh, now->argc, now->argv, e);
    if (!st) take_over(&next, now, &fresh, ret_changed, ret_kept);
    config_fini(&fresh);
    if (!st) *ret = next;
    return st;
}

void config_free_reloaded(struct config *last) {
    while (last->replaced) {
        struct config *c = last;
        last = c->replaced;
        config_fini(c);
        free(c);
    }
}

void config_log(const struct config *c) {
    struct strbuf text = {0};
    for (size_t i = 0; i < SETTING_COUNT; i++) {
        if (!c->settings.given[i]) continue;
        strbuf_printf(&text, "%s%s=", text.len ? " " : "", table[i].name);
        if (is_secret(&table[i]))
            strbuf_add_str(&text, "(not shown)");
        else
            settings_print(&c->settings, &table[i], &text);
    }
    log_info("settings", "%s", text.len ? text.p : "all at their defaults");
    strbuf_fini(&text);
}

static void write_value(const struct config *c, const struct setting *t, struct strbuf *out) {
    const char *field = (const char *)c + t->offset;
    switch (t->kind) {
    case SETTING_BOOL: strbuf_add_str(out, *(const bool *)field ? "true" : "false"); break;
    case SETTING_INT:
    case SETTING_BYTES: strbuf_printf(out, "%lld", (long long)*(const int64_t *)field); break;
    case SETTING_REAL: strbuf_printf(out, "%.15g", *(const double *)field); break;
    default: {
        const char *s = *(char *const *)field;
        if (s && *s && is_secret(t)) s = "(not shown)";
        jsontext_string(out, s ? s : "", s ? strlen(s) : 0);
    }
    }
}

void config_write_json(const struct config *c, struct strbuf *out) {
    for (size_t i = 0; i < SETTING_COUNT; i++) {
        strbuf_printf(out, "%c\"%s\":", i ? ',' : '{', table[i].name);
        write_value(c, &table[i], out);
    }
    strbuf_add_char(out, '}');
}

/* ---- run.dir ---- */

// The longest name made inside: a worker's socket.
enum { SOCKET_NAME_BYTES = sizeof "/w4294967295.4294967295.sock" };

static int check_run_dir(const char *path, struct err *e) {
    struct stat sb;
    if (lstat(path, &sb)) return err_errno(e, "run.dir '%s'", path);
    if (!S_ISDIR(sb.st_mode)) return err_set(e, ST_INVAL, "run.dir '%s': wanted a folder", path);
    if (sb.st_uid != geteuid())
        return err_set(e, ST_INVAL,
                       "run.dir '%s': wanted a folder of user %u, found one of user %u", path,
                       (unsigned)geteuid(), (unsigned)sb.st_uid);
    if (sb.st_mode & 077 && chmod(path, 0700))
        return err_errno(e, "run.dir '%s': chmod 0700", path);
    return ST_OK;
}

static int use_run_dir(struct config *c, const char *path, struct err *e) {
    struct sockaddr_un sa;
    if (strlen(path) + SOCKET_NAME_BYTES > sizeof sa.sun_path)
        return err_set(e, ST_INVAL, "run.dir '%s': wanted at most %zu bytes, found %zu", path,
                       sizeof sa.sun_path - SOCKET_NAME_BYTES, strlen(path));
    if (mkdir(path, 0700) && errno != EEXIST) return err_errno(e, "run.dir '%s'", path);
    int st = check_run_dir(path, e);
    if (st) return st;
    char *copy = mem_strdup(path);
    free(c->run_dir);
    c->run_dir = copy;
    return ST_OK;
}

int config_make_run_dir(struct config *c, bool *ret_temporary, struct err *e) {
    *ret_temporary = false;
    if (*c->run_dir) return use_run_dir(c, c->run_dir, e);
    if (!use_run_dir(c, "/run/railyard", NULL)) return ST_OK;
    const char *xdg = getenv("XDG_RUNTIME_DIR");
    char path[PATH_MAX];
    if (xdg && *xdg == '/' && strlen(xdg) < PATH_MAX - 16) {
        snprintf(path, sizeof path, "%s/railyard", xdg);
        if (!use_run_dir(c, path, NULL)) return ST_OK;
    }
    strcpy(path, "/tmp/railyard-XXXXXX");
    if (!mkdtemp(path)) return err_errno(e, "run.dir '%s'", path);
    *ret_temporary = true;
    return use_run_dir(c, path, e);
}

void config_remove_run_dir(const struct config *c) {
    DIR *d = opendir(c->run_dir);
    struct dirent *entry;
    while (d && (entry = readdir(d)))
        if (entry->d_name[0] != '.') unlinkat(dirfd(d), entry->d_name, 0);
    if (d) closedir(d);
    rmdir(c->run_dir);
}

/* ---- workers ---- */

char *config_worker_program(void) {
    char path[PATH_MAX];
    ssize_t n = readlink("/proc/self/exe", path, sizeof path - 1);
    if (n <= 0) return NULL;
    path[n] = '\0';
    char *slash = strrchr(path, '/');
    struct strbuf out = {0};
    strbuf_printf(&out, "%.*s/railyard-worker", (int)(slash - path), path);
    return strbuf_take(&out);
}

static bool is_handed_on(const char *name) {
    for (size_t i = 0; i < sizeof handed_on / sizeof *handed_on; i++)
        if (!strcmp(handed_on[i], name)) return true;
    return false;
}

// The worker program with the settings that are handed on; word: NULL, or one that stands in front of MODEL.
static char **make_argv(const struct config *c, const char *program, const char *command,
                        const char *word) {
    char **argv = mem_calloc(5 + sizeof handed_on / sizeof *handed_on, sizeof *argv);
    size_t n = 0;
    argv[n++] = mem_strdup(program);
    argv[n++] = mem_strdup(command);
    if (word) argv[n++] = mem_strdup(word);
    argv[n++] = mem_strdup(c->model);
    for (size_t i = 0; i < SETTING_COUNT; i++) {
        if (!c->settings.given[i] || !is_handed_on(table[i].name)) continue;
        struct strbuf flag = {0};
        strbuf_printf(&flag, "--%s=", table[i].name);
        settings_print(&c->settings, &table[i], &flag);
        argv[n++] = strbuf_take(&flag);
    }
    return argv;
}

char **config_worker_argv(const struct config *c, const char *program) {
    return make_argv(c, program, "worker", NULL);
}

char **config_check_argv(const struct config *c, const char *program) {
    return make_argv(c, program, "inspect", "--check");
}

void config_free_argv(char **argv) {
    for (char **p = argv; p && *p; p++) free(*p);
    free(argv);
}
