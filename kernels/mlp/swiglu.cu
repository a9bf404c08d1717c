/* swiglu: see swiglu.h. A thread is an element.
 * Equals  swiglu_ref.c, bit for bit. */
#include "kernels/cuda/device.cuh"
#include "kernels/mlp/swiglu.h"

extern "C" __global__ void swiglu(const struct swiglu_args a) {
    uint64_t i = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= (uint64_t)a.rows * a.dim) return;
    float gate = device_ptr<const float>(a.gate)[i], up = device_ptr<const float>(a.up)[i];
    device_ptr<float>(a.y)[i] = arith_silu(gate) * up;
}
