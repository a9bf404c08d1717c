/* The operations of block drafters: each against its formula in double precision, and the same bits from every variant and thread
 * count of the CPU backend; on a GPU the same bits twice. */
#include "common/err.h"
#include "common/num.h"
#include "kernels/cpu_pool.h"
#include "kernels/cuda/driver.h"
#include "kernels/draft/draft_attn.h"
#include "kernels/draft/draft_conv.h"
#include "kernels/draft/draft_gather.h"
#include "kernels/draft/draft_keep.h"
#include "kernels/draft/draft_rotate.h"
#include "kernels/draft/draft_scale.h"
#include "kernels/draft/draft_top.h"
#include "kernels/draft/q4_linear.h"
#include "kernels/draft/q4_pack.h"
#include "kernels/ops.h"
#include "tests/lib/test.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { OUT_MAX = 1 << 17 };

// A table of the CPU backend and memory that it hands out.
struct bed {
    struct cpu_pool *pool;
    struct ops ops;
    devptr memory, at, work;
};
enum { MEMORY = 8 << 20, WORK = 64 << 20 };

// tests/gpu/run.py puts the CUDA backend in the CPU's place.
static bool on_gpu(void) {
    const char *backend = getenv("RAILYARD_BACKEND");
    return backend && !strcmp(backend, "cuda");
}

static void open_gpu(struct bed *b) {
    static struct cuda_driver driver;
    struct err e = {0};
    CHECK_OK(cuda_driver_open(&driver, &e), e);
    struct ops_cuda_config config = {.driver = &driver, .pool = b->pool};
    CHECK_OK(ops_cuda_open(&b->ops, &config, &e), e);
    CHECK_OK(b->ops.alloc(b->ops.ctx, WORK, "work", &b->work, &e), e);
    b->ops.work_give(b->ops.ctx, b->work, b->work + WORK / 2,
                     (struct ops_work){WORK / 2, WORK / 2});
}

static void bed_open(struct bed *b, const char *variant, uint32_t threads) {
    struct err e = {0};
    *b = (struct bed){0};
    CHECK_OK(cpu_pool_new(&b->pool, threads, &e), e);
    if (on_gpu())
        open_gpu(b);
    else
        CHECK_OK(ops_cpu_open(&b->ops, b->pool, variant, &e), e);
    CHECK_OK(b->ops.alloc(b->ops.ctx, MEMORY, "test", &b->memory, &e), e);
    b->at = b->memory;
}

static void bed_close(struct bed *b) {
    b->ops.free(b->ops.ctx, b->memory, MEMORY);
    if (b->work) b->ops.free(b->ops.ctx, b->work, WORK);
    ops_close(&b->ops);
    cpu_pool_free(b->pool);
}

static devptr room(struct bed *b, uint64_t bytes) {
    devptr p = b->at;
    b->at += (bytes + 63) / 64 * 64;
    CHECK(b->at <= b->memory + MEMORY);
    return p;
}

static devptr put(struct bed *b, const void *p, uint64_t bytes) {
    devptr to = room(b, bytes);
    b->ops.write(b->ops.ctx, to, p, bytes);
    return to;
}

static float value(uint32_t tensor, uint64_t i) {
    return (float)((double)(mix_u64(((uint64_t)tensor << 40) + i + 1) >> 40) / 8388608.0 - 1);
}

static devptr fine(struct bed *b, uint32_t tensor, uint64_t count) {
    float *x = malloc(count * sizeof *x);
    for (uint64_t i = 0; i < count; i++) x[i] = value(tensor, i);
    devptr p = put(b, x, count * sizeof *x);
    free(x);
    return p;
}

struct result {
    uint64_t count;
    float v[OUT_MAX];
};

static void take(struct bed *b, struct result *r, devptr p, uint64_t count) {
    CHECK(r->count + count <= OUT_MAX);
    b->ops.read(b->ops.ctx, r->v + r->count, p, count * sizeof *r->v);
    r->count += count;
}

