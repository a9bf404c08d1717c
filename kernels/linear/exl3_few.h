/* exl3_few: the shape of exl3_few's blocks, for the kernel and its plan. */
#pragma once

enum {
    EXL3_FEW_WARPS = 24, // of a block, one a multiprocessor
    EXL3_FEW_THREADS = EXL3_FEW_WARPS * 32,
    EXL3_FEW_RING = 4, // stages of a warp's ring, a group each
};
