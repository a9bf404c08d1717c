/* q4: matrices of drafters in 4 bits (q4.h): q4_pack makes them, q4_rows makes rows of what the tensor cores take, and q4_T_M
 * multiplies up to T rows a block by 16 M outputs.
 *
 * Order   a row's value is rounded to bf16. In a group of 64 codes, as the whole numbers 128 + code, are multiplied in four tensor-core steps,
 *         lane c of a quad having codes 16 c + 8 (s / 2) + 2 (s % 2) + {0, 4, 1, 5} in step s, from zero; then the sum is
 *         fused in: scale * the product, then (bias - 128 scale) * the sum of the row's values. Warp w of a block chains groups 2 w, 2 w + 1, 2 w + 16, ..; the warps add in
 *         order. A row's bits depend on no other row.
 * Cost    few rows: the bytes of the codes. The rows pass once a block of outputs, so M is larger where outputs are many. */
#include "kernels/draft/draft_where.cuh"
#include "kernels/draft/q4_pack.h"
#include "kernels/draft/q4_params.h"

enum {
    STEPS = 4,
    LANE_CODES = Q4_GROUP / STEPS,
    ROWS = 8,    // of a tile
    OUTPUTS = 16 // of a step
};

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

// Two neighbours in one register, and what both are as rounded.
DEVICE_FN uint32_t pack_two(float low, float high, float &sum) {
    uint32_t both = device_pack<DTYPE_BF16>(low, high);
    sum = sum + (arith_from_bf16((uint16_t)both) + arith_from_bf16((uint16_t)(both >> 16)));
    return both;
}

// Grid: groups of K in warps, tiles.
extern "C" __global__ void __launch_bounds__(DRAFT_THREADS) q4_rows(const struct q4_params p) {
    uint32_t lane = threadIdx.x % WARP, g = lane / 4, c = lane % 4;
    uint32_t cols = p.a.parts[0].w.cols, groups = cols / Q4_GROUP;
    uint32_t group = (blockIdx.x * DRAFT_THREADS + threadIdx.x) / WARP, row = blockIdx.y * ROWS + g;
    device_wait_prior();
    device_let_next();
    if (group >= groups) return;
    const float4 *x = reinterpret_cast<const float4 *>(
        device_ptr<const float>(p.a.x) + (uint64_t)row * cols + group * Q4_GROUP + c * LANE_CODES);
    uint64_t at = (uint64_t)blockIdx.y * groups + group;
    float sum = 0;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        float4 v = make_float4(0, 0, 0, 0), w = v;
        if (row < p.a.rows) {
            v = x[2 * h];
            w = x[2 * h + 1];
        }
        uint4 to;
        to.x = pack_two(v.x, w.x, sum);
        to.y = pack_two(v.y, w.y, sum);
        to.z = pack_two(v.z, w.z, sum);
        to.w = pack_two(v.w, w.w, sum);
        device_ptr<uint4>(p.values)[(at * 2 + h) * WARP + lane] = to;
    }
    sum = sum + __shfl_xor_sync(0xffffffffu, sum, 1);
    sum = sum + __shfl_xor_sync(0xffffffffu, sum, 2);
    if (c == 0) device_ptr<float>(p.sums)[at * ROWS + g] = sum;
}

struct outputs { // of one row of weights: the lane's codes and the factors, by group
    const uint2 *codes;
    const uint32_t *factors;
    bool have;
};

DEVICE_FN struct outputs outputs_of(const struct q4 &w, uint32_t n) {
    bool have = n < w.rows;
    uint32_t row = have ? n : 0;
    return {device_ptr<const uint2>(w.codes) + (uint64_t)row * (w.cols / LANE_CODES) +
                threadIdx.x % 4,
            device_ptr<const uint32_t>(w.factors) + (uint64_t)row * (w.cols / Q4_GROUP), have};
}

