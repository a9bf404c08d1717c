/* draft_attn_cpu: see draft_attn.h. A unit is a block and a query head: its rows read each tile of keys together. */
#include "kernels/cpu.h"
#include "kernels/cpu_vec.h"
#include "kernels/draft/draft_attn.h"
#include "kernels/math_f32.h"

enum { TILE = 32 }; // keys; at least a block's rows

_Static_assert((int)TILE >= (int)DRAFT_BLOCK_MAX, "a block is one tile");

struct query {
    const float *q;
    float max, sum;
    float acc[DRAFT_HEAD_DIM_MAX];
};

struct tile { // rows of whole vectors, zeros behind dim
    uint32_t count, width;
    float k[TILE][DRAFT_HEAD_DIM_MAX], v[TILE][DRAFT_HEAD_DIM_MAX];
};

struct unit {
    const struct draft_attn_args *a;
    const struct draft_block *block;
    uint32_t head, kv_head;
};

// dim values of any type, and zeros up to a whole vector.
static void load_row(float *to, devptr from, uint64_t first, uint32_t dim, const enum dtype d) {
    for (uint32_t i = 0; i < dim; i += LANES) {
        uint32_t n = dim - i < LANES ? dim - i : LANES;
        vf v = n == LANES ? vf_load_dtype(cpu_ptr(from), first + i, d)
                          : vf_load_dtype_part(cpu_ptr(from), first + i, n, d);
        vf_store(to + i, v);
    }
}

static void load_context(const struct unit *u, struct tile *t, uint32_t from, uint32_t to) {
    const struct draft_context *c = &u->a->context;
    t->count = to - from;
    for (uint32_t j = 0; j < t->count; j++) {
        uint64_t row = draft_context_row(c, cpu_ptr(c->table), u->block->slot, from + j);
        uint64_t first = (row * c->heads + u->kv_head) * c->dim;
        if (c->dtype == DTYPE_F32) {
            load_row(t->k[j], c->k, first, c->dim, DTYPE_F32);
            load_row(t->v[j], c->v, first, c->dim, DTYPE_F32);
        } else {
            load_row(t->k[j], c->k, first, c->dim, DTYPE_BF16);
            load_row(t->v[j], c->v, first, c->dim, DTYPE_BF16);
        }
    }
}

static void load_block(const struct unit *u, struct tile *t) {
    const struct draft_context *c = &u->a->context;
    t->count = u->block->count;
    for (uint32_t j = 0; j < t->count; j++) {
        uint64_t first = ((uint64_t)(u->block->row + j) * c->heads + u->kv_head) * c->dim;
        load_row(t->k[j], u->a->k, first, c->dim, DTYPE_F32);
        load_row(t->v[j], u->a->v, first, c->dim, DTYPE_F32);
    }
}

// Adds keys from .. to - 1 of the tile to what the query has seen.
static void add_tile(const struct unit *u, struct query *q, const struct tile *t, uint32_t from,
                     uint32_t to) {
    float s[TILE];
    if (from >= to) return;
    for (uint32_t j = 0; j < TILE; j++)
        s[j] = j >= from && j < to ? vf_dot(q->q, t->k[j], u->a->context.dim) * u->a->scale
                                   : -__builtin_inff();
    float max = q->max;
    for (uint32_t j = from; j < to; j++) max = s[j] > max ? s[j] : max;
    vf old = vf_exp(vf_set(q->max - max)), p[TILE / LANES], sum = vf_set(0);
    for (uint32_t i = 0; i < TILE / LANES; i++) {
        p[i] = vf_exp(vf_load(s + i * LANES) - max);
        vf_store(s + i * LANES, p[i]);
        sum = sum + p[i];
    }
    q->sum = q->sum * old[0] + vf_sum(sum);
    q->max = max;
    for (uint32_t d = 0; d < t->width; d += LANES) {
        vf acc = vf_load(q->acc + d) * old[0];
        for (uint32_t j = from; j < to; j++) acc = acc + vf_load(t->v[j] + d) * s[j];
        vf_store(q->acc + d, acc);
    }
}

static uint32_t first_key(const struct draft_attn_args *a, const struct draft_block *b,
                          uint32_t row) {
    uint32_t seen = a->window && b->pos + row + 1 > a->window ? b->pos + row + 1 - a->window : 0;
    return seen > b->first ? seen : b->first;
}

static void attend_context(const struct unit *u, struct query *q, struct tile *t) {
    const struct draft_block *b = u->block;
    for (uint32_t at = first_key(u->a, b, 0); at < b->pos; at += TILE) {
        load_context(u, t, at, b->pos - at < TILE ? b->pos : at + TILE);
        for (uint32_t r = 0; r < b->count; r++) {
            uint32_t from = first_key(u->a, b, r);
            add_tile(u, &q[r], t, from > at ? from - at : 0, t->count);
        }
    }
}

static void attend_block(const struct unit *u, struct query *q, struct tile *t) {
    uint32_t n = u->block->count, window = u->a->window;
    load_block(u, t);
    for (uint32_t r = 0; r < n; r++) {
        uint32_t from = window && r + 1 > window ? r + 1 - window : 0;
        uint32_t to = window && n - r > window ? r + window : n;
        add_tile(u, &q[r], t, from, u->a->causal ? r + 1 : to);
    }
}

static void store(const struct unit *u, const struct query *q, uint32_t row) {
    uint32_t dim = u->a->context.dim;
    float *out =
        (float *)cpu_ptr(u->a->out) + ((uint64_t)row * u->a->heads + u->head) * (uint64_t)dim;
    for (uint32_t d = 0; d < dim; d++) out[d] = q->acc[d] / q->sum;
}

static void attn_unit(void *arg, uint32_t unit, uint32_t thread) {
    const struct draft_attn_args *a = arg;
    uint32_t head = unit % a->heads, dim = a->context.dim;
    struct unit u = {.a = a,
                     .block = (const struct draft_block *)cpu_ptr(a->blocks) + unit / a->heads,
                     .head = head,
                     .kv_head = head / (a->heads / a->context.heads)};
    struct query q[DRAFT_BLOCK_MAX];
    struct tile t;
    t.width = (dim + LANES - 1) / LANES * LANES;
    for (uint32_t r = 0; r < u.block->count; r++) {
        q[r].q = (const float *)cpu_ptr(a->q) +
                 ((uint64_t)(u.block->row + r) * a->heads + head) * (uint64_t)dim;
        q[r].max = -__builtin_inff();
        q[r].sum = 0;
        memset(q[r].acc, 0, t.width * sizeof *q[r].acc);
    }
    attend_context(&u, q, &t);
    attend_block(&u, q, &t);
    for (uint32_t r = 0; r < u.block->count; r++) store(&u, &q[r], u.block->row + r);
}

void CPU_NAME(draft_attn)(void *ctx, const struct draft_attn_args *a) {
    const struct draft_block *b = cpu_ptr(a->blocks);
    struct draft_attn_args args = *a;
    uint64_t keys = 0;
    for (uint32_t i = 0; i < a->blocks_count; i++)
        keys += (uint64_t)b[i].count * (b[i].pos - first_key(a, &b[i], 0) + b[i].count);
    cpu_for(ctx, keys * a->heads * a->context.dim * 2, a->blocks_count * a->heads, attn_unit,
            &args);
}
