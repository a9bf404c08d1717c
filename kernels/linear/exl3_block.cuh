/* exl3_block: what the EXL3 parts of a linear layer are made of; the order of sums is linear_order.h's.
 *
 *   rotated = f16(rotation(x * suh))   in fp32, rounded once, at most 65504
 *   y = rotation(W rotated) * svh, + bias, + the old y */
#pragma once
#include "kernels/cuda/device.cuh"
#include "kernels/linear/exl3.cuh"
#include "kernels/linear/linear.h"
#include "kernels/linear/linear_order.h"

enum { EXL3_THREADS_MAX = LINEAR_WARPS * LINEAR_SEGMENTS_BESIDE * WARP };

// Rotated rows (exl3_params.h), `stride` of them.
struct exl3_rows {
    uint16_t *at;
    uint32_t stride;
};

// Two neighbours of a row, from element `at` of a group on.
DEVICE_FN uint32_t *exl3_row_pair(const struct exl3_rows &r, uint32_t group, uint32_t row,
                                  uint32_t at) {
    uint16_t *line = r.at + ((uint64_t)group * r.stride + row) * EXL3_GROUP;
    return reinterpret_cast<uint32_t *>(line + ((at / 8 ^ row % 8) * 8 + at % 8));
}

// Of 128 channels of a row, the lane's four: times suh, rotated, rounded. in: the row's; they belong to `group`.
DEVICE_FN void exl3_rotate_in(float4 in, uint2 suh, uint32_t group, uint32_t row,
                              const struct exl3_rows &ret) {
    uint32_t lane = threadIdx.x % WARP, c = lane % 16 / 4, h = lane % 4 / 2, s = lane % 2 * 2;
    float v[EXL3_LANE_CHANNELS] = {
        in.x * arith_from_f16((uint16_t)suh.x), in.y * arith_from_f16((uint16_t)(suh.x >> 16)),
        in.z * arith_from_f16((uint16_t)suh.y), in.w * arith_from_f16((uint16_t)(suh.y >> 16))};
    exl3_rotate(v);
    *exl3_row_pair(ret, group, row, 16 * s + 8 * h + 2 * c) = device_pack<DTYPE_F16>(v[0], v[1]);
    *exl3_row_pair(ret, group, row, 16 * s + 16 + 8 * h + 2 * c) =
        device_pack<DTYPE_F16>(v[2], v[3]);
}

// The lane's four of 128 neighbouring channels of a row.
DEVICE_FN float4 exl3_channels(const float *row, uint32_t block) {
    return reinterpret_cast<const float4 *>(row)[block * WARP + threadIdx.x % WARP];
}

DEVICE_FN uint32_t exl3_lane_group(uint32_t block) {
    return block * 2 + threadIdx.x % WARP / 16;
}

DEVICE_FN uint2 exl3_suh(const struct weight &w, uint32_t block) {
    return device_ptr<const uint2>(w.exl3.suh)[block * WARP + threadIdx.x % WARP];
}

// One warp: a tile of outputs, a segment of K, count rows from the first on.
template <int TILES>
DEVICE_FN void exl3_segment(const struct weight &w, const struct exl3_rows &x, uint32_t first,
                            uint32_t count, uint32_t output_tile, uint32_t segment,
                            float sum[TILES][4]) {
    uint32_t g = threadIdx.x % WARP / 4, c = threadIdx.x % 4, cols = w.cols;
    uint32_t tile_words = 4 * w.exl3.half_bits;
    uint64_t row_words = (uint64_t)w.rows / LINEAR_TILE * tile_words; // of sixteen inputs
    const uint32_t *tile = device_ptr<const uint32_t>(w.data) + (uint64_t)output_tile * tile_words;
    uint32_t per = linear_exl3_groups(cols), from = segment * per, to = from + per;
    to = to < cols / EXL3_GROUP ? to : cols / EXL3_GROUP;
    for (uint32_t group = from; group < to; group++) {
        const uint32_t *t = tile + (group * LINEAR_GROUP + c) * row_words;
        for (uint32_t s = 0; s < LINEAR_GROUP; s++) {
            uint32_t a[4];
            exl3_factors(t, w.exl3.half_bits, w.exl3.codebook, g, s, a);
#pragma unroll
            for (int i = 0; i < TILES; i++) {
                uint32_t row = i * 8 + g, b[2] = {0, 0};
                if (row < count) {
                    b[0] = *exl3_row_pair(x, group, first + row, 16 * s + 2 * c);
                    b[1] = *exl3_row_pair(x, group, first + row, 16 * s + 8 + 2 * c);
                }
                device_mma<DTYPE_F16>(sum[i], a, b);
            }
        }
    }
}

