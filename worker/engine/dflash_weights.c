/* dflash_weights: see dflash_weights.h. */
#include "worker/engine/dflash_weights.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/err.h"
#include "common/mem.h"
#include "common/num.h"
#include "common/strbuf.h"
#include "kernels/draft/q4_pack.h"
#include "kernels/ops.h"
#include "worker/engine/carve.h"
#include "worker/engine/json_text.h"
#include "worker/engine/model_config.h"
#include "worker/engine/rope_rule.h"
#include "worker/engine/safetensors.h"

enum {
    NAME_BYTES = 128,
    SHAPE_BYTES = 96,
    TOP_LEVEL = -1, // of a tensor that belongs to no layer
    PIECE_GROUPS_MAX = 1 << 20,
    QUANTIZE_STEP = 64, // both sizes of a quantised matrix are multiples of it
};

enum mode { CHECK, CARVE, LOAD };

struct visit {
    struct dflash_weights *w;
    enum mode mode;
    struct carve *carve;
    bool *seen; // by tensor of the file
    struct err *e;
    int st;
    devptr scratch; // of LOAD
    uint64_t scratch_bytes;
};

static const char *name_of(const struct visit *v, int layer, const char *name, char *ret) {
    if (layer == TOP_LEVEL)
        snprintf(ret, NAME_BYTES, "%s%s", v->w->prefix, name);
    else
        snprintf(ret, NAME_BYTES, "%slayers.%d.%s", v->w->prefix, layer, name);
    return ret;
}

static const struct safetensors_tensor *find(const struct visit *v, int layer, const char *name) {
    char key[NAME_BYTES];
    return safetensors_find(v->w->file, name_of(v, layer, name, key));
}

static void refuse(struct visit *v, const char *name, const char *wanted, const char *found) {
    if (!v->st)
        v->st = err_set(v->e, ST_CORRUPT, "file '%s': tensor '%s': wanted %s, found %s",
                        safetensors_path(v->w->file), name, wanted, found);
}

static enum safetensors_dtype file_dtype(enum dtype d) {
    return d == DTYPE_F32 ? SAFETENSORS_F32 : d == DTYPE_F16 ? SAFETENSORS_F16 : SAFETENSORS_BF16;
}

static bool is_plain(enum safetensors_dtype d) {
    return d == SAFETENSORS_F32 || d == SAFETENSORS_F16 || d == SAFETENSORS_BF16;
}

struct shape {
    uint32_t count;
    uint64_t dims[3];
};

// exact: of the config's type, because its place follows from it.
static const struct safetensors_tensor *check(struct visit *v, int layer, const char *name,
                                              const struct shape *s, bool exact) {
    char key[NAME_BYTES], wanted[SHAPE_BYTES], found[SHAPE_BYTES];
    const struct safetensors_tensor *t = find(v, layer, name);
    name_of(v, layer, name, key);
    safetensors_shape_text(s->dims, s->count, wanted, sizeof wanted);
    if (!t) {
        refuse(v, key, wanted, "no such tensor");
        return NULL;
    }
    v->seen[t - safetensors_at(v->w->file, 0)] = true;
    safetensors_shape_text(t->dims, t->dims_count, found, sizeof found);
    if (t->dims_count != s->count || memcmp(t->dims, s->dims, s->count * sizeof *s->dims) != 0)
        refuse(v, key, wanted, found);
    enum safetensors_dtype d = file_dtype(v->w->cfg->dtype);
    if (exact && t->dtype != d) {
        snprintf(wanted, sizeof wanted, "%s (dtype of its config)", safetensors_dtype_name(d));
        refuse(v, key, wanted, safetensors_dtype_name(t->dtype));
    } else if (!is_plain(t->dtype)) {
        refuse(v, key, "BF16, F16 or F32", safetensors_dtype_name(t->dtype));
    }
    return t;
}

static bool quantised(const struct dflash_weights *w, uint32_t rows, uint32_t cols) {
    return w->quantize_min && rows % QUANTIZE_STEP == 0 && cols % QUANTIZE_STEP == 0 &&
           (uint64_t)rows * cols >= w->quantize_min;
}

static void carve_matrix(struct visit *v, struct dflash_matrix *m, uint32_t rows, uint32_t cols) {
    *m = (struct dflash_matrix){.plain = {.dtype = v->w->cfg->dtype, .rows = rows, .cols = cols}};
    if (quantised(v->w, rows, cols)) {
        m->q4 = (struct q4){.codes = carve_take(v->carve, q4_codes_bytes(rows, cols)),
                            .factors = carve_take(v->carve, q4_factors_bytes(rows, cols)),
                            .rows = rows,
                            .cols = cols};
        return;
    }
    uint64_t room = v->w->ops->weight_room(v->w->ops->ctx,
                                           (uint64_t)rows * cols * dtype_bytes(v->w->cfg->dtype));
    m->plain.data = room ? carve_take(v->carve, room) : 0;
}

