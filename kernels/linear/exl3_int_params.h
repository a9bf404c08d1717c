/* exl3_int_params: what the kernels of exl3_int_few.cu and their plan agree on. */
#pragma once
#include "kernels/cuda/arith.h"
#include "kernels/linear/linear.h"

enum {
    EXL3_INT_ROWS = 8,     // of a launch of products
    EXL3_INT_ROWS_FEW = 4, // that take one set of columns
    EXL3_INT_GROUP = 64,   // inputs of a unit of work; its outputs are EXL3_BLOCK
    EXL3_INT_TEAM = 4,     // warps that share a unit: 32 outputs each
    EXL3_INT_TEAMS = 4,    // of a block, at most
    EXL3_INT_RING = 4,     // units that a warp has on their way
    EXL3_INT_ROTATE_WARPS = 4,
};

struct exl3_int_params {
    struct linear_args a;
    devptr rotated; // [MUL1 parts, T, K] f32: each part's rows, times suh and rotated
    devptr sizes;   // [MUL1 parts, T, K / 128] u32: the largest exl3_int_size of each block
    devptr
        sums; // [blocks of 128 outputs of all MUL1 parts, rows, 128] i32: S with b for b'; 0 between launches
    devptr q_sums;  // [those blocks, rows] i32; 0 between launches
    devptr arrived; // [those blocks] u32, groups of inputs that have been added; 0 between launches
    uint32_t window; // groups of inputs whose integers a block holds at a time
};

// Bytes of a step's integers, each four times: 8 or 16 columns of 32, and 16 so that the steps lie in different banks.
ARITH_FN uint32_t exl3_int_step_bytes(uint32_t columns) {
    return columns * 32 + 16;
}

// Of a group's: eight steps, and the sums of q by row.
ARITH_FN uint32_t exl3_int_group_bytes(uint32_t columns) {
    return 8 * exl3_int_step_bytes(columns) + EXL3_INT_ROWS * 4;
}

// Of a warp's unit of weights on its way: 32 outputs of EXL3_INT_GROUP inputs.
ARITH_FN uint32_t exl3_int_unit_bytes(uint32_t half_bits) {
    return 128 * half_bits;
}
