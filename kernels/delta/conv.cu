/* conv, conv_store: see conv.h. A thread is a quad of channels: of a strip of rows, whose last inputs it keeps, or of a run's state.
 *
 * Order   taps ascending, each fused into the sum, from 0; what lies before position 0 is 0.
 * Equals  conv_ref.c, bit for bit.
 * Cost    8 C bytes a row, m read and y written: 40 us for 2,048 rows of 10,240 at 4.2 TB/s; an H200 takes 62, with
 *         exponentials and divisions. The rows before a strip are in the cache. */
#include "kernels/cuda/runs.cuh"
#include "kernels/delta/conv.cuh"
#include "kernels/delta/delta_commit.h"

enum { AHEAD = 2 }; // rows asked for at once

// Rows t .. end - 1 of a run.
DEVICE_FN void conv_strip(const struct conv_quad &c, const struct conv_source &s, float *y,
                          uint32_t t, uint32_t end, uint32_t quad) {
    float4 x[CONV_BEFORE + AHEAD];
#pragma unroll
    for (uint32_t i = 0; i < CONV_BEFORE; i++) x[i] = conv_input(s, t, CONV_BEFORE - i, quad);
    for (; t < end; t += AHEAD) {
#pragma unroll
        for (uint32_t i = 0; i < AHEAD; i++)
            if (t + i < end)
                x[CONV_BEFORE + i] =
                    quads_load(s.m + (uint64_t)(t + i) * s.channels, quad, s.channels, s.whole);
#pragma unroll
        for (uint32_t i = 0; i < AHEAD; i++)
            if (t + i < end)
                quads_store(y + (uint64_t)(t + i) * s.channels, quad, s.channels, s.whole,
                            conv_row(c, x + i));
#pragma unroll
        for (uint32_t i = 0; i < CONV_BEFORE; i++) x[i] = x[AHEAD + i];
    }
}

extern "C" __global__ void __launch_bounds__(128, 8) conv(const struct conv_args a) {
    uint32_t quad = blockIdx.x * blockDim.x + threadIdx.x, n = a.channels;
    uint32_t strip = (a.rows.count + gridDim.y - 1) / gridDim.y, row = blockIdx.y * strip;
    uint32_t end = row + strip < a.rows.count ? row + strip : a.rows.count;
    const float *m = device_ptr<const float>(a.m), *w = device_ptr<const float>(a.w);
    float *y = device_ptr<float>(a.y);
    bool whole = quads_whole(m, n) && quads_whole(w, n) && quads_whole(y, n) &&
                 quads_whole(device_ptr<float>(a.state), n) && a.slot_stride % 16 == 0;
    struct conv_quad c;
#pragma unroll
    for (uint32_t j = 0; j < CONV_TAPS; j++)
        c.w[j] = quads_load(w + (uint64_t)j * n, quad, n, whole);
    device_wait_prior();
    device_let_next();
    while (row < end) {
        const struct run *run = runs_find(a.rows.runs, a.rows.runs_count, row);
        uint32_t t = row - run->row, stop = end - run->row;
        if (run->count < stop) stop = run->count;
        struct conv_source s = {m + (uint64_t)run->row * n,
                                device_ptr<const float>(a.state + run->slot * a.slot_stride), n,
                                run->pos, whole};
        conv_strip(c, s, y + (uint64_t)run->row * n, t, stop, quad);
        row += stop - t;
    }
}

DEVICE_FN void store_run(const struct conv_store_args &a, const struct run *run) {
    uint32_t quad = blockIdx.x * blockDim.x + threadIdx.x, n = a.channels;
    if (quad * 4 >= n || run->record) return;
    float *state = device_ptr<float>(a.state + run->slot * a.slot_stride);
    const float *m = device_ptr<const float>(a.m) + (uint64_t)run->row * n;
    struct conv_source s = {m, state, n, run->pos, quads_whole(m, n) && quads_whole(state, n)};
    conv_keep(s, state, run->count, quad, a.stale);
}

extern "C" __global__ void conv_store(const struct conv_store_args a) {
    device_wait_prior();
    device_let_next();
    store_run(a, device_ptr<const struct run>(a.runs) + blockIdx.y);
}

extern "C" __global__ void delta_commit_conv(const struct delta_commit_args c) {
    struct conv_store_args a = c.conv;
    device_wait_prior();
    device_let_next();
    a.state += blockIdx.z * c.layer_bytes;
    a.m += blockIdx.z * c.m_bytes;
    store_run(a, device_ptr<const struct run>(a.runs) + blockIdx.y);
}
