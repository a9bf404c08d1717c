/* swiglu: y[t,i] = silu(gate[t,i]) * up[t,i], silu(g) = g / (1 + exp(-g)); [T, I] f32 each, y may be gate. fp32. */
#pragma once
#include "kernels/types.h"

struct swiglu_args {
    devptr gate, up, y;
    uint32_t rows, dim;
};