// Codes i and i + 4 of a word, each with 128 added, as bf16: seven bits behind the point of 1, with an exponent of 7.
DEVICE_FN uint32_t decode(uint32_t codes, int i) {
    return (codes >> 4 * i & 0x000f000fu) | 0x43004300u;
}

// What a lane reads of two neighbouring groups: rows lane / 4 of 16 outputs, and 8 more. A load touches a line a row, so that few of them
// are worth more than few bytes.
template <int M> struct pair {
    uint2 codes[2][M][2];
    uint32_t factors[2][M][2];
};

template <int M>
DEVICE_FN void load_pair(const struct outputs o[M][2], uint32_t at, uint32_t groups,
                         struct pair<M> &ret) {
    bool both = at + 1 < groups, even = groups % 2 == 0;
#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const uint32_t *from = o[m][i].factors + at;
            uint2 f = make_uint2(0, 0);
            if (o[m][i].have && even)
                f = *reinterpret_cast<const uint2 *>(from);
            else if (o[m][i].have)
                f = make_uint2(from[0], both ? from[1] : 0);
            ret.codes[0][m][i] = o[m][i].codes[(uint64_t)at * STEPS];
            ret.codes[1][m][i] = o[m][i].codes[(uint64_t)(both ? at + 1 : at) * STEPS];
            ret.factors[0][m][i] = f.x;
            ret.factors[1][m][i] = f.y;
        }
}

template <int T> struct values { // a lane's of the rows
    uint4 x[T][2];
    float2 sums[T]; // of rows 2 c and 2 c + 1
};

template <int T>
DEVICE_FN void load_values(const struct q4_params &p, uint32_t tile, uint32_t groups, uint32_t at,
                           struct values<T> &ret) {
    uint32_t lane = threadIdx.x % WARP;
#pragma unroll
    for (int t = 0; t < T; t++) {
        uint64_t from = (uint64_t)(tile + t) * groups + at;
#pragma unroll
        for (int h = 0; h < 2; h++)
            ret.x[t][h] = device_ptr<const uint4>(p.values)[(from * 2 + h) * WARP + lane];
        ret.sums[t] = device_ptr<const float2>(p.sums)[from * (ROWS / 2) + lane % 4];
    }
}

template <int T, int M>
DEVICE_FN void add_group(const uint2 codes[M][2], const uint32_t factors[M][2],
                         const struct values<T> &v, float sum[M][T][4]) {
#pragma unroll
    for (int m = 0; m < M; m++) {
        float part[T][4];
#pragma unroll
        for (int t = 0; t < T; t++)
#pragma unroll
            for (int j = 0; j < 4; j++) part[t][j] = 0;
#pragma unroll
        for (int s = 0; s < STEPS; s++) {
            uint32_t low = s < 2 ? codes[m][0].x : codes[m][0].y;
            uint32_t high = s < 2 ? codes[m][1].x : codes[m][1].y;
            int i = s % 2 * 2;
            uint32_t a[4] = {decode(low, i), decode(high, i), decode(low, i + 1),
                             decode(high, i + 1)};
#pragma unroll
            for (int t = 0; t < T; t++) {
                const uint4 &x = v.x[t][s / 2];
                uint32_t b[2] = {s % 2 ? x.z : x.x, s % 2 ? x.w : x.y};
                device_mma<DTYPE_BF16>(part[t], a, b);
            }
        }
#pragma unroll
        for (int i = 0; i < 2; i++) {
            float scale = arith_from_bf16((uint16_t)factors[m][i]);
            float bias = fmaf(-128.0f, scale, arith_from_bf16((uint16_t)(factors[m][i] >> 16)));
#pragma unroll
            for (int t = 0; t < T; t++) {
                float *to = &sum[m][t][2 * i], *from = &part[t][2 * i];
                to[0] = fmaf(bias, v.sums[t].x, fmaf(scale, from[0], to[0]));
                to[1] = fmaf(bias, v.sums[t].y, fmaf(scale, from[1], to[1]));
            }
        }
    }
}

