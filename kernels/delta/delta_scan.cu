/* delta_scan: see delta_scan.h; delta_scan.cuh has a token's step. A block is a run, a value head and the columns of its warps, whose state
 * stays in registers while the run's tokens pass; one more warp copies queries, keys, values and gates of coming tokens to shared memory ahead, a
 * group of tokens at a time.
 *
 * Order   each lane of a column fuses its rows, ascending, into its parts of S^T k, S^T q and q . k, from 0; the parts add by
 *         xor 1, 2, 4, those of S^T q by xor 4, 2, 1. S' = g * S; mq of S'; d = b * fma(-g, mk, v); o = fma(qk, d, mq); S = fma(k, d, S').
 * Equals  delta_scan_ref.c, bit for bit.
 * Cost    a token: 4 DK DV instructions of fp32 a head, and its keys and queries from shared memory. 48 heads of 128 x 128 are 384 warps of 256
 *         such instructions, each warp with a scheduler to itself: 0.13 us at one a clock and 1.98 GHz; those that read three registers take
 *         1.5 to 1.7 clocks on an H200, which makes 0.21; measured 0.31. A run: the state read and written once, 8 NV DK DV bytes. */
#include "kernels/delta/delta_commit.h"
#include "kernels/delta/delta_scan.cuh"

enum { GROUPS = 4, COLS_MAX = DELTA_SCAN_WARPS_MAX * DELTA_COLUMNS };

template <uint32_t ROWS, uint32_t TOKENS> struct group {
    float q[TOKENS][ROWS], k[TOKENS][ROWS], v[TOKENS][COLS_MAX], gates[TOKENS][2], qk[TOKENS];
};

struct source {
    const float *q, *k, *v, *g; // of the run's first row, the block's heads and columns
    uint64_t qkv_stride, gates_stride;
    uint32_t count, key_dim, value_heads;
};

// Copies the tokens of a group that the run has, by a warp; ends a group of copies in any case.
template <bool WHOLE, uint32_t ROWS, uint32_t TOKENS>
DEVICE_FN void fetch(struct group<ROWS, TOKENS> *to, const struct source &s, uint32_t first,
                     uint32_t cols, uint32_t lane) {
    if (lane < TOKENS * 2 && first + lane / 2 < s.count)
        delta_copy_4(&to->gates[lane / 2][lane % 2],
                     s.g + (first + lane / 2) * s.gates_stride + lane % 2 * s.value_heads);
    if (WHOLE) {
        for (uint32_t i = lane; i < TOKENS * ROWS / 4; i += WARP) {
            uint32_t t = i / (ROWS / 4), d = i % (ROWS / 4) * 4;
            if (first + t >= s.count) break;
            delta_copy(&to->q[t][d], s.q + (first + t) * s.qkv_stride + d);
            delta_copy(&to->k[t][d], s.k + (first + t) * s.qkv_stride + d);
        }
        for (uint32_t i = lane; i < TOKENS * cols / 4; i += WARP) {
            uint32_t t = i / (cols / 4), d = i % (cols / 4) * 4;
            if (first + t >= s.count) break;
            delta_copy(&to->v[t][d], s.v + (first + t) * s.qkv_stride + d);
        }
    } else {
        for (uint32_t i = lane; i < TOKENS * ROWS; i += WARP) {
            uint32_t t = i / ROWS, d = i % ROWS;
            bool is = first + t < s.count && d < s.key_dim;
            to->q[t][d] = is ? s.q[(first + t) * s.qkv_stride + d] : 0;
            to->k[t][d] = is ? s.k[(first + t) * s.qkv_stride + d] : 0;
        }
        for (uint32_t i = lane; i < TOKENS * cols; i += WARP)
            if (first + i / cols < s.count)
                to->v[i / cols][i % cols] = s.v[(first + i / cols) * s.qkv_stride + i % cols];
    }
    delta_copies_end();
}

/* The warp that feeds the others: a group is there, with its q . k, one barrier before it is used, and its place is filled anew after the barrier
 * that all have left it behind. */
template <bool WHOLE, uint32_t Q, uint32_t TOKENS>
DEVICE_FN void feed(struct group<Q * DELTA_STEP, TOKENS> *ring, const struct source &s,
                    uint32_t cols) {
    uint32_t lane = threadIdx.x % WARP;
    for (uint32_t at = 0; at < GROUPS - 1; at++)
        fetch<WHOLE>(&ring[at], s, at * TOKENS, cols, lane);
    for (uint32_t at = 0; at * TOKENS < s.count; at++) {
        struct group<Q * DELTA_STEP, TOKENS> *g = &ring[at % GROUPS];
        delta_copies_wait<GROUPS - 2>();
        delta_qk<Q, TOKENS>(g->qk, g->q[0], g->k[0]);
        __syncthreads();
        fetch<WHOLE>(&ring[(at + GROUPS - 1) % GROUPS], s, (at + GROUPS - 1) * TOKENS, cols, lane);
    }
}

// A lane's place among the columns.
struct lane {
    uint32_t part, col; // col: its first among the block's
};

template <uint32_t ROWS, uint32_t TOKENS>
DEVICE_FN struct delta_at token_at(const struct group<ROWS, TOKENS> *g, uint32_t t, uint32_t col) {
    return {g->q[t], g->k[t], &g->v[t][col], g->gates[t], &g->qk[t]};
}

