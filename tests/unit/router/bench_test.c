/* bench: figures, prompts, what makes a reply count, receipts there and back, verdicts. */
#include "common/err.h"
#include "common/mem.h"
#include "common/sha256.h"
#include "common/strbuf.h"
#include "router/bench_ask.h"
#include "router/bench_compare.h"
#include "router/bench_prompts.h"
#include "router/bench_receipt.h"
#include "router/bench_run.h"
#include "router/bench_stats.h"
#include "router/bench_table.h"
#include "router/httpc.h"
#include "tests/lib/fake_http.h"
#include "tests/lib/test.h"

#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

__attribute__((constructor)) static void ignore_sigpipe(void) {
    signal(SIGPIPE, SIG_IGN);
}

/* ---- statistics ---- */

TEST(a_median_is_the_middle_or_between_the_two_in_the_middle) {
    static const struct {
        double v[5];
        size_t count;
        double median;
    } cases[] = {
        {{7}, 1, 7},
        {{9, 1}, 2, 5},
        {{3, 1, 2}, 3, 2},
        {{4, 1, 3, 2}, 4, 2.5},
        {{5, 5, 1, 9, 5}, 5, 5},
        {{NAN, 3, NAN}, 3, 3}, // what was not measured does not count
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct bench_list l = {0};
        for (size_t k = 0; k < cases[i].count; k++) bench_list_add(&l, cases[i].v[k]);
        CHECK_NEAR(bench_list_median(&l), cases[i].median, 0);
        bench_list_fini(&l);
    }
    struct bench_list none = {0};
    CHECK(isnan(bench_list_median(&none)));
}

enum { MS = 1000000 };

TEST(a_rate_counts_the_ids_behind_the_first_arrival) {
    struct bench_arrivals a = {0};
    struct bench_list gaps = {0};
    CHECK(isnan(bench_rate_per_s(bench_arrivals_rate(&a, 1))));
    bench_arrivals_add(&a, 1000 * MS, 3, 1, &gaps);
    CHECK(isnan(bench_rate_per_s(bench_arrivals_rate(&a, 1)))); // one arrival is no rate
    bench_arrivals_add(&a, 1010 * MS, 4, 1, &gaps);
    bench_arrivals_add(&a, 1040 * MS, 4, 3, &gaps); // three rounds came in one read
    CHECK_EQ(a.ids, 11);
    CHECK_EQ(a.rounds, 5);
    CHECK_NEAR(bench_rate_per_s(bench_arrivals_rate(&a, 1)), 200, 1e-9); // 8 ids in 40 ms
    CHECK_NEAR(bench_rate_per_s(bench_arrivals_wall(&a, 1, 990 * MS)), 220, 1e-9);
    CHECK_EQ(gaps.count, 4);
    CHECK_NEAR(bench_list_median(&gaps), 10, 1e-9);
    bench_list_fini(&gaps);
}

TEST(a_total_spans_from_the_first_id_of_any_stream_to_the_last) {
    struct bench_arrivals v[3] = {{0}};
    bench_arrivals_add(&v[0], 100 * MS, 1, 1, NULL);
    bench_arrivals_add(&v[0], 200 * MS, 10, 1, NULL);
    bench_arrivals_add(&v[2], 50 * MS, 2, 1, NULL); // v[1] failed: nothing came
    bench_arrivals_add(&v[2], 150 * MS, 7, 1, NULL);
    CHECK_NEAR(bench_rate_per_s(bench_arrivals_rate(v, 3)), 18 / 0.150, 1e-9);
}

// Ids that a busy machine delivers in one heap must not turn into a rate of millions.
TEST(rates_add_up_by_ids_and_time) {
    struct bench_rate sum = {0, 0};
    bench_rate_add(&sum, (struct bench_rate){50, 0.5});
    bench_rate_add(&sum, (struct bench_rate){50, 0});
    CHECK_NEAR(bench_rate_per_s(sum), 200, 1e-9);
}

/* ---- prompts and plans ---- */

