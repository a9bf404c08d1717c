/* kv_append_ref: the twin of kv_append.cu. */
#include "kernels/attn/kv_append.h"
#include "kernels/attn/kv_order.h"
#include "kernels/cuda/kv_at.h"
#include "kernels/cuda/refs.h"
#include "kernels/cuda/sums_ref.h"

static void norm_rotate(const struct kv_append_args *a, uint32_t t, const float *x, devptr scales,
                        float *y) {
    const float *scale = refs_ptr(scales);
    const float *angles = (const float *)refs_ptr(a->angles) + (uint64_t)t * 2 * a->pairs;
    float lanes[SUMS_WARP] = {0};
    for (uint32_t d = 0; d < a->kv.dim; d++) {
        float *sum = &lanes[d / 4 % SUMS_WARP];
        *sum = fmaf(x[d], x[d], *sum);
    }
    float factor = 1.0f / sqrtf(sums_warp(lanes) / (float)a->kv.dim + a->eps);
    for (uint32_t d = 0; d < a->kv.dim; d++) y[d] = (x[d] * factor) * scale[d];
    for (uint32_t i = 0; i < a->pairs; i++) {
        float cos = angles[i], sin = angles[a->pairs + i], b = y[i], c = y[a->pairs + i];
        y[i] = fmaf(b, cos, -(c * sin));
        y[a->pairs + i] = fmaf(c, cos, b * sin);
    }
}

void kv_append_ref(const struct kv_append_args *a) {
    const uint32_t *slot = refs_ptr(a->rows.slot), *pos = refs_ptr(a->rows.pos);
    uint32_t dim = a->kv.dim;
    float y[KV_DIM_MAX];
    for (uint32_t t = 0; t < a->rows.count; t++) {
        for (uint32_t h = 0; h < a->heads; h++) {
            float *q = (float *)refs_ptr(a->qg) + ((uint64_t)t * a->heads + h) * 2 * dim;
            norm_rotate(a, t, q, a->q_scale, y);
            memcpy(q, y, dim * sizeof *q);
        }
        for (uint32_t h = 0; h < a->kv.heads; h++) {
            const uint32_t *pages = refs_ptr(a->kv.table);
            uint64_t at = ((uint64_t)t * a->kv.heads + h) * dim;
            uint64_t page =
                kv_page_at(&a->kv, pages + (uint64_t)slot[t] * a->kv.pages_per_slot, pos[t], h);
            norm_rotate(a, t, (const float *)refs_ptr(a->k) + at, a->k_scale, y);
            for (uint32_t d = 0; d < dim; d++) {
                uint64_t to = page + kv_in_page(&a->kv, pos[t] % KV_PAGE_TOKENS, d);
                kv_put(refs_ptr(a->kv.k), to, a->kv.dtype, y[d]);
                kv_put(refs_ptr(a->kv.v), to, a->kv.dtype, ((const float *)refs_ptr(a->v))[at + d]);
            }
        }
    }
}
