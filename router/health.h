/* health: when a worker counts as hung. Pure: the caller brings the time, on a clock that goes on only while its loop turns,
 * for answers that it could not see say nothing about the worker. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct health {
    uint64_t ping_seq, pong_seq, last_ping_ms; // the last PING, the last one answered
    uint64_t ping_ms;                          // when the oldest unanswered PING was sent
    uint64_t progress_ms;                      // when work moved last, or there was none
};

// A new incarnation.
void health_reset(struct health *h, uint64_t now_ms);
// A PING with number ping_seq was sent.
void health_pinged(struct health *h, uint64_t now_ms);
void health_ponged(struct health *h, uint64_t seq);
// How long work may stand still: a worker whose rounds are long reports its progress less often.
uint64_t health_limit_ms(double progress_s, double round_ms);
// streams: what it has to work on. True: hung, reason says why.
bool health_hung(const struct health *h, uint32_t streams, uint64_t limit_ms, uint64_t now_ms,
                 char *ret_reason, size_t reason_bytes);
// The clock, one turn of a loop later that wakes every tick_ms: of a turn that took longer, two ticks count. last_turn_ms and
// now_ms are monotonic times of the machine.
uint64_t health_clock(uint64_t clock_ms, uint64_t last_turn_ms, uint64_t now_ms, uint32_t tick_ms);
