/* model_qwen3_5: see model_qwen3_5.h. Shapes by the letters of docs/glossary.md: T rows of the round, D hidden, C conv channels. */
#include "worker/engine/model_qwen3_5.h"
#include "common/err.h"
#include "common/mem.h"
#include "common/num.h"
#include "kernels/attn/attn.h"
#include "kernels/attn/kv_append.h"
#include "kernels/delta/conv.h"
#include "kernels/delta/delta_commit.h"
#include "kernels/delta/delta_gates.h"
#include "kernels/delta/delta_mix.h"
#include "kernels/delta/delta_norm.h"
#include "kernels/delta/delta_scan.h"
#include "kernels/delta/gated_norm.h"
#include "kernels/embed/embed.h"
#include "kernels/linear/linear.h"
#include "kernels/mlp/swiglu.h"
#include "kernels/moe/expert_sum.h"
#include "kernels/moe/experts.h"
#include "kernels/moe/router.h"
#include "kernels/norm/rmsnorm.h"
#include "kernels/ops.h"
#include "kernels/rope/rope.h"
#include "kernels/sample/draw.h"
#include "worker/engine/carve.h"
#include "worker/engine/checkpoint.h"
#include "worker/engine/round.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>

enum { F32 = sizeof(float), DIM_STEP = 16, HEAD_DIM_MAX = 512, KEY_DIM_MAX = 256 };

struct size_rule {
    const char *name;
    uint32_t value, step, max;
};

static int check_sizes(const struct model_config *c, struct err *e) {
    const struct size_rule rules[] = {
        {"head_dim", c->head_dim, DIM_STEP, HEAD_DIM_MAX},
        {"linear_key_head_dim", c->linear_key_dim, 1, KEY_DIM_MAX},
        {"linear_value_head_dim", c->linear_value_dim, DIM_STEP, UINT32_MAX},
        {"linear_conv_kernel_dim", c->linear_conv, CONV_TAPS, CONV_TAPS},
    };
    for (uint32_t i = 0; i < sizeof rules / sizeof *rules; i++)
        if (rules[i].value % rules[i].step || rules[i].value > rules[i].max)
            return err_set(e, ST_UNSUPPORTED, "%s: wanted a multiple of %u up to %u, found %u",
                           rules[i].name, rules[i].step, rules[i].max, rules[i].value);
    return ST_OK;
}

static void set_widths(struct model *m) {
    const struct model_config *c = m->cfg;
    m->q_width = c->heads * c->head_dim;
    m->kv_width = c->kv_heads * c->head_dim;
    m->key_width = model_config_linear_key_width(c);
    m->value_width = model_config_linear_value_width(c);
    m->channels = model_config_linear_conv_width(c);
    m->full_layers = c->full_layers;
    m->delta_layers = c->layers - c->full_layers;
    m->conv_bytes = (uint64_t)(CONV_TAPS - 1) * m->channels * F32;
    m->s_bytes = (uint64_t)m->value_width * c->linear_key_dim * F32;
    m->slot_bytes = m->delta_layers * (m->conv_bytes + m->s_bytes);
}

int model_init(struct model *m, const struct ops *ops, const struct checkpoint *c, struct err *e) {
    *m = (struct model){.ops = ops, .ckpt = c, .cfg = checkpoint_config(c)};
    int st = checkpoint_check_shapes(c, e);
    if (!st) st = check_sizes(m->cfg, e);
    if (st) return st;
    set_widths(m);
    m->freq = mem_calloc(m->cfg->rope.rotary_dim / 2 + 1, sizeof *m->freq);
    rope_rule_make(&m->rope, m->freq, &m->cfg->rope);
    return ST_OK;
}

void model_fini(struct model *m) {
    weights_fini(&m->w);
    free(m->freq);
    *m = (struct model){0};
}

static uint64_t page_bytes(const struct model *m) {
    return (uint64_t)m->kv_width * KV_PAGE_TOKENS * dtype_bytes(m->lim.kv_dtype);
}

uint64_t model_kv_layer_page_bytes(const struct model *m) {
    return page_bytes(m) * 2;
}

uint64_t model_kv_page_bytes(const struct model *m) {
    return model_kv_layer_page_bytes(m) * m->full_layers;
}

// Of the MLP that every row goes through: the dense one, or the shared expert.
static uint32_t mlp_width(const struct model *m) {
    return m->cfg->moe ? m->cfg->shared_expert_width : m->cfg->intermediate;
}

