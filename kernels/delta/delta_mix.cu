/* delta_mix: see delta_mix.h; for few rows a run. A block, or a pair of them as a cluster, is a run and a value head, with all of its state
 * in registers, a warp 16 columns; it makes the queries and keys of its key head itself, as the others of that head do. MIX_ROWS rows at a time
 * go through three passes: three warps convolve and norm queries, keys and values, while the last one makes the gates; all but that one scan;
 * a warp a row norms the outcome. The last block of a key head to have read the convolution's state replaces it.
 *
 * delta_record: the record alone, for rows that go through the single operations.
 *
 * Order   as conv.cu, delta_norm.cu, delta_gates.cu, delta_scan.cuh and gated_norm.cu.
 * Equals  delta_mix_ref.c, bit for bit.
 * Cost    a run: the state read and written once, 8 NV DK DV bytes: 1.5 us for 48 heads of 128 x 128 at 4.2 TB/s; then the latency of three
 *         passes, and of a convolution and delta_scan's step for each row: on an H200 8 us for one row of one stream, 15 for eight. */
#include "kernels/cuda/runs.cuh"
#include "kernels/delta/conv.cuh"
#include "kernels/delta/delta_mix_order.h"
#include "kernels/delta/delta_scan.cuh"

#if __CUDA_ARCH__ >= 900
#define PAIR __cluster_dims__(2, 1, 1)
#else
#define PAIR
#endif

enum {
    DIM = DELTA_MIX_DIM,
    MIX_ROWS = 8,
    QUADS = DIM / DELTA_STEP,
    KINDS = 3, // queries, keys, values
};

struct mix_shared {
    float x[KINDS][MIX_ROWS][DIM], o[2][MIX_ROWS][DIM], gates[MIX_ROWS][2],
        qk[DIM / DELTA_COLUMNS][MIX_ROWS];
};

