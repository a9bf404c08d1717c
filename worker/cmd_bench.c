/* cmd_bench: bench engine MODEL: what rounds cost with this checkpoint on this machine, as a short table; on the CPU beside the
 * bytes and multiply-adds counted and what the machine allows for them. */
#include "common/err.h"
#include "common/mem.h"
#include "common/mono.h"
#include "common/num.h"
#include "common/version.h"
#include "proto/exit_code.h"
#include "worker/bench_limits.h"
#include "worker/bench_parts.h"
#include "worker/cmd.h"
#include "worker/engine/costs.h"
#include "worker/engine/engine.h"
#include "worker/options.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    PROMPT = 32,
    ROUNDS = 64,
    COSTS_ROUNDS = 24, // of each count of rows, at most; of long ones no more than fill
    COSTS_MS = 60,     // so much time, but
    COSTS_ROUNDS_MIN = 5,
    FILL = 512,
    FILLS = 3,
    STREAMS = 16,
    CONTEXT = 1024
};

#define BENCH_PROFILE "shapes,operations,rounds,prompts"
static const double MEASURE_FRACTION = 0.9; // graphs of the profile's own need room

// Ids that are in every vocabulary of this family.
static void make_prompt(uint32_t *ids, uint32_t count, uint32_t salt) {
    for (uint32_t i = 0; i < count; i++) ids[i] = 5 + (i * 31 + salt * 17) % 200;
}

static int submit(struct engine *eng, uint32_t prompt_count, uint32_t max_tokens, uint32_t salt,
                  struct err *e) {
    uint32_t ids[CONTEXT];
    uint64_t handle;
    make_prompt(ids, prompt_count, salt);
    struct engine_request r = {.prompt = ids,
                               .prompt_count = prompt_count,
                               .sampling = {.top_p = 1, .repetition = 1},
                               .max_tokens = max_tokens,
                               .ignore_eos = true,
                               .top_logprobs = -1};
    return engine_submit(eng, &r, &handle, e);
}

// Runs until nothing is left; the times of rounds that drew for all streams go to ret. Their number is returned.
static int run_rounds(struct engine *eng, uint32_t streams, double *ret, uint32_t *ret_count,
                      struct err *e) {
    uint32_t n = 0;
    while (!engine_idle(eng)) {
        struct engine_round round;
        uint64_t before = mono_ns();
        int st = engine_step(eng, &round, e);
        if (st) return st;
        if (round.rows == streams && n < ROUNDS) ret[n++] = (double)(mono_ns() - before) / 1e6;
    }
    *ret_count = n;
    return ST_OK;
}

static int bench_decode(struct engine *eng, uint32_t streams, double *ret_ms, struct err *e) {
    double ms[ROUNDS];
    uint32_t n = 0;
    int st = ST_OK;
    for (uint32_t i = 0; i < streams && !st; i++) st = submit(eng, PROMPT, ROUNDS, i, e);
    if (!st) st = run_rounds(eng, streams, ms, &n, e);
    if (!st && n == 0) st = err_set(e, ST_INTERNAL, "no round had %u rows", streams);
    if (!st) *ret_ms = bench_median(ms, n);
    return st;
}

static int bench_fill(struct engine *eng, double *ret_per_s, struct err *e) {
    double s[FILLS];
    for (uint32_t i = 0; i < FILLS; i++) {
        uint64_t before = mono_ns();
        int st = submit(eng, FILL, 1, i, e);
        while (!st && !engine_idle(eng)) {
            struct engine_round round;
            st = engine_step(eng, &round, e);
        }
        if (st) return st;
        s[i] = (double)(mono_ns() - before) / 1e9;
    }
    *ret_per_s = FILL / bench_median(s, FILLS);
    return ST_OK;
}

// The rest of a line: what the round had to move and to multiply, and the time this machine needs for it at least.
static int print_limit(const struct engine_info *info, uint32_t streams, double ms, double macs,
                       struct err *e) {
    struct bench_work w = bench_work_of(info, streams, streams, PROMPT + ROUNDS / 2);
    double read = 0;
    int st = bench_read_speed(&read, w.bytes, info->threads, e);
    if (st) return st;
    double limit = bench_limit_s(&w, read, macs) * 1e3;
    printf("   %8.1f   %6.1f   %8.1f   %8.3f   %.2fx", w.bytes / 1e6, read / 1e9, w.macs / 1e6,
           limit, ms / limit);
    return ST_OK;
}

