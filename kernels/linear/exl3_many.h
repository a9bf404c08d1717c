/* exl3_many: the shape of exl3_many's blocks, for the kernel and its plan. */
#pragma once
#include "kernels/cuda/arith.h"
#include "kernels/linear/exl3_params.h"

enum {
    EXL3_MANY_WARPS = 8, // that multiply: two groups of four, 64 outputs each
    EXL3_MANY_THREADS = (EXL3_MANY_WARPS + 4) * 32, // and a group, of which one thread fetches rows
    EXL3_MANY_STAGES = 6,                           // of rows
    EXL3_MANY_PAD = 4,                              // floats behind a row's outputs, for the banks
};

// Shared memory, in this order: stages of rows; the outputs of a tile; barriers; a flag.
ARITH_FN uint32_t exl3_many_totals(uint32_t rows) {
    return EXL3_MANY_STAGES * rows * EXL3_GROUP_BYTES;
}

ARITH_FN uint32_t exl3_many_barriers(uint32_t rows) {
    return exl3_many_totals(rows) + rows * (EXL3_BLOCK + EXL3_MANY_PAD) * 4;
}

ARITH_FN uint32_t exl3_many_shared(uint32_t rows) {
    return exl3_many_barriers(rows) + 2 * EXL3_MANY_STAGES * 8 + 8;
}
