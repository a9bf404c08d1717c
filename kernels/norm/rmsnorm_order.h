/* rmsnorm_order: what the CUDA kernel, its plan and its twin agree on. */
#pragma once
#include "kernels/cuda/arith.h"

#include <stdint.h>

enum { RMSNORM_KEEP = 4, RMSNORM_THREADS_MAX = 320, RMSNORM_WARPS_MAX = RMSNORM_THREADS_MAX / 32 };

// Threads of a row: RMSNORM_KEEP quads of it each, where that is no more than the most.
ARITH_FN uint32_t rmsnorm_threads(uint32_t dim) {
    uint32_t each = 4 * RMSNORM_KEEP * 32, warps = (dim + each - 1) / each;
    return warps * 32 < RMSNORM_THREADS_MAX ? warps * 32 : RMSNORM_THREADS_MAX;
}
