/* log: see log.h. */
#include "common/log.h"
#include "common/err.h"

#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static const char *program_name = "railyard";
static _Atomic int level_min = LOG_LEVEL_INFO;
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

void log_line(enum log_level level, const char *event, const char *fmt, ...) {
    if ((int)level < atomic_load_explicit(&level_min, memory_order_relaxed)) return;
    char line[2048];
    struct timespec ts;
    struct tm tm;
    clock_gettime(CLOCK_REALTIME, &ts);
    gmtime_r(&ts.tv_sec, &tm);
    size_t n = strftime(line, sizeof line, "%Y-%m-%dT%H:%M:%S", &tm);
    n += (size_t)snprintf(line + n, sizeof line - n, ".%03ldZ %-5s %s %s ", ts.tv_nsec / 1000000,
                          level_names[level], program_name, event);
    va_list ap;
    va_start(ap, fmt);
    int k = vsnprintf(line + n, sizeof line - n, fmt, ap);
    va_end(ap);
    n += k < 0 ? 0 : (size_t)k;
    if (n > sizeof line - 2) n = sizeof line - 2;
    flatten(line, n);
    line[n++] = '\n';
    ssize_t written = write(STDERR_FILENO, line, n);
    (void)written; // a log that cannot be written has nowhere to say so
}
