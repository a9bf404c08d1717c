/* q4: matrices of drafters in 4 bits (q4.h): q4_pack makes them, q4_8 and q4_32 multiply up to 8 or 32 rows a block.
 *
 * Order   a weight is code * scale + bias, rounded to bf16, a row's value too; a group of 64 is four tensor-core steps, lane c of a quad
 *         having codes 16 c + 4 s .. + 3 in step s. Warp w of a block chains groups w, w + 8, ..; the warps add in order. A row's bits
 *         depend on no other row.
 * Cost    few rows: the bytes of the codes. */
#include "kernels/draft/draft_where.cuh"
#include "kernels/draft/q4_linear.h"
#include "kernels/draft/q4_pack.h"

enum { STEPS = 4, LANE_CODES = Q4_GROUP / STEPS };

// Grid: rows. A warp a group at a time.
extern "C" __global__ void __launch_bounds__(DRAFT_THREADS) q4_pack(const struct q4_pack_args a) {
    uint32_t lane = threadIdx.x % WARP, groups = a.to.cols / Q4_GROUP;
    uint64_t row = blockIdx.x;
    device_wait_prior();
    device_let_next();
    for (uint32_t g = threadIdx.x / WARP; g < groups; g += DRAFT_THREADS / WARP) {
        uint64_t at = row * a.to.cols + g * Q4_GROUP + 2 * lane;
        const void *from = device_ptr<const void>(a.from.data);
        float x = device_load(from, at, a.from.dtype), y = device_load(from, at + 1, a.from.dtype);
        float hi = device_warp_max(x > y ? x : y), lo = -device_warp_max(x < y ? -x : -y);
        uint16_t scale_bits = arith_to_bf16((hi - lo) / 15.0f), bias_bits = arith_to_bf16(lo);
        float scale = arith_from_bf16(scale_bits), bias = arith_from_bf16(bias_bits);
        uint32_t code[2];
        const float w[2] = {x, y};
#pragma unroll
        for (int i = 0; i < 2; i++) {
            float q = scale > 0 ? floorf((w[i] - bias) / scale + 0.5f) : 0.0f;
            code[i] = q < 0 ? 0 : q > 15 ? 15 : (uint32_t)q;
        }
        device_ptr<uint8_t>(a.to.codes)[at / 2] = (uint8_t)(code[0] | code[1] << 4);
        if (lane == 0)
            device_ptr<uint32_t>(a.to.factors)[row * groups + g] = scale_bits | (uint32_t)bias_bits
                                                                                    << 16;
    }
}

// Two neighbouring codes from bit `shift` on, as bf16.
DEVICE_FN uint32_t decode(uint32_t codes, int shift, float scale, float bias) {
    float low = (float)(codes >> shift & 15), high = (float)(codes >> (shift + 4) & 15);
    return device_pack<DTYPE_BF16>(low * scale + bias, high * scale + bias);
}

struct outputs { // of one row of weights: a group's codes of the lane, and its factors
    const uint2 *codes;
    const uint32_t *factors;
    bool have;
};

DEVICE_FN struct outputs outputs_of(const struct q4 &w, uint32_t n) {
    uint32_t c = threadIdx.x % 4;
    return {device_ptr<const uint2>(w.codes) + (uint64_t)n * (w.cols / Q4_GROUP) * STEPS + c,
            device_ptr<const uint32_t>(w.factors) + (uint64_t)n * (w.cols / Q4_GROUP), n < w.rows};
}

