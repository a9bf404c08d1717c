/* The engine's contract: who is admitted, what ends a reply, what is told, what is given back. Bits: exact_test.c. */
#include "common/err.h"
#include "common/num.h"
#include "tests/lib/engine_drive.h"
#include "tests/lib/test.h"
#include "tests/lib/tiny_model.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

enum { IDS = 700 };

static uint32_t ids[IDS];

static struct engine *open_tiny(uint32_t streams, uint32_t context, uint32_t chunk) {
    struct engine_config config = {.model_dir = tiny_model(""),
                                   .threads = 2,
                                   .streams_max = streams,
                                   .context_max = context,
                                   .chunk_tokens = chunk};
    return drive_open(&config);
}

static struct engine_request request_of(struct engine *eng, uint32_t count, uint32_t max_tokens) {
    return drive_request(ids, count, 3, engine_info(eng)->vocab_size, max_tokens);
}

TEST(the_start_up_report_names_every_part_of_the_arena) {
    struct engine *eng = open_tiny(3, 256, 16);
    const struct engine_info *info = engine_info(eng);
    uint64_t kv = 0;
    CHECK_STR(info->device, "cpu");
    CHECK_STR(info->model_type, "qwen3_5");
    CHECK_EQ(info->context_max, 256);
    CHECK_EQ(info->streams_max, 3);
    CHECK_EQ(info->kv_blocks_total, 3 * 256 / 64);
    CHECK_EQ(info->kv_block_tokens, 64);
    CHECK_EQ(strlen(info->checkpoint_digest), 64);
    CHECK_HAS(info->rope_rule, "theta=10000000");
    CHECK_HAS(info->kv_rule, "kv=f32");
    CHECK_EQ(info->threads, 2);
    CHECK(info->parameters > 100000);
    for (uint32_t i = 0; i < info->regions_count; i++)
        if (!strcmp(info->regions[i].name, "kv blocks")) kv = info->regions[i].bytes;
    CHECK_EQ(kv, info->kv_bytes);
    CHECK(kv > 0 && info->state_bytes > 0 && info->scratch_bytes > 0 && info->weights_bytes > 0);
    engine_free(eng);
}

static uint64_t region_of(const struct engine_info *info, const char *name) {
    for (uint32_t i = 0; i < info->regions_count; i++)
        if (!strcmp(info->regions[i].name, name)) return info->regions[i].bytes;
    return 0;
}

/* The routed experts' rows have a place of their own behind the union of mixer and MLP rows, and the report says so. */
TEST(a_model_with_experts_says_so_and_names_their_scratch) {
    static const struct {
        const char *args, *rule;
    } cases[] = {
        {"--moe packed --experts 9 --top-k 4",
         "4 of 9 experts a row; packed in 4 layers, one by one in 0"},
        {"--moe mixed", "2 of 8 experts a row; packed in 2 layers, one by one in 2"},
        {"--moe both", "2 of 8 experts a row; packed in 4 layers, one by one in 0; 1 layers have "
                       "both forms, packed taken"},
    };
    uint64_t dense = 0;
    struct engine_config config = {.model_dir = tiny_model(""), .threads = 1, .context_max = 64};
    struct engine *eng = drive_open(&config);
    CHECK_EQ(region_of(engine_info(eng), "expert scratch"), 0);
    CHECK_STR(engine_info(eng)->experts_rule, "");
    dense = engine_info(eng)->scratch_bytes;
    engine_free(eng);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        config.model_dir = tiny_model(cases[i].args);
        eng = drive_open(&config);
        const struct engine_info *info = engine_info(eng);
        CHECK_STR(info->model_type, "qwen3_5_moe");
        CHECK_STR(info->experts_rule, cases[i].rule);
        CHECK(region_of(info, "expert scratch") > 0 && region_of(info, "scratch") > 0);
        CHECK(info->scratch_bytes > dense);
        engine_free(eng);
    }
}

