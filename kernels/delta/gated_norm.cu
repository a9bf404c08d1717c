/* gated_norm: see gated_norm.h. A warp is a head of a row.
 *
 * Order   the sum as in delta_norm.cu; (o * factor) * w, then * silu(z).
 * Equals  gated_norm_ref.c, bit for bit.
 * Cost    12 NV DV bytes a row: 36 us for 2,048 rows of 48 heads of 128 at 4.2 TB/s; an H200 takes 48, with
 *         exponentials and divisions. */
#include "kernels/cuda/quads.cuh"
#include "kernels/delta/gated_norm.h"

extern "C" __global__ void gated_norm(const struct gated_norm_args a) {
    uint32_t head = blockIdx.y * (blockDim.x / WARP) + threadIdx.x / WARP;
    uint32_t lane = threadIdx.x % WARP, n = a.dim;
    device_wait_prior();
    device_let_next();
    if (head >= a.heads) return;
    uint64_t at = ((uint64_t)blockIdx.x * a.heads + head) * n;
    const float *o = device_ptr<const float>(a.o) + at, *z = device_ptr<const float>(a.z) + at;
    const float *w = device_ptr<const float>(a.w);
    float *y = device_ptr<float>(a.y) + at;
    bool whole = quads_whole(o, n) && quads_whole(z, n) && quads_whole(y, n) && quads_whole(w, n);
    float4 first = quads_load(o, lane, n, whole), gate = quads_load(z, lane, n, whole);
    float4 s = {0, 0, 0, 0};
    quads_square(s, first);
    for (uint32_t i = lane + WARP; i * 4 < n; i += WARP)
        quads_square(s, quads_load(o, i, n, whole));
    float factor = 1.0f / sqrtf(device_warp_sum(quads_sum(s)) / (float)n + a.eps);
    for (uint32_t i = lane; i * 4 < n; i += WARP) {
        float4 v = i == lane ? first : quads_load(o, i, n, whole);
        float4 g = i == lane ? gate : quads_load(z, i, n, whole);
        v = quads_times(quads_scale(v, factor), quads_load(w, i, n, whole));
        quads_store(y, i, n, whole, quads_times(v, quads_silu(g)));
    }
}