// A warp: 128 outputs of a row from the first on, the lane's four being v. y: the row's.
DEVICE_FN void exl3_finish_row(const struct linear_part &p, float v[EXL3_LANE_CHANNELS],
                               uint32_t first, float *y) {
    uint32_t n = first + threadIdx.x % WARP * EXL3_LANE_CHANNELS;
    exl3_rotate(v);
    uint2 svh = *reinterpret_cast<const uint2 *>(device_ptr<const uint16_t>(p.w.exl3.svh) + n);
    v[0] = v[0] * arith_from_f16((uint16_t)svh.x);
    v[1] = v[1] * arith_from_f16((uint16_t)(svh.x >> 16));
    v[2] = v[2] * arith_from_f16((uint16_t)svh.y);
    v[3] = v[3] * arith_from_f16((uint16_t)(svh.y >> 16));
    float4 *to = reinterpret_cast<float4 *>(y + n);
    if (p.w.exl3.bias) {
        float4 b = *reinterpret_cast<const float4 *>(device_ptr<const float>(p.w.exl3.bias) + n);
        v[0] = v[0] + b.x;
        v[1] = v[1] + b.y;
        v[2] = v[2] + b.z;
        v[3] = v[3] + b.w;
    }
    if (p.add) {
        float4 old = *to;
        v[0] = v[0] + old.x;
        v[1] = v[1] + old.y;
        v[2] = v[2] + old.z;
        v[3] = v[3] + old.w;
    }
    *to = make_float4(v[0], v[1], v[2], v[3]);
}

/* A block: 128 outputs, count rotated rows from the first on. Warps are tiles of sixteen outputs times segments of K that go side by
 * side; the others follow. Answers go to the same rows of y, apart by the part's outputs. */
template <int TILES>
DEVICE_FN void exl3_block(const struct linear_part &p, const struct exl3_rows &x, float *y,
                          uint32_t first_row, uint32_t count, uint32_t block,
                          float (*total)[EXL3_BLOCK]) {
    uint32_t warp = threadIdx.x / WARP, tile = warp % LINEAR_WARPS, mine = warp / LINEAR_WARPS;
    uint32_t g = threadIdx.x % WARP / 4, c = threadIdx.x % 4,
             segments = linear_exl3_segments(p.w.cols);
    uint32_t beside = blockDim.x / WARP / LINEAR_WARPS;
    for (uint32_t first = 0; first < segments; first += beside) {
        float sum[TILES][4];
#pragma unroll
        for (int i = 0; i < TILES; i++)
#pragma unroll
            for (int j = 0; j < 4; j++) sum[i][j] = 0;
        if (mine < beside && first + mine < segments)
            exl3_segment<TILES>(p.w, x, first_row, count, block * LINEAR_WARPS + tile, first + mine,
                                sum);
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
    for (uint32_t row = warp; row < count; row += blockDim.x / WARP) {
        float v[EXL3_LANE_CHANNELS];
#pragma unroll
        for (int j = 0; j < EXL3_LANE_CHANNELS; j++)
            v[j] = total[row][threadIdx.x % WARP * EXL3_LANE_CHANNELS + j];
        exl3_finish_row(p, v, block * EXL3_BLOCK, y + (uint64_t)(first_row + row) * p.w.rows);
    }
}