static void logits_of(const char *args, float *ret) {
    static const uint32_t prompt[] = {5, 99, 31, 200, 7, 7, 64, 12};
    static const uint32_t rows[] = {0, 1, 2, 3, 4, 5, 6, 7};
    struct err e = {0};
    struct engine_config config = {.model_dir = tiny_model(args), .threads = 2, .context_max = 64};
    struct engine *eng = drive_open(&config);
    CHECK_OK(engine_logits(eng, prompt, 8, 0, rows, 8, ret, &e), e);
    engine_free(eng);
}

/* The same values in either form of the tensors are the same model, bit for bit; where a layer has both, the other values of
 * the single form (zeros here) are not looked at. */
TEST(packed_and_single_experts_give_the_same_bits) {
    static const char *const others[] = {
        "--moe single", "--moe mixed", "--moe both",
        "--moe mixed --layout multimodal --vision --mtp --shards 3"};
    static float want[8 * 256], got[8 * 256];
    logits_of("--moe packed", want);
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        logits_of(others[i], got);
        CHECK_MEM(got, want, sizeof want);
    }
    logits_of("--moe packed --top-k 3", got);
    CHECK(memcmp(got, want, sizeof want) != 0);
}

TEST(a_setting_that_cannot_be_is_refused_by_name) {
    const char *dir = tiny_model("");
    const struct {
        struct engine_config config;
        int st;
        const char *has;
    } cases[] = {
        {{.model_dir = "/nowhere"}, ST_NOT_FOUND, "/nowhere"},
        {{.model_dir = dir, .backend = "cuda"}, ST_UNSUPPORTED, "cuda"},
        {{.model_dir = dir, .backend = "tpu"}, ST_INVAL, "tpu"},
        {{.model_dir = dir, .kv = "int3"}, ST_INVAL, "int3"},
        {{.model_dir = dir, .context_max = 1 << 20}, ST_INVAL, "context"},
        {{.model_dir = dir, .context_max = 1}, ST_INVAL, "context"},
        {{.model_dir = dir, .streams_max = ENGINE_STREAMS_MAX + 1}, ST_INVAL, "streams"},
        {{.model_dir = dir, .threads = 100000}, ST_INVAL, "threads"},
        {{.model_dir = dir, .chunk_tokens = 1 << 20}, ST_INVAL, "rows"},
        {{.model_dir = dir, .memory_fraction = 1.5}, ST_INVAL, "memory-fraction"},
        {{.model_dir = dir, .memory_fraction = 1e-9, .context_max = 4096},
         ST_NOMEM,
         "largest context"},
        {{.model_dir = dir, .fault = 99}, ST_INVAL, "fault"},
    };
    for (uint32_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct engine *eng = NULL;
        struct err e = {0};
        CHECK_EQ(engine_new(&eng, &cases[i].config, &e), cases[i].st);
        CHECK(eng == NULL);
        CHECK_HAS(e.msg, cases[i].has);
    }
}

TEST(a_request_that_cannot_be_is_refused_by_name) {
    struct engine *eng = open_tiny(2, 128, 16);
    uint32_t vocab = engine_info(eng)->vocab_size, bad_id[] = {vocab};
    struct engine_request ok = request_of(eng, 10, 5), r[12];
    const char *const has[] = {"prompt",     "prompt[0]",   "max_tokens",  "prompt",
                               "min_tokens", "stop_ids[0]", "temperature", "top_logprobs",
                               "given[0]",   "max_tokens",  "stop_ids",    "prompt"};
    for (int i = 0; i < 12; i++) r[i] = ok;
    r[0].prompt_count = 0;
    r[1].prompt = bad_id;
    r[1].prompt_count = 1;
    r[2].max_tokens = 0;
    r[3].prompt_count = 128; // no room for a token
    r[4].min_tokens = 6;
    r[5].stop_ids = bad_id;
    r[5].stop_count = 1;
    r[6].sampling.temperature = -1;
    r[7].top_logprobs = ENGINE_TOP_LOGPROBS_MAX + 1;
    r[8].given = bad_id;
    r[8].given_count = 1;
    r[9].given = ids;
    r[9].given_count = 6;
    r[10].stop_ids = ids;
    r[10].stop_count = ENGINE_STOP_IDS_MAX + 1;
    r[11].given = ids;
    r[11].prompt_count = 65;
    r[11].given_count = 64;
    r[11].max_tokens = 100;
    for (int i = 0; i < 12; i++) {
        uint64_t handle = 0;
        struct err e = {0};
        CHECK_EQ(engine_submit(eng, &r[i], &handle, &e), ST_INVAL);
        CHECK_HAS(e.msg, has[i]);
        CHECK_EQ(handle, 0);
    }
    CHECK(engine_idle(eng));
    CHECK_EQ(engine_info(eng)->kv_blocks_used, 0);
    engine_free(eng);
}

