/* delta_norm: see delta_norm.h. A warp is a head of a row, or several, one after the other, all asked for at once.
 *
 * Order   lane l takes quads l, l + 32, .. of four neighbours and keeps a sum for each place in a quad, fused; it adds
 *         (s0 + s1) + (s2 + s3); lanes add by xor 16, 8, 4, 2, 1.
 * Equals  delta_norm_ref.c, bit for bit.
 * Cost    16 NK DK bytes a row, read and written: 16 us for 2,048 rows of 16 heads of 128 at 4.2 TB/s. */
#include "kernels/cuda/quads.cuh"
#include "kernels/delta/delta_norm.h"
#include "kernels/delta/delta_norm_order.h"

// The head whose first quads a warp has.
DEVICE_FN void unit_head(const struct delta_norm_args &a, float *x, uint32_t head,
                         const float4 &first, bool whole) {
    uint32_t lane = threadIdx.x % WARP, n = a.key_dim;
    float4 s = {0, 0, 0, 0};
    quads_square(s, first);
    for (uint32_t i = lane + WARP; i * 4 < n; i += WARP)
        quads_square(s, quads_load(x, i, n, whole));
    float factor = 1.0f / sqrtf(device_warp_sum(quads_sum(s)) + 1e-6f);
    for (uint32_t i = lane; i * 4 < n; i += WARP) {
        float4 v = quads_scale(i == lane ? first : quads_load(x, i, n, whole), factor);
        quads_store(x, i, n, whole, head < a.key_heads ? quads_scale(v, a.q_scale) : v);
    }
}

template <uint32_t HEADS> DEVICE_FN void unit_heads(const struct delta_norm_args &a) {
    uint32_t head = (blockIdx.y * (blockDim.x / WARP) + threadIdx.x / WARP) * HEADS, n = a.key_dim;
    float *x = device_ptr<float>(a.qkv) + (uint64_t)blockIdx.x * a.channels + (uint64_t)head * n;
    bool whole = quads_whole(x, n);
    float4 first[HEADS];
    device_wait_prior();
    device_let_next();
#pragma unroll
    for (uint32_t h = 0; h < HEADS; h++)
        if (head + h < 2 * a.key_heads)
            first[h] = quads_load(x + (uint64_t)h * n, threadIdx.x % WARP, n, whole);
#pragma unroll
    for (uint32_t h = 0; h < HEADS; h++)
        if (head + h < 2 * a.key_heads)
            unit_head(a, x + (uint64_t)h * n, head + h, first[h], whole);
}

extern "C" __global__ void delta_norm(const struct delta_norm_args a) {
    unit_heads<1>(a);
}

extern "C" __global__ void delta_norm_many(const struct delta_norm_args a) {
    unit_heads<DELTA_NORM_HEADS>(a);
}
