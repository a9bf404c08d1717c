/* tokenizer: what a file may ask for, merging against a plain loop, plain spans, bytes and ranges of ids. */
#include "common/ids.h"
#include "router/text/bpe.h"
#include "tests/lib/test.h"
#include "tests/lib/tiny_tokenizer.h"

#include <jansson.h>
#include <stdio.h>

static void check_ids(const struct tokenizer *t, const char *text, const struct text_span *plain,
                      size_t plain_count, const uint32_t *wanted, size_t count) {
    struct ids ids = {0};
    struct err e = {0};
    CHECK_OK(tokenizer_encode(t, text, strlen(text), plain, plain_count, &ids, &e), e);
    for (size_t i = 0; i < ids.len && i < count; i++) CHECK_EQ(ids.v[i], wanted[i]);
    CHECK_EQ(ids.len, count);
    ids_fini(&ids);
}
#define CHECK_IDS(t, text, ...)                                                                    \
    check_ids(t, text, NULL, 0, (const uint32_t[]){__VA_ARGS__},                                   \
              sizeof((const uint32_t[]){__VA_ARGS__}) / sizeof(uint32_t))

enum {
    W_TH = TINY_WORDS,
    W_THE,
    W_SP_THE,
    W_AA = TINY_WORDS + 11,
    W_AAA,
    W_AB,
    W_ABA,
    W_IN = TINY_WORDS + 20
};

TEST(merges_go_by_rank_and_leftmost_first) {
    struct tokenizer *t = tiny_tokenizer();
    CHECK_IDS(t, "the", W_THE);
    CHECK_IDS(t, "x the", 'x', W_SP_THE);
    CHECK_IDS(t, "aaa", W_AAA);
    CHECK_IDS(t, "aaaa", W_AA, W_AA);
    CHECK_IDS(t, "aab", W_AA, 'b'); // "a a" ranks before "a b"
    CHECK_IDS(t, "baba", 'b', W_ABA);
    CHECK_IDS(t, "12", '1', '2');
    tokenizer_free(t);
}

TEST(the_text_may_be_empty) {
    struct tokenizer *t = tiny_tokenizer();
    check_ids(t, "", NULL, 0, NULL, 0);
    tokenizer_free(t);
}

// Both ways of merging (short pieces, long ones) against the definition.
static size_t merge_plainly(uint32_t *id, size_t n, const uint32_t (*merges)[3], size_t count) {
    for (;;) {
        size_t best = 0, rank = SIZE_MAX;
        for (size_t i = 0; i + 1 < n; i++)
            for (size_t k = 0; k < count; k++)
                if (merges[k][0] == id[i] && merges[k][1] == id[i + 1] && k < rank)
                    rank = k, best = i;
        if (rank == SIZE_MAX) return n;
        id[best] = merges[rank][2];
        memmove(id + best + 1, id + best + 2, (n - best - 2) * sizeof *id);
        n--;
    }
}

TEST(long_and_short_pieces_merge_by_the_same_rule) {
    enum { MERGES = 60, LEN = 400 };
    uint32_t bytes[256], merges[MERGES][3];
    for (uint32_t b = 0; b < 256; b++) bytes[b] = b;
    srand(7);
    for (int round = 0; round < 400; round++) {
        struct bpe *b = bpe_new(bytes, MERGES);
        struct bpe_work *w = bpe_work_new();
        for (uint32_t k = 0; k < MERGES; k++) {
            // Made of earlier ones, never the same pair twice.
            uint32_t span = k < 8 ? k + 4 : 12;
            bool is_new;
            do {
                for (int side = 0; side < 2; side++) {
                    uint32_t pick = (uint32_t)rand() % span;
                    merges[k][side] =
                        pick < 4 ? 'a' + pick : 256 + (k - 1 - (pick - 4) % (k ? k : 1));
                }
                is_new = true;
                for (uint32_t j = 0; j < k; j++)
                    is_new =
                        is_new && (merges[j][0] != merges[k][0] || merges[j][1] != merges[k][1]);
            } while (!is_new);
            merges[k][2] = 256 + k;
            bpe_put(b, merges[k][0], merges[k][1], k, 256 + k);
        }
        char piece[LEN];
        uint32_t wanted[LEN];
        size_t len = (size_t)rand() % (round % 2 ? 60 : LEN) + 1;
        for (size_t i = 0; i < len; i++)
            wanted[i] = bytes[(unsigned char)(piece[i] = (char)('a' + rand() % 4))];
        size_t n = merge_plainly(wanted, len, merges, MERGES);
        struct ids ids = {0};
        bpe_encode(b, piece, len, w, &ids);
        CHECK_EQ(ids.len, n);
        CHECK_MEM(ids.v, wanted, n * sizeof *wanted);
        ids_fini(&ids);
        bpe_work_free(w);
        bpe_free(b);
    }
}

