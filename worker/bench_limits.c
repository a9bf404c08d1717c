/* bench_limits: see bench_limits.h. */
#include "worker/bench_limits.h"
#include "common/err.h"
#include "common/mono.h"
#include "kernels/cpu_pool.h"
#include "worker/engine/engine.h"

#include <stdlib.h>
#include <string.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

enum { REPEATS = 40, PIECES = 16, CHAINS = 12, STEPS = 20000 };

// Of the routed experts, the part that is read for so many rows, each of which goes to experts of its own choice.
static double met(const struct engine_work *w, uint32_t rows) {
    double missed = 1;
    if (!w->experts) return 0;
    for (uint32_t i = 0; i < rows; i++) missed *= 1 - (double)w->experts_per_row / w->experts;
    return 1 - missed;
}

struct bench_work bench_work_of(const struct engine_info *info, uint32_t rows, uint32_t streams,
                                uint32_t context) {
    const struct engine_work *w = &info->work;
    double state = (double)info->state_bytes / info->streams_max;
    double position = (double)info->kv_bytes / info->kv_blocks_total / info->kv_block_tokens;
    double routed = w->experts ? (double)w->routed_parameters * w->experts_per_row / w->experts : 0;
    return (struct bench_work){.bytes = (double)w->bytes + met(w, rows) * (double)w->routed_bytes +
                                        streams * (2 * state + context * position),
                               .macs = rows *
                                       ((double)w->parameters + routed + 3 * state / sizeof(float) +
                                        (double)w->position_macs * context)};
}

double bench_limit_s(const struct bench_work *w, double read_speed, double mac_speed) {
    double bytes = w->bytes / read_speed, macs = w->macs / mac_speed;
    return bytes > macs ? bytes : macs;
}

struct job {
    const uint64_t *words;
    uint64_t count; // of a piece
    double macs;    // of a piece
    uint64_t sums[CPU_POOL_THREADS_MAX];
};

typedef uint64_t words8 __attribute__((vector_size(64)));

// Inlined where the target's widest loads are allowed.
static inline __attribute__((always_inline)) uint64_t sum_words(const uint64_t *p, uint64_t count) {
    words8 s[4] = {0}, v;
    for (uint64_t i = 0; i + 32 <= count; i += 32)
#pragma GCC unroll 4
        for (int k = 0; k < 4; k++) {
            memcpy(&v, p + i + 8 * k, sizeof v);
            s[k] += v;
        }
    s[0] += s[1] + s[2] + s[3];
    return s[0][0] + s[0][1] + s[0][2] + s[0][3] + s[0][4] + s[0][5] + s[0][6] + s[0][7];
}

#if defined(__x86_64__)
__attribute__((target("avx512f"))) static uint64_t read_512(const uint64_t *p, uint64_t count) {
    return sum_words(p, count);
}

__attribute__((target("avx2"))) static uint64_t read_256(const uint64_t *p, uint64_t count) {
    return sum_words(p, count);
}
#endif

static uint64_t read_widest(const uint64_t *p, uint64_t count) {
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512f")) return read_512(p, count);
    if (__builtin_cpu_supports("avx2")) return read_256(p, count);
#endif
    return sum_words(p, count);
}

static void read_piece(void *arg, uint32_t unit, uint32_t thread) {
    struct job *j = arg;
    j->sums[thread] += read_widest(j->words + j->count * unit, j->count);
}

// So that the compiler may not leave out what led to it.
static void keep(float x) {
    volatile float kept = x;
    (void)kept;
}

#if defined(__x86_64__)
// Each gives the multiply-adds of CHAINS chains, which live in registers, STEPS steps long.
__attribute__((target("avx512f"))) static double multiply_512(void) {
    __m512 a[CHAINS], f = _mm512_set1_ps(0.5f);
    for (int i = 0; i < CHAINS; i++) a[i] = _mm512_set1_ps((float)i);
    for (int n = 0; n < STEPS; n++)
#pragma GCC unroll 12
        for (int i = 0; i < CHAINS; i++) a[i] = _mm512_fmadd_ps(a[i], f, f);
    float sum = 0;
    for (int i = 0; i < CHAINS; i++) sum += _mm512_cvtss_f32(a[i]);
    keep(sum);
    return 16.0 * CHAINS * STEPS;
}

__attribute__((target("avx2,fma"))) static double multiply_256(void) {
    __m256 a[CHAINS], f = _mm256_set1_ps(0.5f);
    for (int i = 0; i < CHAINS; i++) a[i] = _mm256_set1_ps((float)i);
    for (int n = 0; n < STEPS; n++)
#pragma GCC unroll 12
        for (int i = 0; i < CHAINS; i++) a[i] = _mm256_fmadd_ps(a[i], f, f);
    float sum = 0;
    for (int i = 0; i < CHAINS; i++) sum += _mm256_cvtss_f32(a[i]);
    keep(sum);
    return 8.0 * CHAINS * STEPS;
}
#endif

static double multiply_plain(void) {
    typedef float v4 __attribute__((vector_size(16)));
    v4 a[CHAINS], f = (v4){0} + 0.5f;
    for (int i = 0; i < CHAINS; i++) a[i] = (v4){0} + (float)i;
    for (int n = 0; n < STEPS; n++)
#pragma GCC unroll 12
        for (int i = 0; i < CHAINS; i++) a[i] = a[i] * f + f;
    float sum = 0;
    for (int i = 0; i < CHAINS; i++) sum += a[i][0];
    keep(sum);
    return 4.0 * CHAINS * STEPS;
}

static double multiply_widest(void) {
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512f")) return multiply_512();
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return multiply_256();
#endif
    return multiply_plain();
}

static void multiply_piece(void *arg, uint32_t unit, uint32_t thread) {
    struct job *j = arg;
    double macs = multiply_widest();
    if (unit == 0) j->macs = macs;
}

// The shortest of several runs, in seconds.
static int shortest(double *ret_s, struct job *j, uint32_t pieces, uint32_t threads,
                    cpu_pool_fn *fn, struct err *e) {
    struct cpu_pool *pool = NULL;
    int st = cpu_pool_new(&pool, threads, e);
    if (st) return st;
    for (uint32_t i = 0; i < REPEATS; i++) {
        uint64_t before = mono_ns();
        cpu_pool_run(pool, pieces, fn, j);
        double s = (double)(mono_ns() - before) / 1e9;
        if (i == 0 || s < *ret_s) *ret_s = s;
    }
    cpu_pool_free(pool);
    return ST_OK;
}

int bench_read_speed(double *ret, double bytes, uint32_t threads, struct err *e) {
    uint32_t pieces = threads * PIECES;
    uint64_t count = (uint64_t)bytes / sizeof(uint64_t) / pieces;
    uint64_t *p = malloc(count * pieces * sizeof *p);
    double s = 0;
    if (!p) return err_set(e, ST_NOMEM, "no memory for a block of %.0f bytes to read", bytes);
    memset(p, 1, count * pieces * sizeof *p);
    int st =
        shortest(&s, &(struct job){.words = p, .count = count}, pieces, threads, read_piece, e);
    free(p);
    if (!st) *ret = (double)(count * pieces * sizeof *p) / s;
    return st;
}

int bench_mac_speed(double *ret, uint32_t threads, struct err *e) {
    struct job j = {0};
    double s = 0;
    int st = shortest(&s, &j, threads, threads, multiply_piece, e);
    if (!st) *ret = j.macs * threads / s;
    return st;
}
