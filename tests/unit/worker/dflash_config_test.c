/* Drafters that do not fit, are damaged, or are of a form that this build does not run: each is refused with one sentence that names file,
 * key or tensor, what was wanted and what was found. Then the alternatives in which files of several trainers say the same. */
#include "common/err.h"
#include "common/mem.h"
#include "common/strbuf.h"
#include "kernels/cpu_pool.h"
#include "kernels/ops.h"
#include "tests/lib/dflash_tiny.h"
#include "tests/lib/test.h"
#include "worker/engine/dflash_config.h"
#include "worker/engine/drafter.h"
#include "worker/engine/model_config.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SLIDING "\"sliding_attention\", \"sliding_attention\""
#define FULL "\"full_attention\", \"full_attention\""

static const struct dflash_target target = {TINY_D, TINY_TARGET_LAYERS, TINY_VOCAB};

// A config with some text in another's place. from "": put in front of the first key.
static void replaced(struct strbuf *ret, const char *config, const char *from, const char *to) {
    const char *at = *from ? strstr(config, from) : config + 1;
    if (!at) test_fail(__FILE__, __LINE__, "the config has no %s", from);
    strbuf_reset(ret);
    strbuf_add(ret, config, (size_t)(at - config));
    strbuf_add_str(ret, to);
    strbuf_add_str(ret, at + strlen(from));
}

static int parse(struct dflash_config *ret, const char *text, struct err *e) {
    *e = (struct err){0};
    return dflash_config_parse(ret, "DIR/config.json", text, strlen(text), &target, e);
}

struct refusal {
    const char *from, *to;
    int st;
    const char *wanted;
};