// The mixers and the MLP never live together, so their rows lie over one another.
static void carve_scratch(struct model *m, struct carve *c) {
    uint64_t t = m->lim.rows_max, nv = m->cfg->linear_value_heads;
    carve_begin(c, "scratch");
    m->h = carve_take(c, t * m->cfg->hidden * F32);
    m->x = carve_take(c, t * m->cfg->hidden * F32);
    m->angles = carve_take(c, t * 2 * m->rope.pairs * F32);
    uint64_t mark = carve_mark(c);
    c->disjoint = m->scratch_disjoint;
    m->shared = c->base + mark;
    m->attn.qg = carve_take(c, t * m->q_width * 2 * F32);
    m->attn.k = carve_take(c, t * m->kv_width * F32);
    m->attn.v = carve_take(c, t * m->kv_width * F32);
    m->attn.o = carve_take(c, t * m->q_width * F32);
    carve_rewind(c, mark);
    m->delta.m = carve_take(c, t * m->channels * F32);
    m->delta.qkv = carve_take(c, t * m->channels * F32);
    m->delta.z = carve_take(c, t * m->value_width * F32);
    m->delta.o = carve_take(c, t * m->value_width * F32);
    m->delta.a = carve_take(c, t * nv * F32);
    m->delta.b = carve_take(c, t * nv * F32);
    m->delta.gates = carve_take(c, t * 2 * nv * F32);
    carve_rewind(c, mark);
    m->mlp.gate = carve_take(c, t * mlp_width(m) * F32);
    m->mlp.up = carve_take(c, t * mlp_width(m) * F32);
    carve_past(c);
    m->shared_bytes = carve_mark(c) - mark;
}

// Whether the shared expert goes with the routed ones.
static bool experts_together(const struct model *m) {
    return m->ops->experts_shared && m->cfg->shared_expert_width == m->cfg->expert_width;
}

static struct experts_args experts_args(const struct model *m, uint32_t rows) {
    return (struct experts_args){.rows = rows,
                                 .shared = experts_together(m),
                                 .dim = m->cfg->hidden,
                                 .width = m->cfg->expert_width,
                                 .count = m->cfg->experts,
                                 .per_token = m->cfg->experts_per_token};
}

// Behind the union: the experts live beside the shared expert's rows.
static void carve_experts(struct model *m, struct carve *c) {
    uint64_t t = m->lim.rows_max, e = m->cfg->experts, k = m->cfg->experts_per_token;
    struct experts_args args = experts_args(m, m->lim.rows_max);
    carve_begin(c, "expert scratch");
    uint64_t mark = carve_mark(c);
    m->moe.first = c->base + mark;
    m->moe.logits = carve_take(c, t * e * F32);
    m->moe.gate = carve_take(c, t * F32);
    m->moe.picks = carve_take(c, t * k * sizeof(uint32_t));
    m->moe.weights = carve_take(c, t * k * F32);
    m->moe.routed = carve_take(c, t * m->cfg->hidden * F32);
    m->moe.shared = carve_take(c, t * m->cfg->hidden * F32);
    m->moe.scratch = carve_take(c, m->ops->experts_room(m->ops->ctx, &args));
    m->moe.bytes = carve_mark(c) - mark;
}

static void carve_record(struct model *m, struct carve *c) {
    uint64_t rows = (uint64_t)m->delta_layers * m->lim.record_rows_max;
    carve_begin(c, "window record");
    m->rec_m = carve_take(c, rows * m->channels * F32);
    m->rec_qkv = carve_take(c, rows * m->channels * F32);
    m->rec_gates = carve_take(c, rows * 2 * m->cfg->linear_value_heads * F32);
    m->commit_runs = carve_take(c, m->lim.record_rows_max * sizeof(struct run));
    m->planted_runs = carve_take(c, m->lim.record_rows_max * sizeof(struct run));
}

static void carve_draws(struct model *m, struct carve *c) {
    carve_begin(c, "draws");
    m->draw_ids = carve_take(c, m->lim.head_rows_max * MODEL_DRAW_WORDS * sizeof(uint32_t));
    m->draw_used = carve_take(c, ceil_div_u32(m->w.head.rows, 32) * sizeof(uint32_t));
}

static void carve_taps(struct model *m, struct carve *c) {
    uint64_t bytes = (uint64_t)m->lim.rows_max * m->cfg->hidden * F32;
    if (!m->taps.count && !m->taps.final) return;
    carve_begin(c, "drafter taps");
    m->tap_rows = carve_take(c, m->taps.count * bytes);
    m->tap_final = carve_take(c, m->taps.final ? bytes : 0);
}

// One piece: those of branches lie behind the streams' in every layer.
static void carve_kv(struct model *m, struct carve *c) {
    uint64_t bytes = model_kv_page_bytes(m), more = m->lim.branch_pages * bytes;
    carve_begin(c, "kv blocks");
    m->kv = carve_take(c, m->lim.pages * bytes - more);
    if (!more) return;
    carve_begin(c, "kv blocks of branches");
    devptr behind = carve_take(c, more);
    assert(behind == m->kv + m->lim.pages * bytes - more);
    (void)behind;
}

