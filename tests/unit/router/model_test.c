/* What the router reads of a checkpoint: names, stop ids, sampling, and the VOCAB frame made of them. */
#include "common/err.h"
#include "router/model.h"
#include "router/text/tokenizer.h"
#include "tests/lib/test.h"
#include "tests/lib/tiny_tokenizer.h"

#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

static const char template[] = "{{ messages }} preserve_thinking <think> enable_thinking";

static const char *dir(void) {
    static char path[256];
    snprintf(path, sizeof path, "%s/Tiny-1", test_temp_dir());
    mkdir(path, 0755);
    return path;
}

static void put(const char *name, const char *text) {
    char path[300];
    snprintf(path, sizeof path, "%s/%s", dir(), name);
    if (!text) {
        unlink(path);
        return;
    }
    FILE *f = fopen(path, "w");
    CHECK(f != NULL);
    fputs(text, f);
    fclose(f);
}

static void put_all(const char *config, const char *generation, const char *tokenizer_config) {
    struct strbuf text = {0};
    tiny_tokenizer_text(&text, NULL);
    put("tokenizer.json", text.p);
    strbuf_fini(&text);
    put("chat_template.jinja", template);
    put("config.json", config);
    put("generation_config.json", generation);
    put("tokenizer_config.json", tokenizer_config);
}

static int open_model(struct model **ret, const char *name, const char *aliases, struct err *e) {
    return model_open(ret, &(struct model_config){dir(), name, aliases, "3.6"}, e);
}

static const char good[] =
    "{\"vocab_size\":320,\"max_position_embeddings\":512,\"eos_token_id\":301}";

TEST(stop_ids_are_the_union_of_all_files) {
    struct model *m = NULL;
    struct err e = {0};
    put_all(good, "{\"eos_token_id\":[300,301],\"temperature\":0.6,\"top_k\":20,\"top_p\":0.95}",
            "{\"eos_token\":{\"content\":\"<|im_end|>\"}}");
    CHECK_OK(open_model(&m, "", "", &e), e);
    CHECK_EQ(m->stop_count, 2);
    CHECK(m->stop_ids[0] == 300 && m->stop_ids[1] == 301);
    CHECK(model_is_stop_id(m, 300) && !model_is_stop_id(m, 299));
    CHECK(m->sampling.temperature == 0.6 && m->sampling.top_p == 0.95 && m->sampling.top_k == 20);
    CHECK_EQ(m->context_max, 512);
    model_close(m);
}

TEST(the_vocab_frame_names_ids_in_use_special_ones_and_marks) {
    struct model *m = NULL;
    struct err e = {0};
    put_all(good, NULL, NULL);
    CHECK_OK(open_model(&m, "", "", &e), e);
    const struct frame_vocab *v = &m->vocab;
    uint32_t used = 0;
    for (uint32_t i = 0; i < v->used_count; i++) {
        for (uint32_t id = v->used[i].first; id < v->used[i].first + v->used[i].count; id++)
            CHECK(tokenizer_id_used(m->tokenizer, id));
        used += v->used[i].count;
        if (i) CHECK(v->used[i].first > v->used[i - 1].first + v->used[i - 1].count);
    }
    CHECK_EQ(used, tokenizer_count(m->tokenizer));
    CHECK_EQ(v->size, 320);
    CHECK_EQ(v->think_open, TINY_THINK);
    CHECK_EQ(v->think_close, TINY_END_THINK);
    CHECK_EQ(v->tool_open, TINY_CALL);
    CHECK(v->special.count >= 1);
    CHECK(m->sampling.temperature == 1 && m->sampling.top_k == 0);
    model_close(m);
}

TEST(the_name_is_the_last_part_of_the_path_or_what_is_asked) {
    struct model *m = NULL;
    struct err e = {0};
    put_all(good, NULL, NULL);
    CHECK_OK(open_model(&m, "", "a, b/c ,", &e), e);
    CHECK_EQ(m->name_count, 3);
    CHECK_STR(m->names[0], "Tiny-1");
    CHECK(model_has_name(m, "b/c", 3) && !model_has_name(m, "b", 1));
    model_close(m);
    CHECK_OK(open_model(&m, "shown", "", &e), e);
    CHECK_STR(m->names[0], "shown");
    CHECK_STR(m->dir_name, "Tiny-1"); // what workers call it
    model_close(m);
}

static const struct {
    const char *config, *generation, *tokenizer_config, *says;
} broken[] = {
    {NULL, NULL, NULL, "config.json"},
    {"{", NULL, NULL, "wanted a JSON object"},
    {"[]", NULL, NULL, "wanted a JSON object"},
    {"{\"model_type\":\"llama\",\"hidden_size\":1}", NULL, NULL,
     "config.json: model_type: wanted qwen3_5 or qwen3_5_moe, found 'llama'"},
    {"{\"vocab_size\":320}", NULL, NULL, "max_position_embeddings"},
    {"{\"vocab_size\":10,\"max_position_embeddings\":512}", NULL, NULL, "at least the tokenizer's"},
    {"{\"vocab_size\":\"x\",\"max_position_embeddings\":512}", NULL, NULL, "vocab_size"},
    {"{\"vocab_size\":320,\"max_position_embeddings\":512,\"eos_token_id\":[-1]}", NULL, NULL,
     "eos_token_id"},
    {"{\"vocab_size\":320,\"max_position_embeddings\":512,\"eos_token_id\":319}", NULL, NULL,
     "eos_token_id"},
    {good, "{\"temperature\":\"hot\"}", NULL, "temperature"},
    {good, "{\"top_p\":2}", NULL, "top_p"},
    {good, NULL, "{\"eos_token\":\"nothing\"}", "eos_token"},
};

TEST(broken_files_are_named_with_what_was_wanted) {
    for (size_t i = 0; i < sizeof broken / sizeof *broken; i++) {
        struct model *m = NULL;
        struct err e = {0};
        put_all(broken[i].config, broken[i].generation, broken[i].tokenizer_config);
        if (!open_model(&m, "", "", &e)) test_fail(__FILE__, __LINE__, "case %zu was taken", i);
        CHECK_HAS(e.msg, broken[i].says);
        CHECK(m == NULL);
    }
    put_all(NULL, NULL, NULL);
}

TEST(the_text_part_of_a_larger_config_is_read) {
    struct model *m = NULL;
    struct err e = {0};
    put_all(
        "{\"text_config\":{\"vocab_size\":320,\"max_position_embeddings\":64,\"eos_token_id\":300},"
        "\"eos_token_id\":301}",
        NULL, NULL);
    CHECK_OK(open_model(&m, "", "", &e), e);
    CHECK_EQ(m->context_max, 64);
    CHECK_EQ(m->stop_count, 2);
    model_close(m);
    for (size_t i = 0; i < 5; i++)
        put((const char *[]){"tokenizer.json", "chat_template.jinja", "config.json",
                             "generation_config.json", "tokenizer_config.json"}[i],
            NULL);
    rmdir(dir());
}