static int run(const struct options *o, struct engine *eng, struct err *e) {
    static const uint32_t counts[] = {1, 2, 4, 8, 16};
    const struct engine_info *info = engine_info(eng);
    bool cpu = !strcmp(info->device, "cpu");
    double one = 0, fill = 0, macs = 0;
    int st = cpu ? bench_mac_speed(&macs, info->threads, e) : ST_OK;
    if (st) return st;
    printf("engine bench: %s, commit %s, %s (%s), %u threads\n", o->model, version_commit(),
           info->device, info->variant, info->threads);
    if (cpu)
        printf("  limits: fused multiply-adds in registers %.1f G/s; read: a block of as many MB, "
               "again and again\n",
               macs / 1e9);
    printf("  streams   ms a round   tokens/s   of one%s\n",
           cpu ? "         MB     GB/s     M madds   limit ms   of limit" : "");
    for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++) {
        double ms = 0;
        if (counts[i] > info->streams_max) break;
        st = bench_decode(eng, counts[i], &ms, e);
        if (st) return st;
        if (i == 0) one = ms;
        printf("  %7u   %10.3f   %8.1f   %5.2fx", counts[i], ms, 1e3 * counts[i] / ms, ms / one);
        if (cpu) st = print_limit(info, counts[i], ms, macs, e);
        printf("\n");
        if (st) return st;
    }
    st = bench_fill(eng, &fill, e);
    if (!st) printf("  prompt of %d: %.0f tokens/s\n", FILL, fill);
    if (!st && info->drafter) st = bench_drafts(&(struct bench){.eng = eng}, e);
    return st;
}

// A stream that decodes, with room for windows behind it.
static int decoding_stream(struct engine *eng, uint64_t *ret, uint32_t *ret_id, struct err *e) {
    uint32_t ids[PROMPT];
    struct engine_round round = {0};
    make_prompt(ids, PROMPT, 0);
    struct engine_request r = {.prompt = ids,
                               .prompt_count = PROMPT,
                               .sampling = {.top_p = 1, .repetition = 1},
                               .max_tokens = FILL - PROMPT,
                               .ignore_eos = true,
                               .draft = true,
                               .top_logprobs = -1};
    int st = engine_submit(eng, &r, ret, e);
    while (!st && (!round.count || !round.events[0].ids_count)) st = engine_step(eng, &round, e);
    if (!st) *ret_id = round.events[0].ids[0];
    return st;
}

// Whether a count of rows or drafts has been measured often enough.
static bool enough(uint32_t rounds, uint64_t since_ns) {
    if (rounds < COSTS_ROUNDS_MIN) return false;
    return rounds == COSTS_ROUNDS || mono_ns() - since_ns > COSTS_MS * 1000000ull;
}

// What else a machine does only adds to a time.
static double least(const double *v, uint32_t n) {
    double min = v[0];
    for (uint32_t i = 1; i < n; i++)
        if (v[i] < min) min = v[i];
    return min;
}

// branch: rows beside the window's.
static int cost_of_rows(struct engine *eng, uint64_t handle, uint32_t anchor, uint32_t rows,
                        uint32_t branch, double *ret_ms, struct err *e) {
    double ms[COSTS_ROUNDS];
    uint32_t ids[ENGINE_WINDOW_ROWS_MAX], other[ENGINE_WINDOW_ROWS_MAX];
    make_prompt(ids, rows, 1);
    make_prompt(other, branch, 2);
    ids[0] = other[0] = anchor;
    uint64_t began = mono_ns();
    uint32_t n = 0;
    while (!enough(n, began)) {
        struct engine_window w = {.handle = handle,
                                  .ids = ids,
                                  .count = rows,
                                  .logits = true,
                                  .branch = other,
                                  .branch_count = branch};
        uint64_t before = mono_ns();
        int st = engine_windows(eng, &w, 1, e);
        if (st) return st;
        ms[n++] = (double)(mono_ns() - before) / 1e6;
    }
    *ret_ms = least(ms, n);
    return ST_OK;
}

static double cost_of_drafts(struct engine *eng, uint64_t handle, uint32_t count) {
    double ms[COSTS_ROUNDS];
    uint32_t ids[ENGINE_WINDOW_ROWS_MAX];
    uint64_t began = mono_ns();
    uint32_t n = 0;
    while (!enough(n, began)) {
        uint64_t before = mono_ns();
        engine_propose(eng, handle, count, ids);
        ms[n++] = (double)(mono_ns() - before) / 1e6;
    }
    return least(ms, n);
}

// Rows that took longer than more of them did not need it.
static void never_fall(double *ms, uint32_t count) {
    for (uint32_t i = count; i > 1; i--)
        if (ms[i] < ms[i - 1]) ms[i - 1] = ms[i];
}

// The table has a branch's rows as if they were the window's; here is what they take.
static int print_branch(struct engine *eng, uint64_t handle, uint32_t anchor, const struct costs *c,
                        struct err *e) {
    enum { ROWS = 8, BRANCH = 5 };
    double ms = 0;
    int st = cost_of_rows(eng, handle, anchor, ROWS, BRANCH, &ms, e);
    if (st == ST_UNSUPPORTED) return ST_OK; // no drafter that has them
    if (!st)
        printf("  a branch of %d rows beside a window of %d: %.4f ms; a window of %d: %.4f\n",
               BRANCH, ROWS, ms, ROWS + BRANCH, c->rows_ms[ROWS + BRANCH]);
    return st;
}

