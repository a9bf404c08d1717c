/* attn: see attn.h. A block is a row, a key head and up to ATTN_QUERIES of its query heads; four warps.
 *
 * Order   keys at absolute positions: tiles of ATTN_TILE, chunks of ATTN_CHUNK_TILES tiles.
 *         BF16, E4M3: a score is a chain of tensor-core steps over the dimensions, sixteen neighbours a step, from 0, of the
 *         query rounded to bf16 and the key; then * scale. p = e^(score - m), m the tile's maximum, rounded to bf16; l: lane
 *         i adds p[i] and p[i + 32], lanes by xor 16, 8, 4, 2, 1. The tile's values: a chain of steps over its keys,
 *         sixteen neighbours a step, from 0.
 *         F32: fused multiply-adds, ascending: of a score sixteen chains, chain i over dimensions i, i + 16, ..,
 *         added by halves; of the values one chain over the keys. p stays fp32.
 *         A tile joins its chunk and a chunk what was before it, in key order: M' = max(M, m), sum' = fma(sum, e^(m - M'),
 *         SUM * e^(M - M')). At the end (sum / l) * sigmoid(gate).
 * Equals  attn_ref.c, bit for bit.
 * Needs   nothing of keys behind the row's position: their scores are left out, their values read as 0. */
#include "kernels/attn/attn.h"
#include "kernels/attn/kv_order.h"
#include "kernels/cuda/device.cuh"
#include "kernels/cuda/kv_at.h"

enum { QUERIES = ATTN_QUERIES, WARPS = 4, THREADS = WARPS * WARP };

static __device__ const float none = -INFINITY;

struct shared {
    float score[QUERIES][ATTN_TILE];        // then p
    float max[2][QUERIES], sum[2][QUERIES]; // of the chunk, of all chunks
    float old[QUERIES], fresh[QUERIES];     // factors of a merge
    float rows[1]; // queries [QUERIES, dim], the chunk's values [QUERIES, dim], those of all chunks
};

struct view { // of the block's keys
    const void *k, *v;
    const uint32_t *pages;
    uint32_t pos, dim, head;
};

// Two neighbours of a row, as bf16.
template <enum dtype D> DEVICE_FN uint32_t load_pair(const void *p, uint64_t i) {
    if (D == DTYPE_BF16) return *reinterpret_cast<const uint32_t *>((const uint16_t *)p + i);
    const uint8_t *b = (const uint8_t *)p + i;
    return device_pack<DTYPE_BF16>(arith_from_e4m3(b[0]), arith_from_e4m3(b[1]));
}

template <enum dtype D> DEVICE_FN uint32_t load_bits(const void *p, uint64_t i) {
    if (D == DTYPE_BF16) return ((const uint16_t *)p)[i];
    return arith_bits(arith_from_e4m3(((const uint8_t *)p)[i])) >> 16;
}

DEVICE_FN uint32_t pack_row(const float *x) {
    return device_pack<DTYPE_BF16>(x[0], x[1]);
}

// Scores of the tile's first n keys; what is behind them may be anything.
template <enum dtype D>
DEVICE_FN void tile_scores(struct shared *s, const struct view *v, uint64_t tile, uint32_t n,
                           float scale) {
    uint32_t g = threadIdx.x % WARP / 4, c = threadIdx.x % 4, first = threadIdx.x / WARP * 16;
    const float *q = s->rows + g * v->dim;
    float sum[4] = {0, 0, 0, 0};
    if (first >= n) return;
    for (uint32_t d = 2 * c; d < v->dim; d += 16) {
        uint64_t key = tile + (uint64_t)(first + g) * v->dim + d, next = key + 8 * v->dim;
        const uint32_t a[4] = {load_pair<D>(v->k, key), load_pair<D>(v->k, next),
                               load_pair<D>(v->k, key + 8), load_pair<D>(v->k, next + 8)};
        const uint32_t b[2] = {pack_row(q + d), pack_row(q + d + 8)};
        device_mma<DTYPE_BF16>(sum, a, b);
    }
#pragma unroll
    for (uint32_t i = 0; i < 4; i++)
        s->score[2 * c + i % 2][first + g + i / 2 * 8] = sum[i] * scale;
}

