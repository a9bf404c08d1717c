/* linear_block: a block of a plain linear layer: some outputs, up to 8 TILES rows; the order of sums is linear_order.h's.
 *
 * bf16, f16  LINEAR_WARPS warps: some tiles of sixteen outputs times the segments of K, each with all rows of the block. The
 *         rows are rounded to the weight's type on their way into the tensor cores (f16: at most 65504).
 * f32     a warp is an output: lane l fuses x[l] w[l], x[l + 32] w[l + 32], .. into its sum; lanes add by xor 16, 8, 4, 2, 1. */
#pragma once
#include "kernels/cuda/device.cuh"
#include "kernels/linear/linear.h"
#include "kernels/linear/linear_order.h"

// Blocks that write the outputs of a plain weight: a block has LINEAR_WARPS warps, one for each tile and segment, or, for fp32
// weights, one for each output.
DEVICE_FN uint32_t linear_blocks(const struct weight *w) {
    uint32_t outputs = w->dtype == DTYPE_F32
                           ? (uint32_t)LINEAR_WARPS
                           : LINEAR_WARPS / linear_segments(w->cols) * LINEAR_TILE;
    return w->exl3.half_bits ? 0 : (w->rows + outputs - 1) / outputs;
}

enum { LINEAR_THREADS = LINEAR_WARPS * WARP };

// The rows that a block multiplies: count from the first on. Row i stands at x's row map[i] / per, or i without a map, and its
// answer at y's row i.
struct linear_rows {
    const float *x;
    float *y;
    const uint32_t *map;
    uint32_t per;
    uint32_t first, count;
};

DEVICE_FN uint64_t linear_input_row(const struct linear_rows &r, uint32_t row) {
    return r.map ? r.map[r.first + row] / r.per : r.first + row;
}

// Two neighbours of a row of weights from column k on, in one register; 0 behind the end.
DEVICE_FN uint32_t linear_load_weights(const uint16_t *w, uint32_t k, uint32_t cols, bool aligned) {
    if (aligned && k + 1 < cols) return *reinterpret_cast<const uint32_t *>(w + k);
    return (k < cols ? w[k] : 0u) | (k + 1 < cols ? (uint32_t)w[k + 1] : 0u) << 16;
}

template <enum dtype D>
DEVICE_FN uint32_t linear_load_inputs(const float *x, uint32_t k, uint32_t cols, bool aligned) {
    if (aligned && k + 1 < cols) {
        float2 v = *reinterpret_cast<const float2 *>(x + k);
        return device_pack<D>(v.x, v.y);
    }
    return device_pack<D>(k < cols ? x[k] : 0.0f, k + 1 < cols ? x[k + 1] : 0.0f);
}