/* Attention. Two blocks over a ring or over pages, and a context that the test knows by position. */
enum { HEADS = 12, KV = 2, DIM_MAX = 128, ROWS = 9, POS_MAX = 150, SLOTS = 2, TABLE = 3 };

struct attn_case {
    uint32_t dim, ring, window, first;
    bool causal;
    enum dtype dtype;
};

static const struct attn_case attn_cases[] = {
    {40, 0, 0, 0, false, DTYPE_F32},      {40, 0, 0, 0, true, DTYPE_F32},
    {16, 99, 100, 0, false, DTYPE_F32},   {8, 5, 6, 0, true, DTYPE_F32},
    {8, 2, 3, 0, false, DTYPE_F32},       {16, 63, 64, 100, false, DTYPE_F32},
    {32, 40, 41, 0, false, DTYPE_BF16},   {64, 0, 0, 0, true, DTYPE_BF16},
    {128, 99, 100, 0, false, DTYPE_BF16}, {128, 63, 64, 100, false, DTYPE_BF16},
};
static const struct draft_block blocks[] = {{1, 0, 140, 5, 0}, {0, 5, 3, 4, 0}};

static float bf16_of(float x) {
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    u = (u + 0x7fffu + (u >> 16 & 1u)) & 0xffff0000u;
    memcpy(&x, &u, sizeof x);
    return x;
}

// Element of the context's row (slot, pos), head h.
static float context_value(const struct attn_case *c, uint32_t tensor, uint32_t slot, uint32_t pos,
                           uint32_t i) {
    float x = value(tensor, ((uint64_t)slot * POS_MAX + pos) * KV * DIM_MAX + i);
    return c->dtype == DTYPE_BF16 ? bf16_of(x) : x;
}

// On a GPU these go through the tensor cores (draft_attn_mma.cu), which take bf16.
static bool rounds(const struct attn_case *c) {
    return on_gpu() && c->dtype == DTYPE_BF16 && (c->dim == 64 || c->dim == 128);
}

static double block_value(const struct attn_case *c, uint32_t tensor, uint64_t i) {
    float x = value(tensor, i);
    return (double)(rounds(c) ? bf16_of(x) : x);
}

static struct draft_context make_context(struct bed *b, const struct attn_case *c) {
    static const uint32_t table[SLOTS * TABLE] = {3, 0, 5, 2, 4, 1};
    uint64_t rows = c->ring ? SLOTS * c->ring : SLOTS * TABLE * KV_PAGE_TOKENS;
    uint64_t bytes = rows * KV * c->dim * dtype_bytes(c->dtype);
    return (struct draft_context){.k = room(b, bytes),
                                  .v = room(b, bytes),
                                  .ring = c->ring,
                                  .table = put(b, table, sizeof table),
                                  .pages_per_slot = TABLE,
                                  .heads = KV,
                                  .dim = c->dim,
                                  .dtype = c->dtype};
}

// Rows of both slots by draft_keep, in runs of different lengths.
static void fill_context(struct bed *b, const struct attn_case *c, const struct draft_context *x) {
    for (uint32_t at = 0; at < 140;) {
        uint32_t n = at == 0 ? 3 : min_u32(140 - at, 50), width = KV * c->dim;
        struct run runs[] = {{.slot = 1, .row = 0, .pos = at, .count = n},
                             {.slot = 0, .row = n, .pos = 0, .count = 3}};
        uint32_t count = n + (at == 0 ? 3 : 0);
        float *kv[2] = {malloc(count * width * sizeof(float)),
                        malloc(count * width * sizeof(float))};
        for (uint32_t t = 0; t < count; t++)
            for (uint32_t i = 0; i < width; i++)
                for (uint32_t s = 0; s < 2; s++)
                    kv[s][t * width + i] =
                        value(50 + s, ((uint64_t)(t < n) * POS_MAX + (t < n ? at + t : t - n)) *
                                              KV * DIM_MAX +
                                          i);
        b->ops.draft_keep(b->ops.ctx, &(struct draft_keep_args){
                                          .context = *x,
                                          .runs = put(b, runs, sizeof runs),
                                          .runs_count = at == 0 ? 2 : 1,
                                          .rows = count,
                                          .k = put(b, kv[0], count * width * sizeof(float)),
                                          .v = put(b, kv[1], count * width * sizeof(float))});
        free(kv[0]);
        free(kv[1]);
        at += n;
    }
}

