/* The promise the whole system stands on: a request's tokens and the bits of its logits are its own, whatever shares the
 * rounds, however the prompt is cut, with any number of threads, wound back, saved, or replayed. Compared on the running
 * hash of the logits' bits. The same comparisons must fail with a planted fault, or they prove nothing. */
#include "common/err.h"
#include "common/mem.h"
#include "common/num.h"
#include "tests/lib/engine_drive.h"
#include "tests/lib/sanitized.h"
#include "tests/lib/test.h"
#include "tests/lib/tiny_model.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// Sanitizers slow a round down by ten to fifty: there the longest prompt is shorter, and models and cuts are fewer. For
// ThreadSanitizer only what threads do differently is news: it gets every kind of model once, and the plain one after that.
enum { LONGEST = UNDER_TSAN ? 70 : SANITIZED ? 150 : 2000, FEW = SANITIZED };
enum { CONTEXT = 2304, CROWD = 8, WHOLE = 4096 };

// The plain small one; EXL3 linears of many widths beside plain ones; experts, packed and plain in one layer, single and EXL3 or
// plain in the next, some of which have one row of a round and others many; peaked attention, saturated gates and decay from
// none to total, with the family's head sizes.
enum {
    PLAIN,
    EXL3,
    EXL3_MOE,
    SHARP,
    ALL,
    MODELS = FEW ? SHARP : ALL,
    KINDS = UNDER_TSAN ? EXL3 : MODELS,
    PLANTED = UNDER_TSAN ? EXL3 : SHARP
};
static const char *const models[ALL] = {[PLAIN] = "",
                                        [EXL3] = TINY_EXL3,
                                        [EXL3_MOE] = TINY_EXL3_MOE,
                                        [SHARP] = ("--real-heads --sharp --hidden 128 --layers 4 "
                                                   "--vocab 300")};

static const uint32_t lengths[CROWD] = {
    1, UNDER_TSAN ? 66 : 130, 17, 64, UNDER_TSAN ? 65 : FEW ? 101 : 301, 3, LONGEST, 16};

struct crowd {
    uint32_t prompts[CROWD][LONGEST];
    struct engine_request requests[CROWD];
    struct reply alone[CROWD];
};

static struct engine_config config_of(const char *dir, uint32_t threads, uint32_t chunk) {
    return (struct engine_config){.model_dir = dir,
                                  .threads = threads,
                                  .chunk_tokens = chunk,
                                  .round_rows_max = chunk > 512 ? chunk : 0,
                                  .context_max = CONTEXT,
                                  .streams_max = CROWD};
}

// Half of them sampled with penalties; 24 to 31 tokens each.
static void make_crowd(struct crowd *c, struct engine *eng) {
    for (uint32_t i = 0; i < CROWD; i++) {
        c->requests[i] =
            drive_request(c->prompts[i], lengths[i], i + 1, engine_info(eng)->vocab_size, 24 + i);
        c->requests[i].tag = i;
        if (i % 2) drive_sampled(&c->requests[i], 1000 + i);
        drive_alone(eng, &c->requests[i], &c->alone[i]);
    }
}

static struct crowd *crowd_of(const char *dir) {
    struct crowd *c = mem_calloc(1, sizeof *c);
    struct engine_config config = config_of(dir, 1, WHOLE);
    struct engine *eng = drive_open(&config);
    make_crowd(c, eng);
    engine_free(eng);
    return c;
}

// All at once but staggered: one joins every second round, and two more come and go inside their fill.
static void run_crowd(struct engine *eng, const struct crowd *c, struct reply *ret,
                      struct drive *d) {
    static struct reply scrap[CROWD + 2];
    uint64_t passing[2] = {0};
    *d = (struct drive){.eng = eng, .replies = scrap, .replies_count = CROWD + 2};
    for (uint32_t i = 0; i < CROWD; i++) {
        if (i == 2 || i == 4) {
            struct engine_request r = c->requests[CROWD - 2]; // the longest prompt
            r.tag = CROWD + i / 4;
            passing[i / 4] = drive_submit(d, &r);
            drive_step(d);
            CHECK(engine_cancel(eng, passing[i / 4]));
        }
        drive_submit(d, &c->requests[i]);
        drive_step(d);
        if (i % 2) drive_step(d);
    }
    drive_all(d);
    memcpy(ret, scrap, CROWD * sizeof *ret);
    CHECK_EQ(engine_info(eng)->kv_blocks_used, 0);
}

