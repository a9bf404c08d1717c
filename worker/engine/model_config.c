/* model_config: see model_config.h. The reading of each key goes through one of the get_ functions, which carry the
 * object's name for the message; the checks that tie keys together come after, in check_. */
#include "worker/engine/model_config.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "common/err.h"
#include "common/planted.h"
#include "worker/engine/json_read.h"
#include "worker/engine/json_text.h"

// A word we only report.
static void copy_word(struct json_reader *r, const char *key, const char *dflt, char *ret,
                      size_t ret_bytes) {
    char found[JSON_TEXT_BYTES];
    const json_t *v = json_read_any(r, key);
    const char *s = v ? json_string_value(v) : dflt;
    if (!s || strlen(s) >= ret_bytes) {
        json_read_refuse(r, ST_CORRUPT, key, "wanted a short word, found %s", json_text(found, v));
        return;
    }
    snprintf(ret, ret_bytes, "%s", s);
}

// A token id, or -1 for none; a list's first member where a file gives one. Small test models keep the ids of the large
// vocabulary: an id past vocab_size is never drawn and does no harm.
static int64_t get_id(struct json_reader *r, const char *key) {
    char found[JSON_TEXT_BYTES];
    const json_t *v = json_read_any(r, key);
    if (json_is_array(v)) v = json_array_get(v, 0);
    if (!v) return -1;
    if (!json_is_integer(v) || json_integer_value(v) < -1 ||
        json_integer_value(v) >= MODEL_VOCAB_MAX) {
        json_read_refuse(r, ST_CORRUPT, key, "wanted an id below %d, found %s", MODEL_VOCAB_MAX,
                         json_text(found, v));
        return -1;
    }
    return json_integer_value(v);
}

static void get_eos(struct json_reader *r, const char *key, struct model_config *c) {
    char found[JSON_TEXT_BYTES];
    const json_t *v = json_read_any(r, key);
    size_t n = json_is_array(v) ? json_array_size(v) : v != NULL;
    if (n > MODEL_EOS_MAX) {
        json_read_refuse(r, ST_CORRUPT, key, "wanted at most %d ids, found %zu", MODEL_EOS_MAX, n);
        return;
    }
    for (size_t i = 0; i < n; i++) {
        const json_t *id = json_is_array(v) ? json_array_get(v, i) : v;
        if (!json_is_integer(id) || json_integer_value(id) < 0 ||
            json_integer_value(id) >= MODEL_VOCAB_MAX) {
            json_read_refuse(r, ST_CORRUPT, key, "wanted ids below %d, found %s", MODEL_VOCAB_MAX,
                             json_text(found, id));
            return;
        }
        c->eos_ids[c->eos_count++] = (uint32_t)json_integer_value(id);
    }
}

static const char family[] = "qwen3_5|qwen3_5_text|qwen3_5_moe|qwen3_5_moe_text";

static void read_family(struct json_reader *r, struct model_config *c) {
    if (!json_read_any(r, "model_type"))
        json_read_refuse(r, ST_UNSUPPORTED, "model_type", "wanted %s, found nothing", family);
    const char *s = json_read_word(r, "model_type", "", family);
    snprintf(c->model_type, sizeof c->model_type, "%s", s);
}

// EXL3: the tensors say which linears, and how (checkpoint_linear.h). Of what stands here, the average is kept for reports;
// packs of other tools that rotate or cut the weights in ways of their own are refused.
static void read_exl3(struct json_reader *r, const json_t *q, struct model_config *c) {
    static const char *const others[] = {"rotation_layout", "tensor_parallel_size", "rank_sliced"};
    char found[JSON_TEXT_BYTES];
    const json_t *bits = json_object_get(q, "bits");
    c->exl3 = true;
    c->exl3_bits = json_is_number(bits) ? json_number_value(bits) : 0;
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++)
        if (json_object_get(q, others[i]))
            json_read_refuse(r, ST_UNSUPPORTED, "quantization_config",
                             "wanted EXL3 as ExLlamaV3 writes it, found %s %s", others[i],
                             json_text(found, json_object_get(q, others[i])));
}

