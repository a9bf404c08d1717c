/* Tokens that the device draws are those that the host would: the engine over the kernels' twins, each request once with
 * the hash of its logits, which needs them on the host, and once without. */
#include "kernels/ops.h"
#include "tests/lib/engine_drive.h"
#include "tests/lib/ops_ref.h"
#include "tests/lib/test.h"
#include "tests/lib/tiny_model.h"

enum { PROMPT = 40, TOKENS = 24, REQUESTS = 5 };

static struct {
    void (*draw)(void *ctx, const struct draw_args *a); // the twin's
    uint32_t calls;
} device;

static void count_draw(void *ctx, const struct draw_args *a) {
    device.calls++;
    device.draw(ctx, a);
}

static void use_twins(void *arg, struct ops *o) {
    ops_ref_put(o);
    device.draw = o->draw;
    o->draw = count_draw;
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

// Greedy, warm, with min_p, of the best one alone; and one that the device leaves to the host.
static struct engine_request request_of(struct engine *eng, uint32_t *ids, uint32_t kind) {
    struct engine_request r =
        drive_request(ids, PROMPT, kind, engine_info(eng)->vocab_size, TOKENS);
    if (!kind) return r;
    r.sampling.temperature = kind == 4 ? 1.5 : 1;
    r.sampling.seed = 11 * kind;
    r.sampling.min_p = kind == 2 ? 0.02 : 0;
    r.sampling.top_k = kind == 3 ? 1 : kind == 4 ? 7 : 0;
    return r;
}

static void run_alone(struct engine *eng, uint32_t kind, bool hash, struct reply *ret) {
    uint32_t ids[PROMPT];
    struct engine_request r = request_of(eng, ids, kind);
    r.logits_hash = hash;
    device.calls = 0;
    drive_alone(eng, &r, ret);
    CHECK_EQ(device.calls > 0, !hash && kind < 4);
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
    static const uint32_t kinds[2][3] = {{0, 1, 2}, {1, 4, 3}};
    for (uint32_t g = 0; g < 2; g++) {
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
