/* reply: any cutting of the ids gives the same text; stop strings, marks and characters are never sent in part.
 *
 * The wanted text is found here in another way: decode all ids, then look for stop strings in the whole. */
#include "common/ids.h"
#include "common/sha256.h"
#include "router/text/reply.h"
#include "tests/lib/test.h"
#include "tests/lib/tiny_tokenizer.h"

struct rng {
    uint64_t s;
};
static uint32_t below(struct rng *r, uint32_t n) {
    r->s = r->s * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)((r->s >> 33) % n);
}

static bool is_utf8(const struct strbuf *b) {
    return utf8_valid(strbuf_str(b), b->len) == b->len;
}

// Rows of the tables say only what differs.
#pragma GCC diagnostic ignored "-Wmissing-field-initializers"

/* ---- what is wanted, from the whole ---- */

struct plan {
    struct reply_options o;
    const char *stops[REPLY_STOPS_MAX];
    size_t stop_lens[REPLY_STOPS_MAX];
    uint32_t ids[64];
    size_t count;
};

// Text of ids[first, last) without marks; the character that the end cuts is left out.
static void whole_text(const struct plan *p, size_t first, size_t last, uint32_t skip_a,
                       uint32_t skip_b, struct strbuf *out) {
    struct strbuf bytes = {0};
    for (size_t i = first; i < last; i++) {
        size_t len;
        const char *b = tokenizer_bytes(p->o.tokenizer, p->ids[i], &len);
        if (!b || p->ids[i] == skip_a || p->ids[i] == skip_b) continue;
        if (p->o.skip_special && tokenizer_is_special(p->o.tokenizer, p->ids[i])) continue;
        strbuf_add(&bytes, b, len);
    }
    for (size_t cut = 0; cut < 4 && cut < bytes.len; cut++) { // a start of a character at the end
        uint32_t cp;
        if (utf8_read(bytes.p + bytes.len - cut - 1, cut + 1, &cp) != 0) continue;
        bytes.len -= cut + 1;
        break;
    }
    utf8_add_lossy(out, strbuf_str(&bytes), bytes.len);
    strbuf_fini(&bytes);
}

static size_t trailing_newlines(const struct strbuf *b) {
    size_t n = 0;
    while (n < b->len && b->p[b->len - 1 - n] == '\n') n++;
    return n;
}

// Index of the id behind the thought; count when it never ends. *ret_mark: by </think>.
static size_t thought_end(const struct plan *p, bool *ret_mark) {
    *ret_mark = false;
    if (!p->o.split_thought || !p->o.in_thought) return 0;
    for (size_t i = 0; i < p->count; i++) {
        *ret_mark = p->ids[i] == TINY_END_THINK;
        if (*ret_mark) return i + 1;
        if (p->ids[i] == TINY_CALL) return i;
    }
    return p->count;
}

// The content that is visible of ids[first, last), before stop strings.
static void visible(const struct plan *p, size_t first, size_t last, bool by_mark,
                    struct strbuf *out) {
    struct strbuf all = {0};
    size_t skip = 0;
    whole_text(p, first, last, p->o.split_thought ? TINY_END_THINK : UINT32_MAX, UINT32_MAX, &all);
    while (by_mark && skip < all.len && all.p[skip] == '\n') skip++;
    strbuf_add(out, strbuf_str(&all) + skip, all.len - skip);
    strbuf_fini(&all);
}

struct wanted {
    struct strbuf reasoning, content;
    size_t taken, reasoning_tokens;
    const char *stop;
};

static bool ends_here(const struct strbuf *text, size_t end, const char *stop, size_t len) {
    return len <= end && !memcmp(text->p + end - len, stop, len);
}

static void look_for_stop(const struct plan *p, size_t first, bool by_mark, struct wanted *w) {
    for (size_t k = first + 1; k <= p->count; k++) {
        struct strbuf text = {0}, before = {0};
        visible(p, first, k, by_mark, &text);
        visible(p, first, k - 1, by_mark, &before);
        size_t best = 0, end = before.len + 1;
        for (; k >= p->o.min_tokens && !best && end <= text.len; end++)
            for (size_t s = 0; s < p->o.stop_count; s++)
                if (ends_here(&text, end, p->stops[s], p->stop_lens[s]) && p->stop_lens[s] > best) {
                    best = p->stop_lens[s];
                    w->stop = p->stops[s];
                }
        if (best) {
            w->taken = k;
            strbuf_reset(&w->content);
            strbuf_add(&w->content, text.p, end - 1 - (p->o.include_stop ? 0 : best));
        }
        strbuf_fini(&text);
        strbuf_fini(&before);
        if (best) return;
    }
}