// Weights in a form other than plain safetensors and EXL3: known ones are refused by name.
static void read_quantisation(struct json_reader *r, struct model_config *c) {
    static const struct {
        const char *method, *name;
    } known[] = {{"fp8", "FP8 with block scales"}, {"gguf", "GGUF"}, {"mlx", "MLX affine"}};
    char found[JSON_TEXT_BYTES];
    if (json_read_any(r, "quantization")) // the key of MLX's converter
        json_read_refuse(
            r, ST_UNSUPPORTED, "quantization",
            "wanted plain weights or EXL3, found MLX affine quantisation (known, not in this "
            "build)");
    const json_t *q = json_read_object(r, "quantization_config");
    if (!q) return;
    const json_t *method = json_object_get(q, "quant_method");
    const char *s = json_is_string(method) ? json_string_value(method) : "";
    if (strcmp(s, "exl3") == 0) {
        read_exl3(r, q, c);
        return;
    }
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++)
        if (strcmp(s, known[i].method) == 0)
            json_read_refuse(r, ST_UNSUPPORTED, "quantization_config.quant_method",
                             "wanted plain weights or EXL3, found %s (known, not in this build)",
                             known[i].name);
    if (!method && json_object_get(q, "group_size"))
        json_read_refuse(
            r, ST_UNSUPPORTED, "quantization_config",
            "wanted plain weights or EXL3, found MLX affine quantisation (known, not in this "
            "build)");
    json_read_refuse(r, ST_UNSUPPORTED, "quantization_config.quant_method",
                     "wanted plain weights or EXL3, found %s (not supported)",
                     json_text(found, method));
}

static void read_sizes(struct json_reader *r, struct model_config *c) {
    c->hidden = json_read_needed_u32(r, "hidden_size", 1, MODEL_HIDDEN_MAX);
    c->layers = json_read_needed_u32(r, "num_hidden_layers", 1, MODEL_LAYERS_MAX);
    c->vocab = json_read_needed_u32(r, "vocab_size", 1, MODEL_VOCAB_MAX);
    c->heads = json_read_needed_u32(r, "num_attention_heads", 1, MODEL_HEADS_MAX);
    c->kv_heads = json_read_needed_u32(r, "num_key_value_heads", 1 - PLANTED, MODEL_HEADS_MAX);
    c->head_dim = json_read_u32(r, "head_dim", 256, 2, MODEL_HEAD_DIM_MAX);
    c->rms_norm_eps = json_read_real(r, "rms_norm_eps", 1e-6, 1e-12, 1e-2);
    c->max_position = json_read_u32(r, "max_position_embeddings", 32768, 1, MODEL_CONTEXT_MAX);
    c->linear_key_heads = json_read_u32(r, "linear_num_key_heads", 16, 1, MODEL_HEADS_MAX);
    c->linear_value_heads = json_read_u32(r, "linear_num_value_heads", 32, 1, MODEL_HEADS_MAX);
    c->linear_key_dim = json_read_u32(r, "linear_key_head_dim", 128, 1, MODEL_HEAD_DIM_MAX);
    c->linear_value_dim = json_read_u32(r, "linear_value_head_dim", 128, 1, MODEL_HEAD_DIM_MAX);
    c->linear_conv = json_read_u32(r, "linear_conv_kernel_dim", 4, 1, MODEL_CONV_MAX);
    c->mtp_layers = json_read_u32(r, "mtp_num_hidden_layers", 0, 0, MODEL_LAYERS_MAX);
    c->mtp_dedicated_embeddings = json_read_bool(r, "mtp_use_dedicated_embeddings", false);
}

