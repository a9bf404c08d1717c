/* attn_params: the argument of attn_split.cu and attn_rows.cu. */
#pragma once
#include "kernels/attn/attn.h"

struct attn_params {
    struct attn_args a;
    // Parts: values [entries, group, dim], then maxima and sums [entries, group, 2], f32.
    devptr scratch;
    // Of attn_rows, f32: values [blocks, 2 warpgroups, 2 levels, 64, 256], then maxima and sums [blocks, queries, 2].
    devptr levels;
    devptr counters; // the next unit, the blocks that are done, then those of parts
    uint32_t entries, counters_count; // how many there are
    uint32_t few;    // runs of up to so many rows are attn_split's, longer ones attn_rows'
    uint32_t stages; // of the ring that keys and values go through
};

enum { ATTN_COUNTERS_FIXED = 2, ATTN_STAGE_BYTES = 16 << 10, ATTN_SPLIT_STAGES_MAX = 12 };

enum {
    ATTN_ROWS_QUERIES = 128,
    ATTN_ROWS_LEVELS_BYTES = 4 * 64 << 10, // of a block
    ATTN_ROWS_SUMS_BYTES = ATTN_ROWS_QUERIES * 8,
    // Shared memory of attn_rows: queries, two tiles of keys and of values, barriers, units and sums; E4M3: two of its pages.
    ATTN_ROWS_SHARED = (192 << 10) + 2432,
    ATTN_ROWS_RAW = 32 << 10,
};

// Shared memory of attn_split beside its ring, at most: queries, p, scores, factors; barriers and units.
#define ATTN_SPLIT_SHARED(dim, cols) ((cols) * ((dim)*2 + 128 + 272 + 28) + 1024)
