/* delta_mix_order: what the CUDA kernels and their plan agree on. */
#pragma once
#include "kernels/delta/delta_mix.h"
#include "kernels/delta/delta_scan_order.h"

enum { DELTA_MIX_DIM = 128 }; // of keys and values, for the kernel that does all of it

// Of a block, a head having `blocks`: a warp for each group of columns, and one more.
#define DELTA_MIX_THREADS(blocks) ((DELTA_MIX_DIM / DELTA_COLUMNS / (blocks) + 1) * 32)

struct delta_mix_params {
    struct delta_mix_args a;
    devptr counters; // u32 [runs, NK], 0 between launches
};
