/* model_config: published configs read to their values, defaults hold, and each bad key is refused by name. */
#include "common/err.h"
#include "common/strbuf.h"
#include "tests/lib/test.h"
#include "worker/engine/model_config.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SIZES                                                                                      \
    "\"hidden_size\":64,\"num_hidden_layers\":8,\"vocab_size\":512,\"intermediate_size\":128,"     \
    "\"num_attention_heads\":4,\"num_key_value_heads\":2"

static int parse(struct model_config *c, const char *json, struct err *e) {
    memset(c, 0, sizeof *c);
    return model_config_parse(c, "dir/config.json", json, strlen(json), e);
}

static struct model_config c; // a large struct

TEST(defaults_are_those_of_the_reference) {
    struct err e = {0};
    CHECK_OK(parse(&c, "{\"model_type\":\"qwen3_5_text\"," SIZES "}", &e), e);
    CHECK_STR(c.model_type, "qwen3_5_text");
    CHECK(!c.multimodal && !c.moe && !c.tied);
    CHECK_EQ(c.hidden, 64);
    CHECK_EQ(c.intermediate, 128);
    CHECK_EQ(c.head_dim, 256);
    CHECK_NEAR(c.rms_norm_eps, 1e-6, 0);
    CHECK_EQ(c.linear_key_heads, 16);
    CHECK_EQ(c.linear_value_heads, 32);
    CHECK_EQ(c.linear_key_dim, 128);
    CHECK_EQ(c.linear_value_dim, 128);
    CHECK_EQ(c.linear_conv, 4);
    CHECK_EQ(model_config_linear_key_width(&c), 2048);
    CHECK_EQ(model_config_linear_value_width(&c), 4096);
    CHECK_EQ(model_config_linear_conv_width(&c), 8192);
    CHECK_EQ(c.max_position, 32768);
    CHECK_EQ(c.rope.type, MODEL_ROPE_DEFAULT);
    CHECK_NEAR(c.rope.theta, 10000, 0);
    CHECK_EQ(c.rope.rotary_dim, 64);
    CHECK_EQ(c.rope.mrope_section[2], 10);
    for (uint32_t i = 0; i < 8; i++) CHECK_EQ(c.full[i], i == 3 || i == 7);
    CHECK_EQ(c.full_layers, 2);
    CHECK_EQ(c.mtp_layers, 0);
    CHECK_EQ(c.bos_id, -1);
    CHECK_EQ(c.eos_count, 0);
    CHECK_EQ(c.image_id, -1);
    CHECK_STR(c.dtype, "bfloat16");
    CHECK_STR(c.state_dtype, "float32");
}

TEST(the_multimodal_layout_of_the_27b_reads_to_its_values) {
    static const char json[] =
        "{\"architectures\":[\"Qwen3_5ForConditionalGeneration\"],\"model_type\":\"qwen3_5\","
        "\"image_token_id\":248056,\"video_token_id\":248057,\"vision_start_token_id\":248053,"
        "\"vision_end_token_id\":248054,\"tie_word_embeddings\":true,\"language_model_only\":false,"
        "\"text_config\":{\"model_type\":\"qwen3_5_text\",\"hidden_size\":5120,\"num_hidden_"
        "layers\":64,"
        "\"intermediate_size\":17408,\"vocab_size\":248320,\"num_attention_heads\":24,"
        "\"num_key_value_heads\":4,\"head_dim\":256,\"attn_output_gate\":true,\"attention_bias\":"
        "false,"
        "\"hidden_act\":\"silu\",\"rms_norm_eps\":1e-06,\"full_attention_interval\":4,"
        "\"linear_num_key_heads\":16,\"linear_num_value_heads\":48,\"linear_key_head_dim\":128,"
        "\"linear_value_head_dim\":128,\"linear_conv_kernel_dim\":4,\"mamba_ssm_dtype\":"
        "\"float32\","
        "\"output_gate_type\":\"swish\",\"max_position_embeddings\":262144,\"bos_token_id\":null,"
        "\"eos_token_id\":248044,\"pad_token_id\":248044,\"mtp_num_hidden_layers\":1,"
        "\"mtp_use_dedicated_embeddings\":false,\"tie_word_embeddings\":false,\"dtype\":"
        "\"bfloat16\","
        "\"rope_parameters\":{\"rope_type\":\"default\",\"rope_theta\":10000000,"
        "\"partial_rotary_factor\":0.25,\"mrope_section\":[11,11,10],\"mrope_interleaved\":true}},"
        "\"vision_config\":{\"model_type\":\"qwen3_5\",\"depth\":27}}";
    struct err e = {0};
    CHECK_OK(parse(&c, json, &e), e);
    CHECK(c.multimodal && !c.moe);
    CHECK(!c.tied); // text_config's word before the top level's
    CHECK_EQ(c.layers, 64);
    CHECK_EQ(c.full_layers, 16);
    CHECK_EQ(c.linear_value_heads, 48);
    CHECK_EQ(c.max_position, 262144);
    CHECK_NEAR(c.rope.theta, 1e7, 0);
    CHECK_EQ(c.eos_count, 1);
    CHECK_EQ(c.eos_ids[0], 248044);
    CHECK_EQ(c.mtp_layers, 1);
    CHECK_EQ(c.image_id, 248056);
    CHECK_EQ(c.vision_end_id, 248054);
}

