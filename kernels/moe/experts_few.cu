/* experts_few: the routed experts of up to eight rows. See experts.h. Two launches of one kernel, then experts_add:
 *
 *   up     gate and up of all picks. A block has an expert's matrix: EXL3: 128 outputs and a segment of K, whose sums it leaves as they
 *          are; plain: its share of the outputs.
 *   down   adds those sums and finishes gate and up, silu(gate) * up, then down: a block has 128 outputs of an expert (plain: a share),
 *          which experts_add finishes
 *
 * An expert's blocks belong to its first pick; those of other picks end at once. So no sorting is needed.
 * Order   the products' is linear_order.h's.
 * Equals  experts_ref.c, bit for bit. */
#include "kernels/moe/experts_channels.cuh"
#include "kernels/moe/experts_exl3.cuh"
#include "kernels/moe/experts_params.h"

enum { WARPS = EXPERTS_FEW_WARPS, ROWS = EXPERTS_FEW_ROWS, STAGES = EXPERTS_FEW_STAGES };

extern __shared__ __align__(1024) unsigned char shared[];

struct work {
    const experts_few_params &p;
    const struct expert &e;
    struct weight w;
    uint32_t count;        // rows
    const uint32_t *picks; // of the rows, shared
    unsigned char *x;      // the rows, shared

    __device__ __forceinline__ const float *row(uint32_t i) const {
        return device_ptr<const float>(p.a.x) + (uint64_t)(picks[i] / p.a.per_token) * p.a.dim;
    }

    // Sums of a pick's gate (0) or up (1) and a segment.
    __device__ __forceinline__ float *sums(uint32_t up, uint32_t segment, uint32_t pick) const {
        uint64_t all = (uint64_t)p.a.rows * p.a.per_token;
        return device_ptr<float>(p.sums) + ((up * p.segments + segment) * all + pick) * p.a.width;
    }

    __device__ __forceinline__ float *out(uint32_t pick) const {
        return device_ptr<float>(p.out) + (uint64_t)pick * p.a.dim;
    }
};

// Four channels of a row of the product to shared memory, as its weight wants them.
DEVICE_FN void put_channels(const struct work &k, uint32_t row, uint32_t first, float v[4]) {
    uint32_t cols = k.w.cols;
    if (!k.w.exl3.half_bits && k.w.dtype == DTYPE_F32) {
        for (uint32_t j = 0; j < 4 && first + j < cols; j++)
            reinterpret_cast<float *>(k.x)[row * cols + first + j] = v[j];
        return;
    }
    if (first >= (cols + STREAM_SPAN - 1) / STREAM_SPAN * STREAM_SPAN) return;
    *reinterpret_cast<uint2 *>(k.x + stream_at(row, k.count, first) + first % 8 * 2) =
        experts_halves(k.w, first, v);
}

// The lane's four channels of a row's gate or up.
DEVICE_FN void load_channels(const struct work &k, uint32_t up, uint32_t pick, uint32_t first,
                             float v[4]) {
    const struct weight &w = up ? k.e.up : k.e.gate;
    const float *sums = k.sums(up, 0, pick);
#pragma unroll
    for (int j = 0; j < 4; j++) v[j] = first + j < w.rows ? sums[first + j] : 0;
    if (!w.exl3.half_bits) return;
    for (uint32_t s = 1; s < linear_exl3_segments(w.cols); s++) {
        sums = k.sums(up, s, pick) + first;
#pragma unroll
        for (int j = 0; j < 4; j++) v[j] = v[j] + sums[j];
    }
    experts_finish(v, w.exl3, first);
}

