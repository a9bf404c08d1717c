/* exl3_int_params: what the kernels of exl3_int_rows.cu and exl3_int_few.cu and their plan agree on. */
#pragma once
#include "kernels/cuda/arith.h"
#include "kernels/linear/linear.h"

enum {
    EXL3_INT_ROWS = 16,      // of a launch of products
    EXL3_INT_ROWS_TILE = 4,  // of a tile of columns
    EXL3_INT_ROWS_PLAIN = 8, // with which plain parts go along
    EXL3_INT_GROUP = 64,     // inputs of an item of work
    EXL3_INT_TEAM = 4,       // warps that share 128 outputs
    EXL3_INT_TEAMS = 4,      // of a block, at most
    EXL3_INT_RING = 4,       // items that a warp has on their way, up to so many half bits
    EXL3_INT_RING_WIDTH = 8, // and one less for wider ones
    /* Integers of a group for 8 columns: four steps, in each a column's of four tiles of inputs; of step s and tile c the digits of inputs
     * 16 c + 2 s + {0, 8, 1, 9}, each four times. */
    EXL3_INT_STEP_BYTES = 8 * 4 * 16,
    EXL3_INT_TILE_BYTES = 4 * EXL3_INT_STEP_BYTES,
    EXL3_INT_TILES_WIDE =
        2, // more tiles: a column's digits of a tile of inputs in the same order, once
    EXL3_INT_TILE_THIN = 8 * 4 * 16,
    EXL3_INT_ROWS_WARPS = 4, // of a block of exl3_int_rows, but for norms
};

struct exl3_int_params {
    struct linear_args a;
    devptr rotated; // [MUL1 parts, T, K] f32: each part's rows, times suh and rotated
    devptr sizes;   // [MUL1 parts, T, K / 128] u32: the largest exl3_int_size of each block
    // A strip is as many outputs as a block has teams, 128 each. Of the MUL1 parts of a launch's width; 0 between launches:
    devptr sums;        // [strips, rows, outputs of a strip] i32: S with b for b'
    devptr q_sums;      // [strips, rows] i32
    devptr arrived;     // [strips] u32, groups of inputs that have been added
    uint32_t window;    // groups of inputs whose integers a block holds at a time
    uint32_t chunk;     // groups of inputs that are gone through for all outputs of a part
    uint32_t items;     // of a block, if no block has one more
    uint32_t more;      // how many blocks have one more
    uint32_t blocks;    // that have items; those behind have plain parts
    uint32_t parts;     // that are MUL1
    uint32_t ring_at;   // bytes of shared memory before the rings
    uint32_t keep_made; // other parts want the rows that are made
};

// Bytes of a group's integers in a block's window: tiles of 8 columns, 2 a row, its low digits and its high ones; then
// the sums of q by row, and where it comes from.
ARITH_FN uint32_t exl3_int_group_bytes(uint32_t tiles) {
    return tiles * (tiles > EXL3_INT_TILES_WIDE ? EXL3_INT_TILE_THIN : EXL3_INT_TILE_BYTES) +
           EXL3_INT_ROWS * 4 + 16;
}

ARITH_FN uint32_t exl3_int_ring(uint32_t half_bits) {
    return half_bits > EXL3_INT_RING_WIDTH ? EXL3_INT_RING - 1 : EXL3_INT_RING;
}

// Of a warp's part of an item's weights: 32 outputs of EXL3_INT_GROUP inputs.
ARITH_FN uint32_t exl3_int_item_bytes(uint32_t half_bits) {
    return 128 * half_bits;
}
