/* Every CUDA kernel against its twin, bit for bit, on a GPU: `kernels_gpu [--only OP] ..`. One line an operation, then one of JSON;
 * exits 1 when a bit differs or the device fails. Needs libc and the driver alone. */
#include "common/err.h"
#include "common/mem.h"
#include "kernels/cpu_pool.h"
#include "kernels/cuda/driver.h"
#include "kernels/ops.h"
#include "tests/lib/op_cases.h"
#include "tests/lib/ops_ref.h"
#include "tests/lib/test.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { SCHEDULES = 3, WORK_BYTES = 256 << 20, WORK_COUNTERS = 8 << 20 };

struct tally {
    const char *name;
    uint32_t cases, runs;
    uint64_t values, unequal;
    double worst; // of |gpu - formula| / range
};

struct device {
    struct cuda_driver driver;
    struct cpu_pool *pool;
    struct ops ops;
    struct ops_work size;
    devptr work, counters;
};

static struct device device_open(void) {
    static struct device d;
    struct err e;
    CHECK_OK(cuda_driver_open(&d.driver, &e), e);
    CHECK_OK(cpu_pool_new(&d.pool, 1, &e), e);
    struct ops_cuda_config config = {.driver = &d.driver, .pool = d.pool};
    CHECK_OK(ops_cuda_open(&d.ops, &config, &e), e);
    const struct ops *o = &d.ops;
    d.size = (struct ops_work){WORK_BYTES, WORK_COUNTERS};
    CHECK_OK(o->alloc(o->ctx, WORK_BYTES, "work", &d.work, &e), e);
    CHECK_OK(o->alloc(o->ctx, WORK_COUNTERS, "counters", &d.counters, &e), e);
    o->work_give(o->ctx, d.work, d.counters, d.size);
    return d;
}

static void device_close(struct device *d) {
    d->ops.free(d->ops.ctx, d->work, WORK_BYTES);
    d->ops.free(d->ops.ctx, d->counters, WORK_COUNTERS);
    ops_close(&d->ops);
    cpu_pool_free(d->pool);
}

// Numbers that are none count as equal: their payload is the machine's.
static bool same(float a, float b) {
    return !memcmp(&a, &b, sizeof a) || (a != a && b != b);
}

static void compare(const struct op_case *c, const float *want, const float *got, uint32_t schedule,
                    struct tally *t) {
    uint32_t before = 0;
    for (uint32_t i = 0; i < c->outputs; i++) {
        if (same(want[i], got[i])) continue;
        if (!before++ && t->unequal == 0)
            test_note("%s [%u, %u, %u, %u, %u, %u] schedule %u output %u: GPU %a, twin %a", c->name,
                      c->size[0], c->size[1], c->size[2], c->size[3], c->size[4], c->size[5],
                      schedule, i, (double)got[i], (double)want[i]);
    }
    if (before)
        test_note("%s [%u, %u, %u, %u, %u, %u] schedule %u: %u of %u differ", c->name, c->size[0],
                  c->size[1], c->size[2], c->size[3], c->size[4], c->size[5], schedule, before,
                  c->outputs);
    t->unequal += before;
    t->values += c->outputs;
    t->runs++;
}

static void compare_formula(const struct op_case *c, const float *got, struct tally *t) {
    double *want = mem_calloc(c->outputs, sizeof *want), range = 0, bad = 0;
    c->reference(c, want);
    for (uint32_t i = 0; i < c->outputs; i++) {
        range = fmax(range, fabs(want[i]));
        bad = fmax(bad, fabs((double)got[i] - want[i]));
    }
    if (range > 0) t->worst = fmax(t->worst, bad / range);
    free(want);
}

static void run_case(const struct ops *gpu, const struct ops *twin, const struct op_case *c,
                     bool formula, struct tally *t) {
    float *want = mem_calloc(c->outputs, sizeof *want), *got = mem_calloc(c->outputs, sizeof *got);
    c->run(twin, c, 0, want);
    for (uint32_t schedule = 0; schedule < SCHEDULES; schedule++) {
        memset(got, 0xff, c->outputs * sizeof *got);
        c->run(gpu, c, schedule, got);
        compare(c, want, got, schedule, t);
    }
    if (formula) compare_formula(c, got, t);
    t->cases++;
    free(want);
    free(got);
}

