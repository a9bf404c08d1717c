/* expert_sum_cpu: see expert_sum.h. A unit is one row. */
#include "kernels/cpu.h"
#include "kernels/math_f32.h"
#include "kernels/moe/expert_sum.h"

static void sum_row(void *arg, uint32_t t, uint32_t thread) {
    const struct expert_sum_args *a = arg;
    uint64_t at = (uint64_t)t * a->dim;
    float *h = (float *)cpu_ptr(a->h) + at;
    const float *routed = (const float *)cpu_ptr(a->routed) + at;
    const float *shared = (const float *)cpu_ptr(a->shared) + at;
    float s = vf_sigmoid(vf_set(((const float *)cpu_ptr(a->gate))[t]))[0];
    uint32_t d = 0;
    for (; d + LANES <= a->dim; d += LANES)
        vf_store(h + d, vf_load(h + d) + (vf_load(routed + d) + vf_set(s) * vf_load(shared + d)));
    for (; d < a->dim; d++) h[d] = h[d] + (routed[d] + s * shared[d]);
}

void CPU_NAME(expert_sum)(void *ctx, const struct expert_sum_args *a) {
    struct expert_sum_args args = *a;
    cpu_for(ctx, (uint64_t)a->rows * a->dim, a->rows, sum_row, &args);
}
