/* dflash: a DFlash or DFlash2 drafter as drafter.h has them: opening, memory, absorbing, proposing. */
#include "worker/engine/dflash.h"

#include <assert.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "common/err.h"
#include "common/mem.h"
#include "common/num.h"
#include "common/strbuf.h"
#include "kernels/ops.h"
#include "worker/engine/carve.h"
#include "worker/engine/dflash_impl.h"
#include "worker/engine/model_config.h"
#include "worker/engine/small_file.h"

enum { F32 = sizeof(float) };

static uint64_t quantise_from(const struct dflash *d) {
    return d->lim->quantize_min ? d->lim->quantize_min : d->cfg.quantize_min;
}

int dflash_init(struct dflash *d, const struct model *m, const struct drafter_limits *lim,
                struct err *e) {
    bool own = d->cfg.spans_count && (lim->spans_yield || !lim->spans_count);
    struct draft_head_spans given = {"draft-vocab", lim->spans, lim->spans_count};
    if (own)
        given = (struct draft_head_spans){"draft_vocab_spans of the drafter's config.json",
                                          d->cfg.spans, d->cfg.spans_count};
    d->m = m;
    d->lim = lim;
    dflash_weights_init(&d->w, &d->cfg, m->ops, quantise_from(d));
    d->context = (struct dflash_context){.cfg = &d->cfg, .m = m};
    return draft_head_init(&d->head, m, given, d->cfg.top, e);
}

uint64_t dflash_tables_bytes(const struct dflash *d) {
    uint64_t rows = max_u32(d->rows_max, DFLASH_ABSORB_ROWS);
    uint64_t row = 3 * sizeof(uint32_t) + max_u32(sizeof(struct draft_block), sizeof(struct run));
    return rows * row + DFLASH_TABLES * TABLE_ALIGN;
}

// Blocks and context rows are never projected at once, so they share what both need.
static void carve_scratch(struct dflash *d, struct carve *c) {
    const struct dflash_config *cfg = &d->cfg;
    uint64_t rows = max_u32(d->rows_max, DFLASH_ABSORB_ROWS), dim = cfg->hidden;
    uint64_t kv = (uint64_t)cfg->kv_heads * cfg->head_dim, q = (uint64_t)cfg->heads * cfg->head_dim;
    d->tables = carve_take(c, dflash_tables_bytes(d));
    d->angles = carve_take(c, rows * cfg->head_dim * F32);
    d->k = carve_take(c, rows * kv * F32);
    d->v = carve_take(c, rows * kv * F32);
    d->y = carve_take(c, rows * dim * F32);
    uint64_t mark = carve_mark(c);
    d->feats = carve_take(c, DFLASH_ABSORB_ROWS * cfg->taps_count * dim * F32);
    d->f = carve_take(c, DFLASH_ABSORB_ROWS * dim * F32);
    carve_rewind(c, mark);
    rows = d->rows_max;
    d->x = carve_take(c, rows * dim * F32);
    d->n = carve_take(c, rows * dim * F32);
    d->u = carve_take(c, cfg->v2 ? rows * dim * F32 : 0);
    d->d = carve_take(c, cfg->v2 ? rows * 2 * cfg->conv_taps * (dim / cfg->conv_group) * F32 : 0);
    d->q = carve_take(c, rows * q * F32);
    d->a = carve_take(c, rows * q * F32);
    d->gate = carve_take(c, rows * cfg->intermediate * F32);
    d->up = carve_take(c, rows * cfg->intermediate * F32);
    d->hidden = carve_take(c, rows * dim * F32);
    d->g = carve_take(c, rows * cfg->rank * F32);
    draft_head_carve(&d->head, c, min_u32(d->rows_max, DFLASH_HEAD_ROWS));
    carve_past(c);
}

void dflash_carve(struct dflash *d, struct carve *c) {
    uint64_t rows = (uint64_t)d->lim->slots * d->cfg.block;
    d->rows_max = (uint32_t)min_u64(rows, DFLASH_FORWARD_ROWS_MAX);
    carve_begin(c, "drafter weights");
    dflash_weights_carve(&d->w, c);
    draft_head_carve_copies(&d->head, c);
    carve_begin(c, "drafter context");
    dflash_context_carve(&d->context, c, d->lim->slots);
    carve_begin(c, "drafter scratch");
    carve_scratch(d, c);
}

int dflash_config_bytes(uint64_t *ret, const struct dflash_config *cfg, const struct model *m,
                        const struct drafter_limits *lim, struct err *e) {
    struct dflash *d = mem_calloc(1, sizeof *d);
    struct carve c = {0};
    d->cfg = *cfg;
    int st = dflash_init(d, m, lim, e);
    if (!st) {
        dflash_carve(d, &c);
        *ret = carve_bytes(&c);
    }
    free(d);
    return st;
}

static void carve_self(void *self, struct carve *c) {
    dflash_carve(self, c);
}

