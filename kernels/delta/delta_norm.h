/* delta_norm: unit queries and keys, in place: x / sqrt(sum(x^2) + 1e-6) per head, queries times q_scale after it.
 *
 * Shapes  qkv [T, C] f32 with C = 2 NK DK + NV DV: NK query heads of DK, NK key heads of DK, then values (untouched).
 * Order   the sum as in rmsnorm.h; one division 1 / sqrt(..), then products.
 * Source  Qwen3.5 gated delta net (transformers): l2 norm with eps inside the root, queries over sqrt(DK). */
#pragma once
#include "kernels/types.h"

struct delta_norm_args {
    devptr qkv;
    uint32_t rows, channels; // channels = C
    uint32_t key_heads, key_dim;
    float q_scale;
};
