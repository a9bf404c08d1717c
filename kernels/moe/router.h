/* router: which experts a row goes to, and with what weights.
 *
 *   p = softmax(logits[t, :]) over all X;  the P largest p, ties to the lowest number;  weight = p / sum of the P chosen p
 *
 * Shapes  logits [T, X] f32, may be overwritten; experts [T, P] u32 and weights [T, P] f32, largest p first. P <= X.
 * Order   CPU: the maximum (no rounding), then 16 lanes sum e^(logit - max), lane i the experts i, i + 16, ..; lanes add by
 *         halves (cpu_vec.h). The sum of the chosen p goes from the largest down. All fp32.
 * Always  the P experts of a row differ from one another, even where logits are not numbers.
 * Source  the published Qwen3.5 MoE: softmax first, then the choice, always renormalised. */
#pragma once
#include "kernels/types.h"

struct router_args {
    devptr logits, experts, weights;
    uint32_t rows;
    uint32_t count, per_token; // X, P
};
