/* delta_mix: see delta_mix.h; for few rows a run. A block is a run and a value head, with all of its state in registers, a warp 16 columns; it
 * makes the queries and keys of its key head itself, as the other blocks of that head do. MIX_ROWS rows at a time go through three passes:
 * warps 0 to 5 convolve and norm, two for each of queries, keys and values, warp 6 makes the gates; all scan; a warp a row norms the outcome.
 * The last block of a key head to have read its inputs' state replaces it.
 *
 * delta_record: the record alone, for rows that go through the single operations.
 *
 * Order   as conv.cu, delta_norm.cu, delta_gates.cu, delta_scan.cuh and gated_norm.cu.
 * Equals  delta_mix_ref.c, bit for bit.
 * Cost    a run: the state read and written once, 8 NV DK DV bytes: 1.5 us for 48 heads of 128 x 128 at 4.2 TB/s; one stream has 48 blocks, so
 *         its state passes through as many multiprocessors. */
#include "kernels/cuda/runs.cuh"
#include "kernels/delta/conv.cuh"
#include "kernels/delta/delta_mix_order.h"
#include "kernels/delta/delta_scan.cuh"

enum {
    DIM = DELTA_MIX_DIM,
    MIX_ROWS = 8,
    WARPS = DIM / DELTA_COLUMNS,
    QUADS = DIM / DELTA_STEP,
    KINDS = 3, // queries, keys, values
    GATES_WARP = 2 * KINDS,
    LINE_FLOATS = 32,
};

struct mix_shared {
    float x[KINDS][MIX_ROWS][DIM], o[MIX_ROWS][DIM], gates[MIX_ROWS][2];
    uint32_t last;
};

// A block's place, and the run's first row.
struct mix_place {
    struct run run;
    uint32_t head, key_head, lane, warp;
    bool first_of_key; // of the blocks that make the same queries and keys
};

DEVICE_FN uint32_t mix_channels(const struct delta_mix_args &a) {
    return (2 * a.key_heads + a.value_heads) * DIM;
}

// The lane's quad of channels of a kind.
DEVICE_FN uint32_t mix_quad(const struct delta_mix_args &a, const struct mix_place &p,
                            uint32_t kind) {
    uint32_t head = kind == 0   ? p.key_head
                    : kind == 1 ? a.key_heads + p.key_head
                                : 2 * a.key_heads + p.head;
    return head * (DIM / 4) + p.lane;
}

DEVICE_FN float4 mix_unit(const float4 &v) { // delta_norm.cu
    float4 s = {0, 0, 0, 0};
    quads_square(s, v);
    float factor = 1.0f / sqrtf(device_warp_sum(quads_sum(s)) + 1e-6f);
    return quads_scale(v, factor);
}

DEVICE_FN void mix_record(devptr rec, uint64_t row, uint32_t channels, uint32_t quad,
                          const float4 &v) {
    reinterpret_cast<float4 *>(device_ptr<float>(rec) + row * channels)[quad] = v;
}

// One row of one kind, by a warp.
DEVICE_FN void mix_input(const struct delta_mix_args &a, const struct mix_place &p,
                         const struct conv_source &s, const struct conv_quad &c, uint32_t kind,
                         uint32_t t, float *to) {
    uint32_t quad = mix_quad(a, p, kind);
    float4 x[CONV_TAPS];
#pragma unroll
    for (uint32_t j = 0; j < CONV_TAPS; j++) x[j] = conv_input(s, t, CONV_BEFORE - j, quad);
    float4 v = conv_row(c, x);
    if (kind < 2) v = mix_unit(v);
    if (kind == 0) v = quads_scale(v, a.q_scale);
    reinterpret_cast<float4 *>(to)[p.lane] = v;
    if (!p.run.record || (kind < 2 && !p.first_of_key)) return;
    mix_record(a.rec_m, p.run.record - 1 + t, s.channels, quad, x[CONV_BEFORE]);
    mix_record(a.rec_qkv, p.run.record - 1 + t, s.channels, quad, v);
}