TEST(added_tokens_are_found_leftmost_and_longest) {
    struct tokenizer *t = tiny_tokenizer();
    CHECK_IDS(t, "a<|im_end|>b", 'a', TINY_IM_END, 'b');
    CHECK_IDS(t, "<|im_end|>s", TINY_IM_ENDS);
    CHECK_IDS(t, "<<think></think>", '<', TINY_THINK, TINY_END_THINK);
    CHECK_IDS(t, "<think", '<', W_TH, W_IN, 'k');
    tokenizer_free(t);
}

// Normalisation must not reach over an added token: ">" and a long solidus would make one character.
TEST(a_mark_behind_an_added_token_stays_apart) {
    struct tokenizer *t = tiny_tokenizer();
    CHECK_IDS(t, "<think>\xCC\xB8", TINY_THINK, 0xCC, 0xB8);
    CHECK_IDS(t, ">\xCC\xB8", 0xE2, 0x89, 0xAF);
    tokenizer_free(t);
}

TEST(a_token_that_touches_a_plain_span_is_text) {
    struct tokenizer *t = tiny_tokenizer();
    static const char text[] = "<think>.<think>";
    static const uint32_t both[] = {TINY_THINK, '.', TINY_THINK};
    for (size_t at = 0; at < 8; at++) {
        struct text_span span = {at, 1};
        bool touches = at < 7;
        struct ids ids = {0};
        struct err e = {0};
        CHECK_OK(tokenizer_encode(t, text, strlen(text), &span, 1, &ids, &e), e);
        CHECK_EQ(ids.v[0], touches ? '<' : TINY_THINK);
        CHECK_EQ(ids.v[ids.len - 1], TINY_THINK);
        ids_fini(&ids);
    }
    struct text_span empty[] = {{0, 0}, {3, 0}, {15, 0}}, all[] = {{0, 8}, {8, 7}};
    check_ids(t, text, empty, 3, both, 3);
    struct ids ids = {0};
    struct err e = {0};
    CHECK_OK(tokenizer_encode(t, text, strlen(text), all, 2, &ids, &e), e);
    for (size_t i = 0; i < ids.len; i++) CHECK(!tokenizer_is_added(t, ids.v[i]));
    ids_fini(&ids);
    tokenizer_free(t);
}

// A shorter token that lies outside of the span is still found where a longer one would reach into it.
TEST(a_plain_span_cuts_the_longest_match_to_a_shorter_one) {
    struct tokenizer *t = tiny_tokenizer();
    struct text_span span = {10, 1};
    check_ids(t, "<|im_end|>s", &span, 1, (const uint32_t[]){TINY_IM_END, 's'}, 2);
    tokenizer_free(t);
}

TEST(plain_spans_change_nothing_but_the_added_tokens) {
    struct tokenizer *t = tiny_tokenizer();
    static const char text[] = " the th\xC3\xA9 e\xCC\x81 don't";
    struct ids whole = {0}, cut = {0};
    struct err e = {0};
    CHECK_OK(tokenizer_encode(t, text, strlen(text), NULL, 0, &whole, &e), e);
    struct text_span spans[] = {{0, 2}, {2, 5}, {9, 3}};
    CHECK_OK(tokenizer_encode(t, text, strlen(text), spans, 3, &cut, &e), e);
    CHECK_EQ(cut.len, whole.len);
    CHECK_MEM(cut.v, whole.v, whole.len * sizeof *whole.v);
    ids_fini(&whole);
    ids_fini(&cut);
    tokenizer_free(t);
}

TEST(bad_utf8_is_refused_with_its_offset) {
    static const struct {
        const char *text, *message;
    } rows[] = {
        {"ab\xFF", "bad byte ff at offset 2"},
        {"\xC0\x80", "offset 0"},
        {"a\xED\xA0\x80", "offset 1"},
        {"\xF4\x90\x80\x80", "offset 0"},
        {"12345678\xE4\xB8", "e4 at offset 8"},
        {"\x80", "offset 0"},
        {"123456789\xE4\xB8z", "e4 at offset 9"},
    };
    struct tokenizer *t = tiny_tokenizer();
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct ids ids = {0};
        struct err e = {0};
        ids_add(&ids, 9);
        CHECK_EQ(tokenizer_encode(t, rows[i].text, strlen(rows[i].text), NULL, 0, &ids, &e),
                 ST_INVAL);
        CHECK_HAS(e.msg, rows[i].message);
        CHECK_EQ(ids.len, 1);
        ids_fini(&ids);
    }
    tokenizer_free(t);
}

