/* draft_conv: a short convolution along the rows of each block, with taps that depend on the row.
 *
 *   y[t,c] = sum_o (base[o,c] + d[t, o, c / group]) * z[t-o,c]  (+ y[t,c] as it was, with add),  o = 0 .. taps - 1
 * z before the first row of a block is 0. y is not z.
 * Shapes  z, y [T, D] f32; base [taps, D] f32; d: row t begins at d + t * d_stride floats, [taps, D / group] from there.
 * Order   o ascending, product and sum apart; the old y last.
 * Source  DFlash2's two-tap dynamic convolution (z-lab; mistral.rs, vLLM). */
#pragma once
#include <stdbool.h>

#include "kernels/draft/draft.h"

struct draft_conv_args {
    devptr blocks; // [blocks_count] struct draft_block
    uint32_t blocks_count, rows, dim;
    devptr z, y, base, d;
    uint32_t d_stride, taps, group; // group divides dim
    bool add;
};
