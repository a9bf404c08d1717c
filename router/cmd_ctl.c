/* cmd_ctl: railyard ctl WHAT [--ops=ADDRESS]: asks the ops listener of a running router. */
#include "common/err.h"
#include "common/settings.h"
#include "common/strbuf.h"
#include "router/cmd.h"
#include "router/httpc.h"

#include <jansson.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ANSWER_MS = 10000 };

struct values {
    char *ops;
};
static const struct setting table[] = {
    {"ops", SETTING_STRING, offsetof(struct values, ops), "127.0.0.1:8001", 0, 0, NULL, NULL,
     "address of the router's ops listener: HOST:PORT or unix:/path"},
};

static int get(const char *ops, const char *path, struct strbuf *body, struct err *e) {
    struct httpc_address address;
    int st = httpc_address_parse(&address, ops, e);
    if (st) return err_prefix(e, "--ops");
    struct httpc_request q = {.method = "GET", .path = path, .stall_ms = ANSWER_MS};
    int status = 0;
    st = httpc_fetch(&address, &q, &status, body, e);
    if (!st && status != 200) st = err_set(e, ST_IO, "%.100s%s: status %d", ops, path, status);
    httpc_address_fini(&address);
    return st;
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

static int print_workers(const char *body, struct err *e) {
    json_error_t why;
    json_t *list = json_loads(body, 0, &why);
    if (!json_is_array(list)) {
        json_decref(list);
        return err_set(e, ST_CORRUPT, "wanted a list of workers, found something else");
    }
    printf(
        "rank  state          pid  streams    restarts  uptime_s  device                reason\n");
    for (size_t i = 0; i < json_array_size(list); i++) print_worker(json_array_get(list, i));
    json_decref(list);
    return ST_OK;
}

static void print_usage(const struct settings *s) {
    printf("railyard ctl workers [--ops=ADDRESS]: the workers of a running router, one a line\n\n");
    settings_help(s, stdout);
}

int cmd_ctl(int argc, char **argv) {
    struct values v = {0};
    struct settings s;
    struct err e = {0};
    settings_init(&s, table, 1, &v);
    const char **args = calloc((size_t)argc + 1, sizeof *args);
    int n = 0, status = 1;
    struct strbuf body = {0};
    signal(SIGPIPE, SIG_IGN); // a server that hangs up is an error
    for (int i = 0; i < argc; i++) {
        if (strcmp(argv[i], "--help")) continue;
        print_usage(&s);
        status = 0;
        goto out;
    }
    int st = settings_parse(&s, argc, argv, args, &n, &e);
    if (st || n != 1 || strcmp(args[0], "workers")) {
        fprintf(stderr, "%s%suse: railyard ctl workers [--ops=ADDRESS]\n", e.msg, st ? "\n" : "");
        status = 2;
        goto out;
    }
    st = get(v.ops, "/admin/v1/workers", &body, &e);
    if (!st) st = print_workers(strbuf_str(&body), &e);
    if (st) fprintf(stderr, "railyard ctl: %s\n", e.msg);
    status = st ? 1 : 0;
out:
    strbuf_fini(&body);
    free(args);
    settings_fini(&s);
    return status;
}
