/* model_work: what the operations of a model need while they run: its forward, planned and not launched. */
#include "common/mem.h"
#include "common/num.h"
#include "kernels/draft/draft_top.h"
#include "kernels/ops.h"
#include "kernels/sample/draw.h"
#include "worker/engine/checkpoint.h"
#include "worker/engine/engine.h"
#include "worker/engine/model_qwen3_5.h"
#include "worker/engine/round.h"

#include <stdlib.h>

enum { EVERY_COUNT_TO = 64 }; // of rows: plans change most where they are few

// One stream's rows at the end of its context.
static void plan_rows(struct model *m, struct round *r, const uint32_t *ids, uint32_t rows) {
    uint32_t end = m->lim.pages_per_slot * KV_PAGE_TOKENS;
    round_reset(r);
    round_add(r, 0, end > rows ? end - rows : 0, ids, rows, false);
    model_forward(m, r);
    model_head(m, r, 0, min_u32(rows, m->lim.head_rows_max));
}

// One row of each of `streams` streams.
static void plan_streams(struct model *m, struct round *r, const uint32_t *ids, uint32_t streams) {
    round_reset(r);
    for (uint32_t i = 0; i < streams; i++)
        round_add(r, i, m->lim.pages_per_slot * KV_PAGE_TOKENS - 1, ids, 1, false);
    model_forward(m, r);
}

static void plan_window(struct model *m, struct round *r, const uint32_t *ids) {
    struct run run = {.pos = 1, .count = ENGINE_WINDOW_ROWS_MAX, .record = 1};
    round_reset(r);
    round_add(r, 0, 1, ids, run.count, true);
    model_forward(m, r);
    model_commit(m, &run, 1);
}

// Of each count of rows of a window and a branch.
static void plan_branches(struct model *m, struct round *r, const uint32_t *ids) {
    if (!m->branches) return;
    for (uint32_t n = 4; n <= m->window_rows; n++) {
        round_reset(r);
        round_add(r, 0, 1, ids, n - 2, true);
        round_add_branch(r, 0, m->lim.slots, 1, ids, 2);
        model_forward(m, r);
    }
}

// Draws from as many rows as there are logits of (device_draw.c).
static void plan_draws(struct model *m) {
    const struct ops *o = m->ops;
    uint32_t rows = m->lim.head_rows_max, vocab = m->w.head.rows;
    if (!o->draw) return;
    o->draw(o->ctx, &(struct draw_args){.rows_count = rows, .vocab = vocab});
    o->draft_top(o->ctx, &(struct draft_top_args){.parts = {{.stride = vocab, .count = vocab}},
                                                  .parts_count = 1,
                                                  .rows = rows,
                                                  .k = min_u32(DRAFT_TOP_MAX, vocab)});
}

static void plan_all(struct model *m) {
    struct round r;
    uint32_t *ids = mem_calloc(m->lim.rows_max, sizeof *ids);
    round_init(&r, m->lim.rows_max, model_runs_max(m));
    for (uint32_t n = 1; n <= min_u32(m->lim.rows_max, EVERY_COUNT_TO); n++)
        plan_rows(m, &r, ids, n);
    for (uint32_t n = 2 * EVERY_COUNT_TO; n < m->lim.rows_max; n *= 2) plan_rows(m, &r, ids, n);
    plan_rows(m, &r, ids, m->lim.rows_max);
    for (uint32_t n = 2; n < m->lim.slots; n *= 2) plan_streams(m, &r, ids, n);
    plan_streams(m, &r, ids, m->lim.slots);
    plan_window(m, &r, ids);
    plan_branches(m, &r, ids);
    plan_draws(m);
    if (m->plan_more) m->plan_more(m->carve_more_arg);
    round_fini(&r);
    free(ids);
}

bool model_measure_work(struct model *m) {
    const struct ops *o = m->ops;
    if (!o->measure) return false;
    if (m->work_rows == m->lim.rows_max && m->work_slots == m->lim.slots &&
        m->work_pages == m->lim.pages_per_slot && m->work_more == (m->plan_more != NULL))
        return false;
    struct ops_work before = m->work;
    o->measure(o->ctx, true);
    plan_all(m);
    o->measure(o->ctx, false);
    m->work = o->work_need(o->ctx);
    m->work_rows = m->lim.rows_max;
    m->work_slots = m->lim.slots;
    m->work_pages = m->lim.pages_per_slot;
    m->work_more = m->plan_more != NULL;
    return m->work.scratch_bytes != before.scratch_bytes ||
           m->work.counter_bytes != before.counter_bytes;
}

bool model_tied(const struct model *m) {
    return checkpoint_info(m->ckpt)->tied;
}
