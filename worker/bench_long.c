/* bench_long: one long prompt, and rounds at the lengths on its way. See bench_parts.h. */
#include "common/err.h"
#include "common/num.h"
#include "worker/bench_limits.h"
#include "worker/bench_parts.h"

#include <string.h>

enum { WINDOW = 8192, ROUNDS = 32 };

static const uint32_t lengths[] = {32768, 65536, 131072, 196608};
enum { LENGTHS = sizeof lengths / sizeof *lengths };

struct point {
    uint32_t length;
    uint32_t from_rows, at_rows; // the first round behind length - WINDOW, and behind length
    double from_s, at_s;         // from the start of the prompt
};

struct fill {
    struct engine *eng;
    struct point points[LENGTHS];
    uint32_t count;
    double decode_ms; // at the last of them
};

// Those that the context holds; else one, as long as it gets.
static void choose(struct fill *f) {
    uint32_t most = engine_info(f->eng)->context_max - ROUNDS - 1;
    for (uint32_t i = 0; i < LENGTHS; i++)
        if (lengths[i] <= most) f->points[f->count++].length = lengths[i];
    if (!f->count) f->points[f->count++].length = most;
}

static void pass(struct fill *f, uint32_t rows, double s) {
    for (uint32_t i = 0; i < f->count; i++) {
        struct point *p = &f->points[i];
        uint32_t window = min_u32(WINDOW, p->length / 2);
        if (!p->from_rows && rows >= p->length - window) {
            p->from_rows = rows;
            p->from_s = s;
        }
        if (!p->at_rows && rows >= p->length) {
            p->at_rows = rows;
            p->at_s = s;
        }
    }
}

static int run(struct fill *f, struct err *e) {
    struct bench_ask a = {.prompt = f->points[f->count - 1].length, .tokens = ROUNDS + 1};
    struct engine_round round = {0};
    double ms[ROUNDS], one, s = 0;
    uint32_t n = 0;
    uint64_t handle;
    int st = bench_submit(f->eng, &a, &handle, e);
    while (!st && n < ROUNDS) {
        st = bench_step(f->eng, &round, &one, e);
        if (st) break;
        bool filling = !f->points[f->count - 1].at_rows;
        s += one / 1e3;
        if (filling)
            pass(f, round.events[0].filled, s);
        else
            ms[n++] = one;
    }
    if (!st) f->decode_ms = bench_median(ms, n);
    engine_cancel(f->eng, handle);
    return st;
}

// Rounds on the device over the keys and values that the prompt left.
static int rounds_at(struct fill *f, const struct point *p, struct engine_profile *decode,
                     struct engine_profile *chunk, struct err *e) {
    const struct engine_info *info = engine_info(f->eng);
    uint32_t rows = min_u32(info->chunk_tokens, info->round_rows_max);
    decode->as_it_is = chunk->as_it_is = true;
    if (!strcmp(info->device, "cpu")) return ST_OK;
    int st = engine_profile(f->eng, &(struct engine_shape){1, 1, p->length}, decode, e);
    if (!st) st = engine_profile(f->eng, &(struct engine_shape){rows, 1, p->length}, chunk, e);
    return st;
}

static int print_point(struct bench *b, struct fill *f, const struct point *p, double speed,
                       struct err *e) {
    const struct engine_info *info = engine_info(f->eng);
    struct engine_profile decode = {0}, chunk = {0};
    double last = (p->at_rows - p->from_rows) / (p->at_s - p->from_s);
    int st = rounds_at(f, p, &decode, &chunk, e);
    if (st) return st;
    printf("  %7u   %9.2f   %8.0f   %10.0f", p->length, p->at_s, p->at_rows / p->at_s, last);
    bench_put(b,
              "{\"part\": \"long\", \"cache\": \"%s\", \"length\": %u, \"prompt_s\": %.4f, "
              "\"last_rows_per_s\": %.1f}",
              info->kv_rule, p->length, p->at_s, last);
    if (speed > 0) {
        struct bench_work w = bench_work_of(info, 1, 1, p->length);
        printf("   %9.3f   %8.3f   %9.3f", decode.ms, w.bytes / speed * 1e3, chunk.ms);
        bench_put(b,
                  "{\"part\": \"long\", \"cache\": \"%s\", \"length\": %u, \"decode_ms\": %.4f, "
                  "\"floor_ms\": %.4f, \"chunk_rows\": %u, \"chunk_ms\": %.4f}",
                  info->kv_rule, p->length, decode.ms, w.bytes / speed * 1e3,
                  min_u32(info->chunk_tokens, info->round_rows_max), chunk.ms);
    }
    printf("\n");
    return ST_OK;
}

int bench_long(struct bench *b, struct err *e) {
    struct fill f = {.eng = b->eng};
    const struct engine_info *info = engine_info(b->eng);
    bool cpu = !strcmp(info->device, "cpu");
    double speed = 0;
    choose(&f);
    int st = cpu ? ST_OK : engine_copy_speed(b->eng, &speed, e);
    if (!st) st = run(&f, e);
    if (st) return st;
    printf("\none prompt, %s, chunks of %u%s\n   length    prompt s   tokens/s   at its end%s\n",
           info->kv_rule, info->chunk_tokens,
           cpu ? "" : "; on the device a round of one row, and of a chunk, at each length",
           cpu ? "" : "   decode ms   floor ms    chunk ms");
    for (uint32_t i = 0; i < f.count && !st; i++) st = print_point(b, &f, &f.points[i], speed, e);
    if (st) return st;
    printf("  at %u, by the host's clock: %.3f ms a token\n", f.points[f.count - 1].length,
           f.decode_ms);
    bench_put(b,
              "{\"part\": \"long\", \"cache\": \"%s\", \"length\": %u, \"decode_host_ms\": %.4f}",
              info->kv_rule, f.points[f.count - 1].length, f.decode_ms);
    return ST_OK;
}
