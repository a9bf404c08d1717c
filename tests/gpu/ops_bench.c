/* The CUDA operations at the sizes of a 27B, and those of experts at a 35B-A3B's, each alone: `ops_bench [--seconds S] [PART] ..`, PART being part of a case's name. A line a case:
 * microseconds, bytes and operations counted, and the limit beside them: the bytes at the speed of a copy on this card, measured first.
 * Rows 0 of a case must have the same bits whatever rows go with it; exits 1 where they differ, or where the device fails. Needs libc and the driver. */
#include "common/err.h"
#include "common/mem.h"
#include "common/num.h"
#include "kernels/attn/attn.h"
#include "kernels/attn/kv_append.h"
#include "kernels/cpu_pool.h"
#include "kernels/cuda/arith.h"
#include "kernels/cuda/device.h"
#include "kernels/delta/conv.h"
#include "kernels/delta/delta_commit.h"
#include "kernels/delta/delta_gates.h"
#include "kernels/delta/delta_mix.h"
#include "kernels/delta/delta_norm.h"
#include "kernels/delta/delta_scan.h"
#include "kernels/delta/gated_norm.h"
#include "kernels/embed/embed.h"
#include "kernels/linear/linear.h"
#include "kernels/mlp/swiglu.h"
#include "kernels/moe/experts.h"
#include "kernels/moe/router.h"
#include "kernels/norm/rmsnorm.h"
#include "kernels/ops.h"
#include "kernels/sample/draw.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define GIB ((uint64_t)1 << 30)

enum {
    HIDDEN = 5120,
    VOCAB = 248320,
    KEY_HEADS = 16,
    VALUE_HEADS = 48,
    DELTA_DIM = 128,
    DELTA_LAYERS = 48,
    CHANNELS = (2 * KEY_HEADS + VALUE_HEADS) * DELTA_DIM,
    HEADS = 24,
    KV_HEADS = 4,
    HEAD_DIM = 256,
    TEMPLATE_BYTES = 64 << 20,
    SETS_MAX = 16, // of weights, so that none is found in the cache
    REPEATS = 5,
};

// What memory is filled with.
enum stuff { STUFF_BYTES, STUFF_F32, STUFF_BF16, STUFF_F16_SIGNS, STUFF_E4M3, STUFFS };

struct bench {
    struct cuda_driver driver;
    struct cpu_pool *pool;
    struct ops o;
    cu_event from, to;
    devptr base, template[STUFFS], junk;
    uint64_t size, used, mark;
    double copy_bytes_per_s, seconds;
    char **only;
    int only_count;
    uint32_t failures;
};

struct job {
    struct bench *b;
    char name[64];
    uint32_t rows, sets;
    uint64_t bytes; // read and written, as they must be
    double flop;
    void (*issue)(const struct job *j, uint32_t set);
    devptr out; // whose first row's bits are compared
    uint64_t out_bytes;
    devptr state; // cleared before that
    uint64_t state_bytes;
    union {
        struct linear_args linear[SETS_MAX];
        struct attn_args attn;
        struct kv_append_args kv_append;
        struct conv_args conv;
        struct delta_norm_args delta_norm;
        struct delta_gates_args delta_gates;
        struct delta_scan_args delta_scan;
        struct gated_norm_args gated_norm;
        struct delta_mix_args delta_mix;
        struct delta_commit_args delta_commit;
        struct rmsnorm_args rmsnorm;
        struct swiglu_args swiglu;
        struct draw_args draw;
        struct embed_args embed;
        struct {
            struct experts_args experts[SETS_MAX];
            struct linear_args linear;
            struct router_args router;
        } moe;
    } u;
};

static void must(int st, const struct err *e) {
    if (!st) return;
    fprintf(stderr, "ops_bench: %s\n", e->msg);
    exit(1);
}

static void sync(struct bench *b) {
    struct err e = {0};
    must(b->o.sync(b->o.ctx, &e), &e);
}

static bool wanted(const struct bench *b, const char *name) {
    for (int i = 0; i < b->only_count; i++)
        if (strstr(name, b->only[i])) return true;
    return !b->only_count;
}

// Memory

static uint32_t next_random(uint64_t *s) {
    *s = *s * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(*s >> 32);
}

static float next_normal(uint64_t *s) {
    float sum = 0;
    for (int i = 0; i < 4; i++) sum += (float)(next_random(s) >> 8) * 0x1p-24f;
    return (sum - 2.0f) * 1.7320508f;
}

static void make_template(enum stuff k, uint64_t *s, unsigned char *ret) {
    for (uint64_t i = 0; i < TEMPLATE_BYTES; i += 4) {
        uint32_t w = next_random(s);
        float a = k == STUFF_BYTES ? 0 : next_normal(s);
        if (k == STUFF_F32) w = arith_bits(a);
        if (k == STUFF_BF16)
            w = arith_to_bf16(a * 0.02f) | (uint32_t)arith_to_bf16(a * -0.013f) << 16;
        if (k == STUFF_F16_SIGNS) w = 0x3c003c00u ^ (w & 0x80008000u);
        if (k == STUFF_E4M3) w = 0x30303030u ^ (w & 0x8f8f8f8fu);
        memcpy(ret + i, &w, 4);
    }
}

static devptr take(struct bench *b, uint64_t bytes) {
    devptr p = b->base + b->used;
    b->used += (bytes + 1023) / 1024 * 1024;
    if (b->used <= b->size) return p;
    fprintf(stderr, "ops_bench: wanted %.1f GiB of the card, found %.1f\n",
            (double)b->used / (double)GIB, (double)b->size / (double)GIB);
    exit(1);
}

static devptr take_filled(struct bench *b, enum stuff k, uint64_t bytes) {
    devptr p = take(b, bytes);
    for (uint64_t done = 0; done < bytes; done += TEMPLATE_BYTES)
        b->o.copy(b->o.ctx, p + done, b->template[k], min_u64(bytes - done, TEMPLATE_BYTES));
    return p;
}

