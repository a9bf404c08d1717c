/* draw: see draw.h. A block is a row. Two passes over the logits: the greatest, then the scores; an id whose noise cannot lift it to
 * its thread's best so far is passed over before its two logarithms.
 * Equals  draw_ref.c, and sample_draw. */
#include "kernels/cuda/device.cuh"
#include "kernels/sample/draw.h"
#include "kernels/sample/draw_order.h"
#include "kernels/sample/noise.h"

enum { THREADS = DRAW_THREADS };

struct best {
    double score;
    uint64_t cand;
};

DEVICE_FN bool better(double score, uint64_t cand, const struct best &b) {
    return score > b.score || (score == b.score && cand < b.cand);
}

DEVICE_FN bool in_use(const uint32_t *used, uint32_t i) {
    return !used || used[i / 32] >> i % 32 & 1;
}

DEVICE_FN struct best block_best(struct best b, struct best *shared) {
    shared[threadIdx.x] = b;
    __syncthreads();
    for (uint32_t half = THREADS / 2; half; half /= 2) {
        if (threadIdx.x < half) {
            struct best o = shared[threadIdx.x + half];
            if (better(o.score, o.cand, shared[threadIdx.x])) shared[threadIdx.x] = o;
        }
        __syncthreads();
    }
    b = shared[0];
    __syncthreads();
    return b;
}

extern "C" __global__ void __launch_bounds__(THREADS) draw(const struct draw_args a) {
    __shared__ struct best shared[THREADS];
    const float *logits = device_ptr<const float>(a.logits) + (uint64_t)blockIdx.x * a.vocab;
    const uint32_t *used = device_ptr<const uint32_t>(a.used_bits);
    const struct draw_row row = device_ptr<const struct draw_row>(a.rows)[blockIdx.x];
    uint32_t *id = device_ptr<uint32_t>(a.ids) + blockIdx.x, first = UINT32_MAX;
    struct best top = {-HUGE_VAL, UINT64_MAX};
    for (uint32_t i = threadIdx.x; i < a.vocab; i += THREADS) {
        if (!in_use(used, i)) continue;
        first = i < first ? i : first;
        float x = noise_tame(logits[i]);
        if (x != -HUGE_VALF && better(x, noise_cand(x, i), top)) top = {x, noise_cand(x, i)};
    }
    top = block_best(top, shared);
    if (top.cand == UINT64_MAX) { // nothing may be drawn: the smallest id in use
        struct best least = block_best({-(double)first, first}, shared);
        if (threadIdx.x == 0) *id = least.cand == UINT32_MAX ? 0 : (uint32_t)least.cand;
        return;
    }
    if (!(row.temperature < DRAW_TEMPERATURE_MIN)) {
        double floor = noise_floor(top.score / row.temperature, row.min_p);
        uint64_t base = noise_base(row.seed, row.position);
        top = {-HUGE_VAL, UINT64_MAX};
        for (uint32_t i = threadIdx.x; i < a.vocab; i += THREADS) {
            float x = noise_tame(logits[i]);
            if (!in_use(used, i) || x == -HUGE_VALF) continue;
            double z = x / row.temperature, u = noise_u(base, i);
            if (!(z >= floor) || z + noise_bound(u) < top.score) continue;
            double score = z + noise_gumbel(u);
            if (better(score, noise_cand(x, i), top)) top = {score, noise_cand(x, i)};
        }
        top = block_best(top, shared);
    }
    if (threadIdx.x == 0) *id = (uint32_t)top.cand;
}