TEST(ids_are_described_and_gaps_are_not_in_use) {
    struct tokenizer *t = tiny_tokenizer();
    struct tokenizer_range r[4];
    size_t len;
    CHECK_EQ(tokenizer_size(t), TINY_SIZE);
    CHECK_EQ(tokenizer_count(t), TINY_WORDS + TINY_WORD_COUNT + TINY_SIZE - TINY_IM_END);
    CHECK_EQ(tokenizer_used_ranges(t, r, 4), 2);
    CHECK_EQ(r[0].first, 0);
    CHECK_EQ(r[0].last, TINY_WORDS + TINY_WORD_COUNT - 1);
    CHECK_EQ(r[1].first, TINY_IM_END);
    CHECK_EQ(r[1].last, TINY_SIZE - 1);
    r[0].last = 0;
    CHECK_EQ(tokenizer_used_ranges(t, r, 1), 2); // room for one only
    CHECK_EQ(r[0].last, TINY_WORDS + TINY_WORD_COUNT - 1);
    CHECK_EQ(r[1].last, TINY_SIZE - 1);
    CHECK(!tokenizer_id_used(t, TINY_IM_END - 1) && !tokenizer_id_used(t, UINT32_MAX));
    CHECK(tokenizer_bytes(t, TINY_IM_END - 1, &len) == NULL);
    CHECK_MEM(tokenizer_bytes(t, TINY_WORDS + 4, &len), "\xE4\xB8", 2);
    CHECK_EQ(len, 2);
    CHECK_MEM(tokenizer_bytes(t, 0, &len), "", 1);
    CHECK(tokenizer_is_added(t, TINY_THINK) && !tokenizer_is_special(t, TINY_THINK));
    CHECK(tokenizer_is_special(t, TINY_IM_END) && !tokenizer_is_added(t, 'a'));
    CHECK_EQ(tokenizer_find(t, "</think>"), TINY_END_THINK);
    CHECK_EQ(tokenizer_find(t, "the"), -1);
    tokenizer_free(t);
}

