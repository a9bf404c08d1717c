/* checkpoint: folders of every layout open to the same names; every broken folder is refused in one line that names
 * the file, the tensor or key, what was wanted and what was found. */
#include "common/err.h"
#include "common/strbuf.h"
#include "tests/lib/test.h"
#include "worker/engine/checkpoint.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

// A small model: two layers, the second with full attention.
static const char config_text[] =
    "{\"model_type\":\"qwen3_5_text\",\"hidden_size\":8,\"num_hidden_layers\":2,\"vocab_size\":16,"
    "\"intermediate_size\":12,\"num_attention_heads\":2,\"num_key_value_heads\":1,\"head_dim\":8,"
    "\"full_attention_interval\":2,\"linear_num_key_heads\":1,\"linear_num_value_heads\":2,"
    "\"linear_key_head_dim\":4,\"linear_value_head_dim\":4,\"rope_parameters\":{\"rope_theta\":1e7}"
    "}";

struct tensor {
    const char *name, *shape;
    unsigned elements;
};
static const struct tensor tensors[] = {
    // names behind the prefix
    {"embed_tokens.weight", "[16,8]", 128},
    {"norm.weight", "[8]", 8},
    {"layers.0.input_layernorm.weight", "[8]", 8},
    {"layers.0.post_attention_layernorm.weight", "[8]", 8},
    {"layers.0.linear_attn.in_proj_qkv.weight", "[16,8]", 128},
    {"layers.0.linear_attn.in_proj_z.weight", "[8,8]", 64},
    {"layers.0.linear_attn.in_proj_b.weight", "[2,8]", 16},
    {"layers.0.linear_attn.in_proj_a.weight", "[2,8]", 16},
    {"layers.0.linear_attn.conv1d.weight", "[16,1,4]", 64},
    {"layers.0.linear_attn.A_log", "[2]", 2},
    {"layers.0.linear_attn.dt_bias", "[2]", 2},
    {"layers.0.linear_attn.norm.weight", "[4]", 4},
    {"layers.0.linear_attn.out_proj.weight", "[8,8]", 64},
    {"layers.0.mlp.gate_proj.weight", "[12,8]", 96},
    {"layers.0.mlp.up_proj.weight", "[12,8]", 96},
    {"layers.0.mlp.down_proj.weight", "[8,12]", 96},
    {"layers.1.input_layernorm.weight", "[8]", 8},
    {"layers.1.post_attention_layernorm.weight", "[8]", 8},
    {"layers.1.self_attn.q_proj.weight", "[32,8]", 256},
    {"layers.1.self_attn.k_proj.weight", "[8,8]", 64},
    {"layers.1.self_attn.v_proj.weight", "[8,8]", 64},
    {"layers.1.self_attn.o_proj.weight", "[8,16]", 128},
    {"layers.1.self_attn.q_norm.weight", "[8]", 8},
    {"layers.1.self_attn.k_norm.weight", "[8]", 8},
    {"layers.1.mlp.gate_proj.weight", "[12,8]", 96},
    {"layers.1.mlp.up_proj.weight", "[12,8]", 96},
    {"layers.1.mlp.down_proj.weight", "[8,12]", 96},
};
enum { TENSORS = sizeof tensors / sizeof tensors[0], PARAMETERS = 1632 };

// The same with 3 experts of width 4, one of which a row takes, and a shared one of width 6: packed in layer 0, one by one
// in layer 1.
static const char moe_config_text[] =
    "{\"model_type\":\"qwen3_5_moe_text\",\"hidden_size\":8,\"num_hidden_layers\":2,\"vocab_size\":"
    "16,"
    "\"num_experts\":3,\"num_experts_per_tok\":1,\"moe_intermediate_size\":4,"
    "\"shared_expert_intermediate_size\":6,\"num_attention_heads\":2,\"num_key_value_heads\":1,"
    "\"head_dim\":8,"
    "\"full_attention_interval\":2,\"linear_num_key_heads\":1,\"linear_num_value_heads\":2,"
    "\"linear_key_head_dim\":4,\"linear_value_head_dim\":4}";
static const struct tensor moe_tensors[] = {
    // instead of the dense layers' mlp.
    {"layers.0.mlp.gate.weight", "[3,8]", 24},
    {"layers.0.mlp.shared_expert_gate.weight", "[1,8]", 8},
    {"layers.0.mlp.shared_expert.gate_proj.weight", "[6,8]", 48},
    {"layers.0.mlp.shared_expert.up_proj.weight", "[6,8]", 48},
    {"layers.0.mlp.shared_expert.down_proj.weight", "[8,6]", 48},
    {"layers.0.mlp.experts.gate_up_proj", "[3,8,8]", 192},
    {"layers.0.mlp.experts.down_proj", "[3,8,4]", 96},
    {"layers.1.mlp.gate.weight", "[3,8]", 24},
    {"layers.1.mlp.shared_expert_gate.weight", "[1,8]", 8},
    {"layers.1.mlp.shared_expert.gate_proj.weight", "[6,8]", 48},
    {"layers.1.mlp.shared_expert.up_proj.weight", "[6,8]", 48},
    {"layers.1.mlp.shared_expert.down_proj.weight", "[8,6]", 48},
    {"layers.1.mlp.experts.0.gate_proj.weight", "[4,8]", 32},
    {"layers.1.mlp.experts.0.up_proj.weight", "[4,8]", 32},
    {"layers.1.mlp.experts.0.down_proj.weight", "[8,4]", 32},
    {"layers.1.mlp.experts.1.gate_proj.weight", "[4,8]", 32},
    {"layers.1.mlp.experts.1.up_proj.weight", "[4,8]", 32},
    {"layers.1.mlp.experts.1.down_proj.weight", "[8,4]", 32},
    {"layers.1.mlp.experts.2.gate_proj.weight", "[4,8]", 32},
    {"layers.1.mlp.experts.2.up_proj.weight", "[4,8]", 32},
    {"layers.1.mlp.experts.2.down_proj.weight", "[8,4]", 32},
};
enum {
    MOE_TENSORS = sizeof moe_tensors / sizeof moe_tensors[0],
    DENSE_MLP_TENSORS = 6,
    MOE_PARAMETERS = PARAMETERS - 6 * 96 + 2 * (24 + 8 + 3 * 48 + 192 + 96),
};