static void find_wanted(const struct plan *p, struct wanted *w) {
    bool by_mark;
    size_t behind = thought_end(p, &by_mark);
    bool ended = by_mark || (behind < p->count && p->o.in_thought && p->o.split_thought);
    *w = (struct wanted){.taken = p->count, .reasoning_tokens = behind};
    if (behind) {
        whole_text(p, 0, behind - by_mark, TINY_THINK, UINT32_MAX, &w->reasoning);
        if (ended) { // a cut character shows
            struct ids kept = {0};
            for (size_t i = 0; i < behind - by_mark; i++)
                if (p->ids[i] != TINY_THINK) ids_add(&kept, p->ids[i]);
            strbuf_reset(&w->reasoning);
            tokenizer_decode(p->o.tokenizer, kept.v, kept.len, p->o.skip_special, &w->reasoning);
            ids_fini(&kept);
        }
        if (by_mark) w->reasoning.len -= trailing_newlines(&w->reasoning);
    }
    visible(p, behind, p->count, by_mark, &w->content);
    look_for_stop(p, behind, by_mark, w);
}

/* ---- random replies ---- */

static const char *const stop_pool[] = {
    "STOP",
    "TOP",
    "O",
    "aa",
    "aaa",
    "aba",
    "abaab",
    "\n\n",
    ".\n",
    "\xE4\xB8\xAD",
    "\xEF\xBF\xBD",
    "!",
    "the the",
    "\xF0\x9F\x98\x80",
    "\xE2\x80\x8D\xF0\x9F\x91\xA9",
    "<|im_end|>",
    "</think>",
    "b<tool_call>",
    "aab",
};

static void random_plan(struct plan *p, const struct tokenizer *t, struct rng *r) {
    static const uint32_t likely[] = {
        'a',  'b',  'a',         '\n',       '\n',           'S',       'T',  'O',  'P',  '!',
        '.',  ' ',  0xE4,        0xB8,       0xAD,           0xF0,      0x9F, 0x98, 0x80, 0xE2,
        0x80, 0x8D, TINY_IM_END, TINY_THINK, TINY_END_THINK, TINY_CALL, 290};
    *p = (struct plan){.o = {.tokenizer = t,
                             .in_thought = below(r, 2),
                             .split_thought = below(r, 4) != 0,
                             .skip_special = below(r, 2),
                             .include_stop = below(r, 2),
                             .min_tokens = below(r, 3) ? 0 : below(r, 12)}};
    p->o.stop_count = below(r, 3) ? below(r, 4) : 0;
    for (size_t i = 0; i < p->o.stop_count; i++) {
        p->stops[i] = stop_pool[below(r, sizeof stop_pool / sizeof stop_pool[0])];
        p->stop_lens[i] = strlen(p->stops[i]);
    }
    p->o.stops = p->stops;
    p->o.stop_lens = p->stop_lens;
    p->count = below(r, 24);
    for (size_t i = 0; i < p->count; i++) {
        uint32_t kind = below(r, 8);
        p->ids[i] = kind < 4   ? likely[below(r, sizeof likely / sizeof likely[0])]
                    : kind < 7 ? TINY_WORDS + below(r, TINY_WORD_COUNT)
                               : below(r, 256);
        if (p->ids[i] == TINY_END_THINK && below(r, 2)) p->ids[i] = 'a';
    }
}

static void check_text(const struct strbuf *found, const struct strbuf *wanted) {
    CHECK_STR(strbuf_str(found), strbuf_str(wanted));
    CHECK_EQ(found->len, wanted->len);
    CHECK_MEM(strbuf_str(found), strbuf_str(wanted), wanted->len);
}

