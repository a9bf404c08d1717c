/* experts_add: a row's answers to one: from 0, in ascending number of their experts, product and sum rounded apart; then the shared one. */
#pragma once
#include "kernels/moe/experts_work.cuh"

// The lane's four columns of a pick's answer. Sorted ones that have chains are finished by what adds them, the others have been.
DEVICE_FN void experts_load_out(const struct experts_params &p, uint32_t pick, uint32_t channel,
                                float v[4]) {
    uint32_t slot = p.place ? __ldcg(device_ptr<const uint32_t>(p.place) + pick) : pick;
    const float *out = experts_out(p, slot) + channel;
    if (p.a.dim % 4 == 0 && channel < p.a.dim) {
        float4 f = __ldcg(reinterpret_cast<const float4 *>(out));
        v[0] = f.x, v[1] = f.y, v[2] = f.z, v[3] = f.w;
        return;
    }
#pragma unroll
    for (int j = 0; j < 4; j++) v[j] = channel + j < p.a.dim ? __ldcg(out + j) : 0;
}

DEVICE_FN void experts_finish_out(const struct experts_params &p, uint32_t number, uint32_t channel,
                                  float v[4]) {
    if (!p.place) return;
    const struct weight &w = experts_of(p, number).down;
    if (exl3_chain_weight(&w)) experts_finish(v, w.exl3, channel);
}

// How many of a row's k experts are lower than v. All lanes.
DEVICE_FN uint32_t experts_lower(const uint32_t *experts, uint32_t k, uint32_t v) {
    uint32_t lane = threadIdx.x % WARP, lower = 0;
    for (uint32_t from = 0; from < k; from += WARP) {
        uint32_t other = from + lane < k ? __ldcg(experts + from + lane) : UINT32_MAX;
#pragma unroll 8
        for (uint32_t j = 0; j < WARP && from + j < k; j++)
            lower += __shfl_sync(0xffffffffu, other, j) < v;
    }
    return lower;
}

/* The place of the expert of which `nth` of a row's are lower. All lanes; first: how many are lower than the lane's of the first 32. */
DEVICE_FN uint32_t experts_nth(const uint32_t *experts, uint32_t k, uint32_t first, uint32_t nth) {
    uint32_t lane = threadIdx.x % WARP, which = 0;
    for (uint32_t base = 0; base < k; base += WARP) {
        uint32_t lower = first;
        if (base)
            lower = experts_lower(experts, k,
                                  base + lane < k ? __ldcg(experts + base + lane) : UINT32_MAX);
        uint32_t found = __ballot_sync(0xffffffffu, base + lane < k && lower == nth);
        if (found) which = base + __ffs(found) - 1;
    }
    return which;
}

// A warp: 128 columns of row t, the lane's four from `channel` on. The next experts' answers are asked for before the first is added.
DEVICE_FN void experts_add_row(const struct experts_params &p, uint32_t t, uint32_t channel) {
    enum { BATCH = 8 };
    uint32_t k = p.a.per_token, lane = threadIdx.x % WARP;
    const uint32_t *experts = device_ptr<const uint32_t>(p.a.experts) + (uint64_t)t * k;
    const float *weights = device_ptr<const float>(p.a.weights) + (uint64_t)t * k;
    float *to = device_ptr<float>(p.a.shared ? p.a.h : p.a.y) + (uint64_t)t * p.a.dim + channel;
    float y[4] = {0, 0, 0, 0}, last[4] = {0, 0, 0, 0}, h[4] = {0, 0, 0, 0}, gate = 0;
    if (p.a.shared) {
        gate = __ldcg(device_ptr<const float>(p.a.gate) + t);
        experts_load_out(p, t * p.per + k, channel, last);
#pragma unroll
        for (int j = 0; j < 4; j++)
            if (channel + j < p.a.dim) h[j] = __ldcg(to + j);
    }
    uint32_t first = experts_lower(experts, k, lane < k ? __ldcg(experts + lane) : UINT32_MAX);
    for (uint32_t done = 0; done < k; done += BATCH) {
        float v[BATCH][4], weight[BATCH];
        uint32_t which[BATCH];
#pragma unroll
        for (int i = 0; i < BATCH; i++) {
            if (done + i >= k) break;
            which[i] = experts_nth(experts, k, first, done + i);
            weight[i] = __ldcg(weights + which[i]);
            experts_load_out(p, t * p.per + which[i], channel, v[i]);
        }
#pragma unroll
        for (int i = 0; i < BATCH; i++) {
            if (done + i >= k) break;
            if (p.place) experts_finish_out(p, __ldcg(experts + which[i]), channel, v[i]);
#pragma unroll
            for (int j = 0; j < 4; j++) y[j] = y[j] + weight[i] * v[i][j];
        }
    }
    if (p.a.shared) {
        float s = arith_sigmoid(gate);
        experts_finish_out(p, p.a.count, channel, last);
#pragma unroll
        for (int j = 0; j < 4; j++) y[j] = h[j] + (y[j] + s * last[j]);
    }
#pragma unroll
    for (int j = 0; j < 4; j++)
        if (channel + j < p.a.dim) to[j] = y[j];
}

/* All threads: the block's answers to 128 outputs of its picks are there. Of rows of which they are the last ones, these columns are added
 * up. */
DEVICE_FN void experts_add_last(const struct experts_params &p, const struct experts_picks &picks,
                                uint32_t count, uint32_t block) {
    __shared__ uint32_t last;
    if (threadIdx.x == 0) last = 0;
    __threadfence();
    __syncthreads();
    if (threadIdx.x < count) {
        uint32_t *arrived = device_ptr<uint32_t>(p.arrived) +
                            (uint64_t)picks.rows[threadIdx.x] * (p.a.dim / EXL3_BLOCK) + block;
        if (atomicAdd(arrived, 1) == p.per - 1) {
            *arrived = 0;
            atomicOr(&last, 1u << threadIdx.x);
        }
    }
    __syncthreads();
    uint32_t mine = last;
    __syncthreads(); // it may be called again
    if (!mine) return;
    __threadfence();
    uint32_t channel = block * EXL3_BLOCK + threadIdx.x % WARP * 4;
    for (uint32_t row = threadIdx.x / WARP; row < count; row += blockDim.x / WARP)
        if (mine >> row & 1) experts_add_row(p, picks.rows[row], channel);
}