static int parse_prompts(struct bench_prompts *p, const char *text, bool need_class,
                         struct err *e) {
    return bench_prompts_parse(p, "p.jsonl", text, strlen(text), need_class, e);
}

TEST(prompts_are_lines_of_messages_or_of_text) {
    struct bench_prompts p;
    struct err e = {0};
    CHECK_OK(parse_prompts(&p,
                           "{\"class\":\"code\",\"prompt\":\"a\"}\r\n\n  \n"
                           "{\"class\":\"chat\",\"messages\":[{\"role\":\"system\",\"content\":"
                           "\"s\"},{\"role\":\"user\",\"content\":\"b\"}]}\n"
                           "{\"class\":\"code\",\"name\":\"third\",\"prompt\":\"c\"}",
                           true, &e),
             e);
    CHECK_EQ(p.count, 3);
    CHECK(bench_prompts_at(&p, BENCH_CODE, 0) == &p.v[0]);
    CHECK(bench_prompts_at(&p, BENCH_CODE, 1) == &p.v[2]);
    CHECK(bench_prompts_at(&p, BENCH_CODE, 2) == &p.v[0]); // from the first again
    CHECK(bench_prompts_at(&p, BENCH_CHAT, 5) == &p.v[1]);
    CHECK_EQ(json_array_size(p.v[1].messages), 2);
    const json_t *made = json_array_get(p.v[0].messages, 0);
    CHECK_STR(json_string_value(json_object_get(made, "role")), "user");
    CHECK_STR(json_string_value(json_object_get(made, "content")), "a");
    bench_prompts_fini(&p);
}

TEST(a_bad_prompt_is_named_by_file_and_line) {
    static const char *const bad[][2] = {
        {"", "p.jsonl: wanted prompts"},
        {"\n\n", "wanted prompts"},
        {"\n{", "p.jsonl line 2"},
        {"[]", "line 1: wanted a JSON object"},
        {"{\"prompt\":\"a\"}", "\"class\""},
        {"{\"class\":7,\"prompt\":\"a\"}", "no string"},
        {"{\"class\":\"poem\",\"prompt\":\"a\"}", "poem"},
        {"{\"class\":\"code\"}", "neither"},
        {"{\"class\":\"code\",\"prompt\":\"a\",\"messages\":[]}", "both"},
        {"{\"class\":\"code\",\"prompt\":\"\"}", "\"prompt\" to be text"},
        {"{\"class\":\"code\",\"prompt\":[1]}", "\"prompt\" to be text"},
        {"{\"class\":\"code\",\"messages\":[]}", "\"messages\""},
        {"{\"class\":\"code\",\"messages\":[\"a\"]}", "\"messages\""},
        {"{\"class\":\"code\",\"promt\":\"a\"}", "promt"},
        {"{\"class\":\"code\",\"prompt\":\"\xff\"}", "line 1"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct bench_prompts p;
        struct err e = {0};
        CHECK_EQ(parse_prompts(&p, bad[i][0], true, &e), ST_INVAL);
        CHECK_HAS(e.msg, bad[i][1]);
    }
    struct bench_prompts p;
    struct err e = {0};
    CHECK_OK(parse_prompts(&p, "{\"prompt\":\"cold\"}", false, &e), e);
    bench_prompts_fini(&p);
    CHECK_EQ(bench_prompts_read(&p, "/nowhere/p.jsonl", true, &e), ST_NOT_FOUND);
    CHECK_HAS(e.msg, "/nowhere/p.jsonl");
}

TEST(a_digest_of_prompts_follows_what_they_say_and_not_how_it_is_written) {
    static const char *const texts[] = {
        "{\"class\":\"code\",\"prompt\":\"a\"}",
        " { \"messages\":[{\"content\":\"a\",\"role\":\"user\"}],\"class\":\"code\"}\n",
        "{\"class\":\"chat\",\"prompt\":\"a\"}",
        "{\"class\":\"code\",\"prompt\":\"b\"}",
    };
    struct bench_prompts p[4];
    struct err e = {0};
    for (int i = 0; i < 4; i++) CHECK_OK(parse_prompts(&p[i], texts[i], true, &e), e);
    CHECK_STR(p[0].sha256, p[1].sha256);
    CHECK(strcmp(p[0].sha256, p[2].sha256));
    CHECK(strcmp(p[0].sha256, p[3].sha256));
    for (int i = 0; i < 4; i++) bench_prompts_fini(&p[i]);
}

TEST(the_built_in_prompts_are_eight_different_ones_of_each_class) {
    struct bench_prompts p;
    bench_prompts_builtin(&p);
    CHECK_EQ(p.count, 16);
    for (int c = 0; c < BENCH_CLASS_COUNT; c++)
        CHECK(bench_prompts_at(&p, (enum bench_class)c, 8) ==
              bench_prompts_at(&p, (enum bench_class)c, 0));
    for (size_t i = 0; i < p.count; i++)
        for (size_t k = 0; k < i; k++) CHECK(!json_equal(p.v[i].messages, p.v[k].messages));
    bench_prompts_fini(&p);
}

TEST(levels_are_different_counts) {
    static const char *const bad[] = {
        "",    "0",    "-1",  "x",     "1,",  ",1",
        "1,1", "1025", "1 2", "1,2,x", "1.5", "1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17"};
    struct bench_plan p = {0};
    struct err e = {0};
    CHECK_OK(bench_plan_levels(&p, "1,8,1024", &e), e);
    CHECK_EQ(p.level_count, 3);
    CHECK_EQ(p.levels[1], 8);
    CHECK_EQ(p.levels[2], 1024);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        CHECK_EQ(bench_plan_levels(&p, bad[i], &e), ST_INVAL);
        CHECK_HAS(e.msg, "--levels");
    }
}

