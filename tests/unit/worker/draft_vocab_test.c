/* Which ids drafts are made of: the setting's, or the common ones and those that the tokeniser adds. */
#include "common/err.h"
#include "tests/lib/test.h"
#include "worker/engine/draft_vocab.h"

#include <stdio.h>
#include <sys/stat.h>

enum { VOCAB = 248320 }; // Qwen3.5's

// The ids of Qwen3.5's control tokens, in its tokeniser's order.
static const struct {
    uint32_t id;
    const char *text;
} control[] = {{248044, "<|endoftext|>"}, {248045, "<|im_start|>"},     {248046, "<|im_end|>"},
               {248058, "<tool_call>"},   {248059, "</tool_call>"},     {248066, "<tool_response>"},
               {248068, "<think>"},       {248067, "</tool_response>"}, {248069, "</think>"}};

static const char *folder(const char *name, const char *tokenizer) {
    static char dir[500];
    char path[600];
    snprintf(dir, sizeof dir, "%s/%s", test_temp_dir(), name);
    snprintf(path, sizeof path, "%s/tokenizer.json", dir);
    CHECK_EQ(mkdir(dir, 0700), 0);
    if (!tokenizer) return dir;
    FILE *f = fopen(path, "w");
    CHECK(f && fputs(tokenizer, f) >= 0 && !fclose(f));
    return dir;
}

static const char *qwen_tokenizer(void) {
    static char text[2000];
    int n = snprintf(text, sizeof text, "{\"model\": {\"vocab\": {}}, \"added_tokens\": [");
    for (size_t i = 0; i < sizeof control / sizeof *control; i++)
        n += snprintf(text + n, sizeof text - (size_t)n, "%s{\"id\": %u, \"content\": \"%s\"}",
                      i ? ", " : "", control[i].id, control[i].text);
    snprintf(text + n, sizeof text - (size_t)n, "]}");
    return text;
}

static bool holds(const struct draft_vocab *v, uint32_t id) {
    for (uint32_t i = 0; i < v->count; i++)
        if (id >= v->spans[i].first && id - v->spans[i].first < v->spans[i].count) return true;
    return false;
}

TEST(common_ids_and_the_control_tokens_of_the_tokeniser_are_drafted) {
    struct draft_vocab v;
    struct err e = {0};
    const char *dir = folder("qwen", qwen_tokenizer());
    CHECK_OK(draft_vocab_make(&v, "auto", dir, VOCAB, &e), e);
    CHECK(!v.given);
    CHECK_EQ(v.count, 2);
    for (size_t i = 0; i < sizeof control / sizeof *control; i++) CHECK(holds(&v, control[i].id));
    CHECK(holds(&v, 0) && holds(&v, 98303) && holds(&v, VOCAB - 1));
    CHECK(!holds(&v, 98304) && !holds(&v, 248043));
    CHECK_OK(draft_vocab_make(&v, NULL, dir, VOCAB, &e), e);
    CHECK_EQ(v.count, 2);
}

// Nothing is left out where there is nothing to win or nothing is known.
TEST(small_vocabularies_and_folders_without_a_tokeniser_have_all_ids) {
    struct draft_vocab v;
    struct err e = {0};
    CHECK_OK(draft_vocab_make(&v, "auto", folder("small", "[]"), 98304, &e), e);
    CHECK_EQ(v.count, 0);
    CHECK_OK(draft_vocab_make(&v, "auto", folder("none", NULL), VOCAB, &e), e);
    CHECK_EQ(v.count, 0);
    CHECK_OK(draft_vocab_make(&v, "auto", folder("unadded", "{}"), VOCAB, &e), e);
    CHECK_EQ(v.count, 1);
    CHECK_EQ(v.spans[0].count, DRAFT_VOCAB_COMMON);
}

TEST(a_tokeniser_that_cannot_be_read_is_named) {
    static const struct {
        const char *text, *part;
    } cases[] = {{"{", "wanted JSON, found at line 1"},
                 {"{\"added_tokens\": 7}", "added_tokens: wanted a list, found 7"},
                 {"{\"added_tokens\": [{\"id\": \"x\"}]}", "added_tokens[0].id: wanted an id"},
                 {"{\"added_tokens\": [{\"id\": -1}]}", "added_tokens[0].id: wanted an id"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char name[20];
        struct draft_vocab v;
        struct err e = {0};
        snprintf(name, sizeof name, "bad%zu", i);
        CHECK_EQ(draft_vocab_make(&v, "auto", folder(name, cases[i].text), VOCAB, &e), ST_CORRUPT);
        CHECK_HAS(e.msg, cases[i].part);
        CHECK_HAS(e.msg, name);
    }
}

TEST(spans_are_taken_from_the_setting) {
    struct draft_vocab v;
    struct err e = {0};
    CHECK_OK(draft_vocab_make(&v, "all", "/nonexistent", 4096, &e), e);
    CHECK(v.given);
    CHECK_EQ(v.count, 1);
    CHECK_EQ(v.spans[0].count, 4096);
    CHECK_OK(draft_vocab_make(&v, "0-2687,3000,3968-4095", "/nonexistent", 4096, &e), e);
    CHECK(v.given);
    CHECK_EQ(v.count, 3);
    CHECK_EQ(v.spans[0].count, 2688);
    CHECK_EQ(v.spans[1].first, 3000);
    CHECK_EQ(v.spans[1].count, 1);
    CHECK_EQ(v.spans[2].first, 3968);
    CHECK_EQ(v.spans[2].count, 128);
}

TEST(spans_that_are_none_are_refused_by_name) {
    static const char *const wrong[] = {"",
                                        "al",
                                        "-5",
                                        "5-",
                                        "5-3",
                                        "0-4096",
                                        "1-2,2-3",
                                        "4096",
                                        "1,,",
                                        "0-99999999999999999999",
                                        "1-2 ",
                                        "+1",
                                        "0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16"};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        struct draft_vocab v;
        struct err e = {0};
        CHECK_EQ(draft_vocab_make(&v, wrong[i], "/nonexistent", 4096, &e), ST_INVAL);
        CHECK_HAS(e.msg, "draft-vocab: wanted auto, all");
        CHECK_HAS(e.msg, wrong[i]);
    }
}
