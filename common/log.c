/* log: see log.h. */
#include "common/log.h"
#include "common/err.h"
#include "common/logfd.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static const char *program_name = "railyard";
static _Atomic int level_min = LOG_LEVEL_INFO;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; // guards out
static struct logfd out = {.fd = -1};
static const char *const level_names[] = {"debug", "info", "warn", "error"};

void log_init(const char *program, enum log_level level) {
    program_name = program;
    log_set_level(level);
}

void log_set_level(enum log_level level) {
    atomic_store(&level_min, (int)level);
}

int log_level_parse(const char *name, enum log_level *ret) {
    for (int i = 0; i <= LOG_LEVEL_ERROR; i++) {
        if (strcmp(name, level_names[i])) continue;
        *ret = (enum log_level)i;
        return ST_OK;
    }
    return ST_INVAL;
}

// A newline inside a value would let it forge a line of its own.
static void flatten(char *s, size_t len) {
    for (size_t i = 0; i < len; i++)
        if (s[i] == '\n' || s[i] == '\r') s[i] = ' ';
}

// "2026-01-02T03:04:05.678Z warn  railyard event ": what stands at the head of a line. Returns its length.
static size_t put_head(char *line, size_t size, enum log_level level, const char *event) {
    struct timespec ts;
    struct tm tm;
    clock_gettime(CLOCK_REALTIME, &ts);
    gmtime_r(&ts.tv_sec, &tm);
    size_t n = strftime(line, size, "%Y-%m-%dT%H:%M:%S", &tm);
    n += (size_t)snprintf(line + n, size - n, ".%03ldZ %-5s %s %s ", ts.tv_nsec / 1000000,
                          level_names[level], program_name, event);
    return n;
}

// Under the lock.
static void tell_dropped(void) {
    char line[256];
    uint64_t dropped = logfd_take_dropped(&out);
    if (!dropped) return;
    size_t n = put_head(line, sizeof line, LOG_LEVEL_WARN, "log_dropped");
    n += (size_t)snprintf(line + n, sizeof line - n, "lines=%" PRIu64 "\n", dropped);
    logfd_write(&out, line, n);
}

void log_raw(const char *line, size_t len) {
    pthread_mutex_lock(&lock);
    if (out.fd < 0) logfd_open(&out, STDERR_FILENO);
    tell_dropped();
    logfd_write(&out, line, len);
    pthread_mutex_unlock(&lock);
}

void log_flush(void) {
    pthread_mutex_lock(&lock);
    tell_dropped();
    pthread_mutex_unlock(&lock);
}

void log_line(enum log_level level, const char *event, const char *fmt, ...) {
    if ((int)level < atomic_load_explicit(&level_min, memory_order_relaxed)) return;
    char line[2048];
    size_t n = put_head(line, sizeof line, level, event);
    va_list ap;
    va_start(ap, fmt);
    int k = vsnprintf(line + n, sizeof line - n, fmt, ap);
    va_end(ap);
    n += k < 0 ? 0 : (size_t)k;
    if (n > sizeof line - 2) n = sizeof line - 2;
    flatten(line, n);
    line[n++] = '\n';
    log_raw(line, n);
}
