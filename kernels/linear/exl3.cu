/* exl3: the EXL3 parts of linear; the order of sums is linear_order.h's.
 *
 *   rotated = f16(rotation(x * suh))   in fp32, rounded once, at most 65504
 *   y = rotation(W rotated) * svh, + bias, + the old y
 * exl3_rotate_rows makes the first; a warp is 128 channels of a row. exl3_8 and exl3_32 make the second: a block is 128
 * outputs and up to 8 or 32 rows, a warp of it sixteen outputs and a segment of K. Segments come together in shared memory
 * one after another.
 * Equals  linear_ref.c, bit for bit, whatever the rows of a block.
 * Cost    decoding the weights, for each block of rows. */
#include "kernels/cuda/device.cuh"
#include "kernels/linear/exl3.cuh"
#include "kernels/linear/exl3_params.h"
#include "kernels/linear/linear_order.h"

enum { THREADS_MAX = LINEAR_WARPS * LINEAR_SEGMENTS_MAX * WARP, SPAN = LINEAR_STEP * LINEAR_GROUP };

// The part whose turn is `block`, counted in blocks of 128 outputs; *ret_nth: how many EXL3 parts stand before it.
DEVICE_FN const struct linear_part &find_part(const struct linear_args &a, uint32_t *block,
                                              uint32_t *ret_nth) {
    uint32_t i = 0;
    *ret_nth = 0;
    for (;; i++) {
        if (!a.parts[i].w.exl3.half_bits) continue;
        uint32_t blocks = a.parts[i].w.rows / EXL3_BLOCK;
        if (*block < blocks) return a.parts[i];
        *block -= blocks;
        ++*ret_nth;
    }
}

// Grid: channels / 128, rows, EXL3 parts.
extern "C" __global__ void __launch_bounds__(WARP) exl3_rotate_rows(const struct exl3_params p) {
    uint32_t i = 0, nth = blockIdx.z, cols = p.a.parts[0].w.cols;
    while (!p.a.parts[i].w.exl3.half_bits || nth--) i++;
    uint32_t first = blockIdx.x * EXL3_BLOCK + threadIdx.x * EXL3_LANE_CHANNELS;
    const float *x = device_ptr<const float>(p.a.x) + (uint64_t)blockIdx.y * cols + first;
    const uint16_t *suh = device_ptr<const uint16_t>(p.a.parts[i].w.exl3.suh) + first;
    uint16_t *out = device_ptr<uint16_t>(p.rotated) +
                    ((uint64_t)blockIdx.z * p.a.rows + blockIdx.y) * cols + first;
    float v[EXL3_LANE_CHANNELS];
#pragma unroll
    for (int j = 0; j < EXL3_LANE_CHANNELS; j++) v[j] = x[j] * arith_from_f16(suh[j]);
    exl3_rotate(v);
#pragma unroll
    for (int j = 0; j < EXL3_LANE_CHANNELS; j++) out[j] = device_to_f16(v[j]);
}

// One warp: a tile of outputs, a segment of K, all rows.
template <int TILES>
DEVICE_FN void run_segment(const struct weight &w, const uint16_t *x, uint32_t count,
                           uint32_t output_tile, uint32_t segment, float sum[TILES][4]) {
    uint32_t g = threadIdx.x % WARP / 4, c = threadIdx.x % 4, cols = w.cols;
    uint32_t tile_words = 4 * w.exl3.half_bits;
    uint64_t row_words = (uint64_t)w.rows / LINEAR_TILE * tile_words; // of sixteen inputs
    const uint32_t *tile = device_ptr<const uint32_t>(w.data) + (uint64_t)output_tile * tile_words;
    uint32_t from = segment * linear_segment_steps(cols) * LINEAR_STEP;
    uint32_t to = from + linear_segment_steps(cols) * LINEAR_STEP;
    to = to < cols ? to : cols;
    for (uint32_t k = from; k < to; k += SPAN) {
        uint32_t mine = k + c * LINEAR_STEP;
        const uint32_t *t = tile + mine / LINEAR_STEP * row_words;
        for (uint32_t s = 0; s < LINEAR_GROUP; s++) {
            uint32_t a[4];
            exl3_factors(t, w.exl3.half_bits, w.exl3.codebook, g, s, a);
#pragma unroll
            for (int i = 0; i < TILES; i++) {
                uint32_t row = i * 8 + g, b[2] = {0, 0};
                if (row < count) {
                    const uint32_t *at = reinterpret_cast<const uint32_t *>(
                        x + (uint64_t)row * cols + mine + 2 * s);
                    b[0] = at[0];
                    b[1] = at[4];
                }
                device_mma<DTYPE_F16>(sum[i], a, b);
            }
        }
    }
}

