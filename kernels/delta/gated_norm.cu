/* gated_norm: see gated_norm.h. A warp is a head of a row.
 *
 * Order   the sum as in delta_norm.cu; (o * factor) * w, then * silu(z).
 * Equals  gated_norm_ref.c, bit for bit. */
#include "kernels/cuda/device.cuh"
#include "kernels/delta/gated_norm.h"

extern "C" __global__ void gated_norm(const struct gated_norm_args a) {
    uint32_t head = blockIdx.y * (blockDim.x / WARP) + threadIdx.x / WARP;
    uint32_t lane = threadIdx.x % WARP;
    if (head >= a.heads) return;
    uint64_t at = ((uint64_t)blockIdx.x * a.heads + head) * a.dim;
    const float *o = device_ptr<const float>(a.o) + at, *z = device_ptr<const float>(a.z) + at;
    const float *w = device_ptr<const float>(a.w);
    float *y = device_ptr<float>(a.y) + at;
    float sum = 0;
    for (uint32_t d = lane; d < a.dim; d += WARP) sum = fmaf(o[d], o[d], sum);
    float factor = 1.0f / sqrtf(device_warp_sum(sum) / (float)a.dim + a.eps);
    for (uint32_t d = lane; d < a.dim; d += WARP)
        y[d] = ((o[d] * factor) * w[d]) * arith_silu(z[d]);
}
