/* delta_gates: see delta_gates.h. A thread is a head of a row.
 * Equals  delta_gates_ref.c, bit for bit.
 * Cost    16 NV bytes a row: its latency. */
#include "kernels/cuda/device.cuh"
#include "kernels/delta/delta_gates.h"

extern "C" __global__ void delta_gates(const struct delta_gates_args g) {
    uint32_t i = blockIdx.x * blockDim.x + threadIdx.x, t = i / g.heads, h = i % g.heads;
    device_wait_prior();
    device_let_next();
    if (t >= g.rows) return;
    float *out = device_ptr<float>(g.gates) + (uint64_t)t * 2 * g.heads;
    float a = device_ptr<const float>(g.a)[i], b = device_ptr<const float>(g.b)[i];
    float step = arith_softplus(a + device_ptr<const float>(g.dt_bias)[h]);
    out[h] = arith_exp(device_ptr<const float>(g.neg_a)[h] * step);
    out[g.heads + h] = arith_sigmoid(b);
}
