/* rope: cos and sin of each row's position: angles[t, 0, i] = cos(pos[t] * freq[i]) * scale, angles[t, 1, i] = sin(..).
 *
 * Once per round, shared by all layers.
 * Shapes  pos [T] u32; freq [R/2] f32; angles [T, 2, R/2] f32.
 * Rounds  the angle is one fp32 product, as the reference implementation has it (transformers, rotary embedding in
 *         float32); its cos and sin are exact to within an ulp of double before the one rounding to fp32, then * scale in fp32.
 * Source  Su et al. 2021 (RoFormer); scale is YaRN's attention factor (Peng et al. 2023), else 1. */
#pragma once
#include "kernels/types.h"

struct rope_args {
    devptr pos, freq, angles;
    uint32_t rows, pairs; // pairs = R/2
    float scale;
};