static void run_cut(const struct plan *p, struct rng *r, const struct wanted *w) {
    struct reply *reply = reply_new(&p->o);
    struct strbuf reasoning = {0}, content = {0};
    size_t at = 0;
    bool finished = false;
    while (!finished) {
        struct reply_delta d = {0};
        size_t n = below(r, 3) ? 1 + below(r, 3) : below(r, 30);
        if (n > p->count - at) n = p->count - at;
        if (at == p->count || reply_state(reply) == REPLY_STOP_STRING) {
            reply_finish(reply, false, &d);
            finished = true;
        } else {
            size_t taken = reply_push(reply, p->ids + at, n, &d);
            CHECK(taken == n || reply_state(reply) == REPLY_STOP_STRING);
            at += taken;
        }
        CHECK(is_utf8(&d.reasoning) && is_utf8(&d.content));
        strbuf_add(&reasoning, strbuf_str(&d.reasoning), d.reasoning.len);
        strbuf_add(&content, strbuf_str(&d.content), d.content.len);
        reply_delta_fini(&d);
    }
    check_text(&reasoning, &w->reasoning);
    check_text(&content, &w->content);
    CHECK_EQ(at, w->taken);
    CHECK_EQ(reply_tokens(reply), w->taken);
    CHECK_EQ(reply_reasoning_tokens(reply), w->reasoning_tokens);
    size_t len = 0;
    const char *stop = reply_stop_string(reply, &len);
    CHECK_EQ(stop != NULL, w->stop != NULL);
    if (stop) CHECK_STR(stop, w->stop);
    strbuf_fini(&reasoning);
    strbuf_fini(&content);
    reply_free(reply);
}

TEST(every_cutting_of_100000_replies_gives_the_text_of_the_whole) {
    struct tokenizer *t = tiny_tokenizer();
    struct rng r = {20251129};
    size_t stopped = 0, thoughts = 0;
    for (int i = 0; i < 100000; i++) {
        struct plan p;
        struct wanted w;
        random_plan(&p, t, &r);
        find_wanted(&p, &w);
        // The strings end where their lengths say, for the checks that print them.
        strbuf_add(&w.reasoning, "", 0);
        strbuf_add(&w.content, "", 0);
        for (int cut = 0; cut < 3; cut++) run_cut(&p, &r, &w);
        stopped += w.stop != NULL;
        thoughts += w.reasoning.len > 0;
        strbuf_fini(&w.reasoning);
        strbuf_fini(&w.content);
    }
    test_note("%zu stopped by a string, %zu with a thought", stopped, thoughts);
    CHECK(stopped > 5000 && thoughts > 5000);
    tokenizer_free(t);
}

/* ---- nothing is held longer than it must ---- */

// The longest end of text that is a proper prefix of a stop string.
static size_t must_hold(const struct plan *p, const struct strbuf *text) {
    size_t hold = 0;
    for (size_t s = 0; s < p->o.stop_count; s++)
        for (size_t n = 1; n < p->stop_lens[s] && n <= text->len; n++)
            if (n > hold && !memcmp(text->p + text->len - n, p->stops[s], n)) hold = n;
    return hold;
}

TEST(only_prefixes_of_stop_strings_and_parts_of_characters_are_held) {
    struct tokenizer *t = tiny_tokenizer();
    struct rng r = {7};
    for (int i = 0; i < 20000; i++) {
        struct plan p;
        random_plan(&p, t, &r);
        p.o.in_thought = false;
        struct reply *reply = reply_new(&p.o);
        struct strbuf sent = {0};
        for (size_t k = 0; k < p.count; k++) {
            struct strbuf text = {0};
            struct reply_delta d = {0};
            reply_push(reply, &p.ids[k], 1, &d);
            strbuf_add(&sent, strbuf_str(&d.content), d.content.len);
            reply_delta_fini(&d);
            if (reply_state(reply) != REPLY_OPEN) break;
            visible(&p, 0, k + 1, false, &text);
            CHECK_EQ(sent.len, text.len - must_hold(&p, &text));
            CHECK_MEM(strbuf_str(&sent), strbuf_str(&text), sent.len);
            strbuf_fini(&text);
        }
        strbuf_fini(&sent);
        reply_free(reply);
    }
    tokenizer_free(t);
}

