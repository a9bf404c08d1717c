/* attn: see attn.h. The plain form: any head size, F32 caches. A block is a row, a key head and up to ATTN_QUERIES of its query
 * heads; four warps, all keys in turn. attn_split.cu and attn_rows.cu have the forms for 16-bit and 8-bit caches.
 *
 * Order   keys at absolute positions: tiles of ATTN_TILE, chunks of tiles, groups of chunks (kv_order.h says which).
 *         BF16, E4M3: a score s is a chain of tensor-core steps over the dimensions, sixteen neighbours a step, from 0, of the
 *         query and the key as bf16 (E4M3: fp16). unit = scale / ln 2; p = 2^fma(s, unit, -(m * unit)), m the maximum of the
 *         chunk's scores so far, this tile's included; a tile first weighs what the chunk had by old = 2^((m before - m) *
 *         unit), then its values go on with the chunk's chain: steps of sixteen neighbouring keys, p rounded to bf16 (fp16).
 *         Sums of the p before that rounding: class c has the keys 8i + 2c and 8i + 2c + 1 of a tile, the eight pairs are
 *         added by halves, sum = fma(sum, old, theirs); at a chunk's end (class 0 + 2) + (1 + 3).
 *         F32: fused multiply-adds, ascending: of a score sixteen chains, chain i over dimensions i, i + 16, ..,
 *         added by halves, then * scale; of the values one chain over the keys; e^ of differences; else as above.
 *         A chunk joins its group and a group what was before it, in key order: M' = max(M, m), sum' = fma(sum, weight of m,
 *         SUM * weight of M), values likewise. At the end (values * (1 / sum)) * sigmoid(gate).
 * Equals  attn_ref.c, bit for bit, in every form: a key behind a row's position has p = 0, which a step leaves out.
 * Needs   nothing of positions that no row of the call and none before it wrote; those hold numbers, no infinities. */
#include "kernels/attn/attn.h"
#include "kernels/attn/kv_order.h"
#include "kernels/cuda/device.cuh"
#include "kernels/cuda/kv_at.h"

enum { QUERIES = ATTN_QUERIES, WARPS = 4, THREADS = WARPS * WARP, CLASSES = 4 };
enum level { CHUNK, GROUP, ALL, LEVELS };

static __device__ const float none = -INFINITY;

struct shared {
    float score[QUERIES][ATTN_TILE]; // then p
    float sums[QUERIES][CLASSES];    // of the chunk
    float max[LEVELS][QUERIES], sum[LEVELS][QUERIES];
    float old[QUERIES], fresh[QUERIES]; // factors of a join
    float rows[1];                      // [1 + LEVELS][QUERIES, dim]: queries, then values
};

struct view { // of the block's keys
    const void *k, *v;
    const struct kv_view *kv;
    const uint32_t *pages;
    uint32_t pos, dim, head;
    float scale, unit;
};

template <enum dtype D> struct half_type { static const enum dtype type = DTYPE_BF16; };
template <> struct half_type<DTYPE_E4M3> { static const enum dtype type = DTYPE_F16; };

template <enum dtype D>
DEVICE_FN uint32_t load_bits(const void *p, const struct view *v, uint64_t page, uint32_t r,
                             uint32_t d) {
    uint64_t i = page + kv_in_page(v->kv, r, d);
    if (D == DTYPE_BF16) return ((const uint16_t *)p)[i];
    return device_to_f16(arith_from_e4m3(((const uint8_t *)p)[i]));
}

template <enum dtype D>
DEVICE_FN uint32_t load_pair(const struct view *v, uint64_t page, uint32_t r, uint32_t d) {
    return load_bits<D>(v->k, v, page, r, d) | load_bits<D>(v->k, v, page, r, d + 1) << 16;
}

template <enum dtype D> DEVICE_FN uint32_t pack_row(const float *x) {
    return device_pack<half_type<D>::type>(x[0], x[1]);
}

template <enum dtype D> DEVICE_FN float weight(const struct view *v, float max, float of) {
    return D == DTYPE_F32 ? arith_exp(max - of) : attn_weight(max, of, v->unit);
}

// Scores of the tile's first n keys; what is behind them may be anything.
template <enum dtype D>
DEVICE_FN void tile_scores(struct shared *s, const struct view *v, uint64_t page, uint32_t n) {
    uint32_t g = threadIdx.x % WARP / 4, c = threadIdx.x % 4, first = threadIdx.x / WARP * 16;
    const float *q = s->rows + g * v->dim;
    float sum[4] = {0, 0, 0, 0};
    if (first >= n) return;
    for (uint32_t d = 2 * c; d < v->dim; d += 16) {
        uint32_t r = first + g;
        const uint32_t a[4] = {load_pair<D>(v, page, r, d), load_pair<D>(v, page, r + 8, d),
                               load_pair<D>(v, page, r, d + 8),
                               load_pair<D>(v, page, r + 8, d + 8)};
        const uint32_t b[2] = {pack_row<D>(q + d), pack_row<D>(q + d + 8)};
        device_mma<half_type<D>::type>(sum, a, b);
    }
#pragma unroll
    for (uint32_t i = 0; i < 4; i++) s->score[2 * c + i % 2][first + g + i / 2 * 8] = sum[i];
}

