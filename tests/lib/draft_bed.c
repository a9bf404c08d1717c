/* draft_bed: see draft_bed.h. */
#include "tests/lib/draft_bed.h"
#include "common/err.h"
#include "common/mem.h"
#include "common/num.h"
#include "kernels/cpu_pool.h"
#include "kernels/sample/sample.h"
#include "tests/lib/test.h"
#include "worker/engine/checkpoint.h"

#include <stdlib.h>
#include <string.h>

enum { ROWS_MAX = 64, HEAD_ROWS_MAX = 3 };

int bed_mtp(struct drafter *ret, struct draft_bed *b, struct err *e) {
    return mtp_open(ret, &b->model, &b->lim, e);
}

static void set_limits(struct draft_bed *b, const struct draft_bed_config *c) {
    struct model_limits *l = &b->model.lim;
    l->rows_max = max_u32(ROWS_MAX, c->slots + 1);
    l->slots = c->slots;
    l->pages_per_slot = ceil_div_u32(c->context, KV_PAGE_TOKENS);
    l->pages = l->pages_per_slot * c->slots;
    l->head_rows_max = HEAD_ROWS_MAX;
    l->record_rows_max = ROWS_MAX;
    l->kv_dtype = c->kv_dtype;
    b->lim = (struct drafter_limits){.slots = c->slots,
                                     .rows_max = l->rows_max,
                                     .context_max = l->pages_per_slot * KV_PAGE_TOKENS,
                                     .spans = c->spans,
                                     .spans_count = c->spans_count};
}

static void carve_all(struct draft_bed *b, struct carve *c) {
    model_carve(&b->model, c, &b->round);
    b->drafter.carve(b->drafter.self, c);
}

// Every byte is NaN until it is written.
static int take_block(struct draft_bed *b, struct err *e) {
    struct carve c = {0};
    b->round.rows_max = b->round.picks_max = b->model.lim.rows_max;
    b->round.runs_max = b->model.lim.slots;
    carve_all(b, &c);
    b->block_bytes = carve_bytes(&c);
    round_init(&b->round, b->model.lim.rows_max, b->model.lim.slots);
    int st = b->ops.alloc(b->ops.ctx, b->block_bytes, "block", &b->block, e);
    if (st) return st;
    b->ops.fill(b->ops.ctx, b->block, 0x7fc00000u, b->block_bytes);
    b->carve = (struct carve){.base = b->block};
    carve_all(b, &b->carve);
    CHECK_EQ_U64(carve_bytes(&b->carve), b->block_bytes);
    return ST_OK;
}

static int load(struct draft_bed *b, struct err *e) {
    struct model *m = &b->model;
    struct weights_load load = {.rope_freq = m->freq, .rope_pairs = m->rope.pairs};
    int st = weights_fill(&m->w, b->ckpt, &b->ops, &load, e);
    return st ? st : b->drafter.load(b->drafter.self, e);
}

static void set_pages(struct draft_bed *b) {
    uint32_t n = b->model.lim.pages_per_slot, slots = b->model.lim.slots;
    b->pages = mem_calloc((size_t)n * slots, sizeof *b->pages);
    for (uint32_t s = 0; s < slots; s++) {
        for (uint32_t i = 0; i < n; i++) b->pages[s * n + i] = (n - 1 - i) * slots + s;
        model_set_pages(&b->model, s, b->pages + (size_t)s * n, n);
    }
}

int draft_bed_try(struct draft_bed *b, const struct draft_bed_config *c, struct err *e) {
    *b = (struct draft_bed){0};
    int st = cpu_pool_new(&b->pool, 1, e);
    if (!st) st = ops_cpu_open(&b->ops, b->pool, NULL, e);
    if (!st) st = checkpoint_open(&b->ckpt, c->dir, e);
    if (!st) st = model_init(&b->model, &b->ops, b->ckpt, e);
    if (st) goto out;
    b->model.spoil_dead = true;
    b->vocab = b->model.cfg->vocab;
    set_limits(b, c);
    st = c->open(&b->drafter, b, e);
    if (st) goto out;
    b->model.taps = b->drafter.taps;
    st = take_block(b, e);
    if (!st) st = load(b, e);
    if (!st) set_pages(b);
out:
    if (st) draft_bed_close(b);
    return st;
}

void draft_bed_open(struct draft_bed *b, const struct draft_bed_config *c) {
    struct err e = {0};
    CHECK_OK(draft_bed_try(b, c, &e), e);
}

