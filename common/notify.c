/* notify: see notify.h. */
#include "common/notify.h"

#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

enum { MESSAGE_BYTES = 1024 };

static struct sockaddr_un manager;
static socklen_t manager_len; // 0: there is none
static int sock = -1;
static uint64_t watchdog_ms;

// A path, or with '@' in front a name of the abstract namespace.
static void read_address(const char *s) {
    size_t n = s ? strlen(s) : 0;
    if (n < 2 || n >= sizeof manager.sun_path || (*s != '/' && *s != '@')) return;
    manager.sun_family = AF_UNIX;
    memcpy(manager.sun_path, s, n);
    if (*s == '@') manager.sun_path[0] = '\0';
    manager_len = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + n);
}

static void read_watchdog(const char *usec, const char *pid) {
    if (!usec || (pid && strtoll(pid, NULL, 10) != getpid())) return;
    uint64_t limit_us = strtoull(usec, NULL, 10);
    watchdog_ms = limit_us ? limit_us / 3000 + 1 : 0;
}

void notify_init(void) {
    read_address(getenv("NOTIFY_SOCKET"));
    read_watchdog(getenv("WATCHDOG_USEC"), getenv("WATCHDOG_PID"));
    unsetenv("NOTIFY_SOCKET");
    unsetenv("WATCHDOG_USEC");
    unsetenv("WATCHDOG_PID");
    if (!manager_len) return;
    sock = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
}

void notify_send(const char *fmt, ...) {
    char text[MESSAGE_BYTES];
    if (sock < 0) return;
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    if (n <= 0) return;
    size_t len = (size_t)n < sizeof text ? (size_t)n : sizeof text - 1;
    ssize_t sent = sendto(sock, text, len, MSG_NOSIGNAL, (struct sockaddr *)&manager, manager_len);
    (void)sent; // see the header
}

uint64_t notify_watchdog_ms(void) {
    return watchdog_ms;
}