TEST(experts_are_known_by_type_or_by_count) {
    static const char *const json[] = {"{\"model_type\":\"qwen3_5_moe_text\",\"hidden_size\":64,"
                                       "\"num_hidden_layers\":4,\"vocab_size\":512,"
                                       "\"num_attention_heads\":4,\"num_key_value_heads\":2}",
                                       "{\"model_type\":\"qwen3_5_text\"," SIZES
                                       ",\"num_experts\":256}"};
    for (size_t i = 0; i < 2; i++) {
        struct err e = {0};
        CHECK_OK(parse(&c, json[i], &e), e);
        CHECK(c.moe);
        CHECK_EQ(c.experts, 256);
        CHECK_EQ(c.experts_per_token, 8);
        CHECK_EQ(c.expert_width, 512);
        CHECK_EQ(c.shared_expert_width, 512);
        CHECK_EQ(c.intermediate, 0);
    }
}

TEST(the_multimodal_layout_of_the_35b_with_experts_reads_to_its_values) {
    static const char json[] =
        "{\"architectures\":[\"Qwen3_5MoeForConditionalGeneration\"],\"model_type\":\"qwen3_5_"
        "moe\","
        "\"image_token_id\":248056,\"tie_word_embeddings\":false,\"text_config\":{\"model_type\":"
        "\"qwen3_5_moe_text\",\"hidden_size\":2048,\"num_hidden_layers\":40,\"vocab_size\":248320,"
        "\"num_attention_heads\":16,\"num_key_value_heads\":2,\"linear_num_value_heads\":32,"
        "\"num_experts\":256,\"num_experts_per_tok\":8,\"moe_intermediate_size\":512,"
        "\"shared_expert_intermediate_size\":512,\"output_router_logits\":false,"
        "\"router_aux_loss_coef\":0.001,\"norm_topk_prob\":true,\"mlp_only_layers\":[],"
        "\"decoder_sparse_step\":1},\"vision_config\":{\"model_type\":\"qwen3_5_moe\"}}";
    struct err e = {0};
    CHECK_OK(parse(&c, json, &e), e);
    CHECK(c.multimodal && c.moe && !c.tied);
    CHECK_STR(c.model_type, "qwen3_5_moe");
    CHECK_EQ(c.experts, 256);
    CHECK_EQ(c.experts_per_token, 8);
    CHECK_EQ(c.expert_width, 512);
    CHECK_EQ(c.shared_expert_width, 512);
    CHECK_EQ(c.intermediate, 0);
    CHECK_EQ(c.full_layers, 10);
}