static int measure_costs(struct engine *eng, struct costs *c, struct err *e) {
    const struct engine_info *info = engine_info(eng);
    uint32_t anchor = 0, k = info->drafter_kind;
    uint64_t handle = 0;
    double one = 0; // as a round of one row is launched, not as a window
    int st = bench_decode(eng, 1, &one, e);
    if (!st) st = decoding_stream(eng, &handle, &anchor, e);
    for (uint32_t r = 1; !st && r <= ENGINE_WINDOW_ROWS_MAX; r++)
        st = cost_of_rows(eng, handle, anchor, r, 0, &c->rows_ms[r], e);
    if (!st) st = print_branch(eng, handle, anchor, c, e);
    if (st) return st;
    if (one < c->rows_ms[1]) c->rows_ms[1] = one;
    for (uint32_t n = 1; info->drafter && n <= info->drafter_ids_max; n++)
        c->draft_ms[k][n] = cost_of_drafts(eng, handle, n);
    never_fall(c->rows_ms, ENGINE_WINDOW_ROWS_MAX);
    never_fall(c->draft_ms[k], info->drafter_ids_max);
    engine_cancel(eng, handle);
    return ST_OK;
}

static int write_costs(const struct options *o, struct engine *eng, struct err *e) {
    const struct engine_info *info = engine_info(eng);
    struct costs c = {0};
    char shape[COSTS_SHAPE_BYTES];
    costs_shape(shape, info);
    int st = measure_costs(eng, &c, e);
    if (!st) st = costs_write(&c, o->write_costs, info->device, shape, ENGINE_WINDOW_ROWS_MAX, e);
    if (st) return st;
    printf("  costs: rows of 1, 2, 4, 8, 16: 1 %.2f %.2f %.2f %.2f; written to %s\n",
           c.rows_ms[2] / c.rows_ms[1], c.rows_ms[4] / c.rows_ms[1], c.rows_ms[8] / c.rows_ms[1],
           c.rows_ms[16] / c.rows_ms[1], o->write_costs);
    return ST_OK;
}

// Measuring takes a while: a place that cannot be written is found before.
static int check_writable(const char *setting, const char *path, struct err *e) {
    FILE *f = fopen(path, "ae");
    if (!f)
        return err_set(e, ST_INVAL, "%s: wanted a file that can be written, found '%s': %s",
                       setting, path, strerror(errno));
    fclose(f);
    return ST_OK;
}

static int measure(const struct options *o, const struct engine_config *c, const char *parts,
                   struct err *e) {
    struct bench b = {.config = *c, .setting = o->profile ? "profile" : "measure"};
    int st = bench_check_parts(parts, e);
    if (!st && o->json[0]) st = check_writable("json", o->json, e);
    if (st) return st;
    if (o->json[0]) b.json = fopen(o->json, "ae");
    setvbuf(stdout, NULL, _IOLBF, 0); // it takes a while
    printf("engine bench: %s, commit %s\n", o->model, version_commit());
    st = bench_measure(&b, parts, e);
    engine_free(b.eng);
    if (b.json) fclose(b.json);
    return st;
}

static int costs_or_table(const struct options *o, const struct engine_config *c, struct err *e) {
    struct engine *eng = NULL;
    int st = o->write_costs[0] ? check_writable("write-costs", o->write_costs, e) : ST_OK;
    if (!st) st = engine_new(&eng, c, e);
    if (!st) st = o->write_costs[0] ? write_costs(o, eng, e) : run(o, eng, e);
    engine_free(eng);
    return st;
}

int cmd_bench(const struct options *o) {
    struct engine_config c;
    struct err e = {0};
    const char *parts = o->profile ? BENCH_PROFILE : o->measure;
    options_engine(o, &c);
    if (c.context_max == 0 && !*parts) c.context_max = CONTEXT; // else as long as it gets
    if (c.streams_max == 0) c.streams_max = *parts ? BENCH_STREAMS : STREAMS;
    if (*parts && c.memory_fraction == 1) c.memory_fraction = MEASURE_FRACTION;
    int st = ST_OK;
    if (c.context_max && c.context_max < FILL + 1)
        st =
            err_set(&e, ST_INVAL, "context: wanted at least %d, found %u", FILL + 1, c.context_max);
    if (!st) st = *parts ? measure(o, &c, parts, &e) : costs_or_table(o, &c, &e);
    if (!st) return EXIT_CODE_OK;
    cmd_complain("bench", e.msg);
    return st == ST_INVAL ? EXIT_CODE_USAGE : st == ST_DEVICE ? EXIT_CODE_DEVICE : EXIT_CODE_MODEL;
}
