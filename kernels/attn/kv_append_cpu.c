/* kv_append_cpu: see kv_append.h. A unit is a row. */
#include "kernels/attn/kv_append.h"
#include "kernels/attn/kv_page.h"
#include "kernels/cpu.h"
#include "kernels/norm/norm_lanes.h"
#include "kernels/rope/rotate.h"

static void norm_rotate(float *x, uint32_t dim, devptr scale, const float *angles,
                        const struct kv_append_args *a) {
    norm_scale(x, norm_factor(x, dim, (float)dim, a->eps), cpu_ptr(scale), x, dim);
    rotate_pairs(x, angles, a->pairs);
}

static void put(const struct kv_view *kv, devptr base, uint64_t first, const float *x) {
    if (kv->dtype == DTYPE_F32) {
        memcpy((float *)cpu_ptr(base) + first, x, kv->dim * sizeof *x);
        return;
    }
    if (kv->dtype == DTYPE_E4M3) {
        uint8_t *bytes = (uint8_t *)cpu_ptr(base) + first;
        for (uint32_t d = 0; d < kv->dim; d += LANES) {
            vu v = vf_to_e4m3(vf_load(x + d));
            for (uint32_t i = 0; i < LANES; i++) bytes[d + i] = (uint8_t)v[i];
        }
        return;
    }
    uint16_t *out = (uint16_t *)cpu_ptr(base) + first;
    for (uint32_t d = 0; d < kv->dim; d += LANES) {
        vh h = vf_to_bf16(vf_load(x + d));
        memcpy(out + d, &h, sizeof h);
    }
}

static void kv_append_row(void *arg, uint32_t t, uint32_t thread) {
    const struct kv_append_args *a = arg;
    const struct kv_view *kv = &a->kv;
    uint32_t dim = kv->dim;
    const float *angles = (const float *)cpu_ptr(a->angles) + (uint64_t)t * 2 * a->pairs;
    float *qg = (float *)cpu_ptr(a->qg) + (uint64_t)t * a->heads * 2 * dim;
    float *k = (float *)cpu_ptr(a->k) + (uint64_t)t * kv->heads * dim;
    const float *v = (const float *)cpu_ptr(a->v) + (uint64_t)t * kv->heads * dim;
    uint32_t slot = ((const uint32_t *)cpu_ptr(a->rows.slot))[t];
    uint32_t pos = ((const uint32_t *)cpu_ptr(a->rows.pos))[t];
    for (uint32_t h = 0; h < a->heads; h++)
        norm_rotate(qg + h * 2 * dim, dim, a->q_scale, angles, a);
    for (uint32_t h = 0; h < kv->heads; h++) {
        norm_rotate(k + h * dim, dim, a->k_scale, angles, a);
        uint64_t first = kv_page_first(kv, slot, pos, h);
        put(kv, kv->k, first, k + h * dim);
        put(kv, kv->v, first, v + h * dim);
    }
}

void CPU_NAME(kv_append)(void *ctx, const struct kv_append_args *a) {
    struct kv_append_args args = *a;
    uint64_t work = (uint64_t)a->rows.count * (a->heads + 2 * a->kv.heads) * a->kv.dim * 2;
    cpu_for(ctx, work, a->rows.count, kv_append_row, &args);
}
