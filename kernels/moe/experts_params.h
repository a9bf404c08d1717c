/* experts_params: the argument of the kernels of experts: where their scratch lies. Picks are the (row, place) pairs of all rows,
 * sorted by expert; sorted pick i stands at row i of every array. */
#pragma once
#include "kernels/moe/experts.h"

enum {
    EXPERTS_SORT_THREADS = 512,
    EXPERTS_COLUMNS = 32, // of a block's stride over the outputs, for the shape of the grid
};

struct experts_params {
    struct experts_args a;
    uint32_t slots;  // at most so many experts have a row
    devptr first;    // [X + 1] u32: expert e has the sorted picks first[e] .. first[e + 1] - 1
    devptr active;   // [slots + 1] u32: how many experts have a row, then their numbers
    devptr picks;    // [T P] u32: row * P + place, sorted
    devptr owner;    // [T P] u32: the expert of a sorted pick
    devptr place;    // [T P] u32: where a pick was sorted to
    devptr rotated;  // [2, T P, D] f16 for gate and up, then [T P, I] for down; of EXL3 experts
    devptr gate, up; // [T P, I] f32
    devptr out;      // [T P, D] f32
};
