/* attn_ref: the twin of attn.cu, attn_split.cu and attn_rows.cu, query by query. */
#include "common/mem.h"
#include "kernels/attn/attn.h"
#include "kernels/attn/kv_order.h"
#include "kernels/cuda/kv_at.h"
#include "kernels/cuda/mma_step.h"
#include "kernels/cuda/refs.h"

#include <stdbool.h>
#include <stdlib.h>

enum { STEPS = ATTN_TILE / MMA_K, CLASSES = 4, PAIRS = ATTN_TILE / 2 / CLASSES };

struct part { // of the keys: a chunk, a group of chunks, or all so far
    float max, sum;
    float values[KV_DIM_MAX];
};

struct query {
    const struct attn_args *a;
    const float *q;
    uint32_t head, pos; // key head
    const uint32_t *pages;
    float unit;
    float sums[CLASSES]; // of the chunk
    struct part chunk, group, all;
    struct mma_one split[KV_DIM_MAX];
};

// A page of a key head, taken apart; the one looked at last is kept.
struct page {
    uint64_t at;
    struct mma_vec keys[STEPS][KV_DIM_MAX];                   // lanes: keys
    struct mma_vec values[KV_DIM_MAX / MMA_LANES][ATTN_TILE]; // lanes: dimensions
};

static enum dtype half_of(enum dtype d) {
    return d == DTYPE_E4M3 ? DTYPE_F16 : DTYPE_BF16;
}

static uint16_t to_half(float x, enum dtype d) {
    return half_of(d) == DTYPE_F16 ? arith_to_f16(x) : arith_to_bf16(x);
}

static struct mma_one one_at(const struct kv_view *kv, devptr p, uint64_t i) {
    uint16_t h = kv->dtype == DTYPE_BF16
                     ? ((const uint16_t *)refs_ptr(p))[i]
                     : arith_to_f16(arith_from_e4m3(((const uint8_t *)refs_ptr(p))[i]));
    return mma_split(h, half_of(kv->dtype));
}

static void page_load(struct page *g, const struct kv_view *kv, uint64_t at) {
    if (g->at == at) return;
    g->at = at;
    for (uint32_t r = 0; r < ATTN_TILE; r++)
        for (uint32_t d = 0; d < kv->dim; d++) {
            uint64_t i = at + kv_in_page(kv, r, d);
            mma_put(&g->keys[r / MMA_LANES][d], r % MMA_LANES, one_at(kv, kv->k, i));
            mma_put(&g->values[d / MMA_LANES][r], d % MMA_LANES, one_at(kv, kv->v, i));
        }
}

static float weight(const struct query *q, float max, float of) {
    return q->a->kv.dtype == DTYPE_F32 ? arith_exp(max - of) : attn_weight(max, of, q->unit);
}

static void scores(const struct query *q, const struct page *g, uint64_t page, uint32_t n,
                   float ret[ATTN_TILE]) {
    const struct kv_view *kv = &q->a->kv;
    for (uint32_t j = n; j < ATTN_TILE; j++) ret[j] = -HUGE_VALF;
    if (kv->dtype == DTYPE_F32) {
        for (uint32_t j = 0; j < n; j++) {
            const float *k = (const float *)refs_ptr(kv->k) + page + (uint64_t)j * kv->dim;
            float part[16] = {0};
            for (uint32_t d = 0; d < kv->dim; d++) part[d % 16] = fmaf(q->q[d], k[d], part[d % 16]);
            for (uint32_t half = 8; half; half /= 2)
                for (uint32_t i = 0; i < half; i++) part[i] = part[i] + part[i + half];
            ret[j] = part[0] * q->a->scale;
        }
        return;
    }
    for (uint32_t first = 0; first < n; first += MMA_LANES) {
        float sum[MMA_LANES];
        mma_chain(sum, g->keys[first / MMA_LANES], q->split, kv->dim / MMA_K);
        for (uint32_t j = 0; j < MMA_LANES && first + j < n; j++) ret[first + j] = sum[j];
    }
}

// s to p; what the tile's keys add to the sums. Gives the weight of what the chunk had.
static float softmax(struct query *q, float s[ATTN_TILE]) {
    float now = q->chunk.max;
    for (uint32_t j = 0; j < ATTN_TILE; j++) now = fmaxf(now, s[j]);
    float old = weight(q, q->chunk.max, now);
    for (uint32_t j = 0; j < ATTN_TILE; j++)
        s[j] = q->a->kv.dtype == DTYPE_F32 ? arith_exp(s[j] - now)
                                           : attn_exp2(fmaf(s[j], q->unit, -(now * q->unit)));
    for (uint32_t c = 0; c < CLASSES; c++) {
        float x[PAIRS];
        for (uint32_t i = 0; i < PAIRS; i++) x[i] = s[8 * i + 2 * c] + s[8 * i + 2 * c + 1];
        for (uint32_t half = PAIRS / 2; half; half /= 2)
            for (uint32_t i = 0; i < half; i++) x[i] = x[i] + x[i + half];
        q->sums[c] = fmaf(q->sums[c], old, x[0]);
    }
    q->chunk.max = now;
    return old;
}

