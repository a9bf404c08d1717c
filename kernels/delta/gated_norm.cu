/* gated_norm: see gated_norm.h. A warp is a head of a row, or several, one after the other, all asked for at once.
 *
 * Order   the sum as in delta_norm.cu; (o * factor) * w, then * silu(z).
 * Equals  gated_norm_ref.c, bit for bit.
 * Cost    12 NV DV bytes a row: 36 us for 2,048 rows of 48 heads of 128 at 4.2 TB/s. */
#include "kernels/cuda/quads.cuh"
#include "kernels/delta/delta_norm_order.h"
#include "kernels/delta/gated_norm.h"

struct head {
    const float *o, *z, *w;
    float *y;
    uint32_t dim;
    bool whole;
};

// The head whose first quads a warp has.
DEVICE_FN void norm_head(const struct head &h, float eps, const float4 &first, const float4 &gate) {
    uint32_t lane = threadIdx.x % WARP, n = h.dim;
    float4 s = {0, 0, 0, 0};
    quads_square(s, first);
    for (uint32_t i = lane + WARP; i * 4 < n; i += WARP)
        quads_square(s, quads_load(h.o, i, n, h.whole));
    float factor = 1.0f / sqrtf(device_warp_sum(quads_sum(s)) / (float)n + eps);
    for (uint32_t i = lane; i * 4 < n; i += WARP) {
        float4 v = i == lane ? first : quads_load(h.o, i, n, h.whole);
        float4 g = i == lane ? gate : quads_load(h.z, i, n, h.whole);
        v = quads_times(quads_scale(v, factor), quads_load(h.w, i, n, h.whole));
        quads_store(h.y, i, n, h.whole, quads_times(v, quads_silu(g)));
    }
}

template <uint32_t HEADS> DEVICE_FN void norm_heads(const struct gated_norm_args &a) {
    uint32_t first = (blockIdx.y * (blockDim.x / WARP) + threadIdx.x / WARP) * HEADS, n = a.dim;
    uint64_t at = ((uint64_t)blockIdx.x * a.heads + first) * n;
    struct head h = {device_ptr<const float>(a.o) + at,
                     device_ptr<const float>(a.z) + at,
                     device_ptr<const float>(a.w),
                     device_ptr<float>(a.y) + at,
                     n,
                     false};
    float4 o[HEADS], z[HEADS];
    h.whole =
        quads_whole(h.o, n) && quads_whole(h.z, n) && quads_whole(h.y, n) && quads_whole(h.w, n);
    device_wait_prior();
    device_let_next();
#pragma unroll
    for (uint32_t i = 0; i < HEADS; i++)
        if (first + i < a.heads) {
            o[i] = quads_load(h.o + (uint64_t)i * n, threadIdx.x % WARP, n, h.whole);
            z[i] = quads_load(h.z + (uint64_t)i * n, threadIdx.x % WARP, n, h.whole);
        }
#pragma unroll
    for (uint32_t i = 0; i < HEADS; i++) {
        if (first + i < a.heads) norm_head(h, a.eps, o[i], z[i]);
        h.o += n;
        h.z += n;
        h.y += n;
    }
}

extern "C" __global__ void gated_norm(const struct gated_norm_args a) {
    norm_heads<1>(a);
}

extern "C" __global__ void gated_norm_many(const struct gated_norm_args a) {
    norm_heads<DELTA_NORM_HEADS>(a);
}
