/* delta_norm: see delta_norm.h. A warp is a head of a row.
 *
 * Order   lane l fuses x[l]^2, x[l + 32]^2, .. into its sum; lanes add by xor 16, 8, 4, 2, 1.
 * Equals  delta_norm_ref.c, bit for bit. */
#include "kernels/cuda/device.cuh"
#include "kernels/delta/delta_norm.h"

extern "C" __global__ void delta_norm(const struct delta_norm_args a) {
    uint32_t head = blockIdx.y * (blockDim.x / WARP) + threadIdx.x / WARP;
    uint32_t lane = threadIdx.x % WARP;
    if (head >= 2 * a.key_heads) return;
    float *x =
        device_ptr<float>(a.qkv) + (uint64_t)blockIdx.x * a.channels + (uint64_t)head * a.key_dim;
    float sum = 0;
    for (uint32_t d = lane; d < a.key_dim; d += WARP) sum = fmaf(x[d], x[d], sum);
    float factor = 1.0f / sqrtf(device_warp_sum(sum) + 1e-6f);
    for (uint32_t d = lane; d < a.key_dim; d += WARP) {
        float v = x[d] * factor;
        x[d] = head < a.key_heads ? v * a.q_scale : v;
    }
}
