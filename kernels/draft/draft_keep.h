/* draft_keep: rows of keys and values to their place in the context. k, v [T, heads * dim] f32; runs as types.h has them, each
 * slot at most once. Of a run longer than the ring the last rows stay. */
#pragma once
#include "kernels/draft/draft.h"

struct draft_keep_args {
    struct draft_context context;
    devptr runs; // [runs_count] struct run
    uint32_t runs_count, rows;
    devptr k, v;
};