// Decay and strength of row t, by a thread (delta_gates.cu).
DEVICE_FN void mix_gates(const struct delta_mix_args &a, const struct mix_place &p, float neg_a,
                         float bias, uint32_t t, float *to) {
    uint64_t at = (uint64_t)(p.run.row + t) * a.value_heads + p.head;
    float x = device_ptr<const float>(a.a)[at], b = device_ptr<const float>(a.b)[at];
    to[0] = arith_exp(neg_a * arith_softplus(x + bias));
    to[1] = arith_sigmoid(b);
    if (!p.run.record) return;
    float *rec =
        device_ptr<float>(a.rec_gates) + (uint64_t)(p.run.record - 1 + t) * 2 * a.value_heads;
    rec[p.head] = to[0];
    rec[a.value_heads + p.head] = to[1];
}

// A row's outcome, by a warp (gated_norm.cu).
DEVICE_FN void mix_outcome(const struct delta_mix_args &a, const struct mix_place &p, uint32_t t,
                           const float *o, const float4 &z, const float4 &w) {
    float4 v = reinterpret_cast<const float4 *>(o)[p.lane], s = {0, 0, 0, 0};
    quads_square(s, v);
    float factor = 1.0f / sqrtf(device_warp_sum(quads_sum(s)) / (float)DIM + a.eps);
    v = quads_times(quads_times(quads_scale(v, factor), w), quads_silu(z));
    float *y = device_ptr<float>(a.o) + ((uint64_t)(p.run.row + t) * a.value_heads + p.head) * DIM;
    reinterpret_cast<float4 *>(y)[p.lane] = v;
}

DEVICE_FN float4 mix_gate_row(const struct delta_mix_args &a, const struct mix_place &p,
                              uint32_t t) {
    const float *z =
        device_ptr<const float>(a.z) + ((uint64_t)(p.run.row + t) * a.value_heads + p.head) * DIM;
    return reinterpret_cast<const float4 *>(z)[p.lane];
}

// Asks for the lines of the head's state.
DEVICE_FN void mix_prefetch(const float *state) {
    for (uint32_t i = threadIdx.x; i < DIM * DIM / LINE_FLOATS; i += blockDim.x)
        asm volatile("prefetch.global.L2 [%0];" ::"l"(state + i * LINE_FLOATS));
}

// The state of the convolution's inputs: of the values by this block, of queries and keys by the last that has read them.
DEVICE_FN void mix_keep(const struct delta_mix_args &a, const struct mix_place &p,
                        const struct conv_source &s, float *state, bool last) {
    if (p.warp == 2) conv_keep(s, state, p.run.count, mix_quad(a, p, 2), a.stale);
    if (p.warp < 2 && last) conv_keep(s, state, p.run.count, mix_quad(a, p, p.warp), a.stale);
}

DEVICE_FN bool mix_arrive(uint32_t *counter, uint32_t blocks) {
    __threadfence();
    if (atomicAdd(counter, 1) + 1 != blocks) return false;
    *counter = 0;
    return true;
}

