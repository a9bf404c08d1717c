/* checkpoint_shapes: the tensors that a text model and its MTP head need, one line each, checked against the files. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "common/err.h"
#include "worker/engine/checkpoint.h"
#include "worker/engine/checkpoint_linear.h"

enum { NAME_BYTES = 128, SHAPE_BYTES = 96 };

struct checker {
    const struct checkpoint *c;
    const char *prefix; // of the names below
    struct err *e;
    int st; // the first failure; later checks do nothing
};

static bool usable(enum safetensors_dtype d) {
    return d == SAFETENSORS_BF16 || d == SAFETENSORS_F16 || d == SAFETENSORS_F32;
}

// The folder's name, of *ret_len bytes.
static const char *folder_of(const struct checkpoint *c, int *ret_len) {
    const char *file = checkpoint_count(c) ? checkpoint_at(c, 0)->path : "",
               *end = strrchr(file, '/');
    *ret_len = end ? (int)(end - file) : 0;
    return file;
}

// The tensor is not there. A quantised one in its place is a form we know.
static int refuse_missing(struct checker *k, const char *name) {
    const struct checkpoint *c = k->c;
    const char *prefix = k->prefix;
    size_t n = strlen(name), cut = strlen(".weight");
    bool weight = n > cut && strcmp(name + n - cut, ".weight") == 0;
    int stem = (int)(weight ? n - cut : n);
    const char *form = NULL;
    if (checkpoint_under(c, prefix, "%.*s.trellis", stem, name)) form = "EXL3 ('.trellis')";
    if (checkpoint_under(c, prefix, "%.*s.slice.0.trellis", stem, name))
        form = "EXL3 in slices ('.slice.0.trellis')";
    if (checkpoint_under(c, prefix, "%.*s.qweight", stem, name)) form = "GPTQ or AWQ ('.qweight')";
    if (form)
        return err_set(k->e, ST_UNSUPPORTED,
                       "tensor '%s%s': wanted plain weights, found %s, not in this build", prefix,
                       name, form);
    int dir;
    const char *folder = folder_of(c, &dir);
    return err_set(k->e, ST_CORRUPT, "folder '%.*s': tensor '%s%s': wanted, found in no file", dir,
                   folder, prefix, name);
}

static void check_tensor(struct checker *k, const struct safetensors_tensor *t,
                         const uint64_t *dims, uint32_t dims_count) {
    char want[SHAPE_BYTES], found[SHAPE_BYTES];
    if (!usable(t->dtype)) {
        k->st = err_set(k->e, ST_UNSUPPORTED,
                        "file '%s': tensor '%s': wanted BF16, F16 or F32, found %s", t->path,
                        t->name, safetensors_dtype_name(t->dtype));
        return;
    }
    if (t->dims_count == dims_count && memcmp(t->dims, dims, dims_count * sizeof *dims) == 0)
        return;
    safetensors_shape_text(dims, dims_count, want, sizeof want);
    safetensors_shape_text(t->dims, t->dims_count, found, sizeof found);
    k->st = err_set(k->e, ST_CORRUPT, "file '%s': tensor '%s': wanted shape %s, found %s", t->path,
                    t->name, want, found);
}

struct shape {
    uint64_t dims[3]; // 0: no such dimension
};

static void need(struct checker *k, struct shape s, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
static void need(struct checker *k, struct shape s, const char *fmt, ...) {
    if (k->st) return;
    char name[NAME_BYTES];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(name, sizeof name, fmt, ap);
    va_end(ap);
    const struct safetensors_tensor *t = checkpoint_under(k->c, k->prefix, "%s", name);
    uint32_t n = s.dims[1] == 0 ? 1 : s.dims[2] == 0 ? 2 : 3;
    if (t)
        check_tensor(k, t, s.dims, n);
    else
        k->st = refuse_missing(k, name);
}

static void check_linear(struct checker *k, const char *key, uint64_t rows, uint64_t cols) {
    char want[SHAPE_BYTES], found[SHAPE_BYTES];
    struct checkpoint_linear l;
    k->st = checkpoint_linear(k->c, key, &l, k->e);
    if (k->st) return;
    if (!l.half_bits) {
        check_tensor(k, l.main, (const uint64_t[]){rows, cols}, 2);
        return;
    }
    if (l.rows == rows && l.cols == cols) return;
    // A trellis counts its channels by 16; what no trellis can have is said in channels.
    safetensors_shape_text(l.main->dims, 3, found, sizeof found);
    if (rows % EXL3_BLOCK || cols % EXL3_BLOCK)
        snprintf(want, sizeof want, "%llu inputs and %llu outputs", (unsigned long long)cols,
                 (unsigned long long)rows);
    else
        snprintf(want, sizeof want, "shape [%llu, %llu, %llu]", (unsigned long long)cols / 16,
                 (unsigned long long)rows / 16, (unsigned long long)l.main->dims[2]);
    k->st = err_set(k->e, ST_CORRUPT, "file '%s': tensor '%s': wanted %s, found %s", l.main->path,
                    l.main->name, want, found);
}

// A linear, plain or EXL3.
static void need_linear(struct checker *k, uint64_t rows, uint64_t cols, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
static void need_linear(struct checker *k, uint64_t rows, uint64_t cols, const char *fmt, ...) {
    if (k->st) return;
    char key[NAME_BYTES + 32], weight[NAME_BYTES + 64];
    va_list ap;
    int n = snprintf(key, sizeof key, "%s", k->prefix);
    va_start(ap, fmt);
    vsnprintf(key + n, sizeof key - (size_t)n, fmt, ap);
    va_end(ap);
    check_linear(k, key, rows, cols);
    if (k->st != ST_NOT_FOUND) return;
    snprintf(weight, sizeof weight, "%s.weight", key + n);
    k->st = refuse_missing(k, weight);
}

static void need_attention(struct checker *k, const struct model_config *m, uint32_t i) {
    uint64_t D = m->hidden, d = m->head_dim, q = m->heads * d, kv = m->kv_heads * d;
    need_linear(k, 2 * q, D, "layers.%u.self_attn.q_proj", i); // query and gate
    need_linear(k, kv, D, "layers.%u.self_attn.k_proj", i);
    need_linear(k, kv, D, "layers.%u.self_attn.v_proj", i);
    need_linear(k, D, q, "layers.%u.self_attn.o_proj", i);
    need(k, (struct shape){{d}}, "layers.%u.self_attn.q_norm.weight", i);
    need(k, (struct shape){{d}}, "layers.%u.self_attn.k_norm.weight", i);
}

static void need_delta(struct checker *k, const struct model_config *m, uint32_t i) {
    uint64_t D = m->hidden, nv = m->linear_value_heads;
    uint64_t v = model_config_linear_value_width(m), conv = model_config_linear_conv_width(m);
    need_linear(k, conv, D, "layers.%u.linear_attn.in_proj_qkv", i);
    need_linear(k, v, D, "layers.%u.linear_attn.in_proj_z", i);
    need_linear(k, nv, D, "layers.%u.linear_attn.in_proj_b", i);
    need_linear(k, nv, D, "layers.%u.linear_attn.in_proj_a", i);
    need(k, (struct shape){{conv, 1, m->linear_conv}}, "layers.%u.linear_attn.conv1d.weight", i);
    need(k, (struct shape){{nv}}, "layers.%u.linear_attn.A_log", i);
    need(k, (struct shape){{nv}}, "layers.%u.linear_attn.dt_bias", i);
    need(k, (struct shape){{m->linear_value_dim}}, "layers.%u.linear_attn.norm.weight", i);
    need_linear(k, D, v, "layers.%u.linear_attn.out_proj", i);
}

static void need_mlp(struct checker *k, const char *stem, uint64_t D, uint64_t I) {
    need_linear(k, I, D, "%s.gate_proj", stem);
    need_linear(k, I, D, "%s.up_proj", stem);
    need_linear(k, D, I, "%s.down_proj", stem);
}

static void need_experts(struct checker *k, const struct model_config *m, uint32_t i) {
    uint64_t D = m->hidden, I = m->expert_width, E = m->experts;
    char stem[NAME_BYTES / 2];
    if (checkpoint_experts(k->c, k->prefix, i) == CHECKPOINT_EXPERTS_PACKED) {
        need(k, (struct shape){{E, 2 * I, D}}, "layers.%u.mlp.experts.gate_up_proj", i);
        need(k, (struct shape){{E, D, I}}, "layers.%u.mlp.experts.down_proj", i);
        return;
    }
    for (uint32_t e = 0; e < m->experts && !k->st; e++) {
        snprintf(stem, sizeof stem, "layers.%u.mlp.experts.%u", i, e);
        need_mlp(k, stem, D, I);
    }
    const struct safetensors_tensor *more = checkpoint_under(
        k->c, k->prefix, "layers.%u.mlp.experts.%u.gate_proj.weight", i, m->experts);
    if (!more)
        more = checkpoint_under(k->c, k->prefix, "layers.%u.mlp.experts.%u.gate_proj.trellis", i,
                                m->experts);
    if (more && !k->st)
        k->st = err_set(k->e, ST_CORRUPT,
                        "file '%s': tensor '%s': wanted %u experts (num_experts), found more",
                        more->path, more->name, m->experts);
}

static void need_moe(struct checker *k, const struct model_config *m, uint32_t i) {
    char stem[NAME_BYTES / 2];
    snprintf(stem, sizeof stem, "layers.%u.mlp.shared_expert", i);
    need(k, (struct shape){{m->experts, m->hidden}}, "layers.%u.mlp.gate.weight", i);
    need(k, (struct shape){{1, m->hidden}}, "layers.%u.mlp.shared_expert_gate.weight", i);
    need_mlp(k, stem, m->hidden, m->shared_expert_width);
    need_experts(k, m, i);
}

static void need_layer(struct checker *k, const struct model_config *m, uint32_t i, bool full) {
    uint64_t D = m->hidden;
    char stem[NAME_BYTES / 2];
    need(k, (struct shape){{D}}, "layers.%u.input_layernorm.weight", i);
    need(k, (struct shape){{D}}, "layers.%u.post_attention_layernorm.weight", i);
    if (full)
        need_attention(k, m, i);
    else
        need_delta(k, m, i);
    snprintf(stem, sizeof stem, "layers.%u.mlp", i);
    if (m->moe)
        need_moe(k, m, i);
    else
        need_mlp(k, stem, D, m->intermediate);
}

int checkpoint_check_shapes(const struct checkpoint *c, struct err *e) {
    const struct model_config *m = checkpoint_config(c);
    struct checker k = {c, checkpoint_info(c)->text_prefix, e, ST_OK};
    uint64_t V = m->vocab, D = m->hidden;
    need(&k, (struct shape){{V, D}}, "embed_tokens.weight");
    need(&k, (struct shape){{D}}, "norm.weight");
    for (uint32_t i = 0; i < m->layers && !k.st; i++) need_layer(&k, m, i, m->full[i]);
    if (!k.st) check_linear(&k, checkpoint_head_key(c), V, D);
    // More layers than the config says: the files are not this config's.
    if (!k.st && checkpoint_text(c, "layers.%u.input_layernorm.weight", m->layers))
        k.st = err_set(e, ST_CORRUPT,
                       "tensor '%slayers.%u.input_layernorm.weight': wanted %u layers "
                       "(num_hidden_layers), found more",
                       checkpoint_info(c)->text_prefix, m->layers, m->layers);
    return k.st;
}

static bool one_of(const char *s, const char *const *names, size_t count) {
    for (size_t i = 0; i < count; i++)
        if (!strcmp(s, names[i])) return true;
    return false;
}

// Whether a tensor of the MTP head is one that need_layer or checkpoint_check_mtp asks for, or goes with one.
static bool known_mtp(const char *name) {
    static const char *const ends[] = {"weight", "trellis", "suh",  "svh", "su",
                                       "sv",     "mcg",     "mul1", "bias"};
    static const char *const stems[] = {"fc",
                                        "norm",
                                        "pre_fc_norm_embedding",
                                        "pre_fc_norm_hidden",
                                        "layers.0.input_layernorm",
                                        "layers.0.post_attention_layernorm",
                                        "layers.0.self_attn.q_proj",
                                        "layers.0.self_attn.k_proj",
                                        "layers.0.self_attn.v_proj",
                                        "layers.0.self_attn.o_proj",
                                        "layers.0.self_attn.q_norm",
                                        "layers.0.self_attn.k_norm",
                                        "layers.0.mlp.gate_proj",
                                        "layers.0.mlp.up_proj",
                                        "layers.0.mlp.down_proj",
                                        "layers.0.mlp.gate",
                                        "layers.0.mlp.shared_expert_gate",
                                        "layers.0.mlp.shared_expert.gate_proj",
                                        "layers.0.mlp.shared_expert.up_proj",
                                        "layers.0.mlp.shared_expert.down_proj"};
    static const char *const packed[] = {"layers.0.mlp.experts.gate_up_proj",
                                         "layers.0.mlp.experts.down_proj"};
    static const char *const parts[] = {"gate_proj", "up_proj", "down_proj"};
    char stem[SAFETENSORS_NAME_BYTES_MAX + 1];
    if (one_of(name, packed, sizeof packed / sizeof *packed)) return true;
    const char *dot = strrchr(name, '.');
    if (!dot || !one_of(dot + 1, ends, sizeof ends / sizeof *ends)) return false;
    snprintf(stem, sizeof stem, "%.*s", (int)(dot - name), name);
    if (one_of(stem, stems, sizeof stems / sizeof *stems)) return true;
    unsigned expert; // need_experts has counted them
    int n = 0;
    return sscanf(stem, "layers.0.mlp.experts.%u.%n", &expert, &n) == 1 && n &&
           one_of(stem + n, parts, sizeof parts / sizeof *parts);
}

static int refuse_unknown(const struct checkpoint *c, struct err *e) {
    const size_t n = strlen(CHECKPOINT_MTP_PREFIX);
    for (uint32_t i = 0; i < checkpoint_count(c); i++) {
        const struct safetensors_tensor *t = checkpoint_at(c, i);
        if (strncmp(t->name, CHECKPOINT_MTP_PREFIX, n) || known_mtp(t->name + n)) continue;
        return err_set(e, ST_UNSUPPORTED,
                       "file '%s': tensor '%s': wanted an MTP head of one layer that shares "
                       "embedding and head, found this too",
                       t->path, t->name);
    }
    return ST_OK;
}

int checkpoint_check_mtp(const struct checkpoint *c, struct err *e) {
    const struct model_config *m = checkpoint_config(c);
    struct checker k = {c, CHECKPOINT_MTP_PREFIX, e, ST_OK};
    uint64_t D = m->hidden;
    int dir;
    const char *folder = folder_of(c, &dir);
    if (!checkpoint_info(c)->mtp_tensors)
        return err_set(e, ST_UNSUPPORTED,
                       "folder '%.*s': wanted an MTP head (tensors 'mtp.*'), found none", dir,
                       folder);
    if (m->mtp_layers > 1)
        return err_set(e, ST_UNSUPPORTED, "mtp_num_hidden_layers: wanted 1, found %u",
                       m->mtp_layers);
    if (m->mtp_dedicated_embeddings)
        return err_set(e, ST_UNSUPPORTED, "mtp_use_dedicated_embeddings: wanted false, found true");
    need(&k, (struct shape){{D}}, "pre_fc_norm_embedding.weight");
    need(&k, (struct shape){{D}}, "pre_fc_norm_hidden.weight");
    need(&k, (struct shape){{D}}, "norm.weight");
    need_linear(&k, D, 2 * D, "fc");
    need_layer(&k, m, 0, true);
    return k.st ? k.st : refuse_unknown(c, e);
}
