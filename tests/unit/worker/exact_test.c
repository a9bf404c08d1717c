/* The promise the whole system stands on: a request's tokens and the bits of its logits are its own, whatever shares the
 * rounds, however the prompt is cut, with any number of threads, wound back, saved, or replayed. Compared on the running
 * hash of the logits' bits. The same comparisons must fail with a planted fault, or they prove nothing. */
#include "common/err.h"
#include "common/mem.h"
#include "common/num.h"
#include "tests/lib/engine_drive.h"
#include "tests/lib/test.h"
#include "tests/lib/tiny_model.h"

#include <stdlib.h>
#include <string.h>

// Sanitizers slow a round down by ten to fifty: there the longest prompt is shorter and models and cuts are fewer.
#if defined(__has_feature) // clang
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define __SANITIZE_ADDRESS__ 1
#endif
#endif
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { LONGEST = 310, MODELS = 1, FEW = true };
#else
enum { LONGEST = 2000, MODELS = 4, FEW = false };
#endif
enum { CONTEXT = 2304, CROWD = 8, WHOLE = 4096 };

#define QUANTISED                                                                                  \
    "--widths 4,3.5,2,plain,8,5,1.5 --codebooks mul1,mcg,3inst --odd --head-width 6 --hidden 128 " \
    "--intermediate 256 --head-dim 64 --dk 32 --dv 32"
#define EXPERTS                                                                                    \
    "--moe mixed --experts 11 --top-k 3 --widths 4,plain,2.5 --codebooks mul1 --hidden 128 "       \
    "--expert-width 128 --shared-width 128 --seed 4"
// The plain small one; peaked attention, saturated gates and decay from none to total, with the family's head sizes; EXL3
// linears of many widths beside plain ones; experts, packed and plain in one layer, single and EXL3 or plain in the next, some of
// which have one row of a round and others many.
static const char *const models[] = {"", "--real-heads --sharp --hidden 128 --layers 4 --vocab 300",
                                     QUANTISED, EXPERTS};
enum { EXL3 = 2 };

static const uint32_t lengths[CROWD] = {1, 130, 17, 64, 301, 3, LONGEST, 16};

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
    for (uint32_t i = 0; i < CROWD; i++) check_same_reply(&c->alone[i], &beside[i]);
    *shared += d.shared_rounds;
    engine_free(eng);
}

TEST(a_reply_is_the_same_alone_and_beside_others_for_any_chunk_and_any_threads) {
    static const uint32_t chunks[] = {1, 16, 17, 64, WHOLE};
    uint64_t shared = 0;
    for (int m = 0; m < MODELS; m++) {
        const char *dir = tiny_model(models[m]);
        struct crowd *c = crowd_of(dir);
        for (uint32_t k = 0; k < sizeof chunks / sizeof *chunks; k++)
            check_crowd(dir, c, 1 + (k + (uint32_t)m) % 3, chunks[k], &shared);
        for (uint32_t threads = 1; threads <= 3 && !FEW; threads++)
            check_crowd(dir, c, threads, 64, &shared);
        free(c);
    }
    test_note("rounds shared by several streams: %llu", (unsigned long long)shared);
    CHECK(shared > 150);
}

TEST(the_demo_answers_the_same_alone_and_beside_others) {
    const char *dir = FEW ? tiny_model(models[1]) : demo_model();
    uint64_t shared = 0;
    if (!dir)
        dir = tiny_model("--real-heads --layers 8 --hidden 256 --intermediate 512 --vocab 4096");
    struct crowd *c = crowd_of(dir);
    check_crowd(dir, c, 2, 64, &shared);
    check_crowd(dir, c, 3, 17, &shared);
    free(c);
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
    check_ulp_is_seen(tiny_model(models[0]));
    check_ulp_is_seen(tiny_model(models[EXL3]));
    check_ulp_is_seen(tiny_model(models[MODELS - 1]));
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
    check_stale_conv_is_seen(tiny_model(models[0]));
    check_stale_conv_is_seen(tiny_model(models[EXL3]));
    check_stale_conv_is_seen(tiny_model(models[MODELS - 1]));
}

