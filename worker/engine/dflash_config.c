/* dflash_config: see dflash_config.h. */
#include "worker/engine/dflash_config.h"

#include <math.h>
#include <string.h>

#include "common/err.h"
#include "common/planted.h"
#include "worker/engine/json_read.h"
#include "worker/engine/json_text.h"
#include "worker/engine/model_config.h"

enum { TOP_V1 = 16, TRUNCATED_LAYERS = 4 };

struct places { // where a key may stand
    struct json_reader *top, *inner;
};

static const char architectures_wanted[] = "[\"DFlashDraftModel\"] or [\"DFlash2DraftModel\"]";

static void read_family(struct json_reader *r, struct dflash_config *c) {
    char found[JSON_TEXT_BYTES];
    const json_t *list = json_read_any(r, "architectures");
    const char *s = json_string_value(json_array_get(list, 0));
    c->v2 = s && !strcmp(s, "DFlash2DraftModel");
    if (json_array_size(list) != 1 || !s || (!c->v2 && strcmp(s, "DFlashDraftModel") != 0))
        json_read_refuse(r, ST_UNSUPPORTED, "architectures", "wanted %s, found %s",
                         architectures_wanted,
                         s ? json_text_clean(found, s) : json_text(found, list));
    if (!json_read_any(r, "model_type"))
        json_read_refuse(r, ST_UNSUPPORTED, "model_type", "wanted qwen3, found nothing");
    json_read_word(r, "model_type", "qwen3", "qwen3");
    if (json_read_any(r, "quantization_config"))
        json_read_refuse(r, ST_UNSUPPORTED, "quantization_config",
                         "wanted plain weights, found %s (quantised drafters: not in this build)",
                         json_text(found, json_read_any(r, "quantization_config")));
}

static void need_equal(struct json_reader *r, const char *key, uint32_t found, uint32_t wanted,
                       const char *what) {
    if (found != wanted)
        json_read_refuse(r, ST_INVAL, key, "wanted %u (%s of the target), found %u", wanted, what,
                         found);
}

static void read_dtype(struct json_reader *r, struct dflash_config *c) {
    const char *key = json_read_any(r, "dtype") ? "dtype" : "torch_dtype";
    const char *s = json_read_word(r, key, "bfloat16", "bfloat16|float16|float32");
    c->dtype = !strcmp(s, "float32") ? DTYPE_F32 : !strcmp(s, "float16") ? DTYPE_F16 : DTYPE_BF16;
}

static void read_sizes(struct json_reader *r, struct dflash_config *c,
                       const struct dflash_target *t) {
    c->hidden = json_read_needed_u32(r, "hidden_size", 1, MODEL_HIDDEN_MAX);
    c->vocab = json_read_needed_u32(r, "vocab_size", 1, MODEL_VOCAB_MAX);
    need_equal(r, "hidden_size", c->hidden, t->hidden, "hidden_size");
    need_equal(r, "vocab_size", c->vocab, t->vocab, "vocab_size");
    c->intermediate = json_read_needed_u32(r, "intermediate_size", 1, MODEL_WIDTH_MAX);
    c->layers = json_read_needed_u32(r, "num_hidden_layers", 1, DFLASH_LAYERS_MAX);
    c->heads = json_read_needed_u32(r, "num_attention_heads", 1, MODEL_HEADS_MAX);
    c->kv_heads = json_read_u32(r, "num_key_value_heads", c->heads, 1 - PLANTED, MODEL_HEADS_MAX);
    c->head_dim = json_read_u32(r, "head_dim", c->hidden / c->heads, 2, DRAFT_HEAD_DIM_MAX);
    c->rms_norm_eps = json_read_real(r, "rms_norm_eps", 1e-6, 1e-12, 1e-2);
    if (c->heads % c->kv_heads)
        json_read_refuse(r, ST_CORRUPT, "num_key_value_heads",
                         "wanted a divisor of num_attention_heads %u, found %u", c->heads,
                         c->kv_heads);
    if (c->head_dim % 2 || c->head_dim < 2 || c->head_dim > DRAFT_HEAD_DIM_MAX)
        json_read_refuse(r, ST_UNSUPPORTED, "head_dim", "wanted an even number up to %d, found %u",
                         DRAFT_HEAD_DIM_MAX, c->head_dim);
}

