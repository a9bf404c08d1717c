/* bench_crowd: streams that decode side by side, and one that joins them. See bench_parts.h. */
#include "common/err.h"
#include "common/mono.h"
#include "common/num.h"
#include "worker/bench_parts.h"

#include <string.h>

enum { PROMPT = 512, TOKENS = 1024, ROUNDS = 64, JOINER = 2048, JOINER_TOKENS = 2 };

static const uint32_t crowds[] = {8, 16, 32, 64};

struct crowd {
    struct engine *eng;
    uint32_t streams; // they have the tags below it; who joins has that number
    uint64_t handles[BENCH_STREAMS];
    uint32_t tokens[BENCH_STREAMS]; // drawn since the counts were last set back
    double first_ms[BENCH_STREAMS]; // from `began` to the first token; 0: not yet
    uint64_t began;
    double longest_ms; // of the rounds since the counts were last set back
};

static int step(struct crowd *c, struct err *e) {
    struct engine_round round;
    double ms;
    int st = bench_step(c->eng, &round, &ms, e);
    if (st) return st;
    if (!round.rows) return err_set(e, ST_INTERNAL, "crowd: a stream ended before its time");
    if (ms > c->longest_ms) c->longest_ms = ms;
    for (uint32_t i = 0; i < round.count; i++) {
        const struct engine_event *ev = &round.events[i];
        c->tokens[ev->tag] += ev->ids_count;
        if (ev->ids_count && c->first_ms[ev->tag] == 0)
            c->first_ms[ev->tag] = (double)(mono_ns() - c->began) / 1e6;
    }
    return ST_OK;
}

static void count_anew(struct crowd *c) {
    memset(c->tokens, 0, sizeof c->tokens);
    c->longest_ms = 0;
}

struct spread {
    double least, most, sum;
};

static struct spread spread_of(const uint32_t *v, uint32_t n) {
    struct spread s = {v[0], v[0], 0};
    for (uint32_t i = 0; i < n; i++) {
        s.sum += v[i];
        if (v[i] < s.least) s.least = v[i];
        if (v[i] > s.most) s.most = v[i];
    }
    return s;
}

static double last_first(const struct crowd *c) {
    double last = 0;
    for (uint32_t i = 0; i < c->streams; i++)
        if (c->first_ms[i] > last) last = c->first_ms[i];
    return last;
}

static bool all_decode(const struct crowd *c) {
    for (uint32_t i = 0; i < c->streams; i++)
        if (c->first_ms[i] == 0) return false;
    return true;
}

// All at once; until each of them has a token.
static int begin(struct crowd *c, struct err *e) {
    const struct engine_info *info = engine_info(c->eng);
    struct bench_ask a = {.prompt = min_u32(PROMPT, info->context_max / 4)};
    int st = ST_OK;
    a.tokens = min_u32(TOKENS, info->context_max - a.prompt);
    c->began = mono_ns();
    for (uint32_t i = 0; i < c->streams && !st; i++) {
        a.tag = a.salt = i;
        st = bench_submit(c->eng, &a, &c->handles[i], e);
    }
    while (!st && !all_decode(c)) st = step(c, e);
    return st;
}

static int decode(struct crowd *c, double *ret_s, struct err *e) {
    int st = ST_OK;
    count_anew(c);
    uint64_t before = mono_ns();
    for (uint32_t i = 0; i < ROUNDS && !st; i++) st = step(c, e);
    *ret_s = (double)(mono_ns() - before) / 1e9;
    return st;
}

static int join(struct crowd *c, uint32_t prompt, struct err *e) {
    uint32_t who = c->streams;
    struct bench_ask a = {.prompt = prompt, .tokens = JOINER_TOKENS, .salt = who, .tag = who};
    count_anew(c);
    c->first_ms[who] = 0;
    c->began = mono_ns();
    int st = bench_submit(c->eng, &a, &c->handles[who], e);
    while (!st && c->first_ms[who] == 0) st = step(c, e);
    return st;
}

static int measure(struct bench *b, struct crowd *c, struct err *e) {
    uint32_t prompt = min_u32(JOINER, engine_info(c->eng)->context_max - JOINER_TOKENS);
    double s = 0;
    int st = begin(c, e);
    double first = last_first(c);
    if (!st) st = decode(c, &s, e);
    struct spread alone = spread_of(c->tokens, c->streams);
    if (!st) st = join(c, prompt, e);
    if (st) return st;
    struct spread beside = spread_of(c->tokens, c->streams);
    double joined = c->first_ms[c->streams];
    printf("  %7u   %10.3f   %8.1f   %8.1f   %8.1f   %10.1f   %10.1f   %10.1f   %6.0f %6.0f\n",
           c->streams, 1e3 * s / ROUNDS, alone.sum / s, alone.least / s, alone.most / s, first,
           joined, c->longest_ms, beside.least, beside.most);
    bench_put(
        b,
        "{\"part\": \"crowd\", \"streams\": %u, \"ms_a_round\": %.4f, \"tokens_per_s\": %.2f, "
        "\"slowest_per_s\": %.3f, \"fastest_per_s\": %.3f, \"last_first_token_ms\": %.2f, "
        "\"joiner_prompt\": %u, \"joiner_first_token_ms\": %.2f, \"longest_round_ms\": %.2f, "
        "\"beside_least\": %.0f, \"beside_most\": %.0f}",
        c->streams, 1e3 * s / ROUNDS, alone.sum / s, alone.least / s, alone.most / s, first, prompt,
        joined, c->longest_ms, beside.least, beside.most);
    return ST_OK;
}

int bench_crowd(struct bench *b, struct err *e) {
    int st = ST_OK;
    printf("\nstreams side by side, undrafted, prompts of up to %d sent at once; then a prompt of "
           "up to "
           "%d joins\n"
           "  streams   ms a round   tokens/s    slowest    fastest   all begun ms   joined ms   "
           "longest ms   tokens beside it\n",
           PROMPT, JOINER);
    for (size_t i = 0; i < sizeof crowds / sizeof *crowds && !st; i++) {
        struct crowd c = {.eng = b->eng, .streams = crowds[i]};
        if (c.streams >= engine_info(b->eng)->streams_max) break;
        st = measure(b, &c, e);
        for (uint32_t k = 0; k <= c.streams; k++) engine_cancel(b->eng, c.handles[k]);
    }
    return st;
}