// One warp: a tile of outputs, a segment of K, all rows. The sums lie in part[row][output].
template <enum dtype D, int TILES>
DEVICE_FN void linear_segment(const struct weight &w, const struct linear_rows &r,
                              uint32_t first_output, uint32_t segment, float (*part)[LINEAR_TILE]) {
    uint32_t g = threadIdx.x % WARP / 4, c = threadIdx.x % 4, cols = w.cols;
    bool aligned = cols % 2 == 0 && w.data % 4 == 0;
    const uint16_t *low = device_ptr<const uint16_t>(w.data) + (uint64_t)(first_output + g) * cols;
    const uint16_t *high = low + (uint64_t)8 * cols;
    bool have_low = first_output + g < w.rows, have_high = first_output + g + 8 < w.rows;
    uint32_t from = segment * linear_segment_steps(cols) * LINEAR_STEP;
    uint32_t to = from + linear_segment_steps(cols) * LINEAR_STEP;
    to = to < cols ? to : cols;
    float sum[TILES][4];
#pragma unroll
    for (int i = 0; i < TILES; i++)
#pragma unroll
        for (int j = 0; j < 4; j++) sum[i][j] = 0;
#pragma unroll 2
    for (uint32_t k = from + 2 * c; k < to + 2 * c; k += LINEAR_STEP) {
        const uint32_t a[4] = {have_low ? linear_load_weights(low, k, cols, aligned) : 0,
                               have_high ? linear_load_weights(high, k, cols, aligned) : 0,
                               have_low ? linear_load_weights(low, k + 8, cols, aligned) : 0,
                               have_high ? linear_load_weights(high, k + 8, cols, aligned) : 0};
#pragma unroll
        for (int i = 0; i < TILES; i++) {
            uint32_t row = i * 8 + g;
            uint32_t b[2] = {0, 0};
            if (row < r.count) {
                const float *x = r.x + linear_input_row(r, row) * cols;
                b[0] = linear_load_inputs<D>(x, k, cols, aligned);
                b[1] = linear_load_inputs<D>(x, k + 8, cols, aligned);
            }
            device_mma<D>(sum[i], a, b);
        }
    }
#pragma unroll
    for (int i = 0; i < TILES; i++)
#pragma unroll
        for (int j = 0; j < 4; j++) part[i * 8 + 2 * c + j % 2][g + j / 2 * 8] = sum[i][j];
}

DEVICE_FN void linear_store(const struct linear_part &p, const struct linear_rows &r, uint32_t row,
                            uint32_t output, float v) {
    float *y = r.y + (uint64_t)(r.first + row) * p.w.rows + output;
    *y = p.add ? v + *y : v;
}

template <enum dtype D, int TILES>
DEVICE_FN void linear_half(const struct linear_part &p, const struct linear_rows &r, uint32_t block,
                           float (*part)[TILES * 8][LINEAR_TILE]) {
    uint32_t segments = linear_segments(p.w.cols), tiles = LINEAR_WARPS / segments;
    uint32_t warp = threadIdx.x / WARP, first = block * tiles * LINEAR_TILE;
    linear_segment<D, TILES>(p.w, r, first + warp % tiles * LINEAR_TILE, warp / tiles, part[warp]);
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < tiles * LINEAR_TILE * r.count; i += LINEAR_THREADS) {
        uint32_t n = i % (tiles * LINEAR_TILE), row = i / (tiles * LINEAR_TILE);
        if (first + n >= p.w.rows) continue;
        float sum = part[n / LINEAR_TILE][row][n % LINEAR_TILE];
        for (uint32_t s = 1; s < segments; s++)
            sum = sum + part[s * tiles + n / LINEAR_TILE][row][n % LINEAR_TILE];
        linear_store(p, r, row, first + n, sum);
    }
}

DEVICE_FN void linear_f32(const struct linear_part &p, const struct linear_rows &r,
                          uint32_t block) {
    uint32_t n = block * LINEAR_WARPS + threadIdx.x / WARP, cols = p.w.cols;
    if (n >= p.w.rows) return;
    const float *w = device_ptr<const float>(p.w.data) + (uint64_t)n * cols;
    for (uint32_t row = 0; row < r.count; row++) {
        const float *x = r.x + linear_input_row(r, row) * cols;
        float sum = 0;
        for (uint32_t k = threadIdx.x % WARP; k < cols; k += WARP) sum = fmaf(x[k], w[k], sum);
        sum = device_warp_sum(sum);
        if (threadIdx.x % WARP == 0) linear_store(p, r, row, n, sum);
    }
}

template <int TILES>
DEVICE_FN void linear_block(const struct linear_part &p, const struct linear_rows &r,
                            uint32_t block, float (*part)[TILES * 8][LINEAR_TILE]) {
    switch (p.w.dtype) {
    case DTYPE_F32: linear_f32(p, r, block); break;
    case DTYPE_BF16: linear_half<DTYPE_BF16, TILES>(p, r, block, part); break;
    default: linear_half<DTYPE_F16, TILES>(p, r, block, part); break;
    }
}