TEST(a_full_engine_says_so_and_has_room_again_after_a_cancel) {
    struct engine *eng = open_tiny(2, 128, 16);
    struct reply replies[2];
    struct drive d = {.eng = eng, .replies = replies, .replies_count = 2};
    struct engine_request r = request_of(eng, 10, 100);
    struct err e = {0};
    uint64_t handle = drive_submit(&d, &r), none = 0;
    r.tag = 1;
    drive_submit(&d, &r);
    CHECK_EQ(engine_submit(eng, &r, &none, &e), ST_FULL);
    CHECK_HAS(e.msg, "streams");
    CHECK(engine_cancel(eng, handle));
    CHECK(!engine_cancel(eng, handle));
    r.tag = 0;
    drive_submit(&d, &r);
    drive_all(&d);
    CHECK_EQ(replies[0].count, 100);
    CHECK_EQ(replies[1].count, 100);
    engine_free(eng);
}

// An engine whose memory holds one whole context and little more, though more streams are asked for.
static struct engine *open_tight(uint32_t streams, uint32_t context) {
    struct engine_config config = {.model_dir = tiny_model(""),
                                   .threads = 1,
                                   .streams_max = streams,
                                   .context_max = context,
                                   .memory_fraction = 1e-5};
    struct engine *eng = NULL;
    struct err e = {0};
    for (; !eng && config.memory_fraction < 1; config.memory_fraction *= 1.01)
        if (engine_new(&eng, &config, &e)) CHECK_EQ(e.st, ST_NOMEM);
    CHECK(eng != NULL);
    return eng;
}

// Blocks for prompt and max_tokens are promised at admission: short streams fit where a long one does not.
TEST(kv_blocks_are_promised_at_admission_and_never_run_out) {
    struct engine *eng = open_tight(12, 640);
    static struct reply replies[12];
    uint32_t total = engine_info(eng)->kv_blocks_total, live = 0, full = 0, done = 0;
    struct drive d = {.eng = eng, .replies = replies, .replies_count = 12};
    bool taken[12] = {0};
    uint64_t random = 7;
    for (int i = 0; i < 600; i++) {
        random = mix_u64(random + 0x9e3779b97f4a7c15u);
        struct engine_request r =
            request_of(eng, 1 + random % 60, 1 + (uint32_t)(random >> 20) % 300);
        struct err e = {0};
        uint64_t handle;
        r.tag = (uint64_t)(i % 12);
        if (!taken[r.tag] && live < 12) {
            memset(&replies[r.tag], 0, sizeof *replies);
            int st = engine_submit(eng, &r, &handle, &e);
            CHECK(st == ST_OK || st == ST_FULL);
            full += st == ST_FULL;
            taken[r.tag] = st == ST_OK;
            live += st == ST_OK;
        }
        drive_step(&d);
        for (int k = 0; k < 12; k++)
            if (taken[k] && replies[k].ended) {
                CHECK_EQ(replies[k].finish, ENGINE_FINISH_LENGTH);
                taken[k] = false;
                live--;
                done++;
            }
        CHECK(engine_info(eng)->kv_blocks_used <= total);
    }
    drive_all(&d);
    test_note("ended %u, refused for want of room %u", done, full);
    CHECK(done > 20);
    CHECK_EQ(engine_info(eng)->kv_blocks_used, 0);
    engine_free(eng);
}

