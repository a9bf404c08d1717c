/* experts_params: the argument of the kernels of experts: what they are told, where their scratch lies.
 *
 * A pick is a row and one of its experts: row * per + place, the shared expert having the last place and the number X. What a kernel
 * keeps of a pick stands in its slot: its number, or where it was sorted to by expert. */
#pragma once
#include "kernels/cuda/arith.h"
#include "kernels/linear/exl3_int_many.h"
#include "kernels/linear/exl3_params.h"
#include "kernels/moe/experts.h"

enum {
    EXPERTS_SORT_THREADS = 1024,
    EXPERTS_THREADS = 256, // of the others
    EXPERTS_PLAIN_OUTPUTS = 128,
    EXPERTS_PLAIN_STAGES = 4,
    EXPERTS_FEW_ROWS = 8, // of the call, up to which nothing is sorted
    EXPERTS_FEW_WARPS = 8,
    EXPERTS_RING = 8,       // of EXL3 with chains, groups of 64 inputs
    EXPERTS_FEW_STAGES = 5, // of 2 KiB, of a warp's ring
    EXPERTS_FEW_RING_BYTES = EXPERTS_FEW_WARPS * EXPERTS_FEW_STAGES * 2048,
    EXPERTS_INT_ROWS = 8,     // of a block of experts_int
    EXPERTS_INT_ROWS_FEW = 4, // that take one set of columns
    EXPERTS_INT_WARPS = 8,
    EXPERTS_INT_WINDOW = 8,       // groups of 64 inputs whose integers a block has at a time
    EXPERTS_INT_PARTS = 4,        // blocks that share a gate's or up's inputs, at most
    EXPERTS_MANY_STAGES = 4,      // of experts_int_many, units of 64 inputs
    EXPERTS_MANY_FLAT_WORDS = 32, // of inputs, by 2048, that it takes
};

// Some sorted picks of an expert.
struct experts_item {
    uint32_t number, from, count;
};

struct experts_params {
    struct experts_args a;
    uint32_t per;      // experts of a row, the shared one too
    uint32_t picks;    // of all rows
    uint32_t down;     // of the products: which it is
    uint32_t segments; // chains: sums that gate or up have room for; others have one
    uint32_t splits;   // blocks that share these; with 1 their sum stands in the first one's place
    uint32_t slot_bytes; // chains: of a warp's ring
    uint32_t parts;      // integers: blocks that share the inputs of a gate or up
    uint32_t item_rows;  // integers: rows of a block, at most
    uint32_t item_bytes; // integers: of a place in a warp's ring
    uint32_t adds;       // experts_int's down does what experts_add does: all experts have one
    devptr arrived;      // then: [T, D / 128] u32: answers that are there; 0 between launches
    struct exl3_masks masks;
    devptr sums;   // [gate and up, segments, slots, I] f32
    devptr ints;   // [gate and up, parts, slots, I] i32: S with b for b' (exl3_int.h)
    devptr q_sums; // [gate and up, parts, slots] i32; experts_int_many: of down too
    devptr scales; // [gate and up, slots] f32; likewise
    devptr out;    // [slots, D] f32
    // Sorted picks; 0: the picks are not sorted.
    devptr sorted;  // [picks] u32: the picks by expert
    devptr owner;   // [picks] u32: the expert of a sorted pick
    devptr place;   // [picks] u32: where a pick was sorted to
    devptr first;   // [X + 2] u32: expert e has the sorted picks first[e] .. first[e + 1] - 1
    devptr active;  // [1 + experts that have picks] u32: how many those are, then their numbers
    devptr items;   // [1 + ..] struct experts_item; the first one's number is how many follow
    uint32_t slots; // experts that have picks, at most
    uint32_t items_max;
    uint32_t many; // integers: rows of an item of experts_int_many, or 0
    devptr
        flat; // [gate, up, down, picks, experts_flat_words] u32: bits of units whose integers are large together
    devptr
        lines; // inputs of gate, of up, of down as 16-bit values: spans of 64 of all picks, then the next
};

// Bytes of n picks' lines of some inputs.
ARITH_FN uint64_t experts_lines_bytes(uint64_t n, uint32_t cols) {
    return n * ((cols + 63) / 64 * 128);
}

// A bit for each 64 inputs of a pick.
ARITH_FN uint32_t experts_flat_words(uint32_t cols) {
    return (cols + 2047) / 2048;
}

// Bytes of a stage of experts_int_many.
ARITH_FN uint32_t experts_many_stage(uint32_t rows, uint32_t half_bits) {
    return (exl3_int_many_flat(rows, half_bits) + 1023) / 1024 * 1024;
}

// Bytes of a step's integers, each four times: 8 or 16 columns of 32, two a row, and 16 so that the steps lie in different banks.
ARITH_FN uint32_t experts_int_step_bytes(uint32_t columns) {
    return columns * 32 + 16;
}

// Of a group of 64 inputs: eight steps, the sums of q by row, and what fills up to sixteens.
ARITH_FN uint32_t experts_int_group_bytes(uint32_t columns) {
    return 8 * experts_int_step_bytes(columns) + EXPERTS_INT_ROWS * 4 + 16;
}

// Bytes of what experts_int keeps of a row's inputs: its own, rotated.
ARITH_FN uint32_t experts_int_row_bytes(uint32_t cols, uint32_t parts) {
    uint32_t blocks = cols / EXL3_BLOCK;
    return (blocks + parts - 1) / parts * EXL3_BLOCK * 4;
}
