/* exl3: see linear.h and exl3_block.cuh. The EXL3 parts of a call that have chains: all but MUL1 (exl3_int.h).
 *
 * exl3_rotate_rows rotates the rows for each part: a warp is 128 channels of a row. exl3_8 and exl3_32 multiply: a block is 128
 * outputs and up to 8 or 32 rows.
 * Equals  linear_ref.c, bit for bit, whatever the rows of a block.
 * Cost    decoding the weights, for each block of rows. */
#include "kernels/linear/exl3_block.cuh"
#include "kernels/linear/exl3_int.h"
#include "kernels/linear/exl3_params.h"

DEVICE_FN bool has_chains(const struct weight &w) {
    return w.exl3.half_bits && !exl3_int_weight(&w);
}

// The part whose turn is `block`, counted in blocks of 128 outputs; *ret_nth: how many such parts stand before it.
DEVICE_FN const struct linear_part &find_part(const struct linear_args &a, uint32_t *block,
                                              uint32_t *ret_nth) {
    uint32_t i = 0;
    *ret_nth = 0;
    for (;; i++) {
        if (!has_chains(a.parts[i].w)) continue;
        uint32_t blocks = a.parts[i].w.rows / EXL3_BLOCK;
        if (*block < blocks) return a.parts[i];
        *block -= blocks;
        ++*ret_nth;
    }
}

// Grid: channels / 128, rows, parts.
extern "C" __global__ void __launch_bounds__(WARP) exl3_rotate_rows(const struct exl3_params p) {
    uint32_t i = 0, nth = blockIdx.z, cols = p.a.parts[0].w.cols;
    while (!has_chains(p.a.parts[i].w) || nth--) i++;
    uint64_t row = blockIdx.y;
    exl3_rotate_in(device_ptr<const float>(p.a.x) + row * cols, p.a.parts[i].w, blockIdx.x,
                   device_ptr<uint16_t>(p.rotated) + (blockIdx.z * p.a.rows + row) * cols);
}

template <int TILES> DEVICE_FN void run(const struct exl3_params &p) {
    __shared__ float total[TILES * 8][EXL3_BLOCK];
    uint32_t block = blockIdx.x, nth, first = blockIdx.y * TILES * 8;
    const struct linear_part &part = find_part(p.a, &block, &nth);
    uint32_t left = p.a.rows - first, count = left < TILES * 8 ? left : TILES * 8;
    exl3_block<TILES>(
        part,
        device_ptr<const uint16_t>(p.rotated) + ((uint64_t)nth * p.a.rows + first) * part.w.cols,
        device_ptr<float>(part.y) + (uint64_t)first * part.w.rows, count, block, total);
}

extern "C" __global__ void __launch_bounds__(EXL3_THREADS_MAX, 1)
    exl3_8(const struct exl3_params p) {
    run<1>(p);
}

extern "C" __global__ void __launch_bounds__(EXL3_THREADS_MAX, 1)
    exl3_32(const struct exl3_params p) {
    run<4>(p);
}
