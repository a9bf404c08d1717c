/* expert_sum: h[t,d] += routed[t,d] + sigmoid(gate[t]) * shared[t,d]
 *
 * What a mixture-of-experts MLP gives: the routed experts' sum and the shared expert's answer behind its own gate.
 * Shapes  h, routed, shared [T, D] f32; gate [T] f32, before the sigmoid.
 * Order   the product, then the routed sum plus it, then h plus that; each rounded, fp32. */
#pragma once
#include "kernels/types.h"

struct expert_sum_args {
    devptr h, routed, shared, gate;
    uint32_t rows, dim;
};
