/* rmsnorm_ref: the twin of rmsnorm.cu. */
#include "kernels/cuda/refs.h"
#include "kernels/cuda/sums_ref.h"
#include "kernels/norm/rmsnorm.h"
#include "kernels/norm/rmsnorm_order.h"

void rmsnorm_ref(const struct rmsnorm_args *a) {
    const uint32_t *pick = refs_ptr(a->pick);
    const float *scale = refs_ptr(a->scale);
    for (uint32_t t = 0; t < a->rows; t++) {
        const float *x = (const float *)refs_ptr(a->x) + (uint64_t)(pick ? pick[t] : t) * a->dim;
        float *y = (float *)refs_ptr(a->y) + (uint64_t)t * a->dim;
        float sum = sums_quads(x, a->dim, rmsnorm_threads(a->dim));
        float factor = 1.0f / sqrtf(sum / (float)a->dim + a->eps);
        for (uint32_t d = 0; d < a->dim; d++) y[d] = (x[d] * factor) * scale[d];
    }
}
