/* Drafts change no reply: whatever is proposed, and by whom, the tokens, the bits of the logits, the log-probabilities and
 * the ends are those of plain decoding. Doubles that know the replies agree with them, lie, and mix; copies find what they
 * find. The comparison counts what was kept and what was wound back, and must fail with a planted fault. */
#include "common/err.h"
#include "common/mem.h"
#include "common/num.h"
#include "kernels/ops.h"
#include "tests/lib/draft_doubles.h"
#include "tests/lib/engine_drive.h"
#include "tests/lib/test.h"
#include "tests/lib/tiny_model.h"
#include "worker/engine/engine_impl.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#if defined(__has_feature) // clang
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define __SANITIZE_ADDRESS__ 1
#endif
#endif
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { FEW = true, TOKENS = 40, ENOUGH = 100 };
#else
enum { FEW = false, TOKENS = 120, ENOUGH = 1000 }; // kept and wound back, of each kind
#endif
enum {
    CROWD = 8,
    PROMPT_MAX = 130,
    CONTEXT = 512,
    COPIES = DOUBLE_KINDS,
    SOURCES,
    BOTH = SOURCES, // and more: copies beside the double of this number less
};

static const uint32_t lengths[CROWD] = {1, PROMPT_MAX, 17, 64, 101, 3, 90, 16};

struct crowd {
    uint32_t prompts[CROWD][PROMPT_MAX], stops[CROWD][2], bias_ids[2];
    float bias[2];
    struct engine_thought thoughts[CROWD];
    struct engine_request requests[CROWD];
    struct reply plain[CROWD];
};

static struct engine_config config_of(const char *dir, uint32_t chunk) {
    return (struct engine_config){.model_dir = dir,
                                  .threads = 2,
                                  .chunk_tokens = chunk,
                                  .context_max = CONTEXT,
                                  .streams_max = CROWD};
}

// Two ids far above the others: text that repeats itself, so that copies find something, and are often wrong.
static void make_narrow(struct crowd *c) {
    for (uint32_t i = 0; i < CROWD; i++) {
        struct sample_params *p = &c->requests[i].sampling;
        p->bias_ids = c->bias_ids;
        p->bias = c->bias;
        p->bias_count = 2;
        p->presence = p->frequency = 0;
        p->repetition = 1;
    }
    c->bias[0] = c->bias[1] = 90;
}

// Greedy and sampled by turns; each has something of its own that a draft must not disturb.
static struct engine_request request_of(struct crowd *c, uint32_t i, uint32_t vocab) {
    struct engine_request r = drive_request(c->prompts[i], lengths[i], i + 1, vocab, TOKENS - i);
    r.tag = i;
    r.draft = true;
    if (i % 2) drive_sampled(&r, 500 + i);
    switch (i) {
    case 1: // a bias on an id, with all penalties
        r.sampling.bias_ids = c->bias_ids;
        r.sampling.bias = c->bias;
        r.sampling.bias_count = 1;
        break;
    case 2: r.top_logprobs = 5; break;
    case 3: r.top_logprobs = 0; break;
    case 4: // a thought that is closed for it
        c->thoughts[i] = (struct engine_thought){.budget = 21, .close_id = 9, .call_id = -1};
        r.thought = &c->thoughts[i];
        break;
    case 5: // warm alone
        r.sampling = (struct sample_params){
            .temperature = 1, .top_p = 1, .repetition = 1, .seed = 77, .min_p = 0.01};
        break;
    default: break;
    }
    return r;
}

// Stop ids that the reply really meets: what stood at two places of it, the first too early.
static void add_stops(struct crowd *c, uint32_t i, struct engine *eng) {
    struct engine_request *r = &c->requests[i];
    c->stops[i][0] = c->plain[i].ids[5];
    c->stops[i][1] = c->plain[i].ids[TOKENS / 2];
    r->stop_ids = c->stops[i];
    r->stop_count = 2;
    r->min_tokens = 23;
    drive_alone(eng, r, &c->plain[i]);
}

static struct crowd *make_crowd(const char *dir, bool narrow) {
    struct crowd *c = mem_calloc(1, sizeof *c);
    c->bias_ids[0] = 7;
    c->bias_ids[1] = 11;
    c->bias[0] = 2.5f;
    struct engine_config config = config_of(dir, 64);
    struct engine *eng = drive_open(&config);
    for (uint32_t i = 0; i < CROWD; i++)
        c->requests[i] = request_of(c, i, engine_info(eng)->vocab_size);
    if (narrow) make_narrow(c);
    for (uint32_t i = 0; i < CROWD; i++) {
        drive_alone(eng, &c->requests[i], &c->plain[i]);
        if (i >= 6 && !narrow) add_stops(c, i, eng);
    }
    engine_free(eng);
    return c;
}

