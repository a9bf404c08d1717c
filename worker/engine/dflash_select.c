/* dflash_select: the ids of each block from the candidates of its rows, on the host: a block is a few thousand multiply-adds.
 *
 *   U_t(b) = head's logit (times output_multiplier, softcapped); DFlash2 adds E_t(a,b) = sum_r P[a][r] g_t[r] S[b][r], a being the id
 *   chosen before. A block is a chain of choices (draft_choice.h). */
#include <math.h>
#include <string.h>

#include "kernels/math_f64.h"
#include "kernels/sample/sample.h"
#include "worker/engine/dflash_impl.h"
#include "worker/engine/draft_choice.h"
#include "worker/engine/safetensors.h"

_Static_assert((int)DRAFT_CHOICE_MAX >= (int)DRAFT_TOP_MAX, "all candidates");

static float tanh_f64(double x) {
    double t = math_f64_exp(-2 * fabs(x));
    return (float)copysign((1 - t) / (1 + t), x);
}

static float unary(const struct dflash_config *c, float logit) {
    float u = logit * (float)c->output_multiplier;
    return c->softcap > 0 ? (float)c->softcap * tanh_f64(u / c->softcap) : u;
}

static void codebook_row(const struct safetensors_tensor *t, uint32_t id, uint32_t rank,
                         float *ret) {
    safetensors_to_f32(t, (uint64_t)id * rank, rank, ret);
}

enum {
    LANES = 4, // of a vector that every machine has
    CHAINS = 4,
    STEP = LANES * CHAINS,
    LINE = 64, // bytes of the cache's
};

typedef float lanes_f32 __attribute__((vector_size(LANES * sizeof(float))));
typedef uint32_t lanes_u32 __attribute__((vector_size(LANES * sizeof(uint32_t))));
typedef uint16_t lanes_u16 __attribute__((vector_size(LANES * sizeof(uint16_t))));

static lanes_f32 load_f32(const float *x) {
    lanes_f32 v;
    memcpy(&v, x, sizeof v);
    return v;
}

static lanes_f32 load_bf16(const uint16_t *x) {
    lanes_u16 half;
    memcpy(&half, x, sizeof half);
    return (lanes_f32)(__builtin_convertvector(half, lanes_u32) << 16);
}

// The predecessor's row, times g, times a candidate's; rows of bf16 as they lie.
static float edge(struct dflash *d, uint32_t id) {
    const struct safetensors_tensor *t = d->w.successor;
    uint32_t rank = d->cfg.rank, whole = rank / STEP * STEP;
    bool bf16 = t->dtype == SAFETENSORS_BF16;
    const uint16_t *half = (const uint16_t *)t->data + (uint64_t)id * rank;
    const float *x = d->predecessor, *y = d->successor;
    lanes_f32 sums[CHAINS] = {0};
    if (!bf16 || whole < rank) codebook_row(t, id, rank, d->successor);
    for (uint32_t r = 0; r < whole; r += STEP)
        for (uint32_t c = 0; c < CHAINS; c++) {
            uint32_t at = r + c * LANES;
            sums[c] += load_f32(x + at) * (bf16 ? load_bf16(half + at) : load_f32(y + at));
        }
    sums[0] = (sums[0] + sums[1]) + (sums[2] + sums[3]);
    float sum = (sums[0][0] + sums[0][1]) + (sums[0][2] + sums[0][3]);
    for (uint32_t r = whole; r < rank; r++) sum += x[r] * y[r];
    return sum;
}

// Adds E of every candidate behind `before` to its score.
static void add_edges(struct dflash *d, uint32_t row, uint32_t before, const uint32_t *ids,
                      float *scores) {
    uint32_t rank = d->cfg.rank;
    const float *g = d->host_g + (uint64_t)row * rank;
    codebook_row(d->w.predecessor, before, rank, d->predecessor);
    for (uint32_t r = 0; r < rank; r++) d->predecessor[r] *= g[r];
    for (uint32_t i = 0; i < d->head.top; i++) scores[i] += edge(d, ids[i]);
}

// The codebooks are far larger than any cache, and which rows are wanted is known before the first is.
static void fetch_rows(const struct dflash *d) {
    uint32_t count = d->rows.picks_count * d->head.top;
    uint64_t bytes = d->w.successor->bytes / d->cfg.vocab;
    for (uint32_t i = 0; i < count; i++) {
        const char *row = (const char *)d->w.successor->data + d->top_ids[i] * bytes;
        for (uint64_t at = 0; at < bytes; at += LINE) __builtin_prefetch(row + at);
    }
}

static uint32_t choose(struct dflash *d, uint32_t row, uint32_t before,
                       const struct sample_params *p, uint32_t pos) {
    uint32_t top = d->head.top;
    const uint32_t *ids = d->top_ids + (uint64_t)row * top;
    float scores[DRAFT_TOP_MAX];
    for (uint32_t i = 0; i < top; i++)
        scores[i] = unary(&d->cfg, d->top_values[(uint64_t)row * top + i]);
    if (d->cfg.v2) add_edges(d, row, before, ids, scores);
    return ids[draft_choice(ids, scores, top, p, pos)];
}

void dflash_select(struct dflash *d) {
    uint32_t row = 0;
    if (d->cfg.v2) fetch_rows(d);
    for (uint32_t b = 0; b < d->rows.blocks_count; b++) {
        struct draft_ask *ask = d->rows.asks[b];
        uint32_t before = ask->anchor;
        uint32_t count = d->rows.blocks[b].count - !d->cfg.sample_from_anchor;
        for (uint32_t i = 0; i < count; i++, row++) {
            before = choose(d, row, before, ask->sampling, ask->pos + 1 + i);
            ask->ret_ids[i] = before;
        }
        ask->ret_count = count;
    }
}
