/* logfd: see logfd.h. */
#include "common/logfd.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

void logfd_open(struct logfd *l, int fd) {
    struct stat sb;
    char path[40];
    *l = (struct logfd){.fd = fd};
    if (fd < 0 || fstat(fd, &sb)) return;
    l->is_socket = S_ISSOCK(sb.st_mode);
    if (!S_ISFIFO(sb.st_mode) && !S_ISCHR(sb.st_mode))
        return; // a file always takes what it is given
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    int again = open(path, O_WRONLY | O_NONBLOCK | O_CLOEXEC | O_NOCTTY);
    l->own = again >= 0;
    l->may_wait = again < 0;
    if (l->own) l->fd = again;
}

void logfd_close(struct logfd *l) {
    logfd_flush(l);
    strbuf_fini(&l->kept);
    if (l->own) close(l->fd);
    *l = (struct logfd){.fd = -1};
}

// How many of the bytes were taken.
static size_t put(const struct logfd *l, const char *p, size_t len) {
    ssize_t n;
    if (l->may_wait) { // a pipe that can be written takes this much in one piece
        struct pollfd f = {l->fd, POLLOUT, 0};
        if (poll(&f, 1, 0) != 1) return 0;
        if (len > PIPE_BUF) len = PIPE_BUF;
    }
    do n = l->is_socket ? send(l->fd, p, len, MSG_DONTWAIT | MSG_NOSIGNAL) : write(l->fd, p, len);
    while (n < 0 && errno == EINTR);
    if (n < 0 && errno != EAGAIN && errno != EWOULDBLOCK) return len; // nowhere to say it: gone
    return n < 0 ? 0 : (size_t)n;
}

void logfd_flush(struct logfd *l) {
    while (l->kept.len) {
        size_t n = put(l, l->kept.p, l->kept.len);
        if (n == 0) return;
        strbuf_drop_front(&l->kept, n);
    }
}

bool logfd_write(struct logfd *l, const char *line, size_t len) {
    if (l->fd < 0) return true;
    logfd_flush(l);
    size_t n = l->kept.len ? 0 : put(l, line, len);
    if (n == len) return true;
    if (n == 0 && l->kept.len + len > LOGFD_BYTES_MAX) return l->dropped++, false;
    strbuf_add(&l->kept, line + n, len - n); // a line that was begun is finished
    return true;
}

uint64_t logfd_take_dropped(struct logfd *l) {
    logfd_flush(l);
    if (l->kept.len) return 0;
    uint64_t n = l->dropped;
    l->dropped = 0;
    return n;
}
