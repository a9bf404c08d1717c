/* conv, conv_store: see conv.h. A thread is a channel: of a row, or of a run's state.
 *
 * Order   taps ascending, each fused into the sum, from 0; what lies before position 0 is left out.
 * Equals  conv_ref.c, bit for bit. */
#include "kernels/cuda/device.cuh"
#include "kernels/cuda/runs.cuh"
#include "kernels/delta/conv.h"

enum { BEFORE = CONV_TAPS - 1 };

extern "C" __global__ void conv(const struct conv_args a) {
    uint32_t row = blockIdx.y, c = blockIdx.x * blockDim.x + threadIdx.x, n = a.channels;
    if (c >= n) return;
    const struct run *run = runs_find(a.rows.runs, a.rows.runs_count, row);
    const float *m = device_ptr<const float>(a.m), *w = device_ptr<const float>(a.w);
    const float *state = device_ptr<const float>(a.state + run->slot * a.slot_stride);
    uint32_t t = row - run->row;
    float sum = 0;
    for (uint32_t j = 0; j < CONV_TAPS; j++) {
        uint32_t back = BEFORE - j;
        if (back > run->pos + t) continue;
        float x = back <= t ? m[(uint64_t)(row - back) * n + c]
                            : state[(uint64_t)(BEFORE - (back - t)) * n + c];
        sum = fmaf(w[(uint64_t)j * n + c], x, sum);
    }
    device_ptr<float>(a.y)[(uint64_t)row * n + c] = arith_silu(sum);
}

extern "C" __global__ void conv_store(const struct conv_store_args a) {
    const struct run *run = device_ptr<const struct run>(a.runs) + blockIdx.y;
    uint32_t c = blockIdx.x * blockDim.x + threadIdx.x, n = a.channels;
    if (c >= n || run->record) return;
    float *state = device_ptr<float>(a.state + run->slot * a.slot_stride) + c, in[BEFORE];
    const float *m = device_ptr<const float>(a.m) + (uint64_t)run->row * n + c;
    for (uint32_t i = 0; i < BEFORE; i++) { // the last inputs of state and run together
        uint32_t at = run->count + i;
        in[i] = at < BEFORE ? state[(uint64_t)at * n] : m[(uint64_t)(at - BEFORE) * n];
    }
    for (uint32_t i = 0; i < BEFORE; i++) {
        if (a.stale && i == 0 && run->count > 1) continue; // the planted fault
        state[(uint64_t)i * n] = in[i];
    }
}
