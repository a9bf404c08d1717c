/* attn_params: the argument of attn_split.cu and attn_rows.cu. */
#pragma once
#include "kernels/attn/attn.h"

struct attn_params {
    struct attn_args a;
    devptr scratch;  // values of parts [entries, group, dim], then their maxima and sums [entries, group, 2], f32
    devptr counters; // the next unit, the blocks that are done, then those of parts
    uint32_t entries, counters_count; // how many there are
    uint32_t few;    // runs of up to so many rows are attn_split's, longer ones attn_rows'
    uint32_t stages; // of the ring that keys and values go through
};

enum { ATTN_COUNTERS_FIXED = 2, ATTN_STAGE_BYTES = 16 << 10, ATTN_SPLIT_STAGES_MAX = 12 };

// Shared memory of attn_split beside its ring, at most: queries, p, scores, factors; barriers and units.
#define ATTN_SPLIT_SHARED(dim, cols) ((cols) * ((dim)*2 + 128 + 272 + 16) + 1024)
