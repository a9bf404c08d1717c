/* delta_gates: decay and write strength of each row and value head.
 *
 *   gates[t,0,h] = exp(neg_a[h] * softplus(a[t,h] + dt_bias[h])),   gates[t,1,h] = sigmoid(b[t,h])
 * Shapes  a, b [T, NV] f32; neg_a [NV] f32 = -exp(A_log); dt_bias [NV] f32; gates [T, 2, NV] f32.
 * Rounds  fp32; softplus(x) = max(x, 0) + log1p(exp(-|x|)).
 * Source  Yang et al. 2024 (Gated Delta Networks); parametrisation as Mamba-2's. */
#pragma once
#include "kernels/types.h"

struct delta_gates_args {
    devptr a, b, neg_a, dt_bias, gates;
    uint32_t rows, heads; // heads = NV
};
