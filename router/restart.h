/* restart: when a worker that died is started again: after 1, 2, 4 ... 60 s, and no more once it has failed five
 * times in ten minutes. Pure: the caller brings the time. */
#pragma once
#include <stdbool.h>
#include <stdint.h>

enum {
    RESTART_FAILURES_MAX = 5,
    RESTART_WINDOW_MS =
        10 * 60 *
        1000, // the failures that count; also how long a healthy run must be to forget them
    RESTART_DELAY_MS_MAX = 60 * 1000,
};

struct restart {                              // zero-initialised: nothing has failed
    uint64_t failed_ms[RESTART_FAILURES_MAX]; // ring of the last ones
    uint32_t failed_count;                    // since restart_reset
    uint32_t in_a_row;                        // doubles the delay
};

void restart_reset(struct restart *r);
// A failure at now_ms of a run that began at started_ms. False: stay down. *ret_delay_ms: wait before the next start.
bool restart_after_failure(struct restart *r, uint64_t now_ms, uint64_t started_ms,
                           uint64_t *ret_delay_ms);