TEST(too_few_blocks_for_a_request_are_named) {
    struct engine *eng = open_tight(4, 4096);
    struct err e = {0};
    uint32_t total = engine_info(eng)->kv_blocks_total;
    CHECK(total >= 64 && total < 128);
    struct engine_request r = request_of(eng, 100, 4000);
    uint64_t first = 0, second = 0;
    CHECK_OK(engine_submit(eng, &r, &first, &e), e);
    CHECK_EQ(engine_info(eng)->kv_blocks_used, 64);
    CHECK_EQ(engine_submit(eng, &r, &second, &e), ST_FULL);
    CHECK_HAS(e.msg, "kv blocks");
    engine_cancel(eng, first);
    CHECK_OK(engine_submit(eng, &r, &second, &e), e);
    engine_free(eng);
}

TEST(a_cancel_frees_a_stream_in_the_queue_in_its_fill_and_in_decode) {
    struct engine *eng = open_tiny(3, 704, 16);
    struct reply replies[3];
    for (uint32_t steps = 0; steps <= 40; steps += 20) { // 0: queued; 20: filling 600; 40: decoding
        struct drive d = {.eng = eng, .replies = replies, .replies_count = 3};
        struct engine_request r = request_of(eng, 600, 50);
        uint64_t handle = drive_submit(&d, &r);
        for (uint32_t i = 0; i < steps; i++) drive_step(&d);
        CHECK_EQ(replies[0].filled, steps == 20 ? 320 : steps ? 600 : 0);
        CHECK_EQ(replies[0].count > 0, steps == 40);
        CHECK(engine_info(eng)->kv_blocks_used > 0);
        CHECK(engine_cancel(eng, handle));
        CHECK_EQ(engine_info(eng)->kv_blocks_used, 0);
        CHECK(engine_idle(eng));
        uint32_t events = replies[0].events;
        CHECK_EQ(drive_step(&d), 0);
        CHECK_EQ(replies[0].events, events); // no word of it any more
    }
    engine_free(eng);
}

TEST(a_prompt_is_cut_to_what_the_context_leaves) {
    struct engine *eng = open_tiny(1, 64, 0);
    struct reply reply;
    struct engine_request r = request_of(eng, 60, 1000);
    drive_alone(eng, &r, &reply);
    CHECK_EQ(reply.count, 4);
    CHECK_EQ(reply.finish, ENGINE_FINISH_LENGTH);
    CHECK_EQ(reply.prompt_count, 60);
    CHECK_EQ(reply.stop_id, -1);
    engine_free(eng);
}

// An id whose embedding is NaN, as of a file that rotted: who reads it has NaN in every later row, and the others in the
// same rounds have not.
TEST(logits_that_are_no_numbers_end_their_stream_and_no_other) {
    enum { NAN_ID = 7, COUNT = 20 };
    struct engine_config config = {.model_dir = tiny_model("--untied --nan-id 7"),
                                   .threads = 2,
                                   .streams_max = 3,
                                   .context_max = 64};
    struct engine *eng = drive_open(&config);
    uint32_t sick_ids[COUNT], well_ids[COUNT];
    struct reply alone, replies[3] = {0};
    struct engine_request r[3];
    for (int i = 0; i < 3; i++) {
        uint32_t *p = i == 1 ? sick_ids : well_ids;
        r[i] = drive_request(p, COUNT, 3, engine_info(eng)->vocab_size, 12);
        r[i].tag = (uint64_t)i;
    }
    for (int i = 0; i < COUNT; i++) {
        if (well_ids[i] == NAN_ID) well_ids[i]++;
        if (sick_ids[i] == NAN_ID) sick_ids[i]++;
    }
    sick_ids[5] = NAN_ID;
    drive_sampled(&r[2], 9);
    drive_alone(eng, &r[0], &alone);
    struct drive d = {.eng = eng, .replies = replies, .replies_count = 3};
    for (int i = 0; i < 3; i++) drive_submit(&d, &r[i]);
    drive_all(&d);
    CHECK_EQ(replies[1].finish, ENGINE_FINISH_BROKEN);
    CHECK_EQ(replies[1].count, 0);
    CHECK_EQ(replies[1].completion_count, 0);
    CHECK_EQ(replies[2].finish, ENGINE_FINISH_LENGTH);
    check_same_reply(&replies[0], &alone);
    drive_alone(eng, &r[0], &replies[0]); // and its slot serves again
    check_same_reply(&replies[0], &alone);
    engine_free(eng);
}

