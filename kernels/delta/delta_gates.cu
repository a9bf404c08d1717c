/* delta_gates: see delta_gates.h. A thread is a head of a row.
 * Equals  delta_gates_ref.c, bit for bit. */
#include "kernels/cuda/device.cuh"
#include "kernels/delta/delta_gates.h"

extern "C" __global__ void delta_gates(const struct delta_gates_args g) {
    uint64_t t = blockIdx.x;
    float *out = device_ptr<float>(g.gates) + t * 2 * g.heads;
    for (uint32_t h = threadIdx.x; h < g.heads; h += blockDim.x) {
        float a = device_ptr<const float>(g.a)[t * g.heads + h];
        float step = arith_softplus(a + device_ptr<const float>(g.dt_bias)[h]);
        out[h] = arith_exp(device_ptr<const float>(g.neg_a)[h] * step);
        out[g.heads + h] = arith_sigmoid(device_ptr<const float>(g.b)[t * g.heads + h]);
    }
}
