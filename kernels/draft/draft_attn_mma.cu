/* draft_attn_mma: draft_attn.h on the tensor cores, for contexts of bf16 and heads of 64 or 128. A block of threads has a key head of a
 * drafted block, with all query heads that share it, and one chunk of its keys: chunk 0 is the block itself, the others lie in the context,
 * from its first key on that any row sees, rounded down to whole chunks. draft_attn_join (draft_attn.cu) joins them.
 *
 * Order   a warp has 16 query rows, row m being row m % count of the block for query head m / count of the group; tiles of 64 keys in
 *         order, scores and values each a chain of steps of 16. q, p and the block's own k and v are rounded to bf16; the rest is fp32. What is
 *         drafted for a stream does not depend on the others.
 * Cost    the keys and values of each block, once a key head. */
#include "kernels/draft/draft_attn_params.h"
#include "kernels/draft/draft_where.cuh"
#include "kernels/linear/copies.cuh"

enum {
    TILE = DRAFT_MMA_TILE,
    WARPS = DRAFT_MMA_WARPS,
    ROWS = 16,            // of a warp
    STEP = 16,            // keys or dimensions of a step
    PIECE = 8,            // values of a copy
    PARTS = TILE / PIECE, // tiles of 8 keys
    PAD = DRAFT_MMA_PAD,
    STAGES = DRAFT_MMA_STAGES,
};

static __device__ const float none = -INFINITY;
#define LOG2_E 1.44269504f
#define LN_2 0.693147181f

struct piece { // of the work
    struct draft_block b;
    uint32_t kv_head, group; // query heads of a key head
};

struct keys { // positions, or rows of the block
    uint32_t first, count;
    bool own;
};

DEVICE_FN bool sees(const struct draft_attn_args &a, const struct draft_block &b, uint32_t row,
                    const struct keys &t, uint32_t j) {
    if (j >= t.count) return false;
    uint32_t key = t.first + j;
    if (!t.own) return !a.window || b.pos + row - key < a.window;
    if (a.causal && key > row) return false;
    return !a.window || (key > row ? key - row : row - key) < a.window;
}

// Eight values of a row of the block.
DEVICE_FN uint4 round_piece(devptr base, uint64_t at) {
    const float4 *x = reinterpret_cast<const float4 *>(device_ptr<const float>(base) + at);
    float4 low = x[0], high = x[1];
    return make_uint4(device_pack<DTYPE_BF16>(low.x, low.y), device_pack<DTYPE_BF16>(low.z, low.w),
                      device_pack<DTYPE_BF16>(high.x, high.y),
                      device_pack<DTYPE_BF16>(high.z, high.w));
}

// Keys and values of a tile on their way to `to`; zeros where there is no such key.
template <int DIM>
DEVICE_FN void begin_tile(const struct draft_attn_args &a, const struct piece &w,
                          const struct keys &t, uint16_t *to) {
    constexpr int each = TILE * DIM / PIECE / (WARPS * WARP);
#pragma unroll
    for (int i = 0; i < each; i++) {
        uint32_t unit = threadIdx.x + i * WARPS * WARP, j = unit / (DIM / PIECE);
        uint32_t d = unit % (DIM / PIECE) * PIECE;
        uint16_t *k = to + j * (DIM + PAD) + d, *v = k + TILE * (DIM + PAD);
        if (j >= t.count || t.own) {
            uint64_t at =
                ((uint64_t)(w.b.row + t.first + j) * a.context.heads + w.kv_head) * DIM + d;
            bool have = j < t.count;
            *reinterpret_cast<uint4 *>(k) = have ? round_piece(a.k, at) : make_uint4(0, 0, 0, 0);
            *reinterpret_cast<uint4 *>(v) = have ? round_piece(a.v, at) : make_uint4(0, 0, 0, 0);
            continue;
        }
        uint64_t row = draft_where(a.context, w.b.slot, t.first + j);
        uint64_t at = (row * a.context.heads + w.kv_head) * DIM + d;
        copies_16(copies_shared(k), device_ptr<const uint16_t>(a.context.k) + at);
        copies_16(copies_shared(v), device_ptr<const uint16_t>(a.context.v) + at);
    }
}

// Two 8x8 pieces of values as they lie, each turned round.
DEVICE_FN void load_turned(uint32_t ret[2], const uint16_t *from) {
    uint32_t at = (uint32_t)__cvta_generic_to_shared(from);
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0, %1}, [%2];"
                 : "=r"(ret[0]), "=r"(ret[1])
                 : "r"(at));
}

template <int DIM> struct lanes { // a warp's: lane parts as the steps have them
    uint32_t q[DIM / STEP][4];
    float max[2], sum[2], acc[DIM / 8][4]; // of rows lane / 4 and 8 more
};