/* ---- the plain cases, by hand ---- */

struct row {
    struct reply_options o;
    uint32_t ids[16];
    size_t count;
    const char *reasoning, *content, *stop;
    size_t taken, reasoning_tokens;
};

static void check_row(const struct tokenizer *t, const struct row *row, const char *stop) {
    struct reply_options o = row->o;
    size_t len = stop ? strlen(stop) : 0;
    o.tokenizer = t;
    o.stops = &stop;
    o.stop_lens = &len;
    o.stop_count = stop ? 1 : 0;
    struct reply *r = reply_new(&o);
    struct reply_delta d = {0};
    CHECK_EQ(reply_push(r, row->ids, row->count, &d), row->taken);
    reply_finish(r, false, &d);
    CHECK_STR(strbuf_str(&d.reasoning), row->reasoning);
    CHECK_STR(strbuf_str(&d.content), row->content);
    CHECK_EQ(reply_reasoning_tokens(r), row->reasoning_tokens);
    reply_delta_fini(&d);
    reply_free(r);
}

TEST(thought_and_content_part_at_the_mark) {
#define THINKS                                                                                     \
    { .in_thought = true, .split_thought = true, .skip_special = true }
#define SPEAKS                                                                                     \
    { .split_thought = true, .skip_special = true }
#define NL2 (TINY_WORDS + 3)
    static const struct row rows[] = {
        {THINKS, {'a', '\n', TINY_END_THINK, NL2, 'b'}, 5, "a", "b", NULL, 5, 3},
        {THINKS, {'a', NL2, TINY_END_THINK, '\n', NL2, ' ', 'b'}, 7, "a", " b", NULL, 7, 3},
        {THINKS, {'a', '\n', 'b', '\n'}, 4, "a\nb\n", "", NULL, 4, 4},
        {THINKS, {'\n', TINY_END_THINK}, 2, "", "", NULL, 2, 2},
        {THINKS, {TINY_THINK, 'a', TINY_THINK, 'b', TINY_END_THINK, 'c'}, 6, "ab", "c", NULL, 6, 5},
        {THINKS, {'a', TINY_END_THINK, 'b', TINY_END_THINK, '\n', 'c'}, 6, "a", "b\nc", NULL, 6, 2},
        {THINKS, {'a', '\n', TINY_CALL, '\n', 'f'}, 5, "a\n", "<tool_call>\nf", NULL, 5, 2},
        {THINKS,
         {0xE4, 0xB8, TINY_END_THINK, 0xAD, 'c'},
         5,
         "\xEF\xBF\xBD",
         "\xEF\xBF\xBD"
         "c",
         NULL,
         5,
         3},
        {THINKS, {'a', 0xE4, 0xB8}, 3, "a", "", NULL, 3, 3},
        {THINKS, {'a', TINY_END_THINK, TINY_IM_END}, 3, "a", "", NULL, 3, 2},
        {SPEAKS, {'\n', 'a', TINY_END_THINK, 'b'}, 4, "", "\nab", NULL, 4, 0},
        {SPEAKS, {TINY_THINK, 'a'}, 2, "", "<think>a", NULL, 2, 0},
        {{.in_thought = true, .skip_special = true},
         {'a', TINY_END_THINK, '\n'},
         3,
         "",
         "a</think>\n",
         NULL,
         3,
         0},
        {{.split_thought = true}, {'a', TINY_IM_END}, 2, "", "a<|im_end|>", NULL, 2, 0},
        {SPEAKS, {'a', 290, 400, UINT32_MAX, 'b'}, 5, "", "ab", NULL, 5, 0},
        {SPEAKS, {0xF0, 0x9F, 0x98, TINY_IM_END, 0x80}, 5, "", "\xF0\x9F\x98\x80", NULL, 5, 0},
    };
    struct tokenizer *t = tiny_tokenizer();
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) check_row(t, &rows[i], NULL);
    tokenizer_free(t);
}

