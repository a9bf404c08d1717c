/* delta_scan: the delta rule in registers, as delta_scan.cu and delta_mix.cu share it. DELTA_PARTS lanes side by side hold COLS columns of
 * the state, each lane its quads of their rows.
 *
 * A step has three passes over a lane's rows, none of which waits for a sum over lanes: S^T k of the token has been summed up by the step
 * before; while its parts are added, S decays and S^T q is summed on that; then S takes the token, and the next one's S^T k is summed
 * on what comes out, while the rest of the next token is read. */
#pragma once
#include "kernels/cuda/device.cuh"
#include "kernels/delta/delta_scan_order.h"

enum { DELTA_STEP = DELTA_PARTS * DELTA_QUAD }; // rows between a lane's quads

// A lane's rows of COLS columns, Q quads of each.
template <uint32_t Q, uint32_t COLS> struct delta_part { float s[Q][COLS][DELTA_QUAD]; };

template <uint32_t Q> struct delta_row { // a lane's part of a key or query
    float4 x[Q];
};

DEVICE_FN float delta_of(const float4 &v, uint32_t i) {
    return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w;
}

// row: shared, of the padded rows.
template <uint32_t Q>
DEVICE_FN void delta_take(struct delta_row<Q> &ret, const float *row, uint32_t part) {
#pragma unroll
    for (uint32_t i = 0; i < Q; i++)
        ret.x[i] = reinterpret_cast<const float4 *>(row)[i * DELTA_PARTS + part];
}

// All lanes of a column get the sum.
DEVICE_FN float delta_column_sum(float v) {
#pragma unroll
    for (int d = 1; d < DELTA_PARTS; d *= 2) v = v + __shfl_xor_sync(0xffffffffu, v, d);
    return v;
}

// Of a lane's COLS columns the one whose output it has in the end, and whether it is the one to write it.
template <uint32_t COLS> DEVICE_FN uint32_t delta_out_column(uint32_t part) {
    return part / (DELTA_PARTS / COLS);
}

template <uint32_t COLS> DEVICE_FN bool delta_out_lane(uint32_t part) {
    return part % (DELTA_PARTS / COLS) == 0;
}

// Of a lane's columns that of delta_out_column.
template <uint32_t COLS> DEVICE_FN float delta_mine(const float v[COLS], uint32_t part) {
    float a[COLS];
    uint32_t d = DELTA_PARTS / 2;
#pragma unroll
    for (uint32_t c = 0; c < COLS; c++) a[c] = v[c];
#pragma unroll
    for (uint32_t n = COLS / 2; n; n /= 2, d /= 2)
#pragma unroll
        for (uint32_t c = 0; c < n; c++) a[c] = part & d ? a[c + n] : a[c];
    return a[0];
}

// The sum of column delta_out_column: lanes send each other the columns that the other one wants.
template <uint32_t COLS> DEVICE_FN float delta_spread_sum(const float v[COLS], uint32_t part) {
    float a[COLS];
    uint32_t d = DELTA_PARTS / 2;
#pragma unroll
    for (uint32_t c = 0; c < COLS; c++) a[c] = v[c];
#pragma unroll
    for (uint32_t n = COLS / 2; n; n /= 2, d /= 2)
#pragma unroll
        for (uint32_t c = 0; c < n; c++) {
            bool upper = part & d;
            float keep = upper ? a[c + n] : a[c], send = upper ? a[c] : a[c + n];
            a[c] = keep + __shfl_xor_sync(0xffffffffu, send, d);
        }
#pragma unroll
    for (; d; d /= 2) a[0] = a[0] + __shfl_xor_sync(0xffffffffu, a[0], d);
    return a[0];
}

