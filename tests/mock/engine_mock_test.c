/* The real engine over the mock driver: what it asks of a device while it starts and while it runs, and that whatever call
 * fails, nothing is left behind. */
#include "common/err.h"
#include "kernels/cuda/fatbin.h"
#include "kernels/ops.h"
#include "tests/lib/draft_doubles.h"
#include "tests/lib/engine_drive.h"
#include "tests/lib/mock_engine.h"
#include "tests/lib/test.h"
#include "worker/engine/engine_impl.h"

#include <string.h>

#define EXPERTS                                                                                    \
    "--moe mixed --experts 11 --top-k 3 --widths 4,plain,2.5 --codebooks mul1 --hidden 128 "       \
    "--expert-width 128 --shared-width 128 --seed 4"
#define QUANTISED                                                                                  \
    "--widths 4,3.5,2,plain,8,5,1.5 --codebooks mul1,mcg,3inst --odd --head-width 6 --hidden 128 " \
    "--intermediate 256"

static const char *const models[] = {"", QUANTISED, EXPERTS};
enum { MODELS = 3 };

static const struct cuda_mock_config card;

// Fills beside decoding streams, a window of four rows of which two are kept, a cancel in a fill and one in decode.
static void run_all(struct engine *eng) {
    static struct reply replies[4];
    static uint32_t ids[4][300];
    struct drive d = {.eng = eng, .replies = replies, .replies_count = 4};
    uint64_t handles[4];
    struct err e = {0};
    memset(replies, 0, sizeof replies);
    for (uint32_t i = 0; i < 4; i++) {
        struct engine_request r =
            drive_request(ids[i], i == 2 ? 300 : 5 + i, i, engine_info(eng)->vocab_size, 40);
        r.tag = i;
        handles[i] = drive_submit(&d, &r);
        drive_step(&d);
    }
    CHECK(engine_cancel(eng, handles[2]));
    while (replies[3].count < 3) drive_step(&d);
    uint32_t window[4] = {replies[0].ids[replies[0].count - 1], 1, 2, 3};
    struct engine_window w = {.handle = handles[0], .ids = window, .count = 4, .keep = 2};
    CHECK_OK(engine_windows(eng, &w, 1, &e), e);
    CHECK(engine_cancel(eng, handles[1]));
    drive_all(&d);
    CHECK(replies[0].ended && replies[3].ended);
}

TEST(after_the_start_nothing_is_allocated_or_cleared_and_all_goes_to_one_stream) {
    for (int i = 0; i < MODELS; i++) {
        struct engine_config c = mock_engine(&card, models[i]);
        struct engine *eng = drive_open(&c);
        struct cuda_mock_counts at = cuda_mock_counts();
        CHECK_EQ_U64(at.allocs, 1);      // the arena
        CHECK_EQ_U64(at.host_allocs, 1); // staging
        CHECK_EQ_U64(at.streams, 1);
        for (int k = 0; k < 3; k++) run_all(eng);
        struct cuda_mock_counts now = cuda_mock_counts();
        CHECK_STR(now.wrong, "");
        CHECK_EQ_U64(now.allocs, at.allocs);
        CHECK_EQ_U64(now.host_allocs, at.host_allocs);
        CHECK_EQ_U64(now.memsets, at.memsets);
        CHECK_EQ_U64(now.streams, at.streams);
        CHECK_EQ_U64(now.device_bytes, at.device_bytes);
        CHECK(now.launches > at.launches && now.copies > at.copies);
        test_note("model %d: start %llu calls; rounds %llu launches, %llu copies", i,
                  (unsigned long long)at.calls, (unsigned long long)(now.launches - at.launches),
                  (unsigned long long)(now.copies - at.copies));
        engine_free(eng);
        now = cuda_mock_counts();
        CHECK_STR(now.wrong, "");
        CHECK_EQ_U64(now.device_bytes + now.pinned_bytes + now.handles, 0);
    }
}

