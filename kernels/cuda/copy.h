/* copy: the argument of the kernel that copies on the device (copy.cu). */
#pragma once
#include "kernels/types.h"

enum { COPY_THREADS = 256, COPY_WORD_BYTES = 16, COPY_BLOCKS_MAX = 2048 };

struct copy_params {
    devptr dst, src;
    uint64_t bytes;
    uint64_t stride; // of the next piece behind the one before, on either side
};
