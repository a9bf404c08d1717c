/* log: one line per event on stderr: time, level, event name, then key=value pairs of the caller's format.
 * Values with spaces are the caller's to quote. Never a prompt, an output or a key. Any thread. Nobody waits
 * for a reader of stderr: see logfd.h. Library code returns errors; whoever decides what happens next logs, once. */
#pragma once
#include <stddef.h>

enum log_level { LOG_LEVEL_DEBUG, LOG_LEVEL_INFO, LOG_LEVEL_WARN, LOG_LEVEL_ERROR };

void log_init(const char *program,
              enum log_level level); // program goes into every line; the string is kept
void log_set_level(enum log_level level);
int log_level_parse(const char *name,
                    enum log_level *ret); // 0, or ST_INVAL: "debug", "info", "warn", "error"
void log_line(enum log_level level, const char *event, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

void log_raw(const char *line, size_t len); // a line of another form, with its end, in the same row
void log_flush(void); // what a slow reader has left waiting; for whoever has a clock

#define log_error(...) log_line(LOG_LEVEL_ERROR, __VA_ARGS__)
#define log_warn(...) log_line(LOG_LEVEL_WARN, __VA_ARGS__)
#define log_info(...) log_line(LOG_LEVEL_INFO, __VA_ARGS__)
#define log_debug(...) log_line(LOG_LEVEL_DEBUG, __VA_ARGS__)