void model_carve(struct model *m, struct carve *c, struct round *r) {
    weights_carve(&m->w, m->ckpt, m->ops, c, m->rope.pairs);
    m->page_bytes = page_bytes(m);
    carve_begin(c, "row and page tables");
    round_carve(r, c);
    m->page_table =
        carve_take(c, (uint64_t)model_runs_max(m) * m->lim.pages_per_slot * sizeof(uint32_t));
    carve_scratch(m, c);
    if (m->cfg->moe) carve_experts(m, c);
    carve_begin(c, "logits");
    m->head_x = carve_take(c, (uint64_t)m->lim.head_rows_max * m->cfg->hidden * F32);
    m->logits = carve_take(c, (uint64_t)m->lim.head_rows_max * m->w.head.rows * F32);
    if (m->ops->draw) carve_draws(m, c);
    carve_record(m, c);
    carve_taps(m, c);
    if (m->carve_more) m->carve_more(m->carve_more_arg, c);
    if (m->work.scratch_bytes) {
        carve_begin(c, "operations' scratch");
        m->work_scratch = carve_take(c, m->work.scratch_bytes);
    }
    if (m->work.counter_bytes) {
        carve_begin(c, "split-K counters");
        m->work_counters = carve_take(c, m->work.counter_bytes);
    }
    carve_begin(c, "stream states");
    m->state = carve_take(c, m->lim.slots * m->slot_bytes);
    carve_kv(m, c);
}

void model_set_pages(struct model *m, uint32_t slot, const uint32_t *pages, uint32_t count) {
    devptr at = m->page_table + (uint64_t)slot * m->lim.pages_per_slot * sizeof *pages;
    m->ops->write(m->ops->ctx, at, pages, count * sizeof *pages);
}

uint32_t model_runs_max(const struct model *m) {
    return m->lim.slots * (m->branches ? 2 : 1);
}

static void rmsnorm(struct model *m, devptr scale, uint32_t rows) {
    m->ops->rmsnorm(m->ops->ctx, &(struct rmsnorm_args){.x = m->h,
                                                        .scale = scale,
                                                        .y = m->x,
                                                        .rows = rows,
                                                        .dim = m->cfg->hidden,
                                                        .eps = (float)m->cfg->rms_norm_eps});
}

// The rows of a linear layer: x, the norm of h.
static struct linear_from normed(const struct model *m, devptr scale) {
    return (struct linear_from){
        .maker = LINEAR_NORM, .eps = (float)m->cfg->rms_norm_eps, .x = m->h, .other = scale};
}

// h += x W^T
static void add_linear(struct model *m, devptr x, const struct weight *w, uint32_t rows) {
    m->ops->linear(
        m->ops->ctx,
        &(struct linear_args){
            .x = x, .rows = rows, .parts_count = 1, .parts = {{.w = *w, .y = m->h, .add = true}}});
}

struct kv_view model_kv_view(const struct model *m, devptr keys) {
    return (struct kv_view){.k = keys,
                            .v = keys + (uint64_t)m->lim.pages * page_bytes(m),
                            .table = m->page_table,
                            .pages_per_slot = m->lim.pages_per_slot,
                            .heads = m->cfg->kv_heads,
                            .dim = m->cfg->head_dim,
                            .dtype = m->lim.kv_dtype};
}

static struct kv_view kv_of(const struct model *m, uint32_t full_idx) {
    return model_kv_view(m, m->kv + (uint64_t)full_idx * 2 * m->lim.pages * m->page_bytes);
}

static uint32_t branch_page(const struct model *m, uint32_t slot, uint32_t idx) {
    return m->lim.pages - m->lim.branch_pages + slot * MODEL_BRANCH_PAGES + idx;
}

// Keys and values of all layers.
static void copy_page(struct model *m, uint32_t to, uint32_t from) {
    m->ops->copy_each(m->ops->ctx, &(struct ops_copies){.dst = m->kv + to * m->page_bytes,
                                                        .src = m->kv + from * m->page_bytes,
                                                        .bytes = m->page_bytes,
                                                        .stride = m->lim.pages * m->page_bytes,
                                                        .count = 2 * m->full_layers});
}

