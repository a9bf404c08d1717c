/* mma_step: one step of the tensor cores on the host, bit for bit: mma.sync m16n8k16 (and wgmma's k16) with fp16 or bf16
 * factors and fp32 sums. For the twins (op_ref.c) and tests. Pure, any thread.
 *
 * A step adds 16 products to a sum:
 *   terms     the 16 exact products and the sum; zeros are dropped, and with none left the answer is +0
 *   exponent  of a product: those of its factors added (a subnormal has the smallest normal one), not normalised after;
 *             of the sum: its own, at least -126
 *   cut       every term toward zero to a multiple of 2^(largest exponent - 25); the exact sum of these toward zero to 24
 *             significant bits, and to a multiple of 2^-149
 * Source  measured on an H200 (sm_90). tests/golden/mma holds 100,096 steps recorded there, which this gives to the bit;
 *         other chips may cut elsewhere, so equality of kernels and twins is a claim about sm_90. */
#pragma once
#include <stdint.h>

#include "kernels/types.h"

enum { MMA_LANES = 16, MMA_K = 16 };

// A factor taken apart.
struct mma_one {
    double value;
    int32_t exponent;
};

// The factors of MMA_LANES outputs at one k.
struct mma_vec {
    double value[MMA_LANES];
    int32_t exponent[MMA_LANES];
};

// d: DTYPE_F16 or DTYPE_BF16.
struct mma_one mma_split(uint16_t bits, enum dtype d);
void mma_put(struct mma_vec *v, uint32_t lane, struct mma_one x);
// sum[lane] = the step of sum[lane] and a[k][lane] * b[k] for the 16 k.
void mma_step(float sum[MMA_LANES], const struct mma_vec a[MMA_K], const struct mma_one b[MMA_K]);
// From sum 0, `steps` steps one after another.
void mma_chain(float ret[MMA_LANES], const struct mma_vec *a, const struct mma_one *b,
               uint32_t steps);