// Replay after a crash: the first ids are given back, on another engine, and the rest must come as if nothing had happened.
TEST(given_ids_replay_to_the_same_tokens_and_the_same_hash) {
    static const uint32_t cuts[] = {1, 2, 7, 15, 16, 23};
    for (int m = 0; m < MODELS; m++) {
        const char *dir = tiny_model(models[m]);
        struct crowd *c = crowd_of(dir);
        struct engine_config config = config_of(dir, 2, 17);
        struct engine *eng = drive_open(&config);
        for (uint32_t i = 0; i < CROWD; i++)
            for (uint32_t k = 0; k < sizeof cuts / sizeof *cuts; k++) {
                if (lengths[i] > 1000 && k != 3) continue; // one cut of the long one
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

TEST(a_stream_from_a_saved_state_equals_a_fresh_one_for_every_tail) {
    static const uint32_t rows[] = {1, 2, 63, 64, 100}, tails[] = {1, 15, 16, 17, 63, 64, 65};
    static uint32_t ids[200];
    for (int m = 0; m < MODELS; m++) {
        struct engine_config config = config_of(tiny_model(models[m]), 2, 16);
        struct engine *eng = drive_open(&config);
        for (uint32_t i = 0; i < sizeof rows / sizeof *rows; i++) {
            drive_request(ids, 200, 77, engine_info(eng)->vocab_size, 1);
            struct engine_state *s = state_at(eng, ids, rows[i]);
            for (uint32_t k = 0; k < sizeof tails / sizeof *tails; k++) {
                struct reply fresh, resumed;
                struct drive d = {.eng = eng, .replies = &resumed, .replies_count = 1};
                struct engine_request r =
                    drive_request(ids, rows[i] + tails[k], 77, engine_info(eng)->vocab_size, 20);
                drive_sampled(&r, k);
                drive_alone(eng, &r, &fresh);
                submit_from(&d, s, &r);
                drive_all(&d);
                check_same_reply(&fresh, &resumed);
                CHECK_EQ(resumed.cached_count, rows[i]);
            }
            engine_state_free(s);
        }
        engine_free(eng);
    }
}

TEST(a_state_saved_inside_a_reply_goes_on_with_its_hash) {
    struct engine_config config = config_of(tiny_model(models[0]), 1, 64);
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

struct walk { // one stream moved by windows and, in between, by plain rounds
    struct drive d;
    struct reply replies[2]; // the second keeps it company
    const struct reply *serial;
    const float *logits; // of the serial reply, every row
    const uint32_t *ids; // prompt and serial reply
    uint32_t prompt_count, vocab;
    uint64_t handle, random;
    uint32_t done; // generated ids the stream has
    uint32_t windows, rows, wound_back, none_kept, all_kept;
};

static uint32_t draw(struct walk *w, uint32_t below) {
    w->random += 0x9e3779b97f4a7c15u;
    return (uint32_t)(mix_u64(w->random) % below);
}

// Rows whose own and earlier ids are true must have the serial logits; the last one, whatever it was fed, those of a fresh
// stream with the same ids.
static void check_logits(struct walk *w, const uint32_t *ids, uint32_t n, uint32_t true_rows,
                         const float *logits) {
    uint32_t first = w->prompt_count + w->done - 1, row = first + n - 1;
    size_t bytes = w->vocab * sizeof *logits;
    struct err e = {0};
    for (uint32_t i = 0; i < true_rows; i++)
        CHECK_MEM(logits + (size_t)i * w->vocab, w->logits + (size_t)(first + i) * w->vocab, bytes);
    if (draw(w, 4)) return;
    uint32_t *all = mem_alloc((row + 1) * sizeof *all);
    float *fresh = mem_alloc(bytes);
    memcpy(all, w->ids, first * sizeof *all);
    memcpy(all + first, ids, n * sizeof *all);
    CHECK_OK(engine_logits(w->d.eng, all, row + 1, 0, &row, 1, fresh, &e), e);
    CHECK_MEM(logits + (size_t)(n - 1) * w->vocab, fresh, bytes);
    free(all);
    free(fresh);
}

// A window of n rows of which the first `keep` are what serial decoding draws and the others are noise.
static void one_window(struct walk *w) {
    uint32_t ids[ENGINE_WINDOW_ROWS_MAX], left = w->serial->count - w->done;
    uint32_t n = 1 + draw(w, min_u32(left, draw(w, 6) ? 8 : ENGINE_WINDOW_ROWS_MAX));
    uint32_t keep = draw(w, n + 1);
    float *logits = mem_alloc((size_t)n * w->vocab * sizeof *logits);
    struct err e = {0};
    for (uint32_t i = 0; i < n; i++)
        ids[i] = i == 0 || i < keep ? w->ids[w->prompt_count + w->done - 1 + i] : draw(w, w->vocab);
    bool want = draw(w, 2);
    CHECK_OK(engine_window(w->d.eng, w->handle, ids, n, keep, want ? logits : NULL, &e), e);
    if (want) check_logits(w, ids, n, keep ? keep : 1, logits);
    free(logits);
    w->done += keep;
    w->windows++;
    w->rows += n;
    w->wound_back += keep < n;
    w->none_kept += keep == 0;
    w->all_kept += keep == n;
}

static void start_walk(struct walk *w, struct engine *eng, const struct engine_request *r,
                       uint64_t seed) {
    static uint32_t company[90];
    struct engine_request other = drive_request(company, 90, 4242, w->vocab, 400);
    w->d = (struct drive){.eng = eng, .replies = w->replies, .replies_count = 2};
    w->random = seed;
    w->handle = drive_submit(&w->d, r);
    other.tag = 1;
    drive_submit(&w->d, &other);
    while (!w->replies[0].count) drive_step(&w->d);
    w->done = w->replies[0].count;
}

static void walk_reply(struct walk *w, struct engine *eng, const struct engine_request *r,
                       uint64_t seed) {
    start_walk(w, eng, r, seed);
    while (w->done < w->serial->count) {
        one_window(w);
        if (w->done < w->serial->count && draw(w, 3) == 0) {
            drive_step(&w->d);
            w->done = w->replies[0].count;
        }
    }
    drive_all(&w->d);
    check_same_reply(&w->replies[0], w->serial);
}

// What every draft will rest on: a verify window of any width, of which any part is kept, leaves the stream as if it had
// taken those rows one by one.
TEST(windows_wound_back_at_random_equal_serial_decoding) {
    static uint32_t ids[200];
    struct walk w = {0};
    for (int m = 0; m < MODELS; m++) {
        struct engine_config config = config_of(tiny_model(models[m]), 2, 64);
        struct engine *eng = drive_open(&config);
        w.vocab = engine_info(eng)->vocab_size;
        for (uint32_t k = 0; k < 10; k++) {
            struct reply serial;
            struct err e = {0};
            w.prompt_count = k == 0 ? 1 : 10 * k + 3;
            struct engine_request r = drive_request(ids, w.prompt_count, k, w.vocab, 60 + k);
            if (k % 2) drive_sampled(&r, k);
            drive_alone(eng, &r, &serial);
            uint32_t total = w.prompt_count + serial.count, rows[200];
            memcpy(ids + w.prompt_count, serial.ids, serial.count * sizeof *ids);
            for (uint32_t i = 0; i < total; i++) rows[i] = i;
            float *logits = mem_alloc((size_t)total * w.vocab * sizeof *logits);
            CHECK_OK(engine_logits(eng, ids, total, 0, rows, total, logits, &e), e);
            w.serial = &serial;
            w.logits = logits;
            w.ids = ids;
            walk_reply(&w, eng, &r, 100 * (uint64_t)m + k);
            free(logits);
        }
        engine_free(eng);
    }
    test_note("windows %u, rows %u, wound back %u, none kept %u, all kept %u", w.windows, w.rows,
              w.wound_back, w.none_kept, w.all_kept);
    CHECK(w.windows >= 150 * MODELS && w.none_kept > 20 && w.all_kept > 20);
}

TEST(a_window_refuses_what_serial_decoding_could_not_have_done) {
    static uint32_t ids[8];
    struct engine_config config = config_of(tiny_model(models[0]), 1, 64);
    struct engine *eng = drive_open(&config);
    struct reply reply;
    struct drive d = {.eng = eng, .replies = &reply, .replies_count = 1};
    uint32_t vocab = engine_info(eng)->vocab_size, more[ENGINE_WINDOW_ROWS_MAX + 1] = {0};
    struct engine_request r = drive_request(ids, 8, 1, vocab, 12);
    struct err e = {0};
    uint64_t handle = drive_submit(&d, &r);
    CHECK_EQ(engine_window(eng, handle, ids, 1, 0, NULL, &e), ST_INVAL); // still to be filled
    while (!reply.count) drive_step(&d);
    more[0] = reply.ids[0];
    CHECK_EQ(engine_window(eng, handle + 1, more, 1, 1, NULL, &e), ST_INVAL);
    CHECK_EQ(engine_window(eng, handle, more, 0, 0, NULL, &e), ST_INVAL);
    CHECK_EQ(engine_window(eng, handle, more, 2, 3, NULL, &e), ST_INVAL);
    CHECK_EQ(engine_window(eng, handle, more, 13, 0, NULL, &e),
             ST_INVAL); // no room for the last row
    more[0] = (reply.ids[0] + 1) % vocab;
    CHECK_EQ(engine_window(eng, handle, more, 1, 1, NULL, &e), ST_INVAL);
    CHECK_HAS(e.msg, "drawn last");
    more[0] = reply.ids[0];
    more[1] = vocab;
    CHECK_EQ(engine_window(eng, handle, more, 2, 1, NULL, &e), ST_INVAL);
    drive_all(&d);
    CHECK_EQ(reply.count, 12);
    engine_free(eng);
}