uint32_t model_branch(struct model *m, uint32_t slot, const uint32_t *pages, uint32_t pos,
                      uint32_t rows) {
    uint32_t first = pos / KV_PAGE_TOKENS, keys = m->lim.slots + slot, own[MODEL_BRANCH_PAGES];
    uint32_t count = (pos + rows - 1) / KV_PAGE_TOKENS - first + 1;
    devptr table = m->page_table + (uint64_t)keys * m->lim.pages_per_slot * sizeof *pages;
    assert(m->branches && rows && rows <= MODEL_BRANCH_ROWS_MAX);
    for (uint32_t i = 0; i < MODEL_BRANCH_PAGES; i++) own[i] = branch_page(m, slot, i);
    if (first) m->ops->write(m->ops->ctx, table, pages, first * sizeof *pages);
    m->ops->write(m->ops->ctx, table + first * sizeof *pages, own, count * sizeof *own);
    if (pos % KV_PAGE_TOKENS) copy_page(m, own[0], pages[first]);
    return keys;
}

void model_keep_branch(struct model *m, uint32_t slot, const uint32_t *pages, uint32_t pos,
                       uint32_t rows) {
    uint32_t first = pos / KV_PAGE_TOKENS, last = (pos + rows - 1) / KV_PAGE_TOKENS;
    if (m->lost_branch) return;
    for (uint32_t i = first; i <= last; i++)
        copy_page(m, pages[i], branch_page(m, slot, i - first));
}

static void attn_mixer(struct model *m, const struct attn_weights *w, devptr in_scale,
                       const struct kv_view *kv, const struct round *r) {
    m->ops->linear(m->ops->ctx, &(struct linear_args){.x = m->x,
                                                      .from = normed(m, in_scale),
                                                      .rows = r->rows,
                                                      .parts_count = 3,
                                                      .parts = {{.w = w->q, .y = m->attn.qg},
                                                                {.w = w->k, .y = m->attn.k},
                                                                {.w = w->v, .y = m->attn.v}}});
    m->ops->kv_append(m->ops->ctx, &(struct kv_append_args){.rows = round_key_rows(r),
                                                            .kv = *kv,
                                                            .qg = m->attn.qg,
                                                            .k = m->attn.k,
                                                            .v = m->attn.v,
                                                            .angles = m->angles,
                                                            .q_scale = w->q_scale,
                                                            .k_scale = w->k_scale,
                                                            .heads = m->cfg->heads,
                                                            .pairs = m->rope.pairs,
                                                            .eps = (float)m->cfg->rms_norm_eps});
    m->ops->attn(m->ops->ctx, &(struct attn_args){.rows = round_key_rows(r),
                                                  .kv = *kv,
                                                  .qg = m->attn.qg,
                                                  .out = m->attn.o,
                                                  .heads = m->cfg->heads,
                                                  .scale = 1.0f / sqrtf((float)m->cfg->head_dim)});
    add_linear(m, m->attn.o, &w->o, r->rows);
}

static devptr conv_state(const struct model *m, uint32_t delta_idx) {
    return m->state + delta_idx * (m->conv_bytes + m->s_bytes);
}

static devptr record_of(const struct model *m, devptr base, uint32_t delta_idx, uint64_t width) {
    return base + (uint64_t)delta_idx * m->lim.record_rows_max * width * F32;
}

// Keeps what a commit will need of the rows of recorded runs.
static void record_rows(struct model *m, const struct round *r, uint32_t delta_idx) {
    const struct ops *o = m->ops;
    uint64_t c = (uint64_t)m->channels * F32, g = (uint64_t)2 * m->cfg->linear_value_heads * F32;
    for (uint32_t i = 0; i < r->runs_count; i++) {
        const struct run *run = &r->runs[i];
        if (!run->record) continue;
        uint64_t to = run->record - 1;
        o->copy(o->ctx, record_of(m, m->rec_m, delta_idx, m->channels) + to * c,
                m->delta.m + run->row * c, run->count * c);
        o->copy(o->ctx, record_of(m, m->rec_qkv, delta_idx, m->channels) + to * c,
                m->delta.qkv + run->row * c, run->count * c);
        o->copy(o->ctx,
                record_of(m, m->rec_gates, delta_idx, 2 * m->cfg->linear_value_heads) + to * g,
                m->delta.gates + run->row * g, run->count * g);
    }
}

static struct delta_scan_args scan_args(const struct model *m, uint32_t delta_idx) {
    return (struct delta_scan_args){.state = conv_state(m, delta_idx) + m->conv_bytes,
                                    .slot_stride = m->slot_bytes,
                                    .key_heads = m->cfg->linear_key_heads,
                                    .value_heads = m->cfg->linear_value_heads,
                                    .key_dim = m->cfg->linear_key_dim,
                                    .value_dim = m->cfg->linear_value_dim};
}

static void store_conv(struct model *m, uint32_t delta_idx, devptr runs, uint32_t runs_count,
                       devptr inputs) {
    m->ops->conv_store(m->ops->ctx,
                       &(struct conv_store_args){.runs = runs,
                                                 .runs_count = runs_count,
                                                 .m = inputs,
                                                 .state = conv_state(m, delta_idx),
                                                 .slot_stride = m->slot_bytes,
                                                 .channels = m->channels,
                                                 .stale = m->stale_conv && delta_idx == 0});
}

