/* router: see router.h. A warp is a row, whose probabilities lie in registers where there are few experts, else in the logits' place.
 *
 * Order   lane l adds e^(logit - max) of the experts l, l + 32, .. to its sum; lanes add by xor 16, 8, 4, 2, 1. The sum of
 *         the chosen p from the largest down.
 * Equals  router_ref.c, bit for bit. */
#include "kernels/cuda/device.cuh"
#include "kernels/moe/router.h"

static __device__ const float taken = -1.0f;

// Of two places the one with the larger p; of equal ones, and where nothing compares, the first.
DEVICE_FN void better(float *p, uint32_t *at, float other, uint32_t other_at) {
    if (other > *p || (!(*p > other) && other_at < *at)) {
        *p = other;
        *at = other_at;
    }
}

// Of a value in a choice. A NaN compares with nothing, so it counts as the smallest value: below any probability, above a taken place.
DEVICE_FN float weigh(float v) {
    return v == taken ? -2.0f : v != v ? -0.5f : v;
}

// The best of all lanes.
DEVICE_FN void best_of_warp(float *best, uint32_t *at) {
#pragma unroll
    for (int d = WARP / 2; d; d /= 2) {
        float v = __shfl_xor_sync(0xffffffffu, *best, d);
        uint32_t e = __shfl_xor_sync(0xffffffffu, *at, d);
        better(best, at, v, e);
    }
}

/* Probabilities of up to WARP * EACH experts in registers, of any count in memory: get(i), put(i, v) of the lane's i-th. Returns the
 * chosen ones' in *chosen, by lane. */
template <class Values>
DEVICE_FN void choose(const struct router_args &a, uint64_t t, uint32_t each, Values &p) {
    uint32_t lane = threadIdx.x, n = a.count;
    float max = p.first(), sum = 0;
#pragma unroll Values::UNROLL
    for (uint32_t i = 0; i < each; i++)
        if (lane + i * WARP < n) max = p.get(i) > max ? p.get(i) : max;
    max = device_warp_max(max);
#pragma unroll Values::UNROLL
    for (uint32_t i = 0; i < each; i++)
        if (lane + i * WARP < n) {
            float v = arith_exp(p.get(i) - max);
            p.put(i, v);
            sum = sum + v;
        }
    sum = device_warp_sum(sum);
#pragma unroll Values::UNROLL
    for (uint32_t i = 0; i < each; i++)
        if (lane + i * WARP < n) p.put(i, p.get(i) / sum);
    uint32_t *experts = device_ptr<uint32_t>(a.experts) + t * a.per_token;
    float *weights = device_ptr<float>(a.weights) + t * a.per_token, chosen = 0;
    for (uint32_t k = 0; k < a.per_token; k++) {
        float best = -3.0f, v = 0;
        uint32_t at = n + lane;
#pragma unroll Values::UNROLL
        for (uint32_t i = 0; i < each; i++)
            if (lane + i * WARP < n) better(&best, &at, weigh(p.get(i)), lane + i * WARP);
        best_of_warp(&best, &at);
#pragma unroll Values::UNROLL
        for (uint32_t i = 0; i < each; i++)
            if (at == lane + i * WARP) {
                v = p.get(i);
                p.put(i, taken);
            }
        v = __shfl_sync(0xffffffffu, v, at % WARP);
        chosen = chosen + v;
        if (lane == 0) {
            experts[k] = at;
            weights[k] = v;
        }
    }
    __syncwarp();
    for (uint32_t i = lane; i < a.per_token; i += WARP) weights[i] = weights[i] / chosen;
}

struct in_registers {
    enum { EACH = 8, UNROLL = EACH };
    float v[EACH], zeroth;

    __device__ __forceinline__ float first() const { return zeroth; }
    __device__ __forceinline__ float get(uint32_t i) const { return v[i]; }
    __device__ __forceinline__ void put(uint32_t i, float x) { v[i] = x; }
};

struct in_memory {
    enum { UNROLL = 1 };
    float *p;

    __device__ __forceinline__ float first() const { return __ldcg(p); }
    __device__ __forceinline__ float get(uint32_t i) const {
        return __ldcg(p + threadIdx.x + i * WARP);
    }
    __device__ __forceinline__ void put(uint32_t i, float x) {
        __stcg(p + threadIdx.x + i * WARP, x);
    }
};

extern "C" __global__ void __launch_bounds__(WARP) router(const struct router_args a) {
    uint64_t t = blockIdx.x;
    uint32_t lane = threadIdx.x, each = (a.count + WARP - 1) / WARP;
    float *logits = device_ptr<float>(a.logits) + t * a.count;
    device_let_next();
    device_wait_prior();
    if (each > in_registers::EACH) {
        struct in_memory p = {logits};
        choose(a, t, each, p);
        return;
    }
    struct in_registers p;
    p.zeroth = __ldcg(logits);
#pragma unroll
    for (uint32_t i = 0; i < in_registers::EACH; i++)
        p.v[i] = lane + i * WARP < a.count ? __ldcg(logits + lane + i * WARP) : 0;
    choose(a, t, in_registers::EACH, p);
}
