/* experts_cpu: see experts.h. One expert after another, each with the rows that chose it: linear shares its columns among
 * the threads, so that what an expert costs is what a dense MLP of its size costs. */
#include "kernels/cpu.h"
#include "kernels/cpu_vec.h"
#include "kernels/linear/linear.h"
#include "kernels/mlp/swiglu.h"
#include "kernels/moe/experts.h"

#include <assert.h>
#include <string.h>

enum { ALIGN = 64 };

struct group { // the rows of one expert
    const struct experts_args *a;
    const uint32_t *picks; // row * K + place in the row, rows ascending
    uint32_t rows;
    float *x, *out; // [rows, D]: gathered rows, and what the expert made of them
};

struct layout { // of the scratch; offsets
    uint64_t first, picks, x, gate, up, out, bytes;
};

static uint64_t take(uint64_t *at, uint64_t bytes) {
    uint64_t p = *at;
    *at += (bytes + ALIGN - 1) / ALIGN * ALIGN;
    return p;
}

static struct layout layout_of(const struct experts_args *a) {
    struct layout l = {0};
    uint64_t t = a->rows, *at = &l.bytes;
    l.first = take(at, (a->count + 1) * sizeof(uint32_t));
    l.picks = take(at, t * a->per_token * sizeof(uint32_t));
    l.x = take(at, t * a->dim * sizeof(float));
    l.gate = take(at, t * a->width * sizeof(float));
    l.up = take(at, t * a->width * sizeof(float));
    l.out = take(at, t * a->dim * sizeof(float));
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

static uint32_t row_of(const struct group *g, uint32_t i) {
    return g->picks[i] / g->a->per_token;
}

static void gather_row(void *arg, uint32_t i, uint32_t thread) {
    const struct group *g = arg;
    const float *x = (const float *)cpu_ptr(g->a->x) + (uint64_t)row_of(g, i) * g->a->dim;
    memcpy(g->x + (uint64_t)i * g->a->dim, x, g->a->dim * sizeof *x);
}

// The rows of the group, side by side: where they stand if they are neighbours already (a single one always is).
static devptr gathered(struct cpu *c, struct group *g) {
    uint32_t first = row_of(g, 0);
    if (row_of(g, g->rows - 1) - first == g->rows - 1)
        return g->a->x + (uint64_t)first * g->a->dim * sizeof(float);
    cpu_for(c, (uint64_t)g->rows * g->a->dim, g->rows, gather_row, g);
    return (uintptr_t)g->x;
}

static void add_row(void *arg, uint32_t i, uint32_t thread) {
    const struct group *g = arg;
    uint32_t dim = g->a->dim, d = 0;
    float *y = (float *)cpu_ptr(g->a->y) + (uint64_t)row_of(g, i) * dim;
    const float *out = g->out + (uint64_t)i * dim;
    float weight = ((const float *)cpu_ptr(g->a->weights))[g->picks[i]];
    for (; d + LANES <= dim; d += LANES)
        vf_store(y + d, vf_load(y + d) + vf_set(weight) * vf_load(out + d));
    for (; d < dim; d++) y[d] = y[d] + weight * out[d];
}

static void one_expert(struct cpu *c, struct group *g, const struct expert *e,
                       const struct layout *l) {
    const struct experts_args *a = g->a;
    devptr gate = a->scratch + l->gate, up = a->scratch + l->up;
    CPU_NAME(linear)
    (c, &(struct linear_args){.x = gathered(c, g),
                              .rows = g->rows,
                              .parts_count = 2,
                              .parts = {{.w = e->gate, .y = gate}, {.w = e->up, .y = up}}});
    CPU_NAME(swiglu)
    (c, &(struct swiglu_args){.gate = gate, .up = up, .y = gate, .rows = g->rows, .dim = a->width});
    CPU_NAME(linear)
    (c, &(struct linear_args){.x = gate,
                              .rows = g->rows,
                              .parts_count = 1,
                              .parts = {{.w = e->down, .y = (uintptr_t)g->out}}});
    cpu_for(c, (uint64_t)g->rows * a->dim, g->rows, add_row, g);
}

void CPU_NAME(experts)(void *ctx, const struct experts_args *a) {
    struct layout l = layout_of(a);
    char *scratch = cpu_ptr(a->scratch);
    uint32_t *first = (uint32_t *)(scratch + l.first), *picks = (uint32_t *)(scratch + l.picks);
    sort_picks(a, first, picks);
    memset(cpu_ptr(a->y), 0, (uint64_t)a->rows * a->dim * sizeof(float));
    for (uint32_t e = 0; e < a->count; e++) {
        struct group g = {.a = a,
                          .picks = picks + first[e],
                          .rows = first[e + 1] - first[e],
                          .x = (float *)(scratch + l.x),
                          .out = (float *)(scratch + l.out)};
        if (g.rows) one_expert(ctx, &g, &a->table[e], &l);
    }
}
