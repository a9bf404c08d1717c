/* health: see health.h. */
#include "router/health.h"
#include "common/num.h"

#include <inttypes.h>
#include <stdio.h>

static const double ROUND_MS_MAX = 1e6; // what a worker says of itself is believed up to here

void health_reset(struct health *h, uint64_t now_ms) {
    *h = (struct health){.last_ping_ms = now_ms, .progress_ms = now_ms};
}

void health_pinged(struct health *h, uint64_t now_ms) {
    if (h->ping_seq == h->pong_seq) h->ping_ms = now_ms; // the oldest that waits
    h->ping_seq++;
    h->last_ping_ms = now_ms;
}

void health_ponged(struct health *h, uint64_t seq) {
    if (seq > h->pong_seq && seq <= h->ping_seq) h->pong_seq = seq;
}

uint64_t health_limit_ms(double progress_s, double round_ms) {
    return (uint64_t)(progress_s * 1000 + 2 * (round_ms < ROUND_MS_MAX ? round_ms : ROUND_MS_MAX));
}

bool health_hung(const struct health *h, uint32_t streams, uint64_t limit_ms, uint64_t now_ms,
                 char *ret_reason, size_t reason_bytes) {
    if (h->pong_seq < h->ping_seq && now_ms - h->ping_ms > limit_ms)
        snprintf(ret_reason, reason_bytes, "hung: no answer to PING for %" PRIu64 " ms",
                 now_ms - h->ping_ms);
    else if (streams > 0 && now_ms - h->progress_ms > limit_ms)
        snprintf(ret_reason, reason_bytes, "hung: %u streams and no progress for %" PRIu64 " ms",
                 streams, now_ms - h->progress_ms);
    else
        return false;
    return true;
}

uint64_t health_clock(uint64_t clock_ms, uint64_t last_turn_ms, uint64_t now_ms, uint32_t tick_ms) {
    return clock_ms + min_u64(now_ms - last_turn_ms, 2 * (uint64_t)tick_ms);
}
