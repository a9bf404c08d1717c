/* delta_scan: see delta_scan.h; delta_scan.cuh has a token's step. A block is a run, a value head and the columns of its warps, whose state
 * stays in registers while the run's tokens pass; queries, keys, values and gates of coming tokens are copied to shared memory ahead, a
 * group of tokens at a time.
 *
 * Order   each lane of a column fuses its rows, ascending, into its parts of S^T k, S^T q and q . k, from 0; the parts add by
 *         xor 1, then 2. d = b * fma(-g, mk, v); o = fma(qk, d, g * mq); S = fma(k, d, g * S).
 * Equals  delta_scan_ref.c, bit for bit.
 * Cost    a token: 4 DK DV instructions of fp32 a head and two reads of its keys and queries from shared memory: 128 x 128 columns of 48
 *         heads are 384 warps, each with its own scheduler, so 0.14 us at 1.9 GHz; a run: the state read and written once. */
#include "kernels/delta/delta_commit.h"
#include "kernels/delta/delta_scan.cuh"

enum { GROUPS = 4, WARPS_MAX = 4, COLS_MAX = WARPS_MAX * DELTA_COLUMNS };

template <uint32_t ROWS, uint32_t TOKENS> struct group {
    float q[TOKENS][ROWS], k[TOKENS][ROWS], v[TOKENS][COLS_MAX], gates[TOKENS][2];
};

struct source {
    const float *q, *k, *v, *g; // of the run's first row, the block's heads and columns
    uint64_t qkv_stride, gates_stride;
    uint32_t count, key_dim, value_heads;
};

// Copies the tokens of a group that the run has; ends a group of copies in any case.
template <bool WHOLE, uint32_t ROWS, uint32_t TOKENS>
DEVICE_FN void fetch(struct group<ROWS, TOKENS> *to, const struct source &s, uint32_t first,
                     uint32_t cols) {
    for (uint32_t i = threadIdx.x; i < TOKENS * 2; i += blockDim.x)
        if (first + i / 2 < s.count)
            delta_copy_4(&to->gates[i / 2][i % 2],
                         s.g + (first + i / 2) * s.gates_stride + i % 2 * s.value_heads);
    if (WHOLE) {
        for (uint32_t i = threadIdx.x; i < TOKENS * ROWS / 4; i += blockDim.x) {
            uint32_t t = i / (ROWS / 4), d = i % (ROWS / 4) * 4;
            if (first + t >= s.count) break;
            delta_copy(&to->q[t][d], s.q + (first + t) * s.qkv_stride + d);
            delta_copy(&to->k[t][d], s.k + (first + t) * s.qkv_stride + d);
        }
        for (uint32_t i = threadIdx.x; i < TOKENS * cols / 4; i += blockDim.x) {
            uint32_t t = i / (cols / 4), d = i % (cols / 4) * 4;
            if (first + t >= s.count) break;
            delta_copy(&to->v[t][d], s.v + (first + t) * s.qkv_stride + d);
        }
    } else {
        for (uint32_t i = threadIdx.x; i < TOKENS * ROWS; i += blockDim.x) {
            uint32_t t = i / ROWS, d = i % ROWS;
            bool is = first + t < s.count && d < s.key_dim;
            to->q[t][d] = is ? s.q[(first + t) * s.qkv_stride + d] : 0;
            to->k[t][d] = is ? s.k[(first + t) * s.qkv_stride + d] : 0;
        }
        for (uint32_t i = threadIdx.x; i < TOKENS * cols; i += blockDim.x)
            if (first + i / cols < s.count)
                to->v[i / cols][i % cols] = s.v[(first + i / cols) * s.qkv_stride + i % cols];
    }
    delta_copies_end();
}

// A lane's place among the columns.
struct lane {
    uint32_t part, col; // col: its first among the block's
};

// out: of the lane's column; NULL where it writes none.
template <bool WHOLE, uint32_t Q, uint32_t COLS, uint32_t TOKENS>
DEVICE_FN void scan(struct delta_part<Q, COLS> &p, struct group<Q * DELTA_STEP, TOKENS> *ring,
                    float (*qk)[TOKENS], const struct source &s, const struct lane &l,
                    uint32_t cols, float *out, uint64_t out_stride) {
    constexpr uint32_t ROWS = Q * DELTA_STEP;
    struct delta_row<Q> even, odd;
    float mk[COLS];
    delta_copies_wait<GROUPS - 2>();
    __syncthreads();
    delta_take(even, ring[0].k[0], l.part);
    delta_read(p, even, mk);
    delta_qk<Q, TOKENS>(qk[0], ring[0].q[0], ring[0].k[0]);
    for (uint32_t first = 0; first < s.count; first += TOKENS) {
        uint32_t at = first / TOKENS;
        struct group<ROWS, TOKENS> *g = &ring[at % GROUPS], *behind = &ring[(at + 1) % GROUPS];
#pragma unroll 1
        for (uint32_t j = 0; j < TOKENS && first + j < s.count; j += 2) {
#pragma unroll
            for (uint32_t h = 0; h < 2; h++) {
                uint32_t t = j + h;
                const float *next = g->k[(t + 1) % TOKENS];
                if (h == 1 && first + t >= s.count) break;
                if (h == 1 &&
                    t + 1 ==
                        TOKENS) { // the next group is there, and all warps have left the one before this
                    delta_copies_wait<GROUPS - 3>();
                    __syncthreads();
                    fetch<WHOLE>(&ring[(at + 3) % GROUPS], s, first + 3 * TOKENS, cols);
                    next = behind->k[0];
                    delta_qk<Q, TOKENS>(qk[(at + 1) % 2], behind->q[0], behind->k[0]);
                }
                struct delta_token token = {g->gates[t][0], g->gates[t][1], qk[at % 2][t]};
                float o = delta_step(p, mk, h ? odd : even, h ? even : odd, g->q[t], next, l.part,
                                     token, &g->v[t][l.col]);
                if (out) out[(first + t) * out_stride] = o;
            }
        }
    }
}