static devptr take_words(struct bench *b, const uint32_t *w, uint32_t count) {
    devptr p = take(b, (uint64_t)count * 4);
    b->o.write(b->o.ctx, p, w, (uint64_t)count * 4);
    return p;
}

static void open_bench(struct bench *b) {
    struct err e = {0};
    must(cuda_driver_open(&b->driver, &e), &e);
    must(cpu_pool_new(&b->pool, 1, &e), &e);
    struct ops_cuda_config config = {.driver = &b->driver, .pool = b->pool};
    must(ops_cuda_open(&b->o, &config, &e), &e);
    b->driver.event_new(&b->from, 0);
    b->driver.event_new(&b->to, 0);
    b->size = b->o.free_bytes(b->o.ctx) * 9 / 10;
    must(b->o.alloc(b->o.ctx, b->size, "ops_bench", &b->base, &e), &e);
    struct ops_work work = {8 * GIB, GIB};
    devptr scratch = take(b, work.scratch_bytes), counters = take(b, work.counter_bytes);
    b->o.work_give(b->o.ctx, scratch, counters, work);
    b->junk = take(b, 8 * GIB);
    unsigned char *host = mem_alloc(TEMPLATE_BYTES);
    uint64_t seed = 1;
    for (enum stuff k = 0; k < STUFFS; k++) {
        make_template(k, &seed, host);
        b->template[k] = take(b, TEMPLATE_BYTES);
        b->o.write(b->o.ctx, b->template[k], host, TEMPLATE_BYTES);
    }
    free(host);
    b->mark = b->used;
}

// Time

static void record(struct bench *b, cu_event e) {
    b->driver.event_record(e, ((struct cuda *)b->o.ctx)->stream);
}

static double elapsed(struct bench *b) {
    float ms = 0;
    sync(b);
    b->driver.event_ms(&ms, b->from, b->to);
    return (double)ms * 1e-3;
}

// The device is kept busy until all launches wait in its queue, so that the host's time is not in it.
static double time_once(const struct job *j, uint32_t count) {
    struct bench *b = j->b;
    b->o.fill(b->o.ctx, b->junk, 0, 8 * GIB);
    record(b, b->from);
    for (uint32_t i = 0; i < count; i++) j->issue(j, i % j->sets);
    record(b, b->to);
    return elapsed(b) / count;
}