static struct crowd *crowd_of(const char *dir) {
    return make_crowd(dir, false);
}

struct bed { // an engine with one source of drafts
    struct engine *eng;
    struct draft_double d;
    uint64_t drafted, accepted;
    uint32_t unequal;
    uint32_t branches, branches_kept; // rounds of a stream that had one
};

static void open_bed(struct bed *b, const char *dir, const struct crowd *c, uint32_t source,
                     uint32_t chunk, uint32_t rows, const char *costs, uint32_t fault) {
    struct engine_config config = config_of(dir, chunk);
    struct drafter own;
    *b = (struct bed){0};
    config.drafter = "auto";
    config.draft_kinds = source >= BOTH ? "all" : source == COPIES ? "copy" : "dflash2";
    config.draft_rows = rows;
    config.costs = costs;
    config.fault = fault;
    if (source != COPIES) {
        struct engine_config plain = config_of(dir, chunk);
        struct engine *eng = drive_open(&plain);
        own = double_drafter(&b->d, source % BOTH, engine_info(eng)->vocab_size);
        engine_free(eng);
        config.own_drafter = &own;
    }
    for (uint32_t i = 0; i < CROWD && source != COPIES && c->requests[i].prompt; i++)
        double_learn(&b->d, &c->requests[i], &c->plain[i]);
    b->eng = drive_open(&config);
}

static void close_bed(struct bed *b) {
    engine_free(b->eng);
    b->eng = NULL;
}

static void count_reply(struct bed *b, const struct reply *plain, const struct reply *got) {
    for (uint32_t k = 0; k < ENGINE_DRAFT_KINDS; k++) {
        CHECK(got->accepted[k] <= got->drafted[k]);
        b->drafted += got->drafted[k];
        b->accepted += got->accepted[k];
    }
    b->unequal += !got->ended || got->count != plain->count || got->finish != plain->finish ||
                  got->stop_id != plain->stop_id || got->hash != plain->hash ||
                  got->logprobs_hash != plain->logprobs_hash ||
                  memcmp(got->ids, plain->ids, plain->count * sizeof *plain->ids) != 0;
}

static void run_alone(struct bed *b, const struct crowd *c, uint32_t *ret_rounds) {
    static struct reply got;
    for (uint32_t i = 0; i < CROWD; i++) {
        drive_alone(b->eng, &c->requests[i], &got);
        count_reply(b, &c->plain[i], &got);
        if (ret_rounds) ret_rounds[i] = got.token_rounds;
    }
}

static void step(struct bed *b, struct drive *d) {
    const struct round *r = &b->eng->round;
    drive_step(d);
    for (uint32_t i = 1; i < r->runs_count; i++) {
        const struct run *run = &r->runs[i];
        const struct stream *s = &b->eng->streams[run->slot];
        if (r->runs[i - 1].slot != run->slot) continue;
        b->branches++;
        // Its first id was drawn, and one behind it.
        b->branches_kept += s->count > run->pos + 2 && s->ids[run->pos + 1] == r->ids[run->row + 1];
    }
}

// All at once, one joining every second round.
static void run_together(struct bed *b, const struct crowd *c, uint32_t *ret_rounds) {
    static struct reply got[CROWD];
    struct drive d = {.eng = b->eng, .replies = got, .replies_count = CROWD};
    for (uint32_t i = 0; i < CROWD; i++) {
        drive_submit(&d, &c->requests[i]);
        step(b, &d);
        if (i % 2) step(b, &d);
    }
    while (!engine_idle(b->eng)) step(b, &d);
    for (uint32_t i = 0; i < CROWD; i++) {
        count_reply(b, &c->plain[i], &got[i]);
        if (ret_rounds) ret_rounds[i] = got[i].token_rounds;
    }
    CHECK_EQ(engine_info(b->eng)->kv_blocks_used, 0);
}

static const char *source_name(uint32_t source) {
    return source == COPIES ? "copies" : double_name(source);
}