// Context rows, blocks and heads of ever more rows.
static void plan(void *self) {
    struct dflash *d = self;
    for (uint32_t n = 1; n <= DFLASH_ABSORB_ROWS; n = drafter_next_rows(n, DFLASH_ABSORB_ROWS)) {
        d->rows = (struct dflash_rows){.count = n, .runs_count = 1, .picks_count = n};
        dflash_project_context(d);
    }
    for (uint32_t n = 1; n <= d->rows_max; n = drafter_next_rows(n, d->rows_max)) {
        uint32_t blocks = ceil_div_u32(n, d->cfg.block);
        d->rows = (struct dflash_rows){.count = n, .blocks_count = blocks, .picks_count = n};
        dflash_forward(d);
        draft_head_run(&d->head, d->hidden, min_u32(n, d->head.rows_max));
    }
    d->rows = (struct dflash_rows){0};
}

static void reset_rows(struct dflash *d) {
    struct dflash_rows *r = &d->rows;
    r->count = r->blocks_count = r->runs_count = r->picks_count = 0;
}

static void issue(void *self) {
    dflash_blocks(self);
    dflash_heads(self);
}

// Blocks of one stream, with one row and more to draft; several streams' launches are hidden by the device's work.
static int record(void *self, bool early, struct err *e) {
    struct dflash *d = self;
    const struct ops *o = d->m->ops;
    uint32_t first = d->cfg.sample_from_anchor ? 1 : 2, less = first - 1;
    int st = ST_OK;
    for (uint32_t n = first; n <= d->cfg.block && n <= d->head.rows_max && !st; n++) {
        d->rows.count = n;
        d->rows.blocks_count = 1;
        d->rows.picks_count = n - less;
        dflash_place(d);
        st = o->graph_begin(o->ctx, early, e);
        if (st) break;
        issue(d);
        st = o->graph_end(o->ctx, &d->graphs[n], e);
    }
    reset_rows(d);
    return st ? err_prefix(e, "graphs of drafts") : ST_OK;
}

static int load(void *self, struct err *e) {
    struct dflash *d = self;
    uint32_t rows = max_u32(d->rows_max, DFLASH_ABSORB_ROWS), picked = d->rows_max;
    dflash_weights_load(&d->w, d->m->logits,
                        (uint64_t)d->m->lim.head_rows_max * d->m->w.head.rows * F32);
    draft_head_load(&d->head);
    dflash_context_load(&d->context);
    d->rows = (struct dflash_rows){.ids = mem_calloc(rows, sizeof *d->rows.ids),
                                   .pos = mem_calloc(rows, sizeof *d->rows.pos),
                                   .picks = mem_calloc(rows, sizeof *d->rows.picks),
                                   .blocks = mem_calloc(rows, sizeof *d->rows.blocks),
                                   .asks = mem_calloc(rows, sizeof(struct draft_ask *)),
                                   .runs = mem_calloc(rows, sizeof *d->rows.runs)};
    d->packed = mem_calloc(dflash_tables_bytes(d), 1);
    d->top_ids = mem_calloc((size_t)picked * d->head.top, sizeof *d->top_ids);
    d->top_values = mem_calloc((size_t)picked * d->head.top, sizeof *d->top_values);
    d->host_g = mem_calloc((size_t)picked * d->cfg.rank + 1, sizeof *d->host_g);
    d->predecessor = mem_calloc(d->cfg.rank + 1, sizeof *d->predecessor);
    d->successor = mem_calloc(d->cfg.rank + 1, sizeof *d->successor);
    return d->m->ops->sync(d->m->ops->ctx, e);
}

static void flush_context(struct dflash *d) {
    if (d->rows.count) dflash_project_context(d);
    reset_rows(d);
}

// Rows from .. of a stream's run, in as many chunks as they need.
static void absorb_run(struct dflash *d, const struct run *run, uint32_t from) {
    struct dflash_rows *r = &d->rows;
    while (from < run->count) {
        uint32_t n = min_u32(run->count - from, DFLASH_ABSORB_ROWS - r->count);
        r->runs[r->runs_count++] =
            (struct run){.slot = run->slot, .row = r->count, .pos = run->pos + from, .count = n};
        for (uint32_t i = 0; i < n; i++, from++) {
            r->pos[r->count++] = run->pos + from;
            r->picks[r->picks_count++] = run->row + from;
        }
        if (r->count == DFLASH_ABSORB_ROWS) flush_context(d);
    }
}

static void absorb(void *self, const struct draft_rows *rows, uint32_t count) {
    struct dflash *d = self;
    reset_rows(d);
    for (uint32_t i = 0; i < count; i++) {
        const struct run *run = &rows[i].run;
        absorb_run(d, run, dflash_context_add(&d->context, run->slot, run->pos, run->count));
    }
    flush_context(d);
}

static void add_block(struct dflash *d, struct draft_ask *ask, uint32_t count) {
    struct dflash_rows *r = &d->rows;
    r->asks[r->blocks_count] = ask;
    r->blocks[r->blocks_count++] = (struct draft_block){.slot = ask->slot,
                                                        .row = r->count,
                                                        .pos = ask->pos,
                                                        .count = count,
                                                        .first = d->context.known[ask->slot].first};
    for (uint32_t i = 0; i < count; i++, r->count++) {
        r->ids[r->count] = i ? d->cfg.mask_id : ask->anchor;
        r->pos[r->count] = ask->pos + i;
        if (i || d->cfg.sample_from_anchor) r->picks[r->picks_count++] = r->count;
    }
}

