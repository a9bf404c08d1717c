/* experts_cpu: see experts.h. The rows are sorted by expert, then go through in batches of neighbouring experts: one hand-over
 * to the threads for the gate and up products of all of them, one for the down products, so that few rows on many experts
 * keep all threads as busy as one dense MLP would. A batch changes no bit: each product is its own, and a row's answers are
 * added in the order of the sorted picks. */
#include "kernels/cpu.h"
#include "kernels/cpu_vec.h"
#include "kernels/linear/linear.h"
#include "kernels/mlp/swiglu.h"
#include "kernels/moe/experts.h"

#include <assert.h>
#include <string.h>

enum {
    ALIGN = 64,
    // Picks of a batch: those of one expert (up to all rows), and enough for a few rows to go through in one or two batches.
    BATCH_PICKS = 64,
    PIECE = 256, // columns of a unit when answers are added
};

struct batch {
    const struct experts_args *a;
    const uint32_t *picks; // row * P + place in the row: by expert, then by row
    uint32_t picks_count;
    uint32_t experts[CPU_LINEAR_MANY], first[CPU_LINEAR_MANY]; // their numbers; their first pick
    uint32_t count;
    float *x, *gate, *up, *out; // [picks, D], [picks, I] twice, [picks, D]
};

struct layout { // of the scratch; offsets
    uint64_t first, picks, x, gate, up, out, bytes;
};

static uint64_t take(uint64_t *at, uint64_t bytes) {
    uint64_t p = *at;
    *at += (bytes + ALIGN - 1) / ALIGN * ALIGN;
    return p;
}

static uint32_t batch_picks_max(const struct experts_args *a) {
    return a->rows > BATCH_PICKS ? a->rows : BATCH_PICKS;
}

static struct layout layout_of(const struct experts_args *a) {
    struct layout l = {0};
    uint64_t n = batch_picks_max(a), *at = &l.bytes;
    l.first = take(at, (a->count + 1) * sizeof(uint32_t));
    l.picks = take(at, (uint64_t)a->rows * a->per_token * sizeof(uint32_t));
    l.x = take(at, n * a->dim * sizeof(float));
    l.gate = take(at, n * a->width * sizeof(float));
    l.up = take(at, n * a->width * sizeof(float));
    l.out = take(at, n * a->dim * sizeof(float));
    return l;
}

uint64_t CPU_NAME(experts_room)(void *ctx, const struct experts_args *a) {
    return layout_of(a).bytes;
}

// Sorts all picks by expert: those of expert e are picks[first[e]] .. picks[first[e + 1] - 1].
static void sort_picks(const struct experts_args *a, uint32_t *first, uint32_t *picks) {
    const uint32_t *experts = cpu_ptr(a->experts);
    uint32_t n = a->rows * a->per_token, at = 0;
    memset(first, 0, (a->count + 1) * sizeof *first);
    for (uint32_t i = 0; i < n; i++) {
        assert(experts[i] < a->count);
        first[experts[i]]++;
    }
    for (uint32_t e = 0; e <= a->count; e++) { // counts to ends
        assert(first[e] <= a->rows);
        at += first[e];
        first[e] = at;
    }
    for (uint32_t i = n; i-- > 0;) picks[--first[experts[i]]] = i;
}

static uint32_t row_of(const struct batch *b, uint32_t i) {
    return b->picks[i] / b->a->per_token;
}

static void gather_row(void *arg, uint32_t i, uint32_t thread) {
    const struct batch *b = arg;
    const float *x = (const float *)cpu_ptr(b->a->x) + (uint64_t)row_of(b, i) * b->a->dim;
    memcpy(b->x + (uint64_t)i * b->a->dim, x, b->a->dim * sizeof *x);
}

// The next experts that have rows, from *e on, as many as fit.
static void fill_batch(struct batch *b, const uint32_t *first, uint32_t *e) {
    b->count = b->picks_count = 0;
    for (; *e < b->a->count && b->count < CPU_LINEAR_MANY; ++*e) {
        uint32_t rows = first[*e + 1] - first[*e];
        if (!rows) continue;
        if (b->picks_count + rows > batch_picks_max(b->a)) break;
        b->experts[b->count] = *e;
        b->first[b->count++] = b->picks_count;
        b->picks_count += rows;
    }
}

