/* delta_gates_cpu: see delta_gates.h. A unit is some rows. */
#include "kernels/cpu.h"
#include "kernels/delta/delta_gates.h"
#include "kernels/math_f32.h"

enum { WORK = 60 };

static void gates_row(void *arg, uint32_t t, uint32_t thread) {
    const struct delta_gates_args *g = arg;
    const float *a = (const float *)cpu_ptr(g->a) + (uint64_t)t * g->heads;
    const float *b = (const float *)cpu_ptr(g->b) + (uint64_t)t * g->heads;
    const float *neg_a = cpu_ptr(g->neg_a), *bias = cpu_ptr(g->dt_bias);
    float *out = (float *)cpu_ptr(g->gates) + (uint64_t)t * 2 * g->heads;
    for (uint32_t h = 0; h < g->heads; h += LANES) {
        uint32_t n = g->heads - h < LANES ? g->heads - h : LANES;
        vf step = vf_softplus(vf_load_part(a + h, n) + vf_load_part(bias + h, n));
        vf_store_part(out + h, vf_exp(vf_load_part(neg_a + h, n) * step), n);
        vf_store_part(out + g->heads + h, vf_sigmoid(vf_load_part(b + h, n)), n);
    }
}

void CPU_NAME(delta_gates)(void *ctx, const struct delta_gates_args *a) {
    struct delta_gates_args args = *a;
    cpu_for(ctx, (uint64_t)a->rows * a->heads * WORK, a->rows, gates_row, &args);
}