static void check_crowd(const char *dir, const struct crowd *c, uint32_t threads, uint32_t chunk,
                        uint64_t *shared) {
    static struct reply beside[CROWD];
    struct engine_config config = config_of(dir, threads, chunk);
    struct engine *eng = drive_open(&config);
    struct drive d;
    run_crowd(eng, c, beside, &d);
    for (uint32_t i = 0; i < CROWD; i++) {
        if (beside[i].hash != c->alone[i].hash)
            test_note("%s, chunks of %u, %u threads: reply %u of %u ids differs", dir, chunk,
                      threads, i, lengths[i]);
        check_same_reply(&c->alone[i], &beside[i]);
    }
    *shared += d.shared_rounds;
    engine_free(eng);
}

static bool on_gpu(void) {
    const char *backend = getenv("RAILYARD_BACKEND");
    return backend && !strcmp(backend, "cuda");
}

TEST(a_reply_is_the_same_alone_and_beside_others_for_any_chunk_and_any_threads) {
    static const uint32_t chunks[] = {1, 16, 17, 64, 128, 256, WHOLE};
    uint64_t shared = 0;
    for (int m = 0; m < MODELS; m++) {
        const char *dir = tiny_model(models[m]);
        struct crowd *c = crowd_of(dir);
        for (uint32_t k = UNDER_TSAN; k < sizeof chunks / sizeof *chunks; k += 1 + UNDER_TSAN)
            check_crowd(dir, c, UNDER_TSAN ? 2 + k % 3 / 2 : 1 + (k + (uint32_t)m) % 3, chunks[k],
                        &shared);
        for (uint32_t threads = 1; threads <= 3 && !FEW && !on_gpu(); threads++)
            check_crowd(dir, c, threads, 64, &shared);
        free(c);
    }
    test_note("rounds shared by several streams: %llu", (unsigned long long)shared);
    CHECK(shared > 150);
}

TEST(the_demo_answers_the_same_alone_and_beside_others) {
    const char *dir = FEW ? tiny_model(models[PLAIN]) : demo_model();
    uint64_t shared = 0;
    if (!dir)
        dir = tiny_model("--real-heads --layers 8 --hidden 256 --intermediate 512 --vocab 4096");
    struct crowd *c = crowd_of(dir);
    check_crowd(dir, c, 2, 64, &shared);
    check_crowd(dir, c, 3, 17, &shared);
    free(c);
}

// The trained models: dense, EXL3, experts, and experts as EXL3. The plain experts are made of those.
enum { DEMO, DEMO_EXL3, DEMO_MOE, DEMO_MOE_EXL3, DEMOS };
static const char *trained(int which) {
    static const char *const folders[DEMOS] = {"demo", "demo-exl3", "demo-moe", "demo-moe-exl3"};
    static char paths[DEMOS][TINY_MODEL_PATH_BYTES];
    if (paths[which][0]) return paths[which];
    if (which != DEMO_MOE) {
        CHECK(demo_model_of(folders[which], paths[which]));
        return paths[which];
    }
    char cmd[3 * TINY_MODEL_PATH_BYTES];
    const char *python = getenv("RAILYARD_PYTHON");
    snprintf(cmd, sizeof cmd, "'%s' '%s/tests/tools/make_plain.py' '%s' '%s/demo-moe'",
             python ? python : "/usr/bin/python3", test_source_dir(), trained(DEMO_MOE_EXL3),
             test_temp_dir());
    if (system(cmd)) test_fail(__FILE__, __LINE__, "failed: %s", cmd);
    snprintf(paths[which], sizeof paths[which], "%s/demo-moe", test_temp_dir());
    return paths[which];
}

// Kernels of a GPU change their shape with the rows of a round: the trained models there, at every border.
TEST(the_demos_answer_the_same_whatever_the_rows_of_a_round_on_a_gpu) {
    static const uint32_t chunks[] = {1, 2, 3, 8, 16, 17, 64, 128, 256};
    uint64_t shared = 0;
    for (int m = 0; m < DEMOS && on_gpu(); m++) {
        struct crowd *c = crowd_of(trained(m));
        for (size_t k = 0; k < sizeof chunks / sizeof *chunks; k++)
            check_crowd(trained(m), c, 2, chunks[k], &shared);
        free(c);
    }
    test_note("trained models on a GPU: %llu shared rounds", (unsigned long long)shared);
}

