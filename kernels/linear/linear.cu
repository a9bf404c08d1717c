/* linear: see linear.h and linear_block.cuh. The plain parts of a call; exl3.cu has the others.
 *
 * Equals  linear_ref.c, bit for bit, whatever the rows of a block.
 * Cost    the bytes of the weights for each block of rows. */
#include "kernels/linear/linear_block.cuh"

template <int TILES> DEVICE_FN void run(const struct linear_args &a) {
    __shared__ float part[LINEAR_WARPS][TILES * 8][LINEAR_TILE];
    uint32_t block = blockIdx.x, idx = 0;
    while (block >= linear_blocks(&a.parts[idx].w)) block -= linear_blocks(&a.parts[idx++].w);
    const struct linear_part &p = a.parts[idx];
    struct linear_rows r = {.x = device_ptr<const float>(a.x),
                            .y = device_ptr<float>(p.y),
                            .first = blockIdx.y * TILES * 8};
    r.count = a.rows - r.first < TILES * 8 ? a.rows - r.first : TILES * 8;
    linear_block<TILES>(p, r, block, part);
}

extern "C" __global__ void __launch_bounds__(LINEAR_THREADS) linear_8(const struct linear_args a) {
    run<1>(a);
}

extern "C" __global__ void __launch_bounds__(LINEAR_THREADS) linear_32(const struct linear_args a) {
    run<4>(a);
}
