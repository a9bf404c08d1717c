/* Every operation of the CPU backend: right against double precision, and the same bits for every thread count, vector
 * width, grouping of rows and compiler. */
#include "common/err.h"
#include "common/mem.h"
#include "kernels/cpu_pool.h"
#include "kernels/linear/linear.h"
#include "kernels/ops.h"
#include "tests/lib/op_cases.h"
#include "tests/lib/sanitized.h"
#include "tests/lib/test.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

struct device {
    struct cpu_pool *pool;
    struct ops ops;
};

static struct device device_open(uint32_t threads, const char *variant) {
    struct device d = {0};
    struct err e;
    CHECK_OK(cpu_pool_new(&d.pool, threads, &e), e);
    CHECK_OK(ops_cpu_open(&d.ops, d.pool, variant, &e), e);
    return d;
}

static void device_close(struct device *d) {
    ops_close(&d->ops);
    cpu_pool_free(d->pool);
}

static void check_case(const struct op_case *c, const float *got, double *worst) {
    double *want = mem_calloc(c->outputs, sizeof *want), range = 0, bad = 0;
    c->reference(c, want);
    for (uint32_t i = 0; i < c->outputs; i++) range = fmax(range, fabs(want[i]));
    for (uint32_t i = 0; i < c->outputs; i++) {
        double d = fabs((double)got[i] - want[i]);
        if (!(d <= c->tolerance * range))
            test_fail(__FILE__, __LINE__,
                      "%s [%u, %u, %u, %u, %u, %u] output %u: found %.9g, wanted %.9g", c->name,
                      c->size[0], c->size[1], c->size[2], c->size[3], c->size[4], c->size[5], i,
                      (double)got[i], want[i]);
        bad = fmax(bad, d);
    }
    if (range > 0) *worst = fmax(*worst, bad / range);
    free(want);
}

TEST(every_operation_is_right_at_awkward_shapes) {
    struct device d = device_open(2, NULL);
    double worst = 0;
    for (uint32_t i = 0; i < op_cases_count; i++) {
        const struct op_case *c = &op_cases[i];
        float *got = mem_calloc(c->outputs, sizeof *got);
        c->run(&d.ops, c, 0, got);
        check_case(c, got, &worst);
        free(got);
        if (i + 1 < op_cases_count && !strcmp(op_cases[i + 1].name, c->name)) continue;
        test_note("%-12s within %.2g of the range", c->name, worst);
        worst = 0;
    }
    device_close(&d);
}

static void check_bits(const struct op_case *c, const float *want, const float *got,
                       const char *what, uint32_t threads, uint32_t schedule) {
    for (uint32_t i = 0; i < c->outputs; i++)
        if (memcmp(&want[i], &got[i], sizeof *got))
            test_fail(
                __FILE__, __LINE__,
                "%s [%u, %u, %u, %u, %u, %u] %s threads %u schedule %u, output %u: %.9g and %.9g",
                c->name, c->size[0], c->size[1], c->size[2], c->size[3], c->size[4], c->size[5],
                what, threads, schedule, i, (double)want[i], (double)got[i]);
}

TEST(threads_vector_widths_and_groupings_of_rows_change_no_bit) {
    struct device one = device_open(1, "base");
    for (uint32_t i = 0; i < op_cases_count; i++) {
        const struct op_case *c = &op_cases[i];
        float *want = mem_calloc(c->outputs, sizeof *want),
              *got = mem_calloc(c->outputs, sizeof *got);
        c->run(&one.ops, c, 0, want);
        for (const char *const *v = ops_cpu_variants(); *v; v++)
            // ThreadSanitizer sees with three threads whatever it sees with fewer.
            for (uint32_t threads = UNDER_TSAN ? 3 : 1; threads <= 3; threads++) {
                struct device d = device_open(threads, *v);
                for (uint32_t schedule = 0; schedule <= threads; schedule += UNDER_TSAN ? 3 : 1) {
                    memset(got, 0, c->outputs * sizeof *got);
                    c->run(&d.ops, c, schedule, got);
                    check_bits(c, want, got, *v, threads, schedule);
                }
                device_close(&d);
            }
        free(want);
        free(got);
    }
    device_close(&one);
}

