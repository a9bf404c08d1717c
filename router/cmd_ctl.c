/* cmd_ctl: railyard ctl WHAT [--ops=ADDRESS]: asks the ops listener of a running router. */
#include "common/err.h"
#include "common/settings.h"
#include "common/strbuf.h"
#include "router/cmd.h"
#include "router/httpc.h"
#include "router/jsontext.h"

#include <jansson.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    ANSWER_MS = 10000,
    PATH_BYTES = 256,
    AGAIN_US = 100000,
    POLL_S = 60,       // one call that waits
    WAIT_S_MAX = 3600, // the longest that the server lets one call wait
};

struct values {
    char *ops, *key, *key_file, *streams;
    double timeout, start;
    bool force, wait;
};

#define AT(member_) offsetof(struct values, member_)
static const struct setting table[] = {
    {"ops", SETTING_STRING, AT(ops), "127.0.0.1:8001", 0, 0, NULL, NULL,
     "address of the router's ops listener: HOST:PORT or unix:/path"},
    {"key", SETTING_STRING, AT(key), NULL, 0, 0, NULL, NULL,
     "admin key, where the router has keys (others can see it in the list of processes)"},
    {"key-file", SETTING_STRING, AT(key_file), NULL, 0, 0, NULL, NULL,
     "file whose first line is the admin key"},
    {"timeout", SETTING_REAL, AT(timeout), "100", 0, WAIT_S_MAX, NULL, "s",
     "of a drain: time for streams to finish before they are moved or cancelled"},
    {"start", SETTING_REAL, AT(start), "600", 0, WAIT_S_MAX, NULL, "s",
     "of restart all: time for a worker to be ready again, beside --timeout and 10 s for its end; "
     "0: none beside these"},
    {"streams", SETTING_CHOICE, AT(streams), "finish", 0, 0, "finish|move|cancel", NULL,
     "what becomes of a draining worker's streams: finish (moved at the timeout), move at once, or "
     "cancel at the timeout"},
    {"force", SETTING_BOOL, AT(force), "off", 0, 0, NULL, NULL,
     "go on though fewer ready workers than ready.workers_min would be left"},
    {"wait", SETTING_BOOL, AT(wait), "off", 0, 0, NULL, NULL, "return when it has come to pass"},
};

// One call. ST_IO when the status is no success: e says what the server said.
static int ask(const struct values *v, const char *method, const char *path,
               const struct strbuf *body, double wait_s, struct strbuf *ret, struct err *e) {
    struct httpc_address address;
    int st = httpc_address_parse(&address, v->ops, e);
    if (st) return err_prefix(e, "--ops");
    struct httpc_request q = {.method = method,
                              .path = path,
                              .key = v->key,
                              .body = body ? body->p : NULL,
                              .body_len = body ? body->len : 0,
                              .stall_ms = ANSWER_MS + (uint64_t)(wait_s * 1000)};
    int status = 0;
    strbuf_reset(ret);
    st = httpc_fetch(&address, &q, &status, ret, e);
    httpc_address_fini(&address);
    if (st || (status >= 200 && status < 300)) return st;
    json_error_t why;
    json_t *answer = json_loads(strbuf_str(ret), 0, &why);
    const char *said =
        json_string_value(json_object_get(json_object_get(answer, "error"), "message"));
    err_set(e, ST_IO, "%.100s%.100s: status %d%s%.300s", v->ops, path, status, said ? ": " : "",
            said ? said : "");
    json_decref(answer);
    return e->st;
}

static const char *text_of(const json_t *o, const char *key) {
    const char *s = json_string_value(json_object_get(o, key));
    return s ? s : "";
}

static long long number_of(const json_t *o, const char *key) {
    return json_integer_value(json_object_get(o, key));
}

static void print_worker(const json_t *w) {
    const json_t *streams = json_object_get(w, "streams");
    const char *gpu = text_of(json_object_get(w, "gpu"), "name");
    printf("%4lld  %-9s %8lld  %4lld/%-4lld %8lld  %8lld  %-20.20s  %s\n", number_of(w, "rank"),
           text_of(w, "state"), number_of(w, "pid"), number_of(streams, "running"),
           number_of(streams, "max"), number_of(w, "restarts"), number_of(w, "uptime_s"),
           *gpu ? gpu : "cpu", text_of(w, "reason"));
}

// One that nobody starts any more by itself.
static bool stays_down(const json_t *w) {
    return !strcmp(text_of(w, "state"), "failed") && json_is_true(json_object_get(w, "supervised"));
}

