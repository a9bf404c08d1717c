/* weights: see weights.h. One walk over the layers (visit) serves both passes, so they cannot disagree. */
#include "worker/engine/weights.h"
#include "common/err.h"
#include "common/mem.h"
#include "common/strbuf.h"
#include "kernels/delta/conv.h"
#include "kernels/linear/exl3_signs.h"
#include "kernels/math_f64.h"
#include "kernels/ops.h"
#include "worker/engine/carve.h"
#include "worker/engine/checkpoint.h"
#include "worker/engine/checkpoint_linear.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum vector_kind { VECTOR_PLAIN, VECTOR_ONE_PLUS, VECTOR_NEG_EXP, VECTOR_CONV, VECTOR_HALF };

struct visit {
    struct weights *w; // NULL: of the MTP head alone
    const struct checkpoint *c;
    const char *prefix; // of the layers' names
    const struct ops *ops;
    struct carve *carve; // first pass; NULL in the second
    const struct weights_load *load;
    uint64_t done_bytes;
};

static enum dtype dtype_of(const struct safetensors_tensor *t) {
    switch (t->dtype) {
    case SAFETENSORS_F32: return DTYPE_F32;
    case SAFETENSORS_F16: return DTYPE_F16;
    default: assert(t->dtype == SAFETENSORS_BF16); return DTYPE_BF16;
    }
}

// Faults the pages in; volatile keeps the reads.
static void touch(const void *p, uint64_t bytes) {
    const volatile unsigned char *b = p;
    for (uint64_t i = 0; i < bytes; i += 4096) (void)b[i];
}

static void count_done(struct visit *v, uint64_t bytes) {
    v->done_bytes += bytes;
    if (v->w && v->load->on_load) v->load->on_load(v->load->arg, v->done_bytes, v->w->bytes);
}

// Where a whole tensor stands on the device. First pass: carved, or 0; second: filled, room being what the first gave.
static devptr place(struct visit *v, const struct safetensors_tensor *t, devptr room) {
    if (v->carve) {
        uint64_t bytes = v->ops->weight_room(v->ops->ctx, t->bytes);
        return bytes ? carve_take(v->carve, bytes) : 0;
    }
    if (!v->ops->host_alloc) touch(t->data, t->bytes); // else the copy reads it
    devptr p = v->ops->weight_put(v->ops->ctx, room, t->data, t->bytes);
    count_done(v, t->bytes);
    return p;
}

static void matrix_of(struct visit *v, struct weight *ret, const struct safetensors_tensor *t) {
    assert(t && t->dims_count == 2);
    *ret = (struct weight){.data = place(v, t, ret->data),
                           .dtype = dtype_of(t),
                           .rows = (uint32_t)t->dims[0],
                           .cols = (uint32_t)t->dims[1]};
}

// To the nearest fp16 number, ties to even.
static float to_half(float x) {
    int e;
    frexpf(x, &e);
    float step = ldexpf(1, e - 11 < -24 ? -24 : e - 11), r = rintf(x / step) * step;
    return fabsf(r) > 65504 ? copysignf(INFINITY, x) : r;
}

static void convert(float *x, const struct safetensors_tensor *t, enum vector_kind kind) {
    uint64_t n = t->elements;
    if (kind == VECTOR_CONV) { // [C, 1, 4] to [4, C]
        float *taps = mem_alloc(n * sizeof *taps);
        safetensors_to_f32(t, 0, n, taps);
        uint64_t channels = n / CONV_TAPS;
        for (uint64_t i = 0; i < n; i++) x[i % CONV_TAPS * channels + i / CONV_TAPS] = taps[i];
        free(taps);
        return;
    }
    safetensors_to_f32(t, 0, n, x);
    for (uint64_t i = 0; i < n; i++) {
        if (kind == VECTOR_ONE_PLUS) x[i] = 1.0f + x[i];
        if (kind == VECTOR_HALF) x[i] = to_half(x[i]);
        if (kind == VECTOR_NEG_EXP) x[i] = (float)-math_f64_exp((double)x[i]);
    }
}