template <bool WHOLE, uint32_t Q, uint32_t COLS, uint32_t TOKENS>
DEVICE_FN void scan_block(const struct delta_scan_args &a, uint32_t run_idx) {
    __shared__ __align__(16) struct group<Q * DELTA_STEP, TOKENS> ring[GROUPS];
    __shared__ float qk[WARPS_MAX][2][TOKENS]; // of each warp its own
    const struct run run = device_ptr<const struct run>(a.runs)[run_idx];
    uint32_t head = blockIdx.y, dk = a.key_dim, cols = blockDim.x / DELTA_PARTS * COLS;
    struct lane l = {threadIdx.x % DELTA_PARTS, threadIdx.x / DELTA_PARTS * COLS};
    uint64_t key_width = (uint64_t)a.key_heads * dk;
    uint64_t value_width = (uint64_t)a.value_heads * a.value_dim,
             width = 2 * key_width + value_width;
    uint64_t value_at = (uint64_t)head * a.value_dim + blockIdx.x * cols;
    const float *qkv = device_ptr<const float>(a.qkv) + run.row * width;
    const float *q = qkv + (uint64_t)(head / (a.value_heads / a.key_heads)) * dk;
    struct source s = {q,
                       q + key_width,
                       qkv + 2 * key_width + value_at,
                       device_ptr<const float>(a.gates) + (uint64_t)run.row * 2 * a.value_heads +
                           head,
                       width,
                       2ull * a.value_heads,
                       run.count,
                       dk,
                       a.value_heads};
    float *group = device_ptr<float>(a.state + run.slot * a.slot_stride) +
                   (value_at + l.col) / DELTA_COLUMNS * DELTA_COLUMNS * dk;
    float *out = nullptr;
    if (a.out && delta_out_lane<COLS>(l.part))
        out = device_ptr<float>(a.out) + run.row * value_width + value_at + l.col +
              delta_out_column<COLS>(l.part);
    device_wait_prior();
    device_let_next();
    struct delta_part<Q, COLS> p;
    delta_load<Q, COLS, WHOLE>(p, group, dk, l.col % DELTA_COLUMNS, l.part, run.pos == 0);
#pragma unroll 1
    for (uint32_t i = 0; i < GROUPS - 1; i++) fetch<WHOLE>(&ring[i], s, i * TOKENS, cols);
    scan<WHOLE>(p, ring, qk[threadIdx.x / WARP], s, l, cols, out, value_width);
    if (!run.record) delta_store<Q, COLS, WHOLE>(p, group, dk, l.col % DELTA_COLUMNS, l.part);
}

// A layer's, of the arguments of all: run and layer are in z.
template <bool WHOLE, uint32_t Q, uint32_t COLS, uint32_t TOKENS>
DEVICE_FN void scan_layer(const struct delta_commit_args &c) {
    struct delta_scan_args a = c.scan;
    uint32_t layer = blockIdx.z / a.runs_count;
    a.state += layer * c.layer_bytes;
    a.qkv += layer * c.qkv_bytes;
    a.gates += layer * c.gates_bytes;
    scan_block<WHOLE, Q, COLS, TOKENS>(a, blockIdx.z % a.runs_count);
}

extern "C" __global__ void __launch_bounds__(128) delta_scan_128(const struct delta_scan_args a) {
    scan_block<true, 4, 4, 8>(a, blockIdx.z);
}

extern "C" __global__ void __launch_bounds__(128)
    delta_commit_128(const struct delta_commit_args a) {
    scan_layer<true, 4, 4, 8>(a);
}

extern "C" __global__ void __launch_bounds__(128)
    delta_scan_up_to_64(const struct delta_scan_args a) {
    scan_block<false, 2, 4, 8>(a, blockIdx.z);
}

extern "C" __global__ void __launch_bounds__(128)
    delta_commit_up_to_64(const struct delta_commit_args a) {
    scan_layer<false, 2, 4, 8>(a);
}

extern "C" __global__ void __launch_bounds__(128)
    delta_scan_up_to_128(const struct delta_scan_args a) {
    scan_block<false, 4, 4, 8>(a, blockIdx.z);
}

extern "C" __global__ void __launch_bounds__(128)
    delta_commit_up_to_128(const struct delta_commit_args a) {
    scan_layer<false, 4, 4, 8>(a);
}

extern "C" __global__ void __launch_bounds__(128)
    delta_scan_up_to_256(const struct delta_scan_args a) {
    scan_block<false, 8, 2, 4>(a, blockIdx.z);
}

extern "C" __global__ void __launch_bounds__(128)
    delta_commit_up_to_256(const struct delta_commit_args a) {
    scan_layer<false, 8, 2, 4>(a);
}