static void check_source(const char *what, const char *dir, const struct crowd *c, uint32_t source,
                         const char *costs) {
    static const uint32_t chunks[] = {64, 17, 1};
    static struct bed b;
    uint64_t drafted = 0, accepted = 0, unequal = 0;
    for (uint32_t k = 0; k < (FEW ? 1u : source == DOUBLE_HALF ? 3u : 2u); k++) {
        open_bed(&b, dir, c, source, chunks[k], k ? 16 : 32, costs, 0);
        run_alone(&b, c, NULL);
        run_together(&b, c, NULL);
        drafted += b.drafted;
        accepted += b.accepted;
        unequal += b.unequal;
        close_bed(&b);
    }
    test_note("%s, %s: accepted %llu, rejected %llu, unequal %llu", what, source_name(source),
              (unsigned long long)accepted, (unsigned long long)(drafted - accepted),
              (unsigned long long)unequal);
    CHECK_EQ(unequal, 0);
    if (source != DOUBLE_LIES) CHECK(accepted >= ENOUGH);
    // A short block has one wrong id; few replies have few copies.
    bool half = source == DOUBLE_SHORT || (FEW && source == COPIES);
    uint64_t least = source == DOUBLE_AGREES ? 0 : half ? ENOUGH / 2 : ENOUGH;
    CHECK(drafted - accepted >= least);
    if (source == DOUBLE_LIES) CHECK_EQ(accepted, 0);
}

TEST(a_drafted_reply_is_the_plain_one_whoever_drafts_and_whatever_comes_true) {
    static const struct {
        const char *name, *args;
    } kinds[] = {{"dense", ""}, {"EXL3 with experts", TINY_EXL3_MOE}};
    for (uint32_t m = 0; m < (FEW ? 1 : 2); m++) {
        const char *dir = tiny_model(kinds[m].args), *costs = double_free_costs(dir);
        struct crowd *c = crowd_of(dir), *narrow = make_crowd(dir, true);
        for (uint32_t s = 0; s < SOURCES; s++)
            if (!m || s == DOUBLE_HALF || s == COPIES)
                check_source(kinds[m].name, dir, s == COPIES ? narrow : c, s, costs);
        unlink(costs);
        free(narrow);
        free(c);
    }
}

// Short copies beside blocks that begin otherwise: either may come true, and the reply is the plain one.
TEST(a_branch_beside_a_block_changes_no_reply) {
    static const uint32_t doubles[] = {DOUBLE_LIES, DOUBLE_RANDOM, DOUBLE_SHORT};
    static struct bed b;
    const char *dir = tiny_model(TINY_EXL3), *costs = double_free_costs(dir);
    struct crowd *c = make_crowd(dir, true);
    for (uint32_t k = 0; k < 3; k++) {
        uint32_t alone[CROWD], beside[CROWD];
        open_bed(&b, dir, c, BOTH + doubles[k], k ? 17 : 64, 24, costs, 0);
        run_alone(&b, c, alone);
        run_together(&b, c, beside);
        test_note("%s: %u branches, %u kept", double_name(doubles[k]), b.branches, b.branches_kept);
        CHECK_EQ(b.unequal, 0);
        CHECK_MEM(alone, beside, sizeof alone);
        CHECK(b.branches >= 5 && b.branches_kept > 0);
        close_bed(&b);
    }
    open_bed(&b, dir, c, BOTH + DOUBLE_LIES, 64, 24, costs, ENGINE_FAULT_LOST_BRANCH);
    run_together(&b, c, NULL);
    CHECK(b.unequal > 0);
    close_bed(&b);
    unlink(costs);
    free(c);
}

struct matched { // what a round made of a match
    uint64_t copied, block;
    bool branch;
};

// A prompt whose end and first drawn id stood in it before, so that `length` ids match.
static struct matched round_of_match(uint32_t length, const char *costs) {
    enum { DRAWN = 7, FIRST = 20, PLACE = 50, COUNT = 110 };
    static struct bed b;
    static struct crowd none;
    static struct reply got;
    uint32_t ids[COUNT], bias_id = DRAWN;
    float bias = 90;
    for (uint32_t i = 0; i < COUNT; i++) ids[i] = FIRST + i; // all different
    memcpy(ids + COUNT - (length - 1), ids + PLACE - (length - 1), (length - 1) * sizeof *ids);
    ids[PLACE] = DRAWN;
    open_bed(&b, tiny_model(""), &none, BOTH + DOUBLE_LIES, 64, 24, costs, 0);
    struct drive d = {.eng = b.eng, .replies = &got, .replies_count = 1};
    struct engine_request r = drive_request(ids, 0, 1, 400, 40);
    r.prompt = ids;
    r.prompt_count = COUNT;
    r.draft = true;
    r.sampling.bias_ids = &bias_id;
    r.sampling.bias = &bias;
    r.sampling.bias_count = 1;
    uint64_t handle = drive_submit(&d, &r), drafted[ENGINE_DRAFT_KINDS], kept[ENGINE_DRAFT_KINDS];
    while (!got.count) drive_step(&d);
    drive_step(&d);
    engine_drafts(b.eng, handle, drafted, kept);
    struct matched m = {.copied = drafted[ENGINE_DRAFT_COPY],
                        .block = drafted[ENGINE_DRAFT_DFLASH2],
                        .branch = b.eng->round.runs_count == 2};
    if (m.branch) CHECK_MEM(b.eng->round.ids + b.eng->round.runs[1].row + 1, ids + PLACE + 1, 16);
    engine_cancel(b.eng, handle);
    close_bed(&b);
    return m;
}