static void print_remedy(const json_t *w) {
    if (stays_down(w))
        printf("worker %lld stays down until `railyard ctl start %lld`\n", number_of(w, "rank"),
               number_of(w, "rank"));
}

static void print_workers_head(void) {
    printf(
        "rank  state          pid  streams    restarts  uptime_s  device                reason\n");
}

static int print_workers(const char *body, struct err *e) {
    json_error_t why;
    json_t *list = json_loads(body, 0, &why);
    if (!json_is_array(list)) {
        json_decref(list);
        return err_set(e, ST_CORRUPT, "wanted a list of workers, found something else");
    }
    print_workers_head();
    for (size_t i = 0; i < json_array_size(list); i++) print_worker(json_array_get(list, i));
    for (size_t i = 0; i < json_array_size(list); i++) print_remedy(json_array_get(list, i));
    json_decref(list);
    return ST_OK;
}

static int print_one_worker(const char *body, struct err *e) {
    json_error_t why;
    json_t *w = json_loads(body, 0, &why);
    if (!json_is_object(w)) {
        json_decref(w);
        return err_set(e, ST_CORRUPT, "wanted a worker, found something else");
    }
    print_workers_head();
    print_worker(w);
    print_remedy(w);
    json_decref(w);
    return ST_OK;
}

// Of the router itself: nothing while it serves.
static int print_router(const char *body, struct err *e) {
    json_error_t why;
    json_t *o = json_loads(body, 0, &why);
    bool draining = json_is_true(json_object_get(o, "draining"));
    bool drained = json_is_true(json_object_get(o, "drained"));
    bool ending = json_is_true(json_object_get(o, "ending"));
    long long requests = number_of(o, "requests");
    bool is_object = json_is_object(o);
    if (draining)
        printf("the router is %s, %lld request%s in flight%s\n",
               ending    ? "ending"
               : drained ? "drained"
                         : "draining",
               requests, requests == 1 ? "" : "s",
               ending ? "" : ": `railyard ctl undrain router` ends that");
    json_decref(o);
    return is_object ? ST_OK : err_set(e, ST_CORRUPT, "wanted a router's state, found none");
}

static int print_requests(const char *body, struct err *e) {
    json_error_t why;
    json_t *list = json_loads(body, 0, &why);
    if (!json_is_array(list)) {
        json_decref(list);
        return err_set(e, ST_CORRUPT, "wanted a list of requests, found something else");
    }
    printf("state      worker    prompt    output   age_ms  resumed  id\n");
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *r = json_array_get(list, i);
        printf("%-9s  %6lld  %8lld  %8lld %8lld  %7lld  %s\n", text_of(r, "state"),
               number_of(r, "worker"), number_of(r, "prompt_tokens"),
               number_of(r, "completion_tokens"), number_of(r, "age_ms"), number_of(r, "resumed"),
               text_of(r, "id"));
    }
    json_decref(list);
    return ST_OK;
}

/* ---- commands ---- */

struct call {
    const struct values *v;
    const char *name, *arg; // arg: NULL where the command takes none
    struct strbuf body;     // of the last answer
};

static void write_how(const struct values *v, struct strbuf *out) {
    strbuf_printf(out, "{\"timeout_s\":%.15g,\"start_s\":%.15g,\"streams\":\"%s\",\"force\":%s}",
                  v->timeout, v->start, v->streams, v->force ? "true" : "false");
}

// The same worker twice ready is one restart only when its generation has changed.
static int wait_for_worker(const struct values *v, const char *rank, const char *state,
                           long long old_generation, struct strbuf *body, struct err *e) {
    char path[PATH_BYTES];
    double left = v->timeout + v->start;
    unsigned seconds = left < WAIT_S_MAX ? (unsigned)left + 1 : WAIT_S_MAX;
    snprintf(path, sizeof path, "/admin/v1/workers/%s?wait_state=%s&timeout_s=%u", rank, state,
             seconds);
    for (;;) {
        int st = ask(v, "GET", path, NULL, seconds, body, e);
        if (st) return st;
        json_error_t why;
        json_t *w = json_loads(strbuf_str(body), 0, &why);
        bool there = !strcmp(text_of(w, "state"), state);
        bool again = there && number_of(w, "generation") == old_generation;
        if (stays_down(w))
            st = err_set(e, ST_IO, "worker %s did not start again: %.300s", rank,
                         text_of(w, "reason"));
        else if (!there)
            st = err_set(e, ST_TIMEOUT, "worker %s is %s, and not %s after %u s", rank,
                         text_of(w, "state"), state, seconds);
        json_decref(w);
        if (st || !again) return st;
        usleep(AGAIN_US); // it is ready still, and not yet gone
    }
}

