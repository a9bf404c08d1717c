/* engine_bench: what a round costs, beside what the memory allows.
 *
 *   engine_bench [MODEL_DIR [THREADS]]
 * Without a folder: tests/models/demo, or random weights of its shape where that is not there. One line a figure: commit,
 * machine, shape, runs, median, spread (10th to 90th of a hundred), and the limit: the bytes of the weights over the speed
 * at which as many threads read a block of that size again and again, or the multiply-adds of the rows over the speed of the
 * linear operation on a block that stays in the cache, whichever is longer. States and caches are not counted in it. */
#include "common/err.h"
#include "common/mono.h"
#include "common/version.h"
#include "kernels/cpu_pool.h"
#include "kernels/linear/linear.h"
#include "kernels/ops.h"
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
    READS = 40,
    WARM = 20
};

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

struct figure {
    double median, low, high;
};

static struct figure figure_of(double *v, uint32_t n) {
    qsort(v, n, sizeof *v, by_value);
    return (struct figure){v[n / 2], v[n / 10], v[n - 1 - n / 10]};
}

static void die(const struct err *e) {
    fprintf(stderr, "engine_bench: %s\n", e->msg);
    exit(1);
}

struct reader {
    const uint64_t *p;
    uint64_t words;
    uint32_t pieces;
    uint64_t sums[CPU_POOL_THREADS_MAX];
};

static void read_piece(void *arg, uint32_t unit, uint32_t thread) {
    struct reader *r = arg;
    uint64_t from = r->words / r->pieces * unit, s0 = 0, s1 = 0, s2 = 0, s3 = 0;
    for (uint64_t i = from; i + 4 <= from + r->words / r->pieces; i += 4) {
        s0 += r->p[i];
        s1 += r->p[i + 1];
        s2 += r->p[i + 2];
        s3 += r->p[i + 3];
    }
    r->sums[thread] += s0 + s1 + s2 + s3;
}

// Bytes a second of reading `bytes` over and over with that many threads.
static double read_speed(uint64_t bytes, uint32_t threads) {
    struct err e;
    struct cpu_pool *pool = NULL;
    if (cpu_pool_new(&pool, threads, &e)) die(&e);
    struct reader r = {.words = bytes / 8, .pieces = threads * 16};
    uint64_t *p = malloc(bytes);
    if (!p) die(&(struct err){.msg = "no memory to read"});
    memset(p, 1, bytes);
    r.p = p;
    double v[READS];
    for (uint32_t i = 0; i < READS; i++) {
        uint64_t t = mono_ns();
        cpu_pool_run(pool, r.pieces, read_piece, &r);
        v[i] = (double)bytes * 1e9 / (double)(mono_ns() - t);
    }
    cpu_pool_free(pool);
    free(p);
    return figure_of(v, READS).median;
}

// Multiply-adds a second of products whose operands stay in the cache.
static double mac_speed(uint32_t threads) {
    enum { ROWS = 48, COLS = 256, DEPTH = 512, REPEATS = 60 };
    struct err e;
    struct cpu_pool *pool = NULL;
    struct ops o;
    if (cpu_pool_new(&pool, threads, &e) || ops_cpu_open(&o, pool, NULL, &e)) die(&e);
    devptr p = 0;
    uint64_t bytes = (uint64_t)(ROWS * DEPTH + ROWS * COLS) * 4 + COLS * DEPTH * 2;
    if (o.alloc(o.ctx, bytes, "bench", &p, &e)) die(&e);
    struct linear_args a = {.x = p, .rows = ROWS, .parts_count = 1};
    a.parts[0].y = p + ROWS * DEPTH * 4;
    a.parts[0].w = (struct weight){
        .data = a.parts[0].y + ROWS * COLS * 4, .dtype = DTYPE_BF16, .rows = COLS, .cols = DEPTH};
    double v[REPEATS];
    for (uint32_t i = 0; i < REPEATS; i++) {
        uint64_t t = mono_ns();
        o.linear(o.ctx, &a);
        v[i] = (double)ROWS * COLS * DEPTH * 1e9 / (double)(mono_ns() - t);
    }
    o.free(o.ctx, p, bytes);
    ops_close(&o);
    cpu_pool_free(pool);
    return figure_of(v, REPEATS).median;
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

struct limits {
    double read, mac; // bytes and multiply-adds a second
};

static double limit_us(const struct engine_info *info, const struct limits *l, uint32_t rows) {
    double bytes = (double)info->weights_bytes / l->read;
    double macs = (double)info->parameters * rows / l->mac; // a tied embedding is the head's
    return (bytes > macs ? bytes : macs) * 1e6;
}

static void line(const struct engine_info *info, const struct limits *l, const char *what,
                 uint32_t rows, const struct figure *f, double one_us) {
    double limit = limit_us(info, l, rows);
    printf("engine_bench commit=%s shape=%ux%u %-14s rows=%-2u runs=%d median_us=%.0f "
           "spread_us=%.0f..%.0f "
           "tok_s=%.0f of_one_row=%.2f limit_us=%.0f of_limit=%.2f\n",
           version_commit(), info->layers, info->hidden, what, rows, ROUNDS, f->median, f->low,
           f->high, rows * 1e6 / f->median, f->median / one_us, limit, f->median / limit);
}

static void report(struct engine *eng, const struct limits *l) {
    const struct engine_info *info = engine_info(eng);
    printf("engine_bench commit=%s device=%s/%s threads=%u layers=%u hidden=%u vocab=%u "
           "weights_mb=%.1f "
           "read_gb_s=%.1f gmac_s=%.1f\n",
           version_commit(), info->device, info->variant, info->threads, info->layers, info->hidden,
           info->vocab_size, (double)info->weights_bytes / 1e6, l->read / 1e9, l->mac / 1e9);
    struct figure one = decode(eng, 1, 0), f;
    for (uint32_t rows = 1; rows <= STREAMS; rows *= 2) {
        f = decode(eng, rows, 0);
        line(info, l, "decode greedy", rows, &f, one.median);
        f = decode(eng, rows, 0.7);
        line(info, l, "decode sampled", rows, &f, one.median);
    }
    for (uint32_t rows = 2; rows <= STREAMS; rows *= 2) {
        f = verify(eng, rows);
        line(info, l, "verify", rows, &f, one.median);
    }
    f = fill(eng);
    printf("engine_bench commit=%s shape=%ux%u prompt tokens=%d chunk=%u runs=%d median_tok_s=%.0f "
           "spread=%.0f..%.0f limit_tok_s=%.0f\n",
           version_commit(), info->layers, info->hidden, FILL, info->chunk_tokens, FILLS, f.median,
           f.low, f.high, 1e6 * info->chunk_tokens / limit_us(info, l, info->chunk_tokens));
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
    uint32_t threads = engine_info(eng)->threads;
    report(eng, &(struct limits){read_speed(engine_info(eng)->weights_bytes, threads),
                                 mac_speed(threads)});
    engine_free(eng);
    if (made) remove_random(dir);
    return 0;
}
