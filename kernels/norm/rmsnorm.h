/* rmsnorm: y[t,d] = x[r,d] * (1 / sqrt(mean(x[r,:]^2) + eps)) * scale[d], r = pick ? pick[t] : t
 *
 * Shapes  x [.., D], y [T, D] f32; scale [D] f32: 1 + w where the checkpoint stores zero-centred weights, formed in fp32
 *         by the loader; pick [T] u32 or 0.
 * Order   CPU: 16 lanes, lane i sums x[i + 16 k]^2 for ascending k, each step fused; lanes add by halves (i + 8, i + 4, i + 2, i + 1).
 * Rounds  fp32 throughout, IEEE sqrt and division.
 * Source  Zhang and Sennrich 2019; eps inside the root, rms_norm_eps of the config. */
#pragma once
#include "kernels/types.h"

struct rmsnorm_args {
    devptr x, scale, pick, y;
    uint32_t rows, dim;
    float eps;
};