static void delta_linears(struct model *m, const struct delta_weights *w, devptr in_scale,
                          const struct round *r) {
    m->ops->linear(m->ops->ctx, &(struct linear_args){.x = m->x,
                                                      .from = normed(m, in_scale),
                                                      .rows = r->rows,
                                                      .parts_count = 4,
                                                      .parts = {{.w = w->qkv, .y = m->delta.m},
                                                                {.w = w->z, .y = m->delta.z},
                                                                {.w = w->b, .y = m->delta.b},
                                                                {.w = w->a, .y = m->delta.a}}});
}

static float query_scale(const struct model *m) {
    return 1.0f / sqrtf((float)m->cfg->linear_key_dim);
}

// Convolution: unit queries and keys, values, gates of all rows.
static void delta_inputs(struct model *m, const struct delta_weights *w, const struct round *r,
                         uint32_t delta_idx) {
    const struct model_config *c = m->cfg;
    m->ops->conv(m->ops->ctx, &(struct conv_args){.rows = round_rows(r),
                                                  .m = m->delta.m,
                                                  .w = w->conv,
                                                  .y = m->delta.qkv,
                                                  .state = conv_state(m, delta_idx),
                                                  .slot_stride = m->slot_bytes,
                                                  .channels = m->channels});
    m->ops->delta_norm(m->ops->ctx, &(struct delta_norm_args){.qkv = m->delta.qkv,
                                                              .rows = r->rows,
                                                              .channels = m->channels,
                                                              .key_heads = c->linear_key_heads,
                                                              .key_dim = c->linear_key_dim,
                                                              .q_scale = query_scale(m)});
    m->ops->delta_gates(m->ops->ctx, &(struct delta_gates_args){.a = m->delta.a,
                                                                .b = m->delta.b,
                                                                .neg_a = w->neg_a,
                                                                .dt_bias = w->dt_bias,
                                                                .gates = m->delta.gates,
                                                                .rows = r->rows,
                                                                .heads = c->linear_value_heads});
}

// One operation after the other.
static void delta_steps(struct model *m, const struct delta_weights *w, const struct round *r,
                        uint32_t delta_idx) {
    delta_inputs(m, w, r, delta_idx);
    if (r->record_rows) record_rows(m, r, delta_idx);
    store_conv(m, delta_idx, r->dev_runs, r->runs_count, m->delta.m);
    struct delta_scan_args scan = scan_args(m, delta_idx);
    scan.runs = r->dev_runs;
    scan.runs_count = r->runs_count;
    scan.rows = r->rows;
    scan.qkv = m->delta.qkv;
    scan.gates = m->delta.gates;
    scan.out = m->delta.o;
    m->ops->delta_scan(m->ops->ctx, &scan);
    m->ops->gated_norm(m->ops->ctx, &(struct gated_norm_args){.o = m->delta.o,
                                                              .z = m->delta.z,
                                                              .w = w->norm,
                                                              .y = m->delta.o,
                                                              .rows = r->rows,
                                                              .heads = m->cfg->linear_value_heads,
                                                              .dim = m->cfg->linear_value_dim,
                                                              .eps = (float)m->cfg->rms_norm_eps});
}

// All of them as one.
static void delta_at_once(struct model *m, const struct delta_weights *w, const struct round *r,
                          uint32_t delta_idx) {
    const struct model_config *c = m->cfg;
    struct delta_mix_args a = {.rows = round_rows(r),
                               .m = m->delta.m,
                               .z = m->delta.z,
                               .a = m->delta.a,
                               .b = m->delta.b,
                               .qkv = m->delta.qkv,
                               .gates = m->delta.gates,
                               .o = m->delta.o,
                               .conv_w = w->conv,
                               .neg_a = w->neg_a,
                               .dt_bias = w->dt_bias,
                               .norm_w = w->norm,
                               .conv_state = conv_state(m, delta_idx),
                               .state = conv_state(m, delta_idx) + m->conv_bytes,
                               .slot_stride = m->slot_bytes,
                               .key_heads = c->linear_key_heads,
                               .value_heads = c->linear_value_heads,
                               .key_dim = c->linear_key_dim,
                               .value_dim = c->linear_value_dim,
                               .q_scale = query_scale(m),
                               .eps = (float)c->rms_norm_eps,
                               .stale = m->stale_conv && delta_idx == 0};
    if (r->record_rows) {
        a.rec_m = record_of(m, m->rec_m, delta_idx, m->channels);
        a.rec_qkv = record_of(m, m->rec_qkv, delta_idx, m->channels);
        a.rec_gates = record_of(m, m->rec_gates, delta_idx, 2 * c->linear_value_heads);
    }
    m->ops->delta_mix(m->ops->ctx, &a);
}

