/* expert_sum: see expert_sum.h. A block is a row.
 * Equals  expert_sum_ref.c, bit for bit: the product is not fused. */
#include "kernels/cuda/device.cuh"
#include "kernels/moe/expert_sum.h"

extern "C" __global__ void expert_sum(const struct expert_sum_args a) {
    uint64_t t = blockIdx.x, at = t * a.dim;
    float *h = device_ptr<float>(a.h) + at;
    const float *routed = device_ptr<const float>(a.routed) + at;
    const float *shared = device_ptr<const float>(a.shared) + at;
    float s = arith_sigmoid(device_ptr<const float>(a.gate)[t]);
    for (uint32_t d = threadIdx.x; d < a.dim; d += blockDim.x)
        h[d] = h[d] + (routed[d] + s * shared[d]);
}
