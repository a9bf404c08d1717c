/* bench_profile: rounds and prompts, and where the time of rounds goes on a GPU. See bench_parts.h. */
#include "common/err.h"
#include "worker/bench_limits.h"
#include "worker/bench_parts.h"

#include <stdio.h>
#include <string.h>

enum {
    ROUNDS = 16,
    FILLING = 8, // rounds until all decode, at most
    SHORT = 512
};

static const struct engine_shape shapes[] = {
    // Streams that decode.
    {1, 1, SHORT},
    {2, 2, SHORT},
    {4, 4, SHORT},
    {8, 8, SHORT},
    {16, 16, SHORT},
    {32, 32, SHORT},
    {64, 64, SHORT},
    // Rows of one stream: windows, chunks of prompts.
    {2, 1, SHORT},
    {4, 1, SHORT},
    {8, 1, SHORT},
    {16, 1, SHORT},
    {32, 1, SHORT},
    {64, 1, SHORT},
    {128, 1, SHORT},
    {256, 1, SHORT},
    // Long contexts.
    {1, 1, 2048},
    {1, 1, 8192},
    {1, 1, 32768},
    {8, 8, 8192},
    {256, 1, 8192},
    {256, 1, 32768},
};

// Those whose operations are told apart.
static const struct engine_shape apart[] = {{1, 1, SHORT},  {8, 8, SHORT},   {64, 64, SHORT},
                                            {16, 1, SHORT}, {256, 1, SHORT}, {1, 1, 32768}};

static const uint32_t prompts[] = {512, 2048, 8192, 32768, 131072};

static bool fits(const struct engine_info *info, const struct engine_shape *s) {
    return s->streams <= info->streams_max && s->context <= info->context_max &&
           s->rows <= info->round_rows_max;
}

static int print_shape(struct bench *b, const struct engine_shape *s, double speed, struct err *e) {
    struct engine_profile p = {0};
    struct bench_work w = bench_work_of(engine_info(b->eng), s->rows, s->streams, s->context);
    int st = engine_profile(b->eng, s, &p, e);
    if (st) return st;
    double floor = w.bytes / speed * 1e3;
    printf("  %5u   %7u   %7u   %9.3f   %9.1f   %9.3f   %7.2fx   %9.1f   %7.1f\n", s->rows,
           s->streams, s->context, p.ms, w.bytes / 1e6, floor, p.ms / floor, w.macs / 1e9,
           2 * w.macs / p.ms / 1e9);
    bench_put(
        b,
        "{\"part\": \"shapes\", \"rows\": %u, \"streams\": %u, \"context\": %u, \"ms\": %.4f, "
        "\"bytes\": %.0f, \"floor_ms\": %.4f, \"multiply_adds\": %.0f}",
        s->rows, s->streams, s->context, p.ms, w.bytes, floor, w.macs);
    return ST_OK;
}

// The speed of a copy on this card, which is the floor beside all else.
static int copy_speed(struct bench *b, double *ret, struct err *e) {
    int st = engine_copy_speed(b->eng, ret, e);
    if (st) return st;
    printf("\ncopy on the device, read and written: %.0f GB/s\n", *ret / 1e9);
    bench_put(b, "{\"part\": \"copy\", \"bytes_per_s\": %.0f}", *ret);
    return ST_OK;
}

int bench_shapes(struct bench *b, struct err *e) {
    double speed = 0;
    int st = copy_speed(b, &speed, e);
    if (st) return st;
    printf(
        "forward and head on the device; floor: weights once, states and caches of the streams, at "
        "the speed of the copy\n"
        "   rows   streams   context          ms          MB    floor ms   of floor     G madds   "
        "TFLOP/s\n");
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes && !st; i++)
        if (fits(engine_info(b->eng), &shapes[i])) st = print_shape(b, &shapes[i], speed, e);
    return st;
}

static void print_op(struct bench *b, const struct engine_shape *s, const struct ops_time *t,
                     double sum) {
    printf("  %-40s   %5u   %9.2f   %4.1f%%", t->name, t->calls, t->ms * 1e3 / t->calls,
           100 * t->ms / sum);
    if (t->bytes) printf("    %8.0f", (double)t->bytes / t->ms / 1e6);
    printf("\n");
    bench_put(
        b,
        "{\"part\": \"operations\", \"rows\": %u, \"streams\": %u, \"context\": %u, "
        "\"operation\": \"%s\", \"calls\": %u, \"us\": %.3f, \"share\": %.4f, \"bytes\": %llu}",
        s->rows, s->streams, s->context, t->name, t->calls, t->ms * 1e3 / t->calls, t->ms / sum,
        (unsigned long long)t->bytes);
}