static int compare_doubles(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double time_job(const struct job *j) {
    double all[REPEATS], once = time_once(j, 2);
    double room = j->b->seconds / REPEATS / once;
    uint32_t count = room < 2 ? 2 : room > 200 ? 200 : (uint32_t)room;
    for (int i = 0; i < REPEATS; i++) all[i] = time_once(j, count);
    qsort(all, REPEATS, sizeof *all, compare_doubles);
    return all[REPEATS / 2];
}

static void measure_copy(struct bench *b) {
    uint64_t bytes = 4 * GIB;
    double best = 0;
    for (int i = 0; i < REPEATS; i++) {
        record(b, b->from);
        b->o.copy(b->o.ctx, b->junk, b->junk + bytes, bytes);
        record(b, b->to);
        best = fmax(best, 2.0 * (double)bytes / elapsed(b));
    }
    b->copy_bytes_per_s = best;
    printf("%s %s, %u multiprocessors: a copy reads and writes %.2f TB/s\n", b->o.device,
           b->o.variant, ((struct cuda *)b->o.ctx)->arch.sm_count, best * 1e-12);
}

static uint64_t digest_out(const struct job *j) {
    struct bench *b = j->b;
    if (!j->out) return 0;
    if (j->state) b->o.fill(b->o.ctx, j->state, 0, j->state_bytes);
    b->o.fill(b->o.ctx, j->out, 0, j->out_bytes);
    j->issue(j, 0);
    uint32_t *w = mem_alloc(j->out_bytes);
    b->o.read(b->o.ctx, w, j->out, j->out_bytes);
    sync(b);
    uint64_t h = 14695981039346656037u;
    for (uint64_t i = 0; i < j->out_bytes / 4; i++) h = (h ^ w[i]) * 1099511628211u;
    free(w);
    return h;
}

// *bits: of this case's first row, 0 before its first.
static void run_job(struct job *j, uint64_t *bits) {
    struct bench *b = j->b;
    if (!j->sets) j->sets = 1;
    uint64_t h = digest_out(j);
    bool differ = *bits && h && h != *bits;
    if (!*bits) *bits = h;
    b->failures += differ;
    double s = time_job(j), floor = (double)j->bytes / b->copy_bytes_per_s;
    printf(
        "%-28s rows %5u %10.2f us %8.1f MB %6.2f TB/s %5.2fx its bytes %7.1f TFLOP/s  %016" PRIx64
        "%s\n",
        j->name, j->rows, s * 1e6, (double)j->bytes * 1e-6, (double)j->bytes / s * 1e-12, s / floor,
        j->flop / s * 1e-12, h, differ ? "  BITS DIFFER" : "");
    fflush(stdout);
    b->used = b->mark;
}

// Linear layers

enum form { FORM_MUL1, FORM_MCG, FORM_BF16 };

struct shape {
    const char *name;
    uint32_t cols, parts[LINEAR_PARTS_MAX], small; // small: further parts of 48 outputs, bf16
    bool add;
    enum linear_maker maker; // of the rows
};

static const struct shape shapes[] = {
    {"gate_up", HIDDEN, {17408, 17408}, 0, false, LINEAR_AS_IT_IS},
    {"down", 17408, {HIDDEN}, 0, true, LINEAR_AS_IT_IS},
    {"delta_in", HIDDEN, {CHANNELS, VALUE_HEADS *DELTA_DIM}, 2, false, LINEAR_AS_IT_IS},
    {"out", VALUE_HEADS *DELTA_DIM, {HIDDEN}, 0, true, LINEAR_AS_IT_IS},
    {"qkv",
     HIDDEN,
     {2 * HEADS * HEAD_DIM, KV_HEADS *HEAD_DIM, KV_HEADS *HEAD_DIM},
     0,
     false,
     LINEAR_AS_IT_IS},
    {"one_17408", HIDDEN, {17408}, 0, false, LINEAR_AS_IT_IS},
    {"norm, gate_up", HIDDEN, {17408, 17408}, 0, false, LINEAR_NORM},
    {"norm, delta_in", HIDDEN, {CHANNELS, VALUE_HEADS *DELTA_DIM}, 2, false, LINEAR_NORM},
    {"swiglu, down", 17408, {HIDDEN}, 0, true, LINEAR_SWIGLU},
};

static const struct shape head = {"head", HIDDEN, {VOCAB}, 0, false, LINEAR_AS_IT_IS};

static struct weight take_weight(struct bench *b, enum form f, uint32_t half_bits, uint32_t rows,
                                 uint32_t cols) {
    struct weight w = {.rows = rows, .cols = cols, .dtype = DTYPE_BF16};
    if (f == FORM_BF16) {
        w.data = take_filled(b, STUFF_BF16, (uint64_t)rows * cols * 2);
        return w;
    }
    w.data = take_filled(b, STUFF_BYTES, (uint64_t)rows * cols / 16 * half_bits);
    w.exl3 = (struct exl3){.half_bits = half_bits,
                           .codebook = f == FORM_MUL1 ? EXL3_MUL1 : EXL3_MCG,
                           .suh = take_filled(b, STUFF_F16_SIGNS, cols * 2),
                           .svh = take_filled(b, STUFF_F16_SIGNS, rows * 2)};
    return w;
}

static void issue_linear(const struct job *j, uint32_t set) {
    j->b->o.linear(j->b->o.ctx, &j->u.linear[set]);
}

static void make_linear(struct job *j, const struct shape *s, enum form f, uint32_t half_bits,
                        uint32_t rows) {
    struct bench *b = j->b;
    uint64_t outputs = 0, weight_bytes = 0, x_bytes = (uint64_t)rows * s->cols * 4;
    struct linear_args a = {.rows = rows, .x = take_filled(b, STUFF_F32, x_bytes)};
    if (s->maker)
        a.from = (struct linear_from){.maker = s->maker,
                                      .eps = 1e-6f,
                                      .x = take_filled(b, STUFF_F32, x_bytes),
                                      .other = take_filled(b, STUFF_F32, x_bytes)};
    for (uint32_t i = 0; i < LINEAR_PARTS_MAX && (s->parts[i] || s->small); i++) {
        uint32_t n = s->parts[i] ? s->parts[i] : VALUE_HEADS;
        if (!s->parts[i] && i >= 2 + s->small) break;
        a.parts[a.parts_count++] =
            (struct linear_part){.add = s->add, .y = take(b, (uint64_t)rows * n * 4)};
        outputs += n;
        weight_bytes += f == FORM_BF16 || !s->parts[i] ? (uint64_t)n * s->cols * 2
                                                       : (uint64_t)n * s->cols / 16 * half_bits;
    }
    j->sets = min_u32(SETS_MAX, (uint32_t)(256000000 / weight_bytes) + 2);
    for (uint32_t set = 0; set < j->sets; set++) {
        for (uint32_t i = 0; i < a.parts_count; i++)
            a.parts[i].w = take_weight(b, s->parts[i] ? f : FORM_BF16, half_bits,
                                       s->parts[i] ? s->parts[i] : VALUE_HEADS, s->cols);
        j->u.linear[set] = a;
    }
    j->bytes = weight_bytes + x_bytes + (s->add ? 2 : 1) * outputs * rows * 4;
    j->flop = 2.0 * (double)rows * (double)outputs * s->cols;
    j->issue = issue_linear;
    j->out = a.parts[0].y;
    j->out_bytes = (uint64_t)s->parts[0] * 4;
}

static void bench_linear(struct bench *b, const struct shape *s, enum form f, uint32_t half_bits,
                         const uint32_t *rows) {
    static const char *const forms[] = {"mul1", "mcg", "bf16"};
    uint64_t bits = 0;
    for (; *rows; rows++) {
        struct job j = {.b = b, .rows = *rows};
        if (f == FORM_BF16)
            snprintf(j.name, sizeof j.name, "linear bf16 %s", s->name);
        else
            snprintf(j.name, sizeof j.name, "linear %s %u.%u %s", forms[f], half_bits / 2,
                     half_bits % 2 * 5, s->name);
        if (!wanted(b, j.name)) return;
        make_linear(&j, s, f, half_bits, *rows);
        run_job(&j, &bits);
    }
}

static void bench_linears(struct bench *b) {
    static const uint32_t all[] = {1, 2, 4, 8, 16, 32, 64, 128, 256, 2048, 0};
    static const uint32_t few[] = {1, 8, 16, 64, 2048, 0}, of_head[] = {1, 8, 64, 0};
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        const uint32_t *rows = i < 2 ? all : few;
        bench_linear(b, &shapes[i], FORM_MUL1, 8, rows);
        bench_linear(b, &shapes[i], FORM_MUL1, 7, few);
        bench_linear(b, &shapes[i], FORM_MCG, 8, rows);
        bench_linear(b, &shapes[i], FORM_MCG, 6, few);
        bench_linear(b, &shapes[i], FORM_BF16, 0, few);
    }
    bench_linear(b, &head, FORM_MUL1, 12, of_head);
    bench_linear(b, &head, FORM_MCG, 12, of_head);
    bench_linear(b, &head, FORM_BF16, 0, of_head);
}

// Experts of a 35B-A3B: 256 of them, eight a row, and the shared one

enum { EXPERTS = 256, PICKS = 8, EXPERT_DIM = 2048, EXPERT_WIDTH = 512 };

static void issue_experts(const struct job *j, uint32_t set) {
    j->b->o.experts(j->b->o.ctx, &j->u.moe.experts[set]);
}