static const struct tensor *tensor_at(bool moe, unsigned i) {
    static const struct tensor *all[TENSORS + MOE_TENSORS];
    if (!moe) return &tensors[i];
    for (unsigned k = 0, n = 0; !all[0] || n < TENSORS - DENSE_MLP_TENSORS; k++)
        if (!strstr(tensors[k].name, ".mlp.")) all[n++] = &tensors[k];
    for (unsigned k = 0; k < MOE_TENSORS; k++)
        all[TENSORS - DENSE_MLP_TENSORS + k] = &moe_tensors[k];
    return all[i];
}

static unsigned tensors_of(bool moe) {
    return moe ? TENSORS - DENSE_MLP_TENSORS + MOE_TENSORS : TENSORS;
}

// How a folder differs from the good one.
struct change {
    bool moe;                     // of the model with experts
    const char *prefix;           // "model." when NULL
    const char *config;           // config.json; NULL: the good one, "": no file
    const char *drop;             // tensor left out
    const char *reshape, *shape;  // tensor with another shape of as many elements
    const char *retype, *dtype;   // tensor with another dtype
    unsigned dtype_bytes;         // of retype
    const struct tensor *more[5]; // full names, beside the others
    unsigned shards;              // 0: one file
    const char *index;            // the index instead of the right one
};

static char dir[400];

static void put_file(const char *name, const void *p, size_t len) {
    char path[512];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    FILE *f = fopen(path, "wb");
    CHECK(f != NULL);
    CHECK_EQ(fwrite(p, 1, len, f), len);
    fclose(f);
}

struct file { // a safetensors file in the making
    struct strbuf header, data;
};

static void add_tensor(struct file *f, const char *prefix, const struct tensor *t,
                       const char *shape, const char *dtype, unsigned bytes) {
    size_t at = f->data.len;
    for (unsigned i = 0; i < t->elements * bytes; i++) strbuf_add_char(&f->data, (char)(i * 7));
    strbuf_printf(&f->header,
                  "%c\"%s%s\":{\"dtype\":\"%s\",\"shape\":%s,\"data_offsets\":[%zu,%zu]}",
                  f->header.len ? ',' : '{', prefix, t->name, dtype, shape, at, f->data.len);
}

static void put_tensors(struct file *f, const char *name) {
    struct strbuf b = {0};
    strbuf_add_str(&f->header, f->header.len ? "}" : "{}");
    while (f->header.len % 8) strbuf_add_char(&f->header, ' ');
    uint64_t length = f->header.len;
    strbuf_add(&b, &length, sizeof length);
    strbuf_add(&b, f->header.p, f->header.len);
    if (f->data.len) strbuf_add(&b, f->data.p, f->data.len);
    put_file(name, b.p, b.len);
    strbuf_fini(&b);
    strbuf_fini(&f->header);
    strbuf_fini(&f->data);
}

static bool is(const char *a, const char *b) {
    return a && strcmp(a, b) == 0;
}

// Makes dir anew, as c says.
static void make(const struct change *c) {
    static int n;
    char name[64];
    struct file f = {0};
    struct strbuf index = {0};
    const char *prefix = c->prefix ? c->prefix : "model.";
    unsigned shards = c->shards ? c->shards : 1, shard = 0;
    snprintf(dir, sizeof dir, "%s/%d", test_temp_dir(), n++);
    CHECK_EQ(mkdir(dir, 0700), 0);
    if (!is(c->config, "")) {
        const char *text = c->config ? c->config : c->moe ? moe_config_text : config_text;
        put_file("config.json", text, strlen(text));
    }
    unsigned count = tensors_of(c->moe);
    for (unsigned i = 0; i < count; i++) {
        const struct tensor *t = tensor_at(c->moe, i);
        snprintf(name, sizeof name, c->shards ? "m-%u.safetensors" : "model.safetensors",
                 shard + 1);
        if (!is(c->drop, t->name)) {
            bool other = is(c->retype, t->name);
            add_tensor(&f, prefix, t, is(c->reshape, t->name) ? c->shape : t->shape,
                       other ? c->dtype : "BF16", other ? c->dtype_bytes : 2);
            strbuf_printf(&index, "%s\"%s%s\":\"%s\"", index.len ? "," : "", prefix, t->name, name);
        }
        bool last = i == count - 1;
        for (unsigned k = 0; last && k < 5 && c->more[k]; k++)
            add_tensor(&f, "", c->more[k], c->more[k]->shape, "BF16", 2);
        if (!last && (i + 1) * shards / count == shard) continue;
        put_tensors(&f, name);
        shard++;
    }
    if (c->shards) {
        struct strbuf b = {0};
        strbuf_printf(&b, "{\"metadata\":{},\"weight_map\":{%s}}", strbuf_str(&index));
        const char *text = c->index ? c->index : strbuf_str(&b);
        put_file("model.safetensors.index.json", text, strlen(text));
        strbuf_fini(&b);
    }
    strbuf_fini(&index);
}

static const struct tensor head = {"lm_head.weight", "[16,8]", 128};
static const struct tensor visual = {"model.visual.pos_embed.weight", "[4,4]", 16};
static const struct tensor visual_old = {"visual.pos_embed.weight", "[4,4]", 16};
static const struct tensor mtp = {"mtp.fc.weight", "[8,16]", 128};
static const struct tensor other = {"adapter.weight", "[2]", 2};

