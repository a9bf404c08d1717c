/* linear: y[t,n] = sum_k x[t,k] * W[n,k]  (+ y[t,n] as it was, for add parts)
 *
 * One call multiplies the same rows by several weights (parts), so that a device sees one launch. It may make the rows first (from):
 * then it is rmsnorm or swiglu into x, and the product of that, with the bits of the two operations one after the other; only x's
 * contents are not to be relied on behind it.
 * Shapes  x [T, K] f32; W [N, K] bf16, f16 or f32, read in place, or EXL3; y [T, N] f32. Any K and N; EXL3: multiples
 *         of 128. Parts of a call may differ in their form.
 * Order   CPU: 16 lanes, lane i sums x[i + 16 k] * W[i + 16 k] for ascending k, each step fused (rounded once); lanes add
 *         by halves (i + 8, i + 4, i + 2, i + 1); the old y last. It depends on K alone. EXL3: exl3_cpu.h has the rest.
 *         CUDA: linear_order.h: chains of tensor-core steps, in segments, by K alone. The rows become the weight's type on
 *         their way in (bf16; f16 with what lies beyond 65504 at 65504); EXL3 takes the rotated rows as f16, but for the
 *         MUL1 codebook: there they become integers of 12 bits with one scale a row, and the sums are exact integers, so no
 *         order of them changes a bit (exl3_int.h). fp32 weights are multiplied in fp32. y is fp32 and never rounded.
 * Threads split the output columns; on CUDA also the segments of K, which add in their order.
 * Cost    few rows: the bytes of W, or decoding it; many: 2 T N K flop. */
#pragma once
#include <stdbool.h>

#include "kernels/types.h"

enum { LINEAR_PARTS_MAX = 4 };

struct linear_part {
    struct weight w;
    devptr y;
    bool add; // y += instead of y =
};

enum linear_maker { LINEAR_AS_IT_IS, LINEAR_NORM, LINEAR_SWIGLU };

// What x is made of.
struct linear_from {
    enum linear_maker maker;
    float eps; // LINEAR_NORM
    devptr
        x; // LINEAR_NORM: the rows to be normed, none of them x's; LINEAR_SWIGLU: the gate, which may be x
    devptr other; // LINEAR_NORM: the scale; LINEAR_SWIGLU: what the gate is for
};

struct linear_args {
    devptr x;
    struct linear_from from;
    uint32_t rows;
    uint32_t parts_count;
    struct linear_part parts[LINEAR_PARTS_MAX]; // all of one K
};