// rope_theta at the top, in rope_parameters or in rope_scaling; a wrong default would be silent, so there is none.
static void read_rope(struct json_reader *r, struct dflash_config *c) {
    static const char *const keys[] = {"rope_parameters", "rope_scaling"};
    char prefix[32];
    if (json_read_any(r, "rope_theta")) c->rope_theta = json_read_real(r, "rope_theta", 0, 1, 1e12);
    for (int i = 0; i < 2; i++) {
        struct json_reader in = *r;
        in.obj = json_read_object(r, keys[i]);
        snprintf(prefix, sizeof prefix, "%s.", keys[i]);
        in.prefix = prefix;
        if (!in.obj) continue;
        json_read_word(&in, json_read_any(&in, "rope_type") ? "rope_type" : "type", "default",
                       "default");
        if (!c->rope_theta) c->rope_theta = json_read_real(&in, "rope_theta", 0, 1, 1e12);
    }
    if (!c->rope_theta)
        json_read_refuse(
            r, ST_INVAL, "rope_theta",
            "wanted a number here, in rope_parameters or in rope_scaling, found nothing");
}

// A number that may stand inside dflash_config or at the top. 0 where it is in neither.
static uint32_t either_u32(const struct places *p, const char *key, uint32_t min, uint32_t max) {
    uint32_t in = json_read_u32(p->inner, key, 0, min, max);
    uint32_t top = json_read_u32(p->top, key, 0, min, max);
    if (json_read_any(p->inner, key) && json_read_any(p->top, key) && in != top)
        json_read_refuse(p->top, ST_CORRUPT, key, "wanted dflash_config's %u, found %u", in, top);
    return json_read_any(p->inner, key) ? in : top;
}

static bool in_either(const struct places *p, const char *key) {
    return json_read_any(p->inner, key) || json_read_any(p->top, key);
}

static double either_real(const struct places *p, const char *key, double dflt, double min,
                          double max) {
    return json_read_real(json_read_any(p->inner, key) ? p->inner : p->top, key, dflt, min, max);
}

static void read_layers(const struct places *p, struct dflash_config *c) {
    char found[JSON_TEXT_BYTES];
    struct json_reader *r = p->top;
    const json_t *list = json_read_any(r, "layer_types");
    bool given = json_read_any(r, "is_causal") || json_read_any(p->inner, "causal"), slide = false;
    bool causal = json_read_any(r, "is_causal") ? json_read_bool(r, "is_causal", false)
                                                : json_read_bool(p->inner, "causal", false);
    if (list && json_array_size(list) != c->layers)
        json_read_refuse(r, ST_CORRUPT, "layer_types",
                         "wanted a list of %u words (num_hidden_layers), found %s", c->layers,
                         json_text(found, list));
    for (uint32_t i = 0; i < c->layers; i++) {
        const json_t *v = json_array_get(list, i);
        const char *s = json_string_value(v);
        c->sliding[i] = s && !strcmp(s, "sliding_attention");
        if (list && !c->sliding[i] && (!s || strcmp(s, "full_attention") != 0))
            json_read_refuse(r, ST_UNSUPPORTED, "layer_types",
                             "layer %u: wanted full_attention or sliding_attention, found %s", i,
                             json_text(found, v));
        c->causal[i] = given ? causal : c->sliding[i];
        slide |= c->sliding[i];
    }
    if (slide) c->window = json_read_needed_u32(r, "sliding_window", 2, MODEL_CONTEXT_MAX);
}

static void add_tap(struct json_reader *r, struct dflash_config *c, const char *key, int64_t id,
                    const struct dflash_target *t) {
    if (id < 0 || id >= t->layers) {
        json_read_refuse(r, ST_INVAL, key, "wanted layers 0 to %u of the target, found %lld",
                         t->layers - 1, (long long)id);
        return;
    }
    for (uint32_t i = 0; i < c->taps_count; i++)
        if (c->taps[i] == id)
            json_read_refuse(r, ST_INVAL, key, "wanted each layer once, found %lld twice",
                             (long long)id);
    c->taps[c->taps_count++] = (uint32_t)id;
}

// less: what the entries count too many: lists of hidden states have the embedding's rows first.
static void read_tap_list(struct json_reader *r, const char *key, int64_t less,
                          struct dflash_config *c, const struct dflash_target *t) {
    char found[JSON_TEXT_BYTES];
    const json_t *list = json_read_any(r, key);
    size_t n = json_array_size(list);
    if (n < 1 || n > DFLASH_TAPS_MAX) {
        json_read_refuse(r, ST_CORRUPT, key, "wanted a list of 1 to %d layers, found %s",
                         DFLASH_TAPS_MAX, json_text(found, list));
        return;
    }
    for (size_t i = 0; i < n && !*r->st; i++) {
        const json_t *v = json_array_get(list, i);
        if (!json_is_integer(v))
            json_read_refuse(r, ST_CORRUPT, key, "wanted whole numbers, found %s",
                             json_text(found, v));
        else
            add_tap(r, c, key, json_integer_value(v) - less, t);
    }
}

