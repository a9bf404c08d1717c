/* experts: the routed experts of a mixture-of-experts MLP, and the shared one with them where a backend takes both (ops.experts_shared).
 *
 *   y[t,:] = sum over the row's P experts e, in ascending number, of weight_e * down_e(silu(gate_e x[t]) * up_e x[t])
 *   with shared, y is not written, but  h[t,:] += y[t,:] + sigmoid(gate[t]) * the shared expert's answer  (expert_sum.h)
 *
 * Shapes  x, y, h [T, D] f32; experts [T, P] u32 below X and weights [T, P] f32, a row's experts all different (router.h); gate [T] f32;
 *         gate_e, up_e [I, D], down_e [D, I], each of any type that linear takes, also different ones in one table.
 * Order   each product as in linear.h, silu(g) * u as in swiglu.h; then from 0, expert by expert in ascending number,
 *         product with the weight and sum rounded apart. So a row's bits follow from that row alone, not from who else
 *         went to its experts.
 * Cost    rows are grouped by expert, and the weights of an expert are read once however many rows it has; an expert
 *         without a row is not read at all. */
#pragma once
#include "kernels/types.h"

struct expert {
    struct weight gate, up, down;
};

struct experts_args {
    devptr x, experts, weights, y;
    devptr scratch; // experts_room bytes
    devptr h, gate; // 0: routed experts alone
    const struct expert *
        table; // [X], in host memory; stays as it is while the device lives; with shared that one behind them
    devptr dev_table;                      // the same bytes on the device
    uint32_t rows, shared;                 // shared: 1, or 0: the routed experts alone
    uint32_t dim, width, count, per_token; // D, I, X, P
};
