/* engine_bench: what a round costs, beside what the memory allows.
 *
 *   engine_bench [MODEL_DIR [THREADS]]
 * Without a folder: tests/models/demo, or random weights of its shape where that is not there. One line a figure: commit,
 * machine, shape, runs, shortest, median, spread (10th to 90th of a hundred), and the limit of worker/bench_limits.h for the
 * bytes and multiply-adds counted. Last, the targets of the demo model, and whether they are met by the medians: at least 300
 * tokens a second of one stream, and 16 rows of one forward in at most four times the time of one; beside it the same of 16
 * streams, which share the weights alone (docs/notes/cpu_speed.md). */
#include "common/err.h"
#include "common/mono.h"
#include "common/version.h"
#include "worker/bench_limits.h"
#include "worker/engine/engine.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    PROMPT = 32,
    ROUNDS = 400,
    STREAMS = 16,
    CONTEXT = 2048,
    FILL = 1024,
    FILLS = 5,
    WARM = 20,
    TARGET_TOK_S = 300,
    TARGET_OF_ONE = 4
};

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

struct figure {
    double least, median, low, high;
};

static struct figure figure_of(double *v, uint32_t n) {
    qsort(v, n, sizeof *v, by_value);
    return (struct figure){v[0], v[n / 2], v[n / 10], v[n - 1 - n / 10]};
}

static void die(const struct err *e) {
    fprintf(stderr, "engine_bench: %s\n", e->msg);
    exit(1);
}

static struct engine *open_engine(const char *dir, uint32_t threads) {
    struct err e;
    struct engine *eng = NULL;
    struct engine_config config = {
        .model_dir = dir, .threads = threads, .streams_max = STREAMS, .context_max = CONTEXT};
    if (engine_new(&eng, &config, &e)) die(&e);
    return eng;
}

static uint64_t submit(struct engine *eng, const uint32_t *ids, uint32_t count, uint32_t max_tokens,
                       double temperature) {
    struct err e;
    uint64_t handle;
    struct engine_request r = {.prompt = ids,
                               .prompt_count = count,
                               .max_tokens = max_tokens,
                               .ignore_eos = true,
                               .top_logprobs = -1,
                               .sampling = {.temperature = temperature,
                                            .top_k = temperature > 0 ? 20 : 0,
                                            .top_p = 1,
                                            .repetition = 1,
                                            .seed = ids[0]}};
    if (engine_submit(eng, &r, &handle, &e)) die(&e);
    return handle;
}

static uint32_t step(struct engine *eng) {
    struct err e;
    struct engine_round round;
    if (engine_step(eng, &round, &e)) die(&e);
    return round.rows;
}

// Rounds in which `streams` streams take one row each.
static struct figure decode(struct engine *eng, uint32_t streams, double temperature) {
    uint32_t ids[PROMPT], vocab = engine_info(eng)->vocab_size;
    uint64_t handles[STREAMS];
    static double v[ROUNDS];
    for (uint32_t s = 0; s < streams; s++) {
        for (uint32_t i = 0; i < PROMPT; i++) ids[i] = (s * 7919 + i * 104729 + 5) % vocab;
        handles[s] = submit(eng, ids, PROMPT, CONTEXT, temperature);
    }
    for (uint32_t i = 0; i < WARM || step(eng) != streams; i++) step(eng);
    for (uint32_t i = 0; i < ROUNDS; i++) {
        uint64_t t = mono_ns();
        if (step(eng) != streams) die(&(struct err){.msg = "a stream left its round"});
        v[i] = (double)(mono_ns() - t) / 1000;
    }
    for (uint32_t s = 0; s < streams; s++) engine_cancel(eng, handles[s]);
    return figure_of(v, ROUNDS);
}

// What a draft's check costs: rows of one stream, logits of all, nothing kept.
static struct figure verify(struct engine *eng, uint32_t rows) {
    uint32_t ids[PROMPT], vocab = engine_info(eng)->vocab_size;
    struct err e;
    struct engine_round round = {0};
    static double v[ROUNDS];
    float *logits = malloc((size_t)rows * vocab * sizeof *logits);
    if (!logits) die(&(struct err){.msg = "no memory for logits"});
    for (uint32_t i = 0; i < PROMPT; i++) ids[i] = (i * 104729 + 5) % vocab;
    uint64_t handle = submit(eng, ids, PROMPT, CONTEXT, 0);
    while (!round.count || !round.events[0].ids_count)
        if (engine_step(eng, &round, &e)) die(&e);
    ids[0] = round.events[0].ids[0];
    for (uint32_t i = 0; i < ROUNDS; i++) {
        uint64_t t = mono_ns();
        struct engine_window w = {.handle = handle, .ids = ids, .count = rows, .ret = logits};
        if (engine_windows(eng, &w, 1, &e)) die(&e);
        v[i] = (double)(mono_ns() - t) / 1000;
    }
    engine_cancel(eng, handle);
    free(logits);
    return figure_of(v, ROUNDS);
}

static struct figure fill(struct engine *eng) {
    static uint32_t ids[FILL];
    uint32_t vocab = engine_info(eng)->vocab_size;
    double v[FILLS];
    for (uint32_t i = 0; i < FILL; i++) ids[i] = (i * 104729 + 5) % vocab;
    for (uint32_t k = 0; k < FILLS; k++) {
        submit(eng, ids, FILL, 1, 0);
        uint64_t t = mono_ns();
        while (step(eng)) {}
        v[k] = FILL * 1e9 / (double)(mono_ns() - t);
    }
    return figure_of(v, FILLS);
}