static const struct refusal refusals[] = {
    {"DFlash2DraftModel", "DSparkDraftModel", ST_UNSUPPORTED,
     "architectures: wanted [\"DFlashDraftModel\"] or [\"DFlash2DraftModel\"], found "
     "DSparkDraftModel"},
    {"[\"DFlash2DraftModel\"]", "\"DFlash2DraftModel\"", ST_UNSUPPORTED, "architectures: wanted"},
    {"\"qwen3\"", "\"qwen3_5\"", ST_UNSUPPORTED, "model_type: wanted qwen3, found \"qwen3_5\""},
    {"\"model_type\": \"qwen3\", ", "", ST_UNSUPPORTED, "model_type: wanted qwen3, found nothing"},
    {"\"hidden_size\": 32", "\"hidden_size\": 64", ST_INVAL,
     "hidden_size: wanted 32 (hidden_size of the target), found 64"},
    {"\"vocab_size\": 64", "\"vocab_size\": 65", ST_INVAL,
     "vocab_size: wanted 64 (vocab_size of the target), found 65"},
    {"\"num_target_layers\": 4", "\"num_target_layers\": 5", ST_INVAL,
     "num_target_layers: wanted 4 (num_hidden_layers of the target), found 5"},
    {"\"rope_theta\": 10000, ", "", ST_INVAL,
     "rope_theta: wanted a number here, in rope_parameters or in rope_scaling, found nothing"},
    {"\"rope_theta\": 10000", "\"rope_theta\": \"x\"", ST_CORRUPT,
     "rope_theta: wanted a number from"},
    {"\"rope_theta\"", "\"rope_scaling\": {\"type\": \"yarn\", \"factor\": 4}, \"rope_theta\"",
     ST_UNSUPPORTED, "rope_scaling.type: wanted default, found \"yarn\""},
    {"\"num_key_value_heads\": 2", "\"num_key_value_heads\": 3", ST_CORRUPT,
     "num_key_value_heads: wanted a divisor of num_attention_heads 4, found 3"},
    {"\"head_dim\": 8", "\"head_dim\": 7", ST_UNSUPPORTED, "head_dim: wanted an even number"},
    {"\"head_dim\": 8", "\"head_dim\": 1024", ST_CORRUPT,
     "head_dim: wanted a whole number from 2 to 512"},
    {SLIDING, "\"sliding_attention\"", ST_CORRUPT, "layer_types: wanted a list of 2 words"},
    {SLIDING, "\"sliding_attention\", \"linear_attention\"", ST_UNSUPPORTED,
     "layer_types: layer 1: wanted full_attention or sliding_attention, found "
     "\"linear_attention\""},
    {"\"sliding_window\": 6, ", "", ST_CORRUPT, "sliding_window: wanted a whole number from 2"},
    {"\"sliding_window\": 6", "\"sliding_window\": 1", ST_CORRUPT, "sliding_window: wanted"},
    {"[0, 1]", "[0, 4]", ST_INVAL, "target_layer_ids: wanted layers 0 to 3 of the target, found 4"},
    {"[0, 1]", "[-1, 1]", ST_INVAL,
     "target_layer_ids: wanted layers 0 to 3 of the target, found -1"},
    {"[0, 1]", "[1, 1]", ST_INVAL, "target_layer_ids: wanted each layer once, found 1 twice"},
    {"[0, 1]", "[]", ST_CORRUPT, "dflash_config.target_layer_ids: wanted a list of 1 to 32 layers"},
    {"[0, 1]", "[0.5, 1]", ST_CORRUPT, "target_layer_ids: wanted whole numbers, found 0.5"},
    {"\"mask_token_id\": 63", "\"mask_token_id\": 64", ST_INVAL,
     "mask_token_id: wanted an id of the vocabulary, below 64, found 64"},
    {"\"mask_token_id\": 63, ", "", ST_CORRUPT, "mask_token_id: wanted an id, found nothing"},
    {"\"block_size\": 4, ", "", ST_CORRUPT, "block_size: wanted a number here or in dflash_config"},
    {"\"block_size\": 4", "\"block_size\": 33", ST_CORRUPT,
     "block_size: wanted a whole number from 2 to 32"},
    {"", "\"block_size\": 5, ", ST_CORRUPT, "block_size: wanted dflash_config's 4, found 5"},
    {"\"conv_kernel_size\": 2", "\"conv_kernel_size\": 9", ST_CORRUPT, "conv_kernel_size: wanted"},
    {"\"conv_group_size\": 8", "\"conv_group_size\": 7", ST_CORRUPT,
     "conv_group_size: wanted a divisor of hidden_size 32, found 7"},
    {"\"selector_top_k\": 4", "\"selector_top_k\": 33", ST_CORRUPT, "selector_top_k: wanted"},
    {", \"selector_rank\": 4", "", ST_CORRUPT, "selector_rank: wanted a whole number"},
    {"\"block_size\"", "\"use_swa\": true, \"block_size\"", ST_UNSUPPORTED,
     "dflash_config.use_swa: wanted nothing or false, found true"},
    {"\"block_size\"", "\"attention_sink_bias\": true, \"block_size\"", ST_UNSUPPORTED,
     "attention_sink_bias: wanted nothing or false, found true"},
    {"\"block_size\"", "\"swa_window_size\": 128, \"block_size\"", ST_UNSUPPORTED,
     "swa_window_size: wanted nothing or false, found 128"},
    {"", "\"attention_bias\": true, ", ST_UNSUPPORTED, "attention_bias: wanted nothing or false"},
    {"", "\"hidden_act\": \"gelu\", ", ST_UNSUPPORTED, "hidden_act: wanted silu, found \"gelu\""},
    {"", "\"quantization_config\": {\"quant_method\": \"gptq\"}, ", ST_UNSUPPORTED,
     "quantization_config: wanted plain weights, found an object"},
    {"float32", "int4", ST_UNSUPPORTED, "dtype: wanted bfloat16|float16|float32, found \"int4\""},
    {"", "\"is_causal\": 1, ", ST_CORRUPT, "is_causal: wanted true or false, found 1"},
    {"", "\"sample_from_anchor\": \"yes\", ", ST_CORRUPT,
     "sample_from_anchor: wanted true or false"},
    {"\"block_size\"", "\"draft_vocab_spans\": [[0, 65]], \"block_size\"", ST_CORRUPT,
     "draft_vocab_spans: wanted first id and count within the vocabulary of 64, found [0, 65]"},
    {"\"dflash_config\": {", "\"dflash_config\": [", ST_CORRUPT, "wanted JSON, found at line 1"},
    {"\"rms_norm_eps\": 1e-06", "\"rms_norm_eps\": 0", ST_CORRUPT, "rms_norm_eps: wanted"},
};

