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

enum { GROUPS = 4, AHEAD = 2, COLS_MAX = DELTA_SCAN_WARPS_MAX * DELTA_COLUMNS };

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

/* The warp that feeds the others: a group is there, with its q . k, at the barrier before the last two tokens of the group before; then the
 * group before that one has been left, whose place may be filled anew. */
template <bool WHOLE, uint32_t Q, uint32_t TOKENS>
DEVICE_FN void feed(struct group<Q * DELTA_STEP, TOKENS> *ring, const struct source &s,
                    uint32_t cols) {
    uint32_t lane = threadIdx.x % WARP;
    for (uint32_t at = 0; at < AHEAD; at++) fetch<WHOLE>(&ring[at], s, at * TOKENS, cols, lane);
    for (uint32_t at = 0; at * TOKENS < s.count; at++) {
        struct group<Q * DELTA_STEP, TOKENS> *g = &ring[at % GROUPS];
        delta_copies_wait<AHEAD - 1>();
        delta_qk<Q, TOKENS>(g->qk, g->q[0], g->k[0]);
        __syncthreads();
        fetch<WHOLE>(&ring[(at + AHEAD) % GROUPS], s, (at + AHEAD) * TOKENS, cols, lane);
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

/* The tokens of a run: at(group, token) says where one is. out: of the lane's column; NULL where it writes none. Tokens go by twos, so that
 * none is copied; what lies behind the last one is read too, for nothing. */
template <uint32_t Q, uint32_t COLS, uint32_t TOKENS, class At>
DEVICE_FN void scan(struct delta_part<Q, COLS> &p, At at, uint32_t count, uint32_t part, float *out,
                    uint64_t out_stride) {
    struct delta_row<Q> even, odd;
    struct delta_token<Q, COLS> token;
    struct delta_at begin = at(0, 0);
    float mk[COLS];
    __syncthreads();
    delta_take(even, begin.k, part);
    delta_fetch(token, begin, part);
    delta_read(p, even, mk);
    for (uint32_t first = 0; first < count; first += TOKENS) {
        uint32_t g = first / TOKENS % GROUPS, behind = (g + 1) % GROUPS;
        uint32_t left = count - first < TOKENS ? count - first : TOKENS;
#pragma unroll 1
        for (uint32_t j = 0; j + 1 < left; j += 2) {
            bool last = j + 2 == TOKENS;
            if (last && first + TOKENS < count) __syncthreads();
            float o = delta_step(p, mk, token, even, odd, at(g, j + 1), part);
            if (out) *out = o;
            o = delta_step(p, mk, token, odd, even, at(last ? behind : g, (j + 2) % TOKENS), part);
            if (out) {
                out[out_stride] = o;
                out += 2 * out_stride;
            }
        }
        if (left % 2) {
            float o = delta_step(p, mk, token, even, odd, at(g, 0), part);
            if (out) *out = o;
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
    scan<Q, COLS, TOKENS>(
        p, [&](uint32_t g, uint32_t t) { return token_at(&ring[g], t, l.col); }, run.count, l.part,
        out, value_width);
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

/* Of one run and heads of 128 x 128: so many warps as there are schedulers, or a little fewer, one each. A warp has DELTA_EVEN_COLUMNS
 * columns of a head, the head's last one fewer; a block's warps belong to one head or to two. */
enum { EVEN_TOKENS = 4, EVEN_SIDES = 2 };

struct even_group {
    float q[EVEN_SIDES][EVEN_TOKENS][DELTA_EVEN_DIM], k[EVEN_SIDES][EVEN_TOKENS][DELTA_EVEN_DIM];
    float v[EVEN_TOKENS][DELTA_SCAN_WARPS_MAX][DELTA_EVEN_COLUMNS];
    float gates[EVEN_SIDES][EVEN_TOKENS][2], qk[EVEN_SIDES][EVEN_TOKENS];
};

// A warp's place among all of a launch.
struct even_place {
    uint32_t head, col;
};

DEVICE_FN struct even_place even_place_of(uint32_t warp) {
    uint32_t nth = blockIdx.x * DELTA_SCAN_WARPS_MAX + warp;
    return {nth / DELTA_EVEN_WARPS, nth % DELTA_EVEN_WARPS * DELTA_EVEN_COLUMNS};
}

struct even_source {
    const float *qkv, *gates; // of the run's first row
    uint32_t head, sides, count, key_heads, value_heads;
};

DEVICE_FN void even_fetch(struct even_group *to, const struct even_source &s, uint32_t first,
                          uint32_t lane) {
    uint32_t keys = s.key_heads * DELTA_EVEN_DIM, group = s.value_heads / s.key_heads;
    uint64_t width = 2 * keys + s.value_heads * DELTA_EVEN_DIM;
    const float *row = s.qkv + first * width;
    for (uint32_t side = 0; side < s.sides; side++) {
        uint32_t head = s.head + side;
        if (lane < EVEN_TOKENS * 2 && first + lane / 2 < s.count)
            delta_copy_4(&to->gates[side][lane / 2][lane % 2],
                         s.gates + (first + lane / 2) * 2ull * s.value_heads +
                             lane % 2 * s.value_heads + head);
        const float *q = row + head / group * DELTA_EVEN_DIM + lane * 4;
#pragma unroll
        for (uint32_t t = 0; t < EVEN_TOKENS; t++) {
            if (first + t >= s.count) break;
            delta_copy(&to->q[side][t][lane * 4], q + t * width);
            delta_copy(&to->k[side][t][lane * 4], q + t * width + keys);
        }
    }
    constexpr uint32_t EACH = DELTA_EVEN_COLUMNS / 4, ALL = DELTA_SCAN_WARPS_MAX * EACH;
#pragma unroll
    for (uint32_t i = lane; i < EVEN_TOKENS * ALL; i += WARP) {
        uint32_t t = i / ALL, warp = i % ALL / EACH, c = i % EACH * 4;
        struct even_place p = even_place_of(warp);
        if (first + t < s.count && p.head < s.value_heads && p.col + c < DELTA_EVEN_DIM)
            delta_copy(&to->v[t][warp][c],
                       row + t * width + 2 * keys + p.head * DELTA_EVEN_DIM + p.col + c);
    }
    delta_copies_end();
}

DEVICE_FN void even_feed(struct even_group *ring, const struct even_source &s) {
    uint32_t lane = threadIdx.x % WARP;
    for (uint32_t at = 0; at < AHEAD; at++) even_fetch(&ring[at], s, at * EVEN_TOKENS, lane);
    for (uint32_t at = 0; at * EVEN_TOKENS < s.count; at++) {
        struct even_group *g = &ring[at % GROUPS];
        delta_copies_wait<AHEAD - 1>();
        for (uint32_t side = 0; side < s.sides; side++)
            delta_qk<DELTA_EVEN_DIM / DELTA_STEP, EVEN_TOKENS>(g->qk[side], g->q[side][0],
                                                               g->k[side][0]);
        __syncthreads();
        even_fetch(&ring[(at + AHEAD) % GROUPS], s, (at + AHEAD) * EVEN_TOKENS, lane);
    }
}

// A quad of a column's rows; NULL: there is no such column.
DEVICE_FN float4 *even_quad(float *head, uint32_t k, uint32_t col) {
    if (col >= DELTA_EVEN_DIM) return nullptr;
    return reinterpret_cast<float4 *>(head + col / DELTA_COLUMNS * DELTA_COLUMNS * DELTA_EVEN_DIM +
                                      delta_state_at(DELTA_EVEN_DIM, k, col % DELTA_COLUMNS));
}

extern "C" __global__ void __launch_bounds__((DELTA_SCAN_WARPS_MAX + 1) * WARP, 1)
    delta_scan_even_128(const struct delta_scan_args a) {
    constexpr uint32_t Q = DELTA_EVEN_DIM / DELTA_STEP, COLS = DELTA_EVEN_HELD;
    __shared__ __align__(16) struct even_group ring[GROUPS];
    uint32_t warp = threadIdx.x / WARP, part = threadIdx.x % DELTA_PARTS;
    uint64_t values = (uint64_t)a.value_heads * DELTA_EVEN_DIM,
             width = 2ull * a.key_heads * DELTA_EVEN_DIM + values;
    uint32_t first_head = even_place_of(0).head;
    device_wait_prior();
    device_let_next();
    const struct run run = device_ptr<const struct run>(a.runs)[blockIdx.z];
    if (warp == DELTA_SCAN_WARPS_MAX) {
        uint32_t last_head = even_place_of(DELTA_SCAN_WARPS_MAX - 1).head;
        if (last_head >= a.value_heads) last_head = a.value_heads - 1;
        even_feed(ring,
                  {device_ptr<const float>(a.qkv) + run.row * width,
                   device_ptr<const float>(a.gates) + (uint64_t)run.row * 2 * a.value_heads,
                   first_head, last_head - first_head + 1, run.count, a.key_heads, a.value_heads});
        return;
    }
    struct even_place place = even_place_of(warp);
    bool mine = place.head < a.value_heads;
    uint32_t lane = threadIdx.x % WARP / DELTA_PARTS, col = place.col + lane * COLS;
    uint32_t side = mine ? place.head - first_head : 0;
    float *head = device_ptr<float>(a.state + run.slot * a.slot_stride) +
                  (uint64_t)(mine ? place.head : 0) * DELTA_EVEN_DIM * DELTA_EVEN_DIM;
    float *out = nullptr;
    if (a.out && mine && delta_out_lane<COLS>(part) &&
        col + delta_out_column<COLS>(part) < DELTA_EVEN_DIM)
        out = device_ptr<float>(a.out) + run.row * values + place.head * DELTA_EVEN_DIM + col +
              delta_out_column<COLS>(part);
    struct delta_part<Q, COLS> p;
#pragma unroll
    for (uint32_t i = 0; i < Q; i++)
#pragma unroll
        for (uint32_t c = 0; c < COLS; c++) {
            const float4 *quad = even_quad(head, i * DELTA_STEP + part * DELTA_QUAD, col + c);
            float4 v = {0, 0, 0, 0};
            if (quad && mine && run.pos) v = *quad;
#pragma unroll
            for (uint32_t j = 0; j < DELTA_QUAD; j++) p.s[i][c][j] = delta_of(v, j);
        }
    scan<Q, COLS, EVEN_TOKENS>(
        p,
        [&](uint32_t g, uint32_t t) {
            const struct even_group *e = &ring[g];
            return delta_at{e->q[side][t], e->k[side][t], &e->v[t][warp][lane * COLS],
                            e->gates[side][t], &e->qk[side][t]};
        },
        run.count, part, out, values);
    if (run.record || !mine) return;
#pragma unroll
    for (uint32_t i = 0; i < Q; i++)
#pragma unroll
        for (uint32_t c = 0; c < COLS; c++) {
            float4 *quad = even_quad(head, i * DELTA_STEP + part * DELTA_QUAD, col + c);
            if (quad) *quad = {p.s[i][c][0], p.s[i][c][1], p.s[i][c][2], p.s[i][c][3]};
        }
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