static void values(struct query *q, const struct page *g, uint64_t page, uint32_t n, const float *p,
                   float old) {
    const struct kv_view *kv = &q->a->kv;
    float *to = q->chunk.values;
    for (uint32_t d = 0; d < kv->dim; d++) to[d] = to[d] * old;
    if (kv->dtype == DTYPE_F32) {
        const float *v = (const float *)refs_ptr(kv->v) + page;
        for (uint32_t d = 0; d < kv->dim; d++)
            for (uint32_t j = 0; j < n; j++)
                to[d] = fmaf(p[j], v[(uint64_t)j * kv->dim + d], to[d]);
        return;
    }
    struct mma_one split[ATTN_TILE];
    for (uint32_t j = 0; j < ATTN_TILE; j++)
        split[j] = mma_split(to_half(p[j], kv->dtype), half_of(kv->dtype));
    for (uint32_t first = 0; first < kv->dim; first += MMA_LANES) {
        struct mma_vec v[ATTN_TILE];
        memcpy(v, g->values[first / MMA_LANES], sizeof v);
        for (uint32_t j = n; j < ATTN_TILE; j++) // whatever is there
            for (uint32_t d = 0; d < MMA_LANES; d++)
                mma_put(&v[j], d, mma_split(0, half_of(kv->dtype)));
        for (uint32_t i = 0; i < STEPS; i++) mma_step(to + first, v + i * MMA_K, split + i * MMA_K);
    }
}

static void part_empty(struct part *p) {
    *p = (struct part){.max = -HUGE_VALF};
}

static void join(const struct query *q, struct part *to, struct part *from) {
    float now = fmaxf(to->max, from->max);
    float old = weight(q, to->max, now), fresh = weight(q, from->max, now);
    to->max = now;
    to->sum = fmaf(from->sum, fresh, to->sum * old);
    for (uint32_t d = 0; d < q->a->kv.dim; d++)
        to->values[d] = fmaf(from->values[d], fresh, to->values[d] * old);
    part_empty(from);
}

static void run_tile(struct query *q, struct page *g, uint32_t tile) {
    const struct kv_view *kv = &q->a->kv;
    uint32_t left = q->pos + 1 - tile * ATTN_TILE, n = left < ATTN_TILE ? left : ATTN_TILE;
    bool last = left <= ATTN_TILE;
    uint64_t page = kv_page_at(kv, q->pages, tile * ATTN_TILE, q->head);
    float p[ATTN_TILE];
    if (kv->dtype != DTYPE_F32) page_load(g, kv, page);
    scores(q, g, page, n, p);
    float old = softmax(q, p);
    values(q, g, page, n, p, old);
    if (!last && !attn_chunk_ends(tile)) return;
    q->chunk.sum = (q->sums[0] + q->sums[2]) + (q->sums[1] + q->sums[3]);
    memset(q->sums, 0, sizeof q->sums);
    join(q, &q->group, &q->chunk);
    if (last || attn_group_ends(tile)) join(q, &q->all, &q->group);
}

static void query_init(struct query *q, const struct attn_args *a, uint32_t t, uint32_t h) {
    uint32_t dim = a->kv.dim, slot = ((const uint32_t *)refs_ptr(a->rows.slot))[t];
    *q = (struct query){.a = a, .unit = attn_unit(a->scale), .head = h / (a->heads / a->kv.heads)};
    q->pos = ((const uint32_t *)refs_ptr(a->rows.pos))[t];
    q->pages = (const uint32_t *)refs_ptr(a->kv.table) + (uint64_t)slot * a->kv.pages_per_slot;
    q->q = (const float *)refs_ptr(a->qg) + ((uint64_t)t * a->heads + h) * 2 * dim;
    for (uint32_t d = 0; d < dim; d++)
        q->split[d] = mma_split(to_half(q->q[d], a->kv.dtype), half_of(a->kv.dtype));
    part_empty(&q->chunk);
    part_empty(&q->group);
    part_empty(&q->all);
}

static void query_end(const struct query *q, float *out) {
    uint32_t dim = q->a->kv.dim;
    float inverse = 1.0f / q->all.sum;
    for (uint32_t d = 0; d < dim; d++)
        out[d] = (q->all.values[d] * inverse) * arith_sigmoid(q->q[dim + d]);
}

// Tile by tile, so that a page is taken apart once for all queries that look at it one after another.
void attn_ref(const struct attn_args *a) {
    uint32_t group = a->heads / a->kv.heads, count = a->rows.count * group;
    struct query *all = mem_calloc(count, sizeof *all);
    struct page *page = mem_calloc(1, sizeof *page);
    page->at = UINT64_MAX;
    for (uint32_t k = 0; k < a->kv.heads; k++) {
        bool more = true;
        for (uint32_t i = 0; i < count; i++)
            query_init(&all[i], a, i / group, k * group + i % group);
        for (uint32_t tile = 0; more; tile++) {
            more = false;
            for (uint32_t i = 0; i < count; i++) {
                if (tile <= all[i].pos / ATTN_TILE) run_tile(&all[i], page, tile);
                more |= tile < all[i].pos / ATTN_TILE;
            }
        }
        for (uint32_t i = 0; i < count; i++) {
            uint64_t head = (uint64_t)(i / group) * a->heads + k * group + i % group;
            query_end(&all[i], (float *)refs_ptr(a->out) + head * a->kv.dim);
        }
    }
    free(page);
    free(all);
}