void draft_bed_close(struct draft_bed *b) {
    if (b->drafter.close) b->drafter.close(b->drafter.self);
    if (b->block) b->ops.free(b->ops.ctx, b->block, b->block_bytes);
    free(b->pages);
    round_fini(&b->round);
    model_fini(&b->model);
    checkpoint_close(b->ckpt);
    ops_close(&b->ops);
    cpu_pool_free(b->pool);
    *b = (struct draft_bed){0};
}

// Logits of all picked rows, one behind the other.
static float *read_logits(struct draft_bed *b) {
    uint32_t n = b->round.picks_count;
    size_t row = b->vocab * sizeof(float);
    float *all = mem_alloc(max_u32(n, 1) * row);
    for (uint32_t first = 0, k; first < n; first += k) {
        k = min_u32(HEAD_ROWS_MAX, n - first);
        model_head(&b->model, &b->round, first, k);
        b->ops.read(b->ops.ctx, all + (size_t)first * b->vocab, b->model.logits, k * row);
    }
    return all;
}

void draft_bed_forward(struct draft_bed *b, const struct bed_feed *f, uint32_t count) {
    size_t at = 0;
    round_reset(&b->round);
    for (uint32_t i = 0; i < count; i++) {
        uint32_t row = round_add(&b->round, f[i].slot, f[i].pos, f[i].ids + f[i].pos, f[i].count,
                                 f[i].keep < f[i].count);
        for (uint32_t k = 0; f[i].ret && k < f[i].count; k++) round_pick(&b->round, row + k);
    }
    model_forward(&b->model, &b->round);
    float *logits = read_logits(b);
    for (uint32_t i = 0; i < count; i++) {
        size_t n = (size_t)f[i].count * b->vocab;
        if (!f[i].ret) continue;
        memcpy(f[i].ret, logits + at, n * sizeof *logits);
        at += n;
    }
    free(logits);
}

void draft_bed_keep(struct draft_bed *b, const struct bed_feed *f, uint32_t count) {
    struct draft_rows told[ROWS_MAX];
    uint32_t told_count = 0;
    CHECK(count <= ROWS_MAX);
    for (uint32_t i = 0; i < count; i++) {
        struct run *run = &b->round.runs[i];
        run->count = f[i].keep;
        if (f[i].keep)
            told[told_count++] =
                (struct draft_rows){.run = *run, .ids = f[i].ids, .ids_count = f[i].known};
        if (!run->record) run->count = 0; // committed as it ran
    }
    model_commit(&b->model, b->round.runs, count);
    if (told_count) b->drafter.absorb(b->drafter.self, told, told_count);
}

void draft_bed_round(struct draft_bed *b, const struct bed_feed *f, uint32_t count) {
    draft_bed_forward(b, f, count);
    draft_bed_keep(b, f, count);
}

void draft_bed_fill(struct draft_bed *b, uint32_t slot, const uint32_t *ids, uint32_t first,
                    uint32_t count, uint32_t known, uint32_t chunk, float *ret) {
    float *logits = ret ? mem_alloc((size_t)chunk * b->vocab * sizeof *ret) : NULL;
    for (uint32_t pos = first, n; pos < count; pos += n) {
        n = min_u32(chunk, count - pos);
        draft_bed_round(b,
                        &(struct bed_feed){.slot = slot,
                                           .pos = pos,
                                           .count = n,
                                           .keep = n,
                                           .ids = ids,
                                           .known = min_u32(known, pos + n + 1),
                                           .ret = pos + n == count ? logits : NULL},
                        1);
        if (ret && pos + n == count)
            memcpy(ret, logits + (size_t)(n - 1) * b->vocab, b->vocab * sizeof *ret);
    }
    free(logits);
}

uint32_t draft_bed_propose(struct draft_bed *b, uint32_t slot, const uint32_t *ids, uint32_t pos,
                           uint32_t want, uint32_t *ret) {
    struct sample_params greedy = {.top_p = 1, .repetition = 1};
    struct draft_ask ask = {
        .slot = slot, .anchor = ids[pos], .pos = pos, .want = want, .sampling = &greedy};
    b->drafter.propose(b->drafter.self, &ask, 1);
    CHECK(ask.ret_count <= want);
    memcpy(ret, ask.ret_ids, ask.ret_count * sizeof *ret);
    return ask.ret_count;
}