DEVICE_FN void tile_scores_f32(struct shared *s, const struct view *v, uint64_t tile, uint32_t n,
                               float scale) {
    for (uint32_t i = threadIdx.x; i < QUERIES * ATTN_TILE; i += THREADS) {
        uint32_t query = i / ATTN_TILE, key = i % ATTN_TILE;
        if (key >= n) continue;
        const float *k = (const float *)v->k + tile + (uint64_t)key * v->dim;
        const float *q = s->rows + query * v->dim;
        float part[16];
#pragma unroll
        for (int j = 0; j < 16; j++) part[j] = 0;
        for (uint32_t d = 0; d < v->dim; d += 16)
#pragma unroll
            for (int j = 0; j < 16; j++) part[j] = fmaf(q[d + j], k[d + j], part[j]);
#pragma unroll
        for (int half = 8; half; half /= 2)
#pragma unroll
            for (int j = 0; j < half; j++) part[j] = part[j] + part[j + half];
        s->score[query][key] = part[0] * scale;
    }
}

// Joins (max, sum) to level `to`; leaves the factors.
DEVICE_FN void merge(struct shared *s, uint32_t query, uint32_t to, float max, float sum) {
    float was = s->max[to][query], now = max > was ? max : was;
    float old = arith_exp(was - now), fresh = arith_exp(max - now);
    s->sum[to][query] = fmaf(sum, fresh, s->sum[to][query] * old);
    s->max[to][query] = now;
    s->old[query] = old;
    s->fresh[query] = fresh;
}

template <enum dtype D> DEVICE_FN void tile_softmax(struct shared *s, uint32_t n) {
    uint32_t lane = threadIdx.x % WARP;
    for (uint32_t query = threadIdx.x / WARP; query < QUERIES; query += WARPS) {
        float *x = s->score[query];
        float a = lane < n ? x[lane] : none, b = lane + WARP < n ? x[lane + WARP] : none;
        float max = device_warp_max(a > b ? a : b);
        a = arith_exp(a - max);
        b = arith_exp(b - max);
        if (D != DTYPE_F32) {
            a = arith_from_bf16(arith_to_bf16(a));
            b = arith_from_bf16(arith_to_bf16(b));
        }
        float sum = device_warp_sum(a + b);
        x[lane] = a;
        x[lane + WARP] = b;
        if (lane == 0) merge(s, query, 0, max, sum);
    }
}

// The chunk's values take in those of the tile.
template <enum dtype D>
DEVICE_FN void tile_values(struct shared *s, const struct view *v, uint64_t tile, uint32_t n) {
    uint32_t g = threadIdx.x % WARP / 4, c = threadIdx.x % 4;
    float *values = s->rows + QUERIES * v->dim;
    for (uint32_t d = threadIdx.x / WARP * 16 + g; d < v->dim; d += WARPS * 16) {
        float sum[4] = {0, 0, 0, 0};
        for (uint32_t key = 2 * c; key < ATTN_TILE; key += 16) {
            if (key - 2 * c >= n) break;
            uint32_t a[4], bits[8];
#pragma unroll
            for (uint32_t i = 0; i < 8;
                 i++) { // register i / 2: dimension d + 8 (i / 2 % 2), key ..
                uint32_t j = key + i % 2 + i / 4 * 8, e = d + i / 2 % 2 * 8;
                bits[i] = j < n ? load_bits<D>(v->v, tile + (uint64_t)j * v->dim + e) : 0;
            }
#pragma unroll
            for (uint32_t i = 0; i < 4; i++) a[i] = bits[2 * i] | bits[2 * i + 1] << 16;
            const uint32_t b[2] = {pack_row(s->score[g] + key), pack_row(s->score[g] + key + 8)};
            device_mma<DTYPE_BF16>(sum, a, b);
        }
#pragma unroll
        for (uint32_t i = 0; i < 4; i++) {
            uint32_t query = 2 * c + i % 2;
            float *o = values + query * v->dim + d + i / 2 * 8;
            *o = fmaf(sum[i], s->fresh[query], *o * s->old[query]);
        }
    }
}

DEVICE_FN void tile_values_f32(struct shared *s, const struct view *v, uint64_t tile, uint32_t n) {
    float *values = s->rows + QUERIES * v->dim;
    for (uint32_t i = threadIdx.x; i < QUERIES * v->dim; i += THREADS) {
        uint32_t query = i / v->dim, d = i % v->dim;
        const float *x = (const float *)v->v + tile + d;
        float sum = 0;
        for (uint32_t j = 0; j < n; j++)
            sum = fmaf(s->score[query][j], x[(uint64_t)j * v->dim], sum);
        values[i] = fmaf(sum, s->fresh[query], values[i] * s->old[query]);
    }
}