// q . k of each of TOKENS tokens, by a warp for itself. q, k: shared, [TOKENS, 4 Q DELTA_PARTS]; ret: shared, [TOKENS].
template <uint32_t Q, uint32_t TOKENS>
DEVICE_FN void delta_qk(float *ret, const float *q, const float *k) {
    constexpr uint32_t ROWS = Q * DELTA_STEP, EACH = WARP / DELTA_PARTS;
    uint32_t part = threadIdx.x % DELTA_PARTS;
    __syncwarp();
#pragma unroll
    for (uint32_t first = 0; first < TOKENS; first += EACH) {
        uint32_t t = first + threadIdx.x % WARP / DELTA_PARTS;
        struct delta_row<Q> a, b;
        float sum = 0;
        delta_take(a, q + t * ROWS, part);
        delta_take(b, k + t * ROWS, part);
#pragma unroll
        for (uint32_t i = 0; i < Q; i++)
#pragma unroll
            for (uint32_t j = 0; j < DELTA_QUAD; j++)
                sum = fmaf(delta_of(a.x[i], j), delta_of(b.x[i], j), sum);
        sum = delta_column_sum(sum);
        if (part == 0) ret[t] = sum;
    }
    __syncwarp();
}

// The lane's part of S^T k.
template <uint32_t Q, uint32_t COLS>
DEVICE_FN void delta_read(const struct delta_part<Q, COLS> &p, const struct delta_row<Q> &k,
                          float sum[COLS]) {
#pragma unroll
    for (uint32_t c = 0; c < COLS; c++) sum[c] = 0;
#pragma unroll
    for (uint32_t i = 0; i < Q; i++)
#pragma unroll
        for (uint32_t j = 0; j < DELTA_QUAD; j++)
#pragma unroll
            for (uint32_t c = 0; c < COLS; c++)
                sum[c] = fmaf(p.s[i][c][j], delta_of(k.x[i], j), sum[c]);
}

// Where a token is, shared: padded rows of query and key, the values of the lane's columns, decay and strength, q . k.
struct delta_at {
    const float *q, *k, *v, *gates, *qk;
};

template <uint32_t Q, uint32_t COLS> struct delta_token { // but its key
    struct delta_row<Q> q;
    float v[COLS], g, b, qk;
};

template <uint32_t Q, uint32_t COLS>
DEVICE_FN void delta_fetch(struct delta_token<Q, COLS> &t, const struct delta_at &at,
                           uint32_t part) {
    float2 gates = *reinterpret_cast<const float2 *>(at.gates);
    t.g = gates.x;
    t.b = gates.y;
    t.qk = *at.qk;
#pragma unroll
    for (uint32_t c = 0; c < COLS; c += 2) {
        float2 two = *reinterpret_cast<const float2 *>(at.v + c);
        t.v[c] = two.x;
        t.v[c + 1] = two.y;
    }
    delta_take(t.q, at.q, part);
}

/* One token: mk holds the lane's part of S^T k on entry, of S^T next_k on return; t and k are the token's on entry, t the next one's on return, which
 * is at `next`. Returns the output of column delta_out_column. */
template <uint32_t Q, uint32_t COLS>
DEVICE_FN float delta_step(struct delta_part<Q, COLS> &p, float mk[COLS],
                           struct delta_token<Q, COLS> &t, const struct delta_row<Q> &k,
                           struct delta_row<Q> &next_k, const struct delta_at &next,
                           uint32_t part) {
    float mq[COLS], d[COLS], qk = t.qk;
    delta_take(next_k, next.k, part);
#pragma unroll
    for (uint32_t i = 0; i < Q; i++)
#pragma unroll
        for (uint32_t j = 0; j < DELTA_QUAD; j++)
#pragma unroll
            for (uint32_t c = 0; c < COLS; c++) p.s[i][c][j] = t.g * p.s[i][c][j];
#pragma unroll
    for (uint32_t c = 0; c < COLS; c++) d[c] = t.b * fmaf(-t.g, delta_column_sum(mk[c]), t.v[c]);
    delta_read(p, t.q, mq);
    float sum = delta_spread_sum<COLS>(mq, part), mine = delta_mine<COLS>(d, part);
    delta_fetch(t, next, part);
#pragma unroll
    for (uint32_t c = 0; c < COLS; c++) mk[c] = 0;
#pragma unroll
    for (uint32_t i = 0; i < Q; i++)
#pragma unroll
        for (uint32_t j = 0; j < DELTA_QUAD; j++) {
#pragma unroll
            for (uint32_t c = 0; c < COLS; c++)
                p.s[i][c][j] = fmaf(delta_of(k.x[i], j), d[c], p.s[i][c][j]);
#pragma unroll
            for (uint32_t c = 0; c < COLS; c++)
                mk[c] = fmaf(p.s[i][c][j], delta_of(next_k.x[i], j), mk[c]);
        }
    return fmaf(qk, mine, sum);
}

