/* rmsnorm_cpu: see rmsnorm.h. A unit is some rows. */
#include "kernels/cpu.h"
#include "kernels/norm/norm_lanes.h"
#include "kernels/norm/rmsnorm.h"

struct job {
    struct rmsnorm_args a;
    uint32_t per;
};

static void rmsnorm_rows(void *arg, uint32_t unit, uint32_t thread) {
    const struct job *j = arg;
    const struct rmsnorm_args *a = &j->a;
    const uint32_t *pick = cpu_ptr(a->pick);
    uint32_t end = (unit + 1) * j->per < a->rows ? (unit + 1) * j->per : a->rows;
    for (uint32_t t = unit * j->per; t < end; t++) {
        const float *x = (const float *)cpu_ptr(a->x) + (uint64_t)(pick ? pick[t] : t) * a->dim;
        float *y = (float *)cpu_ptr(a->y) + (uint64_t)t * a->dim;
        norm_scale(x, norm_factor(x, a->dim, (float)a->dim, a->eps), cpu_ptr(a->scale), y, a->dim);
    }
}

void CPU_NAME(rmsnorm)(void *ctx, const struct rmsnorm_args *a) {
    struct job j = {.a = *a, .per = cpu_rows_per_unit(ctx, a->rows)};
    uint32_t units = (a->rows + j.per - 1) / j.per;
    cpu_for(ctx, (uint64_t)a->rows * a->dim, units, rmsnorm_rows, &j);
}
