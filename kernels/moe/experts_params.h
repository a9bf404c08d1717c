/* experts_params: the argument of the kernels of experts: where their scratch lies. Picks are the (row, place) pairs of all rows,
 * sorted by expert; sorted pick i stands at row i of every array. */
#pragma once
#include "kernels/moe/experts.h"

enum {
    EXPERTS_SORT_THREADS = 512,
    EXPERTS_THREADS = 256, // of the others
    EXPERTS_PLAIN_OUTPUTS = 128,
    EXPERTS_PLAIN_STAGES = 4,
    EXPERTS_FEW_ROWS = 8, // experts_few
    EXPERTS_FEW_WARPS = 8,
    EXPERTS_RING = 8,       // of EXL3, groups of 64 inputs
    EXPERTS_FEW_STAGES = 5, // of 2 KiB, of a warp's ring
    EXPERTS_FEW_RING_BYTES = EXPERTS_FEW_WARPS * EXPERTS_FEW_STAGES * 2048,
};

struct experts_few_params {
    struct experts_args a;
    devptr
        sums; // [gate and up, segments, T P, I] f32, by pick: row * P + place. Plain weights have one segment.
    devptr out;        // [T P, D] f32, by pick
    uint32_t segments; // of an EXL3 gate or up
    uint32_t splits;   // blocks that share these; with 1 their sum stands in the first one's place
    uint32_t down;     // which launch it is
    uint32_t slot_bytes; // EXL3: of a warp's ring, which has EXPERTS_RING
};

struct experts_params {
    struct experts_args a;
    uint32_t slots; // at most so many experts have a row
    devptr first;   // [X + 1] u32: expert e has the sorted picks first[e] .. first[e + 1] - 1
    devptr active;  // [slots + 1] u32: how many experts have a row, then their numbers
    devptr picks;   // [T P] u32: row * P + place, sorted
    devptr owner;   // [T P] u32: the expert of a sorted pick
    devptr place;   // [T P] u32: where a pick was sorted to; 0: nothing was sorted
    devptr
        lines; // inputs of gate, of up, of down as 16-bit values: spans of 64 of all picks, then the next
    devptr gate, up; // [T P, I] f32, of EXL3 weights not finished
    devptr out;      // [T P, D] f32, likewise
    uint32_t down;   // of the products: which it is
};