/* The state of a warp's columns from memory, or from nothing. group: of DELTA_COLUMNS columns; col: the lane's first in it.
 * WHOLE: the key dimension is all of the padded rows. */
template <uint32_t Q, uint32_t COLS, bool WHOLE>
DEVICE_FN void delta_load(struct delta_part<Q, COLS> &p, const float *group, uint32_t key_dim,
                          uint32_t col, uint32_t part, bool from_nothing) {
#pragma unroll
    for (uint32_t i = 0; i < Q; i++)
#pragma unroll
        for (uint32_t c = 0; c < COLS; c++) {
            uint32_t k = i * DELTA_STEP + part * DELTA_QUAD;
            if (WHOLE) {
                float4 v = {0, 0, 0, 0};
                if (!from_nothing)
                    v = *reinterpret_cast<const float4 *>(
                        group + delta_state_at(Q * DELTA_STEP, k, col + c));
#pragma unroll
                for (uint32_t j = 0; j < DELTA_QUAD; j++) p.s[i][c][j] = delta_of(v, j);
            } else {
#pragma unroll
                for (uint32_t j = 0; j < DELTA_QUAD; j++)
                    p.s[i][c][j] = from_nothing || k + j >= key_dim
                                       ? 0
                                       : group[delta_state_at(key_dim, k + j, col + c)];
            }
        }
}

template <uint32_t Q, uint32_t COLS, bool WHOLE>
DEVICE_FN void delta_store(const struct delta_part<Q, COLS> &p, float *group, uint32_t key_dim,
                           uint32_t col, uint32_t part) {
#pragma unroll
    for (uint32_t i = 0; i < Q; i++)
#pragma unroll
        for (uint32_t c = 0; c < COLS; c++) {
            uint32_t k = i * DELTA_STEP + part * DELTA_QUAD;
            if (WHOLE) {
                float4 v = {p.s[i][c][0], p.s[i][c][1], p.s[i][c][2], p.s[i][c][3]};
                *reinterpret_cast<float4 *>(group + delta_state_at(Q * DELTA_STEP, k, col + c)) = v;
            } else {
#pragma unroll
                for (uint32_t j = 0; j < DELTA_QUAD; j++)
                    if (k + j < key_dim)
                        group[delta_state_at(key_dim, k + j, col + c)] = p.s[i][c][j];
            }
        }
}

// Sixteen bytes from global to shared memory, behind the thread's back.
DEVICE_FN void delta_copy(float *shared, const float *from) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(
                     (uint32_t)__cvta_generic_to_shared(shared)),
                 "l"(from)
                 : "memory");
}

DEVICE_FN void delta_copy_4(float *shared, const float *from) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(
                     (uint32_t)__cvta_generic_to_shared(shared)),
                 "l"(from)
                 : "memory");
}

DEVICE_FN void delta_copies_end() {
    asm volatile("cp.async.commit_group;" ::: "memory");
}

template <int LEFT> DEVICE_FN void delta_copies_wait() {
    asm volatile("cp.async.wait_group %0;" ::"n"(LEFT) : "memory");
}
