/* delta_mix_order: what the CUDA kernels and their plan agree on. */
#pragma once
#include "kernels/delta/delta_mix.h"

enum { DELTA_MIX_DIM = 128 }; // of keys and values, for the kernel that does all of it

struct delta_mix_params {
    struct delta_mix_args a;
    devptr counters; // u32 [runs, NK], 0 between launches
};