TEST(every_layout_opens_to_the_same_names) {
    static const struct change layouts[] = {
        {.prefix = "model."},
        {.prefix = "model.language_model."},
        {.prefix = "language_model.model."},
        {.prefix = "model.language_model.", .shards = 3},
        {.retype = "layers.0.linear_attn.A_log", .dtype = "F32", .dtype_bytes = 4},
        {.retype = "layers.0.mlp.up_proj.weight", .dtype = "F16", .dtype_bytes = 2},
    };
    for (size_t i = 0; i < sizeof layouts / sizeof layouts[0]; i++) {
        struct checkpoint *c = NULL;
        struct err e = {0};
        make(&layouts[i]);
        CHECK_OK(checkpoint_open(&c, dir, &e), e);
        CHECK_OK(checkpoint_check_shapes(c, &e), e);
        const struct checkpoint_info *info = checkpoint_info(c);
        CHECK_STR(info->text_prefix, layouts[i].prefix ? layouts[i].prefix : "model.");
        CHECK_EQ(info->text_tensors, TENSORS);
        CHECK_EQ(info->text_parameters, PARAMETERS);
        CHECK_EQ(info->files, layouts[i].shards ? layouts[i].shards : 1);
        CHECK(info->tied);
        const struct safetensors_tensor *t = checkpoint_text(c, "layers.%d.mlp.up_proj.weight", 1);
        CHECK(t != NULL && t->dims[0] == 12 && t->dims[1] == 8);
        CHECK(checkpoint_head(c) == checkpoint_text(c, "embed_tokens.weight"));
        CHECK(checkpoint_text(c, "layers.2.mlp.up_proj.weight") == NULL);
        CHECK_EQ(checkpoint_count(c), TENSORS);
        checkpoint_close(c);
    }
}

TEST(tensors_of_the_other_parts_are_counted_and_passed_by) {
    struct checkpoint *c = NULL;
    struct err e = {0};
    make(&(struct change){.more = {&head, &visual, &visual_old, &mtp, &other}});
    CHECK_OK(checkpoint_open(&c, dir, &e), e);
    CHECK_OK(checkpoint_check_shapes(c, &e), e);
    const struct checkpoint_info *info = checkpoint_info(c);
    CHECK_EQ(info->vision_tensors, 2);
    CHECK_EQ(info->mtp_tensors, 1);
    CHECK_EQ(info->mtp_bytes, 256);
    CHECK_EQ(info->other_tensors, 1);
    CHECK_EQ(info->text_tensors, TENSORS + 1);
    CHECK_EQ(info->text_parameters, PARAMETERS + 128);
    CHECK(!info->tied); // though the config does not say so: the tensor has the final word
    CHECK_STR(checkpoint_head(c)->name, "lm_head.weight");
    CHECK(checkpoint_find(c, "mtp.fc.weight") != NULL);
    checkpoint_close(c);
}

#define CONFIG_WITH(more)                                                                          \
    "{\"model_type\":\"qwen3_5_text\",\"hidden_size\":8,\"vocab_size\":16,\"intermediate_size\":"  \
    "12,"                                                                                          \
    "\"num_attention_heads\":2,\"num_key_value_heads\":1,\"head_dim\":8,\"full_attention_"         \
    "interval\":2,"                                                                                \
    "\"linear_num_key_heads\":1,\"linear_num_value_heads\":2,\"linear_key_head_dim\":4,"           \
    "\"linear_value_head_dim\":4," more "}"

#define MOE_CONFIG_WITH(more)                                                                      \
    "{\"model_type\":\"qwen3_5_moe_text\",\"hidden_size\":8,\"num_hidden_layers\":2,\"vocab_"      \
    "size\":16,"                                                                                   \
    "\"num_experts_per_tok\":1,\"moe_intermediate_size\":4,\"shared_expert_intermediate_size\":6," \
    "\"num_attention_heads\":2,\"num_key_value_heads\":1,\"head_dim\":8,\"full_attention_"         \
    "interval\":2,"                                                                                \
    "\"linear_num_key_heads\":1,\"linear_num_value_heads\":2,\"linear_key_head_dim\":4,"           \
    "\"linear_value_head_dim\":4," more "}"

static const struct tensor fourth = {"model.layers.1.mlp.experts.3.gate_proj.weight", "[4,8]", 32};
static const struct tensor again = {"model.norm.weight", "[8]", 8};
static const struct tensor third = {"model.layers.2.input_layernorm.weight", "[8]", 8};
static const struct tensor sliced = {"model.layers.0.mlp.up_proj.slice.0.trellis", "[1,1,64]", 64};
static const struct tensor odd_trellis = {"model.layers.0.linear_attn.conv1d.trellis", "[1,1,64]",
                                          64};
static const struct tensor trellis = {"model.layers.0.mlp.up_proj.trellis", "[1,1,64]", 64};
static const struct tensor bad_head = {"lm_head.weight", "[8,16]", 128};