DEVICE_FN float quad_max(float x) {
    for (int d = 1; d < 4; d *= 2) {
        float o = __shfl_xor_sync(0xffffffffu, x, d);
        x = o > x ? o : x;
    }
    return x;
}

DEVICE_FN float quad_sum(float x) {
    x = x + __shfl_xor_sync(0xffffffffu, x, 1);
    return x + __shfl_xor_sync(0xffffffffu, x, 2);
}

template <int DIM>
DEVICE_FN void load_rows(const struct draft_attn_args &a, const struct piece &w, uint32_t first,
                         struct lanes<DIM> &r) {
    uint32_t g = threadIdx.x % WARP / 4, c = threadIdx.x % 4, count = w.b.count;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        uint32_t m = first + g + i * 8;
        bool have = m < count * w.group;
        uint64_t head = (uint64_t)(w.b.row + m % count) * a.heads + w.kv_head * w.group + m / count;
        const float *q = device_ptr<const float>(a.q) + (have ? head : 0) * DIM;
#pragma unroll
        for (int s = 0; s < DIM / STEP; s++)
#pragma unroll
            for (int k = 0; k < 2; k++) {
                float2 x = *reinterpret_cast<const float2 *>(q + s * STEP + k * STEP / 2 + 2 * c);
                r.q[s][i + 2 * k] = have ? device_pack<DTYPE_BF16>(x.x, x.y) : 0;
            }
        r.max[i] = none;
        r.sum[i] = 0;
    }
#pragma unroll
    for (int n = 0; n < DIM / 8; n++)
#pragma unroll
        for (int i = 0; i < 4; i++) r.acc[n][i] = 0;
}

template <int DIM>
DEVICE_FN void score(const struct lanes<DIM> &r, const uint16_t *k, float p[PARTS][4]) {
    uint32_t g = threadIdx.x % WARP / 4, c = threadIdx.x % 4;
#pragma unroll
    for (int n = 0; n < PARTS; n++) {
#pragma unroll
        for (int i = 0; i < 4; i++) p[n][i] = 0;
        const uint16_t *row = k + (n * 8 + g) * (DIM + PAD) + 2 * c;
#pragma unroll
        for (int s = 0; s < DIM / STEP; s++) {
            uint32_t b[2] = {*reinterpret_cast<const uint32_t *>(row + s * STEP),
                             *reinterpret_cast<const uint32_t *>(row + s * STEP + STEP / 2)};
            device_mma<DTYPE_BF16>(p[n], r.q[s], b);
        }
    }
}

// 2^x.
DEVICE_FN float power(float x) {
    float r;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
    return r;
}

// Scores to p of what is seen; what was there before is scaled to the new maximum. whole: every row sees every key.
template <int DIM>
DEVICE_FN void weigh(const struct draft_attn_args &a, const struct piece &w, const struct keys &t,
                     uint32_t first, bool whole, struct lanes<DIM> &r, float p[PARTS][4]) {
    uint32_t g = threadIdx.x % WARP / 4, c = threadIdx.x % 4;
    float scale = a.scale * LOG2_E;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        uint32_t row = (first + g + i * 8) % w.b.count;
        float max = none, sum = 0;
#pragma unroll
        for (int n = 0; n < PARTS; n++)
#pragma unroll
            for (int k = 0; k < 2; k++) {
                float &x = p[n][2 * i + k];
                x = whole || sees(a, w.b, row, t, n * 8 + 2 * c + k) ? x * scale : none;
                max = x > max ? x : max;
            }
        max = quad_max(max);
        max = max > r.max[i] ? max : r.max[i];
        float less = max == none ? 0 : max, old = power(r.max[i] - less);
#pragma unroll
        for (int n = 0; n < PARTS; n++)
#pragma unroll
            for (int k = 0; k < 2; k++) {
                float &x = p[n][2 * i + k];
                x = power(x - less);
                sum = sum + x;
            }
        r.sum[i] = r.sum[i] * old + quad_sum(sum);
        r.max[i] = max;
#pragma unroll
        for (int n = 0; n < DIM / 8; n++)
#pragma unroll
            for (int k = 0; k < 2; k++) r.acc[n][2 * i + k] = r.acc[n][2 * i + k] * old;
    }
}

template <int DIM>
DEVICE_FN void add_values(struct lanes<DIM> &r, const uint16_t *v, const float p[PARTS][4]) {
    uint32_t lane = threadIdx.x % STEP;
#pragma unroll
    for (int s = 0; s < TILE / STEP; s++) {
        const float *low = p[2 * s], *high = p[2 * s + 1];
        uint32_t a[4] = {
            device_pack<DTYPE_BF16>(low[0], low[1]), device_pack<DTYPE_BF16>(low[2], low[3]),
            device_pack<DTYPE_BF16>(high[0], high[1]), device_pack<DTYPE_BF16>(high[2], high[3])};
#pragma unroll
        for (int n = 0; n < DIM / 8; n++) {
            uint32_t b[2];
            load_turned(b, v + (s * STEP + lane) * (DIM + PAD) + n * 8);
            device_mma<DTYPE_BF16>(r.acc[n], a, b);
        }
    }
}

