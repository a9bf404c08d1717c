/* kv_append: from projected rows to what attention reads: queries normed and rotated in place, keys and values of the
 * rows in the cache.
 *
 * For each row t: every query head and every key head is RMS-normed over head_dim (q_scale, k_scale: 1 + w), then
 * dimensions 0..R-1 are rotated in pairs (i, i + R/2): a' = a cos - b sin, b' = b cos + a sin; k' and v go to the cache.
 * Shapes  qg [T, H, 2, dim] f32: per head dim of query, then dim of gate (untouched); k, v [T, KV, dim] f32;
 *         angles [T, 2, R/2] f32 (rope.h).
 * Order   as rmsnorm.h, per head. fp32; the cache rounds to its own type at the store.
 * Source  Qwen3.5 attention (transformers): per-head norm before the rotation, partial rotation in half-split pairs. */
#pragma once
#include "kernels/types.h"

struct kv_append_args {
    struct rows rows;
    struct kv_view kv;
    devptr qg, k, v, angles, q_scale, k_scale;
    uint32_t heads; // H
    uint32_t pairs; // R/2
    float eps;
};