TEST(a_stop_string_is_looked_for_in_the_visible_content_alone) {
    static const struct row rows[] = {
        {THINKS, {'S', 'T', TINY_END_THINK, 'a', 'S', 'T', 'b'}, 7, "ST", "a", "ST", 6, 3},
        {THINKS, {'S', TINY_END_THINK, 'T', 'b'}, 4, "S", "Tb", "ST", 4, 2},
        {THINKS,
         {'a', '\n', TINY_END_THINK, '\n', '\n', 'b', '\n', '\n', 'c'},
         9,
         "a",
         "b",
         "\n\n",
         8,
         3},
        {SPEAKS, {'a', TINY_IM_END, 'b'}, 3, "", "ab", "<|im_end|>", 3, 0},
        {SPEAKS, {'a', 'S', TINY_END_THINK, 'T'}, 4, "", "a", "ST", 4, 0},
        {SPEAKS, {'a', 'S'}, 2, "", "aS", "ST", 2, 0}, // held, and then it was none
    };
    struct tokenizer *t = tiny_tokenizer();
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) check_row(t, &rows[i], rows[i].stop);
    tokenizer_free(t);
}

TEST(a_stop_string_has_no_effect_before_min_tokens) {
    static const struct row rows[] = {
        {{.min_tokens = 3}, {'a', '!', 'b', '!', 'c'}, 5, "", "a!b", "!", 4, 0},
        {{.min_tokens = 2}, {'a', '!', 'b'}, 3, "", "a", "!", 2, 0},
        {{.min_tokens = 3}, {'S', 'T', 'O'}, 3, "", "", "STO", 3, 0}, // begins before
        {{.min_tokens = 9}, {'a', '!'}, 2, "", "a!", "!", 2, 0},
        {{.min_tokens = 3},
         {'a', 'a', 'a'},
         3,
         "",
         "a",
         "aa",
         3,
         0}, // one ignored, the next counts
    };
    struct tokenizer *t = tiny_tokenizer();
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) check_row(t, &rows[i], rows[i].stop);
    tokenizer_free(t);
}

TEST(the_longest_of_the_stop_strings_that_end_first_is_the_one) {
    struct tokenizer *t = tiny_tokenizer();
    static const char *const stops[] = {"OP", "xSTOP", "STOP", "STOPS", "P!"};
    static const size_t lens[] = {2, 5, 4, 5, 2};
    static const uint32_t ids[] = {'a', TINY_WORDS + 8, 'P', 'S'}; // a STO P S
    for (int include = 0; include < 2; include++) {
        struct reply_options o = {.tokenizer = t,
                                  .include_stop = include,
                                  .stops = stops,
                                  .stop_lens = lens,
                                  .stop_count = 5};
        struct reply *r = reply_new(&o);
        struct reply_delta d = {0};
        size_t len = 0;
        CHECK_EQ(reply_push(r, ids, 4, &d), 3);
        CHECK_STR(reply_stop_string(r, &len), "STOP");
        CHECK_EQ(len, 4);
        CHECK_EQ(reply_push(r, ids, 4, &d), 0); // the reply is over
        reply_finish(r, false, &d);
        CHECK_STR(d.content.p, include ? "aSTOP" : "a");
        reply_delta_fini(&d);
        reply_free(r);
    }
    tokenizer_free(t);
}

// Each split of a stop string over ids and pushes: none of its bytes is sent, all before it is.
TEST(no_byte_of_a_stop_string_is_sent_wherever_it_is_cut) {
    struct tokenizer *t = tiny_tokenizer();
    static const char *const stops[] = {"STOP!", "\xE4\xB8\xAD\xE6\x96\x87", "\n\nHuman:",
                                        "\xF0\x9F\x91\xA9\xE2\x80\x8D\xF0\x9F\x91\xA9"};
    for (size_t s = 0; s < 4; s++) {
        size_t len = strlen(stops[s]);
        for (size_t cut = 0; cut <= len; cut++) {
            struct reply_options o = {
                .tokenizer = t, .stops = &stops[s], .stop_lens = &len, .stop_count = 1};
            struct reply *r = reply_new(&o);
            struct reply_delta d = {0};
            uint32_t ids[64];
            size_t n = 0;
            ids[n++] = 'x';
            for (size_t i = 0; i < len; i++) ids[n++] = (unsigned char)stops[s][i];
            ids[n++] = 'y';
            size_t taken = reply_push(r, ids, 1 + cut, &d);
            CHECK_STR(d.content.p, "x");
            taken += reply_push(r, ids + taken, n - taken, &d);
            CHECK_EQ(taken, 1 + len);
            reply_finish(r, false, &d);
            CHECK_STR(d.content.p, "x");
            reply_delta_fini(&d);
            reply_free(r);
        }
    }
    tokenizer_free(t);
}

