/* linear: see linear.h and linear_order.h. The plain parts of a call; exl3.cu has the others. A launch takes the parts of one type:
 * their outputs stand in a row, one part's after the other's.
 *
 *   linear_few     up to eight rows: linear_stream.cuh. Units share the outputs evenly.
 *   linear_round   the rows as the weights' type, for the kernels below
 *   linear_band    up to 64 rows. A block has a band of outputs and all rows, a warp sixteen of the outputs. Where the outputs are
 *                  few, blocks share the segments, and linear_add adds their sums.
 *   linear_tile    more rows: 128 outputs times 128 rows; the sum of the segments so far stays in registers
 *   linear_f32     fp32 weights
 *
 * Equals  linear_ref.c, bit for bit, whatever the kernel.
 * Cost    linear_few, linear_band: the weights' bytes. */
#include "kernels/linear/linear_params.h"
#include "kernels/linear/linear_stream.cuh"

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
        *y = p.add ? v + *y : v;
    }
};

template <enum dtype D> struct few_source {
    parts_of<D> parts;
    uint32_t cols;
    bool quick;

    __device__ __forceinline__ const uint16_t *row(uint32_t n) const { return parts.row(n); }
};

extern __shared__ __align__(16) unsigned char shared[];

template <enum dtype D, int PIECES, int STAGES> DEVICE_FN void few(const struct linear_params &p) {
    __shared__ float part[2 * LINEAR_FEW_WARPS][8][LINEAR_TILE];
    device_let_next();
    uint32_t cols = p.a.parts[0].w.cols, segments = linear_segments(cols);
    uint32_t warp = threadIdx.x / WARP, beside = LINEAR_FEW_WARPS / segments,
             unit = warp / segments;
    uint32_t units = gridDim.x * beside, at = blockIdx.x * beside + unit;
    struct stream_run run =
        stream_run_of<PIECES>((uint32_t)((uint64_t)p.outputs * at / units),
                              (uint32_t)((uint64_t)p.outputs * (at + 1) / units));
    parts_of<D> parts = {p.a};
    few_source<D> source = {parts, cols, parts.quick()};
    unsigned char *x = shared + LINEAR_FEW_WARPS * STAGES * PIECES * 16;
    stream_unit<D, PIECES, STAGES>(
        source, parts, run, p.a.rows, segments, warp % segments, 1 + unit, stream_shared(x),
        stream_shared(shared) + warp * STAGES * PIECES * 16, part + unit * 2 * segments, [&]() {
            device_wait_prior();
            stream_rows<D>(x, device_ptr<const float>(p.a.x), p.a.rows, cols);
            __syncthreads();
        });
}

// Grid: channels / (4 threads), rows.
template <enum dtype D> DEVICE_FN void round_rows(const struct linear_params &p) {
    device_let_next();
    device_wait_prior();
    uint32_t cols = p.a.parts[0].w.cols,
             padded = (cols + LINEAR_BAND_K - 1) / LINEAR_BAND_K * LINEAR_BAND_K;
    uint32_t k = (blockIdx.x * blockDim.x + threadIdx.x) * 4;
    const float *x = device_ptr<const float>(p.a.x) + (uint64_t)blockIdx.y * cols;
    if (k >= padded) return;
    float4 v;
    if (cols % 4 == 0 && p.a.x % 16 == 0)
        v = k < cols ? *reinterpret_cast<const float4 *>(x + k) : make_float4(0, 0, 0, 0);
    else
        v = make_float4(k < cols ? x[k] : 0, k + 1 < cols ? x[k + 1] : 0,
                        k + 2 < cols ? x[k + 2] : 0, k + 3 < cols ? x[k + 3] : 0);
    *reinterpret_cast<uint2 *>(device_ptr<uint16_t>(p.rounded) + (uint64_t)blockIdx.y * padded +
                               k) = make_uint2(device_pack<D>(v.x, v.y), device_pack<D>(v.z, v.w));
}

enum { LINE_BYTES = LINEAR_BAND_K * 2 }; // of a row in a stage

// Piece p of row r of a stage.
DEVICE_FN uint32_t piece_at(uint32_t r, uint32_t p) {
    return r * LINE_BYTES + (p ^ (r & 7)) * 16;
}

// A stage's part of the rounded rows: first .. first + count - 1, from column k on.
DEVICE_FN void copy_rounded(uint32_t to, const uint16_t *rounded, uint32_t padded, uint32_t count,
                            uint32_t k) {
    for (uint32_t i = threadIdx.x; i < count * 8; i += blockDim.x)
        stream_piece(to + piece_at(i / 8, i % 8), rounded + (uint64_t)(i / 8) * padded,
                     k + i % 8 * 8, padded, true);
}