// 1 to N - 3, spread evenly, halves to even; the middle layer for a drafter of one layer.
static void default_taps(struct json_reader *r, struct dflash_config *c,
                         const struct dflash_target *t) {
    static const char key[] = "dflash_config.target_layer_ids";
    if (c->layers == 1) {
        add_tap(r, c, key, t->layers / 2, t);
        return;
    }
    if (t->layers < TRUNCATED_LAYERS) {
        json_read_refuse(r, ST_INVAL, key, "wanted, for a target of %u layers, found nothing",
                         t->layers);
        return;
    }
    for (uint32_t i = 0; i < c->layers && i < DFLASH_TAPS_MAX; i++)
        add_tap(r, c, key, 1 + (int64_t)rint((double)i * (t->layers - 4) / (c->layers - 1)), t);
}

static void read_taps(const struct places *p, struct dflash_config *c,
                      const struct dflash_target *t) {
    static const char *const shifted[] = {"eagle_aux_hidden_state_layer_ids",
                                          "aux_hidden_state_layer_ids"};
    if (json_read_any(p->inner, "target_layer_ids")) {
        read_tap_list(p->inner, "target_layer_ids", 0, c, t);
        return;
    }
    for (int i = 0; i < 2; i++) {
        struct json_reader *r = json_read_any(p->inner, shifted[i]) ? p->inner : p->top;
        if (!json_read_any(r, shifted[i])) continue;
        read_tap_list(r, shifted[i], 1, c, t);
        return;
    }
    default_taps(p->top, c, t);
}

static void read_block(const struct places *p, struct dflash_config *c,
                       const struct dflash_target *t) {
    if (!in_either(p, "mask_token_id"))
        json_read_refuse(p->inner, ST_CORRUPT, "mask_token_id", "wanted an id, found nothing");
    c->mask_id = either_u32(p, "mask_token_id", 0, MODEL_VOCAB_MAX);
    if (c->mask_id >= t->vocab)
        json_read_refuse(json_read_any(p->inner, "mask_token_id") ? p->inner : p->top, ST_INVAL,
                         "mask_token_id", "wanted an id of the vocabulary, below %u, found %u",
                         t->vocab, c->mask_id);
    if (!in_either(p, "block_size"))
        json_read_refuse(p->top, ST_CORRUPT, "block_size",
                         "wanted a number here or in dflash_config, found nothing");
    c->block = either_u32(p, "block_size", 2, DFLASH_BLOCK_MAX);
    if (in_either(p, "num_target_layers")) {
        uint32_t n = either_u32(p, "num_target_layers", 1, MODEL_LAYERS_MAX);
        need_equal(p->top, "num_target_layers", n, t->layers, "num_hidden_layers");
    }
    c->target_layers = t->layers;
    c->sample_from_anchor =
        json_read_bool(json_read_any(p->inner, "sample_from_anchor") ? p->inner : p->top,
                       "sample_from_anchor", false);
    c->embedding_scale = either_real(p, "input_embedding_scale", 1, 1e-6, 1e6);
    c->output_multiplier = either_real(p, "output_multiplier", 1, 1e-6, 1e6);
    c->softcap = either_real(p, "final_logit_softcapping", 0, 0, 1e6);
}

// Forms of other families, and of the same layer, that this build does not run.
static void refuse_forms(const struct places *p) {
    static const char *const keys[] = {
        "use_swa",        "swa_window_size", "attention_sink_bias",
        "attention_bias", "mlp_bias",        "use_sliding_window_sink"};
    char found[JSON_TEXT_BYTES];
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        struct json_reader *r = json_read_any(p->inner, keys[i]) ? p->inner : p->top;
        const json_t *v = json_read_any(r, keys[i]);
        if (v && !json_is_false(v))
            json_read_refuse(r, ST_UNSUPPORTED, keys[i], "wanted nothing or false, found %s",
                             json_text(found, v));
    }
    json_read_word(p->top, "hidden_act", "silu", "silu");
}

static void read_v2(const struct places *p, struct dflash_config *c) {
    struct json_reader *r = p->inner;
    c->top = TOP_V1;
    if (!c->v2) return;
    c->conv_taps = json_read_needed_u32(r, "conv_kernel_size", 1, DRAFT_CONV_TAPS_MAX);
    c->conv_group = json_read_needed_u32(r, "conv_group_size", 1, MODEL_HIDDEN_MAX);
    c->rank = json_read_needed_u32(r, "selector_rank", 1, MODEL_WIDTH_MAX);
    c->top = json_read_needed_u32(r, "selector_top_k", 1, DRAFT_TOP_MAX);
    if (c->hidden % c->conv_group)
        json_read_refuse(r, ST_CORRUPT, "conv_group_size",
                         "wanted a divisor of hidden_size %u, found %u", c->hidden, c->conv_group);
}

