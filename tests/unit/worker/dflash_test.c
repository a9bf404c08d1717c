/* The drafters' arithmetic against known numbers: a tiny one, its weights from a counter, its block behind one anchor. The numbers were
 * made by an array program in double precision, and a program of another hand gave the same. Then what must not matter: chunks of the
 * context, other streams, the form of a saved state; and memory. */
#include "common/err.h"
#include "kernels/cpu_pool.h"
#include "kernels/draft/draft_attn.h"
#include "kernels/mlp/swiglu.h"
#include "kernels/ops.h"
#include "kernels/sample/sample.h"
#include "tests/lib/dflash_tiny.h"
#include "tests/lib/test.h"
#include "worker/engine/carve.h"
#include "worker/engine/dflash.h"
#include "worker/engine/dflash_impl.h"
#include "worker/engine/model_config.h"

#include <stdlib.h>
#include <string.h>

#define FULL "\"full_attention\", \"full_attention\""
#define SLIDING "\"sliding_attention\", \"sliding_attention\""
#define MIXED "\"sliding_attention\", \"full_attention\""

enum { ROWS = 10, ROWS_MAX = 16, SLOTS = 3, PAGES = 2, ANCHOR = 38 };
static const double NEAR = 1e-4;

struct bed {
    struct cpu_pool *pool;
    struct ops ops;
    struct model_config cfg;
    struct model model;
    struct drafter_limits limits;
    struct drafter drafter;
    struct dflash *d; // its inside
    devptr memory, block;
    uint64_t bytes;
    char dir[600];
};

static struct { // what the hooks saw of row 1, by layer
    struct dflash *d;
    void (*attn)(void *ctx, const struct draft_attn_args *a);
    void (*swiglu)(void *ctx, const struct swiglu_args *a);
    uint32_t layer;
    float u[2][4], before[2][4], middle[2][4];
} seen;

static void look(float *ret, devptr p) {
    const struct ops *o = seen.d->m->ops;
    o->read(o->ctx, ret, p + TINY_D * sizeof *ret, 4 * sizeof *ret);
}

static void hooked_attn(void *ctx, const struct draft_attn_args *a) {
    look(seen.u[seen.layer], seen.d->cfg.v2 ? seen.d->u : seen.d->n);
    look(seen.before[seen.layer], seen.d->x);
    seen.attn(ctx, a);
}

static void hooked_swiglu(void *ctx, const struct swiglu_args *a) {
    look(seen.middle[seen.layer++], seen.d->x);
    seen.swiglu(ctx, a);
}

static devptr put(struct bed *b, devptr *at, const void *p, uint64_t bytes) {
    devptr to = *at;
    b->ops.write(b->ops.ctx, to, p, bytes);
    *at += (bytes + 63) / 64 * 64;
    return to;
}

// A target of which a drafter sees embedding, head, taps and pages alone.
static void make_target(struct bed *b) {
    struct err e = {0};
    struct model *m = &b->model;
    float w[TINY_VOCAB * TINY_D];
    uint32_t table[SLOTS * PAGES] = {4, 1, 0, 5, 2, 3};
    CHECK_OK(cpu_pool_new(&b->pool, 2, &e), e);
    CHECK_OK(ops_cpu_open(&b->ops, b->pool, NULL, &e), e);
    CHECK_OK(b->ops.alloc(b->ops.ctx, 1 << 20, "target", &b->memory, &e), e);
    devptr at = b->memory;
    b->cfg =
        (struct model_config){.hidden = TINY_D, .layers = TINY_TARGET_LAYERS, .vocab = TINY_VOCAB};
    *m = (struct model){.ops = &b->ops, .cfg = &b->cfg};
    m->lim = (struct model_limits){.rows_max = ROWS_MAX,
                                   .slots = SLOTS,
                                   .pages = SLOTS * PAGES,
                                   .pages_per_slot = PAGES,
                                   .kv_dtype = DTYPE_F32};
    tiny_fill_all(w, 1, TINY_VOCAB * TINY_D, 1, 0);
    m->w.embed =
        (struct weight){.data = put(b, &at, w, sizeof w), .rows = TINY_VOCAB, .cols = TINY_D};
    tiny_fill_all(w, 2, TINY_VOCAB * TINY_D, 0.5f, 0);
    m->w.head =
        (struct weight){.data = put(b, &at, w, sizeof w), .rows = TINY_VOCAB, .cols = TINY_D};
    m->page_table = put(b, &at, table, sizeof table);
    m->tap_rows = at;
}