// The router too.
static void issue_moe(const struct job *j, uint32_t set) {
    const struct ops *o = &j->b->o;
    const struct experts_args *a = &j->u.moe.experts[0];
    o->linear(o->ctx, &j->u.moe.linear);
    o->router(o->ctx, &j->u.moe.router);
    o->experts(o->ctx, a);
}

// Sets differ in their picks, but for those of the first row of the first one. *ret_used: experts that a set needs, the most.
static devptr take_picks(struct bench *b, uint32_t rows, uint32_t set, uint32_t *ret_used) {
    uint32_t *ids = mem_calloc(rows * PICKS, 4), used = 0;
    bool have[EXPERTS] = {0};
    for (uint32_t i = 0; i < rows * PICKS; i++) {
        uint32_t row = i / PICKS, place = i % PICKS; // 37 is odd: a row's picks differ
        ids[i] = (row * 101 + set * 53 + (row + 1) * place * 37 % EXPERTS) % EXPERTS;
        if (place && (row + 1) % 2 == 0) ids[i] = (ids[i - 1] + 1) % EXPERTS;
        used += !have[ids[i]];
        have[ids[i]] = true;
    }
    *ret_used = used > *ret_used ? used : *ret_used;
    devptr p = take_words(b, ids, rows * PICKS);
    free(ids);
    return p;
}

static void take_experts(struct bench *b, enum form f, uint32_t half_bits, struct expert *ret) {
    for (uint32_t e = 0; e < EXPERTS + 1; e++) {
        ret[e].gate = take_weight(b, f, half_bits, EXPERT_WIDTH, EXPERT_DIM);
        ret[e].up = take_weight(b, f, half_bits, EXPERT_WIDTH, EXPERT_DIM);
        ret[e].down = take_weight(b, f, half_bits, EXPERT_DIM, EXPERT_WIDTH);
    }
}

// The router's outputs and the shared expert's gate, whose picks take the first set's place.
static void take_router(struct job *j, struct experts_args *a) {
    struct bench *b = j->b;
    devptr logits = take(b, (uint64_t)j->rows * EXPERTS * 4);
    a->experts = take(b, (uint64_t)j->rows * PICKS * 4);
    j->u.moe.linear = (struct linear_args){
        .x = a->x,
        .rows = j->rows,
        .parts_count = 2,
        .parts = {{.w = take_weight(b, FORM_BF16, 0, EXPERTS, EXPERT_DIM), .y = logits},
                  {.w = take_weight(b, FORM_BF16, 0, 1, EXPERT_DIM), .y = a->gate}}};
    j->u.moe.router = (struct router_args){.logits = logits,
                                           .experts = a->experts,
                                           .weights = a->weights,
                                           .rows = j->rows,
                                           .count = EXPERTS,
                                           .per_token = PICKS};
}

static void bench_experts(struct bench *b, enum form f, uint32_t half_bits, bool whole) {
    static const uint32_t rows[] = {1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 2048, 0};
    static const char *const forms[] = {"mul1", "mcg", "bf16"};
    uint64_t bits = 0, of_matrix = (uint64_t)EXPERT_DIM * EXPERT_WIDTH;
    for (const uint32_t *r = rows; *r; r++) {
        struct job j = {
            .b = b, .rows = *r, .sets = whole ? 1 : 8, .issue = whole ? issue_moe : issue_experts};
        snprintf(j.name, sizeof j.name, "moe %s %s %u.%u", whole ? "all" : "experts", forms[f],
                 half_bits / 2, half_bits % 2 * 5);
        if (!wanted(b, j.name)) return;
        struct expert *table = mem_calloc(EXPERTS + 1, sizeof *table);
        take_experts(b, f, half_bits, table);
        uint64_t x_bytes = (uint64_t)*r * EXPERT_DIM * 4;
        struct experts_args a = {.rows = *r,
                                 .shared = 1,
                                 .dim = EXPERT_DIM,
                                 .width = EXPERT_WIDTH,
                                 .count = EXPERTS,
                                 .per_token = PICKS,
                                 .table = table};
        a.dev_table = take(b, (EXPERTS + 1) * sizeof *table);
        b->o.write(b->o.ctx, a.dev_table, table, (EXPERTS + 1) * sizeof *table);
        a.x = take_filled(b, STUFF_F32, x_bytes);
        a.gate = take_filled(b, STUFF_F32, (uint64_t)*r * 4);
        a.weights = take_filled(b, STUFF_F32, (uint64_t)*r * PICKS * 4);
        a.h = take(b, x_bytes);
        uint32_t used = 0;
        for (uint32_t set = 0; set < j.sets; set++) {
            j.u.moe.experts[set] = a;
            j.u.moe.experts[set].experts = take_picks(b, *r, set, &used);
        }
        if (whole) take_router(&j, &j.u.moe.experts[0]);
        j.bytes = (used + 1) * 3 * (f == FORM_BF16 ? of_matrix * 2 : of_matrix / 16 * half_bits) +
                  3 * x_bytes;
        j.flop = 6.0 * (double)of_matrix * *r * (PICKS + 1);
        j.out = a.h;
        j.out_bytes = EXPERT_DIM * 4;
        run_job(&j, &bits);
        free(table);
    }
}

// Rows of streams

// `streams` runs of `count` rows each, the first row of each at position pos.
static struct rows take_rows(struct bench *b, uint32_t streams, uint32_t count, uint32_t pos) {
    uint32_t total = streams * count;
    struct run *runs = mem_calloc(streams, sizeof *runs);
    uint32_t *slot = mem_calloc(total, 4), *at = mem_calloc(total, 4);
    for (uint32_t i = 0; i < streams; i++)
        runs[i] = (struct run){.slot = i, .row = i * count, .pos = pos, .count = count};
    for (uint32_t i = 0; i < total; i++) {
        slot[i] = i / count;
        at[i] = pos + i % count;
    }
    struct rows r = {.count = total, .runs_count = streams};
    r.runs = take(b, streams * sizeof *runs);
    b->o.write(b->o.ctx, r.runs, runs, streams * sizeof *runs);
    r.slot = take_words(b, slot, total);
    r.pos = take_words(b, at, total);
    free(runs);
    free(slot);
    free(at);
    return r;
}

