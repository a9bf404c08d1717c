/* restart: see restart.h. */
#include "router/restart.h"
#include "common/num.h"

void restart_reset(struct restart *r) {
    *r = (struct restart){0};
}

bool restart_after_failure(struct restart *r, uint64_t now_ms, uint64_t started_ms,
                           uint64_t *ret_delay_ms) {
    if (now_ms - started_ms >= RESTART_WINDOW_MS) restart_reset(r); // it ran well for long
    uint64_t *oldest = &r->failed_ms[r->failed_count % RESTART_FAILURES_MAX];
    *oldest = now_ms;
    r->failed_count++;
    uint64_t first = r->failed_ms[r->failed_count % RESTART_FAILURES_MAX]; // the fifth last
    if (r->failed_count >= RESTART_FAILURES_MAX && now_ms - first < RESTART_WINDOW_MS) return false;
    uint64_t delay_ms = (uint64_t)1000 << min_u32(r->in_a_row, 6);
    r->in_a_row++;
    *ret_delay_ms = min_u64(delay_ms, RESTART_DELAY_MS_MAX);
    return true;
}
