/* lobby_call: see lobby_call.h. */
#include "worker/lobby_call.h"
#include "common/err.h"
#include "common/mono.h"
#include "common/strbuf.h"
#include "proto/frame.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

enum { LENGTH_BYTES = 4 };

struct call {
    const char *url;
    int fd, stop_fd;
    uint64_t until_ms;
};

// Until fd can be read or written, or a reason to give up.
static int wait_for(const struct call *c, short events, struct err *e) {
    for (;;) {
        struct pollfd fds[2] = {{c->fd, events, 0}, {c->stop_fd, POLLIN, 0}};
        uint64_t now = mono_ms();
        if (now >= c->until_ms)
            return err_set(e, ST_TIMEOUT, "the lobby '%s' did not answer within %d ms", c->url,
                           LOBBY_CALL_MS);
        int n = poll(fds, c->stop_fd >= 0 ? 2 : 1, (int)(c->until_ms - now));
        if (n > 0 && fds[1].revents && c->stop_fd >= 0)
            return err_set(e, ST_CANCELLED, "told to stop");
        if (n > 0) return ST_OK;
        if (n < 0 && errno != EINTR) return err_errno(e, "poll");
    }
}

static int closed(const struct call *c, const char *what, struct err *e) {
    return err_set(e, ST_CLOSED, "%s the lobby '%s': %s", what, c->url, strerror(errno));
}

int lobby_check(const char *url, struct err *e) {
    struct sockaddr_un a;
    bool ok = !strncmp(url, "ipc://", 6) && url[6] && strlen(url + 6) < sizeof a.sun_path;
    return ok ? ST_OK
              : err_set(e, ST_INVAL, "lobby '%s': wanted ipc:// and a path of at most %zu bytes",
                        url, sizeof a.sun_path - 1);
}

static int open_fd(struct call *c, struct err *e) {
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    int st = lobby_check(c->url, e);
    if (st) return st;
    strcpy(a.sun_path, c->url + 6);
    c->fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (c->fd < 0) return err_errno(e, "socket");
    if (connect(c->fd, (struct sockaddr *)&a, sizeof a)) return closed(c, "dial", e);
    return ST_OK;
}

static int send_all(const struct call *c, const char *p, size_t len, struct err *e) {
    while (len > 0) {
        int st = wait_for(c, POLLOUT, e);
        if (st) return st;
        ssize_t n = send(c->fd, p, len, MSG_NOSIGNAL);
        if (n < 0 && errno != EAGAIN && errno != EINTR) return closed(c, "write to", e);
        if (n > 0) p += n, len -= (size_t)n;
    }
    return ST_OK;
}

static int receive(const struct call *c, void *p, size_t len, struct err *e) {
    for (char *at = p; len > 0;) {
        int st = wait_for(c, POLLIN, e);
        if (st) return st;
        ssize_t n = recv(c->fd, at, len, 0);
        if (n == 0) return err_set(e, ST_CLOSED, "the lobby '%s' hung up", c->url);
        if (n < 0 && errno != EAGAIN && errno != EINTR) return closed(c, "read from", e);
        if (n > 0) at += n, len -= (size_t)n;
    }
    return ST_OK;
}

static int receive_frame(const struct call *c, struct strbuf *ret, struct err *e) {
    uint8_t head[LENGTH_BYTES];
    size_t len = 0;
    int st = receive(c, head, sizeof head, e);
    if (st) return st;
    for (int i = 0; i < LENGTH_BYTES; i++) len |= (size_t)head[i] << 8 * i;
    if (len > FRAME_LOBBY_BYTES_MAX)
        return err_set(e, ST_CORRUPT, "the lobby's answer: wanted at most %d bytes, found %zu",
                       FRAME_LOBBY_BYTES_MAX, len);
    strbuf_reset(ret);
    strbuf_reserve(ret, len);
    st = receive(c, ret->p, len, e);
    if (!st) ret->len = len;
    return st;
}

int lobby_call(const char *url, const struct frame *hello, int stop_fd, struct strbuf *ret,
               struct err *e) {
    struct call c = {url, -1, stop_fd, mono_ms() + LOBBY_CALL_MS};
    struct strbuf out = {0};
    uint8_t head[LENGTH_BYTES];
    strbuf_add(&out, head, sizeof head);
    int st = frame_encode(&out, hello, e);
    for (int i = 0; i < LENGTH_BYTES; i++) out.p[i] = (char)((out.len - sizeof head) >> 8 * i);
    if (!st) st = open_fd(&c, e);
    if (!st) st = send_all(&c, out.p, out.len, e);
    if (!st) st = receive_frame(&c, ret, e);
    if (c.fd >= 0) close(c.fd);
    strbuf_fini(&out);
    return st;
}
