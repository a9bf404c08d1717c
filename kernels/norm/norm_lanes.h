/* norm_lanes: the sum of squares that every norm of the CPU backend shares, and the scaling behind it. */
#pragma once
#include "kernels/cpu_vec.h"

#include <math.h>

// 1 / sqrt(sum(x^2) / count + eps); count 1 for an l2 norm. IEEE root and division.
CPU_INLINE float norm_factor(const float *x, uint32_t dim, float count, float eps) {
    return 1.0f / sqrtf(vf_dot(x, x, dim) / count + eps);
}

// y = (x * factor) * scale
CPU_INLINE void norm_scale(const float *x, float factor, const float *scale, float *y,
                           uint32_t dim) {
    uint32_t d = 0;
    for (; d + LANES <= dim; d += LANES)
        vf_store(y + d, (vf_load(x + d) * factor) * vf_load(scale + d));
    for (; d < dim; d++) y[d] = (x[d] * factor) * scale[d];
}
