/* dflash_forward: the network of a DFlash drafter over the table of operations. Shapes: T rows of all blocks, D hidden, I MLP. */
#include <assert.h>
#include <math.h>
#include <string.h>

#include "common/num.h"
#include "kernels/draft/draft_attn.h"
#include "kernels/draft/draft_conv.h"
#include "kernels/draft/draft_gather.h"
#include "kernels/draft/draft_keep.h"
#include "kernels/draft/draft_rotate.h"
#include "kernels/draft/draft_scale.h"
#include "kernels/draft/q4_linear.h"
#include "kernels/embed/embed.h"
#include "kernels/linear/linear.h"
#include "kernels/mlp/swiglu.h"
#include "kernels/norm/rmsnorm.h"
#include "kernels/ops.h"
#include "kernels/rope/rope.h"
#include "worker/engine/dflash_impl.h"

struct product {
    const struct dflash_matrix *w;
    devptr y;
    bool add;
};

// Products of the same rows with up to LINEAR_PARTS_MAX matrices, in 4 bits or not.
static void multiply(struct dflash *d, devptr x, uint32_t rows, const struct product *p,
                     uint32_t count) {
    struct linear_args plain = {.x = x, .rows = rows};
    struct q4_linear_args q4 = {.x = x, .rows = rows};
    assert(count <= LINEAR_PARTS_MAX);
    for (uint32_t i = 0; i < count; i++)
        if (p[i].w->q4.rows)
            q4.parts[q4.parts_count++] =
                (struct q4_linear_part){.w = p[i].w->q4, .y = p[i].y, .add = p[i].add};
        else
            plain.parts[plain.parts_count++] =
                (struct linear_part){.w = p[i].w->plain, .y = p[i].y, .add = p[i].add};
    if (plain.parts_count) d->m->ops->linear(d->m->ops->ctx, &plain);
    if (q4.parts_count) d->m->ops->q4_linear(d->m->ops->ctx, &q4);
}

static void multiply_one(struct dflash *d, devptr x, uint32_t rows, const struct dflash_matrix *w,
                         devptr y, bool add) {
    multiply(d, x, rows, &(struct product){w, y, add}, 1);
}

static void norm(struct dflash *d, devptr x, devptr scale, devptr pick, devptr y, uint32_t rows) {
    d->m->ops->rmsnorm(d->m->ops->ctx, &(struct rmsnorm_args){.x = x,
                                                              .scale = scale,
                                                              .pick = pick,
                                                              .y = y,
                                                              .rows = rows,
                                                              .dim = d->cfg.hidden,
                                                              .eps = (float)d->cfg.rms_norm_eps});
}

static void rotate(struct dflash *d, devptr x, devptr scale, uint32_t heads) {
    d->m->ops->draft_rotate(d->m->ops->ctx,
                            &(struct draft_rotate_args){.x = x,
                                                        .scale = scale,
                                                        .angles = d->angles,
                                                        .rows = d->rows.count,
                                                        .heads = heads,
                                                        .dim = d->cfg.head_dim,
                                                        .eps = (float)d->cfg.rms_norm_eps});
}

// Context rows have runs, blocks have ids.
static uint32_t list_tables(struct dflash *d, struct table ret[DFLASH_TABLES]) {
    struct dflash_rows *r = &d->rows;
    const struct table t[DFLASH_TABLES] = {
        {r->pos, r->count * sizeof *r->pos, &d->pos},
        {r->picks, r->picks_count * sizeof *r->picks, &d->picks},
        {r->runs, r->runs_count * sizeof *r->runs, &d->runs},
        {r->blocks, r->blocks_count * sizeof *r->blocks, &d->blocks},
        {r->ids, (r->blocks_count ? r->count : 0) * sizeof *r->ids, &d->ids},
    };
    memcpy(ret, t, sizeof t);
    return DFLASH_TABLES;
}

void dflash_place(struct dflash *d) {
    struct table t[DFLASH_TABLES];
    tables_place(t, list_tables(d, t), d->tables);
}

