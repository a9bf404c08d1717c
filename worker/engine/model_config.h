/* model_config: config.json of a Qwen3.5-family checkpoint (published as Qwen3.5, 3.6 and 3.8), as plain values.
 *
 * Takes both layouts: text keys at the top (model types qwen3_5_text, qwen3_5_moe_text) or under "text_config" beside a
 * "vision_config" (qwen3_5, qwen3_5_moe). Every key but the sizes has the default that Hugging Face transformers gives
 * it. Every value is checked for type, range and for agreement with the others; what we cannot run is refused by name.
 *
 * A struct model_config holds no pointers: copy it freely. Parsing is pure, any thread. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct err;

enum {
    MODEL_CONFIG_FILE_BYTES_MAX = 16 << 20,
    MODEL_LAYERS_MAX = 512,     // 92 in the largest published model
    MODEL_HIDDEN_MAX = 1 << 16, // 8192 there
    MODEL_WIDTH_MAX = 1 << 20,  // an MLP or a projection's outputs
    MODEL_VOCAB_MAX = 1 << 22,
    MODEL_HEADS_MAX = 1024,
    MODEL_HEAD_DIM_MAX = 1024,
    MODEL_CONV_MAX = 8,
    MODEL_EXPERTS_MAX = 4096,
    MODEL_CONTEXT_MAX = 1 << 27,
    MODEL_EOS_MAX = 16,
    MODEL_ROTARY_PAIRS_MAX = MODEL_HEAD_DIM_MAX / 2,
};

enum model_rope_type { MODEL_ROPE_DEFAULT, MODEL_ROPE_YARN };

struct model_rope {
    enum model_rope_type type;
    double theta;
    uint32_t rotary_dim; // head_dim * partial_rotary_factor; even
    uint32_t mrope_section[3];
    bool mrope_interleaved;
    // YaRN only (Peng et al. 2023, with the parameters as transformers names them):
    double factor;
    uint32_t original_max_position;
    double beta_fast, beta_slow;
    double attention_factor;       // 0: not given
    double mscale, mscale_all_dim; // 0: not given
    bool truncate;
};

struct model_config {
    char model_type[32]; // top level's, "qwen3_5"
    bool multimodal;     // text keys under text_config
    bool moe;
    uint32_t hidden, layers, vocab;
    uint32_t intermediate; // dense only, else 0
    uint32_t heads, kv_heads, head_dim;
    double rms_norm_eps;
    bool full[MODEL_LAYERS_MAX]; // layer i: full attention; else DeltaNet
    uint32_t full_layers;        // how many are
    uint32_t linear_key_heads, linear_value_heads, linear_key_dim, linear_value_dim, linear_conv;
    struct model_rope rope;
    uint32_t max_position;
    int64_t bos_id, pad_id; // -1: none
    uint32_t eos_ids[MODEL_EOS_MAX];
    uint32_t eos_count;
    uint32_t mtp_layers;
    bool mtp_dedicated_embeddings;
    bool tied; // what the file says; the tensors have the final word (checkpoint_head)
    // moe only, else 0
    uint32_t experts, experts_per_token, expert_width, shared_expert_width;
    bool exl3;        // quantization_config says so; the tensors have the final word
    double exl3_bits; // the average a weight that it gives, 0: none
    char dtype[16];   // "bfloat16"; of the file, for reports
    char state_dtype[16];
    // multimodal only, else -1
    int64_t image_id, video_id, vision_start_id, vision_end_id;
};

// path names the file in messages, each of which names the key, what was wanted and what was found.
// ST_CORRUPT: not JSON, or no such config can be; ST_UNSUPPORTED: another family, or a form this build does not run.
int model_config_parse(struct model_config *ret, const char *path, const char *json, size_t len,
                       struct err *e);

// Widths that follow from the config.
uint32_t model_config_linear_key_width(const struct model_config *c);   // NK * DK
uint32_t model_config_linear_value_width(const struct model_config *c); // NV * DV
uint32_t model_config_linear_conv_width(const struct model_config *c);  // 2 * NK * DK + NV * DV