static uint32_t rows_of(const struct batch *b, uint32_t i) {
    return (i + 1 < b->count ? b->first[i + 1] : b->picks_count) - b->first[i];
}

static devptr at_pick(float *p, const struct batch *b, uint32_t i, uint32_t width) {
    return (uintptr_t)(p + (uint64_t)b->first[i] * width);
}

static void gate_and_up(struct cpu *c, const struct batch *b) {
    struct linear_args calls[CPU_LINEAR_MANY];
    uint32_t width = b->a->width;
    for (uint32_t i = 0; i < b->count; i++) {
        const struct expert *e = &b->a->table[b->experts[i]];
        calls[i] =
            (struct linear_args){.x = at_pick(b->x, b, i, b->a->dim),
                                 .rows = rows_of(b, i),
                                 .parts_count = 2,
                                 .parts = {{.w = e->gate, .y = at_pick(b->gate, b, i, width)},
                                           {.w = e->up, .y = at_pick(b->up, b, i, width)}}};
    }
    CPU_NAME(linear_many)(c, calls, b->count);
}

static void down(struct cpu *c, const struct batch *b) {
    struct linear_args calls[CPU_LINEAR_MANY];
    for (uint32_t i = 0; i < b->count; i++)
        calls[i] = (struct linear_args){.x = at_pick(b->gate, b, i, b->a->width),
                                        .rows = rows_of(b, i),
                                        .parts_count = 1,
                                        .parts = {{.w = b->a->table[b->experts[i]].down,
                                                   .y = at_pick(b->out, b, i, b->a->dim)}}};
    CPU_NAME(linear_many)(c, calls, b->count);
}

// A unit is a piece of the columns, with all picks of the batch in their order.
static void add_piece(void *arg, uint32_t unit, uint32_t thread) {
    const struct batch *b = arg;
    uint32_t dim = b->a->dim, end = (unit + 1) * PIECE < dim ? (unit + 1) * PIECE : dim;
    for (uint32_t i = 0; i < b->picks_count; i++) {
        float *y = (float *)cpu_ptr(b->a->y) + (uint64_t)row_of(b, i) * dim;
        const float *out = b->out + (uint64_t)i * dim;
        float weight = ((const float *)cpu_ptr(b->a->weights))[b->picks[i]];
        uint32_t d = unit * PIECE;
        for (; d + LANES <= end; d += LANES)
            vf_store(y + d, vf_load(y + d) + vf_set(weight) * vf_load(out + d));
        for (; d < end; d++) y[d] = y[d] + weight * out[d];
    }
}

static void run_batch(struct cpu *c, struct batch *b) {
    uint64_t values = (uint64_t)b->picks_count * b->a->dim;
    cpu_for(c, values, b->picks_count, gather_row, b);
    gate_and_up(c, b);
    CPU_NAME(swiglu)
    (c, &(struct swiglu_args){.gate = (uintptr_t)b->gate,
                              .up = (uintptr_t)b->up,
                              .y = (uintptr_t)b->gate,
                              .rows = b->picks_count,
                              .dim = b->a->width});
    down(c, b);
    cpu_for(c, values, (b->a->dim + PIECE - 1) / PIECE, add_piece, b);
}

void CPU_NAME(experts)(void *ctx, const struct experts_args *a) {
    struct layout l = layout_of(a);
    char *scratch = cpu_ptr(a->scratch);
    uint32_t *first = (uint32_t *)(scratch + l.first), *picks = (uint32_t *)(scratch + l.picks);
    struct batch b = {.a = a,
                      .picks = picks,
                      .x = (float *)(scratch + l.x),
                      .gate = (float *)(scratch + l.gate),
                      .up = (float *)(scratch + l.up),
                      .out = (float *)(scratch + l.out)};
    assert(!a->shared);
    sort_picks(a, first, picks);
    memset(cpu_ptr(a->y), 0, (uint64_t)a->rows * a->dim * sizeof(float));
    for (uint32_t e = 0; e < a->count; b.picks += b.picks_count) {
        fill_batch(&b, first, &e);
        if (b.count) run_batch(ctx, &b);
    }
}