// Written down, so that another compiler, C library or machine that gives other bits is found out. A deliberate change of
// an operation's order changes it too.
TEST(the_bits_of_all_operations_are_the_ones_written_down) {
    struct device d = device_open(2, NULL);
    uint64_t h = 0;
    for (uint32_t i = 0; i < op_cases_count; i++) {
        const struct op_case *c = &op_cases[i];
        if (!strcmp(c->name, "rope") || !strcmp(c->name, "delta_gates"))
            continue; // inputs made by libm
        float *got = mem_calloc(c->outputs, sizeof *got);
        c->run(&d.ops, c, 0, got);
        h = op_cases_digest(h, got, c->outputs);
        free(got);
    }
    CHECK_EQ_U64(h, 0xc8d9069d45f4ccdcu);
    device_close(&d);
}

// The weight, at the start or the end of what may be read, times one row.
static void multiply_guarded(const struct device *d, uint32_t half_bits, bool at_end, float *ret) {
    enum { SIZE = 128, PAGE = 4096, ROOM = 4 * PAGE };
    uint64_t bytes = (uint64_t)SIZE * SIZE * half_bits / 16;
    static float x[SIZE];
    static uint16_t factors[SIZE];
    char *p = mmap(NULL, ROOM + 2 * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(p != MAP_FAILED);
    CHECK_EQ(mprotect(p + PAGE, ROOM, PROT_READ | PROT_WRITE), 0);
    unsigned char *data = (unsigned char *)p + PAGE + (at_end ? ROOM - bytes : 0);
    for (uint64_t i = 0; i < bytes; i++) data[i] = (unsigned char)(i * 37 + i / 251);
    for (uint32_t i = 0; i < SIZE; i++) {
        x[i] = 1 + (float)(i % 7);
        factors[i] = 0x3c00; // 1
    }
    struct linear_args a = {.x = (uintptr_t)x, .rows = 1, .parts_count = 1};
    a.parts[0].y = (uintptr_t)ret;
    a.parts[0].w = (struct weight){.data = (uintptr_t)data, .rows = SIZE, .cols = SIZE};
    a.parts[0].w.exl3 = (struct exl3){.half_bits = half_bits,
                                      .codebook = EXL3_MUL1,
                                      .suh = (uintptr_t)factors,
                                      .svh = (uintptr_t)factors};
    d->ops.linear(d->ops.ctx, &a);
    munmap(p, ROOM + 2 * PAGE);
}

TEST(an_exl3_weight_is_read_from_its_start_to_its_end_and_no_further) {
    float want[128], got[128];
    for (const char *const *v = ops_cpu_variants(); *v; v++) {
        struct device d = device_open(1, *v);
        for (uint32_t half_bits = 2; half_bits <= EXL3_HALF_BITS_MAX; half_bits++) {
            multiply_guarded(&d, half_bits, false, want);
            multiply_guarded(&d, half_bits, true, got);
            CHECK_MEM(want, got, sizeof want);
        }
        device_close(&d);
    }
}

TEST(an_unknown_vector_width_is_refused_by_name) {
    struct ops o = {0};
    struct cpu_pool *p = NULL;
    struct err e;
    CHECK_OK(cpu_pool_new(&p, 1, &e), e);
    CHECK_EQ(ops_cpu_open(&o, p, "avx1024", &e), ST_INVAL);
    CHECK_HAS(e.msg, "avx1024");
    ops_close(&o);
    cpu_pool_free(p);
}

TEST(device_memory_comes_zeroed_and_copies_as_asked) {
    struct device d = device_open(1, NULL);
    const struct ops *o = &d.ops;
    struct err e = {0};
    devptr p = 0;
    uint32_t v[4] = {1, 2, 3, 4}, r[4];
    CHECK_OK(o->alloc(o->ctx, 1 << 20, "block", &p, &e), e);
    o->read(o->ctx, r, p + 4096, sizeof r);
    for (int i = 0; i < 4; i++) CHECK_EQ(r[i], 0);
    o->write(o->ctx, p, v, sizeof v);
    o->copy(o->ctx, p + 20, p, sizeof v);
    o->read(o->ctx, r, p + 20, sizeof r);
    CHECK_MEM(r, v, sizeof v);
    CHECK_OK(o->sync(o->ctx, &e), e);
    o->free(o->ctx, p, 1 << 20);
    CHECK_EQ(o->alloc(o->ctx, UINT64_MAX / 2 + 1, "too much", &p, &e), ST_NOMEM);
    CHECK_HAS(e.msg, "too much");
    CHECK(o->free_bytes(o->ctx) > 1 << 20);
    device_close(&d);
}