static struct kv_view take_kv(struct bench *b, uint32_t streams, uint32_t tokens, enum dtype d) {
    uint32_t pages = ceil_div_u32(tokens, KV_PAGE_TOKENS), total = streams * pages;
    uint32_t *table = mem_calloc(total, 4);
    for (uint32_t i = 0; i < total; i++) table[i] = i;
    uint64_t bytes = (uint64_t)total * KV_PAGE_TOKENS * KV_HEADS * HEAD_DIM * dtype_bytes(d);
    enum stuff k = d == DTYPE_E4M3 ? STUFF_E4M3 : d == DTYPE_BF16 ? STUFF_BF16 : STUFF_F32;
    struct kv_view v = {.k = take_filled(b, k, bytes),
                        .v = take_filled(b, k, bytes),
                        .table = take_words(b, table, total),
                        .pages_per_slot = pages,
                        .heads = KV_HEADS,
                        .dim = HEAD_DIM,
                        .dtype = d};
    free(table);
    return v;
}

static void issue_attn(const struct job *j, uint32_t set) {
    j->b->o.attn(j->b->o.ctx, &j->u.attn);
}

static void bench_attn_rows(struct bench *b, enum dtype d, uint32_t streams, uint32_t count,
                            uint32_t pos, uint64_t *bits) {
    struct job j = {.b = b, .rows = streams * count, .issue = issue_attn};
    snprintf(j.name, sizeof j.name, "attn %s at %u x%u", d == DTYPE_BF16 ? "bf16" : "e4m3", pos,
             streams);
    if (!wanted(b, j.name)) return;
    uint64_t wide = (uint64_t)HEADS * HEAD_DIM;
    j.u.attn = (struct attn_args){.rows = take_rows(b, streams, count, pos),
                                  .kv = take_kv(b, streams, pos + count, d),
                                  .qg = take_filled(b, STUFF_F32, j.rows * wide * 8),
                                  .out = take(b, j.rows * wide * 4),
                                  .heads = HEADS,
                                  .scale = 0.0625f};
    double keys = (double)count * pos + 0.5 * count * (count + 1.0);
    j.bytes = (uint64_t)streams * (pos + count) * KV_HEADS * HEAD_DIM * 2 * dtype_bytes(d) +
              j.rows * wide * 12;
    j.flop = 4.0 * streams * keys * (double)wide;
    j.out = j.u.attn.out;
    j.out_bytes = wide * 4;
    run_job(&j, bits);
}

static void bench_attn(struct bench *b) {
    static const uint32_t contexts[] = {1000, 8191, 32768, 131072};
    for (int k = 0; k < 2; k++)
        for (int i = 0; i < 4; i++) {
            enum dtype d = k ? DTYPE_E4M3 : DTYPE_BF16;
            uint64_t bits = 0;
            bench_attn_rows(b, d, 1, 1, contexts[i], &bits);
            bench_attn_rows(b, d, 1, 8, contexts[i], &bits);
            if (i < 3) bench_attn_rows(b, d, 8, 1, contexts[i], &bits);
            if (i < 3) bench_attn_rows(b, d, 1, 2048, contexts[i], &bits);
        }
    uint64_t bits = 0;
    bench_attn_rows(b, DTYPE_BF16, 1, 2048, 0, &bits);
    bench_attn_rows(b, DTYPE_BF16, 1, 8192, 0, &bits);
}

static void issue_kv_append(const struct job *j, uint32_t set) {
    j->b->o.kv_append(j->b->o.ctx, &j->u.kv_append);
}

static void bench_kv_append(struct bench *b, uint32_t rows) {
    struct job j = {.b = b, .rows = rows, .name = "kv_append", .issue = issue_kv_append};
    uint64_t bits = 0, kv = (uint64_t)KV_HEADS * HEAD_DIM * 4, q = (uint64_t)HEADS * HEAD_DIM * 8;
    if (!wanted(b, j.name)) return;
    j.u.kv_append = (struct kv_append_args){.rows = take_rows(b, 1, rows, 1000),
                                            .kv = take_kv(b, 1, 1000 + rows, DTYPE_BF16),
                                            .qg = take_filled(b, STUFF_F32, rows * q),
                                            .k = take_filled(b, STUFF_F32, rows * kv),
                                            .v = take_filled(b, STUFF_F32, rows * kv),
                                            .angles = take_filled(b, STUFF_F32, rows * 256),
                                            .q_scale = take_filled(b, STUFF_F32, HEAD_DIM * 4),
                                            .k_scale = take_filled(b, STUFF_F32, HEAD_DIM * 4),
                                            .heads = HEADS,
                                            .pairs = 32,
                                            .eps = 1e-6f};
    j.bytes = rows * (q + 3 * kv);
    run_job(&j, &bits);
}

static void issue_conv(const struct job *j, uint32_t set) {
    j->b->o.conv(j->b->o.ctx, &j->u.conv);
}

static void issue_conv_store(const struct job *j, uint32_t set) {
    const struct conv_args *a = &j->u.conv;
    j->b->o.conv_store(j->b->o.ctx, &(struct conv_store_args){.runs = a->rows.runs,
                                                              .runs_count = a->rows.runs_count,
                                                              .m = a->m,
                                                              .state = a->state,
                                                              .slot_stride = a->slot_stride,
                                                              .channels = a->channels});
}

static void issue_delta_norm(const struct job *j, uint32_t set) {
    j->b->o.delta_norm(j->b->o.ctx, &j->u.delta_norm);
}

static void issue_delta_gates(const struct job *j, uint32_t set) {
    j->b->o.delta_gates(j->b->o.ctx, &j->u.delta_gates);
}

static void issue_delta_scan(const struct job *j, uint32_t set) {
    j->b->o.delta_scan(j->b->o.ctx, &j->u.delta_scan);
}

