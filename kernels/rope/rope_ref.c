/* rope_ref: the twin of rope.cu. */
#include "kernels/cuda/refs.h"
#include "kernels/math_sincos.h"
#include "kernels/rope/rope.h"

void rope_ref(const struct rope_args *a) {
    const uint32_t *pos = refs_ptr(a->pos);
    const float *freq = refs_ptr(a->freq);
    float *out = refs_ptr(a->angles);
    for (uint32_t t = 0; t < a->rows; t++, out += 2 * a->pairs)
        for (uint32_t i = 0; i < a->pairs; i++) {
            float angle = (float)pos[t] * freq[i];
            struct sincos sc = sincos_f64((double)angle);
            out[i] = (float)sc.cos * a->scale;
            out[a->pairs + i] = (float)sc.sin * a->scale;
        }
}
