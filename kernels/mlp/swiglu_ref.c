/* swiglu_ref: the twin of swiglu.cu. */
#include "kernels/cuda/refs.h"
#include "kernels/mlp/swiglu.h"

void swiglu_ref(const struct swiglu_args *a) {
    const float *gate = refs_ptr(a->gate), *up = refs_ptr(a->up);
    float *y = refs_ptr(a->y);
    for (uint64_t i = 0; i < (uint64_t)a->rows * a->dim; i++) y[i] = arith_silu(gate[i]) * up[i];
}