// The rows of the product, 128 channels from .. to - 1 of them, by all warps.
DEVICE_FN void put_rows(const struct work &k, uint32_t from, uint32_t to) {
    uint32_t lane = threadIdx.x % WARP;
    for (uint32_t i = threadIdx.x / WARP; i < (to - from) * k.count; i += WARPS) {
        uint32_t row = i % k.count, first = (from + i / k.count) * EXL3_BLOCK + lane * 4;
        float v[4];
        if (k.p.down) {
            float up[4];
            load_channels(k, 0, k.picks[row], first, v);
            load_channels(k, 1, k.picks[row], first, up);
#pragma unroll
            for (int j = 0; j < 4; j++) v[j] = arith_silu(v[j]) * up[j];
        } else {
            float4 in =
                stream_quad(k.row(row), first, k.w.cols, k.w.cols % 4 == 0 && k.p.a.x % 16 == 0);
            v[0] = in.x, v[1] = in.y, v[2] = in.z, v[3] = in.w;
        }
        put_channels(k, row, first, v);
    }
    __syncthreads();
}

// EXL3

DEVICE_FN void run_exl3(const struct work &k) {
    uint32_t warp = threadIdx.x / WARP, g = threadIdx.x % WARP / 4, c = threadIdx.x % 4;
    uint32_t blocks = k.w.rows / EXL3_BLOCK, block = blockIdx.x % blocks;
    uint32_t segments = linear_exl3_segments(k.w.cols), per = linear_exl3_groups(k.w.cols);
    uint32_t groups = k.w.cols / STREAM_SPAN, segment = k.p.down ? 0 : blockIdx.x / blocks;
    uint32_t from = segment * per, to = k.p.down || from + per > groups ? groups : from + per;
    bool idle = k.p.down ? blockIdx.x >= blocks : segment >= segments;
    if (idle) {
        if (k.p.down) device_wait_prior();
        return;
    }
    const unsigned char *slots = shared + warp * EXPERTS_RING_BYTES;
    uint32_t tile = block * WARPS + warp;
    struct experts_ring ring = experts_ring_of(k.w, tile, from, to, stream_shared(slots));
    for (int i = 0; i < EXPERTS_RING - 1; i++) experts_ring_fill(ring);
    if (k.p.down) device_wait_prior();
    put_rows(k, from / 2, (to + 1) / 2);
    uint32_t row = g < k.count ? g : k.count - 1, slot = 0;
    const uint4 *x = reinterpret_cast<const uint4 *>(k.x) + (from * k.count + row) * 8;
    float all[4];
    for (uint32_t at = from; at < to; at += per) {
        uint32_t left = to - at < per ? to - at : per;
        float sum[4];
        experts_chain_of(k.w.exl3, ring, reinterpret_cast<const char *>(slots), slot, left, x, row,
                         k.count * 8, sum);
        x += left * k.count * 8;
#pragma unroll
        for (int j = 0; j < 4; j++) all[j] = at == from ? sum[j] : all[j] + sum[j];
    }
#pragma unroll
    for (int j = 0; j < 4; j++) {
        uint32_t r = 2 * c + j % 2, n = tile * LINEAR_TILE + g + j / 2 * 8;
        if (r >= k.count) continue;
        uint32_t pick = k.picks[r];
        *(k.p.down ? k.out(pick) + n : k.sums(blockIdx.z, segment, pick) + n) = all[j];
    }
}

// Plain

struct plain_source {
    const uint16_t *data;
    uint32_t cols;
    bool quick;

    __device__ __forceinline__ const uint16_t *row(uint32_t n) const {
        return data + (uint64_t)n * cols;
    }
};

struct plain_sink {
    const struct work &k;

    __device__ __forceinline__ void store(uint32_t row, uint32_t n, float v) const {
        uint32_t pick = k.picks[row];
        *(k.p.down ? k.out(pick) + n : k.sums(blockIdx.z, 0, pick) + n) = v;
    }
};

DEVICE_FN void fill_rows(const struct work &k) {
    if (k.p.down) device_wait_prior();
    put_rows(k, 0, (k.w.cols + EXL3_BLOCK - 1) / EXL3_BLOCK);
}