static void vector_of(struct visit *v, devptr *ret, const struct safetensors_tensor *t,
                      enum vector_kind kind) {
    assert(t);
    if (v->carve) {
        *ret = carve_take(v->carve, t->elements * sizeof(float));
        return;
    }
    float *x = mem_alloc(t->elements * sizeof *x);
    convert(x, t, kind);
    v->ops->write(v->ops->ctx, *ret, x, t->elements * sizeof *x);
    free(x);
}

static const struct safetensors_tensor *find(struct visit *v, uint32_t layer, const char *name) {
    return checkpoint_under(v->c, v->prefix, "layers.%u.%s", layer, name);
}

// An EXL3 weight's factors of inputs or outputs: as they stand, or unpacked from their signs. room: as in place.
static devptr factors_of(struct visit *v, const struct safetensors_tensor *t, uint64_t count,
                         devptr room) {
    uint16_t *f;
    if (t->dtype == SAFETENSORS_F16) return place(v, t, room);
    if (v->carve) return carve_take(v->carve, count * sizeof *f);
    f = mem_alloc(count * sizeof *f);
    for (uint64_t i = 0; i < count; i++) f[i] = exl3_sign(t->data, i);
    v->ops->write(v->ops->ctx, room, f, count * sizeof *f);
    free(f);
    return room;
}

// A linear layer in whatever form the files have it. key: its full name. Its shape has been checked.
static void linear_of(struct visit *v, struct weight *ret, const char *key) {
    struct checkpoint_linear l = {0};
    struct err e = {0};
    struct exl3 *q = &ret->exl3;
    int st = checkpoint_linear(v->c, key, &l, &e);
    assert(!st);
    if (!l.half_bits) {
        matrix_of(v, ret, l.main);
        return;
    }
    ret->data = place(v, l.main, ret->data);
    ret->rows = (uint32_t)l.rows;
    ret->cols = (uint32_t)l.cols;
    q->half_bits = l.half_bits;
    q->codebook = l.codebook;
    q->suh = factors_of(v, l.in_factors, l.cols, q->suh);
    q->svh = factors_of(v, l.out_factors, l.rows, q->svh);
    if (l.bias) vector_of(v, &q->bias, l.bias, VECTOR_HALF);
}

static void layer_linear(struct visit *v, struct weight *ret, uint32_t layer, const char *name) {
    struct strbuf key = {0};
    strbuf_printf(&key, "%slayers.%u.%s", v->prefix, layer, name);
    linear_of(v, ret, strbuf_str(&key));
    strbuf_fini(&key);
}

static void visit_attn(struct visit *v, uint32_t i, struct attn_weights *a) {
    layer_linear(v, &a->q, i, "self_attn.q_proj");
    layer_linear(v, &a->k, i, "self_attn.k_proj");
    layer_linear(v, &a->v, i, "self_attn.v_proj");
    layer_linear(v, &a->o, i, "self_attn.o_proj");
    vector_of(v, &a->q_scale, find(v, i, "self_attn.q_norm.weight"), VECTOR_ONE_PLUS);
    vector_of(v, &a->k_scale, find(v, i, "self_attn.k_norm.weight"), VECTOR_ONE_PLUS);
}

static void visit_delta(struct visit *v, uint32_t i, struct delta_weights *d) {
    layer_linear(v, &d->qkv, i, "linear_attn.in_proj_qkv");
    layer_linear(v, &d->z, i, "linear_attn.in_proj_z");
    layer_linear(v, &d->b, i, "linear_attn.in_proj_b");
    layer_linear(v, &d->a, i, "linear_attn.in_proj_a");
    layer_linear(v, &d->out, i, "linear_attn.out_proj");
    vector_of(v, &d->conv, find(v, i, "linear_attn.conv1d.weight"), VECTOR_CONV);
    vector_of(v, &d->neg_a, find(v, i, "linear_attn.A_log"), VECTOR_NEG_EXP);
    vector_of(v, &d->dt_bias, find(v, i, "linear_attn.dt_bias"), VECTOR_PLAIN);
    vector_of(v, &d->norm, find(v, i, "linear_attn.norm.weight"), VECTOR_PLAIN);
}