// Launches of one round in which `streams` streams decode, as a hash; with its graph or without.
static uint64_t round_of(struct engine *eng, uint32_t streams, bool graphs,
                         uint64_t *ret_launches) {
    static uint32_t ids[4];
    struct engine_round round;
    struct err e = {0};
    uint64_t handles[4];
    const struct ops *ops = eng->graphs.ops;
    for (uint32_t i = 0; i < streams; i++) {
        struct engine_request r = drive_request(ids, 3, i, engine_info(eng)->vocab_size, 40);
        r.ignore_eos = true;
        CHECK_OK(engine_submit(eng, &r, &handles[i], &e), e);
    }
    for (int i = 0; i < 3; i++) CHECK_OK(engine_step(eng, &round, &e), e);
    eng->graphs.ops = graphs ? ops : NULL;
    cuda_mock_forget();
    struct cuda_mock_counts before = cuda_mock_counts(), after;
    CHECK_OK(engine_step(eng, &round, &e), e);
    after = cuda_mock_counts();
    eng->graphs.ops = ops;
    CHECK_EQ(round.rows, streams);
    CHECK_EQ_U64(after.graph_launches - before.graph_launches, graphs ? 1 : 0);
    CHECK_EQ_U64(after.syncs - before.syncs, 1); // the device is waited for once a round
    for (uint32_t i = 0; i < streams; i++) engine_cancel(eng, handles[i]);
    *ret_launches = after.launches - before.launches;
    return after.launched;
}

TEST(a_graph_makes_the_launches_that_a_round_without_it_makes) {
    for (int i = 0; i < MODELS; i++) {
        struct engine_config c = mock_engine(&card, models[i]);
        struct engine *eng = drive_open(&c);
        CHECK_EQ(engine_info(eng)->graphs, 4);
        for (uint32_t n = 1; n <= 4; n++) {
            uint64_t one, other;
            CHECK_EQ_U64(round_of(eng, n, true, &one), round_of(eng, n, false, &other));
            CHECK_EQ_U64(one, other);
            CHECK(one > 10);
        }
        CHECK_STR(cuda_mock_counts().wrong, "");
        engine_free(eng);
    }
}

// They must not take memory that the rest was promised: they are there before the card is asked what is left.
TEST(graphs_take_their_memory_before_the_card_is_asked_what_is_left) {
    enum { GRAPH = 5 << 20, GRAPHS = 4 };
    uint64_t blocks[2];
    for (int off = 0; off < 2; off++) {
        struct engine_config c = mock_engine(
            &(struct cuda_mock_config){.memory_bytes = 48 << 20, .graph_bytes = GRAPH}, "");
        c.graphs_off = off;
        c.context_max = 0; // as long as the card's memory allows
        struct engine *eng = drive_open(&c);
        struct cuda_mock_counts now = cuda_mock_counts();
        CHECK_EQ_U64(now.graphs, off ? 0 : GRAPHS);
        CHECK_EQ_U64(engine_info(eng)->graphs_bytes, off ? 0 : GRAPH * GRAPHS);
        blocks[off] = engine_info(eng)->kv_blocks_total;
        run_all(eng);
        CHECK_EQ_U64(cuda_mock_counts().device_bytes, now.device_bytes);
        CHECK_EQ_U64(cuda_mock_counts().graphs, now.graphs);
        CHECK_STR(cuda_mock_counts().wrong, "");
        engine_free(eng);
        CHECK_EQ_U64(cuda_mock_counts().device_bytes + cuda_mock_counts().handles, 0);
    }
    CHECK(blocks[0] < blocks[1]);
    test_note("%llu blocks beside graphs, %llu without", (unsigned long long)blocks[0],
              (unsigned long long)blocks[1]);
}

static int profile_all(struct engine *eng, struct engine_profile *p, struct err *e) {
    double speed = 0;
    int st = engine_copy_speed(eng, &speed, e);
    if (!st) st = engine_profile(eng, &(struct engine_shape){8, 4, 100}, p, e);
    return st;
}

