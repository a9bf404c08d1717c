/* linear_from: the operations that make a call's rows (linear.h), for whoever issues them by themselves. */
#pragma once
#include "kernels/linear/linear.h"
#include "kernels/mlp/swiglu.h"
#include "kernels/norm/rmsnorm.h"

// Of LINEAR_NORM.
static inline struct rmsnorm_args linear_from_norm(const struct linear_args *a) {
    return (struct rmsnorm_args){.x = a->from.x,
                                 .scale = a->from.other,
                                 .y = a->x,
                                 .rows = a->rows,
                                 .dim = a->parts[0].w.cols,
                                 .eps = a->from.eps};
}

// Of LINEAR_SWIGLU.
static inline struct swiglu_args linear_from_swiglu(const struct linear_args *a) {
    return (struct swiglu_args){.gate = a->from.x,
                                .up = a->from.other,
                                .y = a->x,
                                .rows = a->rows,
                                .dim = a->parts[0].w.cols};
}
