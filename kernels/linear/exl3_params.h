/* exl3_params: the argument of the EXL3 kernels of linear. */
#pragma once
#include "kernels/linear/linear.h"

struct exl3_params {
    struct linear_args a;
    devptr rotated; // [EXL3 parts, T, K] f16: each part's rows, times suh and rotated
};