TEST(both_forms_of_rope_keys_read_alike) {
    static const char *const json[] = {
        "{\"model_type\":\"qwen3_5_text\"," SIZES
        ",\"rope_parameters\":{\"rope_type\":\"yarn\",\"factor\":4.0,"
        "\"original_max_position_embeddings\":262144,\"rope_theta\":1e7,\"partial_rotary_factor\":"
        "0.5}}",
        "{\"model_type\":\"qwen3_5_text\"," SIZES
        ",\"rope_scaling\":{\"type\":\"yarn\",\"factor\":4,"
        "\"original_max_position_embeddings\":262144},\"rope_theta\":1e7,\"partial_rotary_factor\":"
        "0.5}"};
    for (size_t i = 0; i < 2; i++) {
        struct err e = {0};
        CHECK_OK(parse(&c, json[i], &e), e);
        CHECK_EQ(c.rope.type, MODEL_ROPE_YARN);
        CHECK_NEAR(c.rope.factor, 4, 0);
        CHECK_EQ(c.rope.original_max_position, 262144);
        CHECK_NEAR(c.rope.theta, 1e7, 0);
        CHECK_EQ(c.rope.rotary_dim, 128);
        CHECK_NEAR(c.rope.beta_fast, 32, 0);
        CHECK_NEAR(c.rope.beta_slow, 1, 0);
        CHECK(c.rope.truncate);
    }
}

TEST(layer_types_win_over_the_interval) {
    struct err e = {0};
    CHECK_OK(
        parse(&c,
              "{\"model_type\":\"qwen3_5_text\",\"hidden_size\":64,\"num_hidden_layers\":3,\"vocab_"
              "size\":512,"
              "\"intermediate_size\":8,\"num_attention_heads\":4,\"num_key_value_heads\":2,"
              "\"full_attention_interval\":1,\"eos_token_id\":[5,7],"
              "\"layer_types\":[\"full_attention\",\"linear_attention\",\"linear_attention\"]}",
              &e),
        e);
    CHECK(c.full[0] && !c.full[1] && !c.full[2]);
    CHECK_EQ(c.full_layers, 1);
    CHECK_EQ(c.eos_count, 2);
    CHECK_EQ(c.eos_ids[1], 7);
}

/* One key put in place of another in a good file, and the answer. */
// What stands there is for reports: tensors say how each linear is held.
TEST(exl3_is_taken_at_either_level_whatever_else_its_object_says) {
    static const char *const objects[][2] = {
        {"{\"quant_method\":\"exl3\",\"bits\":3.5,\"head_bits\":6,\"codebook\":\"mul1\"}", "3.5"},
        {"{\"quant_method\":\"exl3\",\"version\":\"1.4.2\",\"bits\":\"four\"}", "0"},
        {"{\"quant_method\":\"exl3\",\"original_quantization_config\":{\"quant_method\":\"fp8\"}}",
         "0"},
    };
    static const char keys[] = "\"hidden_size\":64,\"num_hidden_layers\":8,\"vocab_size\":512,"
                               "\"intermediate_size\":128,\"num_attention_heads\":4,"
                               "\"num_key_value_heads\":2,\"quantization_config\":";
    for (int i = 0; i < 6; i++) {
        struct strbuf b = {0};
        struct err e = {0};
        strbuf_printf(&b,
                      i % 2 ? "{\"model_type\":\"qwen3_5\",\"text_config\":{\"model_type\":"
                              "\"qwen3_5_text\",%s%s}}"
                            : "{\"model_type\":\"qwen3_5_text\",%s%s}",
                      keys, objects[i / 2][0]);
        CHECK_OK(model_config_parse(&c, "config.json", strbuf_str(&b), b.len, &e), e);
        CHECK(c.exl3);
        CHECK(c.exl3_bits == atof(objects[i / 2][1]));
        strbuf_fini(&b);
    }
}

