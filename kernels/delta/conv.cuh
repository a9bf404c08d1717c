/* conv: what conv.cu and delta_mix.cu share: a quad of channels at one row. */
#pragma once
#include "kernels/cuda/quads.cuh"
#include "kernels/delta/conv.h"

enum { CONV_BEFORE = CONV_TAPS - 1 };

struct conv_quad {
    float4 w[CONV_TAPS];
};

// Taps ascending, each fused into the sum, from 0; then SiLU. x: the inputs, oldest first.
DEVICE_FN float4 conv_row(const struct conv_quad &c, const float4 x[CONV_TAPS]) {
    float4 s = {0, 0, 0, 0};
#pragma unroll
    for (uint32_t j = 0; j < CONV_TAPS; j++) {
        s.x = fmaf(c.w[j].x, x[j].x, s.x);
        s.y = fmaf(c.w[j].y, x[j].y, s.y);
        s.z = fmaf(c.w[j].z, x[j].z, s.z);
        s.w = fmaf(c.w[j].w, x[j].w, s.w);
    }
    return quads_silu(s);
}

struct conv_source {
    const float *m, *state; // of the run's first row; of its slot
    uint32_t channels, pos;
    bool whole;
};

// Quad `quad` of the input `back` rows before row t of the run: from its rows, from its state, or 0 before position 0.
DEVICE_FN float4 conv_input(const struct conv_source &s, uint32_t t, uint32_t back, uint32_t quad) {
    if (back <= t)
        return quads_load(s.m + (uint64_t)(t - back) * s.channels, quad, s.channels, s.whole);
    if (back > s.pos + t) return {0, 0, 0, 0};
    return quads_load(s.state + (uint64_t)(CONV_BEFORE - (back - t)) * s.channels, quad, s.channels,
                      s.whole);
}

// The last inputs of state and run together become the state's. stale: a planted fault, the oldest stays what it was.
DEVICE_FN void conv_keep(const struct conv_source &s, float *state, uint32_t count, uint32_t quad,
                         bool stale) {
    float4 in[CONV_BEFORE];
#pragma unroll
    for (uint32_t i = 0; i < CONV_BEFORE; i++) {
        uint32_t at = count + i;
        const float *row = at < CONV_BEFORE ? s.state + (uint64_t)at * s.channels
                                            : s.m + (uint64_t)(at - CONV_BEFORE) * s.channels;
        in[i] = quads_load(row, quad, s.channels, s.whole);
    }
#pragma unroll
    for (uint32_t i = 0; i < CONV_BEFORE; i++)
        if (!(stale && i == 0 && count > 1))
            quads_store(state + (uint64_t)i * s.channels, quad, s.channels, s.whole, in[i]);
}