TEST(configs_that_do_not_fit_are_refused_by_key_wanted_and_found) {
    struct tiny_files f;
    struct strbuf text = {0};
    tiny_files_make(&f, true, SLIDING, "");
    for (size_t i = 0; i < sizeof refusals / sizeof *refusals; i++) {
        struct dflash_config c = {.mask_id = 77};
        struct err e;
        replaced(&text, f.config, refusals[i].from, refusals[i].to);
        int st = parse(&c, strbuf_str(&text), &e);
        if (st != refusals[i].st || !strstr(e.msg, refusals[i].wanted))
            test_fail(__FILE__, __LINE__, "case %zu: status %d, %s; wanted %d, %s", i, st, e.msg,
                      refusals[i].st, refusals[i].wanted);
        CHECK_HAS(e.msg, "file 'DIR/config.json'");
        CHECK(!strchr(e.msg, '\n'));
        CHECK_EQ(c.mask_id, 77); // untouched
    }
    strbuf_fini(&text);
    tiny_files_fini(&f);
}

// Any key may hold anything: an answer, and no crash.
TEST(every_key_may_be_of_the_wrong_kind_or_missing) {
    static const char *const odd[] = {"null", "[]", "{}", "-1", "1e99", "\"\"", "true", "[null]"};
    struct tiny_files f;
    tiny_files_make(&f, true, SLIDING, "\"is_causal\": false, ");
    uint32_t refused = 0, all = 0;
    for (const char *at = strchr(f.config, ':'); at; at = strchr(at + 1, ':'))
        for (uint32_t i = 0; i < sizeof odd / sizeof *odd; i++, all++) {
            struct strbuf text = {0};
            struct dflash_config c;
            struct err e;
            const char *end = at + 1;
            int depth = 0;
            for (; *end && (depth || (*end != ',' && *end != '}')); end++)
                depth += (*end == '[' || *end == '{') - (*end == ']' || *end == '}');
            strbuf_add(&text, f.config, (size_t)(at + 1 - f.config));
            strbuf_add_str(&text, odd[i]);
            strbuf_add_str(&text, end);
            refused += parse(&c, strbuf_str(&text), &e) != ST_OK;
            strbuf_fini(&text);
        }
    test_note("%u of %u configs refused", refused, all);
    CHECK(refused > all / 2);
    tiny_files_fini(&f);
}

static struct dflash_config parsed(const char *from, const char *to, const char *from2,
                                   const char *to2) {
    struct tiny_files f;
    struct strbuf a = {0}, b = {0};
    struct dflash_config c;
    struct err e = {0};
    tiny_files_make(&f, false, SLIDING, "");
    replaced(&a, f.config, from, to);
    replaced(&b, strbuf_str(&a), from2, to2);
    CHECK_OK(parse(&c, strbuf_str(&b), &e), e);
    strbuf_fini(&a);
    strbuf_fini(&b);
    tiny_files_fini(&f);
    return c;
}