void dflash_send(struct dflash *d) {
    struct table t[DFLASH_TABLES];
    uint32_t n = list_tables(d, t);
    if (d->packed)
        tables_write(t, n, d->tables, d->packed, d->m->ops);
    else // nothing is loaded yet: what it needs is measured
        tables_place(t, n, d->tables);
}

static void angles(struct dflash *d) {
    const struct ops *o = d->m->ops;
    o->rope(o->ctx, &(struct rope_args){.pos = d->pos,
                                        .freq = d->w.rope_freq,
                                        .angles = d->angles,
                                        .rows = d->rows.count,
                                        .pairs = d->cfg.head_dim / 2,
                                        .scale = 1});
}

static void keep(struct dflash *d, uint32_t layer) {
    d->m->ops->draft_keep(d->m->ops->ctx, &(struct draft_keep_args){
                                              .context = dflash_context_layer(&d->context, layer),
                                              .runs = d->runs,
                                              .runs_count = d->rows.runs_count,
                                              .rows = d->rows.count,
                                              .k = d->k,
                                              .v = d->v});
}

void dflash_project_context(struct dflash *d) {
    const struct ops *o = d->m->ops;
    uint32_t rows = d->rows.count;
    dflash_send(d);
    angles(d);
    uint64_t table = (uint64_t)d->m->lim.rows_max * d->cfg.hidden * sizeof(float);
    o->draft_gather(o->ctx, &(struct draft_gather_args){.tables = d->m->tap_rows,
                                                        .stride = table,
                                                        .count = d->cfg.taps_count,
                                                        .dim = d->cfg.hidden,
                                                        .rows = rows,
                                                        .pick = d->picks,
                                                        .x = d->feats});
    multiply_one(d, d->feats, rows, &d->w.fc, d->y, false);
    norm(d, d->y, d->w.hidden_norm, 0, d->f, rows);
    for (uint32_t i = 0; i < d->cfg.layers; i++) {
        const struct dflash_layer *l = &d->w.layers[i];
        multiply(d, d->f, rows, (struct product[]){{&l->k, d->k, false}, {&l->v, d->v, false}}, 2);
        rotate(d, d->k, l->k_scale, d->cfg.kv_heads);
        keep(d, i);
    }
}

// side 0: x to u. side 1: a sublayer's answer, added to the residual.
static void convolve(struct dflash *d, const struct dflash_conv *conv, uint32_t side, devptr from,
                     devptr to) {
    const struct dflash_config *c = &d->cfg;
    uint64_t taps = (uint64_t)side * c->conv_taps, groups = c->hidden / c->conv_group;
    d->m->ops->draft_conv(d->m->ops->ctx, &(struct draft_conv_args){
                                              .blocks = d->blocks,
                                              .blocks_count = d->rows.blocks_count,
                                              .rows = d->rows.count,
                                              .dim = c->hidden,
                                              .z = from,
                                              .y = to,
                                              .base = conv->base + taps * c->hidden * sizeof(float),
                                              .d = d->d + taps * groups * sizeof(float),
                                              .d_stride = (uint32_t)(2 * c->conv_taps * groups),
                                              .taps = c->conv_taps,
                                              .group = c->conv_group,
                                              .add = side == 1});
}

// The rows that a sublayer multiplies: the normed residual, in DFlash2 behind its convolution.
static devptr enter(struct dflash *d, devptr scale, const struct dflash_conv *conv) {
    norm(d, d->x, scale, 0, d->n, d->rows.count);
    if (!d->cfg.v2) return d->n;
    multiply_one(d, d->n, d->rows.count, &conv->projection, d->d, false);
    convolve(d, conv, 0, d->n, d->u);
    return d->u;
}

// The sublayer's last product, added to the residual.
static void leave(struct dflash *d, devptr x, const struct dflash_matrix *w,
                  const struct dflash_conv *conv) {
    multiply_one(d, x, d->rows.count, w, d->cfg.v2 ? d->y : d->x, !d->cfg.v2);
    if (d->cfg.v2) convolve(d, conv, 1, d->y, d->x);
}

