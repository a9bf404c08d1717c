/* q4: a matrix [rows, cols] in 4 bits a weight, affine in groups of 64 along its inputs: w ~ code * scale + bias.
 *
 * Format  codes [rows, cols / 2] bytes, weight 2 i in the low half of byte i; factors [rows, cols / 64, 2] bf16: scale, bias.
 *         0.5625 bytes a weight. bias = bf16(min), scale = bf16((max - min) / 15), code = round((w - bias) / scale) within 0 .. 15.
 * Source  MLX's affine quantisation, as TensorFold uses it for drafters. Made when a drafter is loaded; no file has it. */
#pragma once
#include "kernels/types.h"

enum { Q4_GROUP = 64 };

struct q4 {
    devptr codes, factors;
    uint32_t rows, cols; // cols a multiple of Q4_GROUP, rows of 4; rows 0: nothing
};

static inline uint64_t q4_codes_bytes(uint32_t rows, uint32_t cols) {
    return (uint64_t)rows * cols / 2;
}
static inline uint64_t q4_factors_bytes(uint32_t rows, uint32_t cols) {
    return (uint64_t)rows * cols / Q4_GROUP * 2 * sizeof(uint16_t);
}