static void issue_gated_norm(const struct job *j, uint32_t set) {
    j->b->o.gated_norm(j->b->o.ctx, &j->u.gated_norm);
}

static struct job delta_job(struct bench *b, const char *name, uint32_t streams, uint32_t count) {
    struct job j = {.b = b, .rows = streams * count};
    snprintf(j.name, sizeof j.name, "%s x%u", name, streams);
    return j;
}

static void bench_delta_scan(struct bench *b, uint32_t streams, uint32_t count, uint64_t *bits) {
    struct job j = delta_job(b, "delta_scan", streams, count);
    uint64_t wide = (uint64_t)VALUE_HEADS * DELTA_DIM, state = wide * DELTA_DIM * 4;
    if (!wanted(b, j.name)) return;
    struct rows r = take_rows(b, streams, count, 1000);
    // Keys and queries of small length, gates below 1: the state stays finite.
    uint32_t rows = j.rows;
    float *gates = mem_calloc(rows * 2 * VALUE_HEADS, sizeof *gates);
    for (uint32_t i = 0; i < rows * 2 * VALUE_HEADS; i++)
        gates[i] = 0.9f - 0.001f * (float)(i % 97);
    devptr dev_gates = take(b, (uint64_t)rows * 2 * VALUE_HEADS * 4);
    b->o.write(b->o.ctx, dev_gates, gates, (uint64_t)rows * 2 * VALUE_HEADS * 4);
    free(gates);
    devptr qkv = take(b, (uint64_t)rows * CHANNELS * 4);
    float *x = mem_alloc((uint64_t)rows * CHANNELS * 4);
    uint64_t seed = 3;
    for (uint64_t i = 0; i < (uint64_t)rows * CHANNELS; i++) x[i] = next_normal(&seed) * 0.08f;
    b->o.write(b->o.ctx, qkv, x, (uint64_t)rows * CHANNELS * 4);
    free(x);
    j.u.delta_scan = (struct delta_scan_args){.runs = r.runs,
                                              .runs_count = streams,
                                              .rows = rows,
                                              .qkv = qkv,
                                              .gates = dev_gates,
                                              .out = take(b, rows * wide * 4),
                                              .state = take_filled(b, STUFF_F32, streams * state),
                                              .slot_stride = state,
                                              .key_heads = KEY_HEADS,
                                              .value_heads = VALUE_HEADS,
                                              .key_dim = DELTA_DIM,
                                              .value_dim = DELTA_DIM};
    j.issue = issue_delta_scan;
    j.bytes = streams * state * 2 + (uint64_t)rows * (CHANNELS + wide + 2 * VALUE_HEADS) * 4;
    j.flop = (double)rows * (double)wide * DELTA_DIM * 8;
    j.out = j.u.delta_scan.out;
    j.out_bytes = wide * 4;
    j.state = j.u.delta_scan.state;
    j.state_bytes = streams * state;
    run_job(&j, bits);
}

static void bench_delta_small(struct bench *b, uint32_t streams, uint32_t count) {
    uint32_t rows = streams * count;
    uint64_t bits = 0, wide = (uint64_t)VALUE_HEADS * DELTA_DIM,
             channels = (uint64_t)rows * CHANNELS * 4;
    uint64_t state = (uint64_t)3 * CHANNELS * 4;
    struct job j = delta_job(b, "conv", streams, count),
               store = delta_job(b, "conv_store", streams, count);
    if (wanted(b, j.name)) {
        j.u.conv = (struct conv_args){.rows = take_rows(b, streams, count, 1000),
                                      .m = take_filled(b, STUFF_F32, channels),
                                      .w = take_filled(b, STUFF_F32, (uint64_t)CHANNELS * 16),
                                      .y = take(b, channels),
                                      .state = take_filled(b, STUFF_F32, streams * state),
                                      .slot_stride = state,
                                      .channels = CHANNELS};
        store.u.conv = j.u.conv;
        j.issue = issue_conv;
        store.issue = issue_conv_store;
        j.bytes = 2 * channels + streams * state + CHANNELS * 16;
        store.bytes = 2 * streams * state;
        run_job(&j, &bits);
        run_job(&store, &bits);
    }
    j = delta_job(b, "delta_norm", streams, count);
    if (wanted(b, j.name)) {
        j.u.delta_norm = (struct delta_norm_args){.qkv = take_filled(b, STUFF_F32, channels),
                                                  .rows = rows,
                                                  .channels = CHANNELS,
                                                  .key_heads = KEY_HEADS,
                                                  .key_dim = DELTA_DIM,
                                                  .q_scale = 0.088f};
        j.issue = issue_delta_norm;
        j.bytes = (uint64_t)rows * 2 * KEY_HEADS * DELTA_DIM * 8;
        run_job(&j, &bits);
    }
    j = delta_job(b, "delta_gates", streams, count);
    if (wanted(b, j.name)) {
        uint64_t bytes = (uint64_t)rows * VALUE_HEADS * 4;
        j.u.delta_gates =
            (struct delta_gates_args){.a = take_filled(b, STUFF_F32, bytes),
                                      .b = take_filled(b, STUFF_F32, bytes),
                                      .neg_a = take_filled(b, STUFF_F32, VALUE_HEADS * 4),
                                      .dt_bias = take_filled(b, STUFF_F32, VALUE_HEADS * 4),
                                      .gates = take(b, 2 * bytes),
                                      .rows = rows,
                                      .heads = VALUE_HEADS};
        j.issue = issue_delta_gates;
        j.bytes = 4 * bytes;
        run_job(&j, &bits);
    }
    j = delta_job(b, "gated_norm", streams, count);
    if (wanted(b, j.name)) {
        uint64_t bytes = rows * wide * 4;
        j.u.gated_norm = (struct gated_norm_args){.o = take_filled(b, STUFF_F32, bytes),
                                                  .z = take_filled(b, STUFF_F32, bytes),
                                                  .w = take_filled(b, STUFF_F32, DELTA_DIM * 4),
                                                  .y = take(b, bytes),
                                                  .rows = rows,
                                                  .heads = VALUE_HEADS,
                                                  .dim = DELTA_DIM,
                                                  .eps = 1e-6f};
        j.issue = issue_gated_norm;
        j.bytes = 3 * bytes;
        run_job(&j, &bits);
    }
}

