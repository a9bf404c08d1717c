/* fake_http: see fake_http.h. */
#include "tests/lib/fake_http.h"
#include "common/mem.h"
#include "common/strbuf.h"

#include <arpa/inet.h>
#include <assert.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

struct fake_http {
    int fd;
    uint16_t port;
    const char *const *replies;
    size_t count;
    struct strbuf requests;
    pthread_t thread;
    bool joined;
};

// Whether the request that starts at p is whole: a head, and as much body as it announces.
static bool is_whole(const char *p) {
    const char *blank = strstr(p, "\r\n\r\n");
    const char *length = strstr(p, "Content-Length: ");
    if (!blank) return false;
    return !length || strlen(blank + 4) >= strtoul(length + 16, NULL, 10);
}

static void serve(struct fake_http *f, int fd, const char *reply) {
    size_t from = f->requests.len;
    char chunk[4096];
    ssize_t n;
    while (!f->requests.p || !is_whole(f->requests.p + from)) {
        if ((n = read(fd, chunk, sizeof chunk)) <= 0) return;
        strbuf_add(&f->requests, chunk, (size_t)n);
    }
    if (!reply) {
        while (read(fd, chunk, sizeof chunk) > 0) continue;
        return;
    }
    for (size_t sent = 0, len = strlen(reply); sent < len; sent += (size_t)n)
        if ((n = send(fd, reply + sent, len - sent, MSG_NOSIGNAL)) <= 0) return;
}

static void *run(void *arg) {
    struct fake_http *f = arg;
    for (size_t i = 0; i < f->count; i++) {
        int fd = accept(f->fd, NULL, NULL);
        if (fd < 0) break;
        serve(f, fd, f->replies[i]);
        close(fd);
    }
    return NULL;
}

static struct fake_http *start(int fd, const char *const *replies, size_t count) {
    struct fake_http *f = mem_calloc(1, sizeof *f);
    f->fd = fd;
    f->replies = replies;
    f->count = count;
    int rc = listen(fd, 16);
    assert(!rc);
    rc = pthread_create(&f->thread, NULL, run, f);
    assert(!rc);
    return f;
}

struct fake_http *fake_http_start(const char *const *replies, size_t count) {
    struct sockaddr_in sa = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof sa;
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    int rc = bind(fd, (struct sockaddr *)&sa, sizeof sa);
    assert(!rc);
    rc = getsockname(fd, (struct sockaddr *)&sa, &len);
    assert(!rc);
    struct fake_http *f = start(fd, replies, count);
    f->port = ntohs(sa.sin_port);
    return f;
}

struct fake_http *fake_http_start_unix(const char *path, const char *const *replies, size_t count) {
    struct sockaddr_un sa = {.sun_family = AF_UNIX};
    assert(strlen(path) < sizeof sa.sun_path);
    strcpy(sa.sun_path, path);
    int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    int rc = bind(fd, (struct sockaddr *)&sa, sizeof sa);
    assert(!rc);
    return start(fd, replies, count);
}

uint16_t fake_http_port(const struct fake_http *f) {
    return f->port;
}

const char *fake_http_join(struct fake_http *f) {
    if (!f->joined) pthread_join(f->thread, NULL);
    f->joined = true;
    return strbuf_str(&f->requests);
}

void fake_http_free(struct fake_http *f) {
    if (!f) return;
    shutdown(f->fd, SHUT_RDWR); // ends an accept that nobody comes for
    fake_http_join(f);
    close(f->fd);
    strbuf_fini(&f->requests);
    free(f);
}