// Of equal ids 20 push the block away, 8 to 19 go beside it, fewer do nothing.
TEST(nineteen_equal_ids_make_a_branch_beside_the_block_and_twenty_replace_it) {
    const char *costs = double_free_costs(tiny_model(""));
    for (uint32_t n = 5; n <= 22; n++) {
        struct matched m = round_of_match(n, costs);
        CHECK_EQ(m.branch, n >= 8 && n < 20);
        CHECK_EQ(m.block > 0, n < 20);
        CHECK_EQ_U64(m.copied, n < 8 ? 0 : n < 20 ? COPY_BRANCH_MAX : 15);
    }
    unlink(costs);
}

TEST(planted_faults_turn_the_comparison_red) {
    static const uint32_t faults[] = {ENGINE_FAULT_SHORT_CONV, ENGINE_FAULT_SHORT_S,
                                      ENGINE_FAULT_WINDOW_ROPE};
    static struct bed b;
    const char *dir = tiny_model(""), *costs = double_free_costs(dir);
    struct crowd *c = crowd_of(dir);
    for (uint32_t f = 0; f < 3; f++) {
        open_bed(&b, dir, c, DOUBLE_HALF, 64, 16, costs, faults[f]);
        run_together(&b, c, NULL);
        CHECK(b.unequal > 0);
        close_bed(&b);
    }
    unlink(costs);
    free(c);
}

// How many rounds a reply takes is its own affair: alone, in company, and the second time.
TEST(the_rounds_of_a_reply_do_not_depend_on_its_neighbours) {
    static struct bed b;
    uint32_t alone[CROWD], beside[CROWD], again[CROWD], fewer = 0;
    const char *dir = tiny_model("");
    struct crowd *c = crowd_of(dir);
    for (uint32_t s = 0; s < SOURCES; s++) {
        open_bed(&b, dir, c, s, 17, 8, NULL, 0); // with the costs built in
        run_alone(&b, c, alone);
        run_together(&b, c, beside);
        run_together(&b, c, again);
        close_bed(&b);
        CHECK_EQ(b.unequal, 0);
        for (uint32_t i = 0; i < CROWD; i++) {
            CHECK_EQ(alone[i], beside[i]);
            CHECK_EQ(alone[i], again[i]);
            if (s == DOUBLE_AGREES) fewer += alone[i] < c->plain[i].token_rounds;
        }
    }
    CHECK_EQ(fewer, CROWD);
    free(c);
}

// Where every draft is wrong, drafting stops after a few rounds, but for a try now and then.
TEST(drafts_that_do_not_pay_shrink_to_nothing) {
    static struct bed b;
    const char *dir = tiny_model("");
    struct crowd *c = crowd_of(dir);
    open_bed(&b, dir, c, DOUBLE_LIES, 64, 16, NULL, 0);
    for (uint32_t k = 0; k < ENGINE_DRAFT_KINDS; k++) CHECK_EQ(c->plain[0].drafted[k], 0);
    run_alone(&b, c, NULL);
    test_note("%llu drafts for %u tokens", (unsigned long long)b.drafted, CROWD * TOKENS);
    CHECK(b.drafted > 0 && b.drafted < CROWD * 60); // of up to 15 a round
    close_bed(&b);
    free(c);
}

TEST(a_request_without_drafts_has_none) {
    static struct bed b;
    static struct reply got;
    const char *dir = tiny_model("");
    struct crowd *c = crowd_of(dir);
    open_bed(&b, dir, c, DOUBLE_AGREES, 64, 16, NULL, 0);
    struct engine_request r = c->requests[0];
    r.draft = false;
    drive_alone(b.eng, &r, &got);
    count_reply(&b, &c->plain[0], &got);
    CHECK_EQ(b.unequal, 0);
    CHECK_EQ(b.drafted, 0);
    CHECK_EQ(b.d.asked, 0);
    CHECK_EQ(got.token_rounds, got.count);
    close_bed(&b);
    CHECK(b.d.closed);
    free(c);
}

