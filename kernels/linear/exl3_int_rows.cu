/* exl3_int_rows: the rows of a call for each of its MUL1 parts, times suh and rotated, in fp32, and the largest of each 128: exl3_int.h.
 * The rows are made on the way where the call says so (linear.h): normed, or silu(gate) * up.
 *
 * Grid: blocks of as many warps times 128 channels, rows, MUL1 parts. A warp is 128 channels of a row. A norm has rmsnorm's warps, each
 *         block sums the whole row.
 * Order   of the norm: rmsnorm.cu's.
 * Equals  rmsnorm_ref.c or swiglu_ref.c, then exl3_int_ref.c, bit for bit.
 * Cost    a launch: a row of K = 5120 is 20 KiB in and out. */
#include "kernels/linear/exl3_int.cuh"
#include "kernels/linear/exl3_int_params.h"
#include "kernels/norm/rmsnorm.cuh"

// Of a norm: all threads of the block.
DEVICE_FN float norm_factor(const struct exl3_int_params &p, const float *x, uint32_t cols) {
    __shared__ float sums[RMSNORM_WARPS_MAX];
    uint32_t warp = threadIdx.x / WARP;
    float sum = rmsnorm_warp_sum(x, cols, warp);
    if (threadIdx.x % WARP == 0) sums[warp] = sum;
    __syncthreads();
    return rmsnorm_factor(sums, cols, p.a.from.eps);
}

template <enum linear_maker M> DEVICE_FN void run(const struct exl3_int_params &p) {
    device_let_next();
    const struct weight &w = p.a.parts[exl3_int_nth_part(p.a, blockIdx.z)].w;
    uint32_t block = blockIdx.x * (blockDim.x / WARP) + threadIdx.x / WARP, cols = w.cols;
    bool mine = block < cols / EXL3_BLOCK;
    uint32_t quad = (mine ? block : 0) * WARP + threadIdx.x % WARP;
    uint64_t at = (uint64_t)blockIdx.y * cols;
    const float *x = device_ptr<const float>(M ? p.a.from.x : p.a.x) + at;
    const float4 *other = device_ptr<const float4>(p.a.from.other);
    const uint2 suh = device_ptr<const uint2>(w.exl3.suh)[quad];
    float4 with = {0, 0, 0, 0};
    if (M == LINEAR_NORM) with = other[quad];
    device_wait_prior();
    float4 in = __ldcg(reinterpret_cast<const float4 *>(x) + quad);
    if (M == LINEAR_SWIGLU) with = __ldcg(other + at / 4 + quad);
    if (M == LINEAR_NORM) {
        float factor = norm_factor(p, x, cols);
        in = quads_times(quads_scale(in, factor), with);
    }
    if (!mine) return;
    if (M == LINEAR_SWIGLU) in = quads_times(quads_silu(in), with);
    if (M == LINEAR_NORM && p.keep_made && blockIdx.z == 0)
        device_ptr<float4>(p.a.x)[at / 4 + quad] = in;
    float v[EXL3_LANE_CHANNELS] = {
        in.x * arith_from_f16((uint16_t)suh.x), in.y * arith_from_f16((uint16_t)(suh.x >> 16)),
        in.z * arith_from_f16((uint16_t)suh.y), in.w * arith_from_f16((uint16_t)(suh.y >> 16))};
    exl3_rotate(v);
    uint32_t size = 0;
#pragma unroll
    for (int j = 0; j < EXL3_LANE_CHANNELS; j++) size = max(size, exl3_int_size(v[j]));
    size = __reduce_max_sync(0xffffffffu, size);
    uint64_t row = (uint64_t)blockIdx.z * p.a.rows + blockIdx.y;
    device_ptr<float4>(p.rotated)[row * (cols / 4) + quad] = make_float4(v[0], v[1], v[2], v[3]);
    if (threadIdx.x % WARP == 0)
        device_ptr<uint32_t>(p.sizes)[row * (cols / EXL3_BLOCK) + block] = size;
}

extern "C" __global__ void __launch_bounds__(EXL3_INT_ROWS_WARPS *WARP)
    exl3_int_rows(const struct exl3_int_params p) {
    run<LINEAR_AS_IT_IS>(p);
}

extern "C" __global__ void __launch_bounds__(RMSNORM_THREADS_MAX)
    exl3_int_rows_norm(const struct exl3_int_params p) {
    run<LINEAR_NORM>(p);
}

extern "C" __global__ void __launch_bounds__(EXL3_INT_ROWS_WARPS *WARP)
    exl3_int_rows_swiglu(const struct exl3_int_params p) {
    run<LINEAR_SWIGLU>(p);
}
