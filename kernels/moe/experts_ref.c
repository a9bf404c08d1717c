/* experts_ref: the twin of the kernels of experts: pick by pick, through the twins of linear and swiglu. */
#include "common/mem.h"
#include "kernels/cuda/arith.h"
#include "kernels/cuda/refs.h"
#include "kernels/linear/linear.h"
#include "kernels/mlp/swiglu.h"
#include "kernels/moe/experts.h"

#include <stdlib.h>

static void multiply(const struct weight *w, devptr x, const float *y) {
    linear_ref(&(struct linear_args){
        .x = x, .rows = 1, .parts_count = 1, .parts = {{.w = *w, .y = (uintptr_t)y}}});
}

static void run_pick(const struct experts_args *a, const struct expert *e, uint64_t row,
                     float *gate, float *up, float *out) {
    devptr x = a->x + row * a->dim * sizeof(float);
    multiply(&e->gate, x, gate);
    multiply(&e->up, x, up);
    swiglu_ref(&(struct swiglu_args){.gate = (uintptr_t)gate,
                                     .up = (uintptr_t)up,
                                     .y = (uintptr_t)gate,
                                     .rows = 1,
                                     .dim = a->width});
    multiply(&e->down, (uintptr_t)gate, out);
}

// A row's answer, y being the routed experts'.
static void give(const struct experts_args *a, uint64_t row, const float *y, const float *shared) {
    float *to = (float *)refs_ptr(a->shared ? a->h : a->y) + row * a->dim;
    float s = a->shared ? arith_sigmoid(((const float *)refs_ptr(a->gate))[row]) : 0;
    for (uint32_t d = 0; d < a->dim; d++) to[d] = a->shared ? to[d] + (y[d] + s * shared[d]) : y[d];
}

void experts_ref(const struct experts_args *a) {
    float *gate = mem_calloc(a->width, sizeof *gate), *up = mem_calloc(a->width, sizeof *up);
    float *out = mem_calloc(a->dim, sizeof *out), *y = mem_calloc(a->dim, sizeof *y);
    const struct expert *table = a->table;
    for (uint64_t t = 0; t < a->rows; t++) {
        const uint32_t *experts = (const uint32_t *)refs_ptr(a->experts) + t * a->per_token;
        const float *weights = (const float *)refs_ptr(a->weights) + t * a->per_token;
        for (uint32_t d = 0; d < a->dim; d++) y[d] = 0;
        for (uint32_t e = 0; e < a->count; e++)
            for (uint32_t k = 0; k < a->per_token; k++) {
                if (experts[k] != e) continue;
                run_pick(a, &table[e], t, gate, up, out);
                for (uint32_t d = 0; d < a->dim; d++) y[d] = y[d] + weights[k] * out[d];
            }
        if (a->shared) run_pick(a, &table[a->count], t, gate, up, out);
        give(a, t, y, out);
    }
    free(gate);
    free(up);
    free(out);
    free(y);
}
