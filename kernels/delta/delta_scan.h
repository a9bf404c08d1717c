/* delta_scan: the gated delta rule, token by token, one routine for decoding, prompts, windows and commits.
 *
 * Per value head, state S [DK, DV], decay g, strength b, q, k of key head h / (NV / NK):
 *   mk = S^T k;  mq = S^T q;  d = b (v - g mk);  o = g mq + (q . k) d;  S = g S + k d^T
 * which is: S <- g S; d = b (v - S^T k); S <- S + k d^T; o = S^T q, with both products taken on the old state.
 * Shapes  qkv [T, C] f32 as delta_norm leaves it; gates [T, 2, NV] f32; out [T, NV * DV] f32, or 0 when only
 *         the state is wanted (a commit); state, per slot, NV * DK * DV f32 in an order of the backend's own (CPU: a group of
 *         columns after the other, each [DK, columns], as wide as the variant's registers hold).
 * Order   CPU: mk, mq: ascending row of S per column; q . k by the 16 lanes of linear.h; each step of these sums fused.
 *         d = b fma(mk, -g, v); o = fma(d, q . k, g mq); S = fma(d, k, g S): what stands in a fma is rounded once.
 *         CUDA: eight chains a column, fused (delta_scan.cuh).
 * Runs    that start at position 0 start from S = 0. Runs with record leave S as it was. Rows of a run: run.row ...
 * DV is a multiple of 16.
 * Source  Yang et al. 2024 (Gated Delta Networks), equation 10. */
#pragma once
#include "kernels/types.h"

struct delta_scan_args {
    devptr runs;
    uint32_t runs_count, rows; // rows: the sum over the runs
    devptr qkv, gates, out;
    devptr state;
    uint64_t slot_stride; // bytes
    uint32_t key_heads, value_heads, key_dim, value_dim;
};