TEST(a_profile_names_every_operation_and_leaves_the_engine_as_it_was) {
    static struct engine_profile p = {.apart = true};
    struct engine_config c = mock_engine(&card, models[2]);
    struct engine *eng = drive_open(&c);
    struct cuda_mock_counts before = cuda_mock_counts();
    struct err e = {0};
    CHECK_OK(profile_all(eng, &p, &e), e);
    uint64_t layers = engine_info(eng)->layers, norms = 0, experts = 0, linears = 0;
    for (uint32_t i = 0; i < p.count; i++) {
        if (!strcmp(p.ops[i].name, "rmsnorm")) norms = p.ops[i].calls;
        if (!strcmp(p.ops[i].name, "experts")) experts = p.ops[i].calls;
        if (!strncmp(p.ops[i].name, "linear ", 7)) linears += p.ops[i].bytes != 0;
        CHECK(p.ops[i].ms >= p.ops[i].calls);
    }
    uint64_t filled = cuda_mock_counts().memsets;
    p.as_it_is = true;
    CHECK_OK(engine_profile(eng, &(struct engine_shape){8, 4, 100}, &p, &e), e);
    CHECK_EQ_U64(cuda_mock_counts().memsets, filled);
    p.as_it_is = false;
    CHECK_EQ_U64(norms, layers + 1); // those before mixers go with the products behind them
    CHECK_EQ_U64(experts, layers);
    CHECK(linears > 3);
    struct cuda_mock_counts after = cuda_mock_counts();
    CHECK_STR(after.wrong, "");
    CHECK_EQ_U64(after.device_bytes, before.device_bytes);
    CHECK_EQ_U64(after.handles, before.handles);
    run_all(eng);
    engine_free(eng);
    for (uint64_t n = 1; n < 12000; n += 397) { // and whatever fails leaves nothing
        c = mock_engine(&(struct cuda_mock_config){.fail_call = before.calls + n}, models[2]);
        eng = drive_open(&c);
        int st = profile_all(eng, &p, &e);
        CHECK(st || cuda_mock_counts().calls <= before.calls + n); // the last call gives back
        engine_free(eng);
        CHECK_STR(cuda_mock_counts().wrong, "");
        CHECK_EQ_U64(cuda_mock_counts().device_bytes + cuda_mock_counts().handles, 0);
    }
}

static int parts_of_all(struct engine *eng, double ms[ENGINE_PARTS], struct err *e) {
    int st = engine_parts_begin(eng, e);
    if (st) return st;
    run_all(eng);
    return engine_parts_end(eng, ms, e);
}

TEST(parts_of_rounds_are_told_apart_and_leave_nothing) {
    struct engine_config c = mock_engine(&card, "");
    struct engine *eng = drive_open(&c);
    struct cuda_mock_counts before = cuda_mock_counts();
    double ms[ENGINE_PARTS], none[ENGINE_PARTS];
    struct err e = {0};
    CHECK_OK(parts_of_all(eng, ms, &e), e);
    CHECK(ms[ENGINE_PART_VERIFY] > 0 && ms[ENGINE_PART_DRAW] > 0 && ms[ENGINE_PART_HOST] > 0);
    CHECK(ms[ENGINE_PART_DRAFT] == 0);
    run_all(eng); // they are off
    CHECK_OK(engine_parts_begin(eng, &e), e);
    CHECK_OK(engine_parts_end(eng, none, &e), e);
    for (int i = 0; i < ENGINE_PARTS; i++) CHECK(none[i] == 0);
    struct cuda_mock_counts after = cuda_mock_counts();
    CHECK_STR(after.wrong, "");
    CHECK_EQ_U64(after.device_bytes, before.device_bytes);
    CHECK_EQ_U64(after.handles, before.handles);
    engine_free(eng);
    CHECK_EQ_U64(cuda_mock_counts().handles, 0);
}

// A launch that overlaps the one before reads what that has not written yet, unless its kernel waits. Code that the driver makes of
// the PTX does not, and older chips cannot.
TEST(launches_overlap_where_their_kernels_were_compiled_to_wait_and_nowhere_else) {
    const struct cuda_kernel *k = cuda_kernel_find("copy");
    const struct cuda_kernel_arch *on = k ? cuda_kernel_on(k, 90) : NULL;
    static const struct cuda_mock_config cards[] = {
        {.arch = {90, 227 << 10, 132}},
        {.arch = {90, 227 << 10, 132}, .from_ptx = true},
        {.arch = {80, 163 << 10, 108}},
        {.arch = {110, 227 << 10, 20}}, // nothing was compiled for it
    };
    for (size_t i = 0; i < sizeof cards / sizeof *cards; i++) {
        struct engine_config c = mock_engine(&cards[i], "");
        struct engine *eng = drive_open(&c);
        run_all(eng);
        CHECK_EQ(cuda_mock_counts().early_launches > 0, i == 0 && on && on->waits);
        CHECK_STR(cuda_mock_counts().wrong, "");
        engine_free(eng);
    }
}