template <int DIM>
DEVICE_FN void store(const struct draft_attn_params &p, const struct piece &w, uint32_t first,
                     const struct lanes<DIM> &r) {
    uint32_t g = threadIdx.x % WARP / 4, c = threadIdx.x % 4, count = w.b.count;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        uint32_t m = first + g + i * 8;
        if (m >= count * w.group) continue;
        uint64_t head =
            (uint64_t)(w.b.row + m % count) * p.a.heads + w.kv_head * w.group + m / count;
        float *to = device_ptr<float>(p.partial) + (head * p.chunks + blockIdx.x) * (DIM + 2);
        if (c == 0) *reinterpret_cast<float2 *>(to) = make_float2(r.max[i] * LN_2, r.sum[i]);
#pragma unroll
        for (int n = 0; n < DIM / 8; n++)
            *reinterpret_cast<float2 *>(to + 2 + n * 8 + 2 * c) =
                make_float2(r.acc[n][2 * i], r.acc[n][2 * i + 1]);
    }
}

// The chunk's keys, or none.
DEVICE_FN struct keys chunk_keys(const struct draft_attn_params &p, const struct draft_block &b) {
    if (blockIdx.x == 0) return {0, b.count, true};
    uint32_t seen = p.a.window && b.pos + 1 > p.a.window ? b.pos + 1 - p.a.window : 0;
    uint32_t first = seen > b.first ? seen : b.first;
    uint32_t from = first / p.chunk * p.chunk + (blockIdx.x - 1) * p.chunk;
    uint32_t to = from + p.chunk < b.pos ? from + p.chunk : b.pos;
    from = from > first ? from : first;
    return {from, to > from ? to - from : 0, false};
}

// The tile of the chunk that begins at its key `at`; empty behind the last.
DEVICE_FN struct keys tile_at(const struct keys &all, uint32_t at) {
    uint32_t left = at < all.count ? all.count - at : 0;
    return {all.first + at, left < TILE ? left : TILE, all.own};
}

template <int DIM>
DEVICE_FN void begin_at(const struct draft_attn_args &a, const struct piece &w,
                        const struct keys &all, uint32_t at, uint16_t *memory) {
    struct keys t = tile_at(all, at);
    uint32_t stage = at / TILE % STAGES;
    if (t.count) begin_tile<DIM>(a, w, t, memory + stage * 2 * TILE * (DIM + PAD));
    copies_end_group();
}

// Grid: chunks, key heads, blocks.
template <int DIM> DEVICE_FN void run(const struct draft_attn_params &p) {
    extern __shared__ uint4 memory[];
    uint16_t *stages = reinterpret_cast<uint16_t *>(memory);
    const struct draft_attn_args &a = p.a;
    device_wait_prior();
    device_let_next();
    struct piece w = {device_ptr<const struct draft_block>(a.blocks)[blockIdx.z], blockIdx.y,
                      a.heads / a.context.heads};
    struct keys all = chunk_keys(p, w.b);
    uint32_t rows_count = w.b.count * w.group;
    for (uint32_t base = 0; base < rows_count; base += WARPS * ROWS) {
        uint32_t first = base + threadIdx.x / WARP * ROWS;
        struct lanes<DIM> r;
        for (uint32_t i = 0; i < STAGES; i++) begin_at<DIM>(a, w, all, i * TILE, stages);
        load_rows(a, w, first, r);
        for (uint32_t at = 0; at < all.count; at += TILE) {
            struct keys t = tile_at(all, at);
            const uint16_t *k = stages + at / TILE % STAGES * 2 * TILE * (DIM + PAD);
            bool whole = !t.own && t.count == TILE &&
                         (!a.window || w.b.pos + w.b.count - 1 - t.first < a.window);
            copies_wait<STAGES - 1>();
            __syncthreads();
            if (first < rows_count) {
                float weights[PARTS][4];
                score(r, k, weights);
                weigh(a, w, t, first, whole, r, weights);
                add_values(r, k + TILE * (DIM + PAD), weights);
            }
            __syncthreads();
            begin_at<DIM>(a, w, all, at + STAGES * TILE, stages);
        }
        if (first < rows_count) store(p, w, first, r);
    }
}

extern "C" __global__ void __launch_bounds__(WARPS *WARP)
    draft_attn_mma_64(const struct draft_attn_params p) {
    run<64>(p);
}

extern "C" __global__ void __launch_bounds__(WARPS *WARP)
    draft_attn_mma_128(const struct draft_attn_params p) {
    run<128>(p);
}
