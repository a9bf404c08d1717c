/* delta_scan_cpu: see delta_scan.h. A unit is one run, one value head and COLS columns of its state: columns do not mix, so
 * a unit takes its piece of S into a small local copy, passes the run's tokens through it and puts it back. */
#include "kernels/cpu.h"
#include "kernels/cpu_vec.h"
#include "kernels/delta/delta_scan.h"

#include <stdbool.h>

enum { COLS_VECTORS = 2, COLS = COLS_VECTORS * LANES, KEY_DIM_MAX = 256 };

struct token {
    const float *q, *k, *v; // v: the unit's columns
    float decay, strength, qk;
    float *out; // NULL: not wanted
};

// One step of the rule on n lane vectors of columns. n is a constant at the call.
CPU_INLINE void step(float *s, const struct token *t, uint32_t key_dim, const uint32_t n) {
    vf mk[COLS_VECTORS], mq[COLS_VECTORS], d[COLS_VECTORS];
#pragma GCC unroll 2
    for (uint32_t i = 0; i < n; i++) mk[i] = mq[i] = vf_set(0);
    for (uint32_t k = 0; k < key_dim; k++)
#pragma GCC unroll 2
        for (uint32_t i = 0; i < n; i++) {
            vf row = vf_load(s + (uint64_t)k * COLS + i * LANES);
            mk[i] = mk[i] + row * t->k[k];
            mq[i] = mq[i] + row * t->q[k];
        }
#pragma GCC unroll 2
    for (uint32_t i = 0; i < n; i++) {
        d[i] = (vf_load(t->v + i * LANES) - mk[i] * t->decay) * t->strength;
        if (t->out) vf_store(t->out + i * LANES, mq[i] * t->decay + d[i] * t->qk);
    }
    for (uint32_t k = 0; k < key_dim; k++)
#pragma GCC unroll 2
        for (uint32_t i = 0; i < n; i++) {
            float *row = s + (uint64_t)k * COLS + i * LANES;
            vf_store(row, vf_load(row) * t->decay + d[i] * t->k[k]);
        }
}

struct unit {
    const struct delta_scan_args *a;
    const struct run *run;
    uint32_t head, col, cols; // value head; columns col .. col + cols - 1
};

static void move_state(const struct unit *u, float *s, bool store) {
    const struct delta_scan_args *a = u->a;
    float *state = cpu_ptr(a->state + u->run->slot * a->slot_stride);
    state += (uint64_t)u->head * a->key_dim * a->value_dim + u->col;
    for (uint32_t k = 0; k < a->key_dim; k++) {
        float *row = state + (uint64_t)k * a->value_dim;
        if (store)
            memcpy(row, s + k * COLS, u->cols * sizeof *s);
        else
            memcpy(s + k * COLS, row, u->cols * sizeof *s);
    }
}

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

static void scan_unit(const struct unit *u) {
    _Alignas(64) float s[KEY_DIM_MAX * COLS];
    if (u->run->pos)
        move_state(u, s, false);
    else
        memset(s, 0, (uint64_t)u->a->key_dim * COLS * sizeof *s);
    for (uint32_t i = 0; i < u->run->count; i++) {
        struct token t = token_of(u, u->run->row + i);
        if (u->cols == COLS)
            step(s, &t, u->a->key_dim, COLS_VECTORS);
        else
            step(s, &t, u->a->key_dim, 1);
    }
    if (!u->run->record) move_state(u, s, true);
}

static void delta_scan_unit(void *arg, uint32_t idx, uint32_t thread) {
    const struct delta_scan_args *a = arg;
    uint32_t blocks = (a->value_dim + COLS - 1) / COLS, per_run = blocks * a->value_heads;
    uint32_t col = idx % blocks * COLS;
    struct unit u = {.a = a,
                     .run = (const struct run *)cpu_ptr(a->runs) + idx / per_run,
                     .head = idx % per_run / blocks,
                     .col = col,
                     .cols = a->value_dim - col < COLS ? a->value_dim - col : COLS};
    scan_unit(&u);
}

void CPU_NAME(delta_scan)(void *ctx, const struct delta_scan_args *a) {
    struct delta_scan_args args = *a;
    uint32_t units = a->runs_count * a->value_heads * ((a->value_dim + COLS - 1) / COLS);
    uint64_t work = (uint64_t)a->rows * a->value_heads * a->key_dim * a->value_dim * 2;
    cpu_for(ctx, work, units, delta_scan_unit, &args);
}