// By way of v->scratch, where the device cannot read the file. Groups stand one behind another, so any count of them is a matrix.
static void pack_pieces(struct visit *v, const struct dflash_matrix *m,
                        const struct safetensors_tensor *t) {
    const struct ops *o = v->w->ops;
    uint64_t groups = (uint64_t)m->q4.rows * m->q4.cols / Q4_GROUP, n;
    uint64_t group_bytes = (uint64_t)Q4_GROUP * dtype_bytes(m->plain.dtype);
    assert(v->scratch_bytes >= group_bytes);
    for (uint64_t at = 0; at < groups; at += n) {
        n = min_u64(groups - at, min_u64(v->scratch_bytes / group_bytes, PIECE_GROUPS_MAX));
        struct q4_pack_args a = {.from = m->plain, .to = m->q4};
        a.from.data = v->scratch;
        a.from.rows = a.to.rows = (uint32_t)n;
        a.from.cols = a.to.cols = Q4_GROUP;
        a.to.codes += q4_codes_bytes(1, Q4_GROUP) * at;
        a.to.factors += q4_factors_bytes(1, Q4_GROUP) * at;
        o->write(o->ctx, v->scratch, (const char *)t->data + at * group_bytes, n * group_bytes);
        o->q4_pack(o->ctx, &a);
    }
}

static void load_matrix(struct visit *v, struct dflash_matrix *m,
                        const struct safetensors_tensor *t) {
    const struct ops *o = v->w->ops;
    if (m->q4.rows && o->weight_room(o->ctx, t->bytes)) {
        pack_pieces(v, m, t);
        return;
    }
    m->plain.data = o->weight_put(o->ctx, m->plain.data, t->data, t->bytes);
    if (m->q4.rows) o->q4_pack(o->ctx, &(struct q4_pack_args){.from = m->plain, .to = m->q4});
}

static void matrix(struct visit *v, struct dflash_matrix *m, int layer, const char *name,
                   uint32_t rows, uint32_t cols) {
    switch (v->mode) {
    case CHECK: check(v, layer, name, &(struct shape){2, {rows, cols}}, true); break;
    case CARVE: carve_matrix(v, m, rows, cols); break;
    case LOAD: load_matrix(v, m, find(v, layer, name)); break;
    }
}

// Of any shape, as fp32.
static void vector(struct visit *v, devptr *ret, int layer, const char *name, struct shape s) {
    uint64_t count = 1;
    for (uint32_t i = 0; i < s.count; i++) count *= s.dims[i];
    switch (v->mode) {
    case CHECK: check(v, layer, name, &s, false); break;
    case CARVE: *ret = carve_take(v->carve, count * sizeof(float)); break;
    case LOAD: {
        float *x = mem_alloc(count * sizeof *x);
        safetensors_to_f32(find(v, layer, name), 0, count, x);
        v->w->ops->write(v->w->ops->ctx, *ret, x, count * sizeof *x);
        free(x);
    }
    }
}

static void visit_conv(struct visit *v, struct dflash_conv *conv, int layer, const char *name) {
    const struct dflash_config *c = v->w->cfg;
    char key[NAME_BYTES / 2];
    snprintf(key, sizeof key, "%s.base_kernel", name);
    vector(v, &conv->base, layer, key, (struct shape){3, {2, c->conv_taps, c->hidden}});
    snprintf(key, sizeof key, "%s.kernel_projection.weight", name);
    matrix(v, &conv->projection, layer, key, 2 * c->conv_taps * (c->hidden / c->conv_group),
           c->hidden);
}

static void visit_layer(struct visit *v, int i) {
    const struct dflash_config *c = v->w->cfg;
    struct dflash_layer *l = &v->w->layers[i];
    struct shape hidden = {1, {c->hidden}}, head = {1, {c->head_dim}};
    uint32_t q = c->heads * c->head_dim, kv = c->kv_heads * c->head_dim;
    vector(v, &l->in_scale, i, "input_layernorm.weight", hidden);
    vector(v, &l->post_scale, i, "post_attention_layernorm.weight", hidden);
    matrix(v, &l->q, i, "self_attn.q_proj.weight", q, c->hidden);
    matrix(v, &l->k, i, "self_attn.k_proj.weight", kv, c->hidden);
    matrix(v, &l->v, i, "self_attn.v_proj.weight", kv, c->hidden);
    matrix(v, &l->o, i, "self_attn.o_proj.weight", c->hidden, q);
    vector(v, &l->q_scale, i, "self_attn.q_norm.weight", head);
    vector(v, &l->k_scale, i, "self_attn.k_norm.weight", head);
    matrix(v, &l->gate, i, "mlp.gate_proj.weight", c->intermediate, c->hidden);
    matrix(v, &l->up, i, "mlp.up_proj.weight", c->intermediate, c->hidden);
    matrix(v, &l->down, i, "mlp.down_proj.weight", c->hidden, c->intermediate);
    if (!c->v2) return;
    visit_conv(v, &l->attn_conv, i, "attention_conv");
    visit_conv(v, &l->mlp_conv, i, "mlp_conv");
}

