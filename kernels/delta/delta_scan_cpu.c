/* delta_scan_cpu: see delta_scan.h. A unit is one run, one value head and one or two blocks of sixteen columns of its state:
 * columns do not mix, so a unit passes the run's tokens through its blocks of S where they lie, in the first-level cache
 * for long runs. Only recorded runs, which leave S as it was, work on a copy. */
#include "kernels/cpu.h"
#include "kernels/cpu_vec.h"
#include "kernels/delta/delta_scan.h"

enum {
    BLOCKS_MAX = PARTS > 2 ? 1 : 2, // blocks of a unit: their sums must fit into registers
    KEY_DIM_MAX = 256,
    AHEAD_BLOCKS = 4, // a state is fetched two units ahead
};

struct token {
    const float *q, *k, *v; // v: the unit's columns
    float decay, strength, qk;
    float *out; // NULL: not wanted
};

// One step of the rule on n blocks of columns. n is a constant at the call.
CPU_INLINE void step(float *const *s, const struct token *t, uint32_t key_dim, const uint32_t n) {
    vn mk[BLOCKS_MAX * PARTS], mq[BLOCKS_MAX * PARTS], d[BLOCKS_MAX * PARTS];
#pragma GCC unroll 4
    for (uint32_t i = 0; i < n * PARTS; i++) mk[i] = mq[i] = vn_set(0);
    for (uint32_t k = 0; k < key_dim; k++)
#pragma GCC unroll 4
        for (uint32_t i = 0; i < n * PARTS; i++) {
            const float *at = s[i / PARTS] + (uint64_t)k * LANES + i % PARTS * NATIVE;
            if (i % PARTS == 0)
                __builtin_prefetch(at + (uint64_t)AHEAD_BLOCKS * key_dim * LANES, 1, 2);
            vn row = vn_load(at);
            mk[i] = vn_fma(row, vn_set(t->k[k]), mk[i]);
            mq[i] = vn_fma(row, vn_set(t->q[k]), mq[i]);
        }
#pragma GCC unroll 4
    for (uint32_t i = 0; i < n * PARTS; i++) {
        d[i] = vn_fma(mk[i], vn_set(-t->decay), vn_load(t->v + i * NATIVE)) * t->strength;
        if (t->out) vn_store(t->out + i * NATIVE, vn_fma(d[i], vn_set(t->qk), mq[i] * t->decay));
    }
    for (uint32_t k = 0; k < key_dim; k++)
#pragma GCC unroll 4
        for (uint32_t i = 0; i < n * PARTS; i++) {
            float *row = s[i / PARTS] + (uint64_t)k * LANES + i % PARTS * NATIVE;
            vn_store(row, vn_fma(d[i], vn_set(t->k[k]), vn_load(row) * t->decay));
        }
}

struct unit {
    const struct delta_scan_args *a;
    const struct run *run;
    uint32_t head, block, blocks; // value head; its first block of columns, and how many
};

static struct token token_of(const struct unit *u, uint32_t row) {
    const struct delta_scan_args *a = u->a;
    uint64_t key_width = (uint64_t)a->key_heads * a->key_dim;
    uint64_t channels = 2 * key_width + (uint64_t)a->value_heads * a->value_dim;
    const float *qkv = (const float *)cpu_ptr(a->qkv) + row * channels;
    const float *gates = (const float *)cpu_ptr(a->gates) + (uint64_t)row * 2 * a->value_heads;
    uint32_t key_head = u->head / (a->value_heads / a->key_heads);
    uint64_t value = (uint64_t)u->head * a->value_dim + u->block * LANES;
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

static void scan_rows(const struct unit *u, float *const *s) {
    for (uint32_t i = 0; i < u->run->count; i++) {
        struct token t = token_of(u, u->run->row + i);
        if (u->blocks == BLOCKS_MAX)
            step(s, &t, u->a->key_dim, BLOCKS_MAX);
        else
            step(s, &t, u->a->key_dim, 1);
    }
}

static void scan_unit(const struct unit *u) {
    const struct delta_scan_args *a = u->a;
    float copy[BLOCKS_MAX * KEY_DIM_MAX * LANES];
    uint64_t block = (uint64_t)a->key_dim * LANES, size = u->blocks * block;
    float *s = cpu_ptr(a->state + u->run->slot * a->slot_stride);
    s += (uint64_t)u->head * a->key_dim * a->value_dim + u->block * block;
    if (u->run->record) {
        memcpy(copy, s, size * sizeof *s);
        s = copy;
    }
    if (!u->run->pos) memset(s, 0, size * sizeof *s);
    scan_rows(u, (float *const[]){s, s + block});
}

static void delta_scan_unit(void *arg, uint32_t idx, uint32_t thread) {
    const struct delta_scan_args *a = arg;
    uint32_t blocks = a->value_dim / LANES, per_head = (blocks + BLOCKS_MAX - 1) / BLOCKS_MAX;
    uint32_t per_run = per_head * a->value_heads, block = idx % per_head * BLOCKS_MAX;
    struct unit u = {.a = a,
                     .run = (const struct run *)cpu_ptr(a->runs) + idx / per_run,
                     .head = idx % per_run / per_head,
                     .block = block,
                     .blocks = blocks - block < BLOCKS_MAX ? 1 : BLOCKS_MAX};
    scan_unit(&u);
}

void CPU_NAME(delta_scan)(void *ctx, const struct delta_scan_args *a) {
    struct delta_scan_args args = *a;
    uint32_t per_head = (a->value_dim / LANES + BLOCKS_MAX - 1) / BLOCKS_MAX;
    uint64_t work = (uint64_t)a->rows * a->value_heads * a->key_dim * a->value_dim * 2;
    cpu_for(ctx, work, a->runs_count * a->value_heads * per_head, delta_scan_unit, &args);
}
