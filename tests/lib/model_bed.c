/* model_bed: see model_bed.h. */
#include "tests/lib/model_bed.h"

#include <stdlib.h>
#include <string.h>

#include "common/err.h"
#include "common/mem.h"
#include "common/num.h"
#include "kernels/cpu_pool.h"
#include "tests/lib/test.h"
#include "worker/engine/checkpoint.h"

static void set_limits(struct model_bed *b, const struct model_bed_config *c) {
    uint32_t pages = ceil_div_u32(c->context, KV_PAGE_TOKENS);
    b->context = c->context;
    b->stop_id = c->stop_id ? c->stop_id : UINT32_MAX;
    b->limits = c->limits;
    b->limits.slots = c->slots ? c->slots : 1;
    b->limits.rows_max = BED_ROWS;
    b->limits.context_max = c->context;
    b->model.lim = (struct model_limits){.rows_max = BED_ROWS,
                                         .slots = b->limits.slots,
                                         .pages = pages * b->limits.slots,
                                         .pages_per_slot = pages,
                                         .head_rows_max = BED_ROWS,
                                         .record_rows_max = ENGINE_WINDOW_ROWS_MAX,
                                         .kv_dtype = DTYPE_F32};
}

static void carve_all(struct model_bed *b, struct carve *c) {
    model_carve(&b->model, c, &b->round);
    uint64_t before = carve_bytes(c);
    if (b->drafter.carve) b->drafter.carve(b->drafter.self, c);
    b->drafter_bytes = carve_bytes(c) - before;
}

static void set_pages(struct model_bed *b) {
    uint32_t n = b->model.lim.pages_per_slot, *pages = mem_calloc(n, sizeof *pages);
    for (uint32_t s = 0; s < b->limits.slots; s++) {
        for (uint32_t i = 0; i < n; i++) pages[i] = i * b->limits.slots + s; // not in order
        model_set_pages(&b->model, s, pages, n);
    }
    free(pages);
}

void model_bed_open(struct model_bed *b, const struct model_bed_config *c) {
    struct err e = {0};
    struct carve measure = {0}, real = {0};
    *b = (struct model_bed){0};
    CHECK_OK(cpu_pool_new(&b->pool, 2, &e), e);
    CHECK_OK(ops_cpu_open(&b->ops, b->pool, NULL, &e), e);
    CHECK_OK(checkpoint_open(&b->ckpt, c->dir, &e), e);
    CHECK_OK(model_init(&b->model, &b->ops, b->ckpt, &e), e);
    set_limits(b, c);
    round_init(&b->round, BED_ROWS, b->limits.slots);
    if (c->drafter) CHECK_OK(dflash_open(&b->drafter, c->drafter, &b->model, &b->limits, &e), e);
    if (c->change) c->change(b->drafter.self);
    b->model.taps = b->drafter.taps;
    carve_all(b, &measure);
    b->bytes = carve_bytes(&measure);
    CHECK_OK(b->ops.alloc(b->ops.ctx, b->bytes, "arena", &b->block, &e), e);
    b->ops.fill(b->ops.ctx, b->block, 0x7fc00000u, b->bytes); // NaN, until it is written
    real.base = b->block;
    carve_all(b, &real);
    CHECK_EQ_U64(carve_bytes(&real), b->bytes);
    struct weights_load load = {.rope_freq = b->model.freq, .rope_pairs = b->model.rope.pairs};
    CHECK_OK(weights_fill(&b->model.w, b->ckpt, &b->ops, &load, &e), e);
    if (b->drafter.load) CHECK_OK(b->drafter.load(b->drafter.self, &e), e);
    set_pages(b);
    b->sampling = c->sampling;
    b->sampler = sample_new(b->model.w.head.rows);
    b->logits = mem_calloc((size_t)BED_ROWS * b->model.w.head.rows, sizeof *b->logits);
}

void model_bed_close(struct model_bed *b) {
    if (b->drafter.close) b->drafter.close(b->drafter.self);
    free(b->logits);
    sample_free(b->sampler);
    round_fini(&b->round);
    b->ops.free(b->ops.ctx, b->block, b->bytes);
    model_fini(&b->model);
    checkpoint_close(b->ckpt);
    ops_close(&b->ops);
    cpu_pool_free(b->pool);
}

