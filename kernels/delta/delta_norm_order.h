/* delta_norm_order: what the CUDA kernels of delta_norm and their plan agree on. */
#pragma once

enum {
    DELTA_NORM_HEADS = 4,  // of a warp, from
    DELTA_NORM_MANY = 256, // rows on; below, each has its own
};