static void check_ulp_is_seen(const char *dir) {
    static struct reply beside[CROWD];
    struct crowd *c = crowd_of(dir);
    struct engine_config config = config_of(dir, 2, 64);
    config.fault = ENGINE_FAULT_ULP;
    struct engine *eng = drive_open(&config);
    struct drive d;
    struct reply alone;
    run_crowd(eng, c, beside, &d);
    uint32_t differ = 0;
    for (uint32_t i = 0; i < CROWD; i++) differ += beside[i].hash != c->alone[i].hash;
    CHECK(differ > 0);
    drive_alone(eng, &c->requests[1], &alone); // the fault waits for company
    check_same_reply(&alone, &c->alone[1]);
    engine_free(eng);
    free(c);
}

TEST(a_planted_ulp_in_a_shared_round_turns_the_comparison_red) {
    for (int m = 0; m < PLANTED; m++) check_ulp_is_seen(tiny_model(models[m]));
    for (int m = 0; m < DEMOS && on_gpu(); m++) check_ulp_is_seen(trained(m));
}

static void check_stale_conv_is_seen(const char *dir) {
    static const uint32_t chunks[] = {16, 17, 64};
    struct crowd *c = crowd_of(dir);
    for (uint32_t k = 0; k < 3; k++) {
        struct engine_config config = config_of(dir, 1, chunks[k]);
        config.fault = ENGINE_FAULT_STALE_CONV;
        struct engine *eng = drive_open(&config);
        struct reply r;
        drive_alone(eng, &c->requests[4], &r);
        CHECK(r.hash != c->alone[4].hash);
        engine_free(eng);
    }
    free(c);
}

TEST(a_planted_stale_conv_row_turns_the_comparison_red) {
    for (int m = 0; m < PLANTED; m++) check_stale_conv_is_seen(tiny_model(models[m]));
    for (int m = 0; m < DEMOS && on_gpu(); m++) check_stale_conv_is_seen(trained(m));
}

// Replay after a crash: the first ids are given back, on another engine, and the rest must come as if nothing had happened.
TEST(given_ids_replay_to_the_same_tokens_and_the_same_hash) {
    static const uint32_t cuts[] = {1, 2, 7, 15, 16, 23};
    for (int m = 0; m < KINDS; m++) {
        const char *dir = tiny_model(models[m]);
        struct crowd *c = crowd_of(dir);
        struct engine_config config = config_of(dir, 2, 17);
        struct engine *eng = drive_open(&config);
        for (uint32_t i = 0; i < CROWD; i++)
            for (uint32_t k = 0; k < sizeof cuts / sizeof *cuts; k++) {
                if ((lengths[i] > 1000 || UNDER_TSAN) && k != 3)
                    continue; // one cut of the long one
                struct engine_request r = c->requests[i];
                struct reply got;
                r.given = c->alone[i].ids;
                r.given_count = min_u32(cuts[k], c->alone[i].count - 1);
                drive_alone(eng, &r, &got);
                CHECK_EQ(got.completion_count, c->alone[i].count);
                CHECK_MEM(got.ids, c->alone[i].ids + r.given_count, got.count * sizeof *got.ids);
                CHECK_EQ_U64(got.hash, c->alone[i].hash);
            }
        engine_free(eng);
        free(c);
    }
}

static struct engine_state *state_at(struct engine *eng, const uint32_t *ids, uint32_t rows) {
    static struct reply scrap;
    struct drive d = {.eng = eng, .replies = &scrap, .replies_count = 1};
    struct engine_request r = {.prompt = ids,
                               .prompt_count = rows,
                               .max_tokens = 2,
                               .sampling = {.top_p = 1, .repetition = 1},
                               .top_logprobs = -1};
    struct engine_state *s = NULL;
    struct err e = {0};
    uint64_t handle = drive_submit(&d, &r);
    while (!scrap.count) drive_step(&d);
    CHECK_OK(engine_state_save(eng, handle, &s, &e), e);
    CHECK_EQ(engine_state_rows(s), rows);
    CHECK(engine_cancel(eng, handle));
    return s;
}