/* Grid: bands of p.per outputs, the segments' sharing. A warp has sixteen outputs and all rows. */
template <enum dtype D, int TILES, int STAGES> DEVICE_FN void band(const struct linear_params &p) {
    device_let_next();
    uint32_t cols = p.a.parts[0].w.cols,
             padded = (cols + LINEAR_BAND_K - 1) / LINEAR_BAND_K * LINEAR_BAND_K;
    uint32_t lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, g = lane / 4, c = lane % 4;
    uint32_t first = blockIdx.x * p.per, high = blockDim.x / WARP * LINEAR_TILE;
    uint32_t count = p.outputs - first < p.per ? p.outputs - first : p.per;
    uint32_t stage_bytes = (high + TILES * 8) * LINE_BYTES, base = stream_shared(shared);
    uint32_t segments = linear_segments(cols), steps = linear_segment_steps(cols);
    uint32_t segment = segments / p.splits * blockIdx.y,
             segment_end = segment + segments / p.splits;
    uint32_t from = segment * steps * LINEAR_STEP, to = segment_end * steps * LINEAR_STEP;
    to = to < padded ? to : padded;
    parts_of<D> parts = {p.a};
    bool quick = parts.quick();
    // This thread's weights: rows row0, row0 + blockDim / 8, ..: at most four.
    uint32_t piece = threadIdx.x % 8, row0 = threadIdx.x / 8, step_rows = blockDim.x / 8;
    const uint16_t *rows[4];
#pragma unroll
    for (int j = 0; j < 4; j++) {
        uint32_t r = row0 + j * step_rows;
        rows[j] = parts.row(first + (r < count ? r : 0));
    }
    const uint16_t *rounded = device_ptr<const uint16_t>(p.rounded);
    auto copy_weights = [&](uint32_t stage, uint32_t k) {
        uint32_t at = base + stage * stage_bytes;
#pragma unroll
        for (int j = 0; j < 4; j++) {
            uint32_t r = row0 + j * step_rows;
            if (r < count)
                stream_piece(at + piece_at(r, piece), rows[j], k + piece * 8, cols, quick);
        }
    };
    auto copy_rows = [&](uint32_t stage, uint32_t k) {
        copy_rounded(base + stage * stage_bytes + high * LINE_BYTES, rounded, padded, p.a.rows, k);
    };
    for (uint32_t i = 0; i < STAGES - 1; i++)
        if (from + i * LINEAR_BAND_K < to) copy_weights(i, from + i * LINEAR_BAND_K);
    device_wait_prior();
    for (uint32_t i = 0; i < STAGES - 1; i++) {
        if (from + i * LINEAR_BAND_K < to) copy_rows(i, from + i * LINEAR_BAND_K);
        stream_commit();
    }
    float sum[TILES][4], total[TILES][4];
#pragma unroll
    for (int i = 0; i < TILES; i++)
#pragma unroll
        for (int j = 0; j < 4; j++) sum[i][j] = total[i][j] = 0;
    uint32_t stage = 0, next = STAGES - 1, end = from + steps * LINEAR_STEP;
    uint32_t a_base = warp * LINEAR_TILE + (lane & 15), b_base = high + (lane & 7) + lane / 16 * 8;
    bool many = p.splits > 1;
    for (uint32_t k = from; k < to; k += LINEAR_BAND_K) {
        stream_wait<STAGES - 2>();
        __syncthreads();
        if (k + (STAGES - 1) * LINEAR_BAND_K < to) {
            copy_weights(next, k + (STAGES - 1) * LINEAR_BAND_K);
            copy_rows(next, k + (STAGES - 1) * LINEAR_BAND_K);
        }
        stream_commit();
        uint32_t at = base + stage * stage_bytes;
#pragma unroll
        for (int s = 0; s < LINEAR_BAND_K / LINEAR_STEP; s++) {
            uint32_t a[4];
            stream_ldmatrix(a, at + piece_at(a_base, 2 * s + lane / 16));
#pragma unroll
            for (int i = 0; i < TILES; i += 2) {
                uint32_t b[4];
                stream_ldmatrix(b, at + piece_at(b_base + i * 8, 2 * s + lane / 8 % 2));
                device_mma<D>(sum[i], a, b);
                device_mma<D>(sum[i + 1], a, b + 2);
            }
        }
        stage = stage + 1 == STAGES ? 0 : stage + 1;
        next = next + 1 == STAGES ? 0 : next + 1;
        if (k + LINEAR_BAND_K < end && k + LINEAR_BAND_K < to) continue;
#pragma unroll
        for (int i = 0; i < TILES; i++)
#pragma unroll
            for (int j = 0; j < 4; j++) {
                uint32_t row = i * 8 + 2 * c + j % 2, n = warp * LINEAR_TILE + g + j / 2 * 8;
                if (many && row < p.a.rows && n < count)
                    device_ptr<float>(
                        p.sums)[((uint64_t)segment * p.a.rows + row) * p.outputs + first + n] =
                        sum[i][j];
                total[i][j] = end == steps * LINEAR_STEP ? sum[i][j] : total[i][j] + sum[i][j];
                sum[i][j] = 0;
            }
        segment++;
        end += steps * LINEAR_STEP;
    }
    if (many) return;
#pragma unroll
    for (int i = 0; i < TILES; i++)
#pragma unroll
        for (int j = 0; j < 4; j++) {
            uint32_t row = i * 8 + 2 * c + j % 2, n = warp * LINEAR_TILE + g + j / 2 * 8;
            if (row < p.a.rows && n < count) parts.store(row, first + n, total[i][j]);
        }
}