TEST(a_broken_folder_is_refused_in_one_line) {
    static const struct {
        struct change change;
        int st;
        const char *part;
    } cases[] = {
        {{.config = ""}, ST_NOT_FOUND, "config.json': No such file"},
        {{.config = "{"}, ST_CORRUPT, "config.json': wanted JSON"},
        {{.config = CONFIG_WITH("\"num_hidden_layers\":NaN")},
         ST_CORRUPT,
         "config.json': wanted JSON"},
        {{.config = CONFIG_WITH("\"num_hidden_layers\":100000")},
         ST_CORRUPT,
         "num_hidden_layers: wanted a whole number from 1 to 512, found 100000"},
        {{.config = CONFIG_WITH("\"num_hidden_layers\":512")},
         ST_CORRUPT,
         "tensor 'model.layers.2.input_layernorm.weight': wanted, found in no file"},
        {{.config = CONFIG_WITH("\"num_hidden_layers\":1")},
         ST_CORRUPT,
         "tensor 'model.layers.1.input_layernorm.weight': wanted 1 layers (num_hidden_layers), "
         "found more"},
        {{.config = CONFIG_WITH("\"num_hidden_layers\":2,\"num_experts\":8")},
         ST_CORRUPT,
         "tensor 'model.layers.0.mlp.gate.weight': wanted, found in no file"},
        {{.moe = true, .config = config_text},
         ST_CORRUPT,
         "tensor 'model.layers.0.mlp.gate_proj.weight': wanted, found in no file"},
        {{.moe = true, .drop = "layers.1.mlp.experts.1.up_proj.weight"},
         ST_CORRUPT,
         "tensor 'model.layers.1.mlp.experts.1.up_proj.weight': wanted, found in no file"},
        {{.moe = true, .drop = "layers.0.mlp.experts.gate_up_proj"},
         ST_CORRUPT,
         "tensor 'model.layers.0.mlp.experts.gate_up_proj': wanted, found in no file"},
        {{.moe = true, .drop = "layers.0.mlp.experts.down_proj"},
         ST_CORRUPT,
         "tensor 'model.layers.0.mlp.experts.down_proj': wanted, found in no file"},
        {{.moe = true, .more = {&fourth}},
         ST_CORRUPT,
         "tensor 'model.layers.1.mlp.experts.3.gate_proj.weight': wanted 3 experts (num_experts), "
         "found more"},
        {{.moe = true, .config = MOE_CONFIG_WITH("\"num_experts\":4")},
         ST_CORRUPT,
         "tensor 'model.layers.0.mlp.gate.weight': wanted shape [4, 8], found [3, 8]"},
        {{.moe = true, .config = MOE_CONFIG_WITH("\"num_experts\":2")},
         ST_CORRUPT,
         "tensor 'model.layers.0.mlp.gate.weight': wanted shape [2, 8], found [3, 8]"},
        {{.moe = true, .config = MOE_CONFIG_WITH("\"num_experts\":0")},
         ST_CORRUPT,
         "num_experts: wanted a whole number from 1 to 4096, found 0"},
        {{.moe = true, .reshape = "layers.0.mlp.experts.gate_up_proj", .shape = "[4,6,8]"},
         ST_CORRUPT,
         "experts.gate_up_proj': wanted shape [3, 8, 8], found [4, 6, 8]"},
        {{.moe = true, .reshape = "layers.0.mlp.experts.down_proj", .shape = "[3,4,8]"},
         ST_CORRUPT,
         "experts.down_proj': wanted shape [3, 8, 4], found [3, 4, 8]"},
        {{.moe = true, .reshape = "layers.1.mlp.shared_expert_gate.weight", .shape = "[8]"},
         ST_CORRUPT,
         "shared_expert_gate.weight': wanted shape [1, 8], found [8]"},
        {{.moe = true,
          .retype = "layers.0.mlp.experts.down_proj",
          .dtype = "F8_E4M3",
          .dtype_bytes = 1},
         ST_UNSUPPORTED,
         "experts.down_proj': wanted BF16, F16 or F32, found F8_E4M3"},
        {{.config = CONFIG_WITH("\"num_hidden_layers\":2,\"linear_conv_kernel_dim\":3")},
         ST_CORRUPT,
         "conv1d.weight': wanted shape [16, 1, 3], found [16, 1, 4]"},
        {{.config = CONFIG_WITH(
              "\"num_hidden_layers\":2,\"layer_types\":[\"full_attention\",\"linear_attention\"]")},
         ST_CORRUPT,
         "tensor 'model.layers.0.self_attn.q_proj.weight': wanted, found in no file"},
        {{.drop = "embed_tokens.weight"},
         ST_CORRUPT,
         "wanted tensor 'model.language_model.embed_tokens.weight' or 'model.embed_tokens.weight', "
         "found neither"},
        {{.drop = "layers.0.linear_attn.dt_bias"},
         ST_CORRUPT,
         "tensor 'model.layers.0.linear_attn.dt_bias': wanted, found in no file"},
        {{.drop = "layers.1.mlp.down_proj.weight", .shards = 2},
         ST_CORRUPT,
         "tensor 'model.layers.1.mlp.down_proj.weight': wanted, found in no file"},
        {{.drop = "layers.0.mlp.up_proj.weight", .more = {&trellis}},
         ST_UNSUPPORTED,
         "tensor 'model.layers.0.mlp.up_proj.trellis': wanted I16, found BF16"},
        {{.drop = "layers.0.mlp.up_proj.weight", .more = {&sliced}},
         ST_UNSUPPORTED,
         "tensor 'model.layers.0.mlp.up_proj.weight': wanted plain weights, found EXL3 in slices"},
        {{.drop = "layers.0.linear_attn.conv1d.weight", .more = {&odd_trellis}},
         ST_UNSUPPORTED,
         "tensor 'model.layers.0.linear_attn.conv1d.weight': wanted plain weights, found EXL3"},
        {{.reshape = "layers.1.self_attn.q_proj.weight", .shape = "[16,16]"},
         ST_CORRUPT,
         "tensor 'model.layers.1.self_attn.q_proj.weight': wanted shape [32, 8], found [16, 16]"},
        {{.reshape = "layers.0.linear_attn.conv1d.weight", .shape = "[16,4]"},
         ST_CORRUPT,
         "wanted shape [16, 1, 4], found [16, 4]"},
        {{.reshape = "norm.weight", .shape = "[8,1]"},
         ST_CORRUPT,
         "wanted shape [8], found [8, 1]"},
        {{.reshape = "embed_tokens.weight", .shape = "[8,16]"},
         ST_CORRUPT,
         "wanted shape [16, 8], found [8, 16]"},
        {{.more = {&bad_head}},
         ST_CORRUPT,
         "tensor 'lm_head.weight': wanted shape [16, 8], found [8, 16]"},
        {{.retype = "layers.0.mlp.up_proj.weight", .dtype = "F8_E4M3", .dtype_bytes = 1},
         ST_UNSUPPORTED,
         "tensor 'model.layers.0.mlp.up_proj.weight': wanted BF16, F16 or F32, found F8_E4M3"},
        {{.retype = "norm.weight", .dtype = "I16", .dtype_bytes = 2}, ST_UNSUPPORTED, "found I16"},
        {{.retype = "norm.weight", .dtype = "F32", .dtype_bytes = 2},
         ST_CORRUPT,
         "tensor 'model.norm.weight': data_offsets: wanted 32 bytes for F32 [8], found 16"},
        {{.more = {&again}}, ST_CORRUPT, "model.safetensors': header: wanted JSON, found at byte"},
        {{.more = {&third}}, ST_CORRUPT, "wanted 2 layers (num_hidden_layers), found more"},
        {{.shards = 2, .more = {&again}},
         ST_CORRUPT,
         "tensor 'model.norm.weight': wanted in one shard, found in"},
        {{.shards = 1, .index = "[]"},
         ST_CORRUPT,
         "index.json': weight_map: wanted an object of tensor names, found nothing"},
        {{.shards = 1, .index = "{\"weight_map\":{}}"},
         ST_CORRUPT,
         "weight_map: wanted an object of tensor names, found none"},
        {{.shards = 1, .index = "{\"weight_map\":[1]}"},
         ST_CORRUPT,
         "weight_map: wanted an object of tensor names, found a list"},
        {{.shards = 1, .index = "{\"weight_map\":{\"a\":1,\"a\":2}}"},
         ST_CORRUPT,
         "index.json': wanted JSON"},
        {{.shards = 1, .index = "{\"weight_map\":{\"a\":\"../../etc/passwd\"}}"},
         ST_CORRUPT,
         "tensor 'a': wanted a *.safetensors file of this folder, found \"../../etc/passwd\""},
        {{.shards = 1, .index = "{\"weight_map\":{\"a\":\"../m-1.safetensors\"}}"},
         ST_CORRUPT,
         "wanted a *.safetensors file of this folder"},
        {{.shards = 1, .index = "{\"weight_map\":{\"a\":\"/etc/x.safetensors\"}}"},
         ST_CORRUPT,
         "wanted a *.safetensors file of this folder"},
        {{.shards = 1, .index = "{\"weight_map\":{\"a\":\".safetensors\"}}"},
         ST_CORRUPT,
         "wanted a *.safetensors file of this folder"},
        {{.shards = 1, .index = "{\"weight_map\":{\"a\":\"config.json\"}}"},
         ST_CORRUPT,
         "wanted a *.safetensors file of this folder"},
        {{.shards = 1, .index = "{\"weight_map\":{\"a\":null}}"},
         ST_CORRUPT,
         "wanted a *.safetensors file of this folder, found null"},
        {{.shards = 1, .index = "{\"weight_map\":{\"a\":\"m-9.safetensors\"}}"},
         ST_NOT_FOUND,
         "shard of 'model.safetensors.index.json': file '"},
        {{.shards = 1, .index = "{\"weight_map\":{\"a\":\"m-1.safetensors\"}}"},
         ST_CORRUPT,
         "weight_map: tensor 'a': wanted in 'm-1.safetensors', found nowhere"},
        {{.shards = 2,
          .index = "{\"weight_map\":{\"model.layers.1.mlp.down_proj.weight\":\"m-2.safetensors\","
                   "\"b\":\"m-1."
                   "safetensors\"}}"},
         ST_CORRUPT,
         "wanted in 'm-1.safetensors', found nowhere"},
        {{.shards = 2,
          .index = "{\"weight_map\":{\"model.norm.weight\":\"m-2.safetensors\",\"model.layers.0."
                   "linear_attn.A_log\":\"m-1.safetensors\"}}"},
         ST_CORRUPT,
         "tensor 'model.norm.weight': wanted in 'm-2.safetensors', found in m-1.safetensors"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct checkpoint *c = NULL;
        struct err e = {0};
        make(&cases[i].change);
        int st = checkpoint_open(&c, dir, &e);
        if (!st) st = checkpoint_check_shapes(c, &e);
        checkpoint_close(c);
        if (st != cases[i].st || !strstr(e.msg, cases[i].part))
            test_fail(__FILE__, __LINE__, "case %zu: found status %d '%s', wanted %d '%s'", i, st,
                      e.msg, cases[i].st, cases[i].part);
        CHECK(strchr(e.msg, '\n') == NULL);
        CHECK_EQ(e.st, st);
    }
}

/* Each tensor that the model needs is really asked for: a forgotten one would be read from nowhere later. */
static void check_needed(bool moe, const struct tensor *t, bool reshape) {
    struct checkpoint *c = NULL;
    struct err e = {0};
    struct change change = {.moe = moe};
    char shape[32];
    snprintf(shape, sizeof shape, "[1,%u,1]", t->elements);
    if (reshape)
        change.reshape = t->name, change.shape = shape;
    else
        change.drop = t->name;
    make(&change);
    int st = checkpoint_open(&c, dir, &e);
    if (!st) st = checkpoint_check_shapes(c, &e);
    CHECK_EQ(st, ST_CORRUPT);
    CHECK_HAS(e.msg, t->name);
    CHECK(strchr(e.msg, '\n') == NULL);
    checkpoint_close(c);
}

TEST(no_tensor_can_be_missing_or_of_another_shape) {
    for (int moe = 0; moe < 2; moe++)
        for (unsigned i = 0; i < tensors_of(moe); i++)
            for (int reshape = 0; reshape < 2; reshape++)
                check_needed(moe, tensor_at(moe, i), reshape);
}

static const struct tensor both[] = {{"model.layers.0.mlp.experts.0.gate_proj.weight", "[4,8]", 32},
                                     {"model.layers.0.mlp.experts.0.up_proj.weight", "[4,8]", 32}};

TEST(the_form_of_the_experts_is_looked_up_layer_by_layer) {
    static const struct change layouts[] = {
        {.moe = true},
        {.moe = true, .prefix = "model.language_model.", .shards = 3},
        {.moe = true,
         .retype = "layers.1.mlp.experts.1.up_proj.weight",
         .dtype = "F32",
         .dtype_bytes = 4},
        {.moe = true, .retype = "layers.0.mlp.experts.down_proj", .dtype = "F16", .dtype_bytes = 2},
        {.moe = true, .more = {&both[0], &both[1]}},
    };
    for (size_t i = 0; i < sizeof layouts / sizeof layouts[0]; i++) {
        struct checkpoint *c = NULL;
        struct err e = {0};
        make(&layouts[i]);
        CHECK_OK(checkpoint_open(&c, dir, &e), e);
        CHECK_OK(checkpoint_check_shapes(c, &e), e);
        const struct checkpoint_info *info = checkpoint_info(c);
        CHECK_EQ(checkpoint_experts(c, info->text_prefix, 0), CHECKPOINT_EXPERTS_PACKED);
        CHECK_EQ(checkpoint_experts(c, info->text_prefix, 1), CHECKPOINT_EXPERTS_SINGLE);
        CHECK_EQ(info->packed_layers, 1);
        CHECK_EQ(info->single_layers, 1);
        CHECK_EQ(info->both_layers, layouts[i].more[0] != NULL);
        CHECK_EQ(info->text_parameters, MOE_PARAMETERS + (layouts[i].more[0] ? 64 : 0));
        checkpoint_close(c);
    }
}

TEST(what_is_no_folder_of_a_model_is_refused) {
    struct checkpoint *c = NULL;
    struct err e = {0};
    char path[512];
    make(&(struct change){0});
    snprintf(path, sizeof path, "%s/config.json", dir);
    CHECK_EQ(checkpoint_open(&c, path, &e), ST_UNSUPPORTED);
    CHECK_HAS(e.msg, "wanted a folder with config.json, found a file");
    put_file("x.gguf", "GGUF", 4);
    snprintf(path, sizeof path, "%s/x.gguf", dir);
    CHECK_EQ(checkpoint_open(&c, path, &e), ST_UNSUPPORTED);
    CHECK_HAS(e.msg, "found a GGUF file (known, not in this build)");
    snprintf(path, sizeof path, "%s/nowhere", dir);
    CHECK_EQ(checkpoint_open(&c, path, &e), ST_NOT_FOUND);
    CHECK_HAS(e.msg, "nowhere'");
    snprintf(path, sizeof path, "%s/model.safetensors", dir);
    CHECK_EQ(unlink(path), 0);
    CHECK_EQ(checkpoint_open(&c, dir, &e), ST_UNSUPPORTED);
    CHECK_HAS(e.msg, "wanted model.safetensors or model.safetensors.index.json, found a GGUF file");
    CHECK_EQ(mkdir(path, 0700), 0);
    CHECK_EQ(checkpoint_open(&c, dir, &e), ST_IO);
    CHECK_HAS(e.msg, "model.safetensors': wanted a regular file, found a folder");
    CHECK_EQ(rmdir(path), 0);
    CHECK_EQ(symlink("model.safetensors", path), 0); // a link to itself
    CHECK_EQ(checkpoint_open(&c, dir, &e), ST_IO);
    CHECK_HAS(e.msg, "model.safetensors'");
    CHECK_EQ(unlink(path), 0);
    snprintf(path, sizeof path, "%s/x.gguf", dir);
    CHECK_EQ(unlink(path), 0);
    CHECK_EQ(checkpoint_open(&c, dir, &e), ST_NOT_FOUND);
    CHECK_HAS(e.msg, "found neither");
    snprintf(path, sizeof path, "%s/config.json", dir);
    CHECK_EQ(unlink(path), 0);
    CHECK_EQ(mkdir(path, 0700), 0);
    CHECK_EQ(checkpoint_open(&c, dir, &e), ST_IO);
    CHECK_HAS(e.msg, "config.json': wanted a regular file, found a folder");
    CHECK(c == NULL);
}

TEST(a_truncated_shard_is_refused_by_name) {
    struct checkpoint *c = NULL;
    struct err e = {0};
    struct stat sb;
    char path[512];
    make(&(struct change){.shards = 3});
    snprintf(path, sizeof path, "%s/m-2.safetensors", dir);
    CHECK_EQ(stat(path, &sb), 0);
    CHECK_EQ(truncate(path, sb.st_size - 1), 0);
    CHECK_EQ(checkpoint_open(&c, dir, &e), ST_CORRUPT);
    CHECK_HAS(e.msg, "m-2.safetensors': tensor '");
    CHECK_EQ(truncate(path, 100), 0);
    CHECK_EQ(checkpoint_open(&c, dir, &e), ST_CORRUPT);
    CHECK_HAS(e.msg, "m-2.safetensors': header length: wanted at most 92");
}

static void digest_of(const struct change *change, char ret[CHECKPOINT_DIGEST_HEX_BYTES]) {
    struct checkpoint *c = NULL;
    struct err e = {0};
    make(change);
    CHECK_OK(checkpoint_open(&c, dir, &e), e);
    checkpoint_digest(c, ret);
    checkpoint_close(c);
}

TEST(the_digest_follows_config_headers_and_data) {
    char a[CHECKPOINT_DIGEST_HEX_BYTES], b[CHECKPOINT_DIGEST_HEX_BYTES];
    digest_of(&(struct change){0}, a);
    digest_of(&(struct change){0}, b);
    CHECK_STR(a, b); // the folder's name does not count
    static const struct change others[] = {
        {.prefix = "model.language_model."},
        {.shards = 2},
        {.more = {&other}},
        {.config = CONFIG_WITH("\"num_hidden_layers\":2")},
    };
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++) {
        digest_of(&others[i], b);
        CHECK(strcmp(a, b) != 0);
    }
    // one byte of the data, at its end
    char path[512];
    struct checkpoint *c = NULL;
    struct err e = {0};
    make(&(struct change){0});
    snprintf(path, sizeof path, "%s/model.safetensors", dir);
    FILE *f = fopen(path, "r+b");
    CHECK(f && fseek(f, -1, SEEK_END) == 0 && fputc(1, f) == 1);
    fclose(f);
    CHECK_OK(checkpoint_open(&c, dir, &e), e);
    checkpoint_digest(c, b);
    checkpoint_close(c);
    CHECK(strcmp(a, b) != 0);
}