// What all chunks gave takes in this one, which is emptied.
DEVICE_FN void end_chunk(struct shared *s, uint32_t dim) {
    if (threadIdx.x < QUERIES) {
        merge(s, threadIdx.x, 1, s->max[0][threadIdx.x], s->sum[0][threadIdx.x]);
        s->max[0][threadIdx.x] = none;
        s->sum[0][threadIdx.x] = 0;
    }
    __syncthreads();
    float *chunk = s->rows + QUERIES * dim, *all = chunk + QUERIES * dim;
    for (uint32_t i = threadIdx.x; i < QUERIES * dim; i += THREADS) {
        all[i] = fmaf(chunk[i], s->fresh[i / dim], all[i] * s->old[i / dim]);
        chunk[i] = 0;
    }
    __syncthreads();
}

template <enum dtype D>
DEVICE_FN void run_tiles(struct shared *s, const struct view *v, const struct kv_view *kv,
                         float scale) {
    for (uint32_t first = 0; first <= v->pos; first += ATTN_TILE) {
        uint32_t left = v->pos + 1 - first, n = left < ATTN_TILE ? left : ATTN_TILE;
        uint64_t tile = kv_at(kv, v->pages, first, v->head);
        if (D == DTYPE_F32)
            tile_scores_f32(s, v, tile, n, scale);
        else
            tile_scores<D>(s, v, tile, n, scale);
        __syncthreads();
        tile_softmax<D>(s, n);
        __syncthreads();
        if (D == DTYPE_F32)
            tile_values_f32(s, v, tile, n);
        else
            tile_values<D>(s, v, tile, n);
        __syncthreads();
        if (left <= ATTN_TILE || (first / ATTN_TILE + 1) % ATTN_CHUNK_TILES == 0)
            end_chunk(s, v->dim);
    }
}

template <enum dtype D> DEVICE_FN void attn(const struct attn_args &a) {
    extern __shared__ __align__(16) unsigned char memory[];
    struct shared *s = reinterpret_cast<struct shared *>(memory);
    uint32_t t = blockIdx.x, dim = a.kv.dim, group = a.heads / a.kv.heads;
    uint32_t first = blockIdx.z * QUERIES, left = group - first;
    uint32_t count = left < QUERIES ? left : QUERIES;
    uint64_t head = (uint64_t)t * a.heads + blockIdx.y * group + first;
    uint64_t slot = device_ptr<const uint32_t>(a.rows.slot)[t];
    const float *qg = device_ptr<const float>(a.qg) + head * 2 * dim;
    struct view v = {.k = device_ptr<const void>(a.kv.k),
                     .v = device_ptr<const void>(a.kv.v),
                     .pages = device_ptr<const uint32_t>(a.kv.table) + slot * a.kv.pages_per_slot,
                     .pos = device_ptr<const uint32_t>(a.rows.pos)[t],
                     .dim = dim,
                     .head = blockIdx.y};
    for (uint32_t i = threadIdx.x; i < QUERIES * dim; i += THREADS) {
        s->rows[i] = i < count * dim ? qg[(uint64_t)(i / dim) * 2 * dim + i % dim] : 0;
        s->rows[QUERIES * dim + i] = s->rows[2 * QUERIES * dim + i] = 0;
    }
    if (threadIdx.x < QUERIES)
        for (uint32_t i = 0; i < 2; i++) {
            s->max[i][threadIdx.x] = none;
            s->sum[i][threadIdx.x] = 0;
        }
    __syncthreads();
    run_tiles<D>(s, &v, &a.kv, a.scale);
    float *out = device_ptr<float>(a.out) + head * dim;
    for (uint32_t i = threadIdx.x; i < count * dim; i += THREADS) {
        float gate = qg[(uint64_t)(i / dim) * 2 * dim + dim + i % dim];
        out[i] = (s->rows[2 * QUERIES * dim + i] / s->sum[1][i / dim]) * arith_sigmoid(gate);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS) attn_bf16(const struct attn_args a) {
    attn<DTYPE_BF16>(a);
}

extern "C" __global__ void __launch_bounds__(THREADS) attn_e4m3(const struct attn_args a) {
    attn<DTYPE_E4M3>(a);
}

extern "C" __global__ void __launch_bounds__(THREADS) attn_f32(const struct attn_args a) {
    attn<DTYPE_F32>(a);
}
