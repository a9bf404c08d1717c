/* bench_profile: see bench_profile.h. */
#include "worker/bench_profile.h"
#include "common/err.h"
#include "common/mem.h"
#include "common/mono.h"
#include "common/num.h"
#include "worker/bench_limits.h"
#include "worker/engine/engine.h"

#include <stdio.h>
#include <stdlib.h>

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

static const uint32_t prompts[] = {512, 2048, 8192, 32768};

static bool fits(const struct engine_info *info, const struct engine_shape *s) {
    return s->streams <= info->streams_max && s->context <= info->context_max &&
           s->rows <= info->round_rows_max;
}

static int print_shape(struct engine *eng, const struct engine_shape *s, double speed,
                       struct err *e) {
    struct engine_profile p = {0};
    struct bench_work w = bench_work_of(engine_info(eng), s->rows, s->streams, s->context);
    int st = engine_profile(eng, s, &p, e);
    if (st) return st;
    double floor = w.bytes / speed * 1e3;
    printf("  %5u   %7u   %7u   %9.3f   %9.1f   %9.3f   %7.2fx   %9.1f   %7.1f\n", s->rows,
           s->streams, s->context, p.ms, w.bytes / 1e6, floor, p.ms / floor, w.macs / 1e9,
           2 * w.macs / p.ms / 1e9);
    return ST_OK;
}

static int print_shapes(struct engine *eng, double speed, struct err *e) {
    int st = ST_OK;
    printf(
        "\nforward and head on the device; floor: weights once, states and caches of the streams, "
        "at "
        "the speed of the copy\n"
        "   rows   streams   context          ms          MB    floor ms   of floor     G madds   "
        "TFLOP/s\n");
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes && !st; i++)
        if (fits(engine_info(eng), &shapes[i])) st = print_shape(eng, &shapes[i], speed, e);
    return st;
}

static int print_ops(struct engine *eng, const struct engine_shape *s, double speed,
                     struct err *e) {
    struct engine_profile p = {.apart = true};
    double sum = 0;
    int st = engine_profile(eng, s, &p, e);
    if (st) return st;
    for (uint32_t i = 0; i < p.count; i++) sum += p.ops[i].ms;
    printf("\n%u rows of %u streams at %u: %.3f ms; each operation by itself %.3f\n", s->rows,
           s->streams, s->context, p.ms, sum);
    printf("  %-40s   calls          us   share    GB/s of %.0f\n", "operation", speed / 1e9);
    for (uint32_t i = 0; i < p.count; i++) {
        const struct ops_time *t = &p.ops[i];
        printf("  %-40s   %5u   %9.2f   %4.1f%%", t->name, t->calls, t->ms * 1e3 / t->calls,
               100 * t->ms / sum);
        if (t->bytes) printf("    %8.0f", (double)t->bytes / t->ms / 1e6);
        printf("\n");
    }
    return ST_OK;
}

static int submit(struct engine *eng, uint32_t prompt_count, uint32_t max_tokens, uint32_t salt,
                  struct err *e) {
    uint32_t vocab = engine_info(eng)->vocab_size;
    uint64_t handle;
    uint32_t *ids = mem_alloc(prompt_count * sizeof *ids);
    for (uint32_t i = 0; i < prompt_count; i++) ids[i] = (i * 31 + salt * 17 + 5) % vocab;
    struct engine_request r = {.prompt = ids,
                               .prompt_count = prompt_count,
                               .sampling = {.top_p = 1, .repetition = 1},
                               .max_tokens = max_tokens,
                               .ignore_eos = true,
                               .top_logprobs = -1};
    int st = engine_submit(eng, &r, &handle, e);
    free(ids);
    return st;
}

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

// The median round in which all streams decode, by the host's clock, until the next may begin.
static int time_rounds(struct engine *eng, uint32_t streams, double *ret_ms, struct err *e) {
    double ms[ROUNDS];
    uint32_t n = 0;
    int st = ST_OK;
    for (uint32_t i = 0; i < streams && !st; i++) st = submit(eng, 32, ROUNDS + FILLING, i, e);
    while (!st && !engine_idle(eng)) {
        struct engine_round round;
        uint64_t before = mono_ns();
        st = engine_step(eng, &round, e);
        if (!st && round.rows == streams && n < ROUNDS)
            ms[n++] = (double)(mono_ns() - before) / 1e6;
    }
    if (!st && !n) st = err_set(e, ST_INTERNAL, "no round had %u rows", streams);
    if (st) return st;
    qsort(ms, n, sizeof *ms, by_value);
    *ret_ms = ms[n / 2];
    return ST_OK;
}

static int print_rounds(struct engine *eng, struct err *e) {
    int st = ST_OK;
    printf("\nrounds of decoding streams, by the host's clock\n  streams   ms a round   tokens/s   "
           "beside the device us\n");
    for (uint32_t n = 1; n <= engine_info(eng)->streams_max && !st; n *= 2) {
        struct engine_profile p = {0};
        double ms = 0;
        st = engine_profile(eng, &(struct engine_shape){n, n, 64}, &p, e);
        if (!st) st = time_rounds(eng, n, &ms, e);
        if (!st)
            printf("  %7u   %10.3f   %8.1f   %20.1f\n", n, ms, 1e3 * n / ms, (ms - p.ms) * 1e3);
    }
    return st;
}

static int print_prompts(struct engine *eng, struct err *e) {
    int st = ST_OK;
    printf("\nprompts\n   tokens          ms   tokens/s\n");
    for (size_t i = 0; i < sizeof prompts / sizeof *prompts && !st; i++) {
        struct engine_round round;
        if (prompts[i] + 1 > engine_info(eng)->context_max) break;
        uint64_t before = mono_ns();
        st = submit(eng, prompts[i], 1, (uint32_t)i, e);
        while (!st && !engine_idle(eng)) st = engine_step(eng, &round, e);
        double ms = (double)(mono_ns() - before) / 1e6;
        if (!st) printf("  %7u   %9.1f   %8.0f\n", prompts[i], ms, 1e3 * prompts[i] / ms);
    }
    return st;
}

int bench_profile(struct engine *eng, struct err *e) {
    const struct engine_info *info = engine_info(eng);
    double speed = 0;
    setvbuf(stdout, NULL, _IOLBF, 0); // it takes a while
    int st = engine_copy_speed(eng, &speed, e);
    if (st) return st;
    printf("  copy on the device, read and written: %.0f GB/s; %u streams, contexts up to %u, "
           "rounds up "
           "to %u rows; %u graphs, %.1f MiB\n",
           speed / 1e9, info->streams_max, info->context_max, info->round_rows_max, info->graphs,
           (double)info->graphs_bytes / (1 << 20));
    st = print_shapes(eng, speed, e);
    for (size_t i = 0; i < sizeof apart / sizeof *apart && !st; i++)
        if (fits(info, &apart[i])) st = print_ops(eng, &apart[i], speed, e);
    if (!st) st = print_rounds(eng, e);
    return st ? st : print_prompts(eng, e);
}