static void carve_block(struct bed *b) {
    struct err e = {0};
    struct carve measure = {0}, real = {0};
    b->drafter.carve(b->drafter.self, &measure);
    b->bytes = carve_bytes(&measure);
    CHECK_OK(b->ops.alloc(b->ops.ctx, b->bytes, "drafter", &b->block, &e), e);
    b->ops.fill(b->ops.ctx, b->block, 0x7fc00000u, b->bytes); // NaN
    real.base = b->block;
    b->drafter.carve(b->drafter.self, &real);
    CHECK_EQ_U64(carve_bytes(&real), b->bytes);
    CHECK_OK(b->drafter.load(b->drafter.self, &e), e);
}

static void bed_open_files(struct bed *b, const struct tiny_files *f, uint64_t quantize_min) {
    struct err e = {0};
    *b = (struct bed){0};
    make_target(b);
    tiny_files_write(f, b->dir, sizeof b->dir);
    b->limits = (struct drafter_limits){.slots = SLOTS,
                                        .rows_max = ROWS_MAX,
                                        .context_max = PAGES * KV_PAGE_TOKENS,
                                        .quantize_min = quantize_min};
    CHECK_OK(dflash_open(&b->drafter, b->dir, &b->model, &b->limits, &e), e);
    b->d = b->drafter.self;
    carve_block(b);
}

static void bed_open(struct bed *b, bool v2, const char *layers, const char *extra) {
    struct tiny_files f;
    tiny_files_make(&f, v2, layers, extra);
    bed_open_files(b, &f, 0);
    tiny_files_fini(&f);
}

static void bed_close(struct bed *b) {
    b->drafter.close(b->drafter.self);
    b->ops.free(b->ops.ctx, b->block, b->bytes);
    b->ops.free(b->ops.ctx, b->memory, 1 << 20);
    ops_close(&b->ops);
    cpu_pool_free(b->pool);
}

// Tap rows of positions from .. into row `at` of a forward.
static void put_taps(struct bed *b, uint32_t at, uint32_t from, uint32_t count) {
    for (uint32_t i = 0; i < count; i++)
        for (uint32_t t = 0; t < TINY_TAPS; t++) {
            float x[TINY_D];
            for (uint32_t c = 0; c < TINY_D; c++)
                x[c] = tiny_fill(1000, (uint64_t)(from + i) * TINY_TAPS * TINY_D + t * TINY_D + c,
                                 1, 0);
            b->ops.write(b->ops.ctx,
                         b->model.tap_rows + ((uint64_t)t * ROWS_MAX + at + i) * sizeof x, x,
                         sizeof x);
        }
}

static void absorb(struct bed *b, uint32_t slot, uint32_t from, uint32_t count) {
    struct draft_rows rows = {
        .run = {.slot = slot, .row = 2, .pos = from, .count = count}}; // not the forward's first
    put_taps(b, 2, from, count);
    b->drafter.absorb(b->drafter.self, &rows, 1);
}

static const struct sample_params greedy = {.top_p = 1};

static struct draft_ask ask_of(uint32_t slot, uint32_t pos, const struct sample_params *p) {
    return (struct draft_ask){
        .slot = slot, .anchor = ANCHOR, .pos = pos, .want = TINY_BLOCK - 1, .sampling = p};
}

static struct draft_ask propose(struct bed *b, uint32_t slot, uint32_t pos,
                                const struct sample_params *p) {
    struct draft_ask ask = ask_of(slot, pos, p);
    b->drafter.propose(b->drafter.self, &ask, 1);
    return ask;
}

static void check_4(const char *what, const float *got, const double *want) {
    for (int i = 0; i < 4; i++) {
        test_note("%s[%d] %.6f, wanted %.6f", what, i, (double)got[i], want[i]);
        CHECK_NEAR(got[i], want[i], NEAR);
    }
}

struct vectors {
    double u[4], branch[4], layer0[4], layer1[4], row1[4], row3[4], best[3];
    uint32_t ids[3];
};

