/* q4_params: the argument of the kernels of q4_linear. */
#pragma once
#include "kernels/draft/q4_linear.h"

/* The rows as q4_rows leaves them, eight to a tile, zeros where there is none. For a tile and a group of K, lane (g, c) of a warp has values
 * 16 c .. 16 c + 15 of row g, as bf16, in the order of the steps: halves of 8, each by 0 4, 1 5, 2 6, 3 7. sums: of each row's values
 * in the group. */
struct q4_params {
    struct q4_linear_args a;
    devptr values; // [tiles, groups, 2, 32] of 16 bytes
    devptr sums;   // [tiles, groups, 8] f32
};