// Keys of older families. The published models have none of them; with these values they would mean the same.
static void refuse_routing(struct json_reader *r) {
    char found[JSON_TEXT_BYTES];
    const json_t *dense = json_read_any(r, "mlp_only_layers");
    if (dense && (!json_is_array(dense) || json_array_size(dense)))
        json_read_refuse(r, ST_UNSUPPORTED, "mlp_only_layers", "wanted none, found %s",
                         json_text(found, dense));
    if (json_read_u32(r, "decoder_sparse_step", 1, 1, MODEL_LAYERS_MAX) != 1)
        json_read_refuse(r, ST_UNSUPPORTED, "decoder_sparse_step", "wanted 1, found %s",
                         json_text(found, json_read_any(r, "decoder_sparse_step")));
    if (!json_read_bool(r, "norm_topk_prob", true))
        json_read_refuse(r, ST_UNSUPPORTED, "norm_topk_prob", "wanted true, found false");
}

static void read_mlp(struct json_reader *r, struct model_config *c) {
    c->moe = strncmp(c->model_type, "qwen3_5_moe", 11) == 0 ||
             json_read_u32(r, "num_experts", 0, 0, MODEL_EXPERTS_MAX) > 0;
    if (!c->moe) {
        c->intermediate = json_read_needed_u32(r, "intermediate_size", 1, MODEL_WIDTH_MAX);
        return;
    }
    c->experts = json_read_u32(r, "num_experts", 256, 1, MODEL_EXPERTS_MAX);
    c->experts_per_token = json_read_u32(r, "num_experts_per_tok", 8, 1, MODEL_EXPERTS_MAX);
    c->expert_width = json_read_u32(r, "moe_intermediate_size", 512, 1, MODEL_WIDTH_MAX);
    c->shared_expert_width =
        json_read_u32(r, "shared_expert_intermediate_size", 512, 1, MODEL_WIDTH_MAX);
    refuse_routing(r);
    if (c->experts_per_token > c->experts)
        json_read_refuse(r, ST_CORRUPT, "num_experts_per_tok",
                         "wanted at most %u (num_experts), found %u", c->experts,
                         c->experts_per_token);
}

// Forms that the family's published models do not have and this build does not run.
static void refuse_forms(struct json_reader *r) {
    static const char *const must_be_false[] = {"attention_bias", "mlp_bias", "use_sliding_window"};
    if (!json_read_bool(r, "attn_output_gate", true))
        json_read_refuse(r, ST_UNSUPPORTED, "attn_output_gate", "wanted true, found false");
    for (size_t i = 0; i < sizeof must_be_false / sizeof must_be_false[0]; i++)
        if (json_read_bool(r, must_be_false[i], false))
            json_read_refuse(r, ST_UNSUPPORTED, must_be_false[i], "wanted false, found true");
    json_read_word(r, "hidden_act", "silu", "silu");
    // No published engine switches on it; another word would mean another z gate.
    json_read_word(r, "output_gate_type", "swish", "swish|silu");
}

static void read_layer_types(struct json_reader *r, struct model_config *c) {
    char found[JSON_TEXT_BYTES];
    uint32_t interval = json_read_u32(r, "full_attention_interval", 4, 1, MODEL_LAYERS_MAX);
    const json_t *list = json_read_any(r, "layer_types");
    if (list && (!json_is_array(list) || json_array_size(list) != c->layers)) {
        char size[48];
        snprintf(size, sizeof size, "%zu", json_array_size(list));
        json_read_refuse(r, ST_CORRUPT, "layer_types",
                         "wanted a list of %u words (num_hidden_layers), found %s", c->layers,
                         json_is_array(list) ? size : json_text(found, list));
        return;
    }
    for (uint32_t i = 0; i < c->layers; i++) {
        c->full[i] = (i + 1) % interval == 0;
        if (list) {
            const json_t *v = json_array_get(list, i);
            const char *s = json_is_string(v) ? json_string_value(v) : "";
            c->full[i] = strcmp(s, "full_attention") == 0;
            if (!c->full[i] && strcmp(s, "linear_attention") != 0)
                json_read_refuse(r, ST_UNSUPPORTED, "layer_types",
                                 "layer %u: wanted linear_attention or full_attention, found %s", i,
                                 json_text(found, v));
        }
        c->full_layers += c->full[i];
    }
}