// Lane: four outputs of a row.
DEVICE_FN void finish_row(const struct linear_part &p, const float *total, uint32_t first, float *y) {
    uint32_t lane = threadIdx.x % WARP, n = first + lane * EXL3_LANE_CHANNELS;
    float v[EXL3_LANE_CHANNELS];
#pragma unroll
    for (int j = 0; j < EXL3_LANE_CHANNELS; j++) v[j] = total[lane * EXL3_LANE_CHANNELS + j];
    exl3_rotate(v);
#pragma unroll
    for (int j = 0; j < EXL3_LANE_CHANNELS; j++) {
        v[j] = v[j] * arith_from_f16(device_ptr<const uint16_t>(p.w.exl3.svh)[n + j]);
        if (p.w.exl3.bias) v[j] = v[j] + device_ptr<const float>(p.w.exl3.bias)[n + j];
        y[n + j] = p.add ? v[j] + y[n + j] : v[j];
    }
}

template <int TILES> DEVICE_FN void run(const struct exl3_params &p) {
    __shared__ float total[TILES * 8][EXL3_BLOCK];
    uint32_t block = blockIdx.x, nth, first_row = blockIdx.y * TILES * 8;
    const struct linear_part &part = find_part(p.a, &block, &nth);
    uint32_t left = p.a.rows - first_row, count = left < TILES * 8 ? left : TILES * 8;
    const uint16_t *x = device_ptr<const uint16_t>(p.rotated) +
                        ((uint64_t)nth * p.a.rows + first_row) * part.w.cols;
    uint32_t warp = threadIdx.x / WARP, tile = warp % LINEAR_WARPS, segment = warp / LINEAR_WARPS;
    uint32_t g = threadIdx.x % WARP / 4, c = threadIdx.x % 4;
    float sum[TILES][4];
#pragma unroll
    for (int i = 0; i < TILES; i++)
#pragma unroll
        for (int j = 0; j < 4; j++) sum[i][j] = 0;
    run_segment<TILES>(part.w, x, count, block * LINEAR_WARPS + tile, segment, sum);
    for (uint32_t turn = 0; turn < linear_segments(part.w.cols); turn++) {
        if (turn == segment)
#pragma unroll
            for (int i = 0; i < TILES; i++)
#pragma unroll
                for (int j = 0; j < 4; j++) {
                    float *t = &total[i * 8 + 2 * c + j % 2][tile * LINEAR_TILE + g + j / 2 * 8];
                    *t = turn ? *t + sum[i][j] : sum[i][j];
                }
        __syncthreads();
    }
    for (uint32_t row = warp; row < count; row += blockDim.x / WARP)
        finish_row(part, total[row], block * EXL3_BLOCK,
                   device_ptr<float>(part.y) + (uint64_t)(first_row + row) * part.w.rows);
}

extern "C" __global__ void __launch_bounds__(THREADS_MAX) exl3_8(const struct exl3_params p) {
    run<1>(p);
}

extern "C" __global__ void __launch_bounds__(THREADS_MAX) exl3_32(const struct exl3_params p) {
    run<4>(p);
}
