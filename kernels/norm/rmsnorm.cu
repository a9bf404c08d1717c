/* rmsnorm: see rmsnorm.h. A block is a row; a thread keeps its first quads in registers.
 *
 * Order   thread i of rmsnorm_threads takes quads i, i + threads, .. of four neighbours and keeps a sum for each place in a quad, fused; it
 *         adds (s0 + s1) + (s2 + s3); warps add by xor 16, 8, 4, 2, 1, then in the order of the warps.
 * Equals  rmsnorm_ref.c, bit for bit.
 * Cost    8 D bytes a row, x read and y written: 20 us for 2,048 rows of 5,120 at 4.2 TB/s; one row is its latency: a read, two sums over
 *         lanes, a write. */
#include "kernels/cuda/quads.cuh"
#include "kernels/norm/rmsnorm.h"
#include "kernels/norm/rmsnorm_order.h"

extern "C" __global__ void __launch_bounds__(RMSNORM_THREADS_MAX)
    rmsnorm(const struct rmsnorm_args a) {
    __shared__ float part[RMSNORM_THREADS_MAX / WARP];
    uint32_t t = blockIdx.x, threads = blockDim.x;
    const float *scale = device_ptr<const float>(a.scale);
    float4 keep[RMSNORM_KEEP], scales[RMSNORM_KEEP], s = {0, 0, 0, 0};
    bool whole = quads_whole(scale, a.dim);
#pragma unroll
    for (uint32_t i = 0; i < RMSNORM_KEEP; i++)
        scales[i] = quads_load(scale, threadIdx.x + i * threads, a.dim, whole);
    device_wait_prior();
    device_let_next();
    const uint32_t *pick = device_ptr<const uint32_t>(a.pick);
    const float *x = device_ptr<const float>(a.x) + (uint64_t)(pick ? pick[t] : t) * a.dim;
    float *y = device_ptr<float>(a.y) + (uint64_t)t * a.dim;
    whole = whole && quads_whole(x, a.dim) && quads_whole(y, a.dim);
#pragma unroll
    for (uint32_t i = 0; i < RMSNORM_KEEP; i++)
        keep[i] = quads_load(x, threadIdx.x + i * threads, a.dim, whole);
#pragma unroll
    for (uint32_t i = 0; i < RMSNORM_KEEP; i++) quads_square(s, keep[i]);
    uint32_t rest = threadIdx.x + RMSNORM_KEEP * threads;
    for (uint32_t i = rest; i * 4 < a.dim; i += threads)
        quads_square(s, quads_load(x, i, a.dim, whole));
    float sum = device_block_sum(quads_sum(s), part, threads / WARP);
    float factor = 1.0f / sqrtf(sum / (float)a.dim + a.eps);
#pragma unroll
    for (uint32_t i = 0; i < RMSNORM_KEEP; i++)
        quads_store(y, threadIdx.x + i * threads, a.dim, whole,
                    quads_times(quads_scale(keep[i], factor), scales[i]));
    for (uint32_t i = rest; i * 4 < a.dim; i += threads) {
        float4 v = quads_scale(quads_load(x, i, a.dim, whole), factor);
        quads_store(y, i, a.dim, whole, quads_times(v, quads_load(scale, i, a.dim, whole)));
    }
}