static float scale_of(const struct attn_case *c) {
    return c->dim > 40 ? 0.2f : 0.7f;
}

static void run_attn(struct bed *b, const struct attn_case *c, struct result *r) {
    struct draft_context x = make_context(b, c);
    struct draft_block own[2];
    devptr out = room(b, ROWS * HEADS * c->dim * sizeof(float));
    memcpy(own, blocks, sizeof own);
    own[0].first = c->first;
    fill_context(b, c, &x);
    b->ops.draft_attn(b->ops.ctx,
                      &(struct draft_attn_args){.context = x,
                                                .blocks = put(b, own, sizeof own),
                                                .blocks_count = 2,
                                                .rows = ROWS,
                                                .q = fine(b, 60, (uint64_t)ROWS * HEADS * c->dim),
                                                .k = fine(b, 61, (uint64_t)ROWS * KV * c->dim),
                                                .v = fine(b, 62, (uint64_t)ROWS * KV * c->dim),
                                                .out = out,
                                                .heads = HEADS,
                                                .window = c->window,
                                                .causal = c->causal,
                                                .scale = scale_of(c)});
    take(b, r, out, (uint64_t)ROWS * HEADS * c->dim);
}

struct softmax {
    double sum, acc[DIM_MAX];
};

static void add_key(const struct attn_case *c, struct softmax *s, uint32_t q_at, const double *k,
                    const double *v) {
    double dot = 0;
    for (uint32_t d = 0; d < c->dim; d++) dot += block_value(c, 60, q_at + d) * k[d];
    double p = exp(dot * (double)scale_of(c));
    s->sum += p;
    for (uint32_t d = 0; d < c->dim; d++) s->acc[d] += p * v[d];
}

// Row r of a block, head h, key by key as draft_attn.h has it.
static void reference_attn(const struct attn_case *c, const struct draft_block *b, uint32_t r,
                           uint32_t h, double *ret) {
    struct softmax s = {0};
    uint32_t kv = h / (HEADS / KV), q_at = ((b->row + r) * HEADS + h) * c->dim;
    double k[DIM_MAX], v[DIM_MAX];
    uint32_t first = b == blocks ? c->first : 0;
    for (uint32_t j = first; j < b->pos; j++) {
        if (c->window && b->pos + r - j >= c->window) continue;
        for (uint32_t d = 0; d < c->dim; d++) {
            k[d] = context_value(c, 50, b->slot, j, kv * c->dim + d);
            v[d] = context_value(c, 51, b->slot, j, kv * c->dim + d);
        }
        add_key(c, &s, q_at, k, v);
    }
    for (uint32_t j = 0; j < b->count; j++) {
        if (c->causal && j > r) continue;
        if (c->window && (j > r ? j - r : r - j) >= c->window) continue;
        for (uint32_t d = 0; d < c->dim; d++) {
            k[d] = block_value(c, 61, ((b->row + j) * KV + kv) * c->dim + d);
            v[d] = block_value(c, 62, ((b->row + j) * KV + kv) * c->dim + d);
        }
        add_key(c, &s, q_at, k, v);
    }
    for (uint32_t d = 0; d < c->dim; d++) ret[d] = s.acc[d] / s.sum;
}

static void check_attn(const struct attn_case *c, const float *got) {
    double want[DIM_MAX];
    for (uint32_t b = 0; b < 2; b++)
        for (uint32_t r = 0; r < blocks[b].count; r++)
            for (uint32_t h = 0; h < HEADS; h++) {
                reference_attn(c, &blocks[b], r, h, want);
                for (uint32_t d = 0; d < c->dim; d++)
                    CHECK_NEAR(got[((blocks[b].row + r) * HEADS + h) * c->dim + d], want[d],
                               rounds(c) ? 4e-3 : 2e-6); // p too
            }
}