DEVICE_FN void tile_scores_f32(struct shared *s, const struct view *v, uint64_t page, uint32_t n) {
    for (uint32_t i = threadIdx.x; i < QUERIES * ATTN_TILE; i += THREADS) {
        uint32_t query = i / ATTN_TILE, key = i % ATTN_TILE;
        if (key >= n) continue;
        const float *k = (const float *)v->k + page + (uint64_t)key * v->dim;
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
        s->score[query][key] = part[0] * v->scale;
    }
}

// A warp a query: scores to p, maximum and sums; old is the weight of what the chunk had.
template <enum dtype D>
DEVICE_FN void tile_softmax(struct shared *s, const struct view *v, uint32_t n) {
    uint32_t lane = threadIdx.x % WARP;
    for (uint32_t query = threadIdx.x / WARP; query < QUERIES; query += WARPS) {
        float x[2], *row = s->score[query] + 2 * lane, was = s->max[CHUNK][query];
#pragma unroll
        for (uint32_t i = 0; i < 2; i++) x[i] = 2 * lane + i < n ? row[i] : none;
        float now = fmaxf(was, device_warp_max(fmaxf(x[0], x[1])));
        float old = weight<D>(v, was, now);
#pragma unroll
        for (uint32_t i = 0; i < 2; i++)
            row[i] = x[i] = D == DTYPE_F32 ? arith_exp(x[i] - now)
                                           : attn_exp2(fmaf(x[i], v->unit, -(now * v->unit)));
        float sum = x[0] + x[1];
#pragma unroll
        for (uint32_t d = WARP / 2; d >= CLASSES; d /= 2)
            sum = sum + __shfl_xor_sync(0xffffffffu, sum, d);
        if (lane < CLASSES) s->sums[query][lane] = fmaf(s->sums[query][lane], old, sum);
        __syncwarp(); // all have read the maximum
        if (lane == 0) {
            s->max[CHUNK][query] = now;
            s->old[query] = old;
        }
    }
}

DEVICE_FN float *values_of(struct shared *s, const struct view *v, enum level l) {
    return s->rows + (1 + l) * QUERIES * v->dim;
}

// The chunk's values take in those of the tile.
template <enum dtype D>
DEVICE_FN void tile_values(struct shared *s, const struct view *v, uint64_t page, uint32_t n) {
    uint32_t g = threadIdx.x % WARP / 4, c = threadIdx.x % 4;
    for (uint32_t d = threadIdx.x / WARP * 16 + g; d < v->dim; d += WARPS * 16) {
        float sum[4], *o[4];
#pragma unroll
        for (uint32_t i = 0; i < 4; i++) {
            uint32_t query = 2 * c + i % 2;
            o[i] = values_of(s, v, CHUNK) + query * v->dim + d + i / 2 * 8;
            sum[i] = *o[i] * s->old[query];
        }
        for (uint32_t key = 2 * c; key < ATTN_TILE; key += 16) {
            uint32_t a[4], bits[8];
#pragma unroll
            for (uint32_t i = 0; i < 8;
                 i++) { // register i / 2: dimension d + 8 (i / 2 % 2), key ..
                uint32_t j = key + i % 2 + i / 4 * 8, e = d + i / 2 % 2 * 8;
                bits[i] = j < n ? load_bits<D>(v->v, v, page, j, e) : 0;
            }
#pragma unroll
            for (uint32_t i = 0; i < 4; i++) a[i] = bits[2 * i] | bits[2 * i + 1] << 16;
            const uint32_t b[2] = {pack_row<D>(s->score[g] + key),
                                   pack_row<D>(s->score[g] + key + 8)};
            device_mma<half_type<D>::type>(sum, a, b);
        }
#pragma unroll
        for (uint32_t i = 0; i < 4; i++) *o[i] = sum[i];
    }
}

DEVICE_FN void tile_values_f32(struct shared *s, const struct view *v, uint64_t page, uint32_t n) {
    float *values = values_of(s, v, CHUNK);
    for (uint32_t i = threadIdx.x; i < QUERIES * v->dim; i += THREADS) {
        uint32_t query = i / v->dim, d = i % v->dim;
        const float *x = (const float *)v->v + page + d;
        float sum = values[i] * s->old[query];
        for (uint32_t j = 0; j < n; j++)
            sum = fmaf(s->score[query][j], x[(uint64_t)j * v->dim], sum);
        values[i] = sum;
    }
}

