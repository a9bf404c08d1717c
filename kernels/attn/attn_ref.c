/* attn_ref: the twin of attn.cu, query by query. */
#include "kernels/attn/attn.h"
#include "kernels/attn/kv_order.h"
#include "kernels/cuda/kv_at.h"
#include "kernels/cuda/mma_step.h"
#include "kernels/cuda/refs.h"
#include "kernels/cuda/sums_ref.h"

#include <stdbool.h>

enum { STEPS = ATTN_TILE / MMA_K };

struct part { // of the keys: a chunk, or all chunks so far
    float max, sum;
    float values[KV_DIM_MAX];
};

struct query {
    const struct attn_args *a;
    const float *q;
    uint32_t head; // key head
    struct part chunk, all;
    struct mma_one split[KV_DIM_MAX];
};

static uint16_t half_at(devptr p, uint64_t i, enum dtype d) { // as bf16
    if (d == DTYPE_BF16) return ((const uint16_t *)refs_ptr(p))[i];
    return arith_to_bf16(arith_from_e4m3(((const uint8_t *)refs_ptr(p))[i]));
}

static void scores(const struct query *q, uint64_t tile, uint32_t n, float ret[ATTN_TILE]) {
    const struct kv_view *kv = &q->a->kv;
    if (kv->dtype == DTYPE_F32) {
        for (uint32_t j = 0; j < n; j++) {
            const float *k = (const float *)refs_ptr(kv->k) + tile + (uint64_t)j * kv->dim;
            float part[16] = {0};
            for (uint32_t d = 0; d < kv->dim; d++) part[d % 16] = fmaf(q->q[d], k[d], part[d % 16]);
            for (uint32_t half = 8; half; half /= 2)
                for (uint32_t i = 0; i < half; i++) part[i] = part[i] + part[i + half];
            ret[j] = part[0] * q->a->scale;
        }
        return;
    }
    static struct mma_vec keys[KV_DIM_MAX];
    for (uint32_t first = 0; first < n; first += MMA_LANES) {
        for (uint32_t d = 0; d < kv->dim; d++)
            for (uint32_t j = 0; j < MMA_LANES; j++)
                mma_put(
                    &keys[d], j,
                    mma_split(half_at(kv->k, tile + (uint64_t)(first + j) * kv->dim + d, kv->dtype),
                              DTYPE_BF16));
        mma_chain(ret + first, keys, q->split, kv->dim / MMA_K);
        for (uint32_t j = first; j < first + MMA_LANES; j++) ret[j] = ret[j] * q->a->scale;
    }
}

// s[0..n) to p, the rest to 0.
static void softmax(float s[ATTN_TILE], uint32_t n, bool half, float *ret_max, float *ret_sum) {
    float max = s[0], lanes[SUMS_WARP];
    for (uint32_t j = 1; j < n; j++) max = s[j] > max ? s[j] : max;
    for (uint32_t j = 0; j < ATTN_TILE; j++) {
        s[j] = j < n ? arith_exp(s[j] - max) : 0;
        if (half) s[j] = arith_from_bf16(arith_to_bf16(s[j]));
    }
    for (uint32_t j = 0; j < SUMS_WARP; j++) lanes[j] = s[j] + s[j + SUMS_WARP];
    *ret_max = max;
    *ret_sum = sums_warp(lanes);
}

static void tile_values(const struct query *q, uint64_t tile, uint32_t n, const float *p,
                        float *ret) {
    const struct kv_view *kv = &q->a->kv;
    if (kv->dtype == DTYPE_F32) {
        const float *v = (const float *)refs_ptr(kv->v) + tile;
        for (uint32_t d = 0; d < kv->dim; d++) {
            ret[d] = 0;
            for (uint32_t j = 0; j < n; j++)
                ret[d] = fmaf(p[j], v[(uint64_t)j * kv->dim + d], ret[d]);
        }
        return;
    }
    struct mma_one split[ATTN_TILE];
    struct mma_vec values[ATTN_TILE];
    for (uint32_t j = 0; j < ATTN_TILE; j++) split[j] = mma_split(arith_to_bf16(p[j]), DTYPE_BF16);
    for (uint32_t first = 0; first < kv->dim; first += MMA_LANES) {
        for (uint32_t j = 0; j < ATTN_TILE; j++)
            for (uint32_t d = 0; d < MMA_LANES; d++) {
                uint64_t i = tile + (uint64_t)j * kv->dim + first + d;
                mma_put(&values[j], d,
                        mma_split(j < n ? half_at(kv->v, i, kv->dtype) : 0, DTYPE_BF16));
            }
        mma_chain(ret + first, values, split, STEPS);
    }
}

static void merge(struct part *to, float max, float sum, const float *values, uint32_t dim) {
    float now = max > to->max ? max : to->max;
    float old = arith_exp(to->max - now), fresh = arith_exp(max - now);
    to->sum = fmaf(sum, fresh, to->sum * old);
    to->max = now;
    for (uint32_t d = 0; d < dim; d++) to->values[d] = fmaf(values[d], fresh, to->values[d] * old);
}

static void part_empty(struct part *p) {
    *p = (struct part){.max = -HUGE_VALF};
}

static void run_tiles(struct query *q, const uint32_t *pages, uint32_t pos) {
    const struct kv_view *kv = &q->a->kv;
    part_empty(&q->chunk);
    part_empty(&q->all);
    for (uint32_t first = 0; first <= pos; first += ATTN_TILE) {
        uint32_t left = pos + 1 - first, n = left < ATTN_TILE ? left : ATTN_TILE;
        uint64_t tile = kv_at(kv, pages, first, q->head);
        float p[ATTN_TILE], max, sum, values[KV_DIM_MAX];
        scores(q, tile, n, p);
        softmax(p, n, kv->dtype != DTYPE_F32, &max, &sum);
        tile_values(q, tile, n, p, values);
        merge(&q->chunk, max, sum, values, kv->dim);
        if (left > ATTN_TILE && (first / ATTN_TILE + 1) % ATTN_CHUNK_TILES) continue;
        merge(&q->all, q->chunk.max, q->chunk.sum, q->chunk.values, kv->dim);
        part_empty(&q->chunk);
    }
}

void attn_ref(const struct attn_args *a) {
    const uint32_t *slot = refs_ptr(a->rows.slot), *pos = refs_ptr(a->rows.pos);
    uint32_t dim = a->kv.dim;
    struct query q = {.a = a};
    for (uint32_t t = 0; t < a->rows.count; t++)
        for (uint32_t h = 0; h < a->heads; h++) {
            uint64_t head = (uint64_t)t * a->heads + h;
            const uint32_t *pages =
                (const uint32_t *)refs_ptr(a->kv.table) + (uint64_t)slot[t] * a->kv.pages_per_slot;
            q.q = (const float *)refs_ptr(a->qg) + head * 2 * dim;
            q.head = h / (a->heads / a->kv.heads);
            for (uint32_t d = 0; d < dim; d++)
                q.split[d] = mma_split(arith_to_bf16(q.q[d]), DTYPE_BF16);
            run_tiles(&q, pages, pos[t]);
            float *out = (float *)refs_ptr(a->out) + head * dim;
            for (uint32_t d = 0; d < dim; d++)
                out[d] = (q.all.values[d] / q.all.sum) * arith_sigmoid(q.q[dim + d]);
        }
}
