/* exl3_int_params: what the kernels of exl3_int_few.cu and their plan agree on. */
#pragma once
#include "kernels/cuda/arith.h"
#include "kernels/linear/linear.h"

enum {
    EXL3_INT_ROWS = 8,     // of a launch of products
    EXL3_INT_ROWS_FEW = 4, // that take one set of columns
    EXL3_INT_GROUP = 64,   // inputs of an item of work
    EXL3_INT_TEAM = 4,     // warps that share 128 outputs
    EXL3_INT_TEAMS = 4,    // of a block, at most
    EXL3_INT_RING = 4,     // items that a warp has on their way
    EXL3_INT_ROTATE_WARPS = 4,
};

struct exl3_int_params {
    struct linear_args a;
    devptr rotated; // [MUL1 parts, T, K] f32: each part's rows, times suh and rotated
    devptr sizes;   // [MUL1 parts, T, K / 128] u32: the largest exl3_int_size of each block
    // A strip is as many outputs as a block has teams, 128 each. Of all MUL1 parts; 0 between launches:
    devptr sums;         // [strips, rows, outputs of a strip] i32: S with b for b'
    devptr q_sums;       // [strips, rows] i32
    devptr arrived;      // [strips] u32, groups of inputs that have been added
    uint32_t window;     // groups of inputs whose integers a block holds at a time
    uint32_t chunk;      // groups of inputs that are gone through for all outputs of a part
    uint32_t items;      // of a block, if no block has one more
    uint32_t more;       // how many blocks have one more
    uint32_t parts;      // that are MUL1
    uint32_t item_bytes; // of a warp's part of the widest weight
};

// Bytes of a step's integers, each four times: 8 or 16 columns of 32, and 16 so that the steps lie in different banks.
ARITH_FN uint32_t exl3_int_step_bytes(uint32_t columns) {
    return columns * 32 + 16;
}

// Of a group's: eight steps, the sums of q by row, and where it comes from.
ARITH_FN uint32_t exl3_int_group_bytes(uint32_t columns) {
    return 8 * exl3_int_step_bytes(columns) + EXL3_INT_ROWS * 4 + 16;
}

// Of a warp's part of an item's weights: 32 outputs of EXL3_INT_GROUP inputs.
ARITH_FN uint32_t exl3_int_item_bytes(uint32_t half_bits) {
    return 128 * half_bits;
}