static void check_block(struct bed *b, const struct vectors *v) {
    float branch[4], x[4];
    uint32_t at = (TINY_BLOCK - 2) * TINY_D + TINY_D - 4, top = b->d->head.top;
    seen.d = b->d;
    seen.layer = 0;
    seen.attn = b->ops.draft_attn;
    seen.swiglu = b->ops.swiglu;
    b->ops.draft_attn = hooked_attn;
    b->ops.swiglu = hooked_swiglu;
    propose(b, 1, ROWS, &greedy);
    b->ops.draft_attn = seen.attn;
    b->ops.swiglu = seen.swiglu;
    for (int i = 0; i < 4; i++) branch[i] = seen.middle[0][i] - seen.before[0][i];
    check_4("u", seen.u[0], v->u);
    check_4("attention's branch", branch, v->branch);
    check_4("x behind layer 0", seen.before[1], v->layer0);
    look(x, b->d->x);
    check_4("x behind layer 1", x, v->layer1);
    b->ops.read(b->ops.ctx, x, b->d->hidden, sizeof x);
    check_4("hidden of row 1", x, v->row1);
    b->ops.read(b->ops.ctx, x, b->d->hidden + at * sizeof *x, sizeof x);
    check_4("hidden of row 3", x, v->row3);
    for (uint32_t r = 0; r < 3; r++) {
        CHECK_EQ(b->d->top_ids[r * top], v->ids[r]);
        CHECK_NEAR(b->d->top_values[r * top], v->best[r], NEAR);
    }
}

static void check_context(struct bed *b) {
    static const double f[] = {-1.11363532, -2.50917656, -1.38203972, -0.40344128};
    static const double key[] = {1.07501659, -1.34425949, -0.51064513, 0.36187995,
                                 0.44249576, -0.49227725, -0.14236112, 1.95796882};
    static const double value[] = {-0.48535548, -0.77631597, -0.10027313, 0.81220683,
                                   -1.19213726, -0.63976262, -0.84035894, 0.30584923};
    float x[TINY_KV * TINY_HEAD_DIM];
    struct draft_context c0 = dflash_context_layer(&b->d->context, 0);
    struct draft_context c1 = dflash_context_layer(&b->d->context, 1);
    const uint32_t table[] = {4, 1, 0, 5, 2, 3}; // as make_target has it
    // Of a prompt longer than the window the last rows alone are projected.
    uint32_t last = dflash_config_all_slide(&b->d->cfg) ? b->d->cfg.window - 2 : ROWS - 1;
    b->ops.read(b->ops.ctx, x, b->d->f + last * TINY_D * sizeof *x, 4 * sizeof *x);
    check_4("f of position 9", x, f);
    b->ops.read(b->ops.ctx, x, c0.k + draft_context_row(&c0, table, 1, 9) * sizeof x, sizeof x);
    check_4("key of head 1", x + 8, key);
    check_4("key of head 1, behind", x + 12, key + 4);
    b->ops.read(b->ops.ctx, x, c1.v + draft_context_row(&c1, table, 1, 9) * sizeof x, sizeof x);
    check_4("value of head 0", x, value);
    check_4("value of head 0, behind", x + 4, value + 4);
}

TEST(the_counter_fills_as_the_vectors_say) {
    static const double embed[] = {-0.87164104, 0.89668489, -0.13938320, 0.84697795};
    static const double fc[] = {0.07129381, 0.01670852, 0.05280247, -0.17231815};
    static const double tap[] = {0.62131298, 0.98448551, 0.85716295, 0.02113783};
    for (uint64_t i = 0; i < 4; i++) {
        CHECK_NEAR(tiny_fill(1, i, 1, 0), embed[i], 1e-7);
        CHECK_NEAR(tiny_fill(3, 31 * 64 + 60 + i, 0.2f, 0), fc[i], 1e-7);
        CHECK_NEAR(tiny_fill(1000, 9 * 64 + i, 1, 0), tap[i], 1e-7);
    }
}

TEST(dflash_with_full_layers_gives_the_known_numbers) {
    struct bed b;
    bed_open(&b, false, FULL, "");
    CHECK_EQ(b.drafter.kind, ENGINE_DRAFT_DFLASH);
    CHECK_EQ(b.drafter.ids_max, 3);
    absorb(&b, 1, 0, ROWS);
    check_context(&b);
    check_block(&b, &(struct vectors){{-1.092266, 0.565336, 1.220194, 0.682182},
                                      {1.367889, 0.249012, -1.243594, -0.174780},
                                      {1.927998, 0.201506, -0.718401, -0.668620},
                                      {1.307346, -1.847627, -0.258591, -0.566416},
                                      {0.873190, -1.166590, -0.172263, -0.377260},
                                      {-1.402589, -0.260377, -0.436728, 1.291500},
                                      {3.380657, 3.919613, 4.202747},
                                      {26, 26, 26}});
    bed_close(&b);
}

