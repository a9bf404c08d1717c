/* The engine on a real GPU: where the embedding goes when the card is full to the last page, that rounds take no memory, and
 * that counters are 0 whenever nothing runs. MODEL: the demo. */
#include "common/err.h"
#include "kernels/cuda/driver.h"
#include "tests/lib/draft_doubles.h"
#include "tests/lib/engine_drive.h"
#include "tests/lib/test.h"
#include "tests/lib/tiny_model.h"
#include "worker/engine/engine_impl.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

// 12 MiB of rows: some pages of the card's memory.
#define UNTIED "--vocab 24000 --hidden 256 --untied"
enum { MIB = 1 << 20, STEP = 2 * MIB, REPLIES = 4, MODELS = 3 };

// Plain, EXL3 of many widths, experts of several forms.
static const char *const models[MODELS] = {
    "",
    "--widths 4,3.5,2,plain,8,5,1.5 --codebooks mul1,mcg,3inst --odd --head-width 6 --hidden 128 "
    "--intermediate 256",
    "--moe mixed --experts 11 --top-k 3 --widths 4,plain,2.5 --codebooks mul1 --hidden 128 "
    "--expert-width 128 --shared-width 128 --seed 4"};

static struct cuda_driver driver;

static void open_driver(void) {
    static bool open;
    struct err e = {0};
    if (!open) CHECK_OK(cuda_driver_open(&driver, &e), e);
    open = true;
}

static struct engine_config config_of(const char *model, const char *embedding) {
    open_driver();
    return (struct engine_config){.model_dir = model,
                                  .backend = "cuda",
                                  .driver = &driver,
                                  .embedding = embedding,
                                  .context_max = 512,
                                  .threads = 2};
}

// A context of the test's own, which outlives the engines', so that fillers and free bytes are seen on one card.
struct card {
    cu_ctx ctx;
    cu_ptr filler;
};

static uint64_t free_bytes(void) {
    size_t left = 0, total = 0;
    CHECK_EQ(driver.mem_info(&left, &total), CU_SUCCESS);
    return left;
}

static void card_open(struct card *c) {
    cu_device d;
    open_driver();
    memset(c, 0, sizeof *c);
    CHECK_EQ(driver.device_get(&d, 0), CU_SUCCESS);
    CHECK_EQ(driver.ctx_retain(&c->ctx, d), CU_SUCCESS);
    CHECK_EQ(driver.ctx_set(c->ctx), CU_SUCCESS);
}

static void card_close(struct card *c) {
    if (c->filler) driver.mem_free(c->filler);
    driver.ctx_release(0);
}

// Takes all but `room` bytes.
static void card_fill(struct card *c, uint64_t room) {
    if (c->filler) driver.mem_free(c->filler);
    c->filler = 0;
    uint64_t left = free_bytes();
    CHECK(left > room);
    CHECK_EQ(driver.mem_alloc(&c->filler, left - room), CU_SUCCESS);
}

struct answer {
    int st;
    bool mapped;
    struct reply reply;
};

static struct answer ask(const char *embedding) {
    static uint32_t ids[200];
    struct answer a = {0};
    struct engine *eng = NULL;
    struct err e = {0};
    struct engine_config c = config_of(tiny_model(UNTIED), embedding);
    a.st = engine_new(&eng, &c, &e);
    if (a.st) {
        if (a.st != ST_NOMEM) test_fail(__FILE__, __LINE__, "%s", e.msg);
        return a;
    }
    a.mapped = strstr(engine_info(eng)->embedding_rule, "host memory") != NULL;
    struct engine_request r = drive_request(ids, 200, 7, engine_info(eng)->vocab_size, 30);
    drive_alone(eng, &r, &a.reply);
    engine_free(eng);
    return a;
}

// The smallest room, in steps of 2 MiB, where `embedding` starts at all.
static uint64_t least_room(struct card *c, const char *embedding) {
    uint64_t low = 0, high = 256; // in steps
    while (low + 1 < high) {
        uint64_t mid = (low + high) / 2;
        card_fill(c, mid * STEP);
        if (ask(embedding).st)
            low = mid;
        else
            high = mid;
    }
    return high;
}