// Greedy, so the plain reply tells which id to make a stop id of.
TEST(a_stop_id_ends_the_reply_with_itself_but_not_before_min_tokens) {
    struct engine *eng = open_tiny(1, 256, 0);
    struct reply plain, stopped, late, ignored;
    struct engine_request r = request_of(eng, 20, 40);
    drive_alone(eng, &r, &plain);
    uint32_t stop = plain.ids[5], first = 0;
    while (plain.ids[first] != stop) first++;
    r.stop_ids = &stop;
    r.stop_count = 1;
    drive_alone(eng, &r, &stopped);
    CHECK_EQ(stopped.count, first + 1);
    CHECK_EQ(stopped.ids[first], stop);
    CHECK_EQ(stopped.finish, ENGINE_FINISH_STOP);
    CHECK_EQ(stopped.stop_id, stop);
    CHECK_EQ(stopped.completion_count, first + 1);
    r.min_tokens = first + 3;
    drive_alone(eng, &r, &late);
    CHECK(late.count >= first + 3);
    for (uint32_t i = 0; i < first + 3; i++) CHECK(late.ids[i] != stop); // not drawn at all
    r.stop_count = 0;
    r.min_tokens = 0;
    drive_alone(eng, &r, &ignored);
    CHECK_EQ(ignored.count, 40);
    engine_free(eng);
}

// vLLM 39697: the id that closes a thought stands where the budget ends, whatever the logits say; one that comes earlier
// ends the bound, and so does a call. A replay with given ids gives the same.
TEST(a_thought_is_closed_when_its_budget_is_used_up) {
    struct engine *eng = open_tiny(1, 256, 0);
    struct reply plain, closed, again, early;
    struct engine_request r = request_of(eng, 20, 30);
    drive_alone(eng, &r, &plain);
    uint32_t close = 0; // one that the plain reply does not draw
    for (uint32_t i = 0; i < plain.count; i++)
        if (plain.ids[i] == close) close++, i = UINT32_MAX;
    for (uint32_t budget = 0; budget < 12; budget += 4) {
        struct engine_thought thought = {budget, close, -1};
        r.thought = &thought;
        drive_alone(eng, &r, &closed);
        CHECK_EQ(closed.count, 30);
        CHECK_MEM(closed.ids, plain.ids, budget * sizeof *plain.ids);
        CHECK_EQ(closed.ids[budget], close);
        CHECK(closed.ids[budget + 1] != close); // once
        for (uint32_t given = 1; given < 15; given += 3) {
            r.given = closed.ids;
            r.given_count = given;
            drive_alone(eng, &r, &again);
            CHECK_MEM(again.ids, closed.ids + given, (30 - given) * sizeof *again.ids);
            CHECK_EQ_U64(again.hash, closed.hash);
        }
        r.given_count = 0;
    }
    for (int by_call = 0; by_call < 2; by_call++) { // the third id ends it by itself
        uint32_t end = plain.ids[2];
        struct engine_thought thought = {8, by_call ? close : end, by_call ? (int64_t)end : -1};
        r.thought = &thought;
        drive_alone(eng, &r, &early);
        CHECK_MEM(early.ids, plain.ids, sizeof(uint32_t) * 30);
    }
    uint32_t vocab = engine_info(eng)->vocab_size;
    struct engine_thought thought = {1, vocab, -1};
    struct err e = {0};
    uint64_t handle;
    r.thought = &thought;
    CHECK_EQ(engine_submit(eng, &r, &handle, &e), ST_INVAL);
    CHECK_HAS(e.msg, "thought.close_id");
    engine_free(eng);
}

