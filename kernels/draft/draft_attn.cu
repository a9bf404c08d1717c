/* draft_attn: see draft_attn.h. draft_attn: a block of threads has a head of a drafted block, and one chunk of its keys: chunk 0 is the
 * block itself, the others lie in the context, from its first key on that any row sees, rounded down to whole chunks.
 * draft_attn_join: a warp joins the chunks of a row and head.
 *
 * Order   a lane is a key of a tile: its score one fused chain over the dimensions; the tile's greatest and the sum of its p by lanes;
 *         values fused in key order; tiles and then chunks merge in order. Chunks follow from the size of the context alone, so what
 *         is drafted for a stream does not depend on the others.
 * Cost    the keys and values of each block, once a query head. */
#include "kernels/draft/draft_attn_params.h"
#include "kernels/draft/draft_where.cuh"

enum {
    TILE = DRAFT_ATTN_TILE,
    WARPS = DRAFT_ATTN_WARPS,
    ROWS = DRAFT_BLOCK_MAX / WARPS,    // of a warp
    PARTS = DRAFT_HEAD_DIM_MAX / WARP, // of a row's values, in a lane
};

static __device__ const float none = -INFINITY;

struct seen { // what a row has seen; the values' lane parts
    float max, sum, acc[PARTS];
};

struct tile {
    uint32_t first, count; // keys: positions, or rows of the block
    bool own;
};

DEVICE_FN float load_context(devptr base, uint64_t i, enum dtype d) {
    return d == DTYPE_F32 ? device_ptr<const float>(base)[i]
                          : arith_from_bf16(device_ptr<const uint16_t>(base)[i]);
}

// The tile's keys or values, rows `stride` apart.
DEVICE_FN void load(const struct draft_attn_args &a, const struct draft_block &b,
                    const struct tile &t, uint32_t head, devptr own, devptr context, float *to,
                    uint32_t stride) {
    const struct draft_context &c = a.context;
    for (uint32_t j = threadIdx.x / WARP; j < t.count; j += WARPS) {
        uint64_t row = t.own ? b.row + t.first + j : draft_where(c, b.slot, t.first + j);
        uint64_t from = (row * c.heads + head) * c.dim;
        for (uint32_t d = threadIdx.x % WARP; d < c.dim; d += WARP)
            to[j * stride + d] = t.own ? device_ptr<const float>(own)[from + d]
                                       : load_context(context, from + d, c.dtype);
    }
}

DEVICE_FN bool sees(const struct draft_attn_args &a, const struct draft_block &b, uint32_t row,
                    const struct tile &t, uint32_t j) {
    if (j >= t.count) return false;
    uint32_t key = t.first + j;
    if (!t.own) return !a.window || b.pos + row - key < a.window;
    if (a.causal && key > row) return false;
    return !a.window || (key > row ? key - row : row - key) < a.window;
}

// The row's p of the lane's key; what was seen before is scaled to the new maximum.
DEVICE_FN float weigh(struct seen &s, float score) {
    float max = device_warp_max(score);
    max = max > s.max ? max : s.max;
    if (max == none) return 0;
    float old = arith_exp(s.max - max), p = arith_exp(score - max);
    s.sum = s.sum * old + device_warp_sum(p);
    s.max = max;
#pragma unroll
    for (int i = 0; i < PARTS; i++) s.acc[i] = s.acc[i] * old;
    return p;
}

DEVICE_FN void add_tile(const struct draft_attn_args &a, const struct draft_block &b,
                        const struct tile &t, uint32_t head, float *memory, struct seen s[ROWS]) {
    uint32_t lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, dim = a.context.dim;
    uint32_t kv_head = head / (a.heads / a.context.heads), stride = dim + 1;
    float p[ROWS];
    __syncthreads();
    load(a, b, t, kv_head, a.k, a.context.k, memory, stride);
    __syncthreads();
#pragma unroll
    for (int i = 0; i < ROWS; i++) {
        uint32_t row = warp + i * WARPS;
        if (row >= b.count) continue;
        const float *q =
            device_ptr<const float>(a.q) + ((uint64_t)(b.row + row) * a.heads + head) * dim;
        float dot = 0;
        for (uint32_t d = 0; d < dim; d++) dot = fmaf(q[d], memory[lane * stride + d], dot);
        p[i] = weigh(s[i], sees(a, b, row, t, lane) ? dot * a.scale : none);
    }
    __syncthreads();
    load(a, b, t, kv_head, a.v, a.context.v, memory, stride);
    __syncthreads();
#pragma unroll
    for (int i = 0; i < ROWS; i++) {
        if (warp + i * WARPS >= b.count) continue;
        for (uint32_t j = 0; j < t.count; j++) {
            float w = __shfl_sync(0xffffffffu, p[i], j);
#pragma unroll
            for (int k = 0; k < PARTS; k++)
                if (k * WARP + lane < dim)
                    s[i].acc[k] = fmaf(w, memory[j * stride + k * WARP + lane], s[i].acc[k]);
        }
    }
}

