/* activate: see activate.h. */
#include "router/activate.h"
#include "common/log.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { FIRST_FD = 3, FDS_MAX = 16, NAME_BYTES = 32 };

static int count;
static struct {
    int fd; // -1: taken
    char name[NAME_BYTES];
} sockets[FDS_MAX];

static void keep(const char *names) {
    static const char *const usual[] = {"api", "ops"};
    for (int i = 0; i < count; i++) {
        size_t n = names ? strcspn(names, ":") : 0;
        sockets[i].fd = FIRST_FD + i;
        fcntl(sockets[i].fd, F_SETFD, FD_CLOEXEC);
        if (names)
            snprintf(sockets[i].name, NAME_BYTES, "%.*s", (int)n, names);
        else
            snprintf(sockets[i].name, NAME_BYTES, "%s", i < 2 ? usual[i] : "");
        if (names) names += n + (names[n] == ':');
    }
}

void activate_init(void) {
    const char *pid = getenv("LISTEN_PID"), *fds = getenv("LISTEN_FDS");
    if (pid && fds && strtoll(pid, NULL, 10) == getpid()) {
        int n = atoi(fds);
        count = n < 0 ? 0 : n > FDS_MAX ? FDS_MAX : n;
        keep(getenv("LISTEN_FDNAMES"));
    }
    unsetenv("LISTEN_PID");
    unsetenv("LISTEN_FDS");
    unsetenv("LISTEN_FDNAMES");
}

int activate_take(const char *name) {
    for (int i = 0; i < count; i++) {
        int fd = sockets[i].fd;
        if (fd < 0 || strcmp(sockets[i].name, name)) continue;
        sockets[i].fd = -1;
        return fd;
    }
    return -1;
}

void activate_close_rest(void) {
    for (int i = 0; i < count; i++) {
        if (sockets[i].fd < 0) continue;
        log_warn("activation", "fd=%d name=\"%s\" reason=\"wanted the name api or ops\"",
                 sockets[i].fd, sockets[i].name);
        close(sockets[i].fd);
        sockets[i].fd = -1;
    }
}
