/* draw: see draw.h. A block is a piece of a row. draw_top finds each piece's greatest logit; draw_pick the row's, and for rows with a temperature
 * the best score of each piece, of which the row's last block takes the best. Scores are bounded in fp32 first: their division and two logarithms
 * in double are for those alone that may be a piece's best.
 * Equals  draw_ref.c, and sample_draw.
 * Cost    4 V bytes a row from memory, once more from the cache: 0.24 us a row of 248,320 at 4.2 TB/s. On an H200 two launches for a greedy row
 *         take 6 us; 64 rows, half of them with a temperature, 90, most of it hashes and bounds. */
#include "kernels/cuda/quads.cuh"
#include "kernels/sample/draw.h"
#include "kernels/sample/draw_order.h"
#include "kernels/sample/noise.h"

enum { WARPS = DRAW_THREADS / WARP };
static __device__ const uint32_t not_drawable =
    UINT32_MAX; // upper half of an id's word: behind all logits

// Word of id i, whose logit is x: ascending from the greatest logit; ids in use that may not be drawn stand behind.
DEVICE_FN uint64_t word_of(float x, uint32_t i, bool used) {
    if (!used) return UINT64_MAX;
    x = noise_tame(x);
    return x == -HUGE_VALF ? (uint64_t)not_drawable << 32 | i : noise_cand(x, i);
}

DEVICE_FN uint64_t warp_least(uint64_t v) {
#pragma unroll
    for (int d = WARP / 2; d; d /= 2) {
        uint64_t o = __shfl_xor_sync(0xffffffffu, (unsigned long long)v, d);
        v = o < v ? o : v;
    }
    return v;
}

DEVICE_FN void better(struct draw_best &b, const struct draw_best &o) {
    if (o.score > b.score || (o.score == b.score && o.cand < b.cand)) b = o;
}

DEVICE_FN struct draw_best warp_best(struct draw_best b) {
#pragma unroll
    for (int d = WARP / 2; d; d /= 2) {
        struct draw_best o = {__shfl_xor_sync(0xffffffffu, b.score, d),
                              __shfl_xor_sync(0xffffffffu, (unsigned long long)b.cand, d)};
        better(b, o);
    }
    return b;
}

// A thread's ids of a piece.
struct ids {
    float4 x[DRAW_QUADS];
    uint32_t used[DRAW_QUADS]; // four bits each
};

DEVICE_FN uint32_t quad_at(uint32_t i) {
    return (blockIdx.x * DRAW_QUADS + i) * DRAW_THREADS + threadIdx.x;
}

DEVICE_FN const float *row_of(const struct draw_args &a) {
    return device_ptr<const float>(a.logits) + (uint64_t)blockIdx.y * a.vocab;
}

DEVICE_FN void load_ids(struct ids &ret, const struct draw_args &a) {
    const float *row = row_of(a);
    const uint32_t *used = device_ptr<const uint32_t>(a.used_bits);
    bool whole = quads_whole(row, a.vocab);
#pragma unroll
    for (uint32_t i = 0; i < DRAW_QUADS; i++) {
        uint32_t id = quad_at(i) * 4, left = id < a.vocab ? a.vocab - id : 0;
        ret.x[i] = quads_load(row, quad_at(i), a.vocab, whole);
        ret.used[i] = left < 4 ? (1u << left) - 1 : 15;
        if (used && left) ret.used[i] &= used[id / 32] >> id % 32;
    }
}

DEVICE_FN float logit_of(const struct ids &d, uint32_t i, uint32_t k) {
    return k == 0 ? d.x[i].x : k == 1 ? d.x[i].y : k == 2 ? d.x[i].z : d.x[i].w;
}