DEVICE_FN uint32_t first_key(const struct draft_attn_args &a, const struct draft_block &b) {
    uint32_t seen = a.window && b.pos + 1 > a.window ? b.pos + 1 - a.window : 0;
    return seen > b.first ? seen : b.first;
}

// Grid: chunks, heads, blocks.
extern "C" __global__ void __launch_bounds__(WARPS *WARP)
    draft_attn(const struct draft_attn_params p) {
    extern __shared__ float memory[];
    const struct draft_attn_args &a = p.a;
    uint32_t lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, head = blockIdx.y;
    device_wait_prior();
    device_let_next();
    const struct draft_block b = device_ptr<const struct draft_block>(a.blocks)[blockIdx.z];
    struct seen s[ROWS];
#pragma unroll
    for (int i = 0; i < ROWS; i++) {
        s[i].max = none;
        s[i].sum = 0;
#pragma unroll
        for (int k = 0; k < PARTS; k++) s[i].acc[k] = 0;
    }
    if (blockIdx.x == 0) {
        add_tile(a, b, {0, b.count, true}, head, memory, s);
    } else {
        uint32_t first = first_key(a, b),
                 from = first / p.chunk * p.chunk + (blockIdx.x - 1) * p.chunk;
        uint32_t to = from + p.chunk < b.pos ? from + p.chunk : b.pos;
        from = from > first ? from : first;
        for (uint32_t at = from; at < to; at += TILE)
            add_tile(a, b, {at, to - at < TILE ? to - at : TILE, false}, head, memory, s);
    }
#pragma unroll
    for (int i = 0; i < ROWS; i++) {
        uint32_t row = warp + i * WARPS;
        if (row >= b.count) continue;
        float *to = device_ptr<float>(p.partial) +
                    (((uint64_t)(b.row + row) * a.heads + head) * p.chunks + blockIdx.x) *
                        (a.context.dim + 2);
        if (lane == 0) {
            to[0] = s[i].max;
            to[1] = s[i].sum;
        }
#pragma unroll
        for (int k = 0; k < PARTS; k++)
            if (k * WARP + lane < a.context.dim) to[2 + k * WARP + lane] = s[i].acc[k];
    }
}

// Grid: rows times heads, in warps. A lane has the weight of a chunk.
extern "C" __global__ void __launch_bounds__(WARPS *WARP)
    draft_attn_join(const struct draft_attn_params p) {
    const struct draft_attn_args &a = p.a;
    uint32_t unit = blockIdx.x * WARPS + threadIdx.x / WARP, dim = a.context.dim;
    uint32_t lane = threadIdx.x % WARP;
    device_wait_prior();
    device_let_next();
    if (unit >= a.rows * a.heads) return;
    const float *from = device_ptr<const float>(p.partial) + (uint64_t)unit * p.chunks * (dim + 2);
    float2 own = make_float2(none, 0);
    if (lane < p.chunks) own = *reinterpret_cast<const float2 *>(from + lane * (dim + 2));
    float max = device_warp_max(own.x), weight = own.x == none ? 0 : arith_exp(own.x - max);
    float sum = 0;
    for (uint32_t c = 0; c < p.chunks; c++)
        sum = fmaf(__shfl_sync(0xffffffffu, own.y, c), __shfl_sync(0xffffffffu, weight, c), sum);
    for (uint32_t d = lane; d - lane < dim; d += WARP) {
        float acc = 0;
#pragma unroll 8
        for (uint32_t c = 0; c < p.chunks; c++) {
            float x = d < dim ? from[(uint64_t)c * (dim + 2) + 2 + d] : 0.0f;
            acc = fmaf(x, __shfl_sync(0xffffffffu, weight, c), acc);
        }
        if (d < dim) device_ptr<float>(a.out)[(uint64_t)unit * dim + d] = acc / sum;
    }
}
