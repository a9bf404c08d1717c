/* router: see router.h. A warp is a row; its probabilities are in shared memory, or in place of the logits where there are more than fit.
 *
 * Order   lane l adds e^(logit - max) of the experts l, l + 32, .. to its sum; lanes add by xor 16, 8, 4, 2, 1. The sum of
 *         the chosen p from the largest down.
 * Equals  router_ref.c, bit for bit.
 * Cost    4 X bytes a row; its latency: a pass over X / 32 probabilities a lane for each choice. */
#include "kernels/cuda/device.cuh"
#include "kernels/moe/router.h"

static __device__ const float taken = -1.0f;
enum { SHARED_MAX = 1024 };

// Of two places the one with the larger p; of equal ones, and where nothing compares, the first.
DEVICE_FN void better(float *p, uint32_t *at, float other, uint32_t other_at) {
    if (other > *p || (!(*p > other) && other_at < *at)) {
        *p = other;
        *at = other_at;
    }
}

/* The first of the largest that are left. A NaN compares with nothing, so it counts as the smallest value: below any
 * probability, above a taken place. */
DEVICE_FN uint32_t largest(const float *p, uint32_t n, uint32_t lane) {
    float best = -3.0f;
    uint32_t at = n + lane;
    for (uint32_t e = lane; e < n; e += WARP) {
        float v = p[e];
        v = v == taken ? -2.0f : v != v ? -0.5f : v;
        better(&best, &at, v, e);
    }
#pragma unroll
    for (int d = WARP / 2; d; d /= 2) {
        float v = __shfl_xor_sync(0xffffffffu, best, d);
        uint32_t e = __shfl_xor_sync(0xffffffffu, at, d);
        better(&best, &at, v, e);
    }
    return at;
}

extern "C" __global__ void __launch_bounds__(WARP) router(const struct router_args a) {
    uint32_t lane = threadIdx.x, n = a.count;
    uint64_t t = blockIdx.x;
    __shared__ float row[SHARED_MAX];
    device_wait_prior();
    device_let_next();
    float *logits = device_ptr<float>(a.logits) + t * n, *p = n <= SHARED_MAX ? row : logits;
    float max = logits[0], sum = 0;
    for (uint32_t e = lane; e < n; e += WARP) {
        p[e] = logits[e];
        max = p[e] > max ? p[e] : max;
    }
    max = device_warp_max(max);
    __syncwarp();
    for (uint32_t e = lane; e < n; e += WARP) {
        p[e] = arith_exp(p[e] - max);
        sum = sum + p[e];
    }
    sum = device_warp_sum(sum);
    for (uint32_t e = lane; e < n; e += WARP) p[e] = p[e] / sum;
    __syncwarp();
    uint32_t *experts = device_ptr<uint32_t>(a.experts) + t * a.per_token;
    float *weights = device_ptr<float>(a.weights) + t * a.per_token, chosen = 0;
    for (uint32_t i = 0; i < a.per_token; i++) {
        uint32_t e = largest(p, n, lane);
        float v = p[e];
        __syncwarp();
        chosen = chosen + v;
        if (lane == 0) {
            experts[i] = e;
            weights[i] = v;
            p[e] = taken;
        }
        __syncwarp();
    }
    for (uint32_t i = lane; i < a.per_token; i += WARP) weights[i] = weights[i] / chosen;
}
