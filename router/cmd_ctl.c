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
     "of restart all: time for a worker to be ready again"},
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
    json_decref(w);
    return ST_OK;
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

/* ---- verbs ---- */

static void write_how(const struct values *v, struct strbuf *out) {
    strbuf_printf(out, "{\"timeout_s\":%.15g,\"start_s\":%.15g,\"streams\":\"%s\",\"force\":%s}",
                  v->timeout, v->start, v->streams, v->force ? "true" : "false");
}

// A worker's verb, and the state that it leads to.
static const struct {
    const char *name, *state;
} verbs[] = {{"drain", "drained"},
             {"resume", "ready"},
             {"restart", "ready"},
             {"stop", "stopped"},
             {"start", "ready"}};
enum { VERBS = sizeof verbs / sizeof *verbs };

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
        if (!there)
            st = err_set(e, ST_TIMEOUT, "worker %s is %s, and not %s after %u s", rank,
                         text_of(w, "state"), state, seconds);
        json_decref(w);
        if (st || !again) return st;
        usleep(AGAIN_US); // it is ready still, and not yet gone
    }
}

static int one_worker(const struct values *v, const char *verb, const char *state, const char *rank,
                      struct strbuf *body, struct err *e) {
    char path[PATH_BYTES];
    struct strbuf how = {0};
    long long generation = -1;
    write_how(v, &how);
    snprintf(path, sizeof path, "/admin/v1/workers/%.32s/%s", rank, verb);
    int st = ask(v, "POST", path, &how, 0, body, e);
    strbuf_fini(&how);
    if (!st && !strcmp(verb, "restart")) {
        json_error_t why;
        json_t *w = json_loads(strbuf_str(body), 0, &why);
        generation = number_of(w, "generation");
        json_decref(w);
    }
    if (!st && v->wait) st = wait_for_worker(v, rank, state, generation, body, e);
    return st ? st : print_one_worker(strbuf_str(body), e);
}

static int restart_all(const struct values *v, struct strbuf *body, struct err *e) {
    char path[PATH_BYTES];
    struct strbuf how = {0};
    write_how(v, &how);
    int st = ask(v, "POST", "/admin/v1/restart", &how, 0, body, e);
    strbuf_fini(&how);
    for (bool running = v->wait; !st && running;) {
        json_error_t why;
        json_t *o = json_loads(strbuf_str(body), 0, &why);
        running = !strcmp(text_of(o, "state"), "running");
        snprintf(path, sizeof path, "/admin/v1/operations/%.32s?wait_s=60", text_of(o, "id"));
        if (!strcmp(text_of(o, "state"), "failed"))
            st =
                err_set(e, ST_IO, "the restart of all workers failed: %.300s", text_of(o, "error"));
        json_decref(o);
        if (running) st = ask(v, "GET", path, NULL, 60, body, e);
    }
    if (!st) printf("%s", strbuf_str(body));
    return st;
}

static int set_log_level(const struct values *v, const char *level, struct strbuf *body,
                         struct err *e) {
    struct strbuf q = {0};
    strbuf_add_str(&q, "{\"level\":");
    jsontext_string(&q, level, strlen(level));
    strbuf_add_char(&q, '}');
    int st = ask(v, "PUT", "/admin/v1/log_level", &q, 0, body, e);
    strbuf_fini(&q);
    return st;
}

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

static int print_answer(int st, const struct strbuf *body) {
    if (!st) printf("%s", strbuf_str(body));
    return st;
}

// ST_NOT_FOUND: no such command.
static int run(const struct values *v, const char *const *args, int n, struct strbuf *body,
               struct err *e) {
    const char *what = n ? args[0] : "";
    char path[PATH_BYTES];
    if (n == 1 && !strcmp(what, "workers")) {
        int st = ask(v, "GET", "/admin/v1/workers", NULL, 0, body, e);
        return st ? st : print_workers(strbuf_str(body), e);
    }
    if (n == 1 && !strcmp(what, "requests")) {
        int st = ask(v, "GET", "/admin/v1/requests", NULL, 0, body, e);
        return st ? st : print_requests(strbuf_str(body), e);
    }
    if (n == 1 && !strcmp(what, "config"))
        return print_answer(ask(v, "GET", "/admin/v1/config", NULL, 0, body, e), body);
    if (n == 1 && (!strcmp(what, "drain") || !strcmp(what, "undrain"))) {
        snprintf(path, sizeof path, "/admin/v1/%s", what);
        return print_answer(ask(v, "POST", path, NULL, 0, body, e), body);
    }
    if (n == 2 && !strcmp(what, "cancel")) {
        snprintf(path, sizeof path, "/admin/v1/requests/%.160s", args[1]);
        return print_answer(ask(v, "DELETE", path, NULL, 0, body, e), body);
    }
    if (n == 2 && !strcmp(what, "log-level"))
        return print_answer(set_log_level(v, args[1], body, e), body);
    if (n == 2 && !strcmp(what, "restart") && !strcmp(args[1], "all"))
        return restart_all(v, body, e);
    for (int i = 0; n == 2 && i < VERBS; i++)
        if (!strcmp(what, verbs[i].name))
            return one_worker(v, what, verbs[i].state, args[1], body, e);
    return ST_NOT_FOUND;
}

static void usage(const struct settings *s, FILE *out) {
    fputs("use: railyard ctl WHAT [flags], where WHAT is one of\n"
          "  workers                 the workers and their states\n"
          "  requests                the requests in flight\n"
          "  drain RANK              no new streams; those that run finish\n"
          "  resume RANK             takes streams again\n"
          "  stop RANK, start RANK   drain and end; start one that is stopped or failed\n"
          "  restart RANK            drain, end, start\n"
          "  restart all             every worker in turn, each ready before the next\n"
          "  drain, undrain          the whole router: not ready any more; ready again\n"
          "  cancel ID               end a request; its client gets an error\n"
          "  config                  the settings in effect, as JSON\n"
          "  log-level LEVEL         debug, info, warn or error\n"
          "flags:\n",
          out);
    settings_help(s, out);
}

int cmd_ctl(int argc, char **argv) {
    struct values v = {0};
    struct settings s;
    struct err e = {0};
    settings_init(&s, table, sizeof table / sizeof *table, &v);
    const char **args = calloc((size_t)argc + 1, sizeof *args);
    int n = 0, status = 2;
    struct strbuf body = {0};
    signal(SIGPIPE, SIG_IGN); // a server that hangs up is an error
    bool help = false;
    for (int i = 0; i < argc; i++) help |= !strcmp(argv[i], "--help");
    int st = help ? ST_OK : settings_parse(&s, argc, argv, args, &n, &e);
    if (help) {
        usage(&s, stdout);
        status = 0;
        goto out;
    }
    if (st) {
        fprintf(stderr, "railyard ctl: %s\n", e.msg);
        goto out;
    }
    st = read_key(&v, &e);
    if (!st) st = run(&v, args, n, &body, &e);
    if (st == ST_NOT_FOUND)
        usage(&s, stderr);
    else if (st)
        fprintf(stderr, "railyard ctl: %s\n", e.msg);
    status = st == ST_NOT_FOUND ? 2 : st ? 1 : 0;
out:
    strbuf_fini(&body);
    free(args);
    settings_fini(&s);
    return status;
}