// One of the matrices side by side in a packed tensor: rows rows from row `first` of the whole.
static struct weight slice(const struct safetensors_tensor *t, devptr data, uint64_t first,
                           uint32_t rows) {
    uint32_t cols = (uint32_t)t->dims[2];
    enum dtype d = dtype_of(t);
    return (struct weight){
        .data = data + first * cols * dtype_bytes(d), .dtype = d, .rows = rows, .cols = cols};
}

static void visit_packed(struct visit *v, uint32_t i, struct expert *experts) {
    const struct safetensors_tensor *gate_up = find(v, i, "mlp.experts.gate_up_proj");
    const struct safetensors_tensor *down = find(v, i, "mlp.experts.down_proj");
    uint32_t width = (uint32_t)gate_up->dims[1] / 2, dim = (uint32_t)down->dims[1];
    devptr a = place(v, gate_up, experts[0].gate.data), b = place(v, down, experts[0].down.data);
    for (uint64_t e = 0; e < gate_up->dims[0]; e++) {
        experts[e].gate = slice(gate_up, a, e * 2 * width, width);
        experts[e].up = slice(gate_up, a, (e * 2 + 1) * width, width);
        experts[e].down = slice(down, b, e * dim, dim);
    }
}

static void visit_expert(struct visit *v, uint32_t i, uint32_t e, struct expert *x) {
    char name[64];
    const struct {
        const char *end;
        struct weight *w;
    } parts[] = {{"gate_proj", &x->gate}, {"up_proj", &x->up}, {"down_proj", &x->down}};
    for (int k = 0; k < 3; k++) {
        snprintf(name, sizeof name, "mlp.experts.%u.%s", e, parts[k].end);
        layer_linear(v, parts[k].w, i, name);
    }
}

static void visit_moe(struct visit *v, uint32_t i, struct layer_weights *l) {
    uint32_t count = checkpoint_config(v->c)->experts;
    matrix_of(v, &l->moe.router, find(v, i, "mlp.gate.weight"));
    matrix_of(v, &l->moe.shared_gate, find(v, i, "mlp.shared_expert_gate.weight"));
    layer_linear(v, &l->gate, i, "mlp.shared_expert.gate_proj");
    layer_linear(v, &l->up, i, "mlp.shared_expert.up_proj");
    layer_linear(v, &l->down, i, "mlp.shared_expert.down_proj");
    if (checkpoint_experts(v->c, v->prefix, i) == CHECKPOINT_EXPERTS_PACKED)
        visit_packed(v, i, l->moe.experts);
    else
        for (uint32_t e = 0; e < count; e++) visit_expert(v, i, e, &l->moe.experts[e]);
    uint64_t bytes = count * sizeof *l->moe.experts;
    if (v->carve)
        l->moe.dev_experts = carve_take(v->carve, bytes);
    else
        v->ops->write(v->ops->ctx, l->moe.dev_experts, l->moe.experts, bytes);
}

static void visit_mlp(struct visit *v, uint32_t i, struct layer_weights *l) {
    layer_linear(v, &l->gate, i, "mlp.gate_proj");
    layer_linear(v, &l->up, i, "mlp.up_proj");
    layer_linear(v, &l->down, i, "mlp.down_proj");
}