// A worker's verb, and the state that it leads to.
static const char *state_behind(const char *verb) {
    if (!strcmp(verb, "drain")) return "drained";
    return strcmp(verb, "stop") ? "ready" : "stopped";
}

static int one_worker(struct call *c, struct err *e) {
    char path[PATH_BYTES];
    struct strbuf how = {0};
    long long generation = -1;
    write_how(c->v, &how);
    snprintf(path, sizeof path, "/admin/v1/workers/%.32s/%s", c->arg, c->name);
    int st = ask(c->v, "POST", path, &how, 0, &c->body, e);
    strbuf_fini(&how);
    if (!st && !strcmp(c->name, "restart")) {
        json_error_t why;
        json_t *w = json_loads(strbuf_str(&c->body), 0, &why);
        generation = number_of(w, "generation");
        json_decref(w);
    }
    // A worker answers a resume at once: what it was before is no news.
    bool waits = c->v->wait || !strcmp(c->name, "resume");
    if (!st && waits)
        st = wait_for_worker(c->v, c->arg, state_behind(c->name), generation, &c->body, e);
    return st ? st : print_one_worker(strbuf_str(&c->body), e);
}

static int print_answer(int st, const struct call *c) {
    const char *text = strbuf_str(&c->body);
    if (!st) printf("%s%s", text, c->body.len && text[c->body.len - 1] == '\n' ? "" : "\n");
    return st;
}

static int restart_all(struct call *c, struct err *e) {
    char path[PATH_BYTES];
    struct strbuf how = {0};
    write_how(c->v, &how);
    int st = ask(c->v, "POST", "/admin/v1/restart", &how, 0, &c->body, e);
    strbuf_fini(&how);
    for (bool running = c->v->wait; !st && running;) {
        json_error_t why;
        json_t *o = json_loads(strbuf_str(&c->body), 0, &why);
        running = !strcmp(text_of(o, "state"), "running");
        snprintf(path, sizeof path, "/admin/v1/operations/%.32s?wait_s=%d", text_of(o, "id"),
                 POLL_S);
        if (!strcmp(text_of(o, "state"), "failed"))
            st =
                err_set(e, ST_IO, "the restart of all workers failed: %.300s", text_of(o, "error"));
        if (!strcmp(text_of(o, "state"), "cancelled"))
            st = err_set(e, ST_CANCELLED, "the restart of all workers was cancelled after %lld",
                         number_of(o, "step"));
        json_decref(o);
        if (running) st = ask(c->v, "GET", path, NULL, POLL_S, &c->body, e);
    }
    return print_answer(st, c);
}

// How far a restart of all is, or its end: it goes on at the router, whoever began it.
static int run_operation(struct call *c, struct err *e) {
    char path[PATH_BYTES];
    const char *method = strcmp(c->name, "abort") ? "GET" : "DELETE";
    snprintf(path, sizeof path, "/admin/v1/operations/%.32s", c->arg);
    return print_answer(ask(c->v, method, path, NULL, 0, &c->body, e), c);
}

static int run_restart(struct call *c, struct err *e) {
    return strcmp(c->arg, "all") ? one_worker(c, e) : restart_all(c, e);
}

// Until nothing is left in flight: the router itself ends what outlives drain.timeout_s.
static int wait_for_drain(struct call *c, struct err *e) {
    for (bool over = false; !over;) {
        char path[PATH_BYTES];
        snprintf(path, sizeof path, "/admin/v1/drain?wait_s=%d", POLL_S);
        int st = ask(c->v, "GET", path, NULL, POLL_S, &c->body, e);
        if (st) return st;
        json_error_t why;
        json_t *o = json_loads(strbuf_str(&c->body), 0, &why);
        bool drains = json_is_true(json_object_get(o, "draining"));
        over = json_is_true(json_object_get(o, "drained"));
        json_decref(o);
        if (!drains)
            return err_set(e, ST_CANCELLED,
                           "wanted a drained router, found one that was told to undrain");
    }
    return ST_OK;
}

static int run_drain(struct call *c, struct err *e) {
    if (strcmp(c->arg, "router")) return one_worker(c, e);
    int st = ask(c->v, "POST", "/admin/v1/drain", NULL, 0, &c->body, e);
    if (!st && c->v->wait) st = wait_for_drain(c, e);
    return print_answer(st, c);
}

