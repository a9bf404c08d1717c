/* q4_linear: as linear.h, by matrices in 4 bits (q4.h): y[t,n] = sum_k x[t,k] * W[n,k]  (+ y[t,n] as it was, for add parts)
 *
 * Shapes  x [T, K], y [T, N] f32. W's values are code * scale + bias, product and sum rounded apart in fp32.
 * Order   as linear.h on the CPU: 16 lanes, ascending k, fused steps. */
#pragma once
#include <stdbool.h>

#include "kernels/draft/q4.h"
#include "kernels/linear/linear.h"

struct q4_linear_part {
    struct q4 w;
    devptr y;
    bool add;
};

struct q4_linear_args {
    devptr x;
    uint32_t rows, parts_count;
    struct q4_linear_part parts[LINEAR_PARTS_MAX]; // all of one K
};