static void delta_mixer(struct model *m, const struct delta_weights *w, devptr in_scale,
                        const struct round *r, uint32_t delta_idx) {
    delta_linears(m, w, in_scale, r);
    if (m->ops->delta_mix)
        delta_at_once(m, w, r, delta_idx);
    else
        delta_steps(m, w, r, delta_idx);
    add_linear(m, m->delta.o, &w->out, r->rows);
}

static void swiglu(struct model *m, uint32_t rows) {
    m->ops->swiglu(m->ops->ctx, &(struct swiglu_args){.gate = m->mlp.gate,
                                                      .up = m->mlp.up,
                                                      .y = m->mlp.gate,
                                                      .rows = rows,
                                                      .dim = mlp_width(m)});
}

static void dense_mlp(struct model *m, const struct layer_weights *l, uint32_t rows) {
    m->ops->linear(m->ops->ctx, &(struct linear_args){.x = m->x,
                                                      .from = normed(m, l->post_scale),
                                                      .rows = rows,
                                                      .parts_count = 2,
                                                      .parts = {{.w = l->gate, .y = m->mlp.gate},
                                                                {.w = l->up, .y = m->mlp.up}}});
    m->ops->linear(m->ops->ctx,
                   &(struct linear_args){
                       .x = m->mlp.gate,
                       .from = {.maker = LINEAR_SWIGLU, .x = m->mlp.gate, .other = m->mlp.up},
                       .rows = rows,
                       .parts_count = 1,
                       .parts = {{.w = l->down, .y = m->h, .add = true}}});
}

static void routed_experts(struct model *m, const struct moe_weights *w, uint32_t rows) {
    struct experts_args args = experts_args(m, rows);
    m->ops->router(m->ops->ctx, &(struct router_args){.logits = m->moe.logits,
                                                      .experts = m->moe.picks,
                                                      .weights = m->moe.weights,
                                                      .rows = rows,
                                                      .count = args.count,
                                                      .per_token = args.per_token});
    args.x = m->x;
    args.experts = m->moe.picks;
    args.weights = m->moe.weights;
    args.y = m->moe.routed;
    args.h = m->h;
    args.gate = m->moe.gate;
    args.scratch = m->moe.scratch;
    args.table = w->experts;
    args.dev_table = w->dev_experts;
    m->ops->experts(m->ops->ctx, &args);
}

static void moe_mlp(struct model *m, const struct layer_weights *l, uint32_t rows) {
    bool together = experts_together(m);
    rmsnorm(m, l->post_scale, rows); // for the experts too
    m->ops->linear(m->ops->ctx,
                   &(struct linear_args){.x = m->x,
                                         .rows = rows,
                                         .parts_count = together ? 2 : 4,
                                         .parts = {{.w = l->moe.router, .y = m->moe.logits},
                                                   {.w = l->moe.shared_gate, .y = m->moe.gate},
                                                   {.w = l->gate, .y = m->mlp.gate},
                                                   {.w = l->up, .y = m->mlp.up}}});
    routed_experts(m, &l->moe, rows);
    if (together) return;
    swiglu(m, rows);
    m->ops->linear(m->ops->ctx,
                   &(struct linear_args){.x = m->mlp.gate,
                                         .rows = rows,
                                         .parts_count = 1,
                                         .parts = {{.w = l->down, .y = m->moe.shared}}});
    m->ops->expert_sum(m->ops->ctx, &(struct expert_sum_args){.h = m->h,
                                                              .routed = m->moe.routed,
                                                              .shared = m->moe.shared,
                                                              .gate = m->moe.gate,
                                                              .rows = rows,
                                                              .dim = m->cfg->hidden});
}

// What the mixer or the MLP leaves behind is dead. Reading any of it would give NaN, whatever lies over it later.
static void spoil(struct model *m) {
    const uint32_t nan_bits = 0x7fc00000u;
    if (!m->spoil_dead) return;
    m->ops->fill(m->ops->ctx, m->shared, nan_bits, m->shared_bytes);
    m->ops->fill(m->ops->ctx, m->x, nan_bits, (uint64_t)m->lim.rows_max * m->cfg->hidden * F32);
    if (m->cfg->moe) m->ops->fill(m->ops->ctx, m->moe.first, nan_bits, m->moe.bytes);
}