static void read_ours(struct json_reader *r, struct dflash_config *c) {
    char found[JSON_TEXT_BYTES];
    const json_t *list = json_read_any(r, "draft_vocab_spans");
    c->quantize_min = json_read_u32(r, "quant_min_elements", 0, 0, UINT32_MAX);
    if (!list) return;
    c->spans_count = (uint32_t)json_array_size(list);
    if (c->spans_count < 1 || c->spans_count > DRAFT_PARTS_MAX) {
        json_read_refuse(r, ST_CORRUPT, "draft_vocab_spans",
                         "wanted a list of 1 to %d pairs, found %s", DRAFT_PARTS_MAX,
                         json_text(found, list));
        return;
    }
    for (uint32_t i = 0; i < c->spans_count; i++) {
        const json_t *pair = json_array_get(list, i);
        json_int_t first = json_integer_value(json_array_get(pair, 0));
        json_int_t count = json_integer_value(json_array_get(pair, 1));
        if (json_array_size(pair) != 2 || first < 0 || count < 1 || first > c->vocab ||
            count > c->vocab - first)
            json_read_refuse(r, ST_CORRUPT, "draft_vocab_spans",
                             "wanted first id and count within the vocabulary of %u, found %s",
                             c->vocab, json_text(found, pair));
        c->spans[i] = (struct engine_range){(uint32_t)first, (uint32_t)count};
    }
}

static void read_all(const struct places *p, struct dflash_config *c,
                     const struct dflash_target *t) {
    read_family(p->top, c);
    refuse_forms(p);
    read_sizes(p->top, c, t);
    read_dtype(p->top, c);
    if (*p->top->st) return; // the rest leans on the sizes
    read_rope(p->top, c);
    read_layers(p, c);
    read_block(p, c, t);
    read_taps(p, c, t);
    read_v2(p, c);
    read_ours(p->inner, c);
}

bool dflash_config_is(const char *json, size_t len) {
    json_t *root = json_loadb(json, len, 0, NULL);
    const char *name = json_string_value(json_array_get(json_object_get(root, "architectures"), 0));
    bool is = json_object_get(root, "dflash_config") || (name && !strncmp(name, "DFlash", 6));
    json_decref(root);
    return is;
}

// A target of which the file alone tells.
static struct dflash_target own_target(const struct places *p) {
    return (struct dflash_target){
        .hidden = json_read_needed_u32(p->top, "hidden_size", 1, MODEL_HIDDEN_MAX),
        .vocab = json_read_needed_u32(p->top, "vocab_size", 1, MODEL_VOCAB_MAX),
        .layers = either_u32(p, "num_target_layers", 1, MODEL_LAYERS_MAX)};
}

static void read_file(const struct places *p, struct dflash_config *c,
                      const struct dflash_target *target) {
    struct dflash_target own;
    if (!target) {
        own = own_target(p);
        target = &own;
        if (!own.layers)
            json_read_refuse(p->top, ST_CORRUPT, "num_target_layers",
                             "wanted a number, without a target to look at, found nothing");
    }
    if (!*p->top->st) read_all(p, c, target);
}

int dflash_config_parse(struct dflash_config *ret, const char *path, const char *json, size_t len,
                        const struct dflash_target *target, struct err *e) {
    char clean[JSON_TEXT_BYTES];
    json_error_t je;
    int st = ST_OK;
    struct dflash_config c = {0};
    json_t *root = json_loadb(json, len, JSON_REJECT_DUPLICATES, &je);
    if (!root)
        return err_set(e, ST_CORRUPT, "file '%s': wanted JSON, found at line %d: %s", path, je.line,
                       json_text_clean(clean, je.text));
    struct json_reader top = {path, "", root, e, &st},
                       inner = {path, "dflash_config.", NULL, e, &st};
    if (!json_is_object(root)) {
        st = err_set(e, ST_CORRUPT, "file '%s': wanted a JSON object, found %s", path,
                     json_text_kind(root));
    } else {
        inner.obj = json_read_object(&top, "dflash_config");
        read_file(&(struct places){&top, &inner}, &c, target);
    }
    if (!st) *ret = c;
    json_decref(root);
    return st;
}

bool dflash_config_all_slide(const struct dflash_config *c) {
    for (uint32_t i = 0; i < c->layers; i++)
        if (!c->sliding[i]) return false;
    return true;
}

uint32_t dflash_config_ids_max(const struct dflash_config *c) {
    uint32_t ids = c->sample_from_anchor ? c->block : c->block - 1;
    return ids < DRAFT_BLOCK_MAX - 1 ? ids : DRAFT_BLOCK_MAX - 1;
}
