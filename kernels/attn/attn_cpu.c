/* attn_cpu: see attn.h. A unit is a block of neighbouring rows of one run and some query heads of one key head: they read
 * each tile of keys and values together. Block shapes never change a bit: a row's sums are its own. */
#include "kernels/attn/attn.h"
#include "kernels/attn/kv_page.h"
#include "kernels/cpu.h"
#include "kernels/linear/dot_tile.h"
#include "kernels/math_f32.h"

enum {
    QUERIES_MAX = 12, // of a unit: rows times heads
    DIM_MAX = 512,
    AHEAD_BYTES = 16384, // keys and values are fetched that far ahead, within a page and past it
};

// Sums of a block of queries that live in registers: queries that share a value row, registers of each. A few queries take
// more, so that a value row is read in longer pieces.
#if defined(CPU_SMALL_BLOCKS)
enum { PV_MANY = 2, PV_MANY_WIDE = 1, PV_FEW = 2, PV_FEW_WIDE = 1, PV_ONE_WIDE = 2 };
#elif defined(__AVX512F__)
enum { PV_MANY = 4, PV_MANY_WIDE = 4, PV_FEW = 2, PV_FEW_WIDE = 8, PV_ONE_WIDE = 8 };
#elif defined(__AVX2__)
enum { PV_MANY = 4, PV_MANY_WIDE = 2, PV_FEW = 2, PV_FEW_WIDE = 4, PV_ONE_WIDE = 8 };
#else
enum { PV_MANY = 4, PV_MANY_WIDE = 2, PV_FEW = 2, PV_FEW_WIDE = 4, PV_ONE_WIDE = 4 };
#endif
enum { PV_ROWS_MAX = 4, PV_WIDE_MAX = 8 };

struct job {
    struct attn_args a;
    uint32_t block_rows;  // rows of a unit
    uint32_t block_heads; // query heads of a unit; all of one key head
    uint32_t head_blocks; // H / block_heads
};

struct query { // one (row, head) of a unit
    const float *q, *gate;
    float *out;
    uint32_t pos;
    float max, sum;
    float acc[DIM_MAX];
};

struct tile {
    const void *k, *v; // first key of the tile
    uint32_t first;    // its position
};

// Scores of the queries against the tile; what lies behind a query's own position is not looked at by anyone.
CPU_INLINE void tile_scores(struct query *const *q, uint32_t count, const struct tile *t,
                            const struct attn_args *a, const float *queries, uint32_t keys,
                            const enum dtype d, float (*ret)[ATTN_TILE]) {
    float v[DOT_ROWS * DOT_COLS_MAX] = {0};
    uint32_t dim = a->kv.dim;
    for (uint32_t r = 0; r < count; r += DOT_ROWS) {
        uint32_t rows = count - r < DOT_ROWS ? count - r : DOT_ROWS;
        for (uint32_t j = 0, cols; j < keys; j += cols) {
            cols = dot_cols(rows, keys - j);
            struct dot_operand o = {.x = queries + (uint64_t)r * dim,
                                    .x_stride = dim,
                                    .w = (const char *)t->k + (uint64_t)j * dim * dtype_bytes(d),
                                    .w_stride = dim,
                                    .k = dim,
                                    .ahead = AHEAD_BYTES};
            dot_tile_run(&o, rows, cols, d, v);
            for (uint32_t i = 0; i < rows; i++)
                for (uint32_t c = 0; c < cols; c++) ret[r + i][j + c] = v[i * cols + c] * a->scale;
        }
    }
}

// s[0..n) become exp(s - max), the rest of the tile 0. Returns their maximum and sum.
static void tile_softmax(float *s, uint32_t n, float *ret_max, float *ret_sum) {
    const float none = -__builtin_inff();
    for (uint32_t j = n; j < ATTN_TILE; j++) s[j] = none;
    vf m = vf_load(s);
    for (uint32_t j = LANES; j < ATTN_TILE; j += LANES) m = vf_max(vf_load(s + j), m);
    float max = m[0];
    for (uint32_t i = 1; i < LANES; i++) max = m[i] > max ? m[i] : max;
    vf sum = vf_set(0);
    for (uint32_t j = 0; j < ATTN_TILE; j += LANES) {
        vf p = vf_exp(vf_load(s + j) - max);
        vf_store(s + j, p);
        sum = sum + p;
    }
    *ret_max = max;
    *ret_sum = vf_sum(sum);
}

