/* bench_drafts: where the time of a round with drafts goes. See bench_parts.h. */
#include "common/err.h"
#include "common/mem.h"
#include "common/mono.h"
#include "common/num.h"
#include "worker/bench_parts.h"
#include "worker/engine/engine.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    STREAMS_MAX = 8,
    PROMPT = 512,
    PROMPT_CPU = 32,
    WARM = 160, // ids of each reply before rounds count: what the drafter follows may have a period
    WARM_PLAIN = 8,
    ROUNDS = 24,
    ROUNDS_CPU = 6,
    REPLY = 1024, // that is enough for the rounds behind
    SEEN = 2048,  // positions behind blocks whose operations are told apart
};

_Static_assert((int)ROUNDS <= (int)ENGINE_PARTS_ROUNDS_MAX, "all of them");

struct cell {
    uint32_t streams, drafts; // drafts: of a stream in a round
    uint64_t handles[STREAMS_MAX];
    uint32_t made[STREAMS_MAX]; // ids of each reply, and the first ones
    uint32_t ids[STREAMS_MAX][WARM];
    double ms[ENGINE_PARTS], clock_ms;
    uint64_t rows, tokens;
    uint32_t rounds;
};

static bool on_cpu(struct engine *eng) {
    return !strcmp(engine_info(eng)->device, "cpu");
}

static uint32_t prompt_count(struct engine *eng) {
    return min_u32(on_cpu(eng) ? PROMPT_CPU : PROMPT, engine_info(eng)->context_max / 4);
}

static uint32_t reply_count(struct engine *eng) {
    return min_u32(REPLY, engine_info(eng)->context_max - prompt_count(eng));
}

// Ids that are in every vocabulary of this family.
static int submit(struct engine *eng, struct cell *c, uint32_t i, struct err *e) {
    uint32_t ids[PROMPT], count = prompt_count(eng);
    for (uint32_t k = 0; k < count; k++) ids[k] = 5 + (k * 31 + i * 17) % 200;
    struct engine_request r = {.prompt = ids,
                               .prompt_count = count,
                               .sampling = {.top_p = 1, .repetition = 1},
                               .max_tokens = reply_count(eng),
                               .ignore_eos = true,
                               .draft = c->drafts > 0,
                               .top_logprobs = -1,
                               .tag = i};
    return engine_submit(eng, &r, &c->handles[i], e);
}

// One round. Replies that have ended make it worthless: they are too short here.
static int step(struct engine *eng, struct cell *c, struct err *e) {
    struct engine_round round;
    int st = engine_step(eng, &round, e);
    for (uint32_t i = 0; !st && i < round.count; i++) {
        const struct engine_event *ev = &round.events[i];
        for (uint32_t k = 0; k < ev->ids_count && c->made[ev->tag] + k < WARM; k++)
            c->ids[ev->tag][c->made[ev->tag] + k] = ev->ids[k];
        c->made[ev->tag] += ev->ids_count;
        c->tokens += ev->ids_count;
        if (ev->finish != ENGINE_RUNNING)
            st = err_set(e, ST_INVAL, "context: wanted room for replies of more than %u ids",
                         c->made[ev->tag]);
    }
    c->rows += st ? 0 : round.rows;
    return st;
}

static bool warm(const struct cell *c, uint32_t ids) {
    for (uint32_t i = 0; i < c->streams; i++)
        if (c->made[i] < ids) return false;
    return true;
}

static int measure(struct engine *eng, struct cell *c, struct err *e) {
    uint32_t left = reply_count(eng);
    uint32_t ahead = min_u32(c->drafts ? WARM : WARM_PLAIN, left / 4);
    uint32_t rounds = on_cpu(eng) ? ROUNDS_CPU : ROUNDS;
    int st = ST_OK;
    for (uint32_t i = 0; i < c->streams && !st; i++) st = submit(eng, c, i, e);
    while (!st && !warm(c, ahead)) st = step(eng, c, e);
    c->rows = c->tokens = 0;
    if (!st) st = engine_parts_begin(eng, e);
    if (st) return st;
    uint64_t before = mono_ns();
    // A reply must not end: windows may be kept whole.
    while (!st && c->rounds < rounds && !warm(c, left - 2 * (c->drafts + 1))) {
        st = step(eng, c, e);
        c->rounds++;
    }
    int ended = engine_parts_end(eng, c->ms, st ? NULL : e);
    c->clock_ms = (double)(mono_ns() - before) / 1e6;
    return st ? st : ended;
}

static const struct {
    enum engine_part part;
    const char *name;
} order[] = {
    {ENGINE_PART_DRAFT, "draft"}, {ENGINE_PART_VERIFY, "verify"}, {ENGINE_PART_DRAW, "draw"},
    {ENGINE_PART_TAPS, "taps"},   {ENGINE_PART_COMMIT, "commit"}, {ENGINE_PART_HOST, "host"},
};
_Static_assert(sizeof order / sizeof *order == ENGINE_PARTS, "all of them");