/* ---- The published models: their shapes in a sparse file, their parameter counts as published ---- */

struct dims {
    const char *name;
    unsigned L, D, I, H, KV, NV;
    bool tied;
    uint64_t parameters; // of the text tower
    // With experts (I is then 0):
    unsigned E, K, IM, IS;
    bool single; // one by one, as quantised packs have them
};

static void add_sparse(struct strbuf *header, uint64_t *at, uint64_t rows, uint64_t columns,
                       const char *fmt, ...) __attribute__((format(printf, 5, 6)));
static void add_sparse(struct strbuf *header, uint64_t *at, uint64_t rows, uint64_t columns,
                       const char *fmt, ...) {
    va_list ap;
    uint64_t bytes = rows * (columns ? columns : 1) * 2;
    strbuf_add_str(header, header->len ? ",\"" : "{\"");
    va_start(ap, fmt);
    strbuf_vprintf(header, fmt, ap);
    va_end(ap);
    strbuf_printf(header, "\":{\"dtype\":\"BF16\",\"shape\":[%llu", (unsigned long long)rows);
    if (columns == 4) strbuf_add_str(header, ",1"); // the convolution's taps
    if (columns) strbuf_printf(header, ",%llu", (unsigned long long)columns);
    strbuf_printf(header, "],\"data_offsets\":[%llu,%llu]}", (unsigned long long)*at,
                  (unsigned long long)(*at + bytes));
    *at += bytes;
}