// Adds keys from .. to-1 of the tile to `wide` registers of `rows` outputs, in key order.
CPU_INLINE void add_values(vn (*acc)[PV_WIDE_MAX], const float *const *p, const void *v,
                           uint64_t d0, uint32_t from, uint32_t to, uint32_t dim,
                           const uint32_t rows, const uint32_t wide, const enum dtype d) {
    for (uint32_t j = from; j < to; j++) {
        vn value[PV_WIDE_MAX];
#pragma GCC unroll 8
        for (uint32_t i = 0; i < wide; i++) {
            uint64_t at = (uint64_t)j * dim + d0 + i * NATIVE;
            if (i % PARTS == 0)
                __builtin_prefetch((const char *)v + at * dtype_bytes(d) + AHEAD_BYTES, 0, 2);
            value[i] = vn_load_dtype(v, at, d);
        }
#pragma GCC unroll 4
        for (uint32_t r = 0; r < rows; r++)
#pragma GCC unroll 8
            for (uint32_t i = 0; i < wide; i++)
                acc[r][i] = vn_fma(value[i], vn_set(p[r][j]), acc[r][i]);
    }
}

struct merge { // factors of what was and what is new
    float old, fresh;
};

// One group of `rows` queries: the tile's values, merged into each query's own sum.
CPU_INLINE void tile_values(struct query *const *q, const float (*p)[ATTN_TILE],
                            const struct merge *f, const uint32_t *keys, const struct tile *t,
                            uint32_t dim, const uint32_t rows, const uint32_t wide,
                            const enum dtype d) {
    uint32_t shared = keys[0];
    const float *weights[PV_ROWS_MAX];
    for (uint32_t r = 0; r < rows; r++) {
        shared = keys[r] < shared ? keys[r] : shared;
        weights[r] = p[r];
    }
    for (uint32_t d0 = 0; d0 < dim; d0 += wide * NATIVE) {
        vn acc[PV_ROWS_MAX][PV_WIDE_MAX];
#pragma GCC unroll 4
        for (uint32_t r = 0; r < rows; r++)
#pragma GCC unroll 8
            for (uint32_t i = 0; i < wide; i++) acc[r][i] = vn_set(0);
        add_values(acc, weights, t->v, d0, 0, shared, dim, rows, wide, d);
#pragma GCC unroll 4
        for (uint32_t r = 0; r < rows; r++) {
            add_values(acc + r, weights + r, t->v, d0, shared, keys[r], dim, 1, wide, d);
#pragma GCC unroll 8
            for (uint32_t i = 0; i < wide; i++) {
                float *o = q[r]->acc + d0 + i * NATIVE;
                vn_store(o, vn_fma(vn_load(o), vn_set(f[r].old), acc[r][i] * f[r].fresh));
            }
        }
    }
}

CPU_INLINE void all_values(struct query *const *q, uint32_t count, const float (*p)[ATTN_TILE],
                           const struct merge *f, const uint32_t *keys, const struct tile *t,
                           uint32_t dim, const enum dtype d) {
    uint32_t r = 0;
    if (dim % (PV_MANY_WIDE * NATIVE) == 0)
        for (; r + PV_MANY <= count; r += PV_MANY)
            tile_values(q + r, p + r, f + r, keys + r, t, dim, PV_MANY, PV_MANY_WIDE, d);
    if (dim % (PV_FEW_WIDE * NATIVE) == 0)
        for (; r + PV_FEW <= count; r += PV_FEW)
            tile_values(q + r, p + r, f + r, keys + r, t, dim, PV_FEW, PV_FEW_WIDE, d);
    if (dim % (PV_ONE_WIDE * NATIVE) == 0)
        for (; r < count; r++)
            tile_values(q + r, p + r, f + r, keys + r, t, dim, 1, PV_ONE_WIDE, d);
    for (; r < count; r++) tile_values(q + r, p + r, f + r, keys + r, t, dim, 1, 1, d);
}

// M' = max(M, m); both sides scaled to it.
static struct merge merge_tile(struct query *q, float max, float sum) {
    float new_max = max > q->max ? max : q->max;
    vf x = vf_set(q->max - new_max);
    x[1] = max - new_max;
    vf y = vf_exp(x);
    struct merge f = {.old = y[0], .fresh = y[1]};
    q->sum = q->sum * f.old + sum * f.fresh;
    q->max = new_max;
    return f;
}

CPU_INLINE void run_tile(struct query *const *q, uint32_t count, const struct tile *t,
                         const struct attn_args *a, const float *queries, const enum dtype d) {
    float s[QUERIES_MAX][ATTN_TILE];
    struct merge f[QUERIES_MAX];
    uint32_t keys[QUERIES_MAX], most = 0;
    for (uint32_t i = 0; i < count; i++) {
        uint32_t seen = q[i]->pos + 1 - t->first;
        keys[i] = seen < ATTN_TILE ? seen : ATTN_TILE;
        most = keys[i] > most ? keys[i] : most;
    }
    tile_scores(q, count, t, a, queries, most, d, s);
    for (uint32_t i = 0; i < count; i++) {
        float max, sum;
        tile_softmax(s[i], keys[i], &max, &sum);
        f[i] = merge_tile(q[i], max, sum);
    }
    all_values(q, count, (const float(*)[ATTN_TILE])s, f, keys, t, a->kv.dim, d);
}