TEST(the_vocabulary_says_what_may_be_drawn_and_what_ends_a_reply) {
    struct engine *eng = open_tiny(1, 256, 0);
    struct engine *other = open_tiny(1, 256, 0);
    struct reply plain, masked, eos, ignored;
    struct engine_request r = request_of(eng, 20, 60);
    struct err e = {0};
    drive_alone(eng, &r, &plain);
    const struct engine_range used[] = {{0, 40}, {100, 30}};
    uint32_t vocab = engine_info(other)->vocab_size, stop = 0;
    CHECK_EQ(engine_set_vocab(other, used, 0, NULL, 0, &e), ST_INVAL);
    CHECK_EQ(engine_set_vocab(other, &(struct engine_range){vocab, 1}, 1, NULL, 0, &e), ST_INVAL);
    CHECK_EQ(engine_set_vocab(other, used, 2, &vocab, 1, &e), ST_INVAL);
    CHECK_OK(engine_set_vocab(other, used, 2, NULL, 0, &e), e);
    drive_alone(other, &r, &masked);
    for (uint32_t i = 0; i < masked.count; i++)
        CHECK(masked.ids[i] < 40 || (masked.ids[i] >= 100 && masked.ids[i] < 130));
    // A worker that meets another router is told again; never under a stream that lives by the old one.
    uint64_t handle;
    CHECK_OK(engine_set_vocab(other, used, 2, NULL, 0, &e), e);
    CHECK_OK(engine_submit(other, &r, &handle, &e), e);
    CHECK_EQ(engine_set_vocab(other, used, 2, NULL, 0, &e), ST_INVAL);
    CHECK_HAS(e.msg, "while no stream lives");
    engine_free(other);

    other = open_tiny(1, 256, 0);
    stop = plain.ids[7];
    const struct engine_range all = {0, vocab};
    CHECK_OK(engine_set_vocab(other, &all, 1, &stop, 1, &e), e);
    drive_alone(other, &r, &eos);
    CHECK_EQ(eos.finish, ENGINE_FINISH_STOP);
    CHECK_EQ(eos.stop_id, stop);
    r.ignore_eos = true;
    drive_alone(other, &r, &ignored);
    check_same_reply(&ignored, &plain);
    engine_free(other);
    engine_free(eng);
}

// The id that ends a reply may have been told before the worker died, and its end not.
TEST(given_ids_that_end_the_reply_are_filled_and_end_without_a_draw) {
    struct engine *eng = open_tiny(1, 256, 16);
    struct reply stopped, again;
    struct engine_request r = request_of(eng, 40, 60);
    struct err e = {0};
    uint64_t handle;
    drive_alone(eng, &r, &stopped);
    uint32_t stop = stopped.ids[20], list[60];
    memcpy(list, stopped.ids, sizeof list);
    r.stop_ids = &stop;
    r.stop_count = 1;
    drive_alone(eng, &r, &stopped);
    r.given = list;
    r.given_count = stopped.count;
    drive_alone(eng, &r, &again);
    CHECK_EQ(again.count, 0);
    CHECK_EQ(again.completion_count, stopped.count);
    CHECK_EQ(again.finish, ENGINE_FINISH_STOP);
    CHECK_EQ(again.stop_id, stop);
    CHECK_EQ_U64(again.hash, stopped.hash);
    r.given_count++;
    CHECK_EQ(engine_submit(eng, &r, &handle, &e), ST_INVAL);
    CHECK_HAS(e.msg, "ends the reply");
    engine_free(eng);
}

