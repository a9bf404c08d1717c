/* delta_scan_ref: the twin of delta_scan.cu, column by column. */
#include "kernels/cuda/refs.h"
#include "kernels/delta/delta_scan.h"
#include "kernels/delta/delta_scan_order.h"

#include <stdbool.h>
#include <stddef.h>
#include <string.h>

struct token {
    float q[DELTA_KEY_DIM_MAX], k[DELTA_KEY_DIM_MAX]; // filled up with zeros
    float v, g, b;
    float *out; // NULL: not wanted
};

// Parts that differ in bit 1 of their numbers, then in bit 2, .., as delta_column_sum; or from the top, as delta_spread_sum.
static float parts_sum(const float p[DELTA_PARTS], bool from_top) {
    float s[DELTA_PARTS];
    memcpy(s, p, sizeof s);
    for (uint32_t n = DELTA_PARTS / 2; n; n /= 2)
        for (uint32_t i = 0; i < n; i++)
            s[i] = from_top ? s[i] + s[i + n] : s[2 * i] + s[2 * i + 1];
    return s[0];
}

// s: the column, [rows].
static void step(float *s, const struct token *t, uint32_t rows) {
    float mk[DELTA_PARTS] = {0}, mq[DELTA_PARTS] = {0}, qk[DELTA_PARTS] = {0};
    for (uint32_t i = 0; i < rows; i++) {
        uint32_t p = i / DELTA_QUAD % DELTA_PARTS;
        mk[p] = fmaf(s[i], t->k[i], mk[p]);
        s[i] = t->g * s[i];
        mq[p] = fmaf(s[i], t->q[i], mq[p]);
        qk[p] = fmaf(t->q[i], t->k[i], qk[p]);
    }
    float d = t->b * fmaf(-t->g, parts_sum(mk, false), t->v);
    for (uint32_t i = 0; i < rows; i++) s[i] = fmaf(t->k[i], d, s[i]);
    if (t->out) *t->out = fmaf(parts_sum(qk, false), d, parts_sum(mq, true));
}

static void take_token(struct token *t, const struct delta_scan_args *a, uint32_t row,
                       uint32_t head, uint32_t col) {
    uint64_t keys = (uint64_t)a->key_heads * a->key_dim;
    uint64_t values = (uint64_t)a->value_heads * a->value_dim;
    const float *qkv = (const float *)refs_ptr(a->qkv) + row * (2 * keys + values);
    const float *gates = (const float *)refs_ptr(a->gates) + (uint64_t)row * 2 * a->value_heads;
    uint64_t key = (uint64_t)(head / (a->value_heads / a->key_heads)) * a->key_dim;
    uint64_t value = (uint64_t)head * a->value_dim + col;
    memcpy(t->q, qkv + key, a->key_dim * sizeof *t->q);
    memcpy(t->k, qkv + keys + key, a->key_dim * sizeof *t->k);
    t->v = qkv[2 * keys + value];
    t->g = gates[head];
    t->b = gates[a->value_heads + head];
    t->out = a->out ? (float *)refs_ptr(a->out) + row * values + value : NULL;
}

static void scan_column(const struct delta_scan_args *a, const struct run *run, uint32_t head,
                        uint32_t col) {
    float s[DELTA_KEY_DIM_MAX] = {0};
    uint64_t first = ((uint64_t)head * a->value_dim + col - col % DELTA_COLUMNS) * a->key_dim;
    float *state = (float *)refs_ptr(a->state + run->slot * a->slot_stride) + first;
    struct token t = {.v = 0};
    for (uint32_t i = 0; i < a->key_dim && run->pos; i++)
        s[i] = state[delta_state_at(a->key_dim, i, col % DELTA_COLUMNS)];
    for (uint32_t row = run->row; row < run->row + run->count; row++) {
        take_token(&t, a, row, head, col);
        step(s, &t, delta_rows_padded(a->key_dim));
    }
    for (uint32_t i = 0; i < a->key_dim && !run->record; i++)
        state[delta_state_at(a->key_dim, i, col % DELTA_COLUMNS)] = s[i];
}

void delta_scan_ref(const struct delta_scan_args *a) {
    const struct run *runs = refs_ptr(a->runs);
    for (uint32_t r = 0; r < a->runs_count; r++)
        for (uint32_t h = 0; h < a->value_heads; h++)
            for (uint32_t c = 0; c < a->value_dim; c++) scan_column(a, &runs[r], h, c);
}