/* Rows: rotation, convolution, gathering. */
enum { WIDE = 48, GROUP = 16, TAPS = 2, GROUPS = WIDE / GROUP, STRIDE = 2 * TAPS * GROUPS };

static void run_rows(struct bed *b, struct result *r) {
    const uint32_t pick[] = {3, 0, 5};
    devptr x = fine(b, 1, ROWS * 3 * 10), z = fine(b, 2, ROWS * WIDE), y = fine(b, 3, ROWS * WIDE);
    devptr d = fine(b, 4, ROWS * STRIDE), base = fine(b, 5, TAPS * WIDE);
    devptr sides = room(b, 3 * 2 * WIDE * sizeof(float));
    b->ops.draft_rotate(b->ops.ctx, &(struct draft_rotate_args){.x = x,
                                                                .scale = fine(b, 6, 10),
                                                                .angles = fine(b, 7, ROWS * 10),
                                                                .rows = ROWS,
                                                                .heads = 3,
                                                                .dim = 10,
                                                                .eps = 1e-5f});
    take(b, r, x, ROWS * 3 * 10);
    b->ops.draft_conv(b->ops.ctx,
                      &(struct draft_conv_args){.blocks = put(b, blocks, sizeof blocks),
                                                .blocks_count = 2,
                                                .rows = ROWS,
                                                .dim = WIDE,
                                                .z = z,
                                                .y = y,
                                                .base = base,
                                                .d = d + TAPS * GROUPS * sizeof(float), // side 1
                                                .d_stride = STRIDE,
                                                .taps = TAPS,
                                                .group = GROUP,
                                                .add = true});
    take(b, r, y, ROWS * WIDE);
    b->ops.draft_gather(b->ops.ctx, &(struct draft_gather_args){.tables = y,
                                                                .stride = 2 * WIDE * sizeof(float),
                                                                .count = 2,
                                                                .dim = WIDE,
                                                                .rows = 3,
                                                                .pick = put(b, pick, sizeof pick),
                                                                .x = sides});
    b->ops.draft_scale(b->ops.ctx, &(struct draft_scale_args){sides, 3 * WIDE, 0.25f});
    take(b, r, sides, 3 * 2 * WIDE);
}

static void check_rows(const float *got) {
    for (uint32_t t = 0; t < ROWS * 3; t++) {
        double squares = 0, n[10];
        for (uint32_t i = 0; i < 10; i++)
            squares += (double)value(1, t * 10 + i) * (double)value(1, t * 10 + i);
        for (uint32_t i = 0; i < 10; i++)
            n[i] = (double)value(1, t * 10 + i) / sqrt(squares / 10 + 1e-5) * (double)value(6, i);
        for (uint32_t i = 0; i < 5; i++) {
            double cos = value(7, t / 3 * 10 + i), sin = value(7, t / 3 * 10 + 5 + i);
            CHECK_NEAR(got[t * 10 + i], n[i] * cos - n[i + 5] * sin, 2e-6);
            CHECK_NEAR(got[t * 10 + i + 5], n[i + 5] * cos + n[i] * sin, 2e-6);
        }
    }
    got += ROWS * 3 * 10;
    for (uint32_t t = 0; t < ROWS; t++)
        for (uint32_t c = 0; c < WIDE; c++) {
            double want = value(3, t * WIDE + c);
            for (uint32_t o = 0; o < TAPS && o + (t < 5 ? 0 : 5) <= t; o++)
                want += ((double)value(5, o * WIDE + c) +
                         (double)value(4, t * STRIDE + (TAPS + o) * GROUPS + c / GROUP)) *
                        (double)value(2, (t - o) * WIDE + c);
            CHECK_NEAR(got[t * WIDE + c], want, 2e-6);
        }
    const uint32_t pick[] = {3, 0, 5};
    for (uint32_t i = 0; i < 3 * 2 * WIDE; i++) {
        uint32_t t = i / (2 * WIDE), table = i / WIDE % 2, row = pick[t] + 2 * table;
        float want = got[row * WIDE + i % WIDE] * (i < 3 * WIDE ? 0.25f : 1);
        CHECK_EQ(memcmp(&got[ROWS * WIDE + i], &want, sizeof want), 0);
    }
}