static void finish(struct query *q, uint32_t dim) {
    for (uint32_t d = 0; d < dim; d += LANES)
        vf_store(q->out + d, vf_load(q->acc + d) / q->sum * vf_sigmoid(vf_load(q->gate + d)));
}

// Queries in ascending position, so that a tile is needed by a tail of them.
static void run_block(const struct job *j, const struct run *run, uint32_t row, uint32_t rows,
                      uint32_t head) {
    const struct attn_args *a = &j->a;
    const struct kv_view *kv = &a->kv;
    struct query queries[QUERIES_MAX], *q[QUERIES_MAX];
    float x[QUERIES_MAX * DIM_MAX];
    uint32_t count = 0, kv_head = head / (a->heads / kv->heads);
    for (uint32_t r = row; r < row + rows; r++)
        for (uint32_t h = head; h < head + j->block_heads; h++, count++) {
            uint64_t at = (uint64_t)(run->row + r) * a->heads + h;
            const float *qg = (const float *)cpu_ptr(a->qg) + at * 2 * kv->dim;
            q[count] = &queries[count];
            memcpy(x + count * kv->dim, qg, kv->dim * sizeof *x);
            memset(queries[count].acc, 0, kv->dim * sizeof *x);
            queries[count].gate = qg + kv->dim;
            queries[count].out = (float *)cpu_ptr(a->out) + at * kv->dim;
            queries[count].pos = run->pos + r;
            queries[count].max = -__builtin_inff();
            queries[count].sum = 0;
        }
    uint32_t from = 0, last = queries[count - 1].pos;
    for (uint32_t first = 0; first <= last; first += ATTN_TILE) {
        while (queries[from].pos < first) from++;
        uint64_t at = kv_page_first(kv, run->slot, first, kv_head) * dtype_bytes(kv->dtype);
        struct tile t = {.k = (const char *)cpu_ptr(kv->k) + at,
                         .v = (const char *)cpu_ptr(kv->v) + at,
                         .first = first};
        if (kv->dtype == DTYPE_F32)
            run_tile(q + from, count - from, &t, a, x + from * kv->dim, DTYPE_F32);
        else if (kv->dtype == DTYPE_E4M3)
            run_tile(q + from, count - from, &t, a, x + from * kv->dim, DTYPE_E4M3);
        else
            run_tile(q + from, count - from, &t, a, x + from * kv->dim, DTYPE_BF16);
    }
    for (uint32_t i = 0; i < count; i++) finish(&queries[i], kv->dim);
}

static void attn_unit(void *arg, uint32_t unit, uint32_t thread) {
    const struct job *j = arg;
    const struct run *runs = cpu_ptr(j->a.rows.runs);
    uint32_t block = unit / j->head_blocks, head = unit % j->head_blocks * j->block_heads;
    uint32_t run = 0;
    for (uint32_t left = block;; run++) {
        uint32_t blocks = (runs[run].count + j->block_rows - 1) / j->block_rows;
        if (left >= blocks) {
            left -= blocks;
            continue;
        }
        uint32_t row = left * j->block_rows, rows = runs[run].count - row;
        run_block(j, &runs[run], row, rows < j->block_rows ? rows : j->block_rows, head);
        return;
    }
}

void CPU_NAME(attn)(void *ctx, const struct attn_args *a) {
    struct cpu *c = ctx;
    const struct run *runs = cpu_ptr(a->rows.runs);
    struct job j = {.a = *a};
    uint32_t group = a->heads / a->kv.heads;
    j.block_heads = group < QUERIES_MAX ? group : QUERIES_MAX;
    while (group % j.block_heads) j.block_heads--;
    j.block_rows = QUERIES_MAX / j.block_heads;
    // A few rows of few heads: rather read keys twice than leave threads without work.
    if (a->rows.count * (a->heads / j.block_heads) < c->threads * 2) j.block_heads = 1;
    j.head_blocks = a->heads / j.block_heads;
    uint32_t blocks = 0;
    uint64_t keys = 0;
    for (uint32_t i = 0; i < a->rows.runs_count; i++) {
        blocks += (runs[i].count + j.block_rows - 1) / j.block_rows;
        keys += (uint64_t)runs[i].count * (runs[i].pos + runs[i].count);
    }
    cpu_for(c, keys * a->heads * a->kv.dim * 2, blocks * j.head_blocks, attn_unit, &j);
}