TEST(decoding_replaces_bad_bytes_as_the_longest_subparts) {
    struct tokenizer *t = tiny_tokenizer();
    static const struct {
        uint32_t ids[8];
        size_t count;
        bool skip;
        const char *text;
    } rows[] = {
        {{0xE4, 0xB8, 0xAD}, 3, false, "\xE4\xB8\xAD"},
        {{0xE4, 0xB8, 'x'}, 3, false, "\xEF\xBF\xBDx"},
        {{0xE4, 0xB8}, 2, false, "\xEF\xBF\xBD"},
        {{0xF0, 0x80, 0x80}, 3, false, "\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD"},
        {{0xED, 0xA0, 0x80}, 3, false, "\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD"},
        {{0xF0, 0x9F, 0x98, 'a'},
         4,
         false,
         "\xEF\xBF\xBD"
         "a"},
        {{0xE4, TINY_IM_END, 0xB8, 0xAD}, 4, true, "\xE4\xB8\xAD"},
        {{0xE4, TINY_IM_END, 0xB8}, 3, false, "\xEF\xBF\xBD<|im_end|>\xEF\xBF\xBD"},
        {{TINY_THINK, 290, 'a'}, 3, true, "<think>a"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct strbuf out = {0};
        tokenizer_decode(t, rows[i].ids, rows[i].count, rows[i].skip, &out);
        CHECK_STR(strbuf_str(&out), rows[i].text);
        strbuf_fini(&out);
    }
    tokenizer_free(t);
}

/* ---- files ---- */

static int parse_edited(const char *path, const char *value, struct err *e) {
    struct strbuf text = {0};
    tiny_tokenizer_text(&text, NULL);
    json_t *root = json_loadb(text.p, text.len, 0, NULL), *at = root;
    char buf[200], *key, *rest = buf;
    snprintf(buf, sizeof buf, "%s", path);
    while ((key = strsep(&rest, "/")) && rest)
        at = json_is_array(at) ? json_array_get(at, (size_t)atoi(key)) : json_object_get(at, key);
    json_t *v = value ? json_loads(value, JSON_DECODE_ANY, NULL) : NULL;
    CHECK(at != NULL && (v || !value));
    if (!value)
        json_object_del(at, key);
    else if (json_is_array(at))
        json_array_set_new(at, (size_t)atoi(key), v);
    else
        json_object_set_new(at, key, v);
    char *edited = json_dumps(root, 0);
    struct tokenizer *t = NULL;
    int st = tokenizer_parse(&t, "edited.json", edited, strlen(edited), e);
    CHECK_EQ(t != NULL, st == ST_OK);
    tokenizer_free(t);
    free(edited);
    json_decref(root);
    strbuf_fini(&text);
    return st;
}

#define SPLIT "pre_tokenizer/pretokenizers/0/"
#define LEVEL "pre_tokenizer/pretokenizers/1/"

TEST(what_a_file_asks_for_and_we_do_not_do_is_refused_by_name) {
    static const struct {
        const char *path, *value;
        int st;
        const char *message;
    } rows[] = {
        {"version", "\"2.0\"", ST_UNSUPPORTED,
         "edited.json': version: wanted \"1.0\", found \"2.0\""},
        {"truncation", "{\"max_length\":5}", ST_UNSUPPORTED, "truncation: wanted null"},
        {"padding", "{}", ST_UNSUPPORTED, "padding: wanted null, found {}"},
        {"novelty", "1", ST_UNSUPPORTED, "novelty: wanted no such key"},
        {"model", NULL, ST_UNSUPPORTED, "model: wanted a value, found nothing"},
        {"model", "7", ST_CORRUPT, "model: wanted an object, found 7"},
        {"model/type", "\"Unigram\"", ST_UNSUPPORTED,
         "model.type: wanted \"BPE\", found \"Unigram\""},
        {"model/dropout", "0.1", ST_UNSUPPORTED, "model.dropout"},
        {"model/unk_token", "\"<unk>\"", ST_UNSUPPORTED, "model.unk_token: wanted null"},
        {"model/continuing_subword_prefix", "\"##\"", ST_UNSUPPORTED, "continuing_subword_prefix"},
        {"model/end_of_word_suffix", "\"</w>\"", ST_UNSUPPORTED, "end_of_word_suffix"},
        {"model/byte_fallback", "true", ST_UNSUPPORTED,
         "model.byte_fallback: wanted false, found true"},
        {"model/ignore_merges", "true", ST_UNSUPPORTED, "model.ignore_merges"},
        {"model/extra", "1", ST_UNSUPPORTED, "model.extra: wanted no such key"},
        {"model/vocab", "[]", ST_CORRUPT, "model.vocab: wanted an object"},
        {"model/vocab/a", NULL, ST_UNSUPPORTED, "a word for every byte (\"a\" for 61)"},
        {"model/vocab/a", "-1", ST_CORRUPT,
         "model.vocab[\"a\"]: wanted an id of 0 to 4194303, found -1"},
        {"model/vocab/a", "4194304", ST_CORRUPT, "found 4194304"},
        {"model/vocab/a", "1.5", ST_CORRUPT, "found 1.5"},
        {"model/vocab/a", "98", ST_CORRUPT, "an id that no other word has, found 98"},
        {"model/vocab/", "290", ST_CORRUPT, "a word of 1 to 65536 bytes"},
        {"model/merges", "{}", ST_CORRUPT, "model.merges: wanted an array"},
        {"model/merges/0", "\"t\"", ST_CORRUPT, "model.merges[0]: wanted \"left right\""},
        {"model/merges/0", "\"t h e\"", ST_CORRUPT, "model.merges[0]"},
        {"model/merges/1", "[\"t\"]", ST_CORRUPT, "model.merges[1]"},
        {"model/merges/2", "[\"t\",5]", ST_CORRUPT, "model.merges[2]"},
        {"model/merges/2", "\"q q\"", ST_CORRUPT, "both words and the joined one"},
        {"model/merges/2", "\"zz q\"", ST_CORRUPT, "both words and the joined one"},
        {"normalizer", "{\"type\":\"NFKC\"}", ST_UNSUPPORTED,
         "normalizer.type: wanted \"NFC\", found \"NFKC\""},
        {"normalizer", "[]", ST_CORRUPT, "normalizer: wanted an object"},
        {"pre_tokenizer", "{\"type\":\"ByteLevel\"}", ST_UNSUPPORTED,
         "pre_tokenizer.type: wanted \"Sequence\""},
        {"pre_tokenizer/pretokenizers", "[]", ST_UNSUPPORTED, "wanted [Split, ByteLevel]"},
        {SPLIT "behavior", "\"Removed\"", ST_UNSUPPORTED, "[0].behavior: wanted \"Isolated\""},
        {SPLIT "invert", "true", ST_UNSUPPORTED, "[0].invert: wanted false"},
        {SPLIT "pattern", "{\"String\":\" \"}", ST_UNSUPPORTED,
         "pattern: wanted {\"Regex\": text}"},
        {SPLIT "pattern/Regex", "\"a(\"", ST_UNSUPPORTED,
         "pattern.Regex: wanted a regex that PCRE2 compiles"},
        {SPLIT "pattern/Regex", "\"a*\"", ST_UNSUPPORTED, "can match nothing"},
        {SPLIT "pattern/Regex", "\"a.\"", ST_UNSUPPORTED, "found '.' at offset 1"},
        {SPLIT "pattern/Regex", "\"\\\\w+\"", ST_UNSUPPORTED, "found '\\w+' at offset 0"},
        {SPLIT "pattern/Regex", "\"\\\\p{Lu}\"", ST_UNSUPPORTED, "found '\\p{Lu}' at offset 0"},
        {SPLIT "pattern/Regex", "\"[a[b]]\"", ST_UNSUPPORTED, "at offset 2"},
        {SPLIT "pattern/Regex", "\"[a&&b]\"", ST_UNSUPPORTED, "at offset 2"},
        {SPLIT "pattern/Regex", "\"[]a]\"", ST_UNSUPPORTED, "at offset 0"},
        {SPLIT "pattern/Regex", "\"a{2}+\"", ST_UNSUPPORTED, "at offset 1"},
        {SPLIT "pattern/Regex", "\"a{,2}\"", ST_UNSUPPORTED, "at offset 1"},
        {SPLIT "pattern/Regex", "\"(?<n>a)\"", ST_UNSUPPORTED, "at offset 0"},
        {SPLIT "pattern/Regex", "\"a\\\\\"", ST_UNSUPPORTED, "at offset 1"},
        {LEVEL "add_prefix_space", "true", ST_UNSUPPORTED, "[1].add_prefix_space: wanted false"},
        {LEVEL "use_regex", "true", ST_UNSUPPORTED, "[1].use_regex: wanted false"},
        {LEVEL "use_regex", NULL, ST_UNSUPPORTED, "[1].use_regex: wanted false, found nothing"},
        {"post_processor", "{\"type\":\"TemplateProcessing\"}", ST_UNSUPPORTED,
         "post_processor.type"},
        {"decoder", "{\"type\":\"WordPiece\"}", ST_UNSUPPORTED,
         "decoder.type: wanted \"ByteLevel\""},
        {"added_tokens", "{}", ST_CORRUPT, "added_tokens: wanted an array"},
        {"added_tokens/0", "[]", ST_CORRUPT, "added_tokens[0]"},
        {"added_tokens/0/lstrip", "true", ST_UNSUPPORTED,
         "added_tokens[0].lstrip: wanted false, found true"},
        {"added_tokens/0/rstrip", "true", ST_UNSUPPORTED, "added_tokens[0].rstrip"},
        {"added_tokens/0/single_word", "true", ST_UNSUPPORTED, "added_tokens[0].single_word"},
        {"added_tokens/1/normalized", "true", ST_UNSUPPORTED, "added_tokens[1].normalized"},
        {"added_tokens/1/content", "\"\"", ST_CORRUPT, "added_tokens[1]: wanted a content"},
        {"added_tokens/1/content", "\"<|im_end|>\"", ST_CORRUPT, "no other added token has"},
        {"added_tokens/1/content", "\"the\"", ST_CORRUPT, "the id that model.vocab gives"},
        {"added_tokens/1/id", "300", ST_CORRUPT, "an id that nothing else has"},
        {"added_tokens/1/id", "97", ST_CORRUPT, "an id that nothing else has"},
        {"added_tokens/1/id", "\"5\"", ST_CORRUPT, "added_tokens[1].id"},
        {"added_tokens/1/special", "1", ST_CORRUPT, "special: true or false"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct err e = {0};
        int st = parse_edited(rows[i].path, rows[i].value, &e);
        if (st != rows[i].st)
            test_fail(__FILE__, __LINE__, "%s = %s: status %d: %s", rows[i].path, rows[i].value, st,
                      e.msg);
        CHECK_HAS(e.msg, rows[i].message);
        CHECK(strchr(e.msg, '\n') == NULL);
    }
}

TEST(what_means_the_same_is_let_through) {
    static const char *const rows[][2] = {
        {"version", NULL},
        {"truncation", NULL},
        {"normalizer", NULL},
        {"normalizer", "null"},
        {"post_processor", "{\"type\":\"ByteLevel\",\"add_prefix_space\":true,\"trim_offsets\":"
                           "true,\"use_regex\":true}"},
        {"decoder", "{\"type\":\"ByteLevel\",\"add_prefix_space\":true,\"trim_offsets\":true,\"use_"
                    "regex\":true}"},
        {"added_tokens", "[]"},
        {"added_tokens", "null"},
        {"added_tokens", NULL},
        {"model/type", NULL},
        {"model/dropout", "0.0"},
        {"model/continuing_subword_prefix", "null"},
        {"model/merges", "[]"},
        {"model/vocab/the", "256000"},
        {SPLIT "pattern/Regex", "\"(?:a|b){1,3}|\\\\p{N}++|(?<!x)y|[^ab]|\\\\S\""},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct err e = {0};
        if (!strcmp(rows[i][0], "model/vocab/the"))
            CHECK_EQ(parse_edited(rows[i][0], rows[i][1], &e), ST_OK);
        else
            CHECK_OK(parse_edited(rows[i][0], rows[i][1], &e), e);
    }
}

TEST(a_file_that_is_no_json_or_not_there_is_named) {
    struct tokenizer *t = NULL;
    struct err e = {0};
    CHECK_EQ(tokenizer_parse(&t, "x.json", "{\"a\":1,\"a\":2}", 13, &e), ST_CORRUPT);
    CHECK_HAS(e.msg, "x.json': wanted JSON, found at line 1: duplicate object key");
    CHECK_EQ(tokenizer_parse(&t, "x.json", "", 0, &e), ST_CORRUPT);
    CHECK_EQ(tokenizer_parse(&t, "x.json", "[]", 2, &e), ST_CORRUPT);
    CHECK_EQ(tokenizer_open(&t, "/nowhere/tokenizer.json", &e), ST_NOT_FOUND);
    CHECK_HAS(e.msg, "/nowhere/tokenizer.json");
    CHECK_EQ(tokenizer_open(&t, test_temp_dir(), &e), ST_UNSUPPORTED);
    CHECK_HAS(e.msg, "something else");
    CHECK(t == NULL);
}

// What the pattern leaves unmatched is a piece of its own.
TEST(a_pattern_with_gaps_keeps_every_byte) {
    struct strbuf text = {0};
    tiny_tokenizer_text(&text, NULL);
    char *regex = strstr(text.p, "(?i:'s"), *end = strstr(regex, "\"}");
    struct strbuf edited = {0};
    strbuf_add(&edited, text.p, (size_t)(regex - text.p));
    strbuf_add_str(&edited, "a+");
    strbuf_add_str(&edited, end);
    struct tokenizer *t = NULL;
    struct err e = {0};
    CHECK_OK(tokenizer_parse(&t, "gaps", edited.p, edited.len, &e), e);
    CHECK_IDS(t, "xtheaab", 'x', W_THE, W_AA, 'b');
    tokenizer_free(t);
    strbuf_fini(&text);
    strbuf_fini(&edited);
}

// A hostile file's regex must not hang the router: it is given up after a number of steps.
TEST(a_regex_that_never_ends_is_given_up) {
    struct strbuf text = {0}, edited = {0}, input = {0};
    tiny_tokenizer_text(&text, NULL);
    char *regex = strstr(text.p, "(?i:'s"), *end = strstr(regex, "\"}");
    strbuf_add(&edited, text.p, (size_t)(regex - text.p));
    strbuf_add_str(&edited, "(?:(?:a|b|ab)+)+[cd]");
    strbuf_add_str(&edited, end);
    struct tokenizer *t = NULL;
    struct err e = {0};
    CHECK_OK(tokenizer_parse(&t, "hostile", edited.p, edited.len, &e), e);
    for (int i = 0; i < 200; i++) strbuf_add_str(&input, "ab");
    struct ids ids = {0};
    CHECK_EQ(tokenizer_encode(t, input.p, input.len, NULL, 0, &ids, &e), ST_UNSUPPORTED);
    CHECK_HAS(e.msg, "regex fails on this text");
    ids_fini(&ids);
    tokenizer_free(t);
    strbuf_fini(&text);
    strbuf_fini(&edited);
    strbuf_fini(&input);
}
