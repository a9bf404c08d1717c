/* exl3: see linear.h and exl3_block.cuh. The EXL3 parts of a call that have chains, all but MUL1 (exl3_int.h): their rows, and the plain
 * form of the product.
 *
 * exl3_rotate_rows rotates the rows for each part: a warp is 128 channels of a row. exl3_8 and exl3_32 multiply: a block is 128
 * outputs and up to 8 or 32 rows. They serve where the forms of few and of many rows do not fit.
 * Equals  linear_ref.c, bit for bit, whatever the rows of a block.
 * Cost    decoding the weights, for each block of rows. */
#include "kernels/linear/exl3_block.cuh"
#include "kernels/linear/exl3_find.cuh"

enum { ROTATE_WARPS = 4 };

// Grid: channels / 128 / ROTATE_WARPS, rows, EXL3 parts.
extern "C" __global__ void __launch_bounds__(ROTATE_WARPS *WARP)
    exl3_rotate_rows(const struct exl3_params p) {
    uint32_t cols = p.a.parts[0].w.cols, block = blockIdx.x * ROTATE_WARPS + threadIdx.x / WARP;
    const struct weight &w = p.a.parts[exl3_nth_part(p.a, blockIdx.z)].w;
    bool mine = block < cols / EXL3_BLOCK;
    uint2 suh = mine ? exl3_suh(w, block) : make_uint2(0, 0);
    device_let_next();
    device_wait_prior();
    struct exl3_rows to = {device_ptr<uint16_t>(p.rotated) + (uint64_t)blockIdx.z * p.a.rows * cols,
                           p.a.rows};
    if (mine)
        exl3_rotate_in(
            exl3_channels(device_ptr<const float>(p.a.x) + (uint64_t)blockIdx.y * cols, block), suh,
            exl3_lane_group(block), blockIdx.y, to);
}

template <int TILES> DEVICE_FN void run(const struct exl3_params &p) {
    __shared__ float total[TILES * 8][EXL3_BLOCK];
    uint32_t block = blockIdx.x, nth, first = blockIdx.y * TILES * 8;
    const struct linear_part &part = exl3_find_part(p.a, &block, &nth);
    uint32_t left = p.a.rows - first, count = left < TILES * 8 ? left : TILES * 8;
    struct exl3_rows x = {device_ptr<uint16_t>(p.rotated) + (uint64_t)nth * p.a.rows * part.w.cols,
                          p.a.rows};
    device_let_next();
    device_wait_prior();
    exl3_block<TILES>(part, x, device_ptr<float>(part.y), first, count, block, total);
}

extern "C" __global__ void __launch_bounds__(EXL3_THREADS_MAX, 1)
    exl3_8(const struct exl3_params p) {
    run<1>(p);
}

extern "C" __global__ void __launch_bounds__(EXL3_THREADS_MAX, 1)
    exl3_32(const struct exl3_params p) {
    run<4>(p);
}