extern "C" __global__ void __launch_bounds__(WARPS *WARP)
    delta_mix_128(const struct delta_mix_params params) {
    const struct delta_mix_args &a = params.a;
    __shared__ __align__(16) struct mix_shared sh;
    uint32_t head = blockIdx.x, group = a.value_heads / a.key_heads;
    struct mix_place p = {device_ptr<const struct run>(a.rows.runs)[blockIdx.y],
                          head,
                          head / group,
                          threadIdx.x % WARP,
                          threadIdx.x / WARP,
                          head % group == 0};
    uint32_t channels = mix_channels(a), kind = p.warp % KINDS, part = p.lane % DELTA_PARTS,
             col = p.lane / DELTA_PARTS * 2;
    float *state =
        device_ptr<float>(a.state + p.run.slot * a.slot_stride) + (uint64_t)head * DIM * DIM;
    float *conv_state = device_ptr<float>(a.conv_state + p.run.slot * a.slot_stride);
    struct conv_source s = {device_ptr<const float>(a.m) + (uint64_t)p.run.row * channels,
                            conv_state, channels, p.run.pos, true};
    if (p.run.pos) mix_prefetch(state);
    struct conv_quad c;
#pragma unroll
    for (uint32_t j = 0; j < CONV_TAPS; j++)
        c.w[j] = quads_load(device_ptr<const float>(a.conv_w) + (uint64_t)j * channels,
                            mix_quad(a, p, kind), channels, true);
    float4 w = reinterpret_cast<const float4 *>(device_ptr<const float>(a.norm_w))[p.lane];
    float neg_a = device_ptr<const float>(a.neg_a)[head],
          bias = device_ptr<const float>(a.dt_bias)[head];
    device_wait_prior();
    device_let_next();
    struct delta_part<QUADS, 2> st;
    float *columns = state + p.warp * DELTA_COLUMNS * DIM;
    delta_load(st, columns, DIM, col, part, p.run.pos == 0);
    for (uint32_t first = 0; first < p.run.count; first += MIX_ROWS) {
        uint32_t rows = p.run.count - first < MIX_ROWS ? p.run.count - first : MIX_ROWS;
        float4 z = p.warp < rows ? mix_gate_row(a, p, first + p.warp) : w;
        if (p.warp < GATES_WARP)
            for (uint32_t r = p.warp / KINDS; r < rows; r += 2)
                mix_input(a, p, s, c, kind, first + r, sh.x[kind][r]);
        else if (p.warp == GATES_WARP && p.lane < rows)
            mix_gates(a, p, neg_a, bias, first + p.lane, sh.gates[p.lane]);
        __syncthreads();
        if (first == 0 && threadIdx.x == 0 && !p.run.record)
            sh.last = mix_arrive(device_ptr<uint32_t>(params.counters) + blockIdx.y * a.key_heads +
                                     p.key_head,
                                 group);
        struct delta_row<QUADS> k, next;
        float mk[2], qk = delta_qk<QUADS>(sh.x[0][p.lane / DELTA_PARTS],
                                          sh.x[1][p.lane / DELTA_PARTS], part);
        delta_take(k, sh.x[1][0], part);
        delta_read(st, k, mk);
#pragma unroll 1
        for (uint32_t r = 0; r < rows; r++) {
            struct delta_token t = {sh.gates[r][0], sh.gates[r][1],
                                    __shfl_sync(0xffffffffu, qk, r * DELTA_PARTS)};
            const float *at = &sh.x[2][r][p.warp * DELTA_COLUMNS + col];
            float v[2] = {at[0], at[1]}, o[2];
            delta_step(st, mk, k, next, sh.x[0][r], sh.x[1][(r + 1) % MIX_ROWS], part, t, v, o);
            if (part == 0)
                *reinterpret_cast<float2 *>(&sh.o[r][p.warp * DELTA_COLUMNS + col]) = {o[0], o[1]};
            k = next;
        }
        __syncthreads();
        if (p.warp < rows) mix_outcome(a, p, first + p.warp, sh.o[p.warp], z, w);
    }
    if (p.run.record) return;
    delta_store(st, columns, DIM, col, part);
    mix_keep(a, p, s, conv_state, sh.last);
}

extern "C" __global__ void delta_record(const struct delta_mix_args a) {
    uint32_t row = blockIdx.y, i = blockIdx.x * blockDim.x + threadIdx.x;
    uint32_t channels = 2 * a.key_heads * a.key_dim + a.value_heads * a.value_dim,
             gates = 2 * a.value_heads;
    device_wait_prior();
    device_let_next();
    const struct run *run = runs_find(a.rows.runs, a.rows.runs_count, row);
    if (!run->record) return;
    uint64_t to = run->record - 1 + row - run->row;
    if (i < channels) {
        device_ptr<float>(a.rec_m)[to * channels + i] =
            device_ptr<const float>(a.m)[(uint64_t)row * channels + i];
        device_ptr<float>(a.rec_qkv)[to * channels + i] =
            device_ptr<const float>(a.qkv)[(uint64_t)row * channels + i];
    }
    if (i < gates)
        device_ptr<float>(a.rec_gates)[to * gates + i] =
            device_ptr<const float>(a.gates)[(uint64_t)row * gates + i];
}
