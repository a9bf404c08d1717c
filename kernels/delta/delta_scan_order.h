/* delta_scan_order: what the CUDA kernels and their twin agree on.
 *
 * A column of the state is shared by DELTA_PARTS lanes; row k belongs to lane (k / DELTA_QUAD) % DELTA_PARTS, so that a lane
 * reads keys and queries four at a time. Rows are filled up with zeros to delta_rows_padded.
 * A slot's state is [NV, DV / DELTA_COLUMNS, ..]: groups of columns, of DK * DELTA_COLUMNS floats each, in the order that
 * delta_state_at gives: a warp's lanes read and write their rows as one piece. */
#pragma once
#include "kernels/cuda/arith.h"

enum {
    DELTA_PARTS = 8,
    DELTA_QUAD = 4,
    DELTA_COLUMNS = 16,
    DELTA_HELD = DELTA_COLUMNS * DELTA_PARTS / 32, // columns of a lane, where a warp has one group
    DELTA_KEY_DIM_MAX = 256,
    DELTA_SCAN_WARPS_MAX = 4, // of a block, that hold columns; one more feeds them
};

ARITH_FN uint32_t delta_rows_padded(uint32_t key_dim) {
    return key_dim <= 64 ? 64 : key_dim <= 128 ? 128 : DELTA_KEY_DIM_MAX;
}

// Where row k of column c < DELTA_COLUMNS stands in its group: a lane's quads [row, column of the lane], each [lane, quad].
ARITH_FN uint32_t delta_state_at(uint32_t key_dim, uint32_t k, uint32_t c) {
    uint32_t step = DELTA_PARTS * DELTA_QUAD;
    if (key_dim % step) return k * DELTA_COLUMNS + c;
    uint32_t lane = c / DELTA_HELD * DELTA_PARTS + k % step / DELTA_QUAD;
    return ((k / step * DELTA_HELD + c % DELTA_HELD) * 32 + lane) * DELTA_QUAD + k % DELTA_QUAD;
}