static int run_undrain(struct call *c, struct err *e) {
    return print_answer(ask(c->v, "POST", "/admin/v1/undrain", NULL, 0, &c->body, e), c);
}

static int run_workers(struct call *c, struct err *e) {
    int st = ask(c->v, "GET", "/admin/v1/workers", NULL, 0, &c->body, e);
    if (!st) st = print_workers(strbuf_str(&c->body), e);
    if (!st) st = ask(c->v, "GET", "/admin/v1/drain", NULL, 0, &c->body, e);
    return st ? st : print_router(strbuf_str(&c->body), e);
}

static int run_requests(struct call *c, struct err *e) {
    int st = ask(c->v, "GET", "/admin/v1/requests", NULL, 0, &c->body, e);
    return st ? st : print_requests(strbuf_str(&c->body), e);
}

static int run_cancel(struct call *c, struct err *e) {
    char path[PATH_BYTES];
    snprintf(path, sizeof path, "/admin/v1/requests/%.160s", c->arg);
    return print_answer(ask(c->v, "DELETE", path, NULL, 0, &c->body, e), c);
}

static int run_config(struct call *c, struct err *e) {
    return print_answer(ask(c->v, "GET", "/admin/v1/config", NULL, 0, &c->body, e), c);
}

static int run_reload(struct call *c, struct err *e) {
    return print_answer(ask(c->v, "POST", "/admin/v1/reload", NULL, 0, &c->body, e), c);
}

static int run_log_level(struct call *c, struct err *e) {
    struct strbuf q = {0};
    strbuf_add_str(&q, "{\"level\":");
    jsontext_string(&q, c->arg, strlen(c->arg));
    strbuf_add_char(&q, '}');
    int st = ask(c->v, "PUT", "/admin/v1/log_level", &q, 0, &c->body, e);
    strbuf_fini(&q);
    return print_answer(st, c);
}

enum argument {
    ARG_NONE,
    ARG_RANK,
    ARG_RANK_OR_ROUTER,
    ARG_RANK_OR_ALL,
    ARG_ROUTER,
    ARG_NUMBER,
    ARG_TEXT
};

static const struct command {
    const char *name;
    enum argument argument;
    const char *wanted; // what stands behind it
    int (*run)(struct call *c, struct err *e);
} commands[] = {
    {"workers", ARG_NONE, "nothing", run_workers},
    {"requests", ARG_NONE, "nothing", run_requests},
    {"drain", ARG_RANK_OR_ROUTER, "a worker's rank, or router", run_drain},
    {"undrain", ARG_ROUTER, "router", run_undrain},
    {"resume", ARG_RANK, "a worker's rank", one_worker},
    {"stop", ARG_RANK, "a worker's rank", one_worker},
    {"start", ARG_RANK, "a worker's rank", one_worker},
    {"restart", ARG_RANK_OR_ALL, "a worker's rank, or all", run_restart},
    {"operation", ARG_NUMBER, "the number that restart all printed", run_operation},
    {"abort", ARG_NUMBER, "the number that restart all printed", run_operation},
    {"cancel", ARG_TEXT, "a request's id", run_cancel},
    {"config", ARG_NONE, "nothing", run_config},
    {"reload", ARG_NONE, "nothing", run_reload},
    {"log-level", ARG_TEXT, "debug, info, warn or error", run_log_level},
};
enum { COMMANDS = sizeof commands / sizeof *commands };

// The first line of --key-file takes the place of --key.
static int read_key(struct values *v, struct err *e) {
    char line[512];
    if (!*v->key_file) return ST_OK;
    FILE *f = fopen(v->key_file, "re");
    if (!f) return err_errno(e, "--key-file '%s'", v->key_file);
    bool any = fgets(line, sizeof line, f) != NULL;
    fclose(f);
    line[any ? strcspn(line, "\r\n") : 0] = '\0';
    if (!*line)
        return err_set(e, ST_INVAL, "--key-file '%s': wanted a key in its first line, found none",
                       v->key_file);
    free(v->key);
    v->key = strdup(line);
    return ST_OK;
}

static bool argument_fits(enum argument kind, const char *arg) {
    bool is_number = *arg && strlen(arg) <= 9 && strspn(arg, "0123456789") == strlen(arg);
    switch (kind) {
    case ARG_NONE: return false;
    case ARG_RANK:
    case ARG_NUMBER: return is_number;
    case ARG_RANK_OR_ROUTER: return is_number || !strcmp(arg, "router");
    case ARG_RANK_OR_ALL: return is_number || !strcmp(arg, "all");
    case ARG_ROUTER: return !strcmp(arg, "router");
    case ARG_TEXT: return *arg != '\0';
    }
    return false;
}