// out: of the lane's column; NULL where it writes none.
template <uint32_t Q, uint32_t COLS, uint32_t TOKENS>
DEVICE_FN void scan(struct delta_part<Q, COLS> &p, const struct group<Q * DELTA_STEP, TOKENS> *ring,
                    uint32_t count, const struct lane &l, float *out, uint64_t out_stride) {
    struct delta_row<Q> even, odd;
    struct delta_token<Q, COLS> token;
    float mk[COLS];
    __syncthreads();
    delta_take(even, ring[0].k[0], l.part);
    delta_fetch(token, token_at(&ring[0], 0, l.col), l.part);
    delta_read(p, even, mk);
    for (uint32_t first = 0; first < count; first += TOKENS) {
        const struct group<Q * DELTA_STEP, TOKENS> *g = &ring[first / TOKENS % GROUPS];
#pragma unroll 1
        for (uint32_t j = 0; j < TOKENS && first + j < count; j += 2) {
            float o = delta_step(p, mk, token, even, odd, token_at(g, j + 1, l.col), l.part);
            if (out) *out = o;
            if (first + j + 1 >= count) return;
            struct delta_at next = token_at(g, (j + 2) % TOKENS, l.col);
            if (j + 2 == TOKENS && first + TOKENS < count) {
                __syncthreads();
                next = token_at(&ring[(first / TOKENS + 1) % GROUPS], 0, l.col);
            }
            o = delta_step(p, mk, token, odd, even, next, l.part);
            if (!out) continue;
            out[out_stride] = o;
            out += 2 * out_stride;
        }
    }
}

template <bool WHOLE, uint32_t Q, uint32_t COLS, uint32_t TOKENS>
DEVICE_FN void scan_block(const struct delta_scan_args &a, uint32_t run_idx) {
    __shared__ __align__(16) struct group<Q * DELTA_STEP, TOKENS> ring[GROUPS];
    uint32_t head = blockIdx.y, dk = a.key_dim, cols = (blockDim.x - WARP) / DELTA_PARTS * COLS;
    struct lane l = {threadIdx.x % DELTA_PARTS, threadIdx.x / DELTA_PARTS * COLS};
    uint64_t key_width = (uint64_t)a.key_heads * dk;
    uint64_t value_width = (uint64_t)a.value_heads * a.value_dim,
             width = 2 * key_width + value_width;
    uint64_t value_at = (uint64_t)head * a.value_dim + blockIdx.x * cols;
    device_wait_prior();
    device_let_next();
    const struct run run = device_ptr<const struct run>(a.runs)[run_idx];
    if (l.col >= cols) {
        const float *qkv = device_ptr<const float>(a.qkv) + run.row * width;
        const float *q = qkv + (uint64_t)(head / (a.value_heads / a.key_heads)) * dk;
        struct source s = {q,
                           q + key_width,
                           qkv + 2 * key_width + value_at,
                           device_ptr<const float>(a.gates) +
                               (uint64_t)run.row * 2 * a.value_heads + head,
                           width,
                           2ull * a.value_heads,
                           run.count,
                           dk,
                           a.value_heads};
        feed<WHOLE, Q, TOKENS>(ring, s, cols);
        return;
    }
    float *group = device_ptr<float>(a.state + run.slot * a.slot_stride) +
                   (value_at + l.col) / DELTA_COLUMNS * DELTA_COLUMNS * dk;
    float *out = nullptr;
    if (a.out && delta_out_lane<COLS>(l.part))
        out = device_ptr<float>(a.out) + run.row * value_width + value_at + l.col +
              delta_out_column<COLS>(l.part);
    struct delta_part<Q, COLS> p;
    delta_load<Q, COLS, WHOLE>(p, group, dk, l.col % DELTA_COLUMNS, l.part, run.pos == 0);
    scan(p, ring, run.count, l, out, value_width);
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

extern "C" __global__ void __launch_bounds__((DELTA_SCAN_WARPS_MAX + 1) * WARP, 1)
    delta_scan_128(const struct delta_scan_args a) {
    scan_block<true, 4, 4, 8>(a, blockIdx.z);
}

extern "C" __global__ void __launch_bounds__((DELTA_SCAN_WARPS_MAX + 1) * WARP, 1)
    delta_commit_128(const struct delta_commit_args a) {
    scan_layer<true, 4, 4, 8>(a);
}

extern "C" __global__ void __launch_bounds__((DELTA_SCAN_WARPS_MAX + 1) * WARP, 1)
    delta_scan_up_to_64(const struct delta_scan_args a) {
    scan_block<false, 2, 4, 8>(a, blockIdx.z);
}

extern "C" __global__ void __launch_bounds__((DELTA_SCAN_WARPS_MAX + 1) * WARP, 1)
    delta_commit_up_to_64(const struct delta_commit_args a) {
    scan_layer<false, 2, 4, 8>(a);
}

extern "C" __global__ void __launch_bounds__((DELTA_SCAN_WARPS_MAX + 1) * WARP, 1)
    delta_scan_up_to_128(const struct delta_scan_args a) {
    scan_block<false, 4, 4, 8>(a, blockIdx.z);
}

extern "C" __global__ void __launch_bounds__((DELTA_SCAN_WARPS_MAX + 1) * WARP, 1)
    delta_commit_up_to_128(const struct delta_commit_args a) {
    scan_layer<false, 4, 4, 8>(a);
}

extern "C" __global__ void __launch_bounds__((DELTA_SCAN_WARPS_MAX + 1) * WARP, 1)
    delta_scan_up_to_256(const struct delta_scan_args a) {
    scan_block<false, 8, 2, 4>(a, blockIdx.z);
}

extern "C" __global__ void __launch_bounds__((DELTA_SCAN_WARPS_MAX + 1) * WARP, 1)
    delta_commit_up_to_256(const struct delta_commit_args a) {
    scan_layer<false, 8, 2, 4>(a);
}