// The same for the last id that max_tokens or the context has room for.
TEST(given_ids_up_to_the_last_are_filled_and_end_without_a_draw) {
    struct engine *eng = open_tiny(1, 128, 16);
    static const uint32_t most[] = {1, 30, 1000}; // the last: as many as the context allows
    for (int i = 0; i < 3; i++) {
        struct engine_request r = request_of(eng, 40, most[i]);
        struct reply whole, again;
        drive_alone(eng, &r, &whole);
        CHECK_EQ(whole.finish, ENGINE_FINISH_LENGTH);
        r.given = whole.ids;
        r.given_count = whole.count;
        drive_alone(eng, &r, &again);
        CHECK_EQ(again.count, 0);
        CHECK_EQ(again.completion_count, whole.count);
        CHECK_EQ(again.finish, ENGINE_FINISH_LENGTH);
        CHECK_EQ_U64(again.hash, whole.hash);
    }
    engine_free(eng);
}

TEST(logprobs_come_with_the_drawn_id_and_the_best) {
    struct engine *eng = open_tiny(1, 256, 0);
    struct engine_request r = request_of(eng, 20, 3);
    struct engine_round round;
    struct err e = {0};
    uint64_t handle;
    uint32_t seen = 0;
    r.top_logprobs = 4;
    CHECK_OK(engine_submit(eng, &r, &handle, &e), e);
    while (!engine_idle(eng)) {
        CHECK_OK(engine_step(eng, &round, &e), e);
        for (uint32_t i = 0; i < round.count; i++) {
            const struct engine_event *ev = &round.events[i];
            if (!ev->ids_count) continue;
            CHECK_EQ(ev->top[0].id, ev->ids[0]); // greedy
            CHECK(ev->logprobs[0] == ev->top[0].logprob && ev->logprobs[0] < 0);
            for (int k = 1; k < 4; k++) CHECK(ev->top[k].logprob <= ev->top[k - 1].logprob);
            seen++;
        }
    }
    CHECK_EQ(seen, 3);
    engine_free(eng);
}

TEST(an_idle_engine_steps_without_rows_and_times_add_up) {
    struct engine *eng = open_tiny(1, 256, 16);
    struct engine_round round = {.rows = 9, .count = 9};
    struct engine_request r = request_of(eng, 40, 4);
    struct err e = {0};
    uint64_t handle;
    CHECK_OK(engine_step(eng, &round, &e), e);
    CHECK_EQ(round.rows, 0);
    CHECK_EQ(round.count, 0);
    CHECK_OK(engine_submit(eng, &r, &handle, &e), e);
    CHECK(!engine_idle(eng));
    uint32_t rounds = 0;
    while (!engine_idle(eng)) {
        CHECK_OK(engine_step(eng, &round, &e), e);
        CHECK_EQ(round.round, ++rounds);
    }
    CHECK_EQ(rounds, 3 + 3); // three chunks, the last of which draws; three more
    CHECK_EQ(round.events[0].rounds, rounds);
    CHECK_EQ(round.events[0].completion_count, 4);
    CHECK(round.events[0].prefill_us > 0 && round.events[0].decode_us > 0);
    engine_free(eng);
}

static void check_small_cache(const char *kv, uint32_t part, const char *rule) {
    struct engine_config config = {
        .model_dir = tiny_model(""), .threads = 2, .streams_max = 2, .context_max = 256, .kv = kv};
    struct engine *f32 = open_tiny(2, 256, 0), *eng = drive_open(&config);
    struct reply a, b, c;
    struct engine_request r = request_of(eng, 150, 20);
    CHECK_EQ(engine_info(eng)->kv_bytes * part, engine_info(f32)->kv_bytes);
    CHECK_HAS(engine_info(eng)->kv_rule, rule);
    drive_alone(eng, &r, &a);
    drive_alone(f32, &r, &c);
    engine_free(eng);
    config.chunk_tokens = 7;
    eng = drive_open(&config);
    drive_alone(eng, &r, &b);
    check_same_reply(&a, &b);
    CHECK(a.hash != c.hash);
    engine_free(eng);
    engine_free(f32);
}

TEST(a_bf16_cache_is_half_the_size_and_exact_against_itself) {
    check_small_cache("bf16", 2, "kv=bf16");
}