static void print_cell(const struct bench *b, const struct cell *c) {
    double n = c->rounds, total = 0, tokens = (double)c->tokens / n / c->streams;
    char text[256];
    int len = 0;
    printf("  %7u   %6.1f", c->streams, (double)c->rows / n / c->streams);
    for (uint32_t i = 0; i < ENGINE_PARTS; i++) {
        double ms = c->ms[order[i].part] / n;
        total += ms;
        printf("   %7.3f", ms);
        len +=
            snprintf(text + len, sizeof text - (size_t)len, ", \"%s_ms\": %.4f", order[i].name, ms);
    }
    printf("   %7.3f   %6.1f%%   %8.3f   %9.2f   %8.1f\n", total,
           100 * (1 - c->ms[ENGINE_PART_VERIFY] / n / total), c->clock_ms / n, tokens,
           1e3 * (double)c->tokens / c->clock_ms);
    bench_put(b,
              "{\"part\": \"drafts\", \"streams\": %u, \"drafts\": %u%s, \"clock_ms\": %.4f, "
              "\"tokens_per_round\": %.3f}",
              c->streams, c->drafts, text, c->clock_ms / n, tokens);
}

// Drafts change no reply.
static int check_ids(const struct cell *c, const struct cell *plain, struct err *e) {
    for (uint32_t i = 0; i < c->streams; i++) {
        uint32_t count = min_u32(min_u32(c->made[i], plain->made[i]), WARM);
        for (uint32_t k = 0; k < count; k++)
            if (c->ids[i][k] != plain->ids[i][k])
                return err_set(e, ST_INTERNAL,
                               "%u drafts, %u streams: stream %u, id %u: wanted %u, found %u",
                               c->drafts, c->streams, i, k, plain->ids[i][k], c->ids[i][k]);
    }
    return ST_OK;
}

// plain: of the same streams without drafts; as many of them as streams of c.
static int run_cell(struct bench *b, struct cell *c, const struct cell *plain, struct err *e) {
    struct engine *eng = b->eng;
    engine_draft_always(eng, c->drafts);
    int st = measure(eng, c, e);
    for (uint32_t i = 0; i < c->streams; i++)
        if (c->handles[i]) engine_cancel(eng, c->handles[i]);
    engine_draft_always(eng, 0);
    if (!st) st = check_ids(c, plain, e);
    if (!st) print_cell(b, c);
    return st;
}

static int print_blocks(struct bench *b, uint32_t streams, uint32_t rows, struct err *e) {
    static struct engine_profile p;
    struct engine *eng = b->eng;
    uint32_t context = min_u32(SEEN, engine_info(eng)->context_max - rows);
    struct engine_shape s = {streams * rows, streams, context};
    double sum = 0;
    p = (struct engine_profile){.apart = true};
    int st = engine_profile_blocks(eng, &s, &p, e);
    if (st) return st;
    for (uint32_t i = 0; i < p.count; i++) sum += p.ops[i].ms;
    printf("\n  %u blocks of %u rows at %u: %.3f ms; each operation by itself %.3f\n", streams,
           rows, context, p.ms, sum);
    printf("    %-40s   calls          us   share       GB/s\n", "operation");
    for (uint32_t i = 0; i < p.count; i++) {
        const struct ops_time *t = &p.ops[i];
        printf("    %-40s   %5u   %9.2f   %4.1f%%", t->name, t->calls, t->ms * 1e3 / t->calls,
               100 * t->ms / sum);
        if (t->bytes) printf("   %8.0f", (double)t->bytes / t->ms / 1e6);
        printf("\n");
        bench_put(b,
                  "{\"part\": \"blocks\", \"streams\": %u, \"rows\": %u, \"operation\": \"%s\", "
                  "\"calls\": %u, \"us\": %.3f, \"bytes\": %llu}",
                  streams, rows, t->name, t->calls, t->ms * 1e3 / t->calls,
                  (unsigned long long)t->bytes);
    }
    return ST_OK;
}

static const uint32_t streams[] = {1, 4, STREAMS_MAX}, rows[] = {1, 8, 16};
enum { COUNTS = sizeof streams / sizeof *streams, WIDTHS = sizeof rows / sizeof *rows };

static int check_drafter(struct engine *eng, struct err *e) {
    if (engine_info(eng)->drafter) return ST_OK;
    return err_set(e, ST_INVAL, "measure: wanted a drafter, found none: %s",
                   engine_info(eng)->draft_rule);
}

static uint32_t most_rows(struct engine *eng) {
    return min_u32(engine_info(eng)->draft_rows, engine_info(eng)->drafter_ids_max + 1);
}

int bench_drafts(struct bench *b, struct err *e) {
    static struct cell plain[COUNTS], c;
    int st = check_drafter(b->eng, e);
    if (st) return st;
    const struct engine_info *info = engine_info(b->eng);
    uint32_t most = most_rows(b->eng);
    printf(
        "\nrounds with drafts of %s, and without, on %s: ms by the device's clock; host: nothing "
        "runs on it\n"
        "  streams     rows     draft    verify      draw      taps    commit      host     total  "
        " "
        "beside    clock ms   tok/round      tok/s\n",
        info->drafter, info->device);
    for (uint32_t r = 0; r < WIDTHS; r++)
        for (uint32_t i = 0; i < COUNTS && !st; i++) {
            if (streams[i] > info->streams_max || (r && rows[r - 1] >= most)) continue;
            struct cell *into = r ? &c : &plain[i];
            *into = (struct cell){.streams = streams[i], .drafts = min_u32(rows[r], most) - 1};
            st = run_cell(b, into, &plain[i], e);
        }
    return st;
}

int bench_blocks(struct bench *b, struct err *e) {
    int st = check_drafter(b->eng, e);
    for (uint32_t r = 1; r < WIDTHS; r++)
        for (uint32_t i = 0; i < COUNTS && !st; i++)
            if (streams[i] <= engine_info(b->eng)->streams_max && rows[r] <= most_rows(b->eng))
                st = print_blocks(b, streams[i], rows[r], e);
    return st;
}
