/* gated_norm: y[t,h,:] = rmsnorm(o[t,h,:]) * w * silu(z[t,h,:]) over the DV values of each head, in place of o or not.
 *
 * Shapes  o, z, y [T, NV, DV] f32; w [DV] f32, plain (no 1 +).
 * Order   the sum as in rmsnorm.h; (o * r) * w, then * silu(z). fp32.
 * Source  Qwen3.5 gated delta net (transformers): norm first, then the gate. */
#pragma once
#include "kernels/types.h"

struct gated_norm_args {
    devptr o, z, w, y;
    uint32_t rows, heads, dim;
    float eps;
};
