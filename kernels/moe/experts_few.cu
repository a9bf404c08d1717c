/* experts_few: the routed experts of up to eight rows, two launches for each kind of matrix, then experts_add. See experts.h.
 *
 *   up     gate and up of all picks. EXL3: a block has 128 outputs of an expert's matrix and some segments of K, whose sums it leaves as
 *          they are; plain: its share of a matrix's outputs.
 *   down   adds those sums and finishes gate and up, silu(gate) * up, then down: a block has 128 outputs of an expert, or a share
 *
 * An expert's blocks belong to its first pick; those of other picks end at once. So no sorting is needed.
 * Order   the products' is linear_order.h's.
 * Equals  experts_ref.c, bit for bit. */
#include "kernels/moe/experts_add.cuh"
#include "kernels/moe/experts_exl3.cuh"

enum { WARPS = EXPERTS_FEW_WARPS, ROWS = EXPERTS_FEW_ROWS, STAGES = EXPERTS_FEW_STAGES };

extern __shared__ __align__(1024) unsigned char shared[];

struct work {
    const experts_params &p;
    const struct expert &e;
    struct weight w;
    uint32_t count; // rows
    const struct experts_picks *picks;
    unsigned char *x; // the rows, shared

    __device__ __forceinline__ const float *row(uint32_t i) const {
        return device_ptr<const float>(p.a.x) + (uint64_t)picks->rows[i] * p.a.dim;
    }

    __device__ __forceinline__ float *sums(uint32_t segment, uint32_t i) const {
        return experts_sums(p, blockIdx.z, segment, picks->slots[i]);
    }

    __device__ __forceinline__ float *out(uint32_t i) const {
        return experts_out(p, picks->slots[i]);
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

// The rows of the product, 128 channels from .. to - 1 of them, by all warps.
DEVICE_FN void put_rows(const struct work &k, uint32_t from, uint32_t to) {
    uint32_t lane = threadIdx.x % WARP;
    bool quick = k.w.cols % 4 == 0 && k.p.a.x % 16 == 0;
    for (uint32_t i = threadIdx.x / WARP; i < (to - from) * k.count; i += WARPS) {
        uint32_t row = i % k.count, first = (from + i / k.count) * EXL3_BLOCK + lane * 4;
        float v[4];
        if (k.p.down) {
            experts_load_both(k.p, k.e, k.picks->slots[row], first, v);
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
    experts_few_exl3(const struct experts_params p) {
    __shared__ __align__(16) float total[ROWS][EXL3_BLOCK];
    __shared__ struct experts_picks picks;
    bool ahead = experts_ahead(p);
    if (!ahead) device_wait_prior();
    device_let_next();
    uint32_t number = 0, count = experts_find(p, EXPERTS_FEW_ROWS, &picks, &number);
    uint32_t warp = threadIdx.x / WARP, g = threadIdx.x % WARP / 4, c = threadIdx.x % 4;
    const struct expert &e = experts_of(p, number);
    struct work k = {p, e, p.down ? e.down : blockIdx.z ? e.up : e.gate, count, &picks, nullptr};
    uint32_t blocks = k.w.rows / EXL3_BLOCK;
    if (!count || !exl3_chain_weight(&k.w) || blockIdx.x >= blocks * (p.down ? 1 : p.splits)) {
        if (ahead) device_wait_prior();
        return;
    }
    uint32_t block = blockIdx.x % blocks, segments = linear_exl3_segments(k.w.cols);
    uint32_t groups = k.w.cols / STREAM_SPAN, per = linear_exl3_groups(k.w.cols);
    uint32_t mine = p.down ? segments : (segments + p.splits - 1) / p.splits; // of this block
    uint32_t segment = p.down ? 0 : blockIdx.x / blocks * mine, from = segment * per;
    uint32_t to = from + mine * per < groups ? from + mine * per : groups;
    if (segment >= segments) return; // gate or up
    uint32_t ring_bytes = EXPERTS_RING * p.slot_bytes;
    unsigned char *slots = shared + warp * ring_bytes;
    uint32_t tile = block * WARPS + warp;
    struct experts_ring ring = experts_ring_of(k.w, tile, from, to, stream_shared(slots));
    ring.slot_bytes = p.slot_bytes;
    for (int i = 0; i < EXPERTS_RING - 1; i++) experts_ring_fill(ring);
    if (ahead) device_wait_prior();
    // The rows' groups in shared memory start at an even one.
    uint32_t base = from / 2 * 2;
    k.x = shared + WARPS * ring_bytes - (uint64_t)base * k.count * (STREAM_SPAN * 2);
    put_rows(k, base / 2, (to + 1) / 2);
    uint32_t row = g < k.count ? g : k.count - 1, slot = 0;
    const uint4 *x = reinterpret_cast<const uint4 *>(k.x) + ((uint64_t)from * k.count + row) * 8;
    const struct exl3_code code = exl3_code_of(k.w.exl3.codebook, p.masks);
    float all[4];
    for (uint32_t at = from; at < to; at += per, segment++) {
        uint32_t left = to - at < per ? to - at : per;
        float sum[4];
        experts_chain_of(k.w.exl3, code, ring, reinterpret_cast<const char *>(slots), slot, left, x,
                         row, k.count * 8, sum);
        x += left * k.count * 8;
#pragma unroll
        for (int j = 0; j < 4; j++) {
            uint32_t r = 2 * c + j % 2, n = tile * LINEAR_TILE + g + j / 2 * 8;
            all[j] = at == from ? sum[j] : all[j] + sum[j];
            if (p.splits > 1 && !p.down && r < k.count) k.sums(segment, r)[n] = sum[j];
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
            k.sums(0, r)[block * EXL3_BLOCK + n] = all[j];
    }
    if (!p.down) return;
    __syncthreads();
    for (uint32_t r = warp; r < k.count; r += WARPS) {
        uint32_t lane = threadIdx.x % WARP, first = block * EXL3_BLOCK + lane * 4;
        float4 in = reinterpret_cast<const float4 *>(total[r])[lane];
        float v[4] = {in.x, in.y, in.z, in.w};
        experts_finish(v, k.w.exl3, first);
        *reinterpret_cast<float4 *>(k.out(r) + first) = make_float4(v[0], v[1], v[2], v[3]);
    }
    if (p.adds) experts_add_last(p, picks, count, block);
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
        *(k.p.down ? k.out(row) + n : k.sums(0, row) + n) = v;
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
    experts_few_plain(const struct experts_params p) {
    __shared__ float part[2 * WARPS][8][LINEAR_TILE];
    __shared__ struct experts_picks picks;
    device_wait_prior();
    device_let_next(); // likewise
    uint32_t number = 0, count = experts_find(p, EXPERTS_FEW_ROWS, &picks, &number);
    if (!count) return;
    const struct expert &e = experts_of(p, number);
    struct work k = {p, e, p.down ? e.down : blockIdx.z ? e.up : e.gate, count, &picks, nullptr};
    k.x = shared + EXPERTS_FEW_RING_BYTES;
    if (k.w.exl3.half_bits) return;
    if (k.w.dtype == DTYPE_F32)
        run_f32(k);
    else if (k.w.dtype == DTYPE_BF16)
        run_half<DTYPE_BF16>(k, part);
    else
        run_half<DTYPE_F16>(k, part);
}
