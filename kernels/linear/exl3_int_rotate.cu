/* exl3_int_rotate: the rows of a call for each of its MUL1 parts, times suh and rotated, in fp32, and the largest of each 128.
 * See exl3_int.h.
 *
 * Grid: blocks of EXL3_INT_ROTATE_WARPS times 128 channels, rows, MUL1 parts. A warp is 128 channels of a row.
 * Equals  exl3_int_ref.c, bit for bit.
 * Cost    a launch: a row of K = 5120 is 20 KiB in and out. */
#include "kernels/linear/exl3_int.cuh"
#include "kernels/linear/exl3_int_params.h"

extern "C" __global__ void __launch_bounds__(EXL3_INT_ROTATE_WARPS *WARP)
    exl3_int_rotate(const struct exl3_int_params p) {
    device_let_next();
    const struct weight &w = p.a.parts[exl3_int_nth_part(p.a, blockIdx.z)].w;
    uint32_t block = blockIdx.x * EXL3_INT_ROTATE_WARPS + threadIdx.x / WARP, cols = w.cols;
    bool mine = block < cols / EXL3_BLOCK;
    uint32_t k = (mine ? block : 0) * EXL3_BLOCK + threadIdx.x % WARP * EXL3_LANE_CHANNELS;
    const uint2 suh = *reinterpret_cast<const uint2 *>(device_ptr<const uint16_t>(w.exl3.suh) + k);
    device_wait_prior();
    if (!mine) return;
    uint64_t row = (uint64_t)blockIdx.z * p.a.rows + blockIdx.y;
    const float *x = device_ptr<const float>(p.a.x) + (uint64_t)blockIdx.y * cols + k;
    const float4 in = *reinterpret_cast<const float4 *>(x);
    float v[EXL3_LANE_CHANNELS] = {
        in.x * arith_from_f16((uint16_t)suh.x), in.y * arith_from_f16((uint16_t)(suh.x >> 16)),
        in.z * arith_from_f16((uint16_t)suh.y), in.w * arith_from_f16((uint16_t)(suh.y >> 16))};
    exl3_rotate(v);
    uint32_t size = 0;
#pragma unroll
    for (int j = 0; j < EXL3_LANE_CHANNELS; j++) {
        uint32_t s = exl3_int_size(v[j]);
        size = s > size ? s : size;
    }
    size = __reduce_max_sync(0xffffffffu, size);
    float *to = device_ptr<float>(p.rotated) + row * cols + k;
    *reinterpret_cast<float4 *>(to) = make_float4(v[0], v[1], v[2], v[3]);
    if (threadIdx.x % WARP == 0)
        device_ptr<uint32_t>(p.sizes)[row * (cols / EXL3_BLOCK) + block] = size;
}
