/* bench_run: the cells of `bench concurrent`, one after the other, into a receipt.
 *
 * Order: for each class and draw the serial cell, the alone cell, the levels as given; then the cold prompts. */
#pragma once
#include "router/bench.h"
#include "router/bench_ask.h"
#include "router/bench_prompts.h"

struct bench_progress;
struct err;

struct bench_plan {
    uint32_t levels[BENCH_LEVELS_MAX], level_count;
    uint32_t tokens, reps;
    uint64_t seed; // stream k draws with seed + k
    bool alone, serial;
    const struct bench_prompts *prompts;
    const struct bench_prompts *cold; // NULL: none
};

// "1,2,4,8": distinct, 1..BENCH_STREAMS_MAX each.
int bench_plan_levels(struct bench_plan *ret, const char *text, struct err *e);
uint32_t bench_plan_waves(const struct bench_plan *p); // groups of requests that are sent at once

// A reply that fails or differs is counted, not an error; an error is a server that cannot even answer the first,
// unmeasured request. r keeps what was there before (its cells are added).
int bench_run(struct bench_receipt *r, const struct bench_plan *p, const struct bench_target *t,
              struct bench_progress *progress, struct err *e);

// What a stream said before, for each check that there is. Exposed for tests.
struct bench_known {
    bool has[BENCH_CHECK_COUNT];
    struct bench_digest digest[BENCH_CHECK_COUNT];
};
// Counts the cell's last reply, held against what is known, and remembers it.
void bench_run_judge(struct bench_cell *c, struct bench_known *known);
