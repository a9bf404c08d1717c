/* kv_append: see kv_append.h. A warp is a head of a row: query heads, then key heads, each with its values.
 *
 * Order   lane l has dimensions 4l .. 4l + 3 of every 128 and fuses their squares into its sum, ascending; lanes add by xor 16, 8, 4,
 *         2, 1; (x * factor) * scale; a' = fma(a, cos, -(b * sin)), b' = fma(b, cos, a * sin).
 * Equals  kv_append_ref.c, bit for bit. Key rows in `k` stay as they were: the cache alone has the rotated ones. */
#include "kernels/attn/kv_append.h"
#include "kernels/attn/kv_order.h"
#include "kernels/cuda/device.cuh"
#include "kernels/cuda/kv_at.h"

enum { WARPS = KV_APPEND_WARPS, VEC = 4, STEP = VEC * WARP, STEPS = KV_DIM_MAX / STEP };

struct lane_row { // a lane's part of a head
    float4 x[STEPS];
};

DEVICE_FN uint32_t at(uint32_t i) {
    return i * STEP + threadIdx.x % WARP * VEC;
}

DEVICE_FN void load(struct lane_row *r, const float *x, uint32_t dim) {
#pragma unroll
    for (uint32_t i = 0; i < STEPS; i++)
        if (at(i) < dim) r->x[i] = *reinterpret_cast<const float4 *>(x + at(i));
}

// Normed into y (shared, the warp's own), rotated there and taken back.
DEVICE_FN void norm_rotate(struct lane_row *r, const struct lane_row *scale, float *y,
                           const float *angles, const struct kv_append_args &a) {
    uint32_t dim = a.kv.dim;
    float sum = 0;
#pragma unroll
    for (uint32_t i = 0; i < STEPS; i++)
        if (at(i) < dim) {
            const float4 v = r->x[i];
            sum = fmaf(v.w, v.w, fmaf(v.z, v.z, fmaf(v.y, v.y, fmaf(v.x, v.x, sum))));
        }
    float f = 1.0f / sqrtf(device_warp_sum(sum) / (float)dim + a.eps);
#pragma unroll
    for (uint32_t i = 0; i < STEPS; i++)
        if (at(i) < dim) {
            const float4 v = r->x[i], s = scale->x[i];
            *reinterpret_cast<float4 *>(y + at(i)) =
                make_float4((v.x * f) * s.x, (v.y * f) * s.y, (v.z * f) * s.z, (v.w * f) * s.w);
        }
    __syncwarp();
    for (uint32_t i = threadIdx.x % WARP; i < a.pairs; i += WARP) {
        float cos = angles[i], sin = angles[a.pairs + i], b = y[i], c = y[a.pairs + i];
        y[i] = fmaf(b, cos, -(c * sin));
        y[a.pairs + i] = fmaf(c, cos, b * sin);
    }
    __syncwarp();
    load(r, y, dim);
}

DEVICE_FN uint32_t four_e4m3(float4 x) {
    return arith_to_e4m3(x.x) | (uint32_t)arith_to_e4m3(x.y) << 8 |
           (uint32_t)arith_to_e4m3(x.z) << 16 | (uint32_t)arith_to_e4m3(x.w) << 24;
}

// To row r of a page; four values stand together in any layout.
DEVICE_FN void put(const struct kv_view *kv, devptr base, uint64_t page, uint32_t r,
                   const struct lane_row *row) {
#pragma unroll
    for (uint32_t i = 0; i < STEPS; i++) {
        if (at(i) >= kv->dim) continue;
        uint64_t to = page + kv_in_page(kv, r, at(i));
        const float4 v = row->x[i];
        switch (kv->dtype) {
        case DTYPE_F32: *reinterpret_cast<float4 *>(device_ptr<float>(base) + to) = v; break;
        case DTYPE_E4M3:
            *reinterpret_cast<uint32_t *>(device_ptr<uint8_t>(base) + to) = four_e4m3(v);
            break;
        default:
            *reinterpret_cast<uint2 *>(device_ptr<uint16_t>(base) + to) =
                make_uint2(device_pack<DTYPE_BF16>(v.x, v.y), device_pack<DTYPE_BF16>(v.z, v.w));
        }
    }
}

extern "C" __global__ void __launch_bounds__(WARPS *WARP) kv_append(const struct kv_append_args a) {
    __shared__ float4 rows[WARPS][KV_DIM_MAX / VEC];
    uint32_t t = blockIdx.x, head = blockIdx.y * WARPS + threadIdx.x / WARP, dim = a.kv.dim;
    float *y = reinterpret_cast<float *>(rows[threadIdx.x / WARP]);
    const float *angles = device_ptr<const float>(a.angles) + (uint64_t)t * 2 * a.pairs;
    bool query = head < a.heads;
    struct lane_row x, v, scale;
    if (head < a.heads + a.kv.heads)
        load(&scale, device_ptr<const float>(query ? a.q_scale : a.k_scale), dim);
    device_let_next();
    device_wait_prior();
    if (head >= a.heads + a.kv.heads) return;
    if (query) {
        float *q = device_ptr<float>(a.qg) + ((uint64_t)t * a.heads + head) * 2 * dim;
        load(&x, q, dim);
        norm_rotate(&x, &scale, y, angles, a);
#pragma unroll
        for (uint32_t i = 0; i < STEPS; i++)
            if (at(i) < dim) *reinterpret_cast<float4 *>(q + at(i)) = x.x[i];
        return;
    }
    head -= a.heads;
    uint64_t row = ((uint64_t)t * a.kv.heads + head) * dim;
    load(&x, device_ptr<const float>(a.k) + row, dim);
    load(&v, device_ptr<const float>(a.v) + row, dim);
    uint64_t slot = device_ptr<const uint32_t>(a.rows.slot)[t];
    uint32_t pos = device_ptr<const uint32_t>(a.rows.pos)[t];
    const uint32_t *pages = device_ptr<const uint32_t>(a.kv.table) + slot * a.kv.pages_per_slot;
    uint64_t page = kv_page_at(&a.kv, pages, pos, head);
    norm_rotate(&x, &scale, y, angles, a);
    put(&a.kv, a.kv.k, page, pos % KV_PAGE_TOKENS, &x);
    put(&a.kv, a.kv.v, page, pos % KV_PAGE_TOKENS, &v);
}