static void tap_layer(struct model *m, uint32_t layer, uint32_t rows) {
    uint64_t row = (uint64_t)m->cfg->hidden * F32;
    for (uint32_t i = 0; i < m->taps.count; i++)
        if (m->taps.layers[i] == layer)
            m->ops->copy(m->ops->ctx, m->tap_rows + i * m->lim.rows_max * row, m->h, rows * row);
}

static void tap_final(struct model *m, uint32_t rows) {
    m->ops->rmsnorm(m->ops->ctx, &(struct rmsnorm_args){.x = m->h,
                                                        .scale = m->w.final_scale,
                                                        .y = m->tap_final,
                                                        .rows = rows,
                                                        .dim = m->cfg->hidden,
                                                        .eps = (float)m->cfg->rms_norm_eps});
}

// Planted: writes the positions of a window's rows behind its first one too high, for the rotation alone, or as they are.
static void write_positions(struct model *m, const struct round *r, uint32_t more) {
    for (uint32_t i = 0; i < r->runs_count; i++) {
        const struct run *run = &r->runs[i];
        for (uint32_t k = 1; run->record && k < run->count; k++) {
            uint32_t pos = run->pos + k + more;
            m->ops->write(m->ops->ctx, r->dev_pos + (run->row + k) * sizeof pos, &pos, sizeof pos);
        }
    }
}

void model_angles(struct model *m, const struct round *r) {
    m->ops->rope(m->ops->ctx, &(struct rope_args){.pos = r->dev_pos,
                                                  .freq = m->w.rope_freq,
                                                  .angles = m->angles,
                                                  .rows = r->rows,
                                                  .pairs = m->rope.pairs,
                                                  .scale = m->rope.scale});
}

static void mlp(struct model *m, const struct layer_weights *l, uint32_t rows) {
    spoil(m);
    if (m->cfg->moe)
        moe_mlp(m, l, rows);
    else
        dense_mlp(m, l, rows);
    spoil(m);
}

void model_attn_layer(struct model *m, const struct layer_weights *l, const struct kv_view *kv,
                      const struct round *r) {
    attn_mixer(m, &l->attn, l->in_scale, kv, r);
    mlp(m, l, r->rows);
}

static void delta_layer(struct model *m, const struct layer_weights *l, const struct round *r,
                        uint32_t delta_idx) {
    delta_mixer(m, &l->delta, l->in_scale, r, delta_idx);
    mlp(m, l, r->rows);
}

void model_layers(struct model *m, const struct round *r) {
    uint32_t full_idx = 0, delta_idx = 0;
    if (m->window_rope) write_positions(m, r, 1);
    m->ops->embed(
        m->ops->ctx,
        &(struct embed_args){.table = m->w.embed, .ids = r->dev_ids, .rows = r->rows, .x = m->h});
    model_angles(m, r);
    if (m->window_rope) write_positions(m, r, 0);
    for (uint32_t i = 0; i < m->w.layers_count; i++) {
        const struct layer_weights *l = &m->w.layers[i];
        if (l->full) {
            struct kv_view kv = kv_of(m, full_idx++);
            model_attn_layer(m, l, &kv, r);
        } else {
            delta_layer(m, l, r, delta_idx++);
        }
        tap_layer(m, i, r->rows);
    }
    if (m->taps.final) tap_final(m, r->rows);
}

void model_forward(struct model *m, struct round *r) {
    round_write(r, m->ops);
    model_layers(m, r);
}

void model_head(struct model *m, const struct round *r, uint32_t first, uint32_t count) {
    m->ops->rmsnorm(m->ops->ctx,
                    &(struct rmsnorm_args){.x = m->h,
                                           .scale = m->w.final_scale,
                                           .pick = r->dev_picks + first * sizeof(uint32_t),
                                           .y = m->head_x,
                                           .rows = count,
                                           .dim = m->cfg->hidden,
                                           .eps = (float)m->cfg->rms_norm_eps});
    m->ops->linear(m->ops->ctx, &(struct linear_args){.x = m->head_x,
                                                      .rows = count,
                                                      .parts_count = 1,
                                                      .parts = {{.w = m->w.head, .y = m->logits}}});
}

struct kept { // runs of recorded rows on the device
    devptr runs;
    uint32_t count, rows;
};

enum { KEPT_PIECE = 64 }; // runs in one copy

static void put_runs(struct model *m, devptr *at, const struct run *runs, uint32_t *count) {
    m->ops->write(m->ops->ctx, *at, runs, *count * sizeof *runs);
    *at += *count * sizeof *runs;
    *count = 0;
}

