/* draft_scale: x[i] *= factor, [count] f32. */
#pragma once
#include "kernels/types.h"

struct draft_scale_args {
    devptr x;
    uint64_t count;
    float factor;
};
