/* experts_few: the routed experts of up to eight rows, two launches for each kind of matrix, then experts_add. See experts.h.
 *
 *   up     gate and up of all picks. EXL3: a block has 128 outputs of an expert's matrix and some segments of K, whose sums it leaves as
 *          they are; plain: its share of a matrix's outputs.
 *   down   adds those sums and finishes gate and up, silu(gate) * up, then down: a block has 128 outputs of an expert, or a share
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

// The picks of a pick's expert, in order; how many. 0: this one is not the first.
DEVICE_FN uint32_t find_rows(const struct experts_args &a, uint32_t pick, uint32_t number,
                             uint32_t *ret_picks) {
    const uint32_t *experts = device_ptr<const uint32_t>(a.experts);
    uint32_t lane = threadIdx.x % WARP, all = a.rows * a.per_token, count = 0, first = pick;
    for (uint32_t base = 0; base < all; base += WARP) {
        bool mine = base + lane < all && __ldcg(experts + base + lane) == number;
        uint32_t found = __ballot_sync(0xffffffffu, mine);
        if (mine && threadIdx.x < WARP)
            ret_picks[count + __popc(found & ((1u << lane) - 1))] = base + lane;
        if (!count && found) first = base + __ffs(found) - 1;
        count += __popc(found);
    }
    __syncthreads();
    return first == pick ? count : 0;
}

DEVICE_FN const struct expert &expert_of(const struct experts_args &a, uint32_t pick,
                                         uint32_t *ret_number) {
    *ret_number = __ldcg(device_ptr<const uint32_t>(a.experts) + pick);
    return device_ptr<const struct expert>(a.dev_table)[*ret_number];
}

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
    enum { SEGMENTS = 8 };
    const struct weight &w = up ? k.e.up : k.e.gate;
    const struct exl3 q = w.exl3;
    const float *sums = k.sums(up, 0, pick) + first;
    if (!q.half_bits) {
#pragma unroll
        for (int j = 0; j < 4; j++) v[j] = first + j < w.rows ? __ldcg(sums + j) : 0;
        return;
    }
    uint64_t apart = (uint64_t)k.p.a.rows * k.p.a.per_token * k.p.a.width;
    uint32_t count = k.p.splits == 1 ? 1 : k.p.segments;
    float4 s[SEGMENTS];
#pragma unroll
    for (int i = 0; i < SEGMENTS; i++)
        if (i < count) s[i] = __ldcg(reinterpret_cast<const float4 *>(sums + i * apart));
    v[0] = s[0].x, v[1] = s[0].y, v[2] = s[0].z, v[3] = s[0].w;
#pragma unroll
    for (int i = 1; i < SEGMENTS; i++)
        if (i < count) {
            v[0] = v[0] + s[i].x;
            v[1] = v[1] + s[i].y;
            v[2] = v[2] + s[i].z;
            v[3] = v[3] + s[i].w;
        }
    experts_finish(v, q, first);
}

// The rows of the product, 128 channels from .. to - 1 of them, by all warps.
DEVICE_FN void put_rows(const struct work &k, uint32_t from, uint32_t to) {
    uint32_t lane = threadIdx.x % WARP;
    bool quick = k.w.cols % 4 == 0 && k.p.a.x % 16 == 0;
    for (uint32_t i = threadIdx.x / WARP; i < (to - from) * k.count; i += WARPS) {
        uint32_t row = i % k.count, first = (from + i / k.count) * EXL3_BLOCK + lane * 4;
        float v[4], up[4];
        if (k.p.down) {
            load_channels(k, 0, k.picks[row], first, v);
            load_channels(k, 1, k.picks[row], first, up);
#pragma unroll
            for (int j = 0; j < 4; j++) v[j] = arith_silu(v[j]) * up[j];
        } else {
            float4 in = stream_quad(k.row(row), first, k.w.cols, quick);
            v[0] = in.x, v[1] = in.y, v[2] = in.z, v[3] = in.w;
        }
        put_channels(k, row, first, v);
    }
    __syncthreads();
}

// EXL3

// Grid: blocks of 128 outputs times splits of the segments, picks, gate and up (down alone, which is never split).
extern "C" __global__ void __launch_bounds__(WARPS *WARP, 3)
    experts_few_exl3(const struct experts_few_params p) {
    __shared__ float total[ROWS][EXL3_BLOCK];
    __shared__ uint32_t picks[ROWS];
    device_let_next();
    device_wait_prior();
    uint32_t number, warp = threadIdx.x / WARP, g = threadIdx.x % WARP / 4, c = threadIdx.x % 4;
    const struct expert &e = expert_of(p.a, blockIdx.y, &number);
    struct work k = {p, e, p.down ? e.down : blockIdx.z ? e.up : e.gate};
    k.picks = picks;
    k.count = find_rows(p.a, blockIdx.y, number, picks);
    uint32_t blocks = k.w.rows / EXL3_BLOCK;
    if (!k.count || !k.w.exl3.half_bits || blockIdx.x >= blocks * p.splits) return;
    uint32_t block = blockIdx.x % blocks, segments = linear_exl3_segments(k.w.cols);
    uint32_t groups = k.w.cols / STREAM_SPAN, per = linear_exl3_groups(k.w.cols);
    uint32_t mine = p.down ? segments : (segments + p.splits - 1) / p.splits; // of this block
    uint32_t segment = p.down ? 0 : blockIdx.x / blocks * mine, from = segment * per;
    uint32_t to = from + mine * per < groups ? from + mine * per : groups;
    if (segment >= segments) return;
    uint32_t ring_bytes = EXPERTS_RING * p.slot_bytes;
    unsigned char *slots = shared + warp * ring_bytes;
    uint32_t tile = block * WARPS + warp;
    struct experts_ring ring = experts_ring_of(k.w, tile, from, to, stream_shared(slots));
    ring.slot_bytes = p.slot_bytes;
    for (int i = 0; i < EXPERTS_RING - 1; i++) experts_ring_fill(ring);
    // The rows' groups in shared memory start at an even one.
    uint32_t base = from / 2 * 2;
    k.x = shared + WARPS * ring_bytes - (uint64_t)base * k.count * (STREAM_SPAN * 2);
    put_rows(k, base / 2, (to + 1) / 2);
    uint32_t row = g < k.count ? g : k.count - 1, slot = 0;
    const uint4 *x = reinterpret_cast<const uint4 *>(k.x) + ((uint64_t)from * k.count + row) * 8;
    float all[4];
    for (uint32_t at = from; at < to; at += per, segment++) {
        uint32_t left = to - at < per ? to - at : per;
        float sum[4];
        experts_chain_of(k.w.exl3, ring, reinterpret_cast<const char *>(slots), slot, left, x, row,
                         k.count * 8, sum);
        x += left * k.count * 8;
#pragma unroll
        for (int j = 0; j < 4; j++) {
            uint32_t r = 2 * c + j % 2, n = tile * LINEAR_TILE + g + j / 2 * 8;
            all[j] = at == from ? sum[j] : all[j] + sum[j];
            if (p.splits > 1 && !p.down && r < k.count)
                k.sums(blockIdx.z, segment, picks[r])[n] = sum[j];
        }
    }
    if (p.splits > 1 && !p.down) return;
#pragma unroll
    for (int j = 0; j < 4; j++) {
        uint32_t r = 2 * c + j % 2, n = warp * LINEAR_TILE + g + j / 2 * 8;
        if (r >= k.count) continue;
        if (p.down)
            total[r][n] = all[j];
        else
            k.sums(blockIdx.z, 0, picks[r])[block * EXL3_BLOCK + n] = all[j];
    }
    if (!p.down) return;
    __syncthreads();
    for (uint32_t r = warp; r < k.count; r += WARPS) {
        uint32_t lane = threadIdx.x % WARP, first = block * EXL3_BLOCK + lane * 4;
        float4 in = reinterpret_cast<const float4 *>(total[r])[lane];
        float v[4] = {in.x, in.y, in.z, in.w};
        experts_finish(v, k.w.exl3, first);
        *reinterpret_cast<float4 *>(k.out(picks[r]) + first) = make_float4(v[0], v[1], v[2], v[3]);
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
    put_rows(k, 0, (k.w.cols + EXL3_BLOCK - 1) / EXL3_BLOCK);
}

template <enum dtype D>
DEVICE_FN void run_half(const struct work &k, float (*part)[8][LINEAR_TILE]) {
    enum { PIECES = 128 };
    uint32_t segments = linear_segments(k.w.cols), warp = threadIdx.x / WARP;
    uint32_t beside = WARPS / segments, unit = warp / segments, units = gridDim.x * beside;
    uint32_t at = blockIdx.x * beside + unit;
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
            const float *kept = reinterpret_cast<const float *>(k.x) + r * cols, *x = k.row(r);
            float sum = 0;
            for (uint32_t i = lane; i < cols; i += WARP)
                sum = fmaf(k.p.down ? kept[i] : __ldcg(x + i), w[i], sum);
            sum = device_warp_sum(sum);
            if (lane == 0) sink.store(r, n, sum);
        }
}

// Grid: shares of a matrix, picks, gate and up (down alone).
extern "C" __global__ void __launch_bounds__(WARPS *WARP, 2)
    experts_few_plain(const struct experts_few_params p) {
    __shared__ float part[2 * WARPS][8][LINEAR_TILE];
    __shared__ uint32_t picks[ROWS];
    device_let_next();
    device_wait_prior();
    uint32_t number;
    const struct expert &e = expert_of(p.a, blockIdx.y, &number);
    struct work k = {p, e, p.down ? e.down : blockIdx.z ? e.up : e.gate};
    k.picks = picks;
    k.count = find_rows(p.a, blockIdx.y, number, picks);
    k.x = shared + EXPERTS_FEW_RING_BYTES;
    if (!k.count || k.w.exl3.half_bits) return;
    if (k.w.dtype == DTYPE_F32)
        run_f32(k);
    else if (k.w.dtype == DTYPE_BF16)
        run_half<DTYPE_BF16>(k, part);
    else
        run_half<DTYPE_F16>(k, part);
}
