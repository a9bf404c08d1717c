/* bench_scratch: whether the memory that mixers and MLP share costs time. See bench_parts.h. */
#include "common/err.h"
#include "common/mono.h"
#include "common/num.h"
#include "worker/bench_parts.h"

#include <string.h>

enum { PROMPTS = 4, PROMPT = 2048, TIMES = 4, RUNS = 4 * TIMES, OF_ARM = RUNS / 2 };

// Two engines on one card: a part of what is free, and then of what the first one left.
static const double FIRST = 0.48, SECOND = 0.96;

enum { UNION, DISJOINT, ARMS };
static const char *const names[ARMS] = {"union", "disjoint"};

struct arm {
    struct engine *eng;
    double ms[OF_ARM];
    uint32_t count;
};

static int open_arms(struct arm *arms, const struct bench *b, struct err *e) {
    struct engine_config c = b->config;
    double fraction = c.memory_fraction > 0 ? c.memory_fraction : 1;
    c.streams_max = PROMPTS;
    if (!c.context_max) c.context_max = PROMPT + 256;
    for (int i = 0; i < ARMS; i++) {
        c.scratch_disjoint = i == DISJOINT;
        c.memory_fraction = fraction * (i ? SECOND : FIRST);
        int st = engine_new(&arms[i].eng, &c, e);
        if (st) return st;
        c.chunk_tokens = engine_info(arms[i].eng)->chunk_tokens; // for the other one too
        c.round_rows_max = engine_info(arms[i].eng)->round_rows_max;
    }
    return ST_OK;
}

// Until each of the prompts has its token.
static int time_prompts(struct engine *eng, uint32_t salt, double *ret_ms, struct err *e) {
    struct bench_ask a = {.prompt = min_u32(PROMPT, engine_info(eng)->context_max - 1),
                          .tokens = 1};
    struct engine_round round;
    uint64_t before = mono_ns(), handle;
    double ms;
    int st = ST_OK;
    for (uint32_t i = 0; i < PROMPTS && !st; i++) {
        a.salt = salt * PROMPTS + i;
        st = bench_submit(eng, &a, &handle, e);
    }
    while (!st && !engine_idle(eng)) st = bench_step(eng, &round, &ms, e);
    *ret_ms = (double)(mono_ns() - before) / 1e6;
    return st;
}

static double least_of(const struct arm *a) {
    double x = a->ms[0];
    for (uint32_t i = 1; i < a->count; i++) x = a->ms[i] < x ? a->ms[i] : x;
    return x;
}

static double most_of(const struct arm *a) {
    double x = a->ms[0];
    for (uint32_t i = 1; i < a->count; i++) x = a->ms[i] > x ? a->ms[i] : x;
    return x;
}

static int run(struct bench *b, struct arm *arms, struct err *e) {
    double ms;
    int st = time_prompts(arms[UNION].eng, RUNS, &ms, e); // what a first time costs is no arm's
    if (!st) st = time_prompts(arms[DISJOINT].eng, RUNS, &ms, e);
    for (uint32_t i = 0; i < RUNS && !st; i++) {
        uint32_t which = i % 4 == 1 || i % 4 == 2 ? DISJOINT : UNION;
        struct arm *a = &arms[which];
        st = time_prompts(a->eng, i, &ms, e);
        if (st) break;
        a->ms[a->count++] = ms;
        printf("  %2u   %-8s   %10.2f\n", i + 1, names[which], ms);
        bench_put(b, "{\"part\": \"scratch\", \"run\": %u, \"arm\": \"%s\", \"ms\": %.3f}", i + 1,
                  names[which], ms);
    }
    return st;
}

static void conclude(struct bench *b, struct arm *arms) {
    double low[ARMS], high[ARMS], mid[ARMS];
    for (int i = 0; i < ARMS; i++) {
        low[i] = least_of(&arms[i]);
        high[i] = most_of(&arms[i]);
        mid[i] = bench_median(arms[i].ms, arms[i].count);
        printf("  %-8s   %10.2f to %.2f, median %.2f\n", names[i], low[i], high[i], mid[i]);
    }
    bool apart = high[UNION] < low[DISJOINT] || high[DISJOINT] < low[UNION];
    printf("  %s\n", apart ? "one arm lies wholly below the other"
                           : "neither arm lies wholly below the other");
    bench_put(b,
              "{\"part\": \"scratch\", \"union_median_ms\": %.3f, \"disjoint_median_ms\": %.3f, "
              "\"apart\": %s}",
              mid[UNION], mid[DISJOINT], apart ? "true" : "false");
}

int bench_scratch(struct bench *b, struct err *e) {
    struct arm arms[ARMS] = {0};
    int st = open_arms(arms, b, e);
    if (!st) {
        printf("\n%d cold prompts of up to %d at once, with shared and with separate scratch\n",
               PROMPTS, PROMPT);
        printf("  run   arm                ms\n");
        st = run(b, arms, e);
    }
    if (!st) conclude(b, arms);
    for (int i = 0; i < ARMS; i++) engine_free(arms[i].eng);
    return st;
}