// Of `rows` rows that `streams` streams share, the middle one of the run's rounds.
static void line(const struct engine_info *info, double macs, const char *what, uint32_t rows,
                 uint32_t streams, const struct figure *f, double one_us) {
    struct bench_work w = bench_work_of(info, rows, streams, PROMPT + WARM + ROUNDS / 2);
    struct err e;
    double read;
    if (bench_read_speed(&read, w.bytes, info->threads, &e)) die(&e);
    double limit = bench_limit_s(&w, read, macs) * 1e6;
    printf(
        "engine_bench commit=%s shape=%ux%u %-14s rows=%-2u runs=%d least_us=%.0f median_us=%.0f "
        "spread_us=%.0f..%.0f tok_s=%.0f of_one_row=%.2f mb=%.1f read_gb_s=%.1f mmadds=%.1f "
        "limit_us=%.0f of_limit=%.2f\n",
        version_commit(), info->layers, info->hidden, what, rows, ROUNDS, f->least, f->median,
        f->low, f->high, rows * 1e6 / f->median, f->median / one_us, w.bytes / 1e6, read / 1e9,
        w.macs / 1e6, limit, f->median / limit);
}

static const char *verdict(bool met) {
    return met ? "met" : "not met";
}

// The ratio of the shortest rounds says what a busy machine hides.
static void target_of_one(const char *what, const struct figure *f, const struct figure *one) {
    double ratio = f->median / one->median;
    printf("engine_bench target 16 %s: wanted at most %d of one row, found %.2f (shortest "
           "rounds: %.2f): %s\n",
           what, TARGET_OF_ONE, ratio, f->least / one->least, verdict(ratio <= TARGET_OF_ONE));
}

static void prompt_line(struct engine *eng, double macs) {
    const struct engine_info *info = engine_info(eng);
    struct bench_work w = bench_work_of(info, info->chunk_tokens, 1, FILL / 2);
    struct figure f = fill(eng);
    struct err e;
    double read;
    if (bench_read_speed(&read, w.bytes, info->threads, &e)) die(&e);
    printf("engine_bench commit=%s shape=%ux%u prompt tokens=%d chunk=%u runs=%d median_tok_s=%.0f "
           "spread=%.0f..%.0f limit_tok_s=%.0f\n",
           version_commit(), info->layers, info->hidden, FILL, info->chunk_tokens, FILLS, f.median,
           f.low, f.high, info->chunk_tokens / bench_limit_s(&w, read, macs));
}

static void report(struct engine *eng) {
    const struct engine_info *info = engine_info(eng);
    struct err e;
    double macs;
    if (bench_mac_speed(&macs, info->threads, &e)) die(&e);
    printf("engine_bench commit=%s device=%s/%s threads=%u layers=%u hidden=%u vocab=%u "
           "weights_mb=%.1f gmadds_s=%.1f\n",
           version_commit(), info->device, info->variant, info->threads, info->layers, info->hidden,
           info->vocab_size, (double)info->weights_bytes / 1e6, macs / 1e9);
    struct figure one = decode(eng, 1, 0), greedy = one, sampled = one, f;
    for (uint32_t rows = 1; rows <= STREAMS; rows *= 2) {
        greedy = decode(eng, rows, 0);
        line(info, macs, "decode greedy", rows, rows, &greedy, one.median);
        sampled = decode(eng, rows, 0.7);
        line(info, macs, "decode sampled", rows, rows, &sampled, one.median);
    }
    for (uint32_t rows = 2; rows <= STREAMS; rows *= 2) {
        f = verify(eng, rows);
        line(info, macs, "verify", rows, 1, &f, one.median);
    }
    prompt_line(eng, macs);
    double tok_s = 1e6 / one.median;
    printf("engine_bench target one stream: wanted at least %d tok/s, found %.0f: %s\n",
           TARGET_TOK_S, tok_s, verdict(tok_s >= TARGET_TOK_S));
    target_of_one("rows of one stream, logits of all", &f, &one);
    target_of_one("greedy streams", &greedy, &one);
    target_of_one("sampled streams", &sampled, &one);
}

// A folder with random weights of the demo's shape.
static void make_random(char *ret, size_t ret_bytes) {
    const char *source = getenv("RAILYARD_SOURCE");
    char cmd[1024];
    snprintf(ret, ret_bytes, "/tmp/engine_bench.%ld", (long)getpid());
    snprintf(
        cmd, sizeof cmd,
        "/usr/bin/python3 '%s/tests/tools/make_tiny.py' '%s' --real-heads --layers 8 --hidden 256 "
        "--intermediate 512 --vocab 4096 >/dev/null",
        source ? source : ".", ret);
    if (system(cmd)) die(&(struct err){.msg = "could not make random weights"});
}

static void remove_random(const char *dir) {
    char cmd[300];
    snprintf(cmd, sizeof cmd, "rm -rf '%s'", dir);
    if (system(cmd)) fprintf(stderr, "engine_bench: could not remove %s\n", dir);
}

int main(int argc, char **argv) {
    const char *source = getenv("RAILYARD_SOURCE");
    char dir[256];
    bool made = false;
    snprintf(dir, sizeof dir, "%s/tests/models/demo", source ? source : ".");
    if (argc > 1) snprintf(dir, sizeof dir, "%s", argv[1]);
    if (argc <= 1 && access(dir, R_OK)) {
        make_random(dir, sizeof dir);
        made = true;
    }
    setvbuf(stdout, NULL, _IOLBF, 0);
    struct engine *eng = open_engine(dir, argc > 2 ? (uint32_t)atoi(argv[2]) : 0);
    report(eng);
    engine_free(eng);
    if (made) remove_random(dir);
    return 0;
}