static void submit_from(struct drive *d, const struct engine_state *s,
                        const struct engine_request *r) {
    struct err e = {0};
    uint64_t handle = 0;
    memset(&d->replies[r->tag], 0, sizeof *d->replies);
    CHECK_OK(engine_submit_from(d->eng, s, r, &handle, &e), e);
}

// One tail behind a saved state, against the same request from its first row.
static void check_tail(struct engine *eng, const struct engine_state *s,
                       const struct engine_request *r) {
    struct reply fresh, resumed;
    struct drive d = {.eng = eng, .replies = &resumed, .replies_count = 1};
    drive_alone(eng, r, &fresh);
    submit_from(&d, s, r);
    drive_all(&d);
    check_same_reply(&fresh, &resumed);
    CHECK_EQ(resumed.cached_count, engine_state_rows(s));
}

// States of the rows from `first` on in the table, every tail behind each, greedy and drawn. Returns how many were compared.
static uint32_t check_tails(const char *dir, uint32_t first) {
    static const uint32_t rows[] = {1, 2, 63, 64, 100};
    static const uint32_t tails[] = {1, 15, 16, 17, 63, 64, 65, 128, 129};
    static uint32_t ids[256];
    uint32_t checked = 0;
    struct engine_config config = config_of(dir, 2, 16);
    struct engine *eng = drive_open(&config);
    uint32_t vocab = engine_info(eng)->vocab_size;
    for (uint32_t i = first; i < sizeof rows / sizeof *rows; i++) {
        drive_request(ids, 256, 77, vocab, 1);
        struct engine_state *s = state_at(eng, ids, rows[i]);
        for (uint32_t k = 0; k < sizeof tails / sizeof *tails; k++) {
            struct engine_request r = drive_request(ids, rows[i] + tails[k], 77, vocab, 20);
            check_tail(eng, s, &r);
            drive_sampled(&r, k);
            check_tail(eng, s, &r);
            checked += 2;
        }
        engine_state_free(s);
    }
    engine_free(eng);
    return checked;
}

TEST(a_stream_from_a_saved_state_equals_a_fresh_one_for_every_tail) {
    uint32_t checked = 0;
    for (int m = 0; m < KINDS; m++)
        checked += check_tails(tiny_model(models[m]), FEW ? 3 + UNDER_TSAN : 0);
    for (int m = 0; m < DEMOS && on_gpu(); m++) checked += check_tails(trained(m), 3);
    test_note("tails, greedy and drawn with a seed: %u", checked);
}

TEST(a_state_saved_inside_a_reply_goes_on_with_its_hash) {
    struct engine_config config = config_of(tiny_model(models[PLAIN]), 1, 64);
    struct engine *eng = drive_open(&config);
    uint32_t ids[50];
    struct reply whole, part, resumed;
    struct engine_request r = drive_request(ids, 50, 5, engine_info(eng)->vocab_size, 40);
    struct drive d = {.eng = eng, .replies = &part, .replies_count = 1};
    struct engine_state *s = NULL;
    struct err e = {0};
    drive_sampled(&r, 9);
    drive_alone(eng, &r, &whole);
    uint64_t handle = drive_submit(&d, &r);
    while (part.count < 21) drive_step(&d);
    CHECK_OK(engine_state_save(eng, handle, &s, &e), e);
    CHECK_EQ(engine_state_rows(s), 50 + 20); // the last id drawn is not fed yet
    engine_cancel(eng, handle);
    r.given = whole.ids;
    r.given_count = 21;
    d.replies = &resumed;
    submit_from(&d, s, &r);
    drive_all(&d);
    CHECK_EQ_U64(resumed.hash, whole.hash);
    CHECK_EQ(resumed.count, 40 - 21);
    CHECK_MEM(resumed.ids, whole.ids + 21, resumed.count * sizeof *resumed.ids);

    uint64_t unused = 0; // the hash cannot go on from a state whose stream had another prompt
    r.prompt = ids;
    r.prompt_count = 40;
    r.given = ids + 40;
    r.given_count = 10;
    CHECK_EQ(engine_submit_from(eng, s, &r, &unused, &e), ST_INVAL);
    engine_state_free(s);
    engine_free(eng);
}
