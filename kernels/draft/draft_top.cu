/* draft_top: see draft_top.h.
 *
 * A candidate is one number of 64 bits: the value in an order of unsigned numbers, then the id turned round, so that greater is better,
 * no two are equal and none is 0. A warp keeps the k best it has seen, the i-th in lane i, and looks at 256 candidates at a time: most
 * often none of them is better than the last one kept, else the k best of both are taken out one after the other. draft_top does so for
 * pieces of a row, and the warps of a block put theirs together; draft_top_merge for what the blocks of a row left.
 * Cost    the row once. */
#include "kernels/draft/draft_top_params.h"
#include "kernels/draft/draft_where.cuh"

enum { WARPS = DRAFT_TOP_WARPS, PER_LANE = DRAFT_TOP_BATCH / WARP };

DEVICE_FN uint64_t key_of(float x, uint32_t id) {
    if (x != x) x = -INFINITY;
    if (x == 0) x = 0; // -0 is 0
    uint32_t u = arith_bits(x);
    u = u & 0x80000000u ? ~u : u | 0x80000000u;
    return (uint64_t)u << 32 | (uint32_t)~id;
}

DEVICE_FN float value_of(uint64_t key) {
    uint32_t u = (uint32_t)(key >> 32);
    return arith_float(u & 0x80000000u ? u & 0x7fffffffu : ~u);
}

DEVICE_FN uint64_t greater(uint64_t a, uint64_t b) {
    return a > b ? a : b;
}

DEVICE_FN uint64_t warp_greatest(uint64_t v) {
#pragma unroll
    for (int d = WARP / 2; d; d /= 2)
        v = greater(v, __shfl_xor_sync(0xffffffffu, (unsigned long long)v, d));
    return v;
}

DEVICE_FN uint64_t greatest_of(const uint64_t key[PER_LANE]) {
    uint64_t best = key[0];
#pragma unroll
    for (int j = 1; j < PER_LANE; j++) best = greater(best, key[j]);
    return best;
}

// kept: lane i has the i-th best so far, or 0; the k best of them and of key. key is used up.
DEVICE_FN uint64_t keep_best(uint64_t kept, uint64_t key[PER_LANE], uint32_t k) {
    uint64_t mine = greatest_of(key),
             last = __shfl_sync(0xffffffffu, (unsigned long long)kept, k - 1);
    uint64_t now = 0;
    if (!__any_sync(0xffffffffu, mine > last)) return kept;
    mine = greater(mine, kept);
    for (uint32_t i = 0; i < k; i++) {
        uint64_t best = warp_greatest(mine);
        if (!best) break;
        if (threadIdx.x % WARP == i) now = best;
        if (mine != best) continue;
        kept = kept == best ? 0 : kept;
#pragma unroll
        for (int j = 0; j < PER_LANE; j++) key[j] = key[j] == best ? 0 : key[j];
        mine = greater(kept, greatest_of(key));
    }
    return now;
}

// What the warps of a block kept, together, in the first warp.
DEVICE_FN uint64_t keep_block(uint64_t kept, uint32_t k) {
    __shared__ uint64_t all[WARPS][WARP];
    all[threadIdx.x / WARP][threadIdx.x % WARP] = kept;
    __syncthreads();
    if (threadIdx.x >= WARP) return 0;
    uint64_t key[PER_LANE];
#pragma unroll
    for (int j = 0; j < PER_LANE; j++) key[j] = j < WARPS ? all[j][threadIdx.x] : 0;
    return keep_best(0, key, k);
}

// Grid: blocks of a row, rows.
extern "C" __global__ void __launch_bounds__(WARPS *WARP)
    draft_top(const struct draft_top_params p) {
    const struct draft_top_args &a = p.a;
    uint32_t row = blockIdx.y, lane = threadIdx.x % WARP;
    uint32_t warp = blockIdx.x * WARPS + threadIdx.x / WARP,
             step = p.blocks * WARPS * DRAFT_TOP_BATCH;
    uint64_t kept = 0;
    device_let_next();
    device_wait_prior();
    for (uint32_t i = 0; i < a.parts_count; i++) {
        const struct draft_top_part &part = a.parts[i];
        const float *x =
            device_ptr<const float>(part.logits) + (uint64_t)row * part.stride + part.col;
        for (uint32_t at = warp * DRAFT_TOP_BATCH; at < part.count; at += step) {
            uint64_t key[PER_LANE];
#pragma unroll
            for (int j = 0; j < PER_LANE; j++) {
                uint32_t c = at + j * WARP + lane;
                key[j] = c < part.count ? key_of(x[c], part.id + c) : 0;
            }
            kept = keep_best(kept, key, a.k);
        }
    }
    kept = keep_block(kept, a.k);
    if (threadIdx.x < a.k)
        device_ptr<uint64_t>(p.keys)[((uint64_t)row * p.blocks + blockIdx.x) * a.k + threadIdx.x] =
            kept;
}

// Grid: rows.
extern "C" __global__ void __launch_bounds__(WARPS *WARP)
    draft_top_merge(const struct draft_top_params p) {
    const struct draft_top_args &a = p.a;
    uint32_t row = blockIdx.x, lane = threadIdx.x % WARP, count = p.blocks * a.k;
    const uint64_t *from = device_ptr<const uint64_t>(p.keys) + (uint64_t)row * count;
    uint64_t kept = 0;
    device_let_next();
    device_wait_prior();
    for (uint32_t at = threadIdx.x / WARP * DRAFT_TOP_BATCH; at < count;
         at += WARPS * DRAFT_TOP_BATCH) {
        uint64_t key[PER_LANE];
#pragma unroll
        for (int j = 0; j < PER_LANE; j++) {
            uint32_t c = at + j * WARP + lane;
            key[j] = c < count ? from[c] : 0;
        }
        kept = keep_best(kept, key, a.k);
    }
    kept = keep_block(kept, a.k);
    if (threadIdx.x >= a.k) return;
    device_ptr<uint32_t>(a.ids)[(uint64_t)row * a.k + threadIdx.x] = ~(uint32_t)kept;
    device_ptr<float>(a.values)[(uint64_t)row * a.k + threadIdx.x] = value_of(kept);
}
