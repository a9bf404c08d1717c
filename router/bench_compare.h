/* bench_compare: two receipts of one checkpoint and the same prompts: do two builds say the same? Pure. */
#pragma once
#include <stdint.h>
#include <stdio.h>

#include "router/bench.h"

struct err;

struct bench_verdict { // of one cell that both have
    char name[BENCH_TEXT_BYTES];
    uint32_t equal, unequal, failed; // pairs of replies to one request; failed: on either side
    uint32_t by_logits;              // of the equal ones
    uint32_t stream, rep;            // of the first pair that is not equal
};
struct bench_comparison {
    struct bench_verdict *cells;
    size_t cell_count;
    uint32_t equal, unequal, failed, by_logits; // over all cells
    size_t only_a, only_b;                      // cells that one side alone has
    uint32_t unpaired; // replies of the other cells that one side alone has
};

// ST_INVAL when the two cannot be compared: other or unnamed checkpoint, prompts, tokens or seed, no cell in common.
// Replies of a cell are paired by stream and rep; those that one side alone has are left out.
int bench_compare(struct bench_comparison *ret, const struct bench_receipt *a,
                  const struct bench_receipt *b, struct err *e);
void bench_comparison_fini(struct bench_comparison *c);
void bench_comparison_print(const struct bench_comparison *c, const struct bench_receipt *a,
                            const struct bench_receipt *b, FILE *out);
