/* gated_norm_cpu: see gated_norm.h. A unit is some rows. */
#include "kernels/cpu.h"
#include "kernels/delta/gated_norm.h"
#include "kernels/math_f32.h"
#include "kernels/norm/norm_lanes.h"

enum { WORK = 14 };

static void gated_head(const struct gated_norm_args *a, uint64_t at) {
    const float *o = (const float *)cpu_ptr(a->o) + at, *z = (const float *)cpu_ptr(a->z) + at;
    float *y = (float *)cpu_ptr(a->y) + at;
    float factor = norm_factor(o, a->dim, (float)a->dim, a->eps);
    norm_scale(o, factor, cpu_ptr(a->w), y, a->dim);
    for (uint32_t d = 0; d < a->dim; d += LANES)
        vf_store(y + d, vf_load(y + d) * vf_silu(vf_load(z + d)));
}

static void gated_row(void *arg, uint32_t t, uint32_t thread) {
    const struct gated_norm_args *a = arg;
    for (uint32_t h = 0; h < a->heads; h++) gated_head(a, ((uint64_t)t * a->heads + h) * a->dim);
}

void CPU_NAME(gated_norm)(void *ctx, const struct gated_norm_args *a) {
    struct gated_norm_args args = *a;
    cpu_for(ctx, (uint64_t)a->rows * a->heads * a->dim * WORK, a->rows, gated_row, &args);
}