// Under a checker that slows kernels down a hundredfold: one case in that many.
static uint32_t cases_step(void) {
    const char *step = getenv("RAILYARD_CASES_STEP");
    return step ? (uint32_t)atoi(step) : 1;
}

static void run_op(const char *name) {
    struct device d = device_open();
    struct ops twin;
    struct tally t = {.name = name};
    ops_ref_open(&twin);
    uint32_t step = cases_step();
    for (uint32_t i = 0; i < op_cases_count; i += step)
        if (!strcmp(op_cases[i].name, name)) run_case(&d.ops, &twin, &op_cases[i], true, &t);
    for (uint32_t i = 0; i < op_cases_rows_count; i += step)
        if (!strcmp(op_cases_rows[i].name, name))
            run_case(&d.ops, &twin, &op_cases_rows[i], false, &t);
    test_note(
        "{\"op\": \"%s\", \"device\": \"%s\", \"variant\": \"%s\", \"cases\": %u, \"runs\": %u, "
        "\"values\": %llu, \"unequal\": %llu, \"formula\": %.2g}",
        name, d.ops.device, d.ops.variant, t.cases, t.runs, (unsigned long long)t.values,
        (unsigned long long)t.unequal, t.worst);
    device_close(&d);
    ops_close(&twin);
    CHECK(t.cases > 0);
    CHECK_EQ_U64(t.unequal, 0);
}

// All shapes of op_cases once: what compute-sanitizer is run over, which is slow.
TEST(each_kernel_once) {
    struct device d = device_open();
    struct ops twin;
    struct tally t = {.name = "each"};
    ops_ref_open(&twin);
    for (uint32_t i = 0; i < op_cases_count; i++) {
        const struct op_case *c = &op_cases[i];
        float *want = mem_calloc(c->outputs, sizeof *want);
        float *got = mem_calloc(c->outputs, sizeof *got);
        c->run(&twin, c, 0, want);
        c->run(&d.ops, c, 1, got);
        compare(c, want, got, 1, &t);
        free(want);
        free(got);
    }
    device_close(&d);
    ops_close(&twin);
    CHECK_EQ_U64(t.unequal, 0);
}

// Not the twin but the numbers themselves: how far products of a 27B's sizes are from double precision.
TEST(products_of_exl3_are_as_exact_as_they_must_be) {
    static const char *const codebooks[] = {
        [EXL3_3INST] = "3INST", [EXL3_MCG] = "MCG", [EXL3_MUL1] = "MUL1"};
    struct device d = device_open();
    for (uint32_t i = 0; i < op_cases_products_count; i += cases_step()) {
        const struct op_case *c = &op_cases_products[i];
        bool fifty = c->size[5] & EXL3_FIFTY;
        double error = op_cases_error(&d.ops, c);
        test_note("%s %.1f bits, %u rows of %u inputs%s: rms error %.2e", codebooks[c->size[4]],
                  c->size[3] / 2.0, c->size[0], c->size[1], fifty ? ", one channel 50x" : "",
                  error);
        CHECK(error <= (fifty ? OP_CASES_ERROR_FIFTY_MAX : OP_CASES_ERROR_MAX));
    }
    device_close(&d);
}

TEST(one_flipped_bit_is_found) {
    const struct op_case *c = &op_cases[0];
    float want[1] = {1}, got[1] = {1};
    uint32_t bits = 0x3f800001;
    struct tally t = {.name = c->name};
    CHECK_EQ(c->outputs, 1);
    compare(c, want, got, 0, &t);
    CHECK_EQ_U64(t.unequal, 0);
    memcpy(got, &bits, sizeof bits);
    compare(c, want, got, 0, &t);
    CHECK_EQ_U64(t.unequal, 1);
}

#define OP_TEST(op)                                                                                \
    TEST(op) {                                                                                     \
        run_op(#op);                                                                               \
    }
OP_TEST(embed)
OP_TEST(rmsnorm)
OP_TEST(linear)
OP_TEST(rope)
OP_TEST(attn)
OP_TEST(conv)
OP_TEST(delta_gates)
OP_TEST(delta_norm)
OP_TEST(delta_scan)
OP_TEST(gated_norm)
OP_TEST(delta_mix)
OP_TEST(swiglu)
OP_TEST(exl3)
OP_TEST(router)
OP_TEST(experts)
OP_TEST(expert_sum)
OP_TEST(draw)
