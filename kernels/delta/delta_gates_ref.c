/* delta_gates_ref: the twin of delta_gates.cu. */
#include "kernels/cuda/refs.h"
#include "kernels/delta/delta_gates.h"

void delta_gates_ref(const struct delta_gates_args *g) {
    const float *a = refs_ptr(g->a), *b = refs_ptr(g->b), *neg_a = refs_ptr(g->neg_a);
    const float *bias = refs_ptr(g->dt_bias);
    float *out = refs_ptr(g->gates);
    for (uint32_t t = 0; t < g->rows; t++, out += 2 * g->heads)
        for (uint32_t h = 0; h < g->heads; h++) {
            uint64_t i = (uint64_t)t * g->heads + h;
            out[h] = arith_exp(neg_a[h] * arith_softplus(a[i] + bias[h]));
            out[g->heads + h] = arith_sigmoid(b[i]);
        }
}
