/* delta_norm_cpu: see delta_norm.h. A unit is a row. */
#include "kernels/cpu.h"
#include "kernels/delta/delta_norm.h"
#include "kernels/norm/norm_lanes.h"

static void scale_by(float *x, float f, uint32_t dim) {
    for (uint32_t d = 0; d < dim; d++) x[d] = x[d] * f;
}

static void norm_row(void *arg, uint32_t t, uint32_t thread) {
    const struct delta_norm_args *a = arg;
    float *x = (float *)cpu_ptr(a->qkv) + (uint64_t)t * a->channels;
    for (uint32_t h = 0; h < 2 * a->key_heads; h++, x += a->key_dim) {
        scale_by(x, norm_factor(x, a->key_dim, 1.0f, 1e-6f), a->key_dim);
        if (h < a->key_heads) scale_by(x, a->q_scale, a->key_dim);
    }
}

void CPU_NAME(delta_norm)(void *ctx, const struct delta_norm_args *a) {
    struct delta_norm_args args = *a;
    cpu_for(ctx, (uint64_t)a->rows * a->key_heads * a->key_dim * 4, a->rows, norm_row, &args);
}