TEST(keys_are_read_wherever_files_have_them) {
    struct dflash_config c = parsed("", "", "", "");
    CHECK(!c.v2 && c.sliding[1] && c.causal[1] && c.block == 4 && c.window == 6 && c.top == 16);
    CHECK(c.dtype == DTYPE_F32 && c.embedding_scale == 1 && c.softcap == 0);
    CHECK_EQ(dflash_config_ids_max(&c), 3);
    c = parsed("\"block_size\": 4, ", "", "", "\"block_size\": 16, ");
    CHECK_EQ(c.block, 16);
    c = parsed("\"mask_token_id\": 63, ", "", "", "\"mask_token_id\": 5, ");
    CHECK_EQ(c.mask_id, 5);
    c = parsed("\"rope_theta\": 10000",
               "\"rope_parameters\": {\"rope_theta\": 7, \"rope_type\": \"default\"}", "", "");
    CHECK(c.rope_theta == 7);
    c = parsed("\"rope_theta\": 10000", "\"rope_scaling\": {\"rope_theta\": 9}", "", "");
    CHECK(c.rope_theta == 9);
    c = parsed("\"head_dim\": 8, ", "", "float32", "float16");
    CHECK(c.head_dim == 8 && c.dtype == DTYPE_F16);
    c = parsed("", "\"is_causal\": false, ", "", "");
    CHECK(!c.causal[0] && c.sliding[0]);
    c = parsed("\"block_size\"", "\"causal\": true, \"block_size\"", SLIDING, FULL);
    CHECK(c.causal[0] && !c.sliding[0]);
    c = parsed("\"layer_types\": [" SLIDING "], ", "", "", "");
    CHECK(!c.causal[0] && !c.sliding[0] && dflash_config_all_slide(&c) == false);
    c = parsed("", "\"sample_from_anchor\": true, ", "", "");
    CHECK(c.sample_from_anchor && dflash_config_ids_max(&c) == 4);
    c = parsed("", "\"input_embedding_scale\": 2.5, \"output_multiplier\": 0.5, ", "",
               "\"final_logit_softcapping\": 30, ");
    CHECK(c.embedding_scale == 2.5 && c.output_multiplier == 0.5 && c.softcap == 30);
}

TEST(taps_are_ids_lists_of_hidden_states_or_spread_evenly) {
    struct dflash_config c = parsed("[0, 1]", "[3, 1]", "", "");
    CHECK(c.taps_count == 2 && c.taps[0] == 3 && c.taps[1] == 1); // order matters
    c = parsed("\"target_layer_ids\": [0, 1]", "\"x\": 0", "",
               "\"eagle_aux_hidden_state_layer_ids\": [1, 4], ");
    CHECK(c.taps_count == 2 && c.taps[0] == 0 && c.taps[1] == 3);
    c = parsed("\"target_layer_ids\": [0, 1]", "\"aux_hidden_state_layer_ids\": [2, 3]", "", "");
    CHECK(c.taps_count == 2 && c.taps[0] == 1 && c.taps[1] == 2);
    // As the published drafters of these depths have them.
    static const struct {
        uint32_t target, layers, taps[8];
    } known[] = {{32, 5, {1, 8, 15, 22, 29}},  {64, 5, {1, 16, 31, 46, 61}},
                 {40, 5, {1, 10, 19, 28, 37}}, {36, 5, {1, 9, 17, 25, 33}},
                 {24, 5, {1, 6, 11, 16, 21}},  {30, 1, {15}}};
    for (uint32_t i = 0; i < sizeof known / sizeof *known; i++) {
        struct strbuf text = {0};
        struct err e = {0};
        struct dflash_target t = {32, known[i].target, 64};
        strbuf_printf(&text,
                      "{\"architectures\": [\"DFlashDraftModel\"], \"model_type\": \"qwen3\", "
                      "\"hidden_size\": 32, \"intermediate_size\": 48, \"num_hidden_layers\": %u, "
                      "\"num_attention_heads\": 4, \"vocab_size\": 64, \"rope_theta\": 1, "
                      "\"block_size\": 16, \"mask_token_id\": 1}",
                      known[i].layers);
        CHECK_OK(dflash_config_parse(&c, "x", strbuf_str(&text), text.len, &t, &e), e);
        CHECK_EQ(c.taps_count, known[i].layers);
        CHECK_MEM(c.taps, known[i].taps, c.taps_count * sizeof *c.taps);
        strbuf_fini(&text);
    }
}

