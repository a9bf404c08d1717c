/* linear: see linear.h and linear_order.h. The plain parts of a call; the others have kernels of their own. A launch takes the parts
 * of one type: their outputs stand in a row, one part's after the other's.
 *
 *   linear_round   the rows as the weights' type
 *   linear_few     up to eight rows: linear_stream.cuh. Units share the outputs evenly.
 *   linear_wide    more rows: linear_wide.cuh. A block has a band of up to 64 outputs a group of warps, and up to 16, 32, 64, 128 or
 *                  192 rows; the sum of the segments so far stays in registers. Where bands are few, blocks share the segments, and
 *                  linear_add adds their sums.
 *   linear_f32     fp32 weights
 *
 * Equals  linear_ref.c, bit for bit, whatever the kernel.
 * Cost    up to some 128 rows the weights' bytes, read once; then the tensor cores. */
#include "kernels/linear/linear_params.h"
#include "kernels/linear/linear_stream.cuh"
#include "kernels/linear/linear_wide.cuh"

// The parts of one type as one matrix.
template <enum dtype D> struct parts_of {
    const linear_args &a;

    __device__ __forceinline__ bool mine(uint32_t i) const {
        return i < a.parts_count && !a.parts[i].w.exl3.half_bits && a.parts[i].w.dtype == D;
    }

    // The part of an output, whose number in it goes to *n.
    __device__ __forceinline__ uint32_t find(uint32_t *n) const {
        uint32_t ret = 0;
#pragma unroll
        for (uint32_t i = 0; i < LINEAR_PARTS_MAX; i++) {
            if (!mine(i)) continue;
            ret = i;
            if (*n < a.parts[i].w.rows) break;
            *n -= a.parts[i].w.rows;
        }
        return ret;
    }

    __device__ __forceinline__ const uint16_t *row(uint32_t n) const {
        const linear_part &p = a.parts[find(&n)];
        return device_ptr<const uint16_t>(p.w.data) + (uint64_t)n * p.w.cols;
    }

    __device__ __forceinline__ bool quick() const {
        bool ret = true;
#pragma unroll
        for (uint32_t i = 0; i < LINEAR_PARTS_MAX; i++)
            ret = ret && (!mine(i) || stream_quick(a.parts[i].w));
        return ret;
    }

    __device__ __forceinline__ void store(uint32_t row, uint32_t n, float v) const {
        const linear_part &p = a.parts[find(&n)];
        float *y = device_ptr<float>(p.y) + (uint64_t)row * p.w.rows + n;
        *y = p.add ? v + __ldcg(y) : v;
    }
};

template <enum dtype D> struct few_source {
    parts_of<D> parts;
    uint32_t cols;
    bool quick;

    __device__ __forceinline__ const uint16_t *row(uint32_t n) const { return parts.row(n); }
};

extern __shared__ __align__(1024) unsigned char shared[];

DEVICE_FN uint32_t padded_of(const struct linear_params &p) {
    return (p.a.parts[0].w.cols + STREAM_SPAN - 1) / STREAM_SPAN * STREAM_SPAN;
}

template <enum dtype D, int STAGES> DEVICE_FN void few(const struct linear_params &p) {
    enum { PIECES = LINEAR_FEW_PIECES };
    __shared__ float part[2 * LINEAR_FEW_WARPS][8][LINEAR_TILE];
    device_let_next();
    uint32_t cols = p.a.parts[0].w.cols, segments = linear_segments(cols);
    uint32_t warp = threadIdx.x / WARP, beside = LINEAR_FEW_WARPS / segments;
    uint32_t unit = warp / segments, units = gridDim.x * beside, at = blockIdx.x * beside + unit;
    struct stream_run run =
        stream_run_of<PIECES>((uint32_t)((uint64_t)p.outputs * at / units),
                              (uint32_t)((uint64_t)p.outputs * (at + 1) / units));
    parts_of<D> parts = {p.a};
    few_source<D> source = {parts, cols, parts.quick()};
    unsigned char *x =
        shared + LINEAR_FEW_WARPS * STAGES * PIECES * 16 + unit * p.a.rows * padded_of(p) * 2;
    auto fill = [&](uint32_t from, uint32_t to) {
        device_wait_prior();
        stream_rounded(x, device_ptr<const unsigned char>(p.rounded), p.a.rows, from, to);
    };
    stream_unit<D, PIECES, STAGES>(
        source, parts, run, p.a.rows, segments, warp % segments, 1 + unit, stream_shared(x),
        stream_shared(shared) + warp * STAGES * PIECES * 16, part + unit * 2 * segments, fill);
}