// Grid: outputs of all parts in 16 M, rows in 8 T. DEPTH: pairs of groups of a warp on their way.
template <int T, int M, int DEPTH> DEVICE_FN void run(const struct q4_params &p) {
    constexpr uint32_t width = OUTPUTS * M, height = ROWS * T;
    __shared__ float totals[Q4_WARPS][height][width];
    uint32_t tile = blockIdx.x, i = 0, g = threadIdx.x % WARP / 4, c = threadIdx.x % 4;
    uint32_t warp = threadIdx.x / WARP, first = blockIdx.y * T;
    while (tile >= (p.a.parts[i].w.rows + width - 1) / width)
        tile -= (p.a.parts[i++].w.rows + width - 1) / width;
    const struct q4_linear_part &part = p.a.parts[i];
    uint32_t groups = part.w.cols / Q4_GROUP;
    struct outputs o[M][2];
    struct pair<M> w[DEPTH];
    struct values<T> v;
    float sum[M][T][4];
#pragma unroll
    for (int m = 0; m < M; m++) {
        o[m][0] = outputs_of(part.w, tile * width + m * OUTPUTS + g);
        o[m][1] = outputs_of(part.w, tile * width + m * OUTPUTS + g + 8);
#pragma unroll
        for (int t = 0; t < T; t++)
#pragma unroll
            for (int j = 0; j < 4; j++) sum[m][t][j] = 0;
    }
#pragma unroll
    for (int k = 0; k < DEPTH; k++) // weights
        if (2 * (warp + k * Q4_WARPS) < groups)
            load_pair<M>(o, 2 * (warp + k * Q4_WARPS), groups, w[k]);
    device_wait_prior();
    device_let_next();
    for (uint32_t base = 2 * warp; base < groups; base += 2 * DEPTH * Q4_WARPS)
#pragma unroll
        for (int k = 0; k < DEPTH; k++) {
            uint32_t at = base + 2 * k * Q4_WARPS, next = at + 2 * DEPTH * Q4_WARPS;
            if (at >= groups) break;
            load_values<T>(p, first, groups, at, v);
            add_group<T, M>(w[k].codes[0], w[k].factors[0], v, sum);
            if (at + 1 < groups) {
                load_values<T>(p, first, groups, at + 1, v);
                add_group<T, M>(w[k].codes[1], w[k].factors[1], v, sum);
            }
            if (next < groups) load_pair<M>(o, next, groups, w[k]);
        }
#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
        for (int t = 0; t < T; t++)
#pragma unroll
            for (int j = 0; j < 4; j++)
                totals[warp][t * ROWS + 2 * c + j % 2][m * OUTPUTS + g + j / 2 * 8] = sum[m][t][j];
    __syncthreads();
    for (uint32_t k = threadIdx.x; k < height * width; k += Q4_WARPS * WARP) {
        uint32_t row = first * ROWS + k / width, n = tile * width + k % width;
        if (row >= p.a.rows || n >= part.w.rows) continue;
        float *y = device_ptr<float>(part.y) + (uint64_t)row * part.w.rows + n, total = 0;
#pragma unroll
        for (int u = 0; u < Q4_WARPS; u++) {
            float one = totals[u][k / width][k % width];
            total = u ? total + one : one;
        }
        *y = part.add ? total + *y : total;
    }
}

#define Q4_KERNEL(rows_, m_, depth_)                                                               \
    extern "C" __global__ void __launch_bounds__(Q4_WARPS *WARP)                                   \
        q4_##rows_##_##m_(const struct q4_params p) {                                              \
        run<rows_ / ROWS, m_, depth_>(p);                                                          \
    }
Q4_KERNEL(8, 1, 2)
Q4_KERNEL(8, 2, 2)
Q4_KERNEL(16, 1, 2)
Q4_KERNEL(16, 2, 1)
Q4_KERNEL(32, 1, 1)
Q4_KERNEL(32, 2, 1)
