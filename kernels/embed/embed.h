/* embed: x[t,:] = table[ids[t],:], as fp32, exact. */
#pragma once
#include "kernels/types.h"

struct embed_args {
    struct weight table; // [V, D]
    devptr ids;          // [T] u32, each below V
    uint32_t rows;       // T
    devptr x;            // [T, D] f32
};