// Grid: channels / (4 threads), rows.
template <enum dtype D> DEVICE_FN void round_rows(const struct linear_params &p) {
    device_let_next();
    device_wait_prior();
    uint32_t cols = p.a.parts[0].w.cols, padded = padded_of(p);
    uint32_t k = (blockIdx.x * LINEAR_THREADS + threadIdx.x) * 4;
    if (k >= padded) return;
    float4 v = stream_quad(device_ptr<const float>(p.a.x) + (uint64_t)blockIdx.y * cols, k, cols,
                           cols % 4 == 0 && p.a.x % 16 == 0);
    unsigned char *to =
        device_ptr<unsigned char>(p.rounded) + stream_at(blockIdx.y, p.a.rows, k) + k % 8 * 2;
    *reinterpret_cast<uint2 *>(to) = make_uint2(device_pack<D>(v.x, v.y), device_pack<D>(v.z, v.w));
}

// Grid: rows / N, bands of p.per outputs, the segments' sharing.
template <enum dtype D, int N, int STAGES> DEVICE_FN void wide(const struct linear_params &p) {
    device_let_next();
    uint32_t cols = p.a.parts[0].w.cols, first = blockIdx.y * p.per, row_first = blockIdx.x * N;
    uint32_t left = p.outputs - first, rows_left = p.a.rows - row_first;
    parts_of<D> parts = {p.a};
    few_source<D> source = {parts, cols, parts.quick()};
    uint32_t per = linear_segments(cols) / p.splits;
    struct wide_band band = {
        .first = first,
        .count = left < p.per ? left : p.per,
        .lines = (p.per + 7) / 8 * 8,
        .x = device_ptr<const unsigned char>(p.rounded) + (uint64_t)row_first * WIDE_LINE,
        .all_rows = p.a.rows,
        .rows = rows_left < N ? rows_left : N,
        .segment = blockIdx.z * per,
        .segment_end = (blockIdx.z + 1) * per,
    };
    struct wide_ring ring = wide_ring_of<N, STAGES>(stream_shared(shared), band.lines);
    auto before = []() { device_wait_prior(); };
    auto store_sums = [&](uint32_t segment, float(*sum)[4]) {
        if (p.splits == 1) return;
        float *to = device_ptr<float>(p.sums) +
                    ((uint64_t)segment * p.a.rows + row_first) * p.outputs + first;
        wide_each<N>(band, [&](int i, int j, uint32_t row, uint32_t n) {
            to[(uint64_t)row * p.outputs + n] = sum[i][j];
        });
    };
    float total[N / 8][4];
    wide_product<D, N, STAGES>(source, band, ring, total, before, store_sums);
    if (p.splits > 1) return;
    uint32_t mine = threadIdx.x / WARP * LINEAR_TILE + threadIdx.x % WARP / 4;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        uint32_t n = mine + h * 8;
        if (n >= band.count) continue;
        n += first;
        const linear_part &part = p.a.parts[parts.find(&n)];
        float *y = device_ptr<float>(part.y) + (uint64_t)row_first * part.w.rows + n;
#pragma unroll
        for (int i = 0; i < N / 8; i++)
#pragma unroll
            for (int j = 0; j < 2; j++) {
                uint32_t row = i * 8 + threadIdx.x % 4 * 2 + j;
                if (row >= band.rows) continue;
                float *to_y = y + (uint64_t)row * part.w.rows;
                float v = total[i][h * 2 + j];
                *to_y = part.add ? v + __ldcg(to_y) : v;
            }
    }
}

