/* kv_append: see kv_append.h. A warp is a head of a row: query heads, then key heads, each with its values.
 *
 * Order   lane l fuses x[l]^2, x[l + 32]^2, .. into its sum; lanes add by xor 16, 8, 4, 2, 1; (x * factor) * scale;
 *         a' = fma(a, cos, -(b * sin)), b' = fma(b, cos, a * sin).
 * Equals  kv_append_ref.c, bit for bit. Key rows in `k` stay as they were: the cache alone has the rotated ones. */
#include "kernels/attn/kv_append.h"
#include "kernels/attn/kv_order.h"
#include "kernels/cuda/device.cuh"
#include "kernels/cuda/kv_at.h"

enum { WARPS = KV_APPEND_WARPS };

// Normed into y (shared), the warp's own.
DEVICE_FN void norm(const float *x, const float *scale, float *y, uint32_t dim, float eps) {
    uint32_t lane = threadIdx.x % WARP;
    float sum = 0;
    for (uint32_t d = lane; d < dim; d += WARP) sum = fmaf(x[d], x[d], sum);
    float factor = 1.0f / sqrtf(device_warp_sum(sum) / (float)dim + eps);
    for (uint32_t d = lane; d < dim; d += WARP) y[d] = (x[d] * factor) * scale[d];
    __syncwarp();
}

DEVICE_FN void rotate(float *y, const float *angles, uint32_t pairs) {
    for (uint32_t i = threadIdx.x % WARP; i < pairs; i += WARP) {
        float cos = angles[i], sin = angles[pairs + i], x = y[i], z = y[pairs + i];
        y[i] = fmaf(x, cos, -(z * sin));
        y[pairs + i] = fmaf(z, cos, x * sin);
    }
    __syncwarp();
}

extern "C" __global__ void __launch_bounds__(WARPS *WARP) kv_append(const struct kv_append_args a) {
    __shared__ float rows[WARPS][KV_DIM_MAX];
    uint32_t t = blockIdx.x, head = blockIdx.y * WARPS + threadIdx.x / WARP, dim = a.kv.dim;
    uint32_t lane = threadIdx.x % WARP;
    float *y = rows[threadIdx.x / WARP];
    const float *angles = device_ptr<const float>(a.angles) + (uint64_t)t * 2 * a.pairs;
    if (head >= a.heads + a.kv.heads) return;
    if (head < a.heads) {
        float *q = device_ptr<float>(a.qg) + ((uint64_t)t * a.heads + head) * 2 * dim;
        norm(q, device_ptr<const float>(a.q_scale), y, dim, a.eps);
        rotate(y, angles, a.pairs);
        for (uint32_t d = lane; d < dim; d += WARP) q[d] = y[d];
        return;
    }
    head -= a.heads;
    uint64_t at = ((uint64_t)t * a.kv.heads + head) * dim;
    const float *v = device_ptr<const float>(a.v) + at;
    norm(device_ptr<const float>(a.k) + at, device_ptr<const float>(a.k_scale), y, dim, a.eps);
    rotate(y, angles, a.pairs);
    uint64_t slot = device_ptr<const uint32_t>(a.rows.slot)[t];
    const uint32_t *pages = device_ptr<const uint32_t>(a.kv.table) + slot * a.kv.pages_per_slot;
    uint64_t to = kv_at(&a.kv, pages, device_ptr<const uint32_t>(a.rows.pos)[t], head);
    for (uint32_t d = lane; d < dim; d += WARP) {
        kv_put(device_ptr<void>(a.kv.k), to + d, a.kv.dtype, y[d]);
        kv_put(device_ptr<void>(a.kv.v), to + d, a.kv.dtype, v[d]);
    }
}