// Given ids are fed in chunks as a prompt is; drafting goes on behind them.
TEST(a_drafted_reply_replays_from_any_place) {
    static const uint32_t cuts[] = {1, 2, 16, 33};
    static struct bed b;
    static struct reply got;
    const char *dir = tiny_model("");
    struct crowd *c = crowd_of(dir);
    open_bed(&b, dir, c, DOUBLE_HALF, 17, 8, NULL, 0);
    for (uint32_t i = 0; i < CROWD; i++)
        for (uint32_t k = 0; k < sizeof cuts / sizeof *cuts; k++) {
            struct engine_request r = c->requests[i];
            if (r.top_logprobs >= 0) continue; // of given ids there are none
            r.given = c->plain[i].ids;
            r.given_count = min_u32(cuts[k], c->plain[i].count - 1);
            drive_alone(b.eng, &r, &got);
            CHECK_EQ(got.completion_count, c->plain[i].count);
            CHECK_MEM(got.ids, c->plain[i].ids + r.given_count, got.count * sizeof *got.ids);
            CHECK_EQ_U64(got.hash, c->plain[i].hash);
            CHECK_EQ(got.finish, c->plain[i].finish);
        }
    close_bed(&b);
    free(c);
}

static struct engine_state *save_after(struct bed *b, const struct engine_request *r,
                                       uint32_t tokens, struct reply *got) {
    struct drive d = {.eng = b->eng, .replies = got, .replies_count = CROWD};
    struct engine_state *s = NULL;
    struct err e = {0};
    uint64_t handle = drive_submit(&d, r);
    while (got[r->tag].count < tokens) drive_step(&d);
    CHECK_OK(engine_state_save(b->eng, handle, &s, &e), e);
    engine_cancel(b->eng, handle);
    return s;
}

static void go_on(struct bed *b, const struct engine_state *s, const struct engine_request *r,
                  struct reply *got) {
    struct drive d = {.eng = b->eng, .replies = got, .replies_count = CROWD};
    struct err e = {0};
    uint64_t handle;
    memset(&got[r->tag], 0, sizeof *got);
    got[r->tag].tops = (uint32_t)(r->top_logprobs + 1);
    CHECK_OK(engine_submit_from(b->eng, s, r, &handle, &e), e);
    drive_all(&d);
}

// From a state with the drafter's, and from one of a stream that it did not follow.
TEST(a_saved_state_goes_on_with_drafts_and_without) {
    static struct bed b;
    static struct reply got[CROWD];
    const char *dir = tiny_model("");
    struct crowd *c = crowd_of(dir);
    open_bed(&b, dir, c, DOUBLE_HALF, 17, 8, NULL, 0);
    for (uint32_t drafted = 0; drafted < 2; drafted++) {
        struct engine_request r = c->requests[1];
        const struct reply *plain = &c->plain[1];
        r.draft = drafted;
        struct engine_state *s = save_after(&b, &r, 20, got);
        r.draft = true;
        r.given = plain->ids;
        r.given_count = engine_state_rows(s) - r.prompt_count + 1;
        go_on(&b, s, &r, got);
        CHECK_EQ_U64(got[1].hash, plain->hash);
        CHECK_EQ(got[1].completion_count, plain->count);
        CHECK_MEM(got[1].ids, plain->ids + r.given_count, got[1].count * sizeof *got[1].ids);
        CHECK_EQ(b.d.saved, drafted);
        CHECK_EQ(b.d.restored, drafted);
        CHECK_EQ(got[1].drafted[ENGINE_DRAFT_DFLASH2] > 0, drafted);
        engine_state_free(s);
    }
    close_bed(&b);
    free(c);
}

