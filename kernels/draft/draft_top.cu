/* draft_top: see draft_top.h. A block is a row.
 *
 * A candidate is one number of 64 bits: the value in an order of unsigned numbers, then the id turned round, so that greater is
 * better and no two are equal. Its bits are found from the top, eight at a time: how many candidates have each next byte, and in which byte the
 * k-th best lies, until at most DRAFT_TOP_KEEP are as good as its leading bytes or better. Those are sorted.
 * Cost    the row once for each byte: three times as a rule, from the cache but for the first. */
#include "kernels/draft/draft_top.h"
#include "kernels/draft/draft_where.cuh"

enum { THREADS = DRAFT_TOP_THREADS, KEEP = DRAFT_TOP_KEEP, BYTES = 256 };

DEVICE_FN uint64_t key_of(float x, uint32_t id) {
    if (x != x) x = -INFINITY;
    if (x == 0) x = 0; // -0 is 0
    uint32_t u = arith_bits(x);
    u = u & 0x80000000u ? ~u : u | 0x80000000u;
    return (uint64_t)u << 32 | ~id;
}

DEVICE_FN float value_of(uint64_t key) {
    uint32_t u = (uint32_t)(key >> 32);
    return arith_float(u & 0x80000000u ? u & 0x7fffffffu : ~u);
}

template <class F> DEVICE_FN void each_key(const struct draft_top_args &a, uint32_t row, F f) {
    for (uint32_t i = 0; i < a.parts_count; i++) {
        const struct draft_top_part &p = a.parts[i];
        const float *x = device_ptr<const float>(p.logits) + (uint64_t)row * p.stride + p.col;
        for (uint32_t j = threadIdx.x; j < p.count; j += THREADS) f(key_of(x[j], p.id + j));
    }
}

// Descending; n a power of two.
DEVICE_FN void sort(uint64_t *key, uint32_t n) {
    for (uint32_t size = 2; size <= n; size *= 2)
        for (uint32_t d = size / 2; d; d /= 2) {
            for (uint32_t i = threadIdx.x; i < n; i += THREADS) {
                uint32_t o = i ^ d;
                uint64_t x = key[i], y = key[o];
                bool down = !(i & size);
                if (o > i && (down ? x < y : x > y)) {
                    key[i] = y;
                    key[o] = x;
                }
            }
            __syncthreads();
        }
}

extern "C" __global__ void __launch_bounds__(THREADS) draft_top(const struct draft_top_args a) {
    __shared__ uint32_t counts[BYTES], taken;
    __shared__ uint64_t kept[KEEP];
    __shared__ struct {
        uint64_t least;
        uint32_t above, within;
    } found;
    uint32_t row = blockIdx.x;
    device_wait_prior();
    device_let_next();
    uint64_t prefix = 0; // the leading bytes of the k-th best
    uint32_t above = 0;  // candidates with better ones
    for (int shift = 56;; shift -= 8) {
        for (uint32_t i = threadIdx.x; i < BYTES; i += THREADS) counts[i] = 0;
        __syncthreads();
        each_key(a, row, [&](uint64_t key) {
            if (shift == 56 || key >> (shift + 8) == prefix >> (shift + 8))
                atomicAdd(&counts[key >> shift & 0xff], 1u);
        });
        __syncthreads();
        if (threadIdx.x == 0) {
            uint32_t seen = above, byte = BYTES - 1;
            for (; byte && seen + counts[byte] < a.k; byte--) seen += counts[byte];
            found.least = prefix | (uint64_t)byte << shift;
            found.above = seen;
            found.within = counts[byte];
            taken = 0;
        }
        __syncthreads();
        prefix = found.least;
        above = found.above;
        if (above + found.within <= KEEP || !shift) break;
    }
    for (uint32_t i = threadIdx.x; i < KEEP; i += THREADS) kept[i] = 0;
    __syncthreads();
    each_key(a, row, [&](uint64_t key) {
        if (key >= prefix) kept[atomicAdd(&taken, 1u)] = key;
    });
    __syncthreads();
    uint32_t n = 2;
    while (n < taken) n *= 2;
    sort(kept, n);
    for (uint32_t i = threadIdx.x; i < a.k; i += THREADS) {
        device_ptr<uint32_t>(a.ids)[(uint64_t)row * a.k + i] = ~(uint32_t)kept[i];
        device_ptr<float>(a.values)[(uint64_t)row * a.k + i] = value_of(kept[i]);
    }
}
