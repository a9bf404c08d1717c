/* delta_scan_cpu: see delta_scan.h. A unit is one run, one value head and a group of columns of its state: columns do not mix,
 * so a unit passes the run's tokens through its part of S where it lies, in the first-level cache for long runs. Only recorded
 * runs, which leave S as it was, put what they make of it elsewhere. */
#include "kernels/cpu.h"
#include "kernels/cpu_vec.h"
#include "kernels/delta/delta_scan.h"

enum {
    // Columns of a group: their sums must fit into registers, and be many enough to hide a step's latency.
    GROUP_MAX = PARTS == 1   ? 4 * LANES
                : PARTS == 2 ? 2 * LANES
                             : LANES,
    KEY_DIM_MAX = 256,
    AHEAD_BYTES = 32768, // a state is fetched that far ahead
};

struct token {
    const float *q, *k, *v; // v: the unit's columns
    float decay, strength, qk;
    float *out; // NULL: not wanted
};

// One step of the rule on a group of n registers of columns, from one state to the next, which may be the same memory; what
// lies `ahead` bytes behind the first is fetched meanwhile. n is a constant at the call.
CPU_INLINE void step(const float *from, float *to, const struct token *t, uint32_t key_dim,
                     uint32_t ahead, const uint32_t n) {
    vn mk[GROUP_MAX / NATIVE], mq[GROUP_MAX / NATIVE], d[GROUP_MAX / NATIVE];
#pragma GCC unroll 4
    for (uint32_t i = 0; i < n; i++) mk[i] = mq[i] = vn_set(0);
    for (uint32_t k = 0; k < key_dim; k++)
#pragma GCC unroll 4
        for (uint32_t i = 0; i < n; i++) {
            const float *at = from + ((uint64_t)k * n + i) * NATIVE;
            if (i % PARTS == 0) __builtin_prefetch((const char *)at + ahead, 1, 2);
            vn row = vn_load(at);
            mk[i] = vn_fma(row, vn_set(t->k[k]), mk[i]);
            mq[i] = vn_fma(row, vn_set(t->q[k]), mq[i]);
        }
#pragma GCC unroll 4
    for (uint32_t i = 0; i < n; i++) {
        d[i] = vn_fma(mk[i], vn_set(-t->decay), vn_load(t->v + i * NATIVE)) * t->strength;
        if (t->out) vn_store(t->out + i * NATIVE, vn_fma(d[i], vn_set(t->qk), mq[i] * t->decay));
    }
    for (uint32_t k = 0; k < key_dim; k++)
#pragma GCC unroll 4
        for (uint32_t i = 0; i < n; i++) {
            uint64_t at = ((uint64_t)k * n + i) * NATIVE;
            vn_store(to + at, vn_fma(d[i], vn_set(t->k[k]), vn_load(from + at) * t->decay));
        }
}

struct unit {
    const struct delta_scan_args *a;
    const struct run *run;
    uint32_t head, col, cols; // value head; its first column, and how many
};

static struct token token_of(const struct unit *u, uint32_t row) {
    const struct delta_scan_args *a = u->a;
    uint64_t key_width = (uint64_t)a->key_heads * a->key_dim;
    uint64_t channels = 2 * key_width + (uint64_t)a->value_heads * a->value_dim;
    const float *qkv = (const float *)cpu_ptr(a->qkv) + row * channels;
    const float *gates = (const float *)cpu_ptr(a->gates) + (uint64_t)row * 2 * a->value_heads;
    uint32_t key_head = u->head / (a->value_heads / a->key_heads);
    uint64_t value = (uint64_t)u->head * a->value_dim + u->col;
    struct token t = {.q = qkv + (uint64_t)key_head * a->key_dim,
                      .k = qkv + key_width + (uint64_t)key_head * a->key_dim,
                      .v = qkv + 2 * key_width + value,
                      .decay = gates[u->head],
                      .strength = gates[a->value_heads + u->head]};
    t.qk = vf_dot(t.q, t.k, a->key_dim);
    if (a->out)
        t.out = (float *)cpu_ptr(a->out) + (uint64_t)row * a->value_heads * a->value_dim + value;
    return t;
}

// The first row goes from one state to the other, the next ones on in that.
static void scan_rows(const struct unit *u, const float *from, float *to) {
    uint32_t dim = u->a->key_dim, ahead = AHEAD_BYTES;
    for (uint32_t i = 0; i < u->run->count; i++, from = to, ahead = 0) {
        struct token t = token_of(u, u->run->row + i);
        switch (u->cols / LANES) {
        case 1: step(from, to, &t, dim, ahead, 1 * PARTS); break;
#if defined(__AVX2__)
        case 2: step(from, to, &t, dim, ahead, 2 * PARTS); break;
#endif
#if defined(__AVX512F__)
        case 3: step(from, to, &t, dim, ahead, 3); break;
        case 4: step(from, to, &t, dim, ahead, 4); break;
#endif
        default: __builtin_unreachable();
        }
    }
}

static void scan_unit(const struct unit *u) {
    const struct delta_scan_args *a = u->a;
    float copy[GROUP_MAX * KEY_DIM_MAX];
    float *s = cpu_ptr(a->state + u->run->slot * a->slot_stride);
    s += ((uint64_t)u->head * a->value_dim + u->col) * a->key_dim;
    float *to = u->run->record ? copy : s;
    if (!u->run->pos) s = memset(to, 0, (uint64_t)u->cols * a->key_dim * sizeof *s);
    scan_rows(u, s, to);
}

static uint32_t groups_of(const struct delta_scan_args *a) {
    return (a->value_dim + GROUP_MAX - 1) / GROUP_MAX;
}

static void delta_scan_unit(void *arg, uint32_t idx, uint32_t thread) {
    const struct delta_scan_args *a = arg;
    uint32_t groups = groups_of(a), per_run = groups * a->value_heads;
    struct unit u = {.a = a,
                     .run = (const struct run *)cpu_ptr(a->runs) + idx / per_run,
                     .head = idx % per_run / groups,
                     .col = idx % groups * GROUP_MAX};
    u.cols = a->value_dim - u.col < GROUP_MAX ? a->value_dim - u.col : GROUP_MAX;
    scan_unit(&u);
}

void CPU_NAME(delta_scan)(void *ctx, const struct delta_scan_args *a) {
    struct delta_scan_args args = *a;
    uint64_t work = (uint64_t)a->rows * a->value_heads * a->key_dim * a->value_dim * 2;
    cpu_for(ctx, work, a->runs_count * a->value_heads * groups_of(a), delta_scan_unit, &args);
}