static void flush_blocks(struct dflash *d) {
    const struct ops *o = d->m->ops;
    struct cuda_graph *graph = d->rows.blocks_count == 1 ? d->graphs[d->rows.count] : NULL;
    if (d->rows.count) {
        dflash_send(d);
        if (graph)
            o->graph_run(o->ctx, graph);
        else
            dflash_blocks(d);
        dflash_candidates(d, graph != NULL);
        dflash_select(d);
    }
    reset_rows(d);
}

static void propose(void *self, struct draft_ask *asks, uint32_t count) {
    struct dflash *d = self;
    uint32_t ids_max = dflash_config_ids_max(&d->cfg);
    reset_rows(d);
    for (uint32_t i = 0; i < count; i++) {
        struct draft_ask *ask = &asks[i];
        uint32_t rows = min_u32(ask->want, ids_max) + !d->cfg.sample_from_anchor;
        ask->ret_count = 0;
        if (!ask->want || !dflash_context_ready(&d->context, ask->slot, ask->pos)) continue;
        if (d->rows.count + rows > d->rows_max) flush_blocks(d);
        add_block(d, ask, rows);
    }
    flush_blocks(d);
}

static void gather(void *self, uint32_t blocks, uint32_t rows, uint32_t pos) {
    struct dflash *d = self;
    struct draft_ask ask = {.pos = pos};
    reset_rows(d);
    for (uint32_t i = 0; i < blocks && d->rows.count + rows <= d->rows_max; i++) {
        ask.slot = i;
        d->context.known[i] = (struct dflash_known){.end = pos};
        add_block(d, &ask, rows);
    }
    dflash_send(d);
}

static uint64_t state_bytes(void *self, uint32_t rows) {
    return dflash_context_bytes(&((struct dflash *)self)->context, rows);
}

static void state_read(void *self, uint32_t slot, uint32_t rows, void *ret) {
    dflash_context_read(&((struct dflash *)self)->context, slot, rows, ret);
}

static void state_write(void *self, uint32_t slot, uint32_t rows, const void *p) {
    dflash_context_write(&((struct dflash *)self)->context, slot, rows, p);
}

static void close_self(void *self) {
    struct dflash *d = self;
    if (!d) return;
    for (uint32_t i = 0; i <= DFLASH_BLOCK_MAX; i++)
        if (d->graphs[i]) d->m->ops->graph_free(d->m->ops->ctx, d->graphs[i]);
    dflash_context_close(&d->context);
    dflash_weights_close(&d->w);
    free(d->rows.ids);
    free(d->rows.pos);
    free(d->rows.picks);
    free(d->rows.blocks);
    free(d->rows.asks);
    free(d->rows.runs);
    free(d->packed);
    free(d->top_ids);
    free(d->top_values);
    free(d->host_g);
    free(d->predecessor);
    free(d->successor);
    free(d);
}

static int read_config(struct dflash *d, const char *dir, const struct model *m, struct err *e) {
    struct dflash_target t = {
        .hidden = m->cfg->hidden, .layers = m->cfg->layers, .vocab = m->cfg->vocab};
    struct strbuf path = {0}, text = {0};
    strbuf_printf(&path, "%s/config.json", dir);
    int st = small_file_read(&text, strbuf_str(&path), MODEL_CONFIG_FILE_BYTES_MAX, e);
    if (!st)
        st = dflash_config_parse(&d->cfg, strbuf_str(&path), strbuf_str(&text), text.len, &t, e);
    strbuf_fini(&path);
    strbuf_fini(&text);
    return st;
}

// What is wrong with the folder is wrong with the setting that names it.
static int of_setting(int st, struct err *e) {
    return st ? (int)err_prefix(e, "drafter") : ST_OK;
}

int dflash_open(struct drafter *ret, const char *dir, const struct model *m,
                const struct drafter_limits *lim, struct err *e) {
    struct dflash *d = mem_calloc(1, sizeof *d);
    int st = of_setting(read_config(d, dir, m, e), e);
    if (!st) st = dflash_init(d, m, lim, e);
    if (!st) st = of_setting(dflash_weights_open(&d->w, dir, e), e);
    if (st) {
        close_self(d);
        return st;
    }
    *ret = (struct drafter){.self = d,
                            .kind = d->cfg.v2 ? ENGINE_DRAFT_DFLASH2 : ENGINE_DRAFT_DFLASH,
                            .ids_max = dflash_config_ids_max(&d->cfg),
                            .vocab = draft_head_ids(&d->head),
                            .taps = {.layers = d->cfg.taps, .count = d->cfg.taps_count},
                            .carve = carve_self,
                            .plan = plan,
                            .record = record,
                            .load = load,
                            .absorb = absorb,
                            .propose = propose,
                            .gather = gather,
                            .issue = issue,
                            .state_bytes = state_bytes,
                            .state_read = state_read,
                            .state_write = state_write,
                            .close = close_self};
    return ST_OK;
}
