/* logfd: whole lines to a descriptor that perhaps nobody reads. Writing never waits: what the other side does not take
 * is kept up to a bound, and what goes beyond is dropped and counted. One thread at a time. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/strbuf.h"

enum { LOGFD_BYTES_MAX = 1 << 20 }; // kept for a reader that is slow

struct logfd {
    int fd;             // -1: none; every line is taken and forgotten
    bool own;           // fd is ours to close
    bool is_socket;     // then each call says that it will not wait
    bool may_wait;      // fd cannot be told not to: it is asked before each write
    struct strbuf kept; // from the middle of a line on, maybe
    uint64_t dropped;   // lines, since logfd_take_dropped
};

// fd stays the caller's and open for as long. A pipe or a terminal is opened anew, since others that share the
// description must not be told not to wait.
void logfd_open(struct logfd *l, int fd);
void logfd_close(struct logfd *l); // what can be written at once is
// A line with its end. False: dropped.
bool logfd_write(struct logfd *l, const char *line, size_t len);
void logfd_flush(struct logfd *l);
// Lines lost so far, once the other side has taken all that was kept; 0 before, and when there were none. Counting starts anew.
uint64_t logfd_take_dropped(struct logfd *l);
