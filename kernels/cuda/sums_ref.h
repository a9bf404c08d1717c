/* sums_ref: the sums of device.cuh, lane by lane, for the twins. */
#pragma once
#include <math.h>
#include <stdint.h>

enum { SUMS_WARP = 32, SUMS_LANES_MAX = 1024 };

// v is overwritten; v[0] and every other lane's is the sum.
static inline float sums_warp(float v[SUMS_WARP]) {
    for (uint32_t d = SUMS_WARP / 2; d; d /= 2) {
        float t[SUMS_WARP];
        for (uint32_t i = 0; i < SUMS_WARP; i++) t[i] = v[i] + v[i ^ d];
        for (uint32_t i = 0; i < SUMS_WARP; i++) v[i] = t[i];
    }
    return v[0];
}

// Of a block of lanes: warps, then the warps in order.
static inline float sums_block(float *v, uint32_t lanes) {
    float sum = sums_warp(v);
    for (uint32_t w = SUMS_WARP; w < lanes; w += SUMS_WARP) sum = sum + sums_warp(v + w);
    return sum;
}

/* sum of x[i]^2 by quads: lane l takes quads l, l + lanes, .. of four neighbours and keeps a sum for each place in a quad, fused, from 0;
 * (s0 + s1) + (s2 + s3), then sums_block. */
static inline float sums_quads(const float *x, uint32_t n, uint32_t lanes) {
    float s[SUMS_LANES_MAX * 4] = {0}, v[SUMS_LANES_MAX] = {0};
    for (uint32_t i = 0; i < n; i++) {
        uint32_t at = i % (lanes * 4);
        s[at] = fmaf(x[i], x[i], s[at]);
    }
    for (uint32_t l = 0; l < lanes; l++)
        v[l] = (s[l * 4] + s[l * 4 + 1]) + (s[l * 4 + 2] + s[l * 4 + 3]);
    return sums_block(v, lanes);
}