// The checkpoint's own head and copies: their tables, candidates and hidden rows go the same ways as the rounds'.
TEST(drafters_allocate_nothing_in_a_round_and_leave_nothing) {
    struct engine_config c = mock_engine(&card, "--mtp");
    c.drafter = "auto";
    struct engine *eng = drive_open(&c);
    const struct engine_info *info = engine_info(eng);
    CHECK_STR(info->drafter, "mtp");
    CHECK_EQ(info->graphs,
             info->streams_max + info->draft_rows - 1); // windows of two rows and more
    struct cuda_mock_counts at = cuda_mock_counts();
    static uint32_t ids[40];
    for (uint32_t k = 0; k < 3; k++) {
        struct engine_request r = drive_request(ids, 40, k, info->vocab_size, 60);
        struct reply reply;
        r.draft = true;
        r.logits_hash = k == 1;
        drive_alone(eng, &r, &reply);
        CHECK(reply.ended);
        if (k != 1) CHECK(reply.drafted[ENGINE_DRAFT_MTP] + reply.drafted[ENGINE_DRAFT_COPY] > 0);
    }
    struct cuda_mock_counts now = cuda_mock_counts();
    CHECK_STR(now.wrong, "");
    CHECK_EQ_U64(now.allocs, at.allocs);
    CHECK_EQ_U64(now.graphs, at.graphs);
    CHECK(now.graph_launches > at.graph_launches);
    engine_free(eng);
    CHECK_EQ_U64(cuda_mock_counts().device_bytes + cuda_mock_counts().handles, 0);
}

// A window and a branch beside it are a graph too; the branch's pages are copied in both directions and belong to the arena.
TEST(branches_allocate_nothing_in_a_round_and_leave_nothing) {
    static struct draft_double d;
    static uint32_t ids[40];
    struct drafter own = double_drafter(&d, DOUBLE_LIES, 300);
    struct engine_config c = mock_engine(&card, "");
    c.drafter = "auto";
    c.own_drafter = &own;
    struct engine *eng = drive_open(&c);
    const struct engine_info *info = engine_info(eng);
    CHECK_EQ(info->graphs, info->streams_max + info->draft_rows - 1 + info->draft_rows - 3);
    struct cuda_mock_counts at = cuda_mock_counts();
    uint32_t branches = 0;
    struct reply reply = {0};
    struct engine_request r = drive_request(ids, 40, 1, info->vocab_size, 60);
    r.draft = true;
    struct drive drive = {.eng = eng, .replies = &reply, .replies_count = 1};
    drive_submit(&drive, &r);
    while (!engine_idle(eng)) {
        drive_step(&drive);
        branches += eng->round.runs_count == 2;
    }
    struct cuda_mock_counts now = cuda_mock_counts();
    CHECK(reply.ended && branches > 0 && reply.accepted[ENGINE_DRAFT_COPY] > 0);
    CHECK_STR(now.wrong, "");
    CHECK_EQ_U64(now.allocs, at.allocs);
    CHECK_EQ_U64(now.graphs, at.graphs);
    CHECK(now.graph_launches >= at.graph_launches + branches);
    uint64_t bytes = 0;
    for (uint32_t k = 0; k < info->regions_count; k++)
        if (!strcmp(info->regions[k].name, "kv blocks of branches")) bytes = info->regions[k].bytes;
    CHECK_EQ_U64(bytes, info->kv_bytes / info->kv_blocks_total * 2 * info->streams_max);
    engine_free(eng);
    CHECK_EQ_U64(cuda_mock_counts().device_bytes + cuda_mock_counts().handles, 0);
}

static struct ops_work (*need)(void *ctx);

static struct ops_work need_counters(void *ctx) {
    struct ops_work w = need(ctx);
    w.counter_bytes += 4096;
    return w;
}

// As if an operation counted its blocks, which none does yet.
static void add_counters(void *arg, struct ops *o) {
    need = o->work_need;
    o->work_need = need_counters;
}

