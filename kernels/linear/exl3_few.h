/* exl3_few: the shape of exl3_few's blocks, for the kernel and its plan. */
#pragma once
#include "kernels/cuda/arith.h"

enum {
    EXL3_FEW_SHARES = 16 + 24 * 32 * 16, // bytes of shared memory that the end takes
    EXL3_FEW_NORMS = 40,                 // rows that may be normed
};

// Warps of a block, at most; one block a multiprocessor. tiles: of eight rows.
#define exl3_few_warps(tiles) ((tiles) == 1 ? 24 : (tiles) == 2 ? 20 : 16)