// less: rows of each run left out, where it has more than those; 0 unless planted.
static struct kept write_kept(struct model *m, devptr to, const struct run *runs, uint32_t count,
                              uint32_t less) {
    struct kept k = {.runs = to};
    struct run piece[KEPT_PIECE];
    uint32_t n = 0;
    for (uint32_t i = 0; i < count; i++) {
        struct run run = runs[i];
        if (!run.count) continue;
        if (run.count > less) run.count -= less;
        run.row = run.record - 1;
        run.record = 0;
        k.rows += run.count;
        k.count++;
        piece[n++] = run;
        if (n == KEPT_PIECE) put_runs(m, &to, piece, &n);
    }
    put_runs(m, &to, piece, &n);
    return k;
}

static void commit_layer(struct model *m, uint32_t delta_idx, const struct kept *s,
                         const struct kept *conv) {
    struct delta_scan_args scan = scan_args(m, delta_idx);
    scan.runs = s->runs;
    scan.runs_count = s->count;
    scan.rows = s->rows;
    scan.qkv = record_of(m, m->rec_qkv, delta_idx, m->channels);
    scan.gates = record_of(m, m->rec_gates, delta_idx, 2 * m->cfg->linear_value_heads);
    m->ops->delta_scan(m->ops->ctx, &scan);
    store_conv(m, delta_idx, conv->runs, conv->count,
               record_of(m, m->rec_m, delta_idx, m->channels));
}

static void commit_layers(struct model *m, const struct kept *k) {
    struct delta_commit_args a = {
        .scan = scan_args(m, 0),
        .conv = {.runs = k->runs,
                 .runs_count = k->count,
                 .m = m->rec_m,
                 .state = conv_state(m, 0),
                 .slot_stride = m->slot_bytes,
                 .channels = m->channels},
        .layers = m->delta_layers,
        .layer_bytes = m->conv_bytes + m->s_bytes,
        .m_bytes = record_of(m, 0, 1, m->channels),
        .qkv_bytes = record_of(m, 0, 1, m->channels),
        .gates_bytes = record_of(m, 0, 1, 2 * m->cfg->linear_value_heads),
    };
    a.scan.runs = k->runs;
    a.scan.runs_count = k->count;
    a.scan.rows = k->rows;
    a.scan.qkv = m->rec_qkv;
    a.scan.gates = m->rec_gates;
    m->ops->delta_commit(m->ops->ctx, &a);
}

void model_commit(struct model *m, const struct run *runs, uint32_t count) {
    struct kept kept = write_kept(m, m->commit_runs, runs, count, 0), planted = kept;
    bool faulty = m->short_s || m->short_conv || m->stale_conv; // in the first layer alone
    if (m->short_s || m->short_conv) planted = write_kept(m, m->planted_runs, runs, count, 1);
    if (!kept.count) return;
    if (m->ops->delta_commit && !faulty) {
        commit_layers(m, &kept);
        return;
    }
    for (uint32_t i = 0; i < m->delta_layers; i++)
        commit_layer(m, i, i == 0 && m->short_s ? &planted : &kept,
                     i == 0 && m->short_conv ? &planted : &kept);
}

/* Saved state: the slot's block, then for each attention layer keys and values of the pages in use, page after page. */
uint64_t model_state_bytes(const struct model *m, uint32_t rows) {
    return m->slot_bytes + ceil_div_u32(rows, KV_PAGE_TOKENS) * model_kv_page_bytes(m);
}

struct state_copy {
    struct model *m;
    const uint32_t *pages;
    uint32_t slot, rows;
    char *host;
    bool to_host;
};

static void move(const struct state_copy *s, uint64_t *at, devptr p, uint64_t bytes) {
    const struct ops *o = s->m->ops;
    if (s->to_host)
        o->read(o->ctx, s->host + *at, p, bytes);
    else
        o->write(o->ctx, p, s->host + *at, bytes);
    *at += bytes;
}

static void state_copy(const struct state_copy *s) {
    const struct model *m = s->m;
    uint32_t pages = ceil_div_u32(s->rows, KV_PAGE_TOKENS);
    uint64_t at = 0;
    move(s, &at, m->state + s->slot * m->slot_bytes, m->slot_bytes);
    for (uint32_t i = 0; i < m->full_layers; i++) {
        struct kv_view kv = kv_of(m, i);
        for (uint32_t p = 0; p < pages; p++) {
            move(s, &at, kv.k + s->pages[p] * m->page_bytes, m->page_bytes);
            move(s, &at, kv.v + s->pages[p] * m->page_bytes, m->page_bytes);
        }
    }
}

void model_state_read(struct model *m, uint32_t slot, const uint32_t *pages, uint32_t rows,
                      void *ret) {
    state_copy(&(struct state_copy){m, pages, slot, rows, ret, true});
}

void model_state_write(struct model *m, uint32_t slot, const uint32_t *pages, uint32_t rows,
                       const void *p) {
    state_copy(&(struct state_copy){m, pages, slot, rows, (char *)p, false});
}