// Grid: outputs / LINEAR_THREADS, rows.
template <enum dtype D> DEVICE_FN void add_sums(const struct linear_params &p) {
    device_let_next();
    device_wait_prior();
    uint32_t n = blockIdx.x * LINEAR_THREADS + threadIdx.x;
    uint32_t segments = linear_segments(p.a.parts[0].w.cols);
    if (n >= p.outputs) return;
    const float *sums = device_ptr<const float>(p.sums) + (uint64_t)blockIdx.y * p.outputs + n;
    float v = __ldcg(sums);
    for (uint32_t s = 1; s < segments; s++)
        v = v + __ldcg(sums + (uint64_t)s * p.a.rows * p.outputs);
    parts_of<D>{p.a}.store(blockIdx.y, n, v);
}

#define LINEAR_KERNEL(name, threads, blocks, call)                                                 \
    extern "C" __global__ void __launch_bounds__(threads, blocks)                                  \
        name(const struct linear_params p) {                                                       \
        call(p);                                                                                   \
    }
#define LINEAR_KERNELS(suffix, d)                                                                  \
    LINEAR_KERNEL(linear_few_8_##suffix, LINEAR_FEW_WARPS *WARP, 1, (few<d, 8>))                   \
    LINEAR_KERNEL(linear_few_5_##suffix, LINEAR_FEW_WARPS *WARP, 2, (few<d, 5>))                   \
    LINEAR_KERNEL(linear_few_4_##suffix, LINEAR_FEW_WARPS *WARP, 2, (few<d, 4>))                   \
    LINEAR_KERNEL(linear_few_3_##suffix, LINEAR_FEW_WARPS *WARP, 2, (few<d, 3>))                   \
    LINEAR_KERNEL(linear_round_##suffix, LINEAR_THREADS, 1, round_rows<d>)                         \
    LINEAR_KERNEL(linear_wide_16_##suffix, 3 * WIDE_GROUP, 1, (wide<d, 16, 10>))                   \
    LINEAR_KERNEL(linear_wide_32_##suffix, 3 * WIDE_GROUP, 1, (wide<d, 32, 9>))                    \
    LINEAR_KERNEL(linear_wide_64_##suffix, 3 * WIDE_GROUP, 1, (wide<d, 64, 8>))                    \
    LINEAR_KERNEL(linear_wide_128_##suffix, 3 * WIDE_GROUP, 1, (wide<d, 128, 6>))                  \
    LINEAR_KERNEL(linear_wide_192_##suffix, 2 * WIDE_GROUP, 1, (wide<d, 192, 5>))                  \
    LINEAR_KERNEL(linear_add_##suffix, LINEAR_THREADS, 1, add_sums<d>)
LINEAR_KERNELS(bf16, DTYPE_BF16)
LINEAR_KERNELS(f16, DTYPE_F16)

// A warp is an output: lane l fuses x[l] w[l], x[l + 32] w[l + 32], .. into its sum; lanes add by xor 16, 8, 4, 2, 1. Grid: outputs /
// warps, rows.
extern "C" __global__ void __launch_bounds__(LINEAR_FEW_WARPS *WARP)
    linear_f32(const struct linear_params p) {
    device_let_next();
    device_wait_prior();
    uint32_t n = blockIdx.x * LINEAR_FEW_WARPS + threadIdx.x / WARP;
    if (n >= p.outputs) return;
    parts_of<DTYPE_F32> parts = {p.a};
    uint32_t local = n, cols = p.a.parts[0].w.cols;
    const linear_part &part = p.a.parts[parts.find(&local)];
    const float *w = device_ptr<const float>(part.w.data) + (uint64_t)local * cols;
    const float *x = device_ptr<const float>(p.a.x) + (uint64_t)blockIdx.y * cols;
    float sum = 0;
    for (uint32_t k = threadIdx.x % WARP; k < cols; k += WARP) sum = fmaf(__ldcg(x + k), w[k], sum);
    sum = device_warp_sum(sum);
    if (threadIdx.x % WARP == 0) parts.store(blockIdx.y, n, sum);
}
