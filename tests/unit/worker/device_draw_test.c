/* Tokens that the device draws are those that the host would: the engine over the kernels' twins, each request once with
 * the hash of its logits, which needs them on the host, and once without. */
#include "common/err.h"
#include "kernels/ops.h"
#include "tests/lib/draft_doubles.h"
#include "tests/lib/engine_drive.h"
#include "tests/lib/ops_ref.h"
#include "tests/lib/test.h"
#include "tests/lib/tiny_model.h"
#include "worker/engine/engine_impl.h"

#include <unistd.h>

enum { PROMPT = 40, TOKENS = 24, DRAWN = 4, BEST = 7, REQUESTS = 10 };

// Those below DRAWN are drawn on the device, those below BEST from a row's best ids, the others from whole rows.
static const struct sample_params settings[REQUESTS] = {
    {.top_p = 1},
    {.temperature = 1, .top_p = 1},
    {.temperature = 1, .top_p = 1, .min_p = 0.02},
    {.temperature = 1, .top_p = 1, .top_k = 1},
    {.temperature = 1.5, .top_p = 1, .top_k = 7},
    {.temperature = 1, .top_p = 0.8, .top_k = 20},
    {.temperature = 0.7, .top_p = 0.95, .min_p = 0.01, .top_k = 32},
    {.temperature = 1, .top_p = 1, .top_k = 33},
    {.temperature = 1, .top_p = 0.9},
    {.temperature = 1, .top_p = 0.9, .top_k = 20, .presence = 1},
};

static struct {
    void (*draw)(void *ctx, const struct draw_args *a); // the twin's
    void (*top)(void *ctx, const struct draft_top_args *a);
    uint32_t calls, tops;
} device;

static void count_draw(void *ctx, const struct draw_args *a) {
    device.calls++;
    device.draw(ctx, a);
}

static void count_top(void *ctx, const struct draft_top_args *a) {
    device.tops++;
    device.top(ctx, a);
}

static void use_twins(void *arg, struct ops *o) {
    ops_ref_put(o);
    device.draw = o->draw;
    device.top = o->draft_top;
    o->draw = count_draw;
    o->draft_top = count_top;
}

static struct engine *open_engine(void) {
    struct engine_config config = {.model_dir = tiny_model(""),
                                   .backend = "cpu",
                                   .on_ops = use_twins,
                                   .threads = 1,
                                   .streams_max = 3,
                                   .context_max = 256};
    return drive_open(&config);
}

static struct engine_request request_of(struct engine *eng, uint32_t *ids, uint32_t kind) {
    struct engine_request r =
        drive_request(ids, PROMPT, kind, engine_info(eng)->vocab_size, TOKENS);
    r.sampling = settings[kind];
    r.sampling.repetition = 1;
    r.sampling.seed = 11 * kind;
    return r;
}

static void run_alone(struct engine *eng, uint32_t kind, bool hash, struct reply *ret) {
    uint32_t ids[PROMPT];
    struct engine_request r = request_of(eng, ids, kind);
    r.logits_hash = hash;
    device.calls = device.tops = 0;
    drive_alone(eng, &r, ret);
    CHECK_EQ(device.calls > 0, !hash && kind < DRAWN);
    CHECK_EQ(device.tops > 0, !hash && kind >= DRAWN && kind < BEST);
}

TEST(a_token_drawn_by_the_device_is_the_one_that_the_host_draws) {
    struct engine *eng = open_engine();
    for (uint32_t kind = 0; kind < REQUESTS; kind++) {
        struct reply host, dev;
        run_alone(eng, kind, true, &host);
        run_alone(eng, kind, false, &dev);
        CHECK_EQ(host.count, TOKENS);
        CHECK_EQ(dev.count, host.count);
        CHECK_MEM(dev.ids, host.ids, TOKENS * sizeof *host.ids);
    }
    engine_free(eng);
}

// Streams of one round, some of which the device cannot draw for: whoever draws, the tokens stay.
TEST(who_else_is_in_the_round_changes_no_token) {
    struct engine *eng = open_engine();
    enum { GROUPS = 4 };
    static const uint32_t kinds[GROUPS][3] = {{0, 1, 2}, {1, 4, 3}, {5, 4, 6}, {5, 8, 0}};
    for (uint32_t g = 0; g < GROUPS; g++) {
        struct reply together[3] = {0}, alone;
        struct drive d = {.eng = eng, .replies = together, .replies_count = 3};
        uint32_t ids[3][PROMPT];
        for (uint32_t i = 0; i < 3; i++) {
            struct engine_request r = request_of(eng, ids[i], kinds[g][i]);
            r.logits_hash = false;
            r.tag = i;
            drive_submit(&d, &r);
        }
        drive_all(&d);
        CHECK(d.shared_rounds > 0);
        for (uint32_t i = 0; i < 3; i++) {
            run_alone(eng, kinds[g][i], false, &alone);
            CHECK_EQ(together[i].count, alone.count);
            CHECK_MEM(together[i].ids, alone.ids, alone.count * sizeof *alone.ids);
        }
    }
    engine_free(eng);
}