static void mixer(struct dflash *d, uint32_t i) {
    const struct dflash_layer *l = &d->w.layers[i];
    devptr u = enter(d, l->in_scale, &l->attn_conv);
    multiply(d, u, d->rows.count,
             (struct product[]){{&l->q, d->q, false}, {&l->k, d->k, false}, {&l->v, d->v, false}},
             3);
    rotate(d, d->q, l->q_scale, d->cfg.heads);
    rotate(d, d->k, l->k_scale, d->cfg.kv_heads);
    d->m->ops->draft_attn(d->m->ops->ctx,
                          &(struct draft_attn_args){.context = dflash_context_layer(&d->context, i),
                                                    .blocks = d->blocks,
                                                    .blocks_count = d->rows.blocks_count,
                                                    .rows = d->rows.count,
                                                    .q = d->q,
                                                    .k = d->k,
                                                    .v = d->v,
                                                    .out = d->a,
                                                    .heads = d->cfg.heads,
                                                    .window = d->cfg.sliding[i] ? d->cfg.window : 0,
                                                    .causal = d->cfg.causal[i],
                                                    .scale = 1.0f / sqrtf((float)d->cfg.head_dim)});
    leave(d, d->a, &l->o, &l->attn_conv);
}

static void mlp(struct dflash *d, uint32_t i) {
    const struct dflash_layer *l = &d->w.layers[i];
    devptr u = enter(d, l->post_scale, &l->mlp_conv);
    multiply(d, u, d->rows.count,
             (struct product[]){{&l->gate, d->gate, false}, {&l->up, d->up, false}}, 2);
    d->m->ops->swiglu(d->m->ops->ctx, &(struct swiglu_args){.gate = d->gate,
                                                            .up = d->up,
                                                            .y = d->gate,
                                                            .rows = d->rows.count,
                                                            .dim = d->cfg.intermediate});
    leave(d, d->gate, &l->down, &l->mlp_conv);
}

static void embed(struct dflash *d) {
    const struct ops *o = d->m->ops;
    o->embed(o->ctx, &(struct embed_args){
                         .table = d->m->w.embed, .ids = d->ids, .rows = d->rows.count, .x = d->x});
    if (d->cfg.embedding_scale != 1)
        o->draft_scale(o->ctx,
                       &(struct draft_scale_args){.x = d->x,
                                                  .count = (uint64_t)d->rows.count * d->cfg.hidden,
                                                  .factor = (float)d->cfg.embedding_scale});
}

void dflash_blocks(struct dflash *d) {
    angles(d);
    embed(d);
    for (uint32_t i = 0; i < d->cfg.layers; i++) {
        mixer(d, i);
        mlp(d, i);
    }
    norm(d, d->x, d->w.norm, d->picks, d->hidden, d->rows.picks_count);
    if (d->cfg.v2)
        multiply_one(d, d->hidden, d->rows.picks_count, &d->w.hidden_projection, d->g, false);
}

void dflash_forward(struct dflash *d) {
    dflash_send(d);
    dflash_blocks(d);
}

// The head of as many picked rows as it takes, from `first` on.
static uint32_t run_head(struct dflash *d, uint32_t first) {
    uint32_t n = min_u32(d->rows.picks_count - first, d->head.rows_max);
    draft_head_run(&d->head, d->hidden + (uint64_t)first * d->cfg.hidden * sizeof(float), n);
    return n;
}

void dflash_heads(struct dflash *d) {
    for (uint32_t first = 0; first < d->rows.picks_count;) first += run_head(d, first);
}

void dflash_candidates(struct dflash *d, bool made) {
    const struct ops *o = d->m->ops;
    uint32_t all = d->rows.picks_count, top = d->head.top;
    for (uint32_t first = 0, n; first < all; first += n) {
        if (first) ops_mark(o, ENGINE_PART_DRAFT);
        n = made ? all : run_head(d, first);
        ops_mark(o, ENGINE_PART_HOST);
        bool last = d->cfg.v2 && first + n == all;
        struct ops_piece back[] = {
            {d->top_ids + first * top, d->head.ids, n * top * sizeof *d->top_ids},
            {d->top_values + first * top, d->head.values, n * top * sizeof *d->top_values},
            {d->host_g, d->g, last ? all * d->cfg.rank * sizeof *d->host_g : 0},
        };
        o->read_pieces(o->ctx, back, sizeof back / sizeof *back);
    }
}