TEST(an_fp8_cache_is_a_quarter_of_the_size_and_exact_against_itself) {
    check_small_cache("fp8", 4, "kv=fp8");
}

TEST(a_state_is_refused_where_its_rows_do_not_belong) {
    struct engine *eng = open_tiny(2, 256, 0), *other = open_tiny(2, 256, 0);
    struct reply reply;
    struct drive d = {.eng = eng, .replies = &reply, .replies_count = 1};
    struct engine_request r = request_of(eng, 30, 9);
    struct engine_state *s = NULL;
    struct err e = {0};
    uint64_t handle = drive_submit(&d, &r), none;
    CHECK_EQ(engine_state_save(eng, handle, &s, &e), ST_INVAL); // nothing fed yet
    drive_step(&d);
    CHECK_OK(engine_state_save(eng, handle, &s, &e), e);
    CHECK_EQ(engine_state_save(eng, handle + 1, &s, &e), ST_INVAL);
    CHECK_EQ(engine_submit_from(eng, s, &r, &none, &e), ST_INVAL); // no row left to feed
    CHECK_HAS(e.msg, "fewer rows");
    ids[30] = 1;
    r.prompt_count = 31;
    CHECK_EQ(engine_submit_from(other, s, &r, &none, &e), ST_INVAL);
    CHECK_HAS(e.msg, "this engine");
    ids[3] ^= 1;
    CHECK_EQ(engine_submit_from(eng, s, &r, &none, &e), ST_INVAL);
    CHECK_HAS(e.msg, "row 3");
    engine_state_free(s);
    engine_state_free(NULL);
    engine_free(eng);
    engine_free(other);
    engine_free(NULL);
}

struct progress {
    uint64_t done, total;
    uint32_t calls;
};

static void on_load(void *arg, uint64_t done_bytes, uint64_t total_bytes) {
    struct progress *p = arg;
    CHECK(done_bytes >= p->done && done_bytes <= total_bytes);
    *p = (struct progress){done_bytes, total_bytes, p->calls + 1};
}

TEST(loading_reports_its_progress_to_the_last_byte) {
    struct progress p = {0};
    struct engine_config config = {.model_dir = tiny_model(""),
                                   .threads = 1,
                                   .streams_max = 1,
                                   .context_max = 64,
                                   .on_load = on_load,
                                   .on_load_arg = &p};
    struct engine *eng = drive_open(&config);
    CHECK(p.calls > 10 && p.done == p.total);
    CHECK_EQ_U64(p.total, engine_info(eng)->weights_bytes);
    engine_free(eng);
}

#if defined(__has_feature) // clang
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define __SANITIZE_ADDRESS__ 1
#endif
#endif
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__) && defined(__GLIBC__)
/* Counts what the C library hands out in this process; the engine's threads included. */
extern void *__libc_malloc(size_t);
extern void *__libc_calloc(size_t, size_t);
extern void *__libc_realloc(void *, size_t);
static _Atomic uint64_t allocations;

void *malloc(size_t n) {
    atomic_fetch_add(&allocations, 1);
    return __libc_malloc(n);
}
void *calloc(size_t n, size_t m) {
    atomic_fetch_add(&allocations, 1);
    return __libc_calloc(n, m);
}
void *realloc(void *p, size_t n) {
    atomic_fetch_add(&allocations, 1);
    return __libc_realloc(p, n);
}

TEST(a_round_allocates_nothing) {
    struct engine *eng = open_tiny(3, 512, 16);
    static struct reply replies[3];
    struct drive d = {.eng = eng, .replies = replies, .replies_count = 3};
    for (uint32_t i = 0; i < 3; i++) {
        struct engine_request r = request_of(eng, 10 + 90 * i, 30);
        r.tag = i;
        if (i) drive_sampled(&r, i);
        drive_submit(&d, &r);
    }
    uint64_t before = allocations;
    CHECK(before > 0); // the count works
    drive_all(&d);
    CHECK_EQ_U64(allocations, before);
    CHECK(replies[2].ended);
    engine_free(eng);
}
#endif
