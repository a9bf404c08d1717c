/* The tokeniser against the reference: the published Qwen3 file with its own regex and with Qwen3.5's. */
#include "common/err.h"
#include "common/ids.h"
#include "common/mem.h"
#include "common/sha256.h"
#include "common/strbuf.h"
#include "router/text/tokenizer.h"
#include "tests/lib/test.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *data_dir(void) {
    const char *dir = getenv("RAILYARD_TOKENIZER_DATA");
    return dir ? dir : "build/tests/golden/tokenizer";
}

static struct tokenizer *opened(const char *name) {
    static struct tokenizer *own, *marks; // 1 s each under a sanitizer: opened once
    struct tokenizer **t = strcmp(name, "tokenizer.json") ? &marks : &own;
    char path[1024];
    struct err e = {0};
    snprintf(path, sizeof path, "%s/%s", data_dir(), name);
    if (!*t) CHECK_OK(tokenizer_open(t, path, &e), e);
    return *t;
}

// Calls fn for each line of a JSON-lines file.
static size_t each_line(const char *name, void (*fn)(const json_t *line, void *ctx), void *ctx) {
    char path[1024], *line = NULL;
    snprintf(path, sizeof path, "%s/%s", data_dir(), name);
    FILE *in = fopen(path, "r");
    CHECK(in != NULL);
    size_t cap = 0, count = 0;
    ssize_t len;
    while ((len = getline(&line, &cap, in)) > 0) {
        json_error_t je;
        json_t *v = json_loadb(line, (size_t)len, JSON_ALLOW_NUL, &je);
        if (!v) test_fail(__FILE__, __LINE__, "%s:%zu: %s", name, count + 1, je.text);
        fn(v, ctx);
        json_decref(v);
        count++;
    }
    free(line);
    fclose(in);
    return count;
}

static void check_ids(const struct tokenizer *t, const json_t *text, const json_t *wanted) {
    struct ids ids = {0};
    struct err e = {0};
    CHECK_OK(
        tokenizer_encode(t, json_string_value(text), json_string_length(text), NULL, 0, &ids, &e),
        e);
    size_t same = 0;
    while (same < ids.len && same < json_array_size(wanted) &&
           ids.v[same] == json_integer_value(json_array_get(wanted, same)))
        same++;
    if (same < ids.len || same < json_array_size(wanted)) {
        char *shown = json_dumps(text, JSON_ENCODE_ANY);
        test_fail(__FILE__, __LINE__, "id %zu of %zu (wanted %zu) differs in %.300s", same, ids.len,
                  json_array_size(wanted), shown);
    }
    ids_fini(&ids);
}

static void check_case(const json_t *line, void *ctx) {
    const json_t *text = json_object_get(line, "text");
    check_ids(opened("tokenizer.json"), text, json_object_get(line, "ids"));
    check_ids(opened("tokenizer_marks.json"), text, json_object_get(line, "ids_marks"));
    const json_t *ids = json_object_get(line, "ids"), *wanted = json_object_get(line, "decoded");
    struct strbuf out = {0};
    struct ids list = {0};
    for (size_t i = 0; i < json_array_size(ids); i++)
        ids_add(&list, (uint32_t)json_integer_value(json_array_get(ids, i)));
    tokenizer_decode(opened("tokenizer.json"), list.v, list.len, false, &out);
    CHECK_EQ(out.len, json_string_length(wanted));
    CHECK_MEM(strbuf_str(&out), json_string_value(wanted), out.len);
    strbuf_fini(&out);
    ids_fini(&list);
}

TEST(ids_and_decoded_text_equal_the_reference_on_real_text) {
    size_t count = each_line("cases.jsonl", check_case, NULL);
    CHECK(count > 2000);
    test_note("%zu cases, both regexes", count);
}

struct fuzz {
    struct sha256 *own, *marks;
    size_t strings, blocks;
};

static void check_head(const struct tokenizer *t, const json_t *line, size_t idx,
                       struct sha256 *total) {
    const json_t *text = json_array_get(line, 0);
    struct ids ids = {0};
    struct err e = {0};
    CHECK_OK(
        tokenizer_encode(t, json_string_value(text), json_string_length(text), NULL, 0, &ids, &e),
        e);
    sha256_add_le32(total, ids.v, ids.len);
    struct sha256 *one = sha256_new();
    uint8_t digest[SHA256_BYTES];
    char hex[SHA256_HEX_BYTES];
    sha256_add_le32(one, ids.v, ids.len);
    sha256_digest(one, digest);
    sha256_hex(digest, hex);
    hex[8] = '\0';
    if (strcmp(hex, json_string_value(json_array_get(line, idx))))
        test_fail(__FILE__, __LINE__, "ids differ in %.400s",
                  json_dumps(text, JSON_ENCODE_ANY | JSON_ENSURE_ASCII));
    sha256_free(one);
    ids_fini(&ids);
}