extern "C" __global__ void __launch_bounds__(DRAW_THREADS) draw_top(const struct draw_params p) {
    __shared__ uint64_t part[WARPS];
    struct ids d;
    uint64_t least = UINT64_MAX;
    device_wait_prior();
    device_let_next();
    load_ids(d, p.a);
#pragma unroll
    for (uint32_t i = 0; i < DRAW_QUADS; i++)
#pragma unroll
        for (uint32_t k = 0; k < 4; k++) {
            uint64_t w = word_of(logit_of(d, i, k), quad_at(i) * 4 + k, d.used[i] >> k & 1);
            least = w < least ? w : least;
        }
    least = warp_least(least);
    if (threadIdx.x % WARP == 0) part[threadIdx.x / WARP] = least;
    __syncthreads();
    if (threadIdx.x >= WARP) return;
    least = warp_least(threadIdx.x < WARPS ? part[threadIdx.x] : UINT64_MAX);
    if (threadIdx.x == 0)
        device_ptr<uint64_t>(p.tops)[(uint64_t)blockIdx.y * p.pieces + blockIdx.x] = least;
}

// The row's least word, for every thread.
DEVICE_FN uint64_t row_top(const struct draw_params &p) {
    const uint64_t *tops = device_ptr<const uint64_t>(p.tops) + (uint64_t)blockIdx.y * p.pieces;
    uint64_t least = UINT64_MAX;
    for (uint32_t i = threadIdx.x % WARP; i < p.pieces; i += WARP)
        least = tops[i] < least ? tops[i] : least;
    return warp_least(least);
}

struct race {
    double temperature, floor;
    uint64_t base;
    float per_degree, floor_below, floor_above; // bounds of the floor
};

DEVICE_FN struct draw_best score_of(const struct race &r, float x, uint32_t id) {
    double z = x / r.temperature;
    if (!(z >= r.floor)) return {-HUGE_VAL, UINT64_MAX};
    return {z + noise_gumbel(noise_u(r.base, id)), noise_cand(x, id)};
}

DEVICE_FN struct race race_of(const struct draw_row &row, uint64_t top) {
    struct race r = {row.temperature};
    r.floor = noise_floor(noise_cand_logit(top) / row.temperature, row.min_p);
    r.base = noise_base(row.seed, row.position);
    r.per_degree = (float)(1 / row.temperature);
    r.floor_below = __double2float_rd(r.floor);
    r.floor_above = __double2float_ru(r.floor);
    return r;
}

// Bounds of a score; one that says nothing is not a number.
struct range {
    float low, high;
};

/* In fp32. u is made of the hash's upper bits: of these 32 are looked at, which is enough where neither u nor 1 - u is below 2^-20. The logarithms'
 * errors, 2^-21 and a few units in the last place, and that of the bits left out, 2^-13, together are below 1e-3. */
DEVICE_FN struct range range_of(const struct race &r, float x, uint32_t id) {
    uint32_t high = (uint32_t)(noise_mix(r.base ^ id) >> 32);
    float z = x * r.per_degree, off = fabsf(z) * 1e-6f;
    if (z + off < r.floor_below) return {-HUGE_VALF, -HUGE_VALF};
    if (!(z - off >= r.floor_above) || high < 4096 || ~high < 4096) return {-HUGE_VALF, HUGE_VALF};
    float u = ((float)high + 0.5f) * 0x1p-32f, w = ((float)~high + 0.5f) * 0x1p-32f; // w = 1 - u
    float p =
        fmaf(fmaf(fmaf(fmaf(w, 0.2f, 0.25f), w, 0.33333334f), w, 0.5f), w, 1.0f) * w; // -log(1 - w)
    float t = w < 0.0625f ? p : -__logf(u), score = z - __logf(t);
    off += 1e-3f;
    return {score - off, score + off};
}

DEVICE_FN float warp_max(float v) { // NaNs aside
#pragma unroll
    for (int d = WARP / 2; d; d /= 2) v = fmaxf(v, __shfl_xor_sync(0xffffffffu, v, d));
    return v;
}