// Grid: outputs / LINEAR_SUM_THREADS, rows.
template <enum dtype D> DEVICE_FN void add_sums(const struct linear_params &p) {
    device_let_next();
    device_wait_prior();
    uint32_t n = blockIdx.x * LINEAR_SUM_THREADS + threadIdx.x;
    uint32_t segments = linear_segments(p.a.parts[0].w.cols);
    if (n >= p.outputs) return;
    const float *sums = device_ptr<const float>(p.sums) + (uint64_t)blockIdx.y * p.outputs + n;
    float v = *sums;
    for (uint32_t s = 1; s < segments; s++) v = v + sums[(uint64_t)s * p.a.rows * p.outputs];
    parts_of<D>{p.a}.store(blockIdx.y, n, v);
}

/* Grid: tiles of outputs, tiles of rows. Warps: 2 of 64 outputs by 4 of 32 rows. */
template <enum dtype D, int STAGES> DEVICE_FN void tile(const struct linear_params &p) {
    enum { M = 4, N = 4, SPAN = LINEAR_BAND_K };
    const uint32_t stage_bytes = (LINEAR_TILE_OUTPUTS + LINEAR_TILE_ROWS) * LINE_BYTES;
    device_let_next();
    uint32_t cols = p.a.parts[0].w.cols, padded = (cols + SPAN - 1) / SPAN * SPAN;
    uint32_t lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, g = lane / 4, c = lane % 4;
    uint32_t first = blockIdx.y * LINEAR_TILE_OUTPUTS, row_first = blockIdx.x * LINEAR_TILE_ROWS;
    uint32_t count =
        p.outputs - first < LINEAR_TILE_OUTPUTS ? p.outputs - first : LINEAR_TILE_OUTPUTS;
    uint32_t rows_count =
        p.a.rows - row_first < LINEAR_TILE_ROWS ? p.a.rows - row_first : LINEAR_TILE_ROWS;
    uint32_t base = stream_shared(shared), steps = linear_segment_steps(cols);
    parts_of<D> parts = {p.a};
    bool quick = parts.quick();
    uint32_t piece = threadIdx.x % 8, row0 = threadIdx.x / 8;
    const uint16_t *rows[4];
#pragma unroll
    for (int j = 0; j < 4; j++) {
        uint32_t r = row0 + j * 32;
        rows[j] = parts.row(first + (r < count ? r : 0));
    }
    const uint16_t *rounded =
        device_ptr<const uint16_t>(p.rounded) + (uint64_t)(row_first + row0) * padded;
    auto copy = [&](uint32_t stage, uint32_t k) {
        uint32_t at = base + stage * stage_bytes;
#pragma unroll
        for (int j = 0; j < 4; j++) {
            uint32_t r = row0 + j * 32;
            if (r < count)
                stream_piece(at + piece_at(r, piece), rows[j], k + piece * 8, cols, quick);
            if (r < rows_count)
                stream_piece(at + piece_at(LINEAR_TILE_OUTPUTS + r, piece),
                             rounded + (uint64_t)j * 32 * padded, k + piece * 8, padded, true);
        }
    };
    device_wait_prior();
    for (uint32_t i = 0; i < STAGES - 1; i++) {
        if (i * SPAN < padded) copy(i, i * SPAN);
        stream_commit();
    }
    float sum[M][N][4], total[M][N][4];
#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
        for (int n = 0; n < N; n++)
#pragma unroll
            for (int j = 0; j < 4; j++) sum[m][n][j] = 0;
    uint32_t stage = 0, next = STAGES - 1, end = steps * LINEAR_STEP;
    uint32_t a_base = warp % 2 * 64 + (lane & 15);
    uint32_t b_base = LINEAR_TILE_OUTPUTS + warp / 2 * 32 + (lane & 7) + lane / 16 * 8;
    for (uint32_t k = 0; k < padded; k += SPAN) {
        stream_wait<STAGES - 2>();
        __syncthreads();
        if (k + (STAGES - 1) * SPAN < padded) copy(next, k + (STAGES - 1) * SPAN);
        stream_commit();
        uint32_t at = base + stage * stage_bytes;
#pragma unroll
        for (int s = 0; s < SPAN / LINEAR_STEP; s++) {
            uint32_t a[M][4], b[N / 2][4];
#pragma unroll
            for (int m = 0; m < M; m++)
                stream_ldmatrix(a[m], at + piece_at(a_base + m * 16, 2 * s + lane / 16));
#pragma unroll
            for (int n = 0; n < N / 2; n++)
                stream_ldmatrix(b[n], at + piece_at(b_base + n * 16, 2 * s + lane / 8 % 2));
#pragma unroll
            for (int m = 0; m < M; m++)
#pragma unroll
                for (int n = 0; n < N; n++) device_mma<D>(sum[m][n], a[m], b[n / 2] + n % 2 * 2);
        }
        stage = stage + 1 == STAGES ? 0 : stage + 1;
        next = next + 1 == STAGES ? 0 : next + 1;
        if (k + SPAN < end && k + SPAN < padded) continue;
#pragma unroll
        for (int m = 0; m < M; m++)
#pragma unroll
            for (int n = 0; n < N; n++)
#pragma unroll
                for (int j = 0; j < 4; j++) {
                    total[m][n][j] =
                        end == steps * LINEAR_STEP ? sum[m][n][j] : total[m][n][j] + sum[m][n][j];
                    sum[m][n][j] = 0;
                }
        end += steps * LINEAR_STEP;
    }
#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
        for (int j = 0; j < 4; j++) {
            uint32_t n = warp % 2 * 64 + m * 16 + g + j / 2 * 8;
            if (n >= count) continue;
            uint32_t local = first + n;
            const linear_part &part = p.a.parts[parts.find(&local)];
            float *y = device_ptr<float>(part.y) + local;
#pragma unroll
            for (int i = 0; i < N; i++) {
                uint32_t row = warp / 2 * 32 + i * 8 + 2 * c + j % 2;
                if (row >= rows_count) continue;
                float *to = y + (uint64_t)(row_first + row) * part.w.rows;
                *to = part.add ? total[m][i][j] + *to : total[m][i][j];
            }
        }
}