/* Files. The target needs to be known by its sizes alone, for nothing is loaded. */
struct bed {
    struct cpu_pool *pool;
    struct ops ops;
    struct model_config cfg;
    struct model model;
    struct drafter_limits limits;
};

static void bed_open(struct bed *b) {
    struct err e = {0};
    *b = (struct bed){.limits = {.slots = 1, .rows_max = 8, .context_max = 64}};
    CHECK_OK(cpu_pool_new(&b->pool, 1, &e), e);
    CHECK_OK(ops_cpu_open(&b->ops, b->pool, NULL, &e), e);
    b->cfg =
        (struct model_config){.hidden = TINY_D, .layers = TINY_TARGET_LAYERS, .vocab = TINY_VOCAB};
    b->model = (struct model){.ops = &b->ops, .cfg = &b->cfg};
}

static void bed_close(struct bed *b) {
    ops_close(&b->ops);
    cpu_pool_free(b->pool);
}

static int open_files(struct bed *b, const struct tiny_files *f, struct err *e) {
    char dir[600];
    struct drafter d = {0};
    *e = (struct err){0};
    tiny_files_write(f, dir, sizeof dir);
    int st = dflash_open(&d, dir, &b->model, &b->limits, e);
    if (!st) d.close(d.self);
    if (st) CHECK(!d.self && !strchr(e->msg, '\n'));
    return st;
}

static void check_refused(struct bed *b, const struct tiny_files *f, int st, const char *part) {
    struct err e;
    int got = open_files(b, f, &e);
    if (got != st || !strstr(e.msg, part) || !strstr(e.msg, "model.safetensors"))
        test_fail(__FILE__, __LINE__, "status %d: %s; wanted %d, %s", got, e.msg, st, part);
}

TEST(every_tensor_is_asked_for_by_name_and_no_other_is_taken) {
    struct bed b;
    struct tiny_files f;
    struct err e;
    bed_open(&b);
    tiny_files_make(&f, true, SLIDING, "");
    CHECK_OK(open_files(&b, &f, &e), e);
    uint32_t count = f.count;
    tiny_files_fini(&f);
    for (uint32_t i = 0; i < count; i++) {
        char part[200];
        tiny_files_make(&f, true, SLIDING, "");
        snprintf(part, sizeof part, "tensor '%s': wanted [", f.tensors[i].name);
        tiny_files_drop(&f, f.tensors[i].name);
        check_refused(&b, &f, ST_CORRUPT, part);
        check_refused(&b, &f, ST_CORRUPT, "found no such tensor");
        tiny_files_fini(&f);
        tiny_files_make(&f, true, SLIDING, "");
        struct tiny_tensor *t = &f.tensors[i];
        t->dims[t->dims_count - 1] /= 2; // a smaller one
        check_refused(&b, &f, ST_CORRUPT, part);
        tiny_files_fini(&f);
    }
    tiny_files_make(&f, true, SLIDING, "");
    tiny_files_add(&f, "layers.0.self_attn.q_proj.bias", 1, (uint32_t[]){32}, 9, 1, 0);
    check_refused(
        &b, &f, ST_CORRUPT,
        "tensor 'layers.0.self_attn.q_proj.bias': wanted no tensor but those of its config, "
        "found this one");
    tiny_files_fini(&f);
    // A first form with the second's tensors.
    tiny_files_make(&f, false, SLIDING, "");
    tiny_files_add(&f, "layers.0.mlp_conv.base_kernel", 3, (uint32_t[]){2, 2, 32}, 9, 1, 0);
    check_refused(&b, &f, ST_CORRUPT, "'layers.0.mlp_conv.base_kernel': wanted no tensor");
    tiny_files_fini(&f);
    bed_close(&b);
}