static int print_ops(struct bench *b, const struct engine_shape *s, double speed, struct err *e) {
    struct engine_profile p = {.apart = true};
    double sum = 0;
    int st = engine_profile(b->eng, s, &p, e);
    if (st) return st;
    for (uint32_t i = 0; i < p.count; i++) sum += p.ops[i].ms;
    printf("\n%u rows of %u streams at %u: %.3f ms; each operation by itself %.3f\n", s->rows,
           s->streams, s->context, p.ms, sum);
    printf("  %-40s   calls          us   share    GB/s of %.0f\n", "operation", speed / 1e9);
    for (uint32_t i = 0; i < p.count; i++) print_op(b, s, &p.ops[i], sum);
    return ST_OK;
}

int bench_operations(struct bench *b, struct err *e) {
    double speed = 0;
    int st = copy_speed(b, &speed, e);
    for (size_t i = 0; i < sizeof apart / sizeof *apart && !st; i++)
        if (fits(engine_info(b->eng), &apart[i])) st = print_ops(b, &apart[i], speed, e);
    return st;
}

// The median round in which all streams decode, by the host's clock, until the next may begin.
static int time_rounds(struct engine *eng, uint32_t streams, double *ret_ms, struct err *e) {
    struct bench_ask a = {.prompt = 32, .tokens = ROUNDS + FILLING};
    double ms[ROUNDS], one;
    uint64_t handle;
    uint32_t n = 0;
    int st = ST_OK;
    for (uint32_t i = 0; i < streams && !st; i++) {
        a.salt = i;
        st = bench_submit(eng, &a, &handle, e);
    }
    while (!st && !engine_idle(eng)) {
        struct engine_round round;
        st = bench_step(eng, &round, &one, e);
        if (!st && round.rows == streams && n < ROUNDS) ms[n++] = one;
    }
    if (!st && !n) st = err_set(e, ST_INTERNAL, "no round had %u rows", streams);
    if (!st) *ret_ms = bench_median(ms, n);
    return st;
}

int bench_rounds(struct bench *b, struct err *e) {
    bool gpu = strcmp(engine_info(b->eng)->device, "cpu") != 0;
    int st = ST_OK;
    printf(
        "\nrounds of decoding streams, by the host's clock\n  streams   ms a round   tokens/s%s\n",
        gpu ? "   beside the device us" : "");
    for (uint32_t n = 1; n <= engine_info(b->eng)->streams_max && !st; n *= 2) {
        struct engine_profile p = {0};
        double ms = 0;
        if (gpu) st = engine_profile(b->eng, &(struct engine_shape){n, n, 64}, &p, e);
        if (!st) st = time_rounds(b->eng, n, &ms, e);
        if (st) break;
        printf("  %7u   %10.3f   %8.1f", n, ms, 1e3 * n / ms);
        if (gpu) printf("   %20.1f", (ms - p.ms) * 1e3);
        printf("\n");
        bench_put(b, "{\"part\": \"rounds\", \"streams\": %u, \"ms\": %.4f, \"device_ms\": %.4f}",
                  n, ms, p.ms);
    }
    return st;
}

int bench_prompts(struct bench *b, struct err *e) {
    int st = ST_OK;
    printf("\nprompts\n   tokens          ms   tokens/s\n");
    for (size_t i = 0; i < sizeof prompts / sizeof *prompts && !st; i++) {
        struct bench_ask a = {.prompt = prompts[i], .tokens = 1, .salt = (uint32_t)i};
        struct engine_round round;
        double ms = 0, one;
        uint64_t handle;
        if (a.prompt + 1 > engine_info(b->eng)->context_max) break;
        st = bench_submit(b->eng, &a, &handle, e);
        while (!st && !engine_idle(b->eng)) {
            st = bench_step(b->eng, &round, &one, e);
            ms += one;
        }
        if (st) break;
        printf("  %7u   %9.1f   %8.0f\n", a.prompt, ms, 1e3 * a.prompt / ms);
        bench_put(b, "{\"part\": \"prompts\", \"tokens\": %u, \"ms\": %.3f}", a.prompt, ms);
    }
    return st;
}
