/* exl3_params: rotated rows, and what the EXL3 kernels of linear are told.
 *
 * Rotated rows are f16 [K / 64, rows, 64]: the 64 inputs of a group in the order of its steps, element 16 s + 8 h + 2 c + e
 * being input 16 c + 2 s + 8 h + e; pieces of eight elements lie at their number xor row % 8. So the factor of a step is one
 * ldmatrix, or wgmma's with the swizzle of 128 bytes, without conflicts, and neighbouring rows of a group are one piece of memory. */
#pragma once
#include "kernels/linear/linear.h"

enum {
    EXL3_GROUP = 64,        // inputs
    EXL3_GROUP_BYTES = 128, // of a row
    EXL3_STEP_ROWS = 8,     // of one mma.sync
    EXL3_RING = 4,          // stages of a warp's ring of weights, 128 inputs each
};

/* The masks of the codebooks that add two halves. Kernels take them from their argument: of two numbers that the compiler knows it
 * makes two operations. */
struct exl3_masks {
    uint32_t keep, flip;
};
#define EXL3_MASKS ((struct exl3_masks){0x8fff8fffu, 0x3b603b60u})

struct exl3_params {
    struct linear_args a;
    devptr rotated;            // [EXL3 parts, K / 64, T, 64] f16
    devptr sums;               // exl3_few: [EXL3 parts, N / 128, segments / chain, T, 128] f32
    devptr counters;           // of each 128 outputs of the EXL3 parts: the sums that lie there
    uint32_t segments, groups; // of K; of a segment
    uint32_t units;            // tiles of sixteen outputs times segments / chain
    uint32_t chain;            // segments that a warp adds up itself
    uint32_t buffers;          // of rows in shared memory, 1 or 2
    uint32_t rows_bytes;       // of such a buffer
    uint32_t rotates;          // exl3_few does it itself
    uint32_t half_bits_max;    // of the EXL3 parts
    struct exl3_masks masks;
};
