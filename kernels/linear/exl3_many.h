/* exl3_many: the shapes of exl3_many's blocks, for the kernels and their plan. */
#pragma once
#include "kernels/cuda/arith.h"
#include "kernels/linear/exl3_params.h"

// Of a block: it has a warp for every sixteen outputs and four more, of which one fetches.
struct exl3_many_shape {
    uint32_t rows, outputs; // of a tile
    uint32_t stages;        // of rows and weights
};
#define EXL3_MANY_64 ((struct exl3_many_shape){64, 128, 6})
#define EXL3_MANY_128 ((struct exl3_many_shape){128, 128, 6})
#define EXL3_MANY_WIDE_64 ((struct exl3_many_shape){64, 256, 6})
#define EXL3_MANY_WIDE_128 ((struct exl3_many_shape){128, 256, 3})

// Twice the bits of weights that wide tiles take, of MCG: others want more registers.
#define EXL3_MANY_WIDE_WIDTHS(X) X(6) X(8)

enum { EXL3_MANY_PAD = 4 }; // floats behind a row's outputs, for the banks

/* Shared memory, in this order: stages, of rows and of weights; the outputs of a tile; barriers; a flag. The weights of a stage are those
 * of four times sixteen inputs, a little apart for the banks. */
ARITH_FN uint32_t exl3_many_weights(uint32_t outputs,
                                    uint32_t half_bits) { // bytes of sixteen inputs
    return outputs * half_bits + 32;
}

ARITH_FN uint32_t exl3_many_stage(struct exl3_many_shape s, uint32_t half_bits) {
    return s.rows * EXL3_GROUP_BYTES +
           (4 * exl3_many_weights(s.outputs, half_bits) + 1023) / 1024 * 1024;
}

ARITH_FN uint32_t exl3_many_barriers(struct exl3_many_shape s, uint32_t half_bits) {
    return s.stages * exl3_many_stage(s, half_bits) +
           s.outputs / EXL3_BLOCK * s.rows * (EXL3_BLOCK + EXL3_MANY_PAD) * 4;
}

ARITH_FN uint32_t exl3_many_shared(struct exl3_many_shape s, uint32_t half_bits) {
    return exl3_many_barriers(s, half_bits) + 2 * s.stages * 8 + 8;
}