static int unknown_command(const char *found, struct err *e) {
    struct strbuf names = {0};
    for (int i = 0; i < COMMANDS; i++)
        strbuf_printf(&names, "%s%s", i ? ", " : "", commands[i].name);
    err_set(e, ST_INVAL, "wanted one of %s, found %s%.64s%s", strbuf_str(&names),
            *found ? "'" : "none", found, *found ? "'" : "");
    strbuf_fini(&names);
    return e->st;
}

// Which command that is. ST_INVAL: none, and e says what was wanted and what was found.
static int choose(const struct command **ret, const char *const *args, int n, struct err *e) {
    const struct command *c = NULL;
    for (int i = 0; n && i < COMMANDS; i++)
        if (!strcmp(args[0], commands[i].name)) c = &commands[i];
    if (!c) return unknown_command(n ? args[0] : "", e);
    int wanted = 1 + (c->argument != ARG_NONE);
    if (n < wanted)
        return err_set(e, ST_INVAL, "%s: wanted %s behind it, found nothing", c->name, c->wanted);
    if (n > wanted)
        return err_set(e, ST_INVAL, "%s: wanted %s behind it, found '%.64s'", c->name,
                       wanted == 1 ? c->wanted : "nothing more", args[wanted]);
    if (wanted == 2 && !argument_fits(c->argument, args[1]))
        return err_set(e, ST_INVAL, "%s: wanted %s behind it, found '%.64s'", c->name, c->wanted,
                       args[1]);
    *ret = c;
    return ST_OK;
}

#define USE "use: railyard ctl WHAT [flags]"

static void usage(const struct settings *s, FILE *out) {
    fputs(USE
          "\n\nWHAT is one of\n"
          "  workers                 the workers and their states\n"
          "  requests                the requests in flight\n"
          "  drain RANK              a worker takes no new streams; those that run finish\n"
          "  resume RANK             it takes streams again; takes back a drain, stop or restart "
          "that\n"
          "                          has not yet ended it\n"
          "  stop RANK, start RANK   drain and end; start one that is stopped or failed\n"
          "  restart RANK            drain, end, start\n"
          "  restart all             every worker in turn, each ready before the next; prints the\n"
          "                          operation's number, and goes on whatever becomes of this "
          "command;\n"
          "                          what is stopped stays so, what is drained is drained again\n"
          "  operation NUMBER        how far that is\n"
          "  abort NUMBER            ends it: the other workers stay as they are\n"
          "  drain router            the whole router: not ready any more, then no new requests\n"
          "  undrain router          ready again\n"
          "  cancel ID               end a request; its client gets an error\n"
          "  config                  the settings in effect, as JSON\n"
          "  reload                  reads keys, certificate and --config file again, as SIGHUP "
          "does\n"
          "  log-level LEVEL         debug, info, warn or error\n"
          "\nflags:\n",
          out);
    settings_help(s, out);
}

int cmd_ctl(int argc, char **argv) {
    struct values v = {0};
    struct settings s;
    struct err e = {0};
    settings_init(&s, table, sizeof table / sizeof *table, &v);
    const char **args = calloc((size_t)argc + 1, sizeof *args);
    const struct command *command = NULL;
    struct call c = {.v = &v};
    int n = 0, status = 2;
    signal(SIGPIPE, SIG_IGN); // a server that hangs up is an error
    bool help = false;
    for (int i = 0; i < argc; i++) help |= !strcmp(argv[i], "--help");
    if (help) {
        usage(&s, stdout);
        status = 0;
        goto out;
    }
    int st = settings_parse(&s, argc, argv, args, &n, &e);
    if (!st) st = choose(&command, args, n, &e);
    if (st) {
        fprintf(stderr, "railyard ctl: %s\n", e.msg);
        fputs(USE " (railyard ctl --help lists them)\n", stderr);
        goto out;
    }
    c.name = command->name;
    c.arg = command->argument == ARG_NONE ? NULL : args[1];
    st = read_key(&v, &e);
    if (!st) st = command->run(&c, &e);
    if (st) fprintf(stderr, "railyard ctl: %s\n", e.msg);
    status = st ? 1 : 0;
out:
    strbuf_fini(&c.body);
    free(args);
    settings_fini(&s);
    return status;
}
