/* exl3_int: the arithmetic of EXL3 parts with the MUL1 codebook on CUDA: integer products. What kernels and twin share. Pure.
 *
 * A state of the trellis stands for (1774 b - 905216) / 2^18, b being the sum of the four bytes of 0x83dcd12d * state; with
 * b' = b - 510 that is (1774 b' - 476) / 2^18. A row becomes integers with one scale:
 *   v      the row times suh, rotated in fp32 (hadamard.h's butterflies)
 *   top    the largest |v| of all K, at least 2^-100
 *   q      v * (2047 / top), to the nearest integer (even at ties), within +-2047; scale = top / 2047
 *   S      sum of q b' over K, modulo 2^32;  Q  sum of q
 *   y      (1774 S - 476 Q) to the nearest fp32 number, times (scale * 2^-18); then the rotation of the outputs
 * A row with a value that is not finite has only NaN as its answers.
 * Exact   S and Q are integers, so no order of the sums, no cut of K, no tile and no family of instructions changes a bit.
 *         |S| is at most |q| |b'| (as vectors): with 148 as b's deviation that stays below 2^31 for K up to 17408 unless the
 *         row's top is less than 2.5 times its rms and the row lies along a row of the weight; below K = 2056 always. Rotated
 *         rows are near normal: tops of 4 and more, and at most 4.3e7 was seen at K = 17408. Past it the sum would wrap, the
 *         same way everywhere. 1774 S - 476 Q is exact in 64 bits.
 * Error   against the formula in fp64, relative to the rms of the outputs: 6.1e-4 at K = 5120, 6.6e-4 at 17408 on normal rows;
 *         1.0e-3 and 1.7e-3 with a channel of a thousand times the others. The weight is the unrounded value: the format's
 *         fp16 rounding (2.1e-4 rms) is left out.
 * Source  EXL3's MUL1 codebook (exl3_decode.h); the integers are our own derivation. */
#pragma once
#include "kernels/cuda/arith.h"
#include "kernels/types.h"

#include <stdbool.h>

enum {
    EXL3_INT_TOP = 2047, // of |q|
    EXL3_INT_MIDDLE = 510,
    EXL3_INT_FACTOR = 1774,
    EXL3_INT_OFFSET = 476,
};
#define EXL3_INT_MULTIPLIER 0x83dcd12du

// Whether a weight is multiplied this way; the other EXL3 ones have linear_order.h's chains.
ARITH_FN bool exl3_int_weight(const struct weight *w) {
    return w->exl3.half_bits && w->exl3.codebook == EXL3_MUL1;
}

// The other EXL3 ones, which have linear_order.h's chains.
ARITH_FN bool exl3_chain_weight(const struct weight *w) {
    return w->exl3.half_bits && !exl3_int_weight(w);
}

// What |v| counts as in the search for the largest: its bits, so that a NaN is above all. The largest goes to the next two.
ARITH_FN uint32_t exl3_int_size(float v) {
    return arith_bits(v) & 0x7fffffffu;
}

ARITH_FN float exl3_int_top(uint32_t size) {
    return size < 0x0d800000u ? 0x1p-100f : arith_float(size);
}

// The factor that makes integers of a row; 0: it has a value that is not finite.
ARITH_FN float exl3_int_inverse(uint32_t size) {
    return size >= 0x7f800000u ? 0.0f : (float)EXL3_INT_TOP / exl3_int_top(size);
}

// The factor of the row's answers.
ARITH_FN float exl3_int_scale(uint32_t size) {
    float scale = exl3_int_top(size) / (float)EXL3_INT_TOP;
    return size >= 0x7f800000u ? arith_float(0x7fc00000u) : scale * 0x1p-18f;
}

// q. The sum with 1.5 * 2^23 rounds to the nearest integer, which its low bits then are.
ARITH_FN int32_t exl3_int_value(float v, float inverse) {
    int32_t q = (int32_t)(arith_bits(v * inverse + 12582912.0f) - 0x4b400000u);
    q = q > EXL3_INT_TOP ? EXL3_INT_TOP : q < -EXL3_INT_TOP ? -EXL3_INT_TOP : q;
    return inverse > 0 ? q : 0;
}

// q = low + 256 high, low in -128 .. 127, high in -8 .. 8.
ARITH_FN int32_t exl3_int_high(int32_t q) {
    return (q + 128) >> 8;
}

ARITH_FN int32_t exl3_int_low(int32_t q) {
    return q - exl3_int_high(q) * 256;
}

// A row's answer before the rotation of the outputs. scale: exl3_int_scale's.
ARITH_FN float exl3_int_answer(int32_t s, int32_t q_sum, float scale) {
    return (float)((int64_t)s * EXL3_INT_FACTOR - (int64_t)q_sum * EXL3_INT_OFFSET) * scale;
}