static void read_mrope_section(struct json_reader *r, struct model_rope *rope) {
    char found[JSON_TEXT_BYTES];
    static const uint32_t dflt[3] = {11, 11, 10};
    memcpy(rope->mrope_section, dflt, sizeof dflt);
    const json_t *v = json_read_any(r, "mrope_section");
    if (!v) return;
    for (size_t i = 0; i < 3; i++) {
        const json_t *n = json_array_get(v, i);
        if (json_array_size(v) != 3 || !json_is_integer(n) || json_integer_value(n) < 0 ||
            json_integer_value(n) > MODEL_ROTARY_PAIRS_MAX) {
            json_read_refuse(r, ST_CORRUPT, "mrope_section",
                             "wanted 3 whole numbers from 0 to %d, found %s",
                             MODEL_ROTARY_PAIRS_MAX, json_text(found, v));
            return;
        }
        rope->mrope_section[i] = (uint32_t)json_integer_value(n);
    }
}

static void read_yarn(struct json_reader *r, struct model_config *c) {
    struct model_rope *p = &c->rope;
    if (!json_read_any(r, "factor"))
        json_read_refuse(r, ST_CORRUPT, "factor", "wanted a number for yarn, found nothing");
    p->factor = json_read_real(r, "factor", 1, 1, 1024);
    p->original_max_position =
        json_read_u32(r, "original_max_position_embeddings", c->max_position, 1, MODEL_CONTEXT_MAX);
    p->beta_fast = json_read_real(r, "beta_fast", 32, 1e-3, 1e6);
    p->beta_slow = json_read_real(r, "beta_slow", 1, 1e-3, 1e6);
    p->attention_factor = json_read_real(r, "attention_factor", 0, 0, 1024);
    p->mscale = json_read_real(r, "mscale", 0, 0, 1024);
    p->mscale_all_dim = json_read_real(r, "mscale_all_dim", 0, 0, 1024);
    p->truncate = json_read_bool(r, "truncate", true);
    if (p->beta_fast < p->beta_slow)
        json_read_refuse(r, ST_CORRUPT, "beta_fast", "wanted at least beta_slow %g, found %g",
                         p->beta_slow, p->beta_fast);
}

/* rope_parameters, or as older files have it rope_scaling with theta and factor at text level. */
static void read_rope(struct json_reader *r, struct model_config *c) {
    const char *key = json_read_any(r, "rope_parameters") ? "rope_parameters" : "rope_scaling";
    char prefix[64];
    snprintf(prefix, sizeof prefix, "%s%s.", r->prefix, key);
    struct json_reader in = {r->path, prefix, json_read_object(r, key), r->e, r->st};
    const char *type_key = json_read_any(&in, "rope_type") ? "rope_type" : "type";
    const char *type = json_read_word(&in, type_key, "default", "default|mrope|yarn");
    c->rope.type = strcmp(type, "yarn") == 0 ? MODEL_ROPE_YARN : MODEL_ROPE_DEFAULT;
    struct json_reader *theta = json_read_any(&in, "rope_theta") ? &in : r;
    c->rope.theta = json_read_real(theta, "rope_theta", 10000, 1, 1e12);
    struct json_reader *partial = json_read_any(&in, "partial_rotary_factor") ? &in : r;
    double factor = json_read_real(partial, "partial_rotary_factor", 0.25, 0, 1);
    c->rope.rotary_dim = (uint32_t)(c->head_dim * factor);
    if (c->rope.rotary_dim < 2 || c->rope.rotary_dim % 2)
        json_read_refuse(partial, ST_UNSUPPORTED, "partial_rotary_factor",
                         "wanted an even rotary width of head_dim %u, found %g of it", c->head_dim,
                         factor);
    read_mrope_section(&in, &c->rope);
    c->rope.mrope_interleaved = json_read_bool(&in, "mrope_interleaved", true);
    if (c->rope.type == MODEL_ROPE_YARN) read_yarn(&in, c);
}