TEST(dflash_with_sliding_layers_is_causal_in_the_block_and_gives_the_known_numbers) {
    struct bed b;
    bed_open(&b, false, SLIDING, "");
    absorb(&b, 1, 0, ROWS);
    check_context(&b);
    check_block(&b, &(struct vectors){{-1.092266, 0.565336, 1.220194, 0.682182},
                                      {1.572178, 0.612116, -1.099006, 0.037365},
                                      {2.009591, 0.684516, -0.231814, -1.111231},
                                      {2.041462, -1.222799, -0.187765, -1.246406},
                                      {1.336273, -0.756649, -0.122583, -0.813580},
                                      {0.126326, -0.073586, -1.080896, 0.966504},
                                      {4.526956, 2.837844, 2.806337},
                                      {52, 32, 32}});
    struct draft_ask ask = propose(&b, 1, ROWS, &greedy);
    CHECK_EQ(ask.ret_count, 3);
    CHECK_MEM(ask.ret_ids, ((uint32_t[]){52, 32, 32}), 12);
    bed_close(&b);
}

static void check_selector(struct bed *b) {
    static const uint32_t ids[] = {46, 52, 14, 49, 22, 18, 46, 24, 5, 49, 26, 46};
    static const uint32_t before[] = {ANCHOR, 14, 18};
    static const double u[] = {3.125896, 3.016410, 2.961835, 2.737940, 2.928480, 2.910196,
                               2.888025, 2.748721, 3.351289, 3.333116, 3.270594, 2.933350};
    static const double s[] = {0.855396, 1.167245, 1.977903, -1.508110, 2.802190, 4.604337,
                               0.906247, 2.798276, 3.624465, 3.510838,  3.771672, 2.869083};
    CHECK_EQ(b->d->head.top, 4);
    for (uint32_t i = 0; i < 12; i++) {
        double sum = b->d->top_values[i];
        CHECK_EQ(b->d->top_ids[i], ids[i]);
        CHECK_NEAR(b->d->top_values[i], u[i], NEAR);
        for (uint32_t r = 0; r < TINY_RANK; r++)
            sum += (double)tiny_fill(37, before[i / 4] * TINY_RANK + r, 1, 0) *
                   (double)b->d->host_g[i / 4 * TINY_RANK + r] *
                   (double)tiny_fill(38, ids[i] * TINY_RANK + r, 1, 0);
        CHECK_NEAR(sum, s[i], NEAR);
    }
}

TEST(dflash2_gives_the_known_numbers_and_paths) {
    struct sample_params sampled = {.temperature = 1, .top_p = 1, .seed = 1234};
    struct bed b;
    bed_open(&b, true, SLIDING, "\"is_causal\": false, ");
    CHECK_EQ(b.drafter.kind, ENGINE_DRAFT_DFLASH2);
    absorb(&b, 1, 0, ROWS);
    check_context(&b);
    check_block(&b, &(struct vectors){{-1.308672, 0.415497, 0.946707, 0.718301},
                                      {0.621102, 0.597168, -0.717844, -0.317238},
                                      {0.310959, 0.409674, -0.014072, -0.391776},
                                      {0.479620, 1.117565, -1.154052, -0.199792},
                                      {0.366743, 0.807836, -0.880140, -0.152345},
                                      {0.635206, -0.933967, -1.586124, 0.027042},
                                      {3.125896, 2.928480, 3.351289},
                                      {46, 22, 5}});
    check_selector(&b);
    struct draft_ask ask = propose(&b, 1, ROWS, &greedy);
    CHECK_EQ(ask.ret_count, 3);
    CHECK_MEM(ask.ret_ids, ((uint32_t[]){14, 18, 26}), 12);
    ask = propose(&b, 1, ROWS, &sampled);
    CHECK_MEM(ask.ret_ids, ((uint32_t[]){14, 18, 5}), 12);
    bed_close(&b);
}

