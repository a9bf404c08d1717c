/* plan: see plan.h. */
#include "worker/engine/plan.h"
#include "common/err.h"
#include "common/num.h"
#include "kernels/ops.h"
#include "worker/engine/budget.h"
#include "worker/engine/checkpoint.h"
#include "worker/engine/drafts.h"
#include "worker/engine/graphs.h"
#include "worker/engine/model_qwen3_5.h"
#include "worker/engine/round.h"

#include <string.h>

static uint64_t carved(struct model *m, struct round *r, bool disjoint, struct carve *ret) {
    *ret = (struct carve){0};
    m->scratch_disjoint = disjoint;
    model_carve(m, ret, r);
    return carve_bytes(ret);
}

static void fill(struct plan *p, struct model *m, struct round *r, const struct budget *b,
                 const struct plan_ask *a) {
    struct carve c;
    uint64_t apart = carved(m, r, true, &c), together = carved(m, r, false, &c);
    p->union_saves = apart - together;
    p->arena_bytes = carved(m, r, a->config->scratch_disjoint, &c);
    memcpy(p->regions, c.regions, sizeof p->regions);
    p->regions_count = c.regions_count;
    p->room = b->room;
    p->embedding_on_host = b->place.host;
    p->embedding_why = b->place.why;
    p->embedding_bytes = weights_embedding_bytes(m->ckpt);
    p->staging_bytes = m->ops->pinned_bytes;
    p->context_max = b->context_max;
    p->streams_max = b->streams_max;
    p->pages = b->pages;
    p->page_tokens = KV_PAGE_TOKENS;
    p->streams_whole =
        min_u32(b->streams_max, b->pages / ceil_div_u32(b->context_max, KV_PAGE_TOKENS));
}

int plan_check(const struct engine_config *config, struct err *e) {
    struct ops none = {0}; // nothing is laid out or computed
    struct checkpoint *ckpt = NULL;
    struct model m = {0};
    struct drafts d = {0};
    int st = checkpoint_open(&ckpt, config->model_dir, e);
    if (!st) st = model_init(&m, &none, ckpt, e);
    if (!st) st = drafts_open(&d, &m, config, e);
    if (!st) st = budget_check(config, m.cfg->max_position, e);
    if (!st) st = drafts_check_costs(&d, config, e);
    drafts_close(&d);
    model_fini(&m);
    checkpoint_close(ckpt);
    return st;
}

int plan_make(struct plan *ret, const struct plan_ask *a, struct err *e) {
    struct ops ops = {0};
    struct checkpoint *ckpt = NULL;
    struct model m = {0};
    struct budget b;
    struct round r = {0};
    struct drafts d = {0};
    struct graphs g = {0};
    int st = ops_cuda_plan_open(&ops, a->sm, a->room, a->unified, e);
    if (!st) st = checkpoint_open(&ckpt, a->config->model_dir, e);
    if (!st) st = model_init(&m, &ops, ckpt, e);
    if (!st) {
        m.scratch_disjoint = a->config->scratch_disjoint;
        st = drafts_open(&d, &m, a->config, e);
    }
    if (!st) st = graphs_begin(&g, &m, &r, a->config, e);
    if (!st) st = budget_make(&b, &m, &r, a->config, 0, e);
    // As an engine does where memory is short.
    while (st == ST_NOMEM && drafts_shrink(&d, a->config))
        st = budget_make(&b, &m, &r, a->config, 0, e);
    if (!st) fill(ret, &m, &r, &b, a);
    if (!st) ret->graphs_bytes = g.bytes;
    graphs_fini(&g);
    drafts_close(&d);
    model_fini(&m);
    checkpoint_close(ckpt);
    ops_close(&ops);
    return st;
}
