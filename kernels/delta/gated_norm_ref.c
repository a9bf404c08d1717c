/* gated_norm_ref: the twin of gated_norm.cu. */
#include "kernels/cuda/refs.h"
#include "kernels/cuda/sums_ref.h"
#include "kernels/delta/gated_norm.h"

void gated_norm_ref(const struct gated_norm_args *a) {
    const float *w = refs_ptr(a->w);
    for (uint64_t h = 0; h < (uint64_t)a->rows * a->heads; h++) {
        const float *o = (const float *)refs_ptr(a->o) + h * a->dim;
        const float *z = (const float *)refs_ptr(a->z) + h * a->dim;
        float *y = (float *)refs_ptr(a->y) + h * a->dim;
        float sum = sums_quads(o, a->dim, SUMS_WARP);
        float factor = 1.0f / sqrtf(sum / (float)a->dim + a->eps);
        for (uint32_t d = 0; d < a->dim; d++) y[d] = ((o[d] * factor) * w[d]) * arith_silu(z[d]);
    }
}
