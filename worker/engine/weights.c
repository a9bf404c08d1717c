/* weights: see weights.h. One walk over the layers (visit) serves both passes, so they cannot disagree. */
#include "worker/engine/weights.h"
#include "common/err.h"
#include "common/mem.h"
#include "kernels/delta/conv.h"
#include "kernels/math_f64.h"
#include "kernels/ops.h"
#include "worker/engine/carve.h"
#include "worker/engine/checkpoint.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>

enum vector_kind { VECTOR_PLAIN, VECTOR_ONE_PLUS, VECTOR_NEG_EXP, VECTOR_CONV };

struct visit {
    struct weights *w;
    const struct checkpoint *c;
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

static void matrix_of(struct visit *v, struct weight *ret, const struct safetensors_tensor *t) {
    assert(t && t->dims_count == 2);
    if (v->carve) {
        uint64_t room = v->ops->weight_room(v->ops->ctx, t->bytes);
        *ret = (struct weight){.data = room ? carve_take(v->carve, room) : 0,
                               .dtype = dtype_of(t),
                               .rows = (uint32_t)t->dims[0],
                               .cols = (uint32_t)t->dims[1]};
        return;
    }
    touch(t->data, t->bytes);
    ret->data = v->ops->weight_put(v->ops->ctx, ret->data, t->data, t->bytes);
    v->done_bytes += t->bytes;
    if (v->load->on_load) v->load->on_load(v->load->arg, v->done_bytes, v->w->bytes);
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
    return checkpoint_text(v->c, "layers.%u.%s", layer, name);
}

static void visit_attn(struct visit *v, uint32_t i, struct attn_weights *a) {
    matrix_of(v, &a->q, find(v, i, "self_attn.q_proj.weight"));
    matrix_of(v, &a->k, find(v, i, "self_attn.k_proj.weight"));
    matrix_of(v, &a->v, find(v, i, "self_attn.v_proj.weight"));
    matrix_of(v, &a->o, find(v, i, "self_attn.o_proj.weight"));
    vector_of(v, &a->q_scale, find(v, i, "self_attn.q_norm.weight"), VECTOR_ONE_PLUS);
    vector_of(v, &a->k_scale, find(v, i, "self_attn.k_norm.weight"), VECTOR_ONE_PLUS);
}

static void visit_delta(struct visit *v, uint32_t i, struct delta_weights *d) {
    matrix_of(v, &d->qkv, find(v, i, "linear_attn.in_proj_qkv.weight"));
    matrix_of(v, &d->z, find(v, i, "linear_attn.in_proj_z.weight"));
    matrix_of(v, &d->b, find(v, i, "linear_attn.in_proj_b.weight"));
    matrix_of(v, &d->a, find(v, i, "linear_attn.in_proj_a.weight"));
    matrix_of(v, &d->out, find(v, i, "linear_attn.out_proj.weight"));
    vector_of(v, &d->conv, find(v, i, "linear_attn.conv1d.weight"), VECTOR_CONV);
    vector_of(v, &d->neg_a, find(v, i, "linear_attn.A_log"), VECTOR_NEG_EXP);
    vector_of(v, &d->dt_bias, find(v, i, "linear_attn.dt_bias"), VECTOR_PLAIN);
    vector_of(v, &d->norm, find(v, i, "linear_attn.norm.weight"), VECTOR_PLAIN);
}

static void visit_layer(struct visit *v, uint32_t i, struct layer_weights *l) {
    vector_of(v, &l->in_scale, find(v, i, "input_layernorm.weight"), VECTOR_ONE_PLUS);
    vector_of(v, &l->post_scale, find(v, i, "post_attention_layernorm.weight"), VECTOR_ONE_PLUS);
    if (l->full)
        visit_attn(v, i, &l->attn);
    else
        visit_delta(v, i, &l->delta);
    matrix_of(v, &l->gate, find(v, i, "mlp.gate_proj.weight"));
    matrix_of(v, &l->up, find(v, i, "mlp.up_proj.weight"));
    matrix_of(v, &l->down, find(v, i, "mlp.down_proj.weight"));
}

static void visit_all(struct visit *v) {
    const struct safetensors_tensor *embed = checkpoint_text(v->c, "embed_tokens.weight");
    struct weights *w = v->w;
    matrix_of(v, &w->embed, embed);
    for (uint32_t i = 0; i < w->layers_count; i++) visit_layer(v, i, &w->layers[i]);
    vector_of(v, &w->final_scale, checkpoint_text(v->c, "norm.weight"), VECTOR_ONE_PLUS);
    if (checkpoint_head(v->c) == embed)
        w->head = w->embed;
    else
        matrix_of(v, &w->head, checkpoint_head(v->c));
}

void weights_fini(struct weights *w) {
    free(w->layers);
    *w = (struct weights){0};
}

void weights_carve(struct weights *w, const struct checkpoint *c, const struct ops *ops,
                   struct carve *carve, uint32_t rope_pairs) {
    const struct model_config *cfg = checkpoint_config(c);
    if (!w->layers) w->layers = mem_calloc(cfg->layers, sizeof *w->layers);
    w->layers_count = cfg->layers;
    w->bytes = checkpoint_info(c)->text_bytes;
    for (uint32_t i = 0; i < cfg->layers; i++) w->layers[i].full = cfg->full[i];
    carve_begin(carve, "weights");
    w->rope_freq = carve_take(carve, rope_pairs * sizeof(float));
    visit_all(&(struct visit){.w = w, .c = c, .ops = ops, .carve = carve});
}

int weights_fill(struct weights *w, const struct checkpoint *c, const struct ops *ops,
                 const struct weights_load *load, struct err *e) {
    visit_all(&(struct visit){.w = w, .c = c, .ops = ops, .load = load});
    ops->write(ops->ctx, w->rope_freq, load->rope_freq, load->rope_pairs * sizeof(float));
    if (load->on_load) load->on_load(load->arg, w->bytes, w->bytes);
    return ops->sync(ops->ctx, e);
}
