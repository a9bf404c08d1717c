/* draft_rotate: in place, every head of x [T, heads, dim] f32 RMS-normed (scale [dim] f32: plain weights) and then rotated whole, in
 * pairs (i, i + dim/2): a' = a cos - b sin, b' = b cos + a sin. angles [T, 2, dim/2] f32 (rope.h). Order as rmsnorm.h, per head. */
#pragma once
#include "kernels/types.h"

struct draft_rotate_args {
    devptr x, scale, angles;
    uint32_t rows, heads, dim; // dim even
    float eps;
};
