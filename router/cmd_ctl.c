/* cmd_ctl: railyard ctl WHAT [--ops=ADDRESS]: asks the ops listener of a running router. */
#include "common/err.h"
#include "common/settings.h"
#include "common/strbuf.h"
#include "router/cmd.h"

#include <errno.h>
#include <jansson.h>
#include <netdb.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

enum { ANSWER_S = 10 };

struct values {
    char *ops;
};
static const struct setting table[] = {
    {"ops", SETTING_STRING, offsetof(struct values, ops), "127.0.0.1:8001", 0, 0, NULL, NULL,
     "address of the router's ops listener: HOST:PORT or unix:/path"},
};

static int connect_unix(const char *path, int *ret, struct err *e) {
    struct sockaddr_un sa = {.sun_family = AF_UNIX};
    if (strlen(path) >= sizeof sa.sun_path)
        return err_set(e, ST_INVAL, "--ops: a socket's path has at most %zu bytes",
                       sizeof sa.sun_path - 1);
    strcpy(sa.sun_path, path);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0 || connect(fd, (struct sockaddr *)&sa, sizeof sa)) {
        int st = err_errno(e, "connect to unix:%s", path);
        if (fd >= 0) close(fd);
        return st;
    }
    *ret = fd;
    return ST_OK;
}

static int connect_tcp(const char *address, int *ret, struct err *e) {
    const char *colon = strrchr(address, ':');
    char host[256];
    if (!colon || (size_t)(colon - address) >= sizeof host)
        return err_set(e, ST_INVAL, "--ops: wanted HOST:PORT or unix:/path, found '%.100s'",
                       address);
    size_t n = (size_t)(colon - address);
    bool bracketed = n >= 2 && address[0] == '[' && colon[-1] == ']';
    snprintf(host, sizeof host, "%.*s", (int)(bracketed ? n - 2 : n), address + bracketed);
    struct addrinfo *list = NULL, hints = {.ai_socktype = SOCK_STREAM};
    int rc = getaddrinfo(*host ? host : "127.0.0.1", colon + 1, &hints, &list);
    if (rc) return err_set(e, ST_INVAL, "--ops '%.100s': %s", address, gai_strerror(rc));
    int fd = -1, st = ST_IO;
    for (struct addrinfo *a = list; a && st; a = a->ai_next) {
        fd = socket(a->ai_family, a->ai_socktype | SOCK_CLOEXEC, a->ai_protocol);
        st = fd >= 0 && !connect(fd, a->ai_addr, a->ai_addrlen)
                 ? ST_OK
                 : (int)err_errno(e, "connect to %.100s", address);
        if (st && fd >= 0) close(fd);
    }
    freeaddrinfo(list);
    if (!st) *ret = fd;
    return st;
}

// One GET whose answer ends with the connection. *body points into *answer.
static int get(const char *address, const char *path, struct strbuf *answer, const char **body,
               struct err *e) {
    int fd = -1;
    int st = !strncmp(address, "unix:", 5) ? connect_unix(address + 5, &fd, e)
                                           : connect_tcp(address, &fd, e);
    if (st) return st;
    struct timeval limit = {.tv_sec = ANSWER_S};
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    struct strbuf ask = {0};
    strbuf_printf(&ask, "GET %s HTTP/1.1\r\nHost: railyard\r\nConnection: close\r\n\r\n", path);
    if (send(fd, ask.p, ask.len, MSG_NOSIGNAL) != (ssize_t)ask.len)
        st = err_errno(e, "send to %.100s", address);
    char chunk[16384];
    ssize_t n = 0;
    while (!st && (n = recv(fd, chunk, sizeof chunk, 0)) > 0) strbuf_add(answer, chunk, (size_t)n);
    if (!st && n < 0) st = err_errno(e, "no answer from %.100s", address);
    strbuf_fini(&ask);
    close(fd);
    if (st) return st;
    const char *blank = strstr(strbuf_str(answer), "\r\n\r\n");
    if (!blank || strncmp(answer->p, "HTTP/1.1 ", 9))
        return err_set(e, ST_CORRUPT, "%.100s: wanted an HTTP answer, found something else",
                       address);
    if (strncmp(answer->p + 9, "200", 3))
        return err_set(e, ST_IO, "%.100s%s: status %.3s", address, path, answer->p + 9);
    *body = blank + 4;
    return ST_OK;
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

int cmd_ctl(int argc, char **argv) {
    struct values v = {0};
    struct settings s;
    struct err e = {0};
    settings_init(&s, table, 1, &v);
    const char **args = calloc((size_t)argc + 1, sizeof *args);
    int n = 0, status = 1;
    struct strbuf answer = {0};
    const char *body = NULL;
    int st = settings_parse(&s, argc, argv, args, &n, &e);
    if (st || n != 1 || strcmp(args[0], "workers")) {
        fprintf(stderr, "%s%suse: railyard ctl workers [--ops=ADDRESS]\n", e.msg, st ? "\n" : "");
        status = 2;
        goto out;
    }
    st = get(v.ops, "/admin/v1/workers", &answer, &body, &e);
    if (!st) st = print_workers(body, &e);
    if (st) fprintf(stderr, "railyard ctl: %s\n", e.msg);
    status = st ? 1 : 0;
out:
    strbuf_fini(&answer);
    free(args);
    settings_fini(&s);
    return status;
}