// Its name may end in .weight. Stays in the mapping; touched once at load so that no round waits for a disk.
static void codebook(struct visit *v, const struct safetensors_tensor **ret, const char *name) {
    char key[NAME_BYTES / 2];
    snprintf(key, sizeof key, "%s.weight", name);
    if (v->mode == CARVE) return;
    if (!find(v, TOP_LEVEL, key)) snprintf(key, sizeof key, "%s", name);
    if (v->mode == CHECK) {
        struct shape s = {2, {v->w->cfg->vocab, v->w->cfg->rank}};
        *ret = check(v, TOP_LEVEL, key, &s, false);
        return;
    }
    const volatile unsigned char *b = (*ret)->data;
    for (uint64_t i = 0; i < (*ret)->bytes; i += 4096) (void)b[i];
}

static void rope_frequencies(struct visit *v) {
    const struct dflash_config *c = v->w->cfg;
    uint32_t pairs = c->head_dim / 2;
    if (v->mode == CARVE) v->w->rope_freq = carve_take(v->carve, pairs * sizeof(float));
    if (v->mode != LOAD) return;
    float *freq = mem_alloc(pairs * sizeof *freq);
    struct rope_rule rule;
    rope_rule_make(&rule, freq,
                   &(struct model_rope){.type = MODEL_ROPE_DEFAULT,
                                        .theta = c->rope_theta,
                                        .rotary_dim = c->head_dim});
    v->w->ops->write(v->w->ops->ctx, v->w->rope_freq, freq, pairs * sizeof *freq);
    free(freq);
}

static void visit_all(struct visit *v) {
    struct dflash_weights *w = v->w;
    const struct dflash_config *c = w->cfg;
    struct shape hidden = {1, {c->hidden}};
    matrix(v, &w->fc, TOP_LEVEL, "fc.weight", c->hidden, c->taps_count * c->hidden);
    vector(v, &w->hidden_norm, TOP_LEVEL, "hidden_norm.weight", hidden);
    vector(v, &w->norm, TOP_LEVEL, "norm.weight", hidden);
    rope_frequencies(v);
    for (uint32_t i = 0; i < c->layers; i++) visit_layer(v, (int)i);
    if (!c->v2) return;
    matrix(v, &w->hidden_projection, TOP_LEVEL, "candidate_selector.hidden_projection.weight",
           c->rank, c->hidden);
    codebook(v, &w->predecessor, "candidate_selector.predecessor_codebook");
    codebook(v, &w->successor, "candidate_selector.successor_codebook");
}

void dflash_weights_init(struct dflash_weights *w, const struct dflash_config *cfg,
                         const struct ops *ops, uint64_t quantize_min) {
    *w =
        (struct dflash_weights){.cfg = cfg, .ops = ops, .quantize_min = quantize_min, .prefix = ""};
}

static int check_tensors(struct dflash_weights *w, struct err *e) {
    char clean[JSON_TEXT_BYTES];
    uint32_t count = safetensors_count(w->file);
    struct visit v = {.w = w, .mode = CHECK, .e = e, .seen = mem_calloc(count + 1, sizeof(bool))};
    if (safetensors_find(w->file, "model.fc.weight")) w->prefix = "model.";
    visit_all(&v);
    for (uint32_t i = 0; i < count; i++)
        if (!v.seen[i])
            refuse(&v, json_text_clean(clean, safetensors_at(w->file, i)->name),
                   "no tensor but those of its config", "this one");
    free(v.seen);
    return v.st;
}

int dflash_weights_open(struct dflash_weights *w, const char *dir, struct err *e) {
    struct strbuf path = {0};
    strbuf_printf(&path, "%s/model.safetensors", dir);
    int st = safetensors_open(&w->file, strbuf_str(&path), e);
    if (!st) st = check_tensors(w, e);
    strbuf_fini(&path);
    return st;
}

void dflash_weights_close(struct dflash_weights *w) {
    safetensors_close(w->file);
    w->file = NULL;
}

void dflash_weights_carve(struct dflash_weights *w, struct carve *c) {
    uint64_t before = c->used;
    visit_all(&(struct visit){.w = w, .mode = CARVE, .carve = c});
    w->carved_bytes = c->used - before;
}

void dflash_weights_load(struct dflash_weights *w, devptr scratch, uint64_t bytes) {
    visit_all(&(struct visit){.w = w, .mode = LOAD, .scratch = scratch, .scratch_bytes = bytes});
}
