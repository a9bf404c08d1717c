/* rmsnorm: a row's factor, for every kernel that norms rows on its way. Order: rmsnorm.cu. */
#pragma once
#include "kernels/cuda/quads.cuh"
#include "kernels/norm/rmsnorm_order.h"

/* What warp `nth` of a block of rmsnorm would have as its sum: a warp. x: dim floats, dim a multiple of 4, at a multiple of sixteen bytes;
 * read past the first cache. */
DEVICE_FN float rmsnorm_warp_sum(const float *x, uint32_t dim, uint32_t nth) {
    uint32_t threads = rmsnorm_threads(dim), first = nth * WARP + threadIdx.x % WARP;
    const float4 *quads = reinterpret_cast<const float4 *>(x);
    float4 keep[RMSNORM_KEEP], s = {0, 0, 0, 0};
#pragma unroll
    for (uint32_t i = 0; i < RMSNORM_KEEP; i++) {
        bool have = (first + i * threads) * 4 < dim;
        keep[i] = have ? __ldcg(quads + first + i * threads) : float4{0, 0, 0, 0};
    }
#pragma unroll
    for (uint32_t i = 0; i < RMSNORM_KEEP; i++) quads_square(s, keep[i]);
    for (uint32_t i = first + RMSNORM_KEEP * threads; i * 4 < dim; i += threads)
        quads_square(s, __ldcg(quads + i));
    return device_warp_sum(quads_sum(s));
}

// 1 / sqrt(mean + eps), of those sums. sums: of a row.
DEVICE_FN float rmsnorm_factor(const float *sums, uint32_t dim, float eps) {
    float sum = sums[0];
    for (uint32_t i = 1; i < rmsnorm_threads(dim) / WARP; i++) sum = sum + sums[i];
    return 1.0f / sqrtf(sum / (float)dim + eps);
}