TEST(auto_maps_the_rows_if_and_only_if_card_refuses_and_tokens_are_equal) {
    struct card c;
    card_open(&c);
    ask("card"); // what a first start takes of the card is taken now
    uint64_t card = least_room(&c, "card"), host = least_room(&c, "auto");
    test_note("card from %llu MiB, auto from %llu MiB of room", (unsigned long long)card * 2,
              (unsigned long long)host * 2);
    CHECK(host < card);
    struct answer first = {0};
    for (uint64_t room = host > 2 ? host - 2 : 0; room <= card + 3; room++) {
        card_fill(&c, room * STEP);
        struct answer on = ask("card"), by_itself = ask("auto");
        CHECK_EQ(on.st != ST_OK, room < card);
        CHECK_EQ(by_itself.st != ST_OK, room < host);
        if (by_itself.st) continue;
        CHECK_EQ(by_itself.mapped, on.st != ST_OK);
        if (!first.reply.count) first = by_itself;
        check_same_reply(&first.reply, &by_itself.reply);
        if (!on.st) check_same_reply(&first.reply, &on.reply);
    }
    card_close(&c);
}

static void crowd(struct engine *eng, uint32_t salt, uint32_t tokens) {
    static struct reply replies[REPLIES];
    static uint32_t ids[REPLIES][120];
    struct drive d = {.eng = eng, .replies = replies, .replies_count = REPLIES};
    uint64_t handles[REPLIES];
    memset(replies, 0, sizeof replies);
    for (uint32_t i = 0; i < REPLIES; i++) {
        struct engine_request r = drive_request(ids[i], 1 + (salt * 37 + i * 29) % 120, salt + i,
                                                engine_info(eng)->vocab_size, tokens);
        r.tag = i;
        handles[i] = drive_submit(&d, &r);
        drive_step(&d);
    }
    engine_cancel(eng, handles[salt % REPLIES]);
    drive_all(&d);
}

TEST(free_memory_does_not_move_by_a_byte_in_a_hundred_rounds) {
    struct engine_config c = config_of(demo_model(), "auto");
    c.memory_fraction = 0.1;
    struct engine *eng = drive_open(&c);
    uint64_t before = free_bytes();
    for (uint32_t i = 0; i < 4; i++) crowd(eng, i, 40);
    CHECK(eng->rounds >= 100);
    CHECK_EQ_U64(free_bytes(), before);
    engine_free(eng);
}

// Streams that decode side by side, by the greatest logit and drawn, on the device and on the host.
static void talk(struct engine *eng, struct reply *replies) {
    static uint32_t ids[REPLIES][120];
    struct drive d = {.eng = eng, .replies = replies, .replies_count = REPLIES};
    for (uint32_t i = 0; i < REPLIES; i++) {
        struct engine_request r =
            drive_request(ids[i], 20 + i * 25, i, engine_info(eng)->vocab_size, 60);
        if (i == 1) drive_sampled(&r, 5);
        r.logits_hash = i != 2;
        r.draft = true;
        r.tag = i;
        drive_submit(&d, &r);
        for (int k = 0; k < 8; k++) drive_step(&d);
    }
    drive_all(&d);
}

// Dead rows and memory that nobody wrote are NaN, between all operations of all rounds: one read of them would show.
TEST(memory_that_nobody_may_read_is_never_read_dense_and_moe) {
    static const char *const trained[] = {"demo", "demo-exl3", "demo-moe-exl3"};
    static struct reply plain[REPLIES], spoiled[REPLIES];
    char path[TINY_MODEL_PATH_BYTES];
    for (int i = 0; i < MODELS + 3; i++) {
        const char *dir =
            i < MODELS ? tiny_model(models[i]) : demo_model_of(trained[i - MODELS], path);
        struct engine_config c = config_of(dir, "auto");
        c.memory_fraction = 0.01;
        for (int spoil = 0; spoil < 2; spoil++) {
            c.spoil_dead = spoil;
            struct engine *eng = drive_open(&c);
            talk(eng, spoil ? spoiled : plain);
            engine_free(eng);
        }
        for (uint32_t k = 0; k < REPLIES; k++) check_same_reply(&plain[k], &spoiled[k]);
    }
}