// All of a layer's, each time another layer's, so that no state is found in the cache.
static void issue_delta_mix(const struct job *j, uint32_t set) {
    struct delta_mix_args a = j->u.delta_mix;
    uint64_t layer = a.slot_stride / DELTA_LAYERS;
    a.conv_state += set * layer;
    a.state += set * layer;
    j->b->o.delta_mix(j->b->o.ctx, &a);
}

static void issue_delta_commit(const struct job *j, uint32_t set) {
    j->b->o.delta_commit(j->b->o.ctx, &j->u.delta_commit);
}

static void bench_delta_mix(struct bench *b, uint32_t streams, uint32_t count, uint64_t *bits) {
    struct job j = delta_job(b, "delta_mix", streams, count);
    uint64_t wide = (uint64_t)VALUE_HEADS * DELTA_DIM * 4, channels = (uint64_t)CHANNELS * 4;
    uint64_t conv = 3 * channels, layer = conv + wide * DELTA_DIM, heads = VALUE_HEADS * 4;
    if (!wanted(b, j.name)) return;
    float neg_a[VALUE_HEADS];
    for (uint32_t i = 0; i < VALUE_HEADS; i++) neg_a[i] = -0.5f - 0.01f * (float)i;
    devptr dev_neg_a = take(b, sizeof neg_a);
    b->o.write(b->o.ctx, dev_neg_a, neg_a, sizeof neg_a);
    j.state_bytes = streams * DELTA_LAYERS * layer;
    j.state = take(b, j.state_bytes);
    b->o.fill(b->o.ctx, j.state, 0, j.state_bytes);
    j.u.delta_mix = (struct delta_mix_args){.rows = take_rows(b, streams, count, 1000),
                                            .m = take_filled(b, STUFF_F32, j.rows * channels),
                                            .z = take_filled(b, STUFF_F32, j.rows * wide),
                                            .a = take_filled(b, STUFF_F32, j.rows * heads),
                                            .b = take_filled(b, STUFF_F32, j.rows * heads),
                                            .qkv = take(b, j.rows * channels),
                                            .gates = take(b, j.rows * 2 * heads),
                                            .o = take(b, j.rows * wide),
                                            .conv_w = take_filled(b, STUFF_F32, 4 * channels),
                                            .neg_a = dev_neg_a,
                                            .dt_bias = take_filled(b, STUFF_F32, heads),
                                            .norm_w = take_filled(b, STUFF_F32, DELTA_DIM * 4),
                                            .conv_state = j.state,
                                            .state = j.state + conv,
                                            .slot_stride = DELTA_LAYERS * layer,
                                            .key_heads = KEY_HEADS,
                                            .value_heads = VALUE_HEADS,
                                            .key_dim = DELTA_DIM,
                                            .value_dim = DELTA_DIM,
                                            .q_scale = 0.088f,
                                            .eps = 1e-6f};
    j.sets = DELTA_LAYERS;
    j.issue = issue_delta_mix;
    j.bytes = streams * layer * 2 + j.rows * (channels + 2 * wide + 2 * heads) + 4 * channels;
    j.flop = (double)j.rows * (double)wide * DELTA_DIM * 2;
    j.out = j.u.delta_mix.o;
    j.out_bytes = wide;
    run_job(&j, bits);
}

// All layers of a window's rows.
static void bench_delta_commit(struct bench *b, uint32_t streams, uint32_t count) {
    struct job j = delta_job(b, "delta_commit", streams, count);
    uint64_t bits = 0, wide = (uint64_t)VALUE_HEADS * DELTA_DIM * 4, channels = CHANNELS * 4;
    uint64_t conv = 3 * channels, layer = conv + wide * DELTA_DIM, heads = VALUE_HEADS * 4;
    if (!wanted(b, j.name)) return;
    devptr runs = take_rows(b, streams, count, 1000).runs;
    j.state_bytes = streams * DELTA_LAYERS * layer;
    j.state = take(b, j.state_bytes);
    b->o.fill(b->o.ctx, j.state, 0, j.state_bytes);
    struct delta_commit_args a = {.layers = DELTA_LAYERS,
                                  .layer_bytes = layer,
                                  .m_bytes = j.rows * channels,
                                  .qkv_bytes = j.rows * channels,
                                  .gates_bytes = j.rows * 2 * heads};
    a.scan = (struct delta_scan_args){.runs = runs,
                                      .runs_count = streams,
                                      .rows = j.rows,
                                      .qkv = take_filled(b, STUFF_F32, DELTA_LAYERS * a.qkv_bytes),
                                      .gates = take(b, DELTA_LAYERS * a.gates_bytes),
                                      .state = j.state + conv,
                                      .slot_stride = DELTA_LAYERS * layer,
                                      .key_heads = KEY_HEADS,
                                      .value_heads = VALUE_HEADS,
                                      .key_dim = DELTA_DIM,
                                      .value_dim = DELTA_DIM};
    a.conv = (struct conv_store_args){.runs = runs,
                                      .runs_count = streams,
                                      .m = take_filled(b, STUFF_F32, DELTA_LAYERS * a.m_bytes),
                                      .state = j.state,
                                      .slot_stride = DELTA_LAYERS * layer,
                                      .channels = CHANNELS};
    b->o.fill(b->o.ctx, a.scan.gates, 0x3f000000u, DELTA_LAYERS * a.gates_bytes);
    j.u.delta_commit = a;
    j.issue = issue_delta_commit;
    j.bytes = DELTA_LAYERS * (streams * layer * 2 + j.rows * channels);
    j.flop = (double)DELTA_LAYERS * j.rows * (double)wide * DELTA_DIM * 2;
    run_job(&j, &bits);
}