#define LINEAR_KERNEL(name, threads, call)                                                         \
    extern "C" __global__ void __launch_bounds__(threads, 1) name(const struct linear_params p) {  \
        call(p);                                                                                   \
    }
#define LINEAR_KERNELS(suffix, d)                                                                  \
    LINEAR_KERNEL(linear_few_##suffix, LINEAR_FEW_WARPS *WARP,                                     \
                  (few<d, LINEAR_FEW_PIECES, LINEAR_FEW_STAGES>))                                  \
    LINEAR_KERNEL(linear_round_##suffix, LINEAR_SUM_THREADS, round_rows<d>)                        \
    LINEAR_KERNEL(linear_band_16_##suffix, LINEAR_BAND_WARPS_MAX *WARP,                            \
                  (band<d, 2, LINEAR_BAND_STAGES>))                                                \
    LINEAR_KERNEL(linear_band_32_##suffix, LINEAR_BAND_WARPS_MAX *WARP,                            \
                  (band<d, 4, LINEAR_BAND_STAGES>))                                                \
    LINEAR_KERNEL(linear_band_64_##suffix, LINEAR_BAND_WARPS_MAX *WARP,                            \
                  (band<d, 8, LINEAR_BAND_STAGES>))                                                \
    LINEAR_KERNEL(linear_add_##suffix, LINEAR_SUM_THREADS, add_sums<d>)                            \
    LINEAR_KERNEL(linear_tile_##suffix, LINEAR_TILE_THREADS, (tile<d, LINEAR_TILE_STAGES>))
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
    for (uint32_t k = threadIdx.x % WARP; k < cols; k += WARP) sum = fmaf(x[k], w[k], sum);
    sum = device_warp_sum(sum);
    if (threadIdx.x % WARP == 0) parts.store(blockIdx.y, n, sum);
}