// Logits of a window of each width that has a graph, of which one row is kept.
static void windows(struct engine *eng, uint64_t *ret_hash) {
    static struct reply reply;
    static uint32_t ids[30];
    struct drive d = {.eng = eng, .replies = &reply, .replies_count = 1};
    uint32_t vocab = engine_info(eng)->vocab_size, window[ENGINE_WINDOW_ROWS_MAX];
    float *logits = calloc((size_t)ENGINE_WINDOW_ROWS_MAX * vocab, sizeof *logits);
    struct engine_request r = drive_request(ids, 30, 9, vocab, 200);
    uint64_t handle = drive_submit(&d, &r);
    struct err e = {0};
    while (!reply.count) drive_step(&d);
    *ret_hash = 0;
    for (uint32_t n = 1; n <= 16; n++) {
        drive_step(&d);
        window[0] = reply.ids[reply.count - 1];
        for (uint32_t i = 1; i < n; i++) window[i] = (i * 11 + n) % vocab;
        struct engine_window w = {
            .handle = handle, .ids = window, .count = n, .keep = n > 3 ? 1 : 0, .ret = logits};
        CHECK_OK(engine_windows(eng, &w, 1, &e), e);
        for (uint32_t i = 0; i < n; i++)
            *ret_hash = sample_hash_row(*ret_hash, logits + (size_t)i * vocab, vocab);
    }
    engine_cancel(eng, handle);
    free(logits);
}

TEST(rounds_launched_by_one_call_have_the_bits_of_those_launched_one_by_one) {
    static struct reply on[REPLIES], off[REPLIES];
    for (int i = 0; i < MODELS; i++) {
        struct engine_config c = config_of(tiny_model(models[i]), "auto");
        c.memory_fraction = 0.1;
        c.drafter = "auto";
        c.draft_kinds = "copy";
        struct engine *eng = drive_open(&c);
        const struct engine_info *info = engine_info(eng);
        CHECK(info->graphs > 0);
        test_note("model %d: %u graphs, %.1f MiB, %u rows of windows", i, info->graphs,
                  (double)info->graphs_bytes / MIB, info->draft_rows);
        talk(eng, on);
        uint64_t hash, other;
        windows(eng, &hash);
        engine_free(eng);
        c.graphs_off = true;
        eng = drive_open(&c);
        CHECK_EQ(engine_info(eng)->graphs, 0);
        talk(eng, off);
        windows(eng, &other);
        engine_free(eng);
        CHECK_EQ_U64(hash, other);
        for (uint32_t k = 0; k < REPLIES; k++) check_same_reply(&on[k], &off[k]);
    }
}

// Few ids in use, so that the text repeats itself and short copies go as branches beside a double's blocks: the device or the host
// draws, in one call or operation by operation, and the ids are those of a reply without drafts.
TEST(branches_give_the_ids_of_plain_decoding_whoever_draws_and_however_they_are_launched) {
    enum { PROMPT = 30, TOKENS = 150, DRAFT_ROWS = 24 };
    static const struct sample_params settings[] = {{.temperature = 1, .top_p = 1},
                                                    {.temperature = 1.5, .top_p = 1, .top_k = 2}};
    static const struct engine_range used = {20, 2};
    static struct draft_double d;
    static struct reply plain, got;
    const char *dir = tiny_model(""), *costs = double_free_costs(dir);
    struct drafter own = double_drafter(&d, DOUBLE_LIES, 300);
    for (uint32_t kind = 0; kind < 8; kind++) {
        uint32_t ids[PROMPT], branches = 0;
        struct engine_config c = config_of(dir, "auto");
        c.memory_fraction = 0.1;
        c.streams_max = 1;
        c.drafter = "auto";
        c.own_drafter = &own;
        c.draft_rows = DRAFT_ROWS;
        c.costs = costs;
        c.graphs_off = kind & 1;
        struct engine *eng = drive_open(&c);
        struct err e = {0};
        CHECK_OK(engine_set_vocab(eng, &used, 1, NULL, 0, &e), e);
        CHECK_EQ(eng->graphs.branch[12] != NULL, !c.graphs_off);
        struct engine_request r = drive_request(ids, PROMPT, 3, 300, TOKENS);
        r.sampling = settings[kind >> 2];
        r.sampling.repetition = 1;
        r.sampling.seed = 7;
        if (!(kind & 3)) drive_alone(eng, &r, &plain);
        r.logits_hash = kind & 2;
        r.draft = true;
        got = (struct reply){0};
        struct drive drive = {.eng = eng, .replies = &got, .replies_count = 1};
        drive_submit(&drive, &r);
        while (!engine_idle(eng)) {
            drive_step(&drive);
            branches += eng->round.runs_count == 2;
        }
        CHECK_EQ(got.count, TOKENS);
        CHECK_MEM(got.ids, plain.ids, TOKENS * sizeof *got.ids);
        if (r.logits_hash) CHECK_EQ_U64(got.hash, plain.hash);
        test_note("%u branches, %llu of %llu copied ids kept", branches,
                  (unsigned long long)got.accepted[ENGINE_DRAFT_COPY],
                  (unsigned long long)got.drafted[ENGINE_DRAFT_COPY]);
        CHECK(branches > 3 && got.accepted[ENGINE_DRAFT_COPY] > 3);
        engine_free(eng);
    }
    unlink(costs);
}