static void check_heads(struct json_reader *r, const struct model_config *c) {
    if (c->heads % c->kv_heads)
        json_read_refuse(r, ST_CORRUPT, "num_key_value_heads",
                         "wanted a divisor of num_attention_heads %u, found %u", c->heads,
                         c->kv_heads);
    if (c->linear_value_heads % c->linear_key_heads)
        json_read_refuse(r, ST_CORRUPT, "linear_num_key_heads",
                         "wanted a divisor of linear_num_value_heads %u, found %u",
                         c->linear_value_heads, c->linear_key_heads);
    if (c->heads * c->head_dim * 2 > MODEL_WIDTH_MAX)
        json_read_refuse(r, ST_CORRUPT, "head_dim",
                         "wanted num_attention_heads * head_dim up to %d, found %u",
                         MODEL_WIDTH_MAX / 2, c->heads * c->head_dim);
    if (model_config_linear_conv_width(c) > MODEL_WIDTH_MAX)
        json_read_refuse(r, ST_CORRUPT, "linear_num_value_heads",
                         "wanted at most %d channels of the convolution, found %u", MODEL_WIDTH_MAX,
                         model_config_linear_conv_width(c));
}

static void read_ids(struct json_reader *top, struct json_reader *text, struct model_config *c) {
    c->bos_id = get_id(text, "bos_token_id");
    c->pad_id = get_id(text, "pad_token_id");
    get_eos(text, "eos_token_id", c);
    bool m = c->multimodal;
    c->image_id = m ? get_id(top, "image_token_id") : -1;
    c->video_id = m ? get_id(top, "video_token_id") : -1;
    c->vision_start_id = m ? get_id(top, "vision_start_token_id") : -1;
    c->vision_end_id = m ? get_id(top, "vision_end_token_id") : -1;
}

static void read_text(struct json_reader *top, struct json_reader *r, struct model_config *c) {
    if (c->multimodal) json_read_word(r, "model_type", "", "qwen3_5_text|qwen3_5_moe_text");
    if (c->multimodal) read_quantisation(r, c);
    read_sizes(r, c);
    read_mlp(r, c);
    refuse_forms(r);
    if (*r->st) return; // the rest leans on the sizes
    read_layer_types(r, c);
    read_rope(r, c);
    check_heads(r, c);
    read_ids(top, r, c);
    bool top_tied = json_read_bool(top, "tie_word_embeddings", false);
    c->tied = json_read_bool(r, "tie_word_embeddings", top_tied);
    copy_word(r, json_read_any(r, "dtype") ? "dtype" : "torch_dtype", "bfloat16", c->dtype,
              sizeof c->dtype);
    copy_word(r, "mamba_ssm_dtype", "float32", c->state_dtype, sizeof c->state_dtype);
}

int model_config_parse(struct model_config *ret, const char *path, const char *json, size_t len,
                       struct err *e) {
    char clean[JSON_TEXT_BYTES];
    json_error_t je;
    json_t *root = json_loadb(json, len, JSON_REJECT_DUPLICATES, &je);
    if (!root)
        return err_set(e, ST_CORRUPT, "file '%s': wanted JSON, found at line %d: %s", path, je.line,
                       json_text_clean(clean, je.text));
    int st = ST_OK;
    struct model_config c = {0};
    struct json_reader top = {path, "", root, e, &st}, text = {path, "text_config.", NULL, e, &st};
    if (!json_is_object(root)) {
        st = err_set(e, ST_CORRUPT, "file '%s': wanted a JSON object, found %s", path,
                     json_text_kind(root));
        goto out;
    }
    read_family(&top, &c);
    read_quantisation(&top, &c);
    text.obj = json_read_object(&top, "text_config");
    c.multimodal = text.obj != NULL;
    if (!st) read_text(&top, c.multimodal ? &text : &top, &c);
    if (!st) *ret = c;
out:
    json_decref(root);
    return st;
}

uint32_t model_config_linear_key_width(const struct model_config *c) {
    return c->linear_key_heads * c->linear_key_dim;
}

uint32_t model_config_linear_value_width(const struct model_config *c) {
    return c->linear_value_heads * c->linear_value_dim;
}

uint32_t model_config_linear_conv_width(const struct model_config *c) {
    return 2 * model_config_linear_key_width(c) + model_config_linear_value_width(c);
}