TEST(each_bad_key_is_refused_by_name) {
    static const struct {
        const char *key, *value; // value NULL: the key is taken out
        int st;
        const char *part;
    } cases[] = {
        {"model_type", "\"qwen3_next\"", ST_UNSUPPORTED,
         "model_type: wanted qwen3_5|qwen3_5_text|qwen3_5_moe|qwen3_5_moe_text, found "
         "\"qwen3_next\""},
        {"model_type", "\"qwen3_vl\"", ST_UNSUPPORTED, "found \"qwen3_vl\""},
        {"model_type", "\"llama\"", ST_UNSUPPORTED, "found \"llama\""},
        {"model_type", "\"qwen3_moe\"", ST_UNSUPPORTED, "found \"qwen3_moe\""},
        {"model_type", "\"qwen4_exp\"", ST_UNSUPPORTED, "found \"qwen4_exp\""},
        {"model_type", "\"qwen3_5_mtp\"", ST_UNSUPPORTED, "found \"qwen3_5_mtp\""},
        {"model_type", "\"qwen3\"", ST_UNSUPPORTED, "found \"qwen3\""},
        {"model_type", "\"\"", ST_UNSUPPORTED, "model_type"},
        {"model_type", "5", ST_UNSUPPORTED, "found 5"},
        {"model_type", NULL, ST_UNSUPPORTED, "model_type: wanted qwen3_5"},
        {"hidden_size", NULL, ST_CORRUPT,
         "hidden_size: wanted a whole number from 1 to 65536, found nothing"},
        {"hidden_size", "0", ST_CORRUPT,
         "hidden_size: wanted a whole number from 1 to 65536, found 0"},
        {"hidden_size", "-64", ST_CORRUPT, "found -64"},
        {"hidden_size", "64.0", ST_CORRUPT, "found 64.0"},
        {"hidden_size", "\"64\"", ST_CORRUPT, "found \"64\""},
        {"hidden_size", "1e999", ST_CORRUPT, "wanted JSON"},
        {"hidden_size", "NaN", ST_CORRUPT, "wanted JSON"},
        {"hidden_size", "99999999999999999999", ST_CORRUPT, "wanted JSON"},
        {"hidden_size", "4294967360", ST_CORRUPT, "found 4294967360"}, // 64 modulo 2^32
        {"num_hidden_layers", "1000000", ST_CORRUPT,
         "num_hidden_layers: wanted a whole number from 1 to 512, found 1000000"},
        {"vocab_size", "1000000000", ST_CORRUPT, "vocab_size"},
        {"intermediate_size", NULL, ST_CORRUPT, "intermediate_size"},
        {"num_key_value_heads", "3", ST_CORRUPT,
         "num_key_value_heads: wanted a divisor of num_attention_heads 4, found 3"},
        {"num_key_value_heads", "8", ST_CORRUPT, "num_key_value_heads"},
        {"linear_num_key_heads", "5", ST_CORRUPT,
         "linear_num_key_heads: wanted a divisor of linear_num_value_heads 32, found 5"},
        {"head_dim", "1", ST_CORRUPT, "head_dim"},
        {"head_dim", "2000", ST_CORRUPT, "head_dim"},
        {"attn_output_gate", "false", ST_UNSUPPORTED, "attn_output_gate: wanted true, found false"},
        {"attn_output_gate", "1", ST_CORRUPT, "attn_output_gate: wanted true or false, found 1"},
        {"attention_bias", "true", ST_UNSUPPORTED, "attention_bias: wanted false, found true"},
        {"hidden_act", "\"gelu\"", ST_UNSUPPORTED, "hidden_act: wanted silu, found \"gelu\""},
        {"hidden_act", "\"sil\"", ST_UNSUPPORTED, "hidden_act"},
        {"output_gate_type", "\"sigmoid\"", ST_UNSUPPORTED, "output_gate_type: wanted swish|silu"},
        {"rms_norm_eps", "\"tiny\"", ST_CORRUPT, "rms_norm_eps: wanted a number"},
        {"rms_norm_eps", "0", ST_CORRUPT, "rms_norm_eps"},
        {"rms_norm_eps", "-1e-6", ST_CORRUPT, "rms_norm_eps"},
        {"linear_conv_kernel_dim", "9", ST_CORRUPT, "linear_conv_kernel_dim"},
        {"layer_types", "[\"full_attention\"]", ST_CORRUPT,
         "layer_types: wanted a list of 8 words (num_hidden_layers), found 1"},
        {"layer_types", "\"full\"", ST_CORRUPT,
         "layer_types: wanted a list of 8 words (num_hidden_layers), found \"full\""},
        {"layer_types", "[1,2,3,4,5,6,7,8]", ST_UNSUPPORTED,
         "layer_types: layer 0: wanted linear_attention or full_attention, found 1"},
        {"layer_types",
         "[\"full_attention\",\"sliding_attention\",\"a\",\"a\",\"a\",\"a\",\"a\",\"a\"]",
         ST_UNSUPPORTED,
         "layer 1: wanted linear_attention or full_attention, found \"sliding_attention\""},
        {"full_attention_interval", "0", ST_CORRUPT, "full_attention_interval"},
        {"rope_parameters", "[]", ST_CORRUPT, "rope_parameters: wanted an object, found []"},
        {"rope_parameters", "{\"rope_type\":\"linear\"}", ST_UNSUPPORTED,
         "rope_parameters.rope_type: wanted default|mrope|yarn, found \"linear\""},
        {"rope_parameters", "{\"rope_theta\":0}", ST_CORRUPT, "rope_parameters.rope_theta"},
        {"rope_parameters", "{\"partial_rotary_factor\":1.5}", ST_CORRUPT,
         "partial_rotary_factor: wanted a number from 0 to 1, found 1.5"},
        {"rope_parameters", "{\"partial_rotary_factor\":0.001}", ST_UNSUPPORTED,
         "partial_rotary_factor: wanted an even rotary width of head_dim 256"},
        {"rope_parameters", "{\"mrope_section\":[11,11]}", ST_CORRUPT,
         "mrope_section: wanted 3 whole numbers"},
        {"rope_parameters", "{\"mrope_section\":[11,11,-1]}", ST_CORRUPT, "mrope_section"},
        {"rope_parameters", "{\"rope_type\":\"yarn\"}", ST_CORRUPT,
         "rope_parameters.factor: wanted a number for yarn, found nothing"},
        {"rope_parameters", "{\"rope_type\":\"yarn\",\"factor\":0.5}", ST_CORRUPT,
         "rope_parameters.factor"},
        {"rope_parameters", "{\"rope_type\":\"yarn\",\"factor\":4,\"beta_fast\":0.5}", ST_CORRUPT,
         "rope_parameters.beta_fast: wanted at least beta_slow 1, found 0.5"},
        {"eos_token_id", "\"x\"", ST_CORRUPT,
         "eos_token_id: wanted ids below 4194304, found \"x\""},
        {"eos_token_id", "[1,-2]", ST_CORRUPT, "eos_token_id"},
        {"eos_token_id", "[1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17]", ST_CORRUPT,
         "eos_token_id: wanted at most 16 ids, found 17"},
        {"bos_token_id", "{}", ST_CORRUPT,
         "bos_token_id: wanted an id below 4194304, found an object"},
        {"tie_word_embeddings", "\"yes\"", ST_CORRUPT, "tie_word_embeddings"},
        {"dtype", "\"a very long name of a type\"", ST_CORRUPT, "dtype: wanted a short word"},
        {"quantization_config", "{\"quant_method\":\"fp8\"}", ST_UNSUPPORTED,
         "quantization_config.quant_method: wanted plain weights or EXL3, found FP8 with block "
         "scales "
         "(known, not in this build)"},
        {"quantization_config",
         "{\"quant_method\":\"exl3\",\"bits\":4,\"rotation_layout\":\"shared\"}", ST_UNSUPPORTED,
         "wanted EXL3 as ExLlamaV3 writes it, found rotation_layout \"shared\""},
        {"quantization_config", "{\"quant_method\":3}", ST_UNSUPPORTED, "found 3 (not supported)"},
        {"quantization_config", "{\"quant_method\":\"awq\"}", ST_UNSUPPORTED,
         "found \"awq\" (not supported)"},
        {"quantization_config", "{\"group_size\":64,\"bits\":4}", ST_UNSUPPORTED,
         "found MLX affine quantisation"},
        {"quantization", "{\"group_size\":64,\"bits\":4}", ST_UNSUPPORTED,
         "quantization: wanted plain weights or EXL3, found MLX affine quantisation"},
        {"text_config", "7", ST_CORRUPT, "text_config: wanted an object, found 7"},
        {"text_config", "{}", ST_CORRUPT, "text_config.hidden_size: wanted"},
        {"text_config", "{\"model_type\":\"qwen2\"}", ST_UNSUPPORTED,
         "text_config.model_type: wanted qwen3_5_text|qwen3_5_moe_text, found \"qwen2\""},
        {"num_experts", "5000", ST_CORRUPT, "num_experts"},
        {"num_experts", "256,\"norm_topk_prob\":false", ST_UNSUPPORTED,
         "norm_topk_prob: wanted true, found false"},
        {"num_experts", "256,\"mlp_only_layers\":[3]", ST_UNSUPPORTED,
         "mlp_only_layers: wanted none, found"},
        {"num_experts", "256,\"mlp_only_layers\":3", ST_UNSUPPORTED,
         "mlp_only_layers: wanted none, found 3"},
        {"num_experts", "256,\"decoder_sparse_step\":2", ST_UNSUPPORTED,
         "decoder_sparse_step: wanted 1, found 2"},
        {"num_experts", "256,\"num_experts_per_tok\":0", ST_CORRUPT,
         "num_experts_per_tok: wanted a whole number from 1 to 4096, found 0"},
        {"num_experts", "256,\"moe_intermediate_size\":-1", ST_CORRUPT,
         "moe_intermediate_size: wanted a whole number"},
        {"num_experts", "256,\"shared_expert_intermediate_size\":0", ST_CORRUPT,
         "shared_expert_intermediate_size: wanted a whole number"},
        {"num_experts", "4", ST_CORRUPT,
         "num_experts_per_tok: wanted at most 4 (num_experts), found 8"},
    };
    static const char *const keys[][2] = {
        {"model_type", "\"qwen3_5_text\""}, {"hidden_size", "64"},
        {"num_hidden_layers", "8"},         {"vocab_size", "512"},
        {"intermediate_size", "128"},       {"num_attention_heads", "4"},
        {"num_key_value_heads", "2"}};
    struct strbuf b = {0};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct err e = {0};
        strbuf_reset(&b);
        strbuf_add_str(&b, "{");
        for (size_t k = 0; k < sizeof keys / sizeof keys[0]; k++)
            if (strcmp(keys[k][0], cases[i].key) != 0)
                strbuf_printf(&b, "\"%s\":%s,", keys[k][0], keys[k][1]);
        strbuf_printf(&b, "\"%s\":%s}", cases[i].value ? cases[i].key : "none",
                      cases[i].value ? cases[i].value : "0");
        int st = parse(&c, strbuf_str(&b), &e);
        if (st != cases[i].st || !strstr(e.msg, cases[i].part))
            test_fail(__FILE__, __LINE__, "%s: found status %d '%s', wanted %d '%s'",
                      strbuf_str(&b), st, e.msg, cases[i].st, cases[i].part);
        CHECK_HAS(e.msg, "file 'dir/config.json': ");
        CHECK(strchr(e.msg, '\n') == NULL);
        CHECK_EQ(c.hidden, 0); // untouched
    }
    strbuf_fini(&b);
}

TEST(what_is_no_config_at_all_is_refused) {
    static const struct {
        const char *json, *part;
    } cases[] = {{"", "wanted JSON"},
                 {"[]", "wanted a JSON object, found a list"},
                 {"{\"model_type\":\"qwen3_5\"", "wanted JSON"},
                 {"null", "wanted JSON"},
                 {"{}", "model_type"},
                 {"{\"a\":1,\"a\":2}", "duplicate object key"},
                 {"\xff\xfe", "wanted JSON"}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct err e = {0};
        CHECK_NE(parse(&c, cases[i].json, &e), ST_OK);
        CHECK_HAS(e.msg, cases[i].part);
    }
}
