/* exl3_many: the shape of exl3_many's blocks, for the kernel and its plan. */
#pragma once
#include "kernels/cuda/arith.h"
#include "kernels/linear/exl3_params.h"

enum {
    EXL3_MANY_WARPS = 8, // that multiply: two groups of four, 64 outputs each
    EXL3_MANY_THREADS = (EXL3_MANY_WARPS + 4) * 32, // and a group: a warp fetches, three finish
    EXL3_MANY_STAGES = 6,                           // of rows
    EXL3_MANY_PAD = 4,                              // floats behind a row's outputs, for the banks
};

/* Shared memory, in this order: stages, of rows and of weights; the outputs of a tile; barriers; a flag. The weights of a stage are those
 * of four times sixteen inputs, a little apart for the banks. */
ARITH_FN uint32_t exl3_many_weights(uint32_t half_bits) { // bytes of sixteen inputs
    return EXL3_BLOCK * half_bits + 32;
}

ARITH_FN uint32_t exl3_many_stage(uint32_t rows, uint32_t half_bits) {
    return rows * EXL3_GROUP_BYTES + (4 * exl3_many_weights(half_bits) + 1023) / 1024 * 1024;
}

ARITH_FN uint32_t exl3_many_barriers(uint32_t rows, uint32_t half_bits) {
    return EXL3_MANY_STAGES * exl3_many_stage(rows, half_bits) +
           rows * (EXL3_BLOCK + EXL3_MANY_PAD) * 4 + 32;
}

ARITH_FN uint32_t exl3_many_shared(uint32_t rows, uint32_t half_bits) {
    return exl3_many_barriers(rows, half_bits) + 2 * EXL3_MANY_STAGES * 8 + 8;
}