static void check_total(struct sha256 **total, const json_t *wanted) {
    uint8_t digest[SHA256_BYTES];
    char hex[SHA256_HEX_BYTES];
    sha256_digest(*total, digest);
    sha256_hex(digest, hex);
    CHECK_STR(hex, json_string_value(wanted));
    sha256_free(*total);
    *total = sha256_new();
}

static void check_fuzz(const json_t *line, void *ctx) {
    struct fuzz *f = ctx;
    if (json_is_array(line)) {
        check_head(opened("tokenizer.json"), line, 1, f->own);
        check_head(opened("tokenizer_marks.json"), line, 2, f->marks);
        f->strings++;
    } else if (json_object_get(line, "sha256")) {
        check_total(&f->own, json_object_get(line, "sha256"));
        check_total(&f->marks, json_object_get(line, "sha256_marks"));
        f->blocks++;
    }
}

TEST(ids_equal_the_reference_on_100000_fuzzed_strings) {
    struct fuzz f = {sha256_new(), sha256_new(), 0, 0};
    each_line("fuzz.jsonl", check_fuzz, &f);
    CHECK_EQ(f.strings, 100000);
    CHECK_EQ(f.blocks, 100);
    sha256_free(f.own);
    sha256_free(f.marks);
}

TEST(the_published_vocabulary_is_described) {
    const struct tokenizer *t = opened("tokenizer.json");
    CHECK_EQ(tokenizer_size(t), 151669);
    CHECK_EQ(tokenizer_count(t), 151669);
    CHECK_EQ(tokenizer_find(t, "<|im_end|>"), 151645);
    CHECK_EQ(tokenizer_find(t, "</think>"), 151668);
    CHECK_EQ(tokenizer_find(t, "nothing"), -1);
    CHECK(tokenizer_is_special(t, 151645));
    CHECK(tokenizer_is_added(t, 151668) && !tokenizer_is_special(t, 151668));
    CHECK(!tokenizer_id_used(t, 151669));
    size_t len;
    CHECK(tokenizer_bytes(t, 151669, &len) == NULL);
    CHECK_MEM(tokenizer_bytes(t, 220, &len), " ", 1);
    CHECK_EQ(len, 1);
    struct tokenizer_range ranges[2];
    CHECK_EQ(tokenizer_used_ranges(t, NULL, 0), 1);
    CHECK_EQ(tokenizer_used_ranges(t, ranges, 2), 1);
    CHECK_EQ(ranges[0].first, 0);
    CHECK_EQ(ranges[0].last, 151668);
}

// A megabyte without a border must not take time or memory out of proportion; the answer is checked by decoding.
TEST(a_piece_of_a_megabyte_is_merged_in_reasonable_time) {
    static const char *const units[] = {"a", "ab\xCC\x81", " ", "=", "\n", "\xE4\xB8\xAD", "9"};
    const struct tokenizer *t = opened("tokenizer_marks.json");
    for (size_t u = 0; u < sizeof units / sizeof units[0]; u++) {
        struct strbuf text = {0}, back = {0};
        struct ids ids = {0};
        struct err e = {0};
        while (text.len < 1 << 20) strbuf_add_str(&text, units[u]);
        CHECK_OK(tokenizer_encode(t, text.p, text.len, NULL, 0, &ids, &e), e);
        tokenizer_decode(t, ids.v, ids.len, false, &back);
        CHECK(back.len > 0 && back.len <= text.len);
        if (u != 1) CHECK_EQ(back.len, text.len);
        strbuf_fini(&text);
        strbuf_fini(&back);
        ids_fini(&ids);
    }
}

// A hundred thousand marks of falling class on one letter: sorting them by swaps would take minutes.
TEST(many_marks_on_one_letter_are_ordered_in_reasonable_time) {
    const struct tokenizer *t = opened("tokenizer.json");
    struct strbuf text = {0};
    struct ids ids = {0};
    struct err e = {0};
    strbuf_add_str(&text, "q");
    for (int i = 0; i < 150000; i++) strbuf_add_str(&text, i < 75000 ? "\xCC\x81" : "\xCC\xA3");
    CHECK_OK(tokenizer_encode(t, text.p, text.len, NULL, 0, &ids, &e), e);
    struct strbuf back = {0};
    tokenizer_decode(t, ids.v, ids.len, false, &back);
    CHECK_EQ(back.len, text.len);
    CHECK_MEM(back.p, "q\xCC\xA3", 3); // the mark below comes first
    CHECK_MEM(back.p + back.len - 2, "\xCC\x81", 2);
    strbuf_fini(&text);
    strbuf_fini(&back);
    ids_fini(&ids);
}