// [experts, rows, columns]
static void add_sparse_packed(struct strbuf *header, uint64_t *at, uint64_t experts, uint64_t rows,
                              uint64_t columns, unsigned layer, const char *name) {
    uint64_t bytes = experts * rows * columns * 2;
    strbuf_printf(
        header,
        ",\"model.language_model.layers.%u.mlp.experts.%s\":{\"dtype\":\"BF16\",\"shape\":"
        "[%llu,%llu,%llu],\"data_offsets\":[%llu,%llu]}",
        layer, name, (unsigned long long)experts, (unsigned long long)rows,
        (unsigned long long)columns, (unsigned long long)*at, (unsigned long long)(*at + bytes));
    *at += bytes;
}

static void add_sparse_mlp(struct strbuf *h, uint64_t *at, uint64_t D, uint64_t I, unsigned layer,
                           const char *stem) {
    const char *p = "model.language_model.layers";
    add_sparse(h, at, I, D, "%s.%u.%s.gate_proj.weight", p, layer, stem);
    add_sparse(h, at, I, D, "%s.%u.%s.up_proj.weight", p, layer, stem);
    add_sparse(h, at, D, I, "%s.%u.%s.down_proj.weight", p, layer, stem);
}

static void add_sparse_experts(struct strbuf *h, uint64_t *at, const struct dims *d, unsigned i) {
    const char *p = "model.language_model.layers";
    char stem[40];
    add_sparse(h, at, d->E, d->D, "%s.%u.mlp.gate.weight", p, i);
    add_sparse(h, at, 1, d->D, "%s.%u.mlp.shared_expert_gate.weight", p, i);
    add_sparse_mlp(h, at, d->D, d->IS, i, "mlp.shared_expert");
    for (unsigned e = 0; d->single && e < d->E; e++) {
        snprintf(stem, sizeof stem, "mlp.experts.%u", e);
        add_sparse_mlp(h, at, d->D, d->IM, i, stem);
    }
    if (d->single) return;
    add_sparse_packed(h, at, d->E, 2 * d->IM, d->D, i, "gate_up_proj");
    add_sparse_packed(h, at, d->E, d->D, d->IM, i, "down_proj");
}

