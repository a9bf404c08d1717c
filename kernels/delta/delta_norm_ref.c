/* delta_norm_ref: the twin of delta_norm.cu. */
#include "kernels/cuda/refs.h"
#include "kernels/cuda/sums_ref.h"
#include "kernels/delta/delta_norm.h"

void delta_norm_ref(const struct delta_norm_args *a) {
    for (uint32_t t = 0; t < a->rows; t++) {
        float *x = (float *)refs_ptr(a->qkv) + (uint64_t)t * a->channels;
        for (uint32_t h = 0; h < 2 * a->key_heads; h++, x += a->key_dim) {
            float factor = 1.0f / sqrtf(sums_quads(x, a->key_dim, SUMS_WARP) + 1e-6f);
            for (uint32_t d = 0; d < a->key_dim; d++) {
                x[d] = x[d] * factor;
                if (h < a->key_heads) x[d] = x[d] * a->q_scale;
            }
        }
    }
}
