/* conv: causal depthwise convolution over a stream's rows, then SiLU; and the store of its state.
 *
 *   y[t,c] = silu(sum_j w[j,c] * m[t - 3 + j, c]), j = 0..3; inputs before the run come from the state, before position 0
 *   they are 0
 * Shapes  m, y [T, C] f32 (y is not m); w [CONV_TAPS, C] f32, the last tap is the row's own; state, per slot,
 *         [CONV_TAPS - 1, C] f32: the last inputs, oldest first.
 * Order   j ascending, each step fused, from 0. fp32, own exp.
 * conv_store moves the last CONV_TAPS - 1 inputs of state + run into the state: for the runs of a forward after conv has
 * read it, for a wound-back window with the rows it keeps.
 * Source  Qwen3.5 gated delta net (transformers): causal conv over q, k and v channels. */
#pragma once
#include <stdbool.h>

#include "kernels/types.h"

enum { CONV_TAPS = 4 };

struct conv_args {
    struct rows rows;
    devptr m, w, y;
    devptr state;         // slot 0
    uint64_t slot_stride; // bytes from one slot's state to the next
    uint32_t channels;    // C
};

struct conv_store_args {
    devptr runs; // those with record != 0 are left alone
    uint32_t runs_count;
    devptr m; // a run's first input is m[run.row,:]
    devptr state;
    uint64_t slot_stride;
    uint32_t channels;
    bool stale; // planted fault of tests: the oldest row stays what it was
};