// What level `to` has takes in the level below, which is emptied.
template <enum dtype D> DEVICE_FN void join(struct shared *s, const struct view *v, enum level to) {
    enum level from = (enum level)(to - 1);
    if (threadIdx.x < QUERIES) {
        uint32_t i = threadIdx.x;
        float was = s->max[to][i], now = fmaxf(was, s->max[from][i]);
        s->old[i] = weight<D>(v, was, now);
        s->fresh[i] = weight<D>(v, s->max[from][i], now);
        s->sum[to][i] = fmaf(s->sum[from][i], s->fresh[i], s->sum[to][i] * s->old[i]);
        s->max[to][i] = now;
        s->max[from][i] = none;
        s->sum[from][i] = 0;
    }
    __syncthreads();
    float *x = values_of(s, v, from), *y = values_of(s, v, to);
    for (uint32_t i = threadIdx.x; i < QUERIES * v->dim; i += THREADS) {
        y[i] = fmaf(x[i], s->fresh[i / v->dim], y[i] * s->old[i / v->dim]);
        x[i] = 0;
    }
    __syncthreads();
}

DEVICE_FN void sum_classes(struct shared *s) {
    if (threadIdx.x < QUERIES) {
        float *c = s->sums[threadIdx.x];
        s->sum[CHUNK][threadIdx.x] = (c[0] + c[2]) + (c[1] + c[3]);
        for (uint32_t i = 0; i < CLASSES; i++) c[i] = 0;
    }
}

template <enum dtype D> DEVICE_FN void run_tiles(struct shared *s, const struct view *v) {
    for (uint32_t tile = 0; tile <= v->pos / ATTN_TILE; tile++) {
        uint32_t left = v->pos + 1 - tile * ATTN_TILE, n = left < ATTN_TILE ? left : ATTN_TILE;
        uint64_t page = kv_page_at(v->kv, v->pages, tile * ATTN_TILE, v->head);
        if (D == DTYPE_F32)
            tile_scores_f32(s, v, page, n);
        else
            tile_scores<D>(s, v, page, n);
        __syncthreads();
        tile_softmax<D>(s, v, n);
        __syncthreads();
        if (D == DTYPE_F32)
            tile_values_f32(s, v, page, n);
        else
            tile_values<D>(s, v, page, n);
        __syncthreads();
        if (left > ATTN_TILE && !attn_chunk_ends(tile)) continue;
        sum_classes(s);
        join<D>(s, v, GROUP);
        if (left <= ATTN_TILE || attn_group_ends(tile)) join<D>(s, v, ALL);
    }
}

template <enum dtype D> DEVICE_FN void attn(const struct attn_args &a) {
    extern __shared__ __align__(16) unsigned char memory[];
    struct shared *s = reinterpret_cast<struct shared *>(memory);
    uint32_t t = blockIdx.x, dim = a.kv.dim, group = a.heads / a.kv.heads;
    uint32_t first = blockIdx.z * QUERIES, left = group - first;
    uint32_t count = left < QUERIES ? left : QUERIES;
    uint64_t head = (uint64_t)t * a.heads + blockIdx.y * group + first;
    const float *qg = device_ptr<const float>(a.qg) + head * 2 * dim;
    device_let_next();
    device_wait_prior();
    uint64_t slot = device_ptr<const uint32_t>(a.rows.slot)[t];
    struct view v = {.k = device_ptr<const void>(a.kv.k),
                     .v = device_ptr<const void>(a.kv.v),
                     .kv = &a.kv,
                     .pages = device_ptr<const uint32_t>(a.kv.table) + slot * a.kv.pages_per_slot,
                     .pos = device_ptr<const uint32_t>(a.rows.pos)[t],
                     .dim = dim,
                     .head = blockIdx.y,
                     .scale = a.scale,
                     .unit = attn_unit(a.scale)};
    for (uint32_t i = threadIdx.x; i < QUERIES * dim; i += THREADS) {
        s->rows[i] = i < count * dim ? qg[(uint64_t)(i / dim) * 2 * dim + i % dim] : 0;
        for (uint32_t l = 0; l < LEVELS; l++) values_of(s, &v, (enum level)l)[i] = 0;
    }
    if (threadIdx.x < QUERIES) {
        for (uint32_t l = 0; l < LEVELS; l++) {
            s->max[l][threadIdx.x] = none;
            s->sum[l][threadIdx.x] = 0;
        }
        for (uint32_t i = 0; i < CLASSES; i++) s->sums[threadIdx.x][i] = 0;
    }
    __syncthreads();
    run_tiles<D>(s, &v);
    float *out = device_ptr<float>(a.out) + head * dim;
    for (uint32_t i = threadIdx.x; i < count * dim; i += THREADS) {
        float gate = qg[(uint64_t)(i / dim) * 2 * dim + dim + i % dim];
        float part = 1.0f / s->sum[ALL][i / dim];
        out[i] = (values_of(s, &v, ALL)[i] * part) * arith_sigmoid(gate);
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