static void visit_layer(struct visit *v, uint32_t i, struct layer_weights *l) {
    vector_of(v, &l->in_scale, find(v, i, "input_layernorm.weight"), VECTOR_ONE_PLUS);
    vector_of(v, &l->post_scale, find(v, i, "post_attention_layernorm.weight"), VECTOR_ONE_PLUS);
    if (l->full)
        visit_attn(v, i, &l->attn);
    else
        visit_delta(v, i, &l->delta);
    if (l->moe.experts)
        visit_moe(v, i, l);
    else
        visit_mlp(v, i, l);
}

static void visit_embedding(struct visit *v, struct weight *ret) {
    const struct safetensors_tensor *t = checkpoint_text(v->c, "embed_tokens.weight");
    if (!v->w->embed_mapped) {
        matrix_of(v, ret, t);
        return;
    }
    *ret = (struct weight){
        .dtype = dtype_of(t), .rows = (uint32_t)t->dims[0], .cols = (uint32_t)t->dims[1]};
    if (v->carve) return;
    memcpy(v->load->embed_rows, t->data, t->bytes);
    ret->data = v->load->embed_mapped;
    count_done(v, t->bytes);
}

static void visit_all(struct visit *v) {
    struct weights *w = v->w;
    visit_embedding(v, &w->embed);
    for (uint32_t i = 0; i < w->layers_count; i++) visit_layer(v, i, &w->layers[i]);
    vector_of(v, &w->final_scale, checkpoint_text(v->c, "norm.weight"), VECTOR_ONE_PLUS);
    if (checkpoint_info(v->c)->tied)
        w->head = w->embed;
    else
        linear_of(v, &w->head, checkpoint_head_key(v->c));
}

void weights_map_embedding(struct weights *w, bool mapped) {
    if (w->embed_mapped != mapped) w->room = 0;
    w->embed_mapped = mapped;
}

uint64_t weights_embedding_bytes(const struct checkpoint *c) {
    return checkpoint_text(c, "embed_tokens.weight")->bytes;
}

void weights_fini(struct weights *w) {
    free(w->layers);
    free(w->experts);
    *w = (struct weights){0};
}

static void make_tables(struct weights *w, const struct model_config *cfg) {
    w->layers = mem_calloc(cfg->layers, sizeof *w->layers);
    w->layers_count = cfg->layers;
    if (cfg->moe) w->experts = mem_calloc((size_t)cfg->layers * cfg->experts, sizeof *w->experts);
    for (uint32_t i = 0; i < cfg->layers; i++) {
        w->layers[i].full = cfg->full[i];
        if (cfg->moe) w->layers[i].moe.experts = w->experts + (size_t)i * cfg->experts;
    }
}

void weights_carve(struct weights *w, const struct checkpoint *c, const struct ops *ops,
                   struct carve *carve, uint32_t rope_pairs) {
    const struct model_config *cfg = checkpoint_config(c);
    if (!w->layers) make_tables(w, cfg);
    w->bytes = checkpoint_info(c)->text_bytes;
    // On the CPU the others are read where the checkpoint lies.
    carve_begin(carve, ops->host_alloc ? "weights" : "weights made at load");
    if (w->room && !carve->base) { // measured before
        carve_take(carve, w->room);
        return;
    }
    uint64_t before = carve->used;
    w->rope_freq = carve_take(carve, rope_pairs * sizeof(float));
    visit_all(&(struct visit){
        .w = w, .c = c, .prefix = checkpoint_info(c)->text_prefix, .ops = ops, .carve = carve});
    w->room = carve->used - before;
}

int weights_fill(struct weights *w, const struct checkpoint *c, const struct ops *ops,
                 const struct weights_load *load, struct err *e) {
    if (load->on_load) load->on_load(load->arg, 0, w->bytes);
    visit_all(&(struct visit){
        .w = w, .c = c, .prefix = checkpoint_info(c)->text_prefix, .ops = ops, .load = load});
    ops->write(ops->ctx, w->rope_freq, load->rope_freq, load->rope_pairs * sizeof(float));
    int st = ops->sync(ops->ctx, e);
    if (!st && load->on_load) load->on_load(load->arg, w->bytes, w->bytes);
    return st;
}