TEST(a_request_names_every_setting_that_a_server_could_default) {
    json_t *messages = json_pack("[{s:s,s:s}]", "role", "user", "content", "hi");
    struct bench_request r = {
        .messages = messages, .draw = BENCH_SAMPLED, .seed = 9, .tokens = 5, .salt = "s"};
    char *body = bench_ask_body(&r);
    json_t *o = json_loads(body, 0, NULL);
    static const char *const names[] = {
        "temperature",       "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty",
        "repetition_penalty"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        CHECK(json_is_number(json_object_get(o, names[i])));
    CHECK(json_is_false(json_object_get(o, "draft")));
    CHECK(json_is_true(json_object_get(o, "ignore_eos")));
    CHECK(json_is_true(json_object_get(o, "return_logits_hash")));
    CHECK_EQ(json_integer_value(json_object_get(o, "seed")), 9);
    CHECK_EQ(json_integer_value(json_object_get(o, "max_tokens")), 5);
    CHECK_STR(json_string_value(json_object_get(o, "cache_salt")), "s");
    free(body);
    json_decref(o);
    json_decref(messages);
}

/* ---- one reply ---- */

static void hash_ids(const uint32_t *ids, size_t count, char ret[SHA256_HEX_BYTES]) {
    struct sha256 *h = sha256_new();
    uint8_t digest[SHA256_BYTES];
    sha256_add_le32(h, ids, count);
    sha256_digest(h, digest);
    sha256_hex(digest, ret);
    sha256_free(h);
}

struct script {               // of a streamed reply of the ids 11, 12, 13
    const char *token_sha256; // NULL: the right one; "": none
    int cached, completion;
    const char *tail; // NULL: usage and [DONE]
};

static char *stream_of(const struct script *s) {
    static const uint32_t ids[] = {11, 12, 13};
    char hash[SHA256_HEX_BYTES];
    struct strbuf b = {0};
    hash_ids(ids, 3, hash);
    strbuf_add_str(&b, "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n: keepalive\n\n"
                       "data: {\"choices\":[{\"delta\":{\"role\":\"assistant\"}}]}\n\n"
                       "data: {\"choices\":[{\"delta\":{},\"token_ids\":[11]}]}\n\n"
                       "data: {\"choices\":[{\"delta\":{},\"token_ids\":[12,13]}]}\n\n");
    if (!s->token_sha256 || *s->token_sha256)
        strbuf_printf(&b,
                      "data: {\"choices\":[{\"finish_reason\":\"length\",\"token_sha256\":\"%s\","
                      "\"logits_hash\":\"0abc\"}]}\n\n",
                      s->token_sha256 ? s->token_sha256 : hash);
    if (s->tail)
        strbuf_add_str(&b, s->tail);
    else
        strbuf_printf(&b,
                      "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":7,\"completion_tokens\":"
                      "%d,\"prompt_tokens_details\":{\"cached_tokens\":%d}},\"railyard\":{"
                      "\"rounds\":2,\"prefill_ms\":1.5}}\n\ndata: [DONE]\n\n",
                      s->completion, s->cached);
    return strbuf_take(&b);
}

static void ask(const char *reply, const char *salt, struct bench_ask *a) {
    struct fake_http *f = fake_http_start(&reply, 1);
    struct httpc_address address;
    struct err e = {0};
    char text[64];
    json_t *messages = json_pack("[{s:s,s:s}]", "role", "user", "content", "hi");
    struct bench_request r = {.messages = messages, .tokens = 3, .salt = salt};
    uv_loop_t loop;
    snprintf(text, sizeof text, "127.0.0.1:%u", fake_http_port(f));
    CHECK_OK(httpc_address_parse(&address, text, &e), e);
    struct bench_target t = {&address, "", 60000};
    struct bench_list gaps = {0};
    uv_loop_init(&loop);
    bench_ask_start(a, &loop, &t, &r, &gaps);
    uv_run(&loop, UV_RUN_DEFAULT);
    CHECK(a->over);
    CHECK_EQ(uv_loop_close(&loop), 0);
    CHECK_HAS(fake_http_join(f), "POST /v1/chat/completions HTTP/1.1");
    bench_list_fini(&gaps);
    httpc_address_fini(&address);
    json_decref(messages);
    fake_http_free(f);
}

TEST(a_whole_reply_gives_its_digests_and_figures) {
    char *reply = stream_of(&(struct script){.completion = 3, .cached = 4});
    struct bench_ask a;
    ask(reply, NULL, &a);
    CHECK_STR(a.reply.why, "");
    CHECK(!a.reply.failed);
    CHECK_EQ(a.reply.tokens, 3);
    CHECK_EQ(a.reply.prompt_tokens, 7);
    CHECK_EQ(a.reply.cached_tokens, 4);
    CHECK_EQ(a.reply.rounds, 2);
    CHECK_EQ(a.arrivals.ids, 3);
    CHECK_EQ(a.arrivals.rounds, 2);
    CHECK_NEAR(a.reply.fill_ms, 1.5, 0);
    CHECK(a.reply.first_token_ms >= 0);
    CHECK_STR(a.reply.digest.logits_hash, "0abc");
    free(reply);
}

// What must never be counted as a reply, however fast it was.
TEST(a_reply_that_is_not_whole_or_not_what_was_asked_fails) {
    static const struct {
        struct script script;
        const char *salt, *says;
    } cases[] = {
        {{.completion = 3, .token_sha256 = "00ff"}, NULL, "not the hash of the 3 ids"},
        {{.completion = 3, .token_sha256 = ""}, NULL, "no token_sha256"},
        {{.completion = 4}, NULL, "wanted 3 tokens, found 3 ids and a usage of 4"},
        {{.completion = 3, .cached = 6}, "salt", "found 6 tokens of one"},
        {{.tail = ""}, NULL, "without [DONE]"},
        {{.tail = "data: {\"choi"}, NULL, "without [DONE]"},
        {{.tail = "data: nonsense\n\n"}, NULL, "no JSON object: nonsense"},
        {{.tail = "data: {\"error\":{\"message\":\"the worker is lost\"}}\n\n"},
         NULL,
         "error event: the worker is lost"},
        {{.tail = "data: [DONE]\n\ndata: {}\n\n"}, NULL, "behind [DONE]"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char *reply = stream_of(&cases[i].script);
        struct bench_ask a;
        ask(reply, cases[i].salt, &a);
        CHECK(a.reply.failed);
        CHECK_HAS(a.reply.why, cases[i].says);
        free(reply);
    }
}

TEST(a_refusal_fails_with_its_status_and_message) {
    static const char *const cases[][2] = {
        {"HTTP/1.1 429 Busy\r\n\r\n{\"error\":{\"message\":\"queue is full\"}}",
         "status 429: queue is full"},
        {"HTTP/1.1 502 Bad\r\n\r\n<html>\n\xff\x01</html>", "status 502: <html>?"},
        {"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\ndata: {}\n\n", "within the reply"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct bench_ask a;
        ask(cases[i][0], NULL, &a);
        CHECK(a.reply.failed);
        CHECK_HAS(a.reply.why, cases[i][1]);
        json_t *text = json_string(a.reply.why); // valid UTF-8, whatever came
        CHECK(text != NULL);
        json_decref(text);
    }
}

/* ---- what is held against what ---- */

static void add_reply(struct bench_cell *c, struct bench_known *known, const char *tokens,
                      const char *logits) {
    struct bench_reply *r = bench_cell_add(c);
    snprintf(r->digest.token_sha256, sizeof r->digest.token_sha256, "%s", tokens);
    snprintf(r->digest.logits_hash, sizeof r->digest.logits_hash, "%s", logits);
    bench_run_judge(c, known);
}

TEST(equality_is_of_tokens_and_of_logits_where_both_have_them) {
    static const struct {
        struct bench_digest a, b;
        enum bench_equality q;
    } cases[] = {
        {{"aa", "1"}, {"aa", "1"}, BENCH_EQUAL},
        {{"aa", "1"}, {"aa", "2"}, BENCH_UNEQUAL_LOGITS},
        {{"aa", "1"}, {"bb", "1"}, BENCH_UNEQUAL_TOKENS},
        {{"aa", ""}, {"aa", "2"}, BENCH_EQUAL_TOKENS},
        {{"aa", ""}, {"aa", ""}, BENCH_EQUAL_TOKENS},
        {{"aa", ""}, {"bb", ""}, BENCH_UNEQUAL_TOKENS},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        CHECK_EQ(bench_digest_compare(&cases[i].a, &cases[i].b), cases[i].q);
        CHECK_EQ(bench_digest_compare(&cases[i].b, &cases[i].a), cases[i].q);
    }
}

TEST(a_reply_is_held_against_undrafted_alone_and_the_first_run) {
    struct bench_cell serial = {.kind = BENCH_SERIAL}, alone = {.kind = BENCH_ALONE},
                      level = {.kind = BENCH_LEVEL, .level = 4};
    struct bench_known known = {0};
    add_reply(&serial, &known, "aa", "1");
    add_reply(&alone, &known, "aa", "1");
    CHECK_EQ(alone.check_equal[BENCH_CHECK_SERIAL], 1);
    CHECK_EQ(serial.first, 1); // nothing was compared: no success
    CHECK_EQ(serial.equal, 0);
    CHECK_EQ(alone.equal, 1);
    add_reply(&level, &known, "aa", "1");
    CHECK_EQ(level.check_equal[BENCH_CHECK_SERIAL], 1);
    CHECK_EQ(level.check_equal[BENCH_CHECK_ALONE], 1);
    CHECK_EQ(level.check_equal[BENCH_CHECK_REPEAT], 0); // it is the first
    add_reply(&level, &known, "aa", "2");
    add_reply(&level, &known, "bb", "1");
    add_reply(&level, &known, "aa", "");
    CHECK_EQ(level.check_unequal[BENCH_CHECK_ALONE], 2);
    CHECK_EQ(level.check_unequal[BENCH_CHECK_REPEAT], 2);
    CHECK_EQ(level.equal, 2);
    CHECK_EQ(level.unequal, 2);
    CHECK_HAS(level.replies[1].why, "other logits than undrafted");
    CHECK_HAS(level.replies[2].why, "other tokens than undrafted");
    CHECK(level.replies[0].by_logits);
    CHECK(!level.replies[3].by_logits);
    CHECK(!serial.replies[0].by_logits); // held against nothing
    free(serial.replies);
    free(alone.replies);
    free(level.replies);
}

TEST(a_failed_reply_is_counted_and_never_the_one_others_are_held_against) {
    struct bench_cell level = {.kind = BENCH_LEVEL, .level = 1};
    struct bench_known known = {0};
    bench_cell_add(&level)->failed = true;
    bench_run_judge(&level, &known);
    add_reply(&level, &known, "aa", "1");
    add_reply(&level, &known, "aa", "1");
    CHECK_EQ(level.failed, 1);
    CHECK_EQ(level.first, 1);
    CHECK_EQ(level.equal, 1);
    CHECK_EQ(level.check_equal[BENCH_CHECK_REPEAT], 1);
    free(level.replies);
}

/* ---- receipts ---- */

#define SET(to_, text_) snprintf(to_, sizeof(to_), "%s", text_)

// Two cells of two replies each, every member set.
static void make_receipt(struct bench_receipt *r) {
    *r = (struct bench_receipt){.tokens = 64, .reps = 2, .seed = (1ull << 53) - 1024};
    SET(r->date, "2026-01-02T03:04:05Z");
    SET(r->client, "0.1 abc");
    SET(r->url, "http://host:1");
    SET(r->build, "0.1 def");
    SET(r->model, "mod\xc3\xa8le");
    SET(r->fingerprint, "b0.1-12345678");
    SET(r->checkpoint, "c0ffee");
    SET(r->device, "cpu");
    SET(r->prompts_sha256, "aaaa");
    for (uint32_t k = 0; k < 2; k++) {
        struct bench_cell *c = bench_receipt_add(r);
        c->kind = k ? BENCH_LEVEL : BENCH_ALONE;
        c->class = k ? BENCH_CHAT : BENCH_CODE;
        c->draw = k ? BENCH_SAMPLED : BENCH_GREEDY;
        c->level = k ? 2 : 1;
        c->figures.round_gap_ms = 0.1 + k;
        bench_cell_name(c);
        struct bench_known known[2];
        memset(known, 0, sizeof known);
        for (uint32_t i = 0; i < 2; i++) {
            add_reply(c, &known[i], i ? "bb" : "aa", i ? "2" : "1");
            c->replies[i].stream = i;
            c->replies[i].prompt_tokens = 10 + i;
            c->replies[i].first_token_ms = 1.0 / 3;
        }
    }
}

TEST(a_receipt_comes_back_from_its_file_as_it_was) {
    struct bench_receipt a, b;
    struct err e = {0};
    char path[256];
    snprintf(path, sizeof path, "%s/r.json", test_temp_dir());
    make_receipt(&a);
    CHECK_OK(bench_receipt_save(&a, path, &e), e);
    CHECK_OK(bench_receipt_load(&b, path, &e), e);
    json_t *x = bench_receipt_to_json(&a), *y = bench_receipt_to_json(&b);
    CHECK(json_equal(x, y));
    CHECK_EQ_U64(b.seed, a.seed);
    CHECK_STR(b.model, a.model);
    CHECK_STR(b.cells[1].name, "chat/sampled/2");
    CHECK(b.cells[1].kind == BENCH_LEVEL && b.cells[1].class == BENCH_CHAT);
    CHECK_NEAR(b.cells[1].replies[1].first_token_ms, 1.0 / 3, 0); // every bit
    CHECK(isnan(b.cells[1].figures.fill_ms));                     // null in the file
    json_decref(x);
    json_decref(y);
    bench_receipt_fini(&a);
    bench_receipt_fini(&b);
    unlink(path);
}

// Sets one member at a path ("cells.0.name") to the JSON text, or removes it (NULL).
static void put(json_t *o, const char *path, const char *text) {
    const char *dot;
    char key[64];
    while ((dot = strchr(path, '.'))) {
        snprintf(key, sizeof key, "%.*s", (int)(dot - path), path);
        o = json_is_array(o) ? json_array_get(o, (size_t)atoi(key)) : json_object_get(o, key);
        path = dot + 1;
    }
    if (text)
        json_object_set_new(o, path, json_loads(text, JSON_DECODE_ANY, NULL));
    else
        json_object_del(o, path);
}

TEST(a_file_that_is_no_receipt_is_refused_by_member) {
    static const struct {
        const char *path, *text, *says;
        int st;
    } cases[] = {
        {"railyard_bench", NULL, "receipt of a bench", ST_CORRUPT},
        {"railyard_bench", "1", "version 2, found 1", ST_VERSION},
        {"checkpoint", NULL, "member checkpoint: wanted text, found none", ST_CORRUPT},
        {"checkpoint", "7", "member checkpoint", ST_CORRUPT},
        {"tokens", "-1", "member tokens", ST_CORRUPT},
        {"tokens", "4294967296", "member tokens", ST_CORRUPT},
        {"seed", "\"1\"", "member seed", ST_CORRUPT},
        {"cells", "{}", "member cells", ST_CORRUPT},
        {"cells.1.kind", "\"both\"", "cell 1: member kind", ST_CORRUPT},
        {"cells.1.class", NULL, "cell 1: member class", ST_CORRUPT},
        {"cells.0.name",
         "\"xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx"
         "x"
         "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx\"",
         "cell 0: member name", ST_CORRUPT},
        {"cells.0.replies", "7", "cell 0: member replies", ST_CORRUPT},
        {"cells.0.checks.alone", NULL, "cell 0", ST_CORRUPT},
        {"cells.0.replies.1.failed", "1", "cell 0: reply 1: member failed", ST_CORRUPT},
        {"cells.0.replies.1.token_sha256", "null", "member token_sha256", ST_CORRUPT},
    };
    struct bench_receipt a;
    make_receipt(&a);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct bench_receipt b;
        struct err e = {0};
        json_t *o = bench_receipt_to_json(&a);
        put(o, cases[i].path, cases[i].text);
        CHECK_EQ(bench_receipt_from_json(&b, o, &e), cases[i].st);
        CHECK_HAS(e.msg, cases[i].says);
        json_decref(o);
    }
    bench_receipt_fini(&a);
    struct err e = {0};
    CHECK_EQ(bench_receipt_load(&a, "/nowhere/r.json", &e), ST_NOT_FOUND);
    CHECK_EQ(bench_receipt_load(&a, "/dev/null", &e), ST_INVAL);
    CHECK_HAS(e.msg, "/dev/null");
}

/* ---- two receipts ---- */

TEST(two_runs_of_one_build_are_equal) {
    struct bench_receipt a, b;
    struct bench_comparison c;
    struct err e = {0};
    make_receipt(&a);
    make_receipt(&b);
    SET(b.build, "0.2 other");
    CHECK_OK(bench_compare(&c, &a, &b, &e), e);
    CHECK_EQ(c.cell_count, 2);
    CHECK_EQ(c.equal, 4);
    CHECK_EQ(c.by_logits, 4);
    CHECK_EQ(c.unequal + c.failed, 0);
    bench_comparison_fini(&c);
    bench_receipt_fini(&a);
    bench_receipt_fini(&b);
}

TEST(one_other_hash_makes_its_cell_unequal_and_is_named) {
    struct bench_receipt a, b;
    struct bench_comparison c;
    struct err e = {0};
    make_receipt(&a);
    make_receipt(&b);
    SET(b.cells[1].replies[1].digest.logits_hash, "3");
    b.cells[0].replies[0].failed = true;
    CHECK_OK(bench_compare(&c, &a, &b, &e), e);
    CHECK_EQ(c.equal, 2);
    CHECK_EQ(c.unequal, 1);
    CHECK_EQ(c.failed, 1);
    CHECK_EQ(c.cells[0].failed, 1);
    CHECK_EQ(c.cells[1].unequal, 1);
    CHECK_EQ(c.cells[1].stream, 1);
    char *text = NULL;
    size_t len;
    FILE *f = open_memstream(&text, &len);
    bench_comparison_print(&c, &a, &b, f);
    fclose(f);
    CHECK_HAS(text, "UNEQUAL chat/sampled/2: 1 of 2, first stream 1 rep 0");
    CHECK_HAS(text, "FAILED code/greedy/alone: 1 of 2");
    CHECK_HAS(text, "50% equal: 2 of 4 replies");
    free(text);
    bench_comparison_fini(&c);
    bench_receipt_fini(&a);
    bench_receipt_fini(&b);
}

TEST(receipts_of_other_weights_prompts_or_settings_are_refused) {
    static const struct {
        const char *path, *text, *says;
    } cases[] = {
        {"checkpoint", "\"dead\"", "A has checkpoint c0ffee, B has dead"},
        {"checkpoint", "\"\"", "checkpoint of receipt B is not known"},
        {"prompts_sha256", "\"bbbb\"", "A has prompts aaaa, B has bbbb"},
        {"cold_sha256", "\"cccc\"", "A has cold prompts dddd, B has cccc"},
        {"tokens", "65", "A was run with --tokens=64, B with 65"},
        {"seed", "1", "--seed="},
        {"cells", "[]", "no cell in common"},
    };
    struct bench_receipt a;
    make_receipt(&a);
    SET(a.cold_sha256, "dddd");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct bench_receipt b;
        struct bench_comparison c;
        struct err e = {0};
        json_t *o = bench_receipt_to_json(&a);
        put(o, cases[i].path, cases[i].text);
        CHECK_OK(bench_receipt_from_json(&b, o, &e), e);
        CHECK_EQ(bench_compare(&c, &a, &b, &e), ST_INVAL);
        CHECK_HAS(e.msg, "cannot compare");
        CHECK_HAS(e.msg, cases[i].says);
        bench_receipt_fini(&b);
        json_decref(o);
    }
    bench_receipt_fini(&a);
}

TEST(cells_and_replies_of_one_side_alone_are_left_out) {
    struct bench_receipt a, b;
    struct bench_comparison c;
    struct err e = {0};
    make_receipt(&a);
    make_receipt(&b);
    b.cells[0].level = 9;
    b.cells[0].kind = BENCH_LEVEL;
    bench_cell_name(&b.cells[0]);
    b.cells[1].replies[1].rep = 7;
    CHECK_OK(bench_compare(&c, &a, &b, &e), e);
    CHECK_EQ(c.cell_count, 1);
    CHECK_EQ(c.equal, 1);
    CHECK_EQ(c.only_a, 1);
    CHECK_EQ(c.only_b, 1);
    CHECK_EQ(c.unpaired, 2);
    bench_comparison_fini(&c);
    bench_receipt_fini(&a);
    bench_receipt_fini(&b);
}

TEST(the_table_names_each_cell_that_is_not_equal) {
    struct bench_receipt r;
    make_receipt(&r);
    struct bench_known known = {0};
    known.has[BENCH_CHECK_ALONE] = true;
    add_reply(&r.cells[1], &known, "zz", "9");
    bench_cell_add(&r.cells[0])->failed = true;
    SET(r.cells[0].replies[2].why, "status 503: no worker");
    bench_run_judge(&r.cells[0], &known);
    char *text = NULL;
    size_t len;
    FILE *f = open_memstream(&text, &len);
    bench_table_print(&r, f);
    fclose(f);
    CHECK_HAS(text, "UNEQUAL chat/sampled/2: 1 of 3");
    CHECK_HAS(text, "other tokens than alone");
    CHECK_HAS(text,
              "FAILED code/greedy/alone: 1 of 3, first stream 0 rep 0: status 503: no worker");
    CHECK_HAS(text, "0 equal, 1 unequal, 1 failed, 4 first of their kind");
    free(text);
    bench_receipt_fini(&r);
}