/* Four bits. */
enum { Q_ROWS = 68, Q_COLS = 1216, Q_T = 70 };

static void run_q4(struct bed *b, const float *w, struct result *r) {
    struct q4 q = {.codes = room(b, q4_codes_bytes(Q_ROWS, Q_COLS)),
                   .factors = room(b, q4_factors_bytes(Q_ROWS, Q_COLS)),
                   .rows = Q_ROWS,
                   .cols = Q_COLS};
    devptr y = fine(b, 31, Q_T * Q_ROWS), alone = room(b, Q_ROWS * sizeof(float));
    devptr x = fine(b, 30, Q_T * Q_COLS);
    struct weight plain = {
        .data = put(b, w, Q_ROWS * Q_COLS * sizeof *w), .rows = Q_ROWS, .cols = Q_COLS};
    b->ops.q4_pack(b->ops.ctx, &(struct q4_pack_args){plain, q});
    b->ops.q4_linear(b->ops.ctx, &(struct q4_linear_args){
                                     .x = x,
                                     .rows = Q_T,
                                     .parts_count = 2,
                                     .parts = {{q, y, true}, {q, room(b, 1 << 16), false}}});
    take(b, r, y, Q_T * Q_ROWS);
    b->ops.q4_linear(b->ops.ctx, &(struct q4_linear_args){.x = x + 7 * Q_COLS * sizeof(float),
                                                          .rows = 1,
                                                          .parts_count = 1,
                                                          .parts = {{q, alone, false}}});
    take(b, r, alone, Q_ROWS);
}

static void make_q4_matrix(float *w) {
    for (uint32_t i = 0; i < Q_ROWS * Q_COLS; i++) w[i] = value(29, i) * 0.1f + 0.02f;
    for (uint32_t i = 0; i < 64; i++) w[64 + i] = -0.5f; // a group without a spread
    for (uint32_t i = 0; i < 64; i++) w[128 + i] = 0;
}

// The format's rule in plain words.
static void reference_q4(const float *w, double *ret) {
    for (uint32_t g = 0; g < Q_ROWS * Q_COLS / Q4_GROUP; g++) {
        float lo = w[g * 64], hi = lo;
        for (uint32_t i = 0; i < 64; i++) {
            lo = fminf(lo, w[g * 64 + i]);
            hi = fmaxf(hi, w[g * 64 + i]);
        }
        float scale = bf16_of((hi - lo) / 15), bias = bf16_of(lo);
        for (uint32_t i = 0; i < 64; i++) {
            float q = scale > 0 ? floorf((w[g * 64 + i] - bias) / scale + 0.5f) : 0;
            ret[g * 64 + i] = (double)fminf(fmaxf(q, 0), 15) * (double)scale + (double)bias;
        }
    }
}

static void check_q4(const float *w, const float *got) {
    double tolerance = on_gpu() ? 0.03 : 2e-5; // weights and rows become bf16 there
    double *q = malloc(Q_ROWS * Q_COLS * sizeof *q), worst = 0;
    reference_q4(w, q);
    for (uint32_t i = 0; i < Q_ROWS * Q_COLS; i++) worst = fmax(worst, fabs(q[i] - (double)w[i]));
    test_note("4 bits: worst weight off by %.4f of a range of 0.2", worst);
    CHECK(worst < 0.2 / 15 * 0.56);
    for (uint32_t t = 0; t < Q_T; t++)
        for (uint32_t n = 0; n < Q_ROWS; n++) {
            double sum = 0;
            for (uint32_t k = 0; k < Q_COLS; k++)
                sum += q[n * Q_COLS + k] * (double)value(30, t * Q_COLS + k);
            CHECK_NEAR(got[t * Q_ROWS + n], sum + (double)value(31, t * Q_ROWS + n), tolerance);
            if (t == 7) CHECK_NEAR(got[Q_T * Q_ROWS + n], sum, tolerance);
        }
    free(q);
}