static void add_sparse_layer(struct strbuf *h, uint64_t *at, const struct dims *d, unsigned i) {
    const char *p = "model.language_model.layers";
    unsigned VD = d->NV * 128, C = 4096 + VD;
    add_sparse(h, at, d->D, 0, "%s.%u.input_layernorm.weight", p, i);
    add_sparse(h, at, d->D, 0, "%s.%u.post_attention_layernorm.weight", p, i);
    if (d->E)
        add_sparse_experts(h, at, d, i);
    else
        add_sparse_mlp(h, at, d->D, d->I, i, "mlp");
    if (i % 4 == 3) {
        add_sparse(h, at, d->H * 512, d->D, "%s.%u.self_attn.q_proj.weight", p, i);
        add_sparse(h, at, d->KV * 256, d->D, "%s.%u.self_attn.k_proj.weight", p, i);
        add_sparse(h, at, d->KV * 256, d->D, "%s.%u.self_attn.v_proj.weight", p, i);
        add_sparse(h, at, d->D, d->H * 256, "%s.%u.self_attn.o_proj.weight", p, i);
        add_sparse(h, at, 256, 0, "%s.%u.self_attn.q_norm.weight", p, i);
        add_sparse(h, at, 256, 0, "%s.%u.self_attn.k_norm.weight", p, i);
        return;
    }
    add_sparse(h, at, C, d->D, "%s.%u.linear_attn.in_proj_qkv.weight", p, i);
    add_sparse(h, at, VD, d->D, "%s.%u.linear_attn.in_proj_z.weight", p, i);
    add_sparse(h, at, d->NV, d->D, "%s.%u.linear_attn.in_proj_b.weight", p, i);
    add_sparse(h, at, d->NV, d->D, "%s.%u.linear_attn.in_proj_a.weight", p, i);
    add_sparse(h, at, C, 4, "%s.%u.linear_attn.conv1d.weight", p, i);
    add_sparse(h, at, d->NV, 0, "%s.%u.linear_attn.A_log", p, i);
    add_sparse(h, at, d->NV, 0, "%s.%u.linear_attn.dt_bias", p, i);
    add_sparse(h, at, 128, 0, "%s.%u.linear_attn.norm.weight", p, i);
    add_sparse(h, at, d->D, VD, "%s.%u.linear_attn.out_proj.weight", p, i);
}