template <int TILES>
DEVICE_FN void add_group(const struct q4_linear_args &a, const struct outputs o[2], uint32_t group,
                         uint32_t first, uint32_t cols, float sum[TILES][4]) {
    uint32_t g = threadIdx.x % WARP / 4, c = threadIdx.x % 4;
    uint2 code[2];
    float scale[2], bias[2];
#pragma unroll
    for (int i = 0; i < 2; i++) {
        code[i] = o[i].have ? o[i].codes[(uint64_t)group * STEPS] : make_uint2(0, 0);
        uint32_t f = o[i].have ? o[i].factors[group] : 0;
        scale[i] = arith_from_bf16((uint16_t)f);
        bias[i] = arith_from_bf16((uint16_t)(f >> 16));
    }
#pragma unroll
    for (int s = 0; s < STEPS; s++) {
        uint32_t w[4];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            uint32_t bits = s < 2 ? code[i % 2].x : code[i % 2].y;
            w[i] = decode(bits, s % 2 * 16 + i / 2 * 8, scale[i % 2], bias[i % 2]);
        }
#pragma unroll
        for (int t = 0; t < TILES; t++) {
            uint32_t row = first + t * 8 + g, b[2] = {0, 0};
            if (row < a.rows) {
                float4 x = *reinterpret_cast<const float4 *>(
                    device_ptr<const float>(a.x) + (uint64_t)row * cols + group * Q4_GROUP +
                    c * LANE_CODES + 4 * s);
                b[0] = device_pack<DTYPE_BF16>(x.x, x.y);
                b[1] = device_pack<DTYPE_BF16>(x.z, x.w);
            }
            device_mma<DTYPE_BF16>(sum[t], w, b);
        }
    }
}

// Grid: tiles of outputs of all parts, rows in TILES * 8.
template <int TILES> DEVICE_FN void run(const struct q4_linear_args &a) {
    __shared__ float total[TILES * 8][Q4_TILE];
    uint32_t tile = blockIdx.x, i = 0, g = threadIdx.x % WARP / 4, c = threadIdx.x % 4;
    uint32_t warp = threadIdx.x / WARP, first = blockIdx.y * TILES * 8;
    while (tile >= (a.parts[i].w.rows + Q4_TILE - 1) / Q4_TILE)
        tile -= (a.parts[i++].w.rows + Q4_TILE - 1) / Q4_TILE;
    const struct q4_linear_part &p = a.parts[i];
    const struct outputs o[2] = {outputs_of(p.w, tile * Q4_TILE + g),
                                 outputs_of(p.w, tile * Q4_TILE + g + 8)};
    float sum[TILES][4];
#pragma unroll
    for (int t = 0; t < TILES; t++)
#pragma unroll
        for (int j = 0; j < 4; j++) sum[t][j] = 0;
    device_wait_prior();
    device_let_next();
    for (uint32_t group = warp; group < p.w.cols / Q4_GROUP; group += Q4_WARPS)
        add_group<TILES>(a, o, group, first, p.w.cols, sum);
    for (uint32_t turn = 0; turn < Q4_WARPS; turn++) {
        if (turn == warp)
#pragma unroll
            for (int t = 0; t < TILES; t++)
#pragma unroll
                for (int j = 0; j < 4; j++) {
                    float *to = &total[t * 8 + 2 * c + j % 2][g + j / 2 * 8];
                    *to = turn ? *to + sum[t][j] : sum[t][j];
                }
        __syncthreads();
    }
    for (uint32_t k = threadIdx.x; k < TILES * 8 * Q4_TILE; k += Q4_WARPS * WARP) {
        uint32_t row = first + k / Q4_TILE, n = tile * Q4_TILE + k % Q4_TILE;
        if (row >= a.rows || n >= p.w.rows) continue;
        float *y = device_ptr<float>(p.y) + (uint64_t)row * p.w.rows + n,
              v = total[k / Q4_TILE][k % Q4_TILE];
        *y = p.add ? v + *y : v;
    }
}

extern "C" __global__ void __launch_bounds__(Q4_WARPS *WARP) q4_8(const struct q4_linear_args a) {
    run<1>(a);
}

extern "C" __global__ void __launch_bounds__(Q4_WARPS *WARP) q4_32(const struct q4_linear_args a) {
    run<4>(a);
}