static void run_all(const char *variant, uint32_t threads, const float *w, struct result *r) {
    struct bed b;
    bed_open(&b, variant, threads);
    r->count = 0;
    for (uint32_t i = 0; i < sizeof attn_cases / sizeof *attn_cases; i++)
        run_attn(&b, &attn_cases[i], r);
    run_rows(&b, r);
    run_q4(&b, w, r);
    bed_close(&b);
}

TEST(every_operation_follows_its_formula_with_the_same_bits_everywhere) {
    static struct result want, got;
    float *w = malloc(Q_ROWS * Q_COLS * sizeof *w);
    const float *at = want.v;
    make_q4_matrix(w);
    run_all(NULL, 1, w, &want);
    for (uint32_t i = 0; i < sizeof attn_cases / sizeof *attn_cases; i++) {
        check_attn(&attn_cases[i], at);
        at += (uint64_t)ROWS * HEADS * attn_cases[i].dim;
    }
    check_rows(at);
    check_q4(w, at + ROWS * 3 * 10 + ROWS * WIDE + 3 * 2 * WIDE);
    for (const char *const *v = ops_cpu_variants(); *v; v++) {
        run_all(*v, 3, w, &got);
        CHECK_EQ_U64(got.count, want.count);
        CHECK_MEM(got.v, want.v, want.count * sizeof *want.v);
    }
    free(w);
}

/* The best ids: equals by id, NaN last, parts with columns that are nobody's. */
// A matrix with its 4 bits, made of value().
static struct q4 pack_q4(struct bed *b, uint32_t rows, uint32_t cols) {
    struct q4 q = {.codes = room(b, q4_codes_bytes(rows, cols)),
                   .factors = room(b, q4_factors_bytes(rows, cols)),
                   .rows = rows,
                   .cols = cols};
    struct weight plain = {.data = fine(b, 29, (uint64_t)rows * cols), .rows = rows, .cols = cols};
    b->ops.q4_pack(b->ops.ctx, &(struct q4_pack_args){plain, q});
    return q;
}

static void multiply_q4(struct bed *b, const struct q4 *q, devptr x, uint32_t rows, float *ret) {
    devptr mark = b->at, y = room(b, (uint64_t)rows * q->rows * sizeof(float));
    b->ops.q4_linear(b->ops.ctx,
                     &(struct q4_linear_args){
                         .x = x, .rows = rows, .parts_count = 1, .parts = {{*q, y, false}}});
    b->ops.read(b->ops.ctx, ret, y, (uint64_t)rows * q->rows * sizeof(float));
    b->at = mark;
}

// How many rows go together, and how many outputs, is for speed: kernels differ by both.
TEST(products_of_4_bits_have_the_same_bits_whatever_goes_with_them) {
    enum { WIDE_ROWS = 16448, SOME_ROWS = 4160, FEW_ROWS = 64, COLS = 64, LONG = 1216, T = 40 };
    static const uint32_t counts[] = {1, 8, 12, 16, 40},
                          widths[] = {FEW_ROWS, SOME_ROWS, WIDE_ROWS};
    static float one[FEW_ROWS], all[T * WIDE_ROWS];
    struct bed b;
    bed_open(&b, NULL, 2);
    for (uint32_t k = 0; k < 2; k++) {
        uint32_t cols = k ? LONG : COLS;
        b.at = b.memory;
        struct q4 whole = pack_q4(&b, k ? FEW_ROWS : WIDE_ROWS, cols);
        devptr x = fine(&b, 30, (uint64_t)T * cols);
        for (size_t w = 0; w < (k ? 1 : 3); w++)
            for (size_t c = 0; c < sizeof counts / sizeof *counts; c++) {
                struct q4 some = whole, few = whole;
                some.rows = widths[w];
                few.rows = FEW_ROWS;
                multiply_q4(&b, &some, x, counts[c], all);
                for (uint32_t t = 0; t < counts[c]; t++) {
                    uint32_t n = (widths[w] - FEW_ROWS) / FEW_ROWS * t / T * FEW_ROWS;
                    few.codes = whole.codes + q4_codes_bytes(n, cols);
                    few.factors = whole.factors + q4_factors_bytes(n, cols);
                    multiply_q4(&b, &few, x + t * cols * sizeof(float), 1, one);
                    CHECK_EQ(memcmp(one, all + t * widths[w] + n, sizeof one), 0);
                }
            }
    }
    bed_close(&b);
}