// A family of four joined by ZWJ, and letters of 2 to 4 bytes: cut anywhere, each chunk is whole characters.
TEST(characters_of_two_to_four_bytes_are_never_cut) {
    static const char text[] =
        "\xF0\x9F\x91\xA9\xE2\x80\x8D\xF0\x9F\x91\xA9\xE2\x80\x8D\xF0\x9F\x91\xA7"
        "\xC3\xA9\xE4\xB8\xAD\xF0\x9D\x94\x98\xCD\x8F\xEF\xB8\x8F";
    struct tokenizer *t = tiny_tokenizer();
    uint32_t ids[sizeof text];
    size_t n = strlen(text);
    for (size_t i = 0; i < n; i++) ids[i] = (unsigned char)text[i];
    for (size_t first = 0; first <= n; first++)
        for (size_t second = first; second <= n; second++) {
            struct reply_options o = {.tokenizer = t};
            struct reply *r = reply_new(&o);
            struct reply_delta d[3] = {0};
            reply_push(r, ids, first, &d[0]);
            reply_push(r, ids + first, second - first, &d[1]);
            reply_push(r, ids + second, n - second, &d[2]);
            struct strbuf all = {0};
            for (int i = 0; i < 3; i++) {
                CHECK(is_utf8(&d[i].content));
                strbuf_add(&all, strbuf_str(&d[i].content), d[i].content.len);
                reply_delta_fini(&d[i]);
            }
            CHECK_STR(all.p, text);
            strbuf_fini(&all);
            reply_free(r);
        }
    tokenizer_free(t);
}

TEST(the_hash_is_over_the_ids_taken_and_no_others) {
    struct tokenizer *t = tiny_tokenizer();
    static const char *const stop = "b";
    static const size_t len = 1;
    static const uint32_t ids[] = {'a', TINY_IM_END, 290, 'b', 'c'};
    struct reply_options o = {.tokenizer = t, .stops = &stop, .stop_lens = &len, .stop_count = 1};
    struct reply *r = reply_new(&o);
    struct reply_delta d = {0};
    char found[SHA256_HEX_BYTES], wanted[SHA256_HEX_BYTES];
    reply_token_sha256(r, found);
    CHECK_STR(found, "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
    CHECK_EQ(reply_push(r, ids, 5, &d), 4);
    struct sha256 *h = sha256_new();
    uint8_t digest[SHA256_BYTES];
    sha256_add_le32(h, ids, 4);
    sha256_digest(h, digest);
    sha256_hex(digest, wanted);
    reply_token_sha256(r, found);
    CHECK_STR(found, wanted);
    sha256_free(h);
    reply_delta_fini(&d);
    reply_free(r);
    tokenizer_free(t);
}

TEST(the_stop_id_counts_and_shows_nothing) {
    struct tokenizer *t = tiny_tokenizer();
    struct reply_options o = {.tokenizer = t};
    struct reply *r = reply_new(&o), *same = reply_new(&o);
    struct reply_delta d = {0}, e = {0};
    char a[SHA256_HEX_BYTES], b[SHA256_HEX_BYTES];
    reply_push(r, (const uint32_t[]){'x'}, 1, &d);
    reply_push_stop_id(r, TINY_IM_END);
    reply_push(same, (const uint32_t[]){'x', TINY_IM_END}, 2, &e);
    reply_token_sha256(r, a);
    reply_token_sha256(same, b);
    CHECK_STR(a, b);
    CHECK_EQ(reply_tokens(r), 2);
    reply_finish(r, false, &d);
    CHECK_STR(d.content.p, "x");
    CHECK_STR(e.content.p, "x<|im_end|>");
    reply_delta_fini(&d);
    reply_delta_fini(&e);
    reply_free(r);
    reply_free(same);
    tokenizer_free(t);
}
