/* exl3_block: what the EXL3 parts of a linear layer are made of; the order of sums is linear_order.h's.
 *
 *   rotated = f16(rotation(x * suh))   in fp32, rounded once, at most 65504
 *   y = rotation(W rotated) * svh, + bias, + the old y */
#pragma once
#include "kernels/cuda/device.cuh"
#include "kernels/linear/exl3.cuh"
#include "kernels/linear/linear.h"
#include "kernels/linear/linear_order.h"

enum {
    EXL3_THREADS_MAX = LINEAR_WARPS * LINEAR_SEGMENTS_BESIDE * WARP,
    EXL3_SPAN = LINEAR_STEP * LINEAR_GROUP,
};

// 128 channels of a row, by a warp: times suh, rotated, rounded.
DEVICE_FN void exl3_rotate_in(const float *x, const struct weight &w, uint32_t block,
                              uint16_t *ret) {
    uint32_t first = block * EXL3_BLOCK + threadIdx.x % WARP * EXL3_LANE_CHANNELS;
    const uint16_t *suh = device_ptr<const uint16_t>(w.exl3.suh) + first;
    float v[EXL3_LANE_CHANNELS];
#pragma unroll
    for (int j = 0; j < EXL3_LANE_CHANNELS; j++) v[j] = x[first + j] * arith_from_f16(suh[j]);
    exl3_rotate(v);
#pragma unroll
    for (int j = 0; j < EXL3_LANE_CHANNELS; j++) ret[first + j] = device_to_f16(v[j]);
}

// One warp: a tile of outputs, a segment of K, all rows.
template <int TILES>
DEVICE_FN void exl3_segment(const struct weight &w, const uint16_t *x, uint32_t count,
                            uint32_t output_tile, uint32_t segment, float sum[TILES][4]) {
    uint32_t g = threadIdx.x % WARP / 4, c = threadIdx.x % 4, cols = w.cols;
    uint32_t tile_words = 4 * w.exl3.half_bits;
    uint64_t row_words = (uint64_t)w.rows / LINEAR_TILE * tile_words; // of sixteen inputs
    const uint32_t *tile = device_ptr<const uint32_t>(w.data) + (uint64_t)output_tile * tile_words;
    uint32_t from = segment * linear_segment_steps(cols) * LINEAR_STEP;
    uint32_t to = from + linear_segment_steps(cols) * LINEAR_STEP;
    to = to < cols ? to : cols;
    for (uint32_t k = from; k < to; k += EXL3_SPAN) {
        uint32_t mine = k + c * LINEAR_STEP;
        const uint32_t *t = tile + mine / LINEAR_STEP * row_words;
        for (uint32_t s = 0; s < LINEAR_GROUP; s++) {
            uint32_t a[4];
            exl3_factors(t, w.exl3.half_bits, w.exl3.codebook, g, s, a);
#pragma unroll
            for (int i = 0; i < TILES; i++) {
                uint32_t row = i * 8 + g, b[2] = {0, 0};
                if (row < count) {
                    const uint32_t *at =
                        reinterpret_cast<const uint32_t *>(x + (uint64_t)row * cols + mine + 2 * s);
                    b[0] = at[0];
                    b[1] = at[4];
                }
                device_mma<DTYPE_F16>(sum[i], a, b);
            }
        }
    }
}

// Lane: four outputs of a row.
DEVICE_FN void exl3_finish_row(const struct linear_part &p, const float *total, uint32_t first,
                               float *y) {
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

/* A block: 128 outputs, count rows of x (already rotated). Warps are tiles of sixteen outputs times segments of K that go side by
 * side; the others follow. Answers go to y, rows apart by the part's outputs. */
template <int TILES>
DEVICE_FN void exl3_block(const struct linear_part &p, const uint16_t *x, float *y, uint32_t count,
                          uint32_t block, float (*total)[EXL3_BLOCK]) {
    uint32_t warp = threadIdx.x / WARP, tile = warp % LINEAR_WARPS, mine = warp / LINEAR_WARPS;
    uint32_t g = threadIdx.x % WARP / 4, c = threadIdx.x % 4, segments = linear_segments(p.w.cols);
    uint32_t beside = blockDim.x / WARP / LINEAR_WARPS;
    for (uint32_t first = 0; first < segments; first += beside) {
        float sum[TILES][4];
#pragma unroll
        for (int i = 0; i < TILES; i++)
#pragma unroll
            for (int j = 0; j < 4; j++) sum[i][j] = 0;
        if (first + mine < segments)
            exl3_segment<TILES>(p.w, x, count, block * LINEAR_WARPS + tile, first + mine, sum);
        for (uint32_t turn = first; turn < first + beside && turn < segments; turn++) {
            if (turn == first + mine)
#pragma unroll
                for (int i = 0; i < TILES; i++)
#pragma unroll
                    for (int j = 0; j < 4; j++) {
                        float *t =
                            &total[i * 8 + 2 * c + j % 2][tile * LINEAR_TILE + g + j / 2 * 8];
                        *t = turn ? *t + sum[i][j] : sum[i][j];
                    }
            __syncthreads();
        }
    }
    for (uint32_t row = warp; row < count; row += blockDim.x / WARP)
        exl3_finish_row(p, total[row], block * EXL3_BLOCK, y + (uint64_t)row * p.w.rows);
}
