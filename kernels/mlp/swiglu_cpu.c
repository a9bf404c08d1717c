/* swiglu_cpu: see swiglu.h. Flat: a unit is a piece of [T * I]. */
#include "kernels/cpu.h"
#include "kernels/math_f32.h"
#include "kernels/mlp/swiglu.h"

enum { PIECE = 4096, WORK = 12 }; // an element costs about that many multiply-adds

static void swiglu_piece(void *arg, uint32_t unit, uint32_t thread) {
    const struct swiglu_args *a = arg;
    uint64_t total = (uint64_t)a->rows * a->dim, i = (uint64_t)unit * PIECE;
    uint64_t end = i + PIECE < total ? i + PIECE : total;
    const float *gate = cpu_ptr(a->gate), *up = cpu_ptr(a->up);
    float *y = cpu_ptr(a->y);
    for (; i + LANES <= end; i += LANES)
        vf_store(y + i, vf_silu(vf_load(gate + i)) * vf_load(up + i));
    if (i < end) {
        uint32_t n = (uint32_t)(end - i);
        vf_store_part(y + i, vf_silu(vf_load_part(gate + i, n)) * vf_load_part(up + i, n), n);
    }
}

void CPU_NAME(swiglu)(void *ctx, const struct swiglu_args *a) {
    struct swiglu_args args = *a;
    uint64_t total = (uint64_t)a->rows * a->dim;
    cpu_for(ctx, total * WORK, (uint32_t)((total + PIECE - 1) / PIECE), swiglu_piece, &args);
}
