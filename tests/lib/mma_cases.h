/* mma_cases: made-up factors and sums for tensor-core steps, the same wherever they are made. Case i is one m16n8k16: 128 steps
 * that share sixteen rows of a and eight columns of b. Pure. */
#pragma once
#include <stdint.h>

#include "common/num.h"
#include "kernels/types.h"

enum { MMA_CASES = 782, MMA_ROWS = 16, MMA_COLS = 8, MMA_DEPTH = 16, MMA_KINDS = 8 };

struct mma_case {
    enum dtype dtype;
    uint16_t a[MMA_ROWS][MMA_DEPTH], b[MMA_COLS][MMA_DEPTH];
    uint32_t c[MMA_ROWS][MMA_COLS]; // bits of fp32
};

static inline uint64_t mma_case_hash(uint32_t i, uint32_t what, uint32_t at) {
    return mix_u64((uint64_t)i << 40 ^ (uint64_t)what << 32 ^ (at + 1));
}

// Random sign and significand; exponents first .. first + range - 1 as encoded, of `bits` bits of significand.
static inline uint32_t mma_case_number(uint64_t h, uint32_t first, uint32_t range, uint32_t bits,
                                       uint32_t width) {
    uint32_t sign = (uint32_t)(h & 1), e = first + (uint32_t)(h >> 1 & 0xffff) % range;
    uint32_t m = (uint32_t)(h >> 24) & ((1u << bits) - 1);
    return sign << (width - 1) | e << bits | m;
}

static inline uint16_t mma_case_half(uint32_t i, uint32_t what, uint32_t at, enum dtype d) {
    uint64_t h = mma_case_hash(i, what, at);
    uint32_t bits = d == DTYPE_F16 ? 10 : 7, bias = d == DTYPE_F16 ? 15 : 127;
    switch (i / 2 % MMA_KINDS) {
    case 1: // wide
        return (uint16_t)mma_case_number(h, bias - 14, 29, bits, 16);
    case 2: // any finite number
        return (uint16_t)mma_case_number(h, 0, 2 * bias + 1, bits, 16);
    case 3: // zeros, subnormals, small numbers
        return (uint16_t)(h >> 60 < 6 ? h & 0x8000 : mma_case_number(h, 0, 3, bits, 16));
    case 7: // small whole numbers, many zeros
        return (uint16_t)(h >> 62 ? mma_case_number(h & ~(0x7full << 24), bias, 4, bits, 16) : 0);
    default: return (uint16_t)mma_case_number(h, bias - 3, 4, bits, 16);
    }
}

static inline uint32_t mma_case_sum(uint32_t i, uint32_t at) {
    uint64_t h = mma_case_hash(i, 3, at);
    switch (i / 2 % MMA_KINDS) {
    case 0: return mma_case_number(h, 124, 5, 23, 32);
    case 1: return mma_case_number(h, 97, 60, 23, 32);
    case 2: return mma_case_number(h, 0, 255, 23, 32);
    case 3: return h >> 62 ? mma_case_number(h, 0, 2, 23, 32) : 0;
    case 5: return mma_case_number(h, 134, 20, 23, 32); // the sum outweighs the products
    case 6: return mma_case_number(h, 90, 30, 23, 32);  // and they outweigh it
    default: return h >> 63 ? mma_case_number(h, 110, 20, 23, 32) : 0;
    }
}

static inline void mma_case_make(uint32_t i, struct mma_case *ret) {
    ret->dtype = i % 2 ? DTYPE_BF16 : DTYPE_F16;
    for (uint32_t k = 0; k < MMA_DEPTH; k++) {
        for (uint32_t r = 0; r < MMA_ROWS; r++)
            ret->a[r][k] = mma_case_half(i, 1, r * MMA_DEPTH + k, ret->dtype);
        for (uint32_t c = 0; c < MMA_COLS; c++)
            ret->b[c][k] = mma_case_half(i, 2, c * MMA_DEPTH + k, ret->dtype);
    }
    for (uint32_t r = 0; r < MMA_ROWS; r++)
        for (uint32_t c = 0; c < MMA_COLS; c++) ret->c[r][c] = mma_case_sum(i, r * MMA_COLS + c);
    if (i / 2 % MMA_KINDS != 4) return;
    for (uint32_t k = 0; k < MMA_DEPTH;
         k += 2) // products that cancel, but for the last bits of some
        for (uint32_t r = 0; r < MMA_ROWS; r++) {
            ret->a[r][k + 1] = ret->a[r][k] ^ 0x8000 ^ (uint16_t)(mma_case_hash(i, 4, r) >> k & 1);
            for (uint32_t c = 0; c < MMA_COLS; c++) ret->b[c][k + 1] = ret->b[c][k];
        }
}