// The reply may end inside a block, and the context with it.
TEST(drafts_end_with_the_reply) {
    static struct bed b;
    static struct reply got;
    const char *dir = tiny_model("");
    struct crowd *c = crowd_of(dir);
    const char *costs = double_free_costs(dir);
    open_bed(&b, dir, c, DOUBLE_AGREES, 64, 16, costs, 0);
    for (uint32_t n = 1; n < 20; n++) {
        struct engine_request r = c->requests[0];
        r.max_tokens = n;
        drive_alone(b.eng, &r, &got);
        CHECK_EQ(got.count, n);
        CHECK_MEM(got.ids, c->plain[0].ids, n * sizeof *got.ids);
        CHECK_EQ(got.finish, ENGINE_FINISH_LENGTH);
        CHECK_EQ(got.accepted[ENGINE_DRAFT_DFLASH2], n - got.token_rounds);
        CHECK_EQ(got.drafted[ENGINE_DRAFT_DFLASH2], n - got.token_rounds); // none past the end
    }
    unlink(costs);
    close_bed(&b);
    free(c);
}

static uint64_t room_bytes;

static uint64_t some_room(void *ctx) {
    (void)ctx;
    return room_bytes;
}

static void use_room(void *arg, struct ops *o) {
    (void)arg;
    o->free_bytes = some_room;
}

// With a drafter of 64 MiB and so much room beside the weights.
static int open_in(uint64_t bytes, const char *kinds, struct draft_double *d, struct engine **ret,
                   struct err *e) {
    struct engine_config config = config_of(tiny_model(""), 64);
    struct drafter own = double_drafter(d, DOUBLE_HALF, 1);
    d->room_bytes = 64 << 20;
    room_bytes = bytes;
    config.backend = "cpu";
    config.memory_fraction = 1;
    config.on_ops = use_room;
    config.drafter = "auto";
    config.draft_kinds = kinds;
    config.own_drafter = &own;
    return engine_new(ret, &config, e);
}

TEST(a_context_that_fits_without_the_drafter_alone_goes_without_it_unless_it_was_named) {
    static struct draft_double d;
    struct engine *eng = NULL;
    struct err e = {0};
    CHECK_OK(open_in(512 << 20, NULL, &d, &eng, &e), e);
    CHECK_STR(engine_info(eng)->drafter, "dflash2");
    CHECK(engine_info(eng)->drafter_bytes >= 64 << 20);
    engine_free(eng);
    CHECK(d.closed);

    CHECK_OK(open_in(60 << 20, NULL, &d, &eng, &e), e);
    CHECK(engine_info(eng)->drafter == NULL);
    CHECK_EQ(engine_info(eng)->drafter_bytes, 0);
    CHECK_HAS(engine_info(eng)->draft_rule, "copies");
    CHECK_HAS(engine_info(eng)->draft_rule, "no dflash2: memory is short");
    engine_free(eng);

    CHECK_EQ(open_in(60 << 20, "copy,dflash2", &d, &eng, &e), ST_NOMEM);
    CHECK_HAS(e.msg, "without it would fit");
    CHECK_EQ(open_in(1 << 20, NULL, &d, &eng, &e), ST_NOMEM);
}

static int try_open(const char *drafter, const char *kinds, uint32_t rows, struct err *e) {
    struct engine_config config = config_of(tiny_model(""), 64);
    struct engine *eng = NULL;
    config.backend = "cpu";
    config.drafter = drafter;
    config.draft_kinds = kinds;
    config.draft_rows = rows;
    int st = engine_new(&eng, &config, e);
    engine_free(eng);
    return st;
}

TEST(settings_of_drafts_are_refused_by_name) {
    struct err e = {0};
    CHECK_EQ(try_open("auto", "copy,eagle", 0, &e), ST_INVAL);
    CHECK_HAS(e.msg, "draft-kinds");
    CHECK_HAS(e.msg, "eagle");
    CHECK_EQ(try_open("auto", "copy,", 0, &e), ST_INVAL);
    CHECK_EQ(try_open("auto", "copy", 33, &e), ST_INVAL);
    CHECK_HAS(e.msg, "draft-rows");
    CHECK_EQ(try_open("auto", "copy", 1, &e), ST_INVAL);
    CHECK_EQ(try_open("auto", "copy,dflash", 0, &e), ST_INVAL);
    CHECK_HAS(e.msg, "found 'dflash'");
    CHECK_EQ(try_open("none", "copy", 0, &e), ST_INVAL);
    CHECK_HAS(e.msg, "beside drafter 'none', found 'copy'");
    CHECK_EQ(try_open("none", "all", 0, &e), ST_OK);
    CHECK_EQ(try_open("none", NULL, 0, &e), ST_OK);
    CHECK_EQ(try_open("auto", NULL, 0, &e), ST_OK);
    CHECK(try_open("/nonexistent/drafter", "all", 0, &e) != ST_OK);
    CHECK_HAS(e.msg, "/nonexistent/drafter");
}
