/* expert_sum_ref: the twin of expert_sum.cu. */
#include "kernels/cuda/refs.h"
#include "kernels/moe/expert_sum.h"

void expert_sum_ref(const struct expert_sum_args *a) {
    float *h = refs_ptr(a->h);
    const float *routed = refs_ptr(a->routed), *shared = refs_ptr(a->shared);
    const float *gate = refs_ptr(a->gate);
    for (uint64_t i = 0; i < (uint64_t)a->rows * a->dim; i++)
        h[i] = h[i] + (routed[i] + arith_sigmoid(gate[i / a->dim]) * shared[i]);
}
