/* delta_mix: what lies between a delta layer's input linears and its output linear, as one operation: conv, delta_norm, delta_gates, the
 * record of recorded runs, conv_store, delta_scan and gated_norm, in this order and with the bits of these. A backend may have NULL in its
 * table: then those are issued. Each one's header has its formula.
 *
 * Shapes  rows, m, conv_w, conv_state as in conv.h; z, norm_w as in gated_norm.h; a, b, neg_a, dt_bias as in delta_gates.h; state as in
 *         delta_scan.h; o [T, NV * DV] f32, the outcome. qkv [T, C] and gates [T, 2, NV] are room for it, undefined afterwards.
 * Record  rows of runs with record go, as conv reads, delta_norm leaves and delta_gates makes them, to rows run.record - 1 .. of rec_m,
 *         rec_qkv and rec_gates. These are 0 where no run is recorded. */
#pragma once
#include <stdbool.h>

#include "kernels/types.h"

struct delta_mix_args {
    struct rows rows;
    devptr m, z, a, b, qkv, gates, o;
    devptr conv_w, neg_a, dt_bias, norm_w;
    devptr rec_m, rec_qkv, rec_gates;
    devptr conv_state, state; // slot 0
    uint64_t slot_stride;     // bytes, of both
    uint32_t key_heads, value_heads, key_dim, value_dim;
    float q_scale, eps;
    bool stale; // of conv_store
};