template <enum dtype D>
DEVICE_FN void run_half(const struct work &k, float (*part)[8][LINEAR_TILE]) {
    enum { PIECES = 128 };
    uint32_t segments = linear_segments(k.w.cols), warp = threadIdx.x / WARP,
             beside = WARPS / segments;
    uint32_t unit = warp / segments, units = gridDim.x * beside, at = blockIdx.x * beside + unit;
    struct stream_run run =
        stream_run_of<PIECES>(k.w.rows * at / units, k.w.rows * (at + 1) / units);
    plain_source source = {device_ptr<const uint16_t>(k.w.data), k.w.cols, stream_quick(k.w)};
    stream_unit<D, PIECES, STAGES>(
        source, plain_sink{k}, run, k.count, segments, warp % segments, 1 + unit,
        stream_shared(k.x), stream_shared(shared) + warp * STAGES * PIECES * 16,
        part + unit * 2 * segments, [&](uint32_t, uint32_t) { fill_rows(k); });
}

// A warp is an output, as linear_f32 has it.
DEVICE_FN void run_f32(const struct work &k) {
    uint32_t lane = threadIdx.x % WARP, cols = k.w.cols;
    if (k.p.down) fill_rows(k);
    plain_sink sink = {k};
    for (uint32_t n = blockIdx.x * WARPS + threadIdx.x / WARP; n < k.w.rows; n += gridDim.x * WARPS)
        for (uint32_t r = 0; r < k.count; r++) {
            const float *w = device_ptr<const float>(k.w.data) + (uint64_t)n * cols;
            const float *x = k.p.down ? reinterpret_cast<const float *>(k.x) + r * cols : k.row(r);
            float sum = 0;
            for (uint32_t i = lane; i < cols; i += WARP) sum = fmaf(x[i], w[i], sum);
            sum = device_warp_sum(sum);
            if (lane == 0) sink.store(r, n, sum);
        }
}

// The picks of a pick's expert, in order; how many. 0: this one is not the first.
DEVICE_FN uint32_t find_rows(const struct experts_args &a, uint32_t pick, uint32_t *ret_picks) {
    const uint32_t *experts = device_ptr<const uint32_t>(a.experts);
    uint32_t lane = threadIdx.x % WARP, all = a.rows * a.per_token, count = 0, first = pick;
    for (uint32_t base = 0; base < all; base += WARP) {
        bool mine = base + lane < all && experts[base + lane] == experts[pick];
        uint32_t found = __ballot_sync(0xffffffffu, mine);
        if (mine && threadIdx.x < WARP)
            ret_picks[count + __popc(found & ((1u << lane) - 1))] = base + lane;
        if (!count && found) first = base + __ffs(found) - 1;
        count += __popc(found);
    }
    return first == pick ? count : 0;
}

// Grid: shares of a matrix, picks, gate and up (down alone).
extern "C" __global__ void __launch_bounds__(WARPS *WARP, 2)
    experts_few(const struct experts_few_params p) {
    __shared__ float part[2 * WARPS][8][LINEAR_TILE];
    __shared__ uint32_t picks[ROWS];
    // What chose the experts has ended when down starts: up let nothing start before it had waited for it.
    if (!p.down) device_wait_prior();
    device_let_next();
    uint32_t count = find_rows(p.a, blockIdx.y, picks);
    if (!count) {
        if (p.down) device_wait_prior();
        return;
    }
    __syncthreads();
    const struct expert &e = device_ptr<const struct expert>(
        p.a.dev_table)[device_ptr<const uint32_t>(p.a.experts)[blockIdx.y]];
    struct work k = {p,     e,     p.down ? e.down : blockIdx.z ? e.up : e.gate,
                     count, picks, shared + EXPERTS_FEW_RING_BYTES};
    if (k.w.exl3.half_bits)
        run_exl3(k);
    else if (k.w.dtype == DTYPE_F32)
        run_f32(k);
    else if (k.w.dtype == DTYPE_BF16)
        run_half<DTYPE_BF16>(k, part);
    else
        run_half<DTYPE_F16>(k, part);
}