// With noise the first form couples too; with filters that leave one id nothing is random.
TEST(noise_moves_the_drafts_of_the_first_form_and_filters_hold_it) {
    struct sample_params p = {.temperature = 1, .top_p = 1, .seed = 1};
    struct bed b;
    uint32_t other = 0;
    bed_open(&b, false, FULL, "");
    absorb(&b, 0, 0, ROWS);
    struct draft_ask plain = propose(&b, 0, ROWS, &greedy);
    for (p.seed = 1; p.seed <= 20; p.seed++) {
        struct draft_ask noisy = propose(&b, 0, ROWS, &p), again = propose(&b, 0, ROWS, &p);
        CHECK_MEM(noisy.ret_ids, again.ret_ids, 12);
        other += memcmp(noisy.ret_ids, plain.ret_ids, 12) != 0;
    }
    CHECK(other > 10);
    const struct sample_params tight[] = {{.temperature = 1, .top_p = 1, .top_k = 1},
                                          {.temperature = 1, .top_p = 1e-6},
                                          {.temperature = 1, .top_p = 1, .min_p = 1},
                                          {.temperature = 1e-6, .top_p = 1}};
    for (int i = 0; i < 4; i++) {
        struct draft_ask ask = propose(&b, 0, ROWS, &tight[i]);
        CHECK_MEM(ask.ret_ids, plain.ret_ids, 12);
    }
    bed_close(&b);
}

// Row 0 is used, and row i drafts what the other geometry's row i would have been asked for one position on.
TEST(a_block_that_samples_from_its_anchor_drafts_one_more) {
    struct bed b;
    bed_open(&b, true, SLIDING, "\"is_causal\": false, \"sample_from_anchor\": true, ");
    CHECK_EQ(b.drafter.ids_max, TINY_BLOCK);
    absorb(&b, 0, 0, ROWS);
    struct draft_ask ask = ask_of(0, ROWS, &greedy);
    ask.want = TINY_BLOCK;
    b.drafter.propose(b.drafter.self, &ask, 1);
    CHECK_EQ(ask.ret_count, TINY_BLOCK);
    // Rows 1 to 3 are those of the known numbers, their candidates in another place.
    CHECK_EQ(b.d->top_ids[4], 46);
    CHECK_EQ(b.d->top_ids[8], 22);
    CHECK_EQ(b.d->top_ids[12], 5);
    bed_close(&b);
}

static void same_everywhere(bool v2, const char *layers) {
    struct bed b;
    bed_open(&b, v2, layers, "");
    absorb(&b, 1, 0, ROWS);
    struct draft_ask want = propose(&b, 1, ROWS, &greedy);
    float values[4];
    memcpy(values, b.d->top_values, sizeof values);
    // In pieces, after another stream's life in that slot, beside others.
    absorb(&b, 0, 0, 7);
    for (uint32_t at = 0; at < ROWS; at += 3) absorb(&b, 0, at, at + 3 < ROWS ? 3 : ROWS - at);
    absorb(&b, 2, 0, 5);
    struct draft_ask asks[] = {ask_of(2, 5, &greedy), ask_of(0, ROWS, &greedy),
                               ask_of(1, ROWS, &greedy)};
    b.drafter.propose(b.drafter.self, asks, 3);
    CHECK_MEM(asks[1].ret_ids, want.ret_ids, 12);
    CHECK_MEM(asks[2].ret_ids, want.ret_ids, 12);
    CHECK_MEM(b.d->top_values + 3 * b.d->head.top, values, sizeof values);
    // A shorter block is the head of the longer one where it is causal; it has as many ids as were asked for.
    asks[0].want = 1;
    b.drafter.propose(b.drafter.self, asks, 1);
    CHECK_EQ(asks[0].ret_count, 1);
    bed_close(&b);
}

TEST(chunks_and_company_change_no_bit) {
    same_everywhere(false, FULL);
    same_everywhere(false, SLIDING);
    same_everywhere(false, MIXED);
    same_everywhere(true, SLIDING);
}