// The best of a piece, in the first warp: of the ids that may be it the scores themselves.
DEVICE_FN struct draw_best piece_best(const struct race &r, const float *row, const struct ids &d,
                                      struct draw_best *part, float *lows) {
    struct draw_best best = {-HUGE_VAL, UINT64_MAX};
    float high[DRAW_QUADS][4], low = -HUGE_VALF;
#pragma unroll
    for (uint32_t i = 0; i < DRAW_QUADS; i++)
#pragma unroll
        for (uint32_t k = 0; k < 4; k++) {
            float x = noise_tame(logit_of(d, i, k));
            bool is = (d.used[i] >> k & 1) && x != -HUGE_VALF;
            struct range g = range_of(r, x, quad_at(i) * 4 + k);
            high[i][k] = is ? g.high : -HUGE_VALF;
            low = is ? fmaxf(low, g.low) : low;
        }
    low = warp_max(low);
    if (threadIdx.x % WARP == 0) lows[threadIdx.x / WARP] = low;
    __syncthreads();
    low = warp_max(lows[threadIdx.x % WARPS]);
    uint32_t may = 0;
#pragma unroll
    for (uint32_t i = 0; i < DRAW_QUADS; i++)
#pragma unroll
        for (uint32_t k = 0; k < 4; k++)
            if (!(high[i][k] < low || high[i][k] == -HUGE_VALF)) may |= 1u << (i * 4 + k);
    for (; may; may &= may - 1) {
        uint32_t at = __ffs((int)may) - 1, id = quad_at(at / 4) * 4 + at % 4;
        better(best, score_of(r, noise_tame(row[id]), id));
    }
    best = warp_best(best);
    if (threadIdx.x % WARP == 0) part[threadIdx.x / WARP] = best;
    __syncthreads();
    if (threadIdx.x < WARP) best = warp_best(part[threadIdx.x % WARPS]);
    return best;
}

// The best of the row's pieces, by a warp of the block that came last.
DEVICE_FN uint32_t row_best(const struct draw_params &p) {
    const volatile struct draw_best *bests =
        device_ptr<const struct draw_best>(p.bests) + (uint64_t)blockIdx.y * p.pieces;
    struct draw_best best = {-HUGE_VAL, UINT64_MAX};
    for (uint32_t i = threadIdx.x; i < p.pieces; i += WARP)
        better(best, {bests[i].score, bests[i].cand});
    return (uint32_t)warp_best(best).cand;
}

extern "C" __global__ void __launch_bounds__(DRAW_THREADS) draw_pick(const struct draw_params p) {
    __shared__ struct draw_best part[WARPS];
    __shared__ float lows[WARPS];
    struct ids d;
    device_wait_prior();
    device_let_next();
    load_ids(d, p.a);
    const struct draw_row row = device_ptr<const struct draw_row>(p.a.rows)[blockIdx.y];
    uint32_t *id = device_ptr<uint32_t>(p.a.ids) + blockIdx.y;
    uint64_t top = row_top(p);
    bool none = top >> 32 == not_drawable;
    if (none || row.temperature <
                    DRAW_TEMPERATURE_MIN) { // the smallest id in use, or 0; the greatest logit
        if (blockIdx.x == 0 && threadIdx.x == 0) *id = top == UINT64_MAX ? 0 : (uint32_t)top;
        return;
    }
    struct race r = race_of(row, top);
    struct draw_best best = piece_best(r, row_of(p.a), d, part, lows);
    if (threadIdx.x >= WARP) return;
    uint32_t last = 0;
    if (threadIdx.x == 0) {
        device_ptr<struct draw_best>(p.bests)[(uint64_t)blockIdx.y * p.pieces + blockIdx.x] = best;
        __threadfence();
        uint32_t *counter = device_ptr<uint32_t>(p.counters) + blockIdx.y;
        last = atomicAdd(counter, 1) + 1 == p.pieces;
        if (last) *counter = 0;
        __threadfence();
    }
    if (!__shfl_sync(0xffffffffu, last, 0)) return;
    uint32_t got = row_best(p);
    if (threadIdx.x == 0) *id = got;
}