// Rows alone

static void issue_rmsnorm(const struct job *j, uint32_t set) {
    j->b->o.rmsnorm(j->b->o.ctx, &j->u.rmsnorm);
}

static void issue_swiglu(const struct job *j, uint32_t set) {
    j->b->o.swiglu(j->b->o.ctx, &j->u.swiglu);
}

static void issue_draw(const struct job *j, uint32_t set) {
    j->b->o.draw(j->b->o.ctx, &j->u.draw);
}

static void issue_embed(const struct job *j, uint32_t set) {
    j->b->o.embed(j->b->o.ctx, &j->u.embed);
}

static void bench_rows(struct bench *b, uint32_t rows) {
    uint64_t bits = 0, bytes = (uint64_t)rows * HIDDEN * 4, wide = (uint64_t)rows * 17408 * 4;
    struct job j = {.b = b, .rows = rows, .name = "rmsnorm", .issue = issue_rmsnorm};
    if (wanted(b, j.name)) {
        j.u.rmsnorm = (struct rmsnorm_args){.x = take_filled(b, STUFF_F32, bytes),
                                            .scale = take_filled(b, STUFF_F32, HIDDEN * 4),
                                            .y = take(b, bytes),
                                            .rows = rows,
                                            .dim = HIDDEN,
                                            .eps = 1e-6f};
        j.bytes = 2 * bytes;
        run_job(&j, &bits);
    }
    j = (struct job){.b = b, .rows = rows, .name = "swiglu", .issue = issue_swiglu};
    if (wanted(b, j.name)) {
        j.u.swiglu = (struct swiglu_args){.gate = take_filled(b, STUFF_F32, wide),
                                          .up = take_filled(b, STUFF_F32, wide),
                                          .y = take(b, wide),
                                          .rows = rows,
                                          .dim = 17408};
        j.bytes = 3 * wide;
        run_job(&j, &bits);
    }
    j = (struct job){.b = b, .rows = rows, .name = "embed", .issue = issue_embed};
    if (wanted(b, j.name)) {
        uint32_t *ids = mem_calloc(rows, 4);
        for (uint32_t i = 0; i < rows; i++) ids[i] = i * 7919 % VOCAB;
        j.u.embed = (struct embed_args){.table = take_weight(b, FORM_BF16, 0, VOCAB, HIDDEN),
                                        .ids = take_words(b, ids, rows),
                                        .rows = rows,
                                        .x = take(b, bytes)};
        free(ids);
        j.bytes = bytes + bytes / 2;
        run_job(&j, &bits);
    }
    j = (struct job){.b = b, .rows = rows, .name = "draw", .issue = issue_draw};
    if (rows <= 256 && wanted(b, j.name)) {
        struct draw_row *r = mem_calloc(rows, sizeof *r);
        for (uint32_t i = 0; i < rows; i++) r[i] = (struct draw_row){i % 2 ? 0.8 : 0, 0, i, i};
        devptr dev = take(b, rows * sizeof *r), used = take(b, VOCAB / 8);
        b->o.write(b->o.ctx, dev, r, rows * sizeof *r);
        b->o.fill(b->o.ctx, used, 0xffffffffu, VOCAB / 8);
        free(r);
        j.bytes = (uint64_t)rows * VOCAB * 4;
        j.u.draw = (struct draw_args){.logits = take_filled(b, STUFF_F32, j.bytes),
                                      .rows = dev,
                                      .used_bits = used,
                                      .ids = take(b, rows * 4),
                                      .rows_count = rows,
                                      .vocab = VOCAB};
        run_job(&j, &bits);
    }
}

int main(int argc, char **argv) {
    static struct bench b = {.seconds = 0.04};
    argv++;
    argc--;
    if (argc > 1 && !strcmp(*argv, "--seconds")) {
        b.seconds = atof(argv[1]);
        argv += 2;
        argc -= 2;
    }
    b.only = argv;
    b.only_count = argc;
    open_bench(&b);
    measure_copy(&b);
    static const uint32_t rows[] = {1, 8, 64, 2048};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) bench_rows(&b, rows[i]);
    bench_delta_small(&b, 1, 1);
    bench_delta_small(&b, 8, 1);
    bench_delta_small(&b, 1, 2048);
    uint64_t bits = 0;
    bench_delta_scan(&b, 1, 1, &bits);
    bench_delta_scan(&b, 1, 8, &bits);
    bench_delta_scan(&b, 8, 1, &bits);
    bench_delta_scan(&b, 1, 2048, &bits);
    bench_delta_scan(&b, 4, 512, &bits);
    bits = 0;
    bench_delta_mix(&b, 1, 1, &bits);
    bench_delta_mix(&b, 1, 4, &bits);
    bench_delta_mix(&b, 1, 8, &bits);
    bench_delta_mix(&b, 1, 16, &bits);
    bench_delta_mix(&b, 8, 1, &bits);
    bench_delta_mix(&b, 8, 4, &bits);
    bench_delta_mix(&b, 64, 1, &bits);
    bench_delta_mix(&b, 1, 2048, &bits);
    bench_delta_commit(&b, 1, 4);
    bench_delta_commit(&b, 8, 4);
    bench_kv_append(&b, 1);
    bench_kv_append(&b, 8);
    bench_kv_append(&b, 2048);
    bench_attn(&b);
    bench_linears(&b);
    for (int whole = 0; whole < 2; whole++) {
        bench_experts(&b, FORM_MUL1, 8, whole);
        bench_experts(&b, FORM_MCG, 8, whole);
        bench_experts(&b, FORM_BF16, 0, whole);
    }
    bench_experts(&b, FORM_MUL1, 7, false);
    sync(&b);
    b.o.free(b.o.ctx, b.base, b.size);
    ops_close(&b.o);
    cpu_pool_free(b.pool);
    if (b.failures)
        printf("%u cases whose first row's bits depend on the rows beside it\n", b.failures);
    return b.failures ? 1 : 0;
}