TEST(a_saved_state_drafts_as_the_stream_it_came_from) {
    static const char *const layers[] = {FULL, SLIDING, MIXED};
    for (int i = 0; i < 3; i++) {
        struct bed b;
        bed_open(&b, false, layers[i], "");
        absorb(&b, 1, 0, ROWS);
        uint64_t bytes = b.drafter.state_bytes(b.drafter.self, ROWS);
        void *state = malloc(bytes);
        struct draft_ask want = propose(&b, 1, ROWS, &greedy);
        b.drafter.state_read(b.drafter.self, 1, ROWS, state);
        b.drafter.state_write(b.drafter.self, 2, ROWS, state);
        struct draft_ask got = propose(&b, 2, ROWS, &greedy);
        CHECK_EQ(got.ret_count, 3);
        CHECK_MEM(got.ret_ids, want.ret_ids, 12);
        // Both go on alike.
        put_taps(&b, 0, 10, 4);
        put_taps(&b, 4, 10, 4);
        struct draft_rows rows[] = {{.run = {.slot = 1, .row = 0, .pos = ROWS, .count = 4}},
                                    {.run = {.slot = 2, .row = 4, .pos = ROWS, .count = 4}}};
        b.drafter.absorb(b.drafter.self, rows, 2);
        want = propose(&b, 1, ROWS + 4, &greedy);
        got = propose(&b, 2, ROWS + 4, &greedy);
        CHECK_MEM(got.ret_ids, want.ret_ids, 12);
        free(state);
        bed_close(&b);
    }
}

// Rows that came without taps leave a gap: nothing from before it is looked at, and drafts begin again when enough has come.
TEST(a_gap_clears_the_context_until_enough_has_come) {
    struct bed b;
    bed_open(&b, false, SLIDING, "");
    absorb(&b, 0, 0, 3);
    absorb(&b, 0, 20, 2); // 3 .. 19 came without
    CHECK_EQ(propose(&b, 0, 22, &greedy).ret_count, 0);
    absorb(&b, 0, 22, 3); // the window sees 5
    struct draft_ask ask = propose(&b, 0, 25, &greedy);
    CHECK_EQ(ask.ret_count, 3);
    // The same rows without a past.
    b.drafter.state_write(b.drafter.self, 1, 20, NULL);
    CHECK_EQ(propose(&b, 1, 20, &greedy).ret_count, 0);
    absorb(&b, 1, 20, 5);
    struct draft_ask other = propose(&b, 1, 25, &greedy);
    CHECK_MEM(ask.ret_ids, other.ret_ids, 12);
    // With full layers, 64 rows.
    struct bed full;
    bed_open(&full, false, FULL, "");
    absorb(&full, 0, 20, 10);
    CHECK_EQ(propose(&full, 0, 30, &greedy).ret_count, 0);
    for (uint32_t at = 30; at < 84; at += 6) absorb(&full, 0, at, 6);
    CHECK_EQ(propose(&full, 0, 84, &greedy).ret_count, 3);
    bed_close(&full);
    bed_close(&b);
}

TEST(a_long_run_keeps_what_the_window_sees) {
    struct bed a, b;
    bed_open(&a, false, SLIDING, "");
    bed_open(&b, false, MIXED, "");
    absorb(&a, 0, 0, 12); // more than the ring holds, at once
    for (uint32_t i = 0; i < 12; i++) absorb(&a, 1, i, 1);
    struct draft_ask x = propose(&a, 0, 12, &greedy), y = propose(&a, 1, 12, &greedy);
    CHECK_MEM(x.ret_ids, y.ret_ids, 12);
    absorb(&b, 0, 0, 12);
    for (uint32_t i = 0; i < 12; i++) absorb(&b, 1, i, 1);
    x = propose(&b, 0, 12, &greedy);
    y = propose(&b, 1, 12, &greedy);
    CHECK_MEM(x.ret_ids, y.ret_ids, 12);
    bed_close(&a);
    bed_close(&b);
}

TEST(memory_follows_from_the_config_alone) {
    static const char *const layers[] = {FULL, SLIDING};
    for (int v2 = 0; v2 < 2; v2++)
        for (int i = 0; i < 2; i++)
            for (uint64_t quantize = 0; quantize < 2; quantize++) {
                struct tiny_files f;
                struct bed b;
                struct err e = {0};
                uint64_t bytes = 0;
                tiny_files_make(&f, v2, layers[i], "");
                bed_open_files(&b, &f, quantize);
                CHECK_OK(dflash_config_bytes(&bytes, &b.d->cfg, &b.model, &b.limits, &e), e);
                CHECK_EQ_U64(bytes, b.bytes);
                tiny_files_fini(&f);
                bed_close(&b);
            }
}