// Ids that are not in use stand between those that are; too many gaps for the device leave the draw to the host.
TEST(the_best_ids_are_those_in_use) {
    struct engine *eng = open_engine();
    enum { GAPS = 20 };
    struct engine_range used[GAPS];
    struct err e = {0};
    for (uint32_t n = 3; n <= GAPS; n += GAPS - 3) {
        for (uint32_t i = 0; i < n; i++) used[i] = (struct engine_range){3 + 12 * (n - i), 9};
        CHECK_OK(engine_set_vocab(eng, used, n, NULL, 0, &e), e);
        struct reply host, dev;
        uint32_t ids[PROMPT];
        struct engine_request r = request_of(eng, ids, 5);
        drive_alone(eng, &r, &host);
        r.logits_hash = false;
        device.tops = 0;
        drive_alone(eng, &r, &dev);
        CHECK_EQ(device.tops > 0, n == 3);
        CHECK_EQ(dev.count, host.count);
        CHECK_MEM(dev.ids, host.ids, host.count * sizeof *host.ids);
        for (uint32_t i = 0; i < dev.count; i++)
            CHECK(dev.ids[i] >= 15 && (dev.ids[i] - 3) % 12 < 9 && dev.ids[i] < 3 + 12 * n + 9);
    }
    engine_free(eng);
}

// Few ids in use: text that repeats itself, so that copies go as branches beside a double's blocks. Rows of both are drawn from
// where the logits are, and those that stand are the same.
TEST(a_branch_that_the_device_draws_from_gives_the_tokens_of_the_host) {
    enum { LONG = 150 };
    static const struct sample_params mine[] = {{.temperature = 1, .top_p = 1},
                                                {.temperature = 1.5, .top_p = 1, .top_k = 2}};
    static const struct engine_range used = {20, 2};
    static struct draft_double d;
    static struct reply host, dev;
    const char *dir = tiny_model("");
    struct drafter own = double_drafter(&d, DOUBLE_LIES, 300);
    struct engine_config config = {.model_dir = dir,
                                   .backend = "cpu",
                                   .on_ops = use_twins,
                                   .threads = 1,
                                   .streams_max = 1,
                                   .context_max = 256,
                                   .drafter = "auto",
                                   .own_drafter = &own,
                                   .draft_rows = 24,
                                   .costs = double_free_costs(dir)};
    struct engine *eng = drive_open(&config);
    struct err e = {0};
    CHECK_OK(engine_set_vocab(eng, &used, 1, NULL, 0, &e), e);
    for (uint32_t kind = 0; kind < 2; kind++) {
        uint32_t ids[PROMPT], branches = 0;
        struct engine_request r = request_of(eng, ids, kind);
        r.max_tokens = LONG;
        r.sampling = mine[kind];
        r.sampling.repetition = 1;
        drive_alone(eng, &r, &host);
        r.logits_hash = false;
        r.draft = true;
        dev = (struct reply){0};
        device.calls = device.tops = 0;
        struct drive drive = {.eng = eng, .replies = &dev, .replies_count = 1};
        drive_submit(&drive, &r);
        while (!engine_idle(eng)) {
            drive_step(&drive);
            branches += eng->round.runs_count == 2;
        }
        CHECK(device.calls + device.tops > 0);
        CHECK_EQ(dev.count, LONG);
        CHECK_MEM(dev.ids, host.ids, LONG * sizeof *host.ids);
        test_note("%u branches, %llu of %llu copied ids kept", branches,
                  (unsigned long long)dev.accepted[ENGINE_DRAFT_COPY],
                  (unsigned long long)dev.drafted[ENGINE_DRAFT_COPY]);
        CHECK(branches > 3 && dev.accepted[ENGINE_DRAFT_COPY] > 3);
    }
    unlink(config.costs);
    engine_free(eng);
}

// A row of NaN gives the device nothing to draw from, and it draws something all the same.
TEST(logits_that_are_no_numbers_end_a_stream_that_the_device_draws_for) {
    enum { NAN_ID = 7 };
    struct engine_config config = {.model_dir = tiny_model("--untied --nan-id 7"),
                                   .backend = "cpu",
                                   .on_ops = use_twins,
                                   .threads = 1,
                                   .streams_max = 3,
                                   .context_max = 256};
    struct engine *eng = drive_open(&config);
    uint32_t seen = 0;
    for (uint32_t kind = 0; kind < BEST; kind++)
        for (uint32_t sick = 0; sick < 2; sick++) {
            uint32_t ids[PROMPT];
            struct reply host, dev;
            struct engine_request r = request_of(eng, ids, kind);
            for (uint32_t i = 0; i < PROMPT; i++) ids[i] += ids[i] == NAN_ID;
            if (sick) ids[5] = NAN_ID;
            r.logits_hash = true;
            drive_alone(eng, &r, &host);
            r.logits_hash = false;
            device.calls = device.tops = 0;
            drive_alone(eng, &r, &dev);
            CHECK(device.calls + device.tops > 0);
            CHECK_EQ(dev.finish, host.finish);
            CHECK_EQ(dev.count, host.count);
            CHECK_MEM(dev.ids, host.ids, host.count * sizeof *host.ids);
            if (sick) CHECK_EQ(dev.finish, ENGINE_FINISH_BROKEN);
            if (sick) CHECK_EQ(dev.count, 0);
            seen += !sick && dev.finish == ENGINE_FINISH_LENGTH;
        }
    CHECK(seen > 0);
    engine_free(eng);
}
