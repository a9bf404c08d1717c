/* rmsnorm: see rmsnorm.h.
 *
 * Order   one block of RMSNORM_THREADS a row: thread i fuses x[i]^2, x[i + threads]^2, .. into its sum; warps add by xor 16,
 *         8, 4, 2, 1, then in the order of the warps.
 * Equals  rmsnorm_ref.c, bit for bit.
 * Cost    the bytes of x and y; the second read hits the cache. */
#include "kernels/cuda/device.cuh"
#include "kernels/norm/rmsnorm.h"
#include "kernels/norm/rmsnorm_order.h"

extern "C" __global__ void __launch_bounds__(RMSNORM_THREADS) rmsnorm(const struct rmsnorm_args a) {
    __shared__ float part[RMSNORM_THREADS / WARP];
    uint32_t t = blockIdx.x;
    const uint32_t *pick = device_ptr<const uint32_t>(a.pick);
    const float *x = device_ptr<const float>(a.x) + (uint64_t)(pick ? pick[t] : t) * a.dim;
    const float *scale = device_ptr<const float>(a.scale);
    float *y = device_ptr<float>(a.y) + (uint64_t)t * a.dim;
    float sum = 0;
    for (uint32_t d = threadIdx.x; d < a.dim; d += RMSNORM_THREADS) sum = fmaf(x[d], x[d], sum);
    sum = device_block_sum(sum, part, RMSNORM_THREADS / WARP);
    float factor = 1.0f / sqrtf(sum / (float)a.dim + a.eps);
    for (uint32_t d = threadIdx.x; d < a.dim; d += RMSNORM_THREADS)
        y[d] = (x[d] * factor) * scale[d];
}