uint32_t model_bed_feed(struct model_bed *b, const uint32_t *ids, uint32_t pos, uint32_t count,
                        bool record, uint32_t *ret) {
    uint32_t vocab = b->model.w.head.rows, first = ret ? 0 : count - 1;
    round_reset(&b->round);
    round_add(&b->round, 0, pos, ids, count, record);
    for (uint32_t i = first; i < count; i++) round_pick(&b->round, i);
    model_forward(&b->model, &b->round);
    model_head(&b->model, &b->round, 0, count - first);
    b->ops.read(b->ops.ctx, b->logits, b->model.logits,
                (uint64_t)(count - first) * vocab * sizeof *b->logits);
    uint32_t id = 0;
    for (uint32_t i = first; i < count; i++) {
        id = sample_draw(b->sampler, b->logits + (uint64_t)(i - first) * vocab, &b->sampling, NULL,
                         NULL, pos + i + 1);
        if (ret) ret[i] = id;
    }
    return id;
}

void model_bed_keep(struct model_bed *b, uint32_t pos, uint32_t keep) {
    model_commit(&b->model, &(struct run){.pos = pos, .count = keep, .record = 1}, 1);
}

static void tell(struct model_bed *b, const uint32_t *ids, uint32_t pos, uint32_t count) {
    struct draft_rows rows = {
        .run = {.pos = pos, .count = count}, .ids = ids, .ids_count = pos + count};
    b->drafter.absorb(b->drafter.self, &rows, 1);
}

static bool ends(const struct model_bed *b, uint32_t id) {
    const struct model_config *c = b->model.cfg;
    if (id == b->stop_id) return true;
    for (uint32_t i = 0; i < c->eos_count; i++)
        if (c->eos_ids[i] == id) return true;
    return false;
}

// Fills the prompt in pieces; the first id of the answer.
static uint32_t fill(struct model_bed *b, const uint32_t *ids, uint32_t count) {
    uint32_t last = 0;
    for (uint32_t at = 0, n; at < count; at += n) {
        n = min_u32(count - at, BED_ROWS);
        last = model_bed_feed(b, ids + at, at, n, false, NULL);
        tell(b, ids, at, n);
    }
    return last;
}

// One round: the block, its verification, and what of it is kept. ids[pos] is the anchor. Returns rows kept.
static uint32_t round_of(struct model_bed *b, uint32_t *ids, uint32_t pos, uint32_t left,
                         struct bed_drafted *total) {
    struct draft_ask ask = {.anchor = ids[pos], .pos = pos, .sampling = &b->sampling};
    uint32_t next[DRAFT_IDS_MAX + 1], kept = 0;
    ask.want = min_u32(min_u32(b->drafter.ids_max, left), b->context - pos - 2);
    if (ask.want) b->drafter.propose(b->drafter.self, &ask, 1);
    CHECK(ask.ret_count <= ask.want);
    memcpy(ids + pos + 1, ask.ret_ids, ask.ret_count * sizeof *ids);
    model_bed_feed(b, ids + pos, pos, ask.ret_count + 1, true, next);
    while (kept < ask.ret_count && next[kept] == ask.ret_ids[kept] && !ends(b, next[kept])) kept++;
    model_bed_keep(b, pos, kept + 1);
    tell(b, ids, pos, kept + 1);
    ids[pos + kept + 1] = next[kept];
    total->rounds++;
    total->drafted += ask.ret_count;
    total->kept += kept;
    return kept + 1;
}

struct bed_drafted model_bed_answer(struct model_bed *b, const uint32_t *prompt,
                                    uint32_t prompt_count, uint32_t count) {
    struct bed_drafted total = {0};
    uint32_t *ids = mem_calloc(prompt_count + count + DRAFT_IDS_MAX + 2, sizeof *ids);
    memcpy(ids, prompt, prompt_count * sizeof *ids);
    uint32_t pos = prompt_count, end = pos + count;
    ids[pos] = fill(b, ids, pos);
    while (pos + 1 < end && !ends(b, ids[pos])) {
        uint32_t n = round_of(b, ids, pos, end - pos - 2, &total);
        pos += n;
        total.tokens += n;
    }
    free(ids);
    return total;
}