TEST(the_best_ids_come_by_value_and_then_by_id) {
    struct bed b;
    const float nan = NAN;
    const float first[2][6] = {{9, 1, 5, 5, nan, 9}, {9, nan, nan, nan, nan, 9}};
    const float second[2][3] = {{5, -1, INFINITY}, {nan, -INFINITY, nan}};
    uint32_t ids[8];
    float values[8];
    bed_open(&b, NULL, 2);
    struct draft_top_args a = {.parts = {{put(&b, first, sizeof first), 6, 1, 100, 4},
                                         {put(&b, second, sizeof second), 3, 0, 7000, 3}},
                               .parts_count = 2,
                               .rows = 2,
                               .k = 4,
                               .ids = room(&b, sizeof ids),
                               .values = room(&b, sizeof values)};
    b.ops.draft_top(b.ops.ctx, &a);
    b.ops.read(b.ops.ctx, ids, a.ids, sizeof ids);
    b.ops.read(b.ops.ctx, values, a.values, sizeof values);
    CHECK_MEM(ids, ((uint32_t[]){7002, 101, 102, 7000, 100, 101, 102, 103}), sizeof ids);
    CHECK(values[0] == INFINITY && values[1] == 5 && values[3] == 5 && values[4] == -INFINITY);
    bed_close(&b);
}

/* A row as long as a vocabulary's, with thousands of equals at the border, or all of one value, or spread. */
static float many_value(uint32_t row, uint32_t i) {
    float x = value(80 + row, i);
    if (row == 0) return floorf(x * 4) * 0.25f;
    return row == 1 ? -3 : x;
}

// The best that has not come yet, by looking at all of them.
static uint32_t best_behind(uint32_t row, uint32_t count, uint32_t last, bool any) {
    uint32_t best = UINT32_MAX;
    for (uint32_t i = 0; i < count; i++) {
        float x = many_value(row, i), l = any ? many_value(row, last) : 0;
        if (any && (x > l || (x == l && i <= last))) continue;
        if (best == UINT32_MAX || x > many_value(row, best)) best = i;
    }
    return best;
}

TEST(the_best_of_a_long_row_are_those_that_a_search_finds) {
    enum { IDS = 50000, ROWS_MANY = 3, K = DRAFT_TOP_MAX };
    struct bed b;
    uint32_t ids[ROWS_MANY * K];
    float *x = malloc((size_t)ROWS_MANY * IDS * sizeof *x);
    for (uint32_t r = 0; r < ROWS_MANY; r++)
        for (uint32_t i = 0; i < IDS; i++) x[r * IDS + i] = many_value(r, i);
    bed_open(&b, NULL, 2);
    devptr logits = put(&b, x, (uint64_t)ROWS_MANY * IDS * sizeof *x);
    struct draft_top_args a = {.parts = {{logits, IDS, 0, 0, IDS}},
                               .parts_count = 1,
                               .rows = ROWS_MANY,
                               .k = K,
                               .ids = room(&b, sizeof ids),
                               .values = room(&b, sizeof ids)};
    b.ops.draft_top(b.ops.ctx, &a);
    b.ops.read(b.ops.ctx, ids, a.ids, sizeof ids);
    for (uint32_t r = 0; r < ROWS_MANY; r++)
        for (uint32_t i = 0, last = 0; i < K; i++) {
            last = best_behind(r, IDS, last, i > 0);
            CHECK_EQ(ids[r * K + i], last);
        }
    bed_close(&b);
    free(x);
}