// Any length from any place to any other, and what stands around it.
TEST(copies_on_the_device_move_every_byte_and_no_other) {
    enum { ROOM = 3 * MIB, EDGE = 64 };
    static const uint32_t lengths[] = {1,    3,    4,     15,  16,       17,
                                       4096, 4097, 65536, MIB, MIB + 16, MIB + 5};
    static const uint32_t places[] = {0, 1, 4, 16};
    unsigned char *want = malloc(ROOM), *got = malloc(ROOM);
    struct ops o;
    struct err e = {0};
    devptr p;
    open_driver();
    CHECK_OK(ops_cuda_open(&o, &(struct ops_cuda_config){.driver = &driver}, &e), e);
    CHECK_OK(o.alloc(o.ctx, ROOM, "room", &p, &e), e);
    for (uint32_t i = 0; i < sizeof lengths / sizeof *lengths; i++)
        for (uint32_t k = 0; k < 16; k++) {
            uint32_t n = lengths[i], from = EDGE + places[k % 4], to = ROOM / 2 + places[k / 4];
            for (uint32_t b = 0; b < ROOM; b++) want[b] = (unsigned char)(b * 7 + b / 251 + i + k);
            o.write(o.ctx, p, want, ROOM);
            o.copy(o.ctx, p + to, p + from, n);
            memcpy(want + to, want + from, n);
            struct ops_piece back[] = {{got, p, to}, {got + to, p + to, ROOM - to}, {got, p, 0}};
            o.read_pieces(o.ctx, back, 3);
            CHECK_OK(o.sync(o.ctx, &e), e);
            if (memcmp(want, got, ROOM))
                test_fail(__FILE__, __LINE__, "%u bytes from %u to %u: not as on the host", n, from,
                          to);
        }
    o.free(o.ctx, p, ROOM);
    ops_close(&o);
    free(want);
    free(got);
}

static uint64_t counters_set(struct engine *eng) {
    uint64_t n = eng->model.work.counter_bytes, set = 0;
    unsigned char *b = calloc(1, n + 1);
    struct err e = {0};
    eng->ops.read(eng->ops.ctx, b, eng->model.work_counters, n);
    CHECK_OK(eng->ops.sync(eng->ops.ctx, &e), e);
    for (uint64_t i = 0; i < n; i++) set += b[i] != 0;
    free(b);
    return set;
}

TEST(after_a_thousand_rounds_cancels_and_prompts_every_counter_is_0) {
    for (int i = 0; i < MODELS; i++) {
        struct engine_config c = config_of(tiny_model(models[i]), "auto");
        c.memory_fraction = 0.1;
        struct engine *eng = drive_open(&c);
        uint32_t crowds = 0;
        for (; eng->rounds < 1000; crowds++) crowd(eng, crowds, 60);
        CHECK_EQ_U64(counters_set(eng), 0);
        test_note("%llu rounds, %u cancels: %llu bytes of counters, all 0",
                  (unsigned long long)eng->rounds, crowds,
                  (unsigned long long)eng->model.work.counter_bytes);
        engine_free(eng);
    }
}
