/* graphs: see graphs.h. */
#include "worker/engine/graphs.h"
#include "common/err.h"
#include "common/num.h"
#include "kernels/ops.h"
#include "worker/engine/budget.h"
#include "worker/engine/engine.h"
#include "worker/engine/model_qwen3_5.h"
#include "worker/engine/round.h"

#include <stdbool.h>
#include <stddef.h>

enum kind { DECODE, WINDOW, BRANCH };
enum { BRANCH_ROWS_MIN = 4 }; // a draft and a copied id, each behind the stream's last

struct shape { // of a round
    uint32_t rows;
    enum kind kind;
};

static struct cuda_graph **graph_of(struct graphs *g, struct shape s) {
    return &(s.kind == DECODE ? g->decode : s.kind == WINDOW ? g->window : g->branch)[s.rows - 1];
}

// How its rows part between window and branch stands in the tables; of the branch's first row nobody asks for logits.
static void fill(struct round *r, struct shape s) {
    static const uint32_t ids[GRAPHS_ROWS_MAX];
    round_reset(r);
    if (s.kind == WINDOW) round_add(r, 0, 1, ids, s.rows, true);
    if (s.kind == BRANCH) {
        round_add(r, 0, 1, ids, s.rows - 2, true);
        round_add_branch(r, 0, 0, 1, ids, 2);
    }
    for (uint32_t i = 0; i < s.rows; i++) {
        if (s.kind == DECODE) round_add(r, i, 1, ids, 1, false);
        if (s.kind != BRANCH || i != s.rows - 2) round_pick(r, i);
    }
    round_place(r);
}

static int record(struct graphs *g, struct model *m, struct round *r, struct shape s, bool early,
                  struct err *e) {
    const struct ops *o = g->ops;
    fill(r, s);
    int st = o->graph_begin(o->ctx, early, e);
    if (st) return st;
    model_layers(m, r);
    model_head(m, r, 0, r->picks_count);
    return o->graph_end(o->ctx, graph_of(g, s), e);
}

static uint32_t decode_max(const struct model *m) {
    return min_u32(min_u32(m->lim.slots, m->lim.head_rows_max), GRAPHS_ROWS_MAX);
}

// A window of one row is a decoding stream's.
static uint32_t window_max(const struct model *m) {
    return min_u32(min_u32(m->window_rows, m->lim.head_rows_max), GRAPHS_ROWS_MAX);
}

static uint32_t branch_max(const struct model *m) {
    return m->branches ? window_max(m) : 0;
}

static int record_all(struct graphs *g, struct model *m, const struct round *tables, bool early,
                      struct err *e) {
    struct round r;
    int st = ST_OK;
    round_init(&r, m->lim.rows_max, model_runs_max(m));
    r.dev = tables->dev;
    for (uint32_t n = 1; n <= decode_max(m) && !st; n++)
        st = record(g, m, &r, (struct shape){n, DECODE}, early, e);
    for (uint32_t n = 2; n <= window_max(m) && !st; n++)
        st = record(g, m, &r, (struct shape){n, WINDOW}, early, e);
    for (uint32_t n = BRANCH_ROWS_MIN; n <= branch_max(m) && !st; n++)
        st = record(g, m, &r, (struct shape){n, BRANCH}, early, e);
    round_fini(&r);
    if (!st && m->record_more) st = m->record_more(m->carve_more_arg, early, e);
    return st;
}

// Planted faults and the NaN of dead rows go between the launches.
static bool wanted(const struct ops *o, const struct engine_config *c) {
    return o->graph_begin && !c->graphs_off && !c->spoil_dead && !c->fault;
}

int graphs_begin(struct graphs *g, struct model *m, struct round *r,
                 const struct engine_config *config, struct err *e) {
    if (!wanted(m->ops, config)) return ST_OK;
    int st = budget_lay_out(m, r, config, e);
    if (st) return st;
    *g = (struct graphs){.ops = m->ops};
    uint64_t before = m->ops->free_bytes(m->ops->ctx);
    st = record_all(g, m, r, true, e);
    uint64_t after = m->ops->free_bytes(m->ops->ctx);
    g->bytes = before > after ? before - after : 0;
    return st ? err_prefix(e, "graphs of rounds") : ST_OK;
}

static void drop(struct graphs *g, struct cuda_graph **p) {
    if (*p) g->ops->graph_free(g->ops->ctx, *p);
    *p = NULL;
}

int graphs_make(struct graphs *g, struct model *m, const struct round *tables, struct err *e) {
    if (!g->ops) return ST_OK;
    for (uint32_t i = decode_max(m); i < GRAPHS_ROWS_MAX; i++) drop(g, &g->decode[i]);
    for (uint32_t i = window_max(m); i < GRAPHS_ROWS_MAX; i++) drop(g, &g->window[i]);
    for (uint32_t i = branch_max(m); i < GRAPHS_ROWS_MAX; i++) drop(g, &g->branch[i]);
    int st = record_all(g, m, tables, false, e);
    if (st) return err_prefix(e, "graphs of rounds");
    g->count = 0;
    for (uint32_t i = 0; i < GRAPHS_ROWS_MAX; i++)
        g->count += (g->decode[i] != NULL) + (g->window[i] != NULL) + (g->branch[i] != NULL);
    return ST_OK;
}

const struct cuda_graph *graphs_find(const struct graphs *g, const struct round *r) {
    uint32_t n = r->rows;
    if (!g->ops || !n || n > GRAPHS_ROWS_MAX) return NULL;
    if (r->runs_count == 2 && r->record_rows == n && r->runs[0].slot == r->runs[1].slot)
        return r->picks_count == n - 1 ? g->branch[n - 1] : NULL;
    if (r->picks_count != n) return NULL;
    if (!r->record_rows) return r->runs_count == n ? g->decode[n - 1] : NULL;
    return r->runs_count == 1 ? g->window[n - 1] : NULL;
}

void graphs_fini(struct graphs *g) {
    for (uint32_t i = 0; g->ops && i < GRAPHS_ROWS_MAX; i++) {
        drop(g, &g->decode[i]);
        drop(g, &g->window[i]);
        drop(g, &g->branch[i]);
    }
    *g = (struct graphs){0};
}