// The counters of split sums grow once, at load: one memset, on the stream that the launches go to.
TEST(counters_are_cleared_once_when_they_grow_on_the_engines_stream) {
    for (int i = 0; i < MODELS; i++) {
        struct engine_config c = mock_engine(&card, models[i]);
        c.on_ops = add_counters;
        struct engine *eng = drive_open(&c);
        const struct engine_info *info = engine_info(eng);
        uint64_t grown = 0;
        for (uint32_t k = 0; k < info->regions_count; k++)
            grown += !strcmp(info->regions[k].name, "split-K counters");
        CHECK_EQ_U64(grown, 1);
        CHECK_EQ_U64(cuda_mock_counts().memsets, grown);
        run_all(eng);
        struct cuda_mock_counts now = cuda_mock_counts();
        CHECK_EQ_U64(now.memsets, grown);
        CHECK(now.memset_stream == now.launch_stream);
        engine_free(eng);
    }
}

TEST(whatever_call_fails_at_the_start_nothing_is_left_behind) {
    for (int i = 0; i < MODELS; i++) {
        uint64_t n = 0, survived = 0;
        for (bool failed = true; failed;) {
            struct engine *eng = NULL;
            struct err e = {0};
            struct engine_config c =
                mock_engine(&(struct cuda_mock_config){.fail_call = ++n}, models[i]);
            int st = engine_new(&eng, &c, &e);
            struct cuda_mock_counts now = cuda_mock_counts();
            CHECK_STR(now.wrong, "");
            failed = now.calls >= n;
            survived += failed && !st;
            if (st) {
                CHECK(eng == NULL && e.msg[0]);
                if (now.device_bytes + now.pinned_bytes + now.handles)
                    test_fail(
                        __FILE__, __LINE__,
                        "call %llu failed (%s): %llu device bytes, %llu pinned, %llu handles left",
                        (unsigned long long)n, e.msg, (unsigned long long)now.device_bytes,
                        (unsigned long long)now.pinned_bytes, (unsigned long long)now.handles);
            }
            engine_free(eng);
        }
        CHECK(n > 60);             // it took many calls to start, and each has failed once
        CHECK_EQ_U64(survived, 1); // an arena that is not to be had is tried with less
        test_note("model %d: %llu calls, each failed once", i, (unsigned long long)n - 1);
    }
}

// A device that fails in a round ends the engine with one error, for good, and it can still be taken down.
TEST(a_call_that_fails_in_a_round_ends_the_engine_and_leaves_nothing) {
    struct engine_config c = mock_engine(&card, "");
    struct engine *eng = drive_open(&c);
    uint64_t start = cuda_mock_counts().calls;
    engine_free(eng);
    for (uint64_t n = 1; n < 60; n += 7) {
        static uint32_t ids[20];
        c = mock_engine(&(struct cuda_mock_config){.fail_call = start + n}, "");
        eng = drive_open(&c);
        struct engine_request r = drive_request(ids, 20, 1, engine_info(eng)->vocab_size, 40);
        struct engine_round round;
        struct err e = {0};
        uint64_t handle;
        int st = engine_submit(eng, &r, &handle, &e);
        for (int i = 0; !st && i < 40; i++) st = engine_step(eng, &round, &e);
        CHECK_EQ(st, ST_DEVICE);
        CHECK_HAS(e.msg, "Mock GPU");
        CHECK_EQ(engine_step(eng, &round, &e), ST_DEVICE);
        engine_free(eng);
        CHECK_EQ_U64(cuda_mock_counts().device_bytes + cuda_mock_counts().pinned_bytes, 0);
    }
}

// The mock must see what it is there to see.
TEST(work_on_the_legacy_stream_and_memory_given_back_twice_are_caught) {
    struct cuda_driver d;
    cu_ptr p;
    cuda_mock_open(&d, &card);
    CHECK_EQ(d.mem_alloc(&p, 4096), CU_SUCCESS);
    CHECK_NE(d.set_words(p, 0, 16, NULL), CU_SUCCESS);
    CHECK_HAS(cuda_mock_counts().wrong, "legacy stream");
    cuda_mock_open(&d, &card);
    CHECK_EQ(d.mem_alloc(&p, 4096), CU_SUCCESS);
    CHECK_EQ(d.mem_free(p), CU_SUCCESS);
    CHECK_NE(d.mem_free(p), CU_SUCCESS);
    CHECK_HAS(cuda_mock_counts().wrong, "not live");
}
