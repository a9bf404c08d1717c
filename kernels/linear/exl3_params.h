/* exl3_params: the argument of the kernels of exl3.cu. */
#pragma once
#include "kernels/linear/linear.h"

struct exl3_params {
    struct linear_args a;
    devptr rotated; // [parts, T, K] f16: each part's rows, times suh and rotated
};