// A block's place, and the run's first row.
struct mix_place {
    struct run run;
    uint32_t head, key_head, lane, warp, rank;
    bool records; // it is the one to record its key head's queries and keys
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

DEVICE_FN void mix_taps(struct conv_quad &c, const struct delta_mix_args &a,
                        const struct mix_place &p, uint32_t kind) {
    uint32_t channels = mix_channels(a);
#pragma unroll
    for (uint32_t j = 0; j < CONV_TAPS; j++)
        c.w[j] = quads_load(device_ptr<const float>(a.conv_w) + (uint64_t)j * channels,
                            mix_quad(a, p, kind), channels, true);
}

DEVICE_FN float4 mix_unit(const float4 &v) { // delta_norm.cu
    float4 s = {0, 0, 0, 0};
    quads_square(s, v);
    return quads_scale(v, 1.0f / sqrtf(device_warp_sum(quads_sum(s)) + 1e-6f));
}

DEVICE_FN void mix_record(devptr rec, uint64_t row, uint32_t channels, uint32_t quad,
                          const float4 &v) {
    reinterpret_cast<float4 *>(device_ptr<float>(rec) + row * channels)[quad] = v;
}

// Rows t .. t + rows - 1 of one kind, by a warp; each row is asked for two ahead.
DEVICE_FN void mix_inputs(const struct delta_mix_args &a, const struct mix_place &p,
                          const struct conv_source &s, const struct conv_quad &c, uint32_t kind,
                          uint32_t t, uint32_t rows, float (*to)[DIM]) {
    uint32_t quad = mix_quad(a, p, kind);
    bool records = p.run.record && p.rank == 0 && (kind == 2 || p.records);
    float4 x[CONV_TAPS + 2], v;
#pragma unroll
    for (uint32_t j = 0; j < CONV_TAPS; j++) x[j] = conv_input(s, t, CONV_BEFORE - j, quad);
    x[CONV_TAPS] = rows > 1 ? conv_input(s, t + 1, 0, quad) : x[0];
#pragma unroll 1
    for (uint32_t r = 0; r < rows; r++) {
        if (r + 2 < rows) x[CONV_TAPS + 1] = conv_input(s, t + r + 2, 0, quad);
        v = conv_row(c, x);
        if (kind < 2) v = mix_unit(v);
        if (kind == 0) v = quads_scale(v, a.q_scale);
        reinterpret_cast<float4 *>(to[r])[p.lane] = v;
        if (records) {
            mix_record(a.rec_m, p.run.record - 1 + t + r, s.channels, quad, x[CONV_BEFORE]);
            mix_record(a.rec_qkv, p.run.record - 1 + t + r, s.channels, quad, v);
        }
#pragma unroll
        for (uint32_t j = 0; j <= CONV_TAPS; j++) x[j] = x[j + 1];
    }
}

// Decay and strength of row t, by a thread (delta_gates.cu).
DEVICE_FN void mix_gates(const struct delta_mix_args &a, const struct mix_place &p, float neg_a,
                         float bias, uint32_t t, float *to) {
    uint64_t at = (uint64_t)(p.run.row + t) * a.value_heads + p.head;
    float x = device_ptr<const float>(a.a)[at], b = device_ptr<const float>(a.b)[at];
    to[0] = arith_exp(neg_a * arith_softplus(x + bias));
    to[1] = arith_sigmoid(b);
    if (!p.run.record || p.rank) return;
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

/* The state of the convolution's inputs, by a warp of a block that has read it: the last block to come of all that read a key head's queries and
 * keys replaces these and the values of its heads. */
DEVICE_FN void mix_keep(const struct delta_mix_args &a, const struct mix_place &p,
                        const struct conv_source &s, float *state, uint32_t *counter,
                        uint32_t blocks) {
    uint32_t last = 0, group = a.value_heads / a.key_heads;
    if (p.lane == 0) {
        __threadfence();
        last = atomicAdd(counter, 1) + 1 == blocks;
        if (last) *counter = 0;
        __threadfence();
    }
    if (!__shfl_sync(0xffffffffu, last, 0)) return;
    for (uint32_t i = 0; i < 2 + group; i++) {
        uint32_t head =
            i < 2 ? i * a.key_heads + p.key_head : 2 * a.key_heads + p.key_head * group + i - 2;
        conv_keep(s, state, p.run.count, head * (DIM / 4) + p.lane, a.stale);
    }
}

// Where the other block of the pair has what this one has at p.
DEVICE_FN float *mix_peer(float *p, uint32_t rank) {
#if __CUDA_ARCH__ >= 900
    asm("mapa.u64 %0, %1, %2;" : "=l"(p) : "l"(p), "r"(rank));
#endif
    return p;
}

// A barrier of the head's blocks, in two parts where there are two.
template <uint32_t BLOCKS> DEVICE_FN void mix_arrive() {
#if __CUDA_ARCH__ >= 900
    if (BLOCKS == 2) asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
#endif
}

template <uint32_t BLOCKS> DEVICE_FN void mix_wait() {
#if __CUDA_ARCH__ >= 900
    if (BLOCKS == 2) asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
#endif
    if (BLOCKS == 1) __syncthreads();
}

DEVICE_FN struct delta_at mix_at(const struct mix_shared &sh, uint32_t warp, uint32_t r,
                                 uint32_t col) {
    return {sh.x[0][r], sh.x[1][r], &sh.x[2][r][col], sh.gates[r], &sh.qk[warp][r]};
}

template <uint32_t BLOCKS> DEVICE_FN void mix(const struct delta_mix_params &params) {
    constexpr uint32_t WARPS = DIM / DELTA_COLUMNS / BLOCKS; // that scan; one more keeps the books
    const struct delta_mix_args &a = params.a;
    __shared__ __align__(16) struct mix_shared sh;
    uint32_t head = blockIdx.x / BLOCKS, group = a.value_heads / a.key_heads;
    struct mix_place p = {{},
                          head,
                          head / group,
                          threadIdx.x % WARP,
                          threadIdx.x / WARP,
                          blockIdx.x % BLOCKS,
                          head % group == 0};
    bool scans = p.warp < WARPS;
    uint32_t channels = mix_channels(a), part = p.lane % DELTA_PARTS;
    uint32_t warp_col = (p.rank * WARPS + p.warp % WARPS) * DELTA_COLUMNS,
             col = p.lane / DELTA_PARTS * DELTA_HELD;
    mix_arrive<BLOCKS>(); // the other block may be written to once it runs
    struct conv_quad taps;
    if (p.warp < KINDS) mix_taps(taps, a, p, p.warp);
    float4 w = reinterpret_cast<const float4 *>(device_ptr<const float>(a.norm_w))[p.lane];
    float neg_a = device_ptr<const float>(a.neg_a)[head],
          bias = device_ptr<const float>(a.dt_bias)[head];
    device_wait_prior();
    device_let_next();
    p.run = device_ptr<const struct run>(a.rows.runs)[blockIdx.y];
    float *state =
        device_ptr<float>(a.state + p.run.slot * a.slot_stride) + (uint64_t)head * DIM * DIM;
    float *columns = state + warp_col * DIM;
    float *conv_state = device_ptr<float>(a.conv_state + p.run.slot * a.slot_stride);
    struct conv_source s = {device_ptr<const float>(a.m) + (uint64_t)p.run.row * channels,
                            conv_state, channels, p.run.pos, true};
    struct delta_part<QUADS, DELTA_HELD> st;
    if (scans) delta_load<QUADS, DELTA_HELD, true>(st, columns, DIM, col, part, p.run.pos == 0);
    for (uint32_t first = 0; first < p.run.count; first += MIX_ROWS) {
        uint32_t rows = p.run.count - first < MIX_ROWS ? p.run.count - first : MIX_ROWS;
        uint32_t mine = p.warp * BLOCKS + p.rank; // the row that this warp norms
        float4 z = mine < rows ? mix_gate_row(a, p, first + mine) : w;
        if (!scans && p.lane < rows) mix_gates(a, p, neg_a, bias, first + p.lane, sh.gates[p.lane]);
        if (p.warp < KINDS) mix_inputs(a, p, s, taps, p.warp, first, rows, sh.x[p.warp]);
        __syncthreads();
        float(*o)[DIM] = sh.o[first / MIX_ROWS % 2]; // the other half may still be read
        if (first == 0 && BLOCKS == 2) mix_wait<BLOCKS>();
        if (scans) {
            struct delta_row<QUADS> k, next;
            struct delta_token<QUADS, DELTA_HELD> t;
            float mk[DELTA_HELD];
            uint32_t mine_col = warp_col + col;
            delta_take(k, sh.x[1][0], part);
            delta_read(st, k, mk);
            delta_qk<QUADS, MIX_ROWS>(sh.qk[p.warp], sh.x[0][0], sh.x[1][0]);
            delta_fetch(t, mix_at(sh, p.warp, 0, mine_col), part);
#pragma unroll 1
            for (uint32_t r = 0; r < rows; r++) {
                float y = delta_step(st, mk, t, k, next,
                                     mix_at(sh, p.warp, (r + 1) % MIX_ROWS, mine_col), part);
                float *to = &o[r][mine_col + delta_out_column<DELTA_HELD>(part)];
                if (BLOCKS == 2) to = mix_peer(to, r % 2);
                if (delta_out_lane<DELTA_HELD>(part)) *to = y;
                k = next;
            }
        }
        mix_arrive<BLOCKS>();
        if (!scans && first == 0 && !p.run.record)
            mix_keep(a, p, s, conv_state,
                     device_ptr<uint32_t>(params.counters) + blockIdx.y * a.key_heads + p.key_head,
                     group * BLOCKS);
        mix_wait<BLOCKS>();
        if (scans && mine < rows) mix_outcome(a, p, first + mine, o[mine], z, w);
    }
    if (scans && !p.run.record) delta_store<QUADS, DELTA_HELD, true>(st, columns, DIM, col, part);
}

extern "C" __global__ void __launch_bounds__(DELTA_MIX_THREADS(1))
    delta_mix_128(const struct delta_mix_params params) {
    mix<1>(params);
}

// From sm_90 on: half a head a block.
extern "C" __global__ void PAIR __launch_bounds__(DELTA_MIX_THREADS(2), 2)
    delta_mix_128_pair(const struct delta_mix_params params) {
#if __CUDA_ARCH__ >= 900
    mix<2>(params);
#endif
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