TEST(matrices_of_another_type_than_the_config_says_are_refused) {
    struct bed b;
    struct tiny_files f;
    struct strbuf text = {0};
    bed_open(&b);
    tiny_files_make(&f, false, FULL, "");
    replaced(&text, f.config, "float32", "bfloat16");
    snprintf(f.config, sizeof f.config, "%s", strbuf_str(&text));
    check_refused(&b, &f, ST_CORRUPT,
                  "tensor 'fc.weight': wanted BF16 (dtype of its config), found F32");
    strbuf_fini(&text);
    tiny_files_fini(&f);
    bed_close(&b);
}

static void rename_all(struct tiny_files *f, const char *prefix, const char *behind_codebooks) {
    for (uint32_t i = 0; i < f->count; i++) {
        char name[sizeof f->tensors->name];
        bool book = strstr(f->tensors[i].name, "codebook") != NULL;
        snprintf(name, sizeof name, "%s", f->tensors[i].name);
        snprintf(f->tensors[i].name, sizeof name, "%s%.70s%s", prefix, name,
                 book ? behind_codebooks : "");
    }
}

TEST(names_may_have_a_prefix_and_codebooks_an_ending) {
    struct bed b;
    struct tiny_files f;
    struct err e;
    bed_open(&b);
    tiny_files_make(&f, true, SLIDING, "");
    rename_all(&f, "model.", ".weight");
    CHECK_OK(open_files(&b, &f, &e), e);
    tiny_files_fini(&f);
    tiny_files_make(&f, true, SLIDING, "");
    rename_all(&f, "drafter.", "");
    check_refused(&b, &f, ST_CORRUPT, "tensor 'fc.weight': wanted [32, 64], found no such tensor");
    tiny_files_fini(&f);
    bed_close(&b);
}

TEST(a_folder_without_files_is_refused) {
    struct bed b;
    struct err e = {0};
    struct drafter d = {0};
    bed_open(&b);
    CHECK_EQ(dflash_open(&d, "/nowhere/at/all", &b.model, &b.limits, &e), ST_NOT_FOUND);
    CHECK_HAS(e.msg, "/nowhere/at/all/config.json");
    bed_close(&b);
}

// As inspect looks at one: no model stands beside it.
TEST(without_a_target_a_config_is_held_against_itself) {
    struct tiny_files f;
    struct strbuf text = {0};
    struct dflash_config c;
    struct err e = {0};
    tiny_files_make(&f, true, SLIDING, "");
    CHECK(dflash_config_is(f.config, strlen(f.config)));
    CHECK_OK(dflash_config_parse(&c, "x", f.config, strlen(f.config), NULL, &e), e);
    CHECK_EQ(c.target_layers, TINY_TARGET_LAYERS);
    CHECK_EQ(c.hidden, TINY_D);
    CHECK_EQ(c.vocab, TINY_VOCAB);
    replaced(&text, f.config, "\"num_target_layers\": 4, ", "");
    CHECK_EQ(dflash_config_parse(&c, "x", strbuf_str(&text), text.len, NULL, &e), ST_CORRUPT);
    CHECK_HAS(e.msg, "num_target_layers: wanted a number, without a target to look at");
    e = (struct err){0};
    replaced(&text, f.config, "[0, 1]", "[0, 4]");
    CHECK_EQ(dflash_config_parse(&c, "x", strbuf_str(&text), text.len, NULL, &e), ST_INVAL);
    CHECK_HAS(e.msg, "wanted layers 0 to 3 of the target, found 4");
    strbuf_fini(&text);
    tiny_files_fini(&f);
}

TEST(a_drafter_s_config_is_told_from_others) {
    static const struct {
        const char *text;
        bool is;
    } cases[] = {{"{\"architectures\": [\"DFlashDraftModel\"]}", true},
                 {"{\"architectures\": [\"DFlash9DraftModel\"]}", true},
                 {"{\"dflash_config\": {}}", true},
                 {"{\"architectures\": [\"Qwen3_5ForCausalLM\"]}", false},
                 {"{\"architectures\": [7]}", false},
                 {"[]", false},
                 {"{", false}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        CHECK_EQ(dflash_config_is(cases[i].text, strlen(cases[i].text)), cases[i].is);
}