// Columns first .. first + cols - 1 of a plain matrix, at `room`.
static void put_columns(struct visit *v, devptr room, const struct safetensors_tensor *t,
                        uint64_t first, uint64_t cols) {
    uint64_t rows = t->dims[0], size = dtype_bytes(dtype_of(t));
    char *p = mem_alloc(rows * cols * size);
    for (uint64_t i = 0; i < rows; i++)
        memcpy(p + i * cols * size, (const char *)t->data + (i * t->dims[1] + first) * size,
               cols * size);
    v->ops->write(v->ops->ctx, room, p, rows * cols * size);
    free(p);
}

static void plain_halves(struct visit *v, struct weight ret[2],
                         const struct safetensors_tensor *t) {
    uint64_t rows = t->dims[0], cols = t->dims[1] / 2;
    for (uint64_t i = 0; i < 2; i++) {
        struct weight *w = &ret[i];
        *w = (struct weight){
            .data = w->data, .dtype = dtype_of(t), .rows = (uint32_t)rows, .cols = (uint32_t)cols};
        if (v->carve)
            w->data = carve_take(v->carve, rows * cols * dtype_bytes(w->dtype));
        else
            put_columns(v, w->data, t, i * cols, cols);
    }
}

// A linear as two, of the first and the second half of its inputs, whose answers add up to its own. A trellis and the
// factors of its inputs stand input by input, so the halves of an EXL3 one are its own bytes.
static void halves_of(struct visit *v, struct weight ret[2], const char *key) {
    struct checkpoint_linear l = {0};
    struct err e = {0};
    int st = checkpoint_linear(v->c, key, &l, &e);
    assert(!st);
    if (!l.half_bits) {
        plain_halves(v, ret, l.main);
        return;
    }
    linear_of(v, &ret[0], key);
    ret[0].cols /= 2;
    ret[1] = ret[0];
    ret[1].data += l.main->bytes / 2;
    ret[1].exl3.suh += l.cols / 2 * sizeof(uint16_t);
    ret[1].exl3.bias = 0;
}

static void visit_mtp(struct visit *v, struct mtp_weights *w) {
    const struct {
        const char *name;
        devptr *to;
    } scales[] = {{"pre_fc_norm_embedding.weight", &w->embed_scale},
                  {"pre_fc_norm_hidden.weight", &w->hidden_scale},
                  {"norm.weight", &w->scale}};
    for (int i = 0; i < 3; i++)
        vector_of(v, scales[i].to, checkpoint_under(v->c, v->prefix, "%s", scales[i].name),
                  VECTOR_ONE_PLUS);
    halves_of(v, w->fc, CHECKPOINT_MTP_PREFIX "fc");
    visit_layer(v, 0, &w->layer);
}

void weights_mtp_carve(struct mtp_weights *w, const struct checkpoint *c, const struct ops *ops,
                       struct carve *carve) {
    const struct model_config *cfg = checkpoint_config(c);
    if (w->room && !carve->base) { // measured before
        carve_take(carve, w->room);
        return;
    }
    if (cfg->moe && !w->experts) w->experts = mem_calloc(cfg->experts, sizeof *w->experts);
    w->layer.full = true;
    w->layer.moe.experts = w->experts;
    uint64_t before = carve->used;
    visit_mtp(&(struct visit){.c = c, .prefix = CHECKPOINT_MTP_PREFIX, .ops = ops, .carve = carve},
              w);
    w->room = carve->used - before;
}

int weights_mtp_fill(struct mtp_weights *w, const struct checkpoint *c, const struct ops *ops,
                     struct err *e) {
    visit_mtp(&(struct visit){.c = c, .prefix = CHECKPOINT_MTP_PREFIX, .ops = ops}, w);
    return ops->sync(ops->ctx, e);
}

void weights_mtp_fini(struct mtp_weights *w) {
    free(w->experts);
    *w = (struct mtp_weights){0};
}