// The folder of a published model whose weights are a hole of the right size.
static void make_published(const struct dims *d) {
    struct strbuf config = {0}, header = {0}, file = {0};
    uint64_t at = 0;
    char path[512];
    snprintf(dir, sizeof dir, "%s/%s", test_temp_dir(), d->name);
    CHECK_EQ(mkdir(dir, 0700), 0);
    const char *kind = d->E ? "qwen3_5_moe" : "qwen3_5";
    strbuf_printf(
        &config,
        "{\"model_type\":\"%s\",\"text_config\":{\"model_type\":\"%s_text\","
        "\"hidden_size\":%u,\"num_hidden_layers\":%u,\"vocab_size\":248320,"
        "\"num_attention_heads\":%u,\"num_key_value_heads\":%u,\"linear_num_value_heads\":%u,",
        kind, kind, d->D, d->L, d->H, d->KV, d->NV);
    if (d->E)
        strbuf_printf(&config,
                      "\"num_experts\":%u,\"num_experts_per_tok\":%u,\"moe_intermediate_size\":%u,"
                      "\"shared_expert_intermediate_size\":%u}}",
                      d->E, d->K, d->IM, d->IS);
    else
        strbuf_printf(&config, "\"intermediate_size\":%u}}", d->I);
    put_file("config.json", config.p, config.len);
    add_sparse(&header, &at, 248320, d->D, "model.language_model.embed_tokens.weight");
    add_sparse(&header, &at, d->D, 0, "model.language_model.norm.weight");
    if (!d->tied) add_sparse(&header, &at, 248320, d->D, "lm_head.weight");
    for (unsigned i = 0; i < d->L; i++) add_sparse_layer(&header, &at, d, i);
    strbuf_add_char(&header, '}');
    while (header.len % 8) strbuf_add_char(&header, ' ');
    uint64_t length = header.len;
    strbuf_add(&file, &length, sizeof length);
    strbuf_add(&file, header.p, header.len);
    put_file("model.safetensors", file.p, file.len);
    snprintf(path, sizeof path, "%s/model.safetensors", dir);
    CHECK_EQ(truncate(path, (off_t)(file.len + at)), 0);
    strbuf_fini(&config);
    strbuf_fini(&header);
    strbuf_fini(&file);
}

static void check_published(const struct dims *d) {
    struct checkpoint *c = NULL;
    struct err e = {0};
    make_published(d);
    CHECK_OK(checkpoint_open(&c, dir, &e), e);
    CHECK_OK(checkpoint_check_shapes(c, &e), e);
    const struct checkpoint_info *info = checkpoint_info(c);
    CHECK_EQ_U64(info->text_parameters, d->parameters);
    CHECK_EQ(info->tied, d->tied);
    CHECK_EQ(info->packed_layers, d->E && !d->single ? d->L : 0);
    CHECK_EQ(info->single_layers, d->E && d->single ? d->L : 0);
    checkpoint_close(c);
}

TEST(shapes_of_the_published_dense_models_add_up_to_their_published_sizes) {
    static const struct dims models[] = {
        {"0.8B", 24, 1024, 3584, 8, 2, 16, true, .parameters = 752393024},
        {"2B", 24, 2048, 6144, 8, 2, 16, true, .parameters = 1881825088},
        {"4B", 32, 2560, 9216, 16, 4, 32, true, .parameters = 4205751296},
        {"9B", 32, 4096, 12288, 16, 4, 32, false, .parameters = 8953803264},
        {"27B", 64, 5120, 17408, 24, 4, 48, false, .parameters = 26895998464},
    };
    for (size_t i = 0; i < sizeof models / sizeof models[0]; i++) check_published(&models[i]);
}

/* The 122B and the 397B have an expert width of 1024 for the shared expert too: with any other the totals are missed. */
TEST(shapes_of_the_published_models_with_experts_add_up_to_their_published_sizes) {
    static const struct dims models[] = {
        {"35B-A3B", 40, 2048, 0, 16, 2, 32, false, .parameters = 34660610688, .E = 256, .K = 8,
         .IM = 512, .IS = 512, .single = false},
        {"35B-A3B-single", 40, 2048, 0, 16, 2, 32, false, .parameters = 34660610688, .E = 256,
         .K = 8, .IM = 512, .IS = 512, .single = true},
        {"122B-A10B", 48, 3072, 0, 32, 2, 64, false, .parameters = 122111526912, .E = 256, .K = 8,
         .IM = 1024, .IS = 1024, .single = false},
        {"397B-A17B", 60, 4096, 0, 32, 2, 64, false, .parameters = 396346350336, .E = 512, .K = 10,
         .IM = 1024, .IS = 1024, .single = false},
#ifndef __SANITIZE_THREAD__ // which has no room to map 4.8 TB
        {"2.4T-A95B", 92, 8192, 0, 64, 4, 128, false, .parameters = 2419804697984, .E = 512,
         .K = 10, .IM = 2048, .IS = 2048, .single = false},
#endif
    };
    for (size_t i = 0; i < sizeof models / sizeof models[0]; i++) check_published(&models[i]);
}
