/* exl3_find: the EXL3 parts of a call among the others. */
#pragma once
#include "kernels/cuda/device.cuh"
#include "kernels/linear/exl3_params.h"

// The place of the nth EXL3 part.
DEVICE_FN uint32_t exl3_nth_part(const struct linear_args &a, uint32_t nth) {
    uint32_t i = 0;
    while (!a.parts[i].w.exl3.half_bits || nth--) i++;
    return i;
}

// The part whose turn is `block`, counted in blocks of 128 outputs, and the block's place in it; *ret_nth: how many EXL3 parts
// stand before it.
DEVICE_FN const struct linear_part &exl3_find_part(const struct linear_args &a, uint32_t *block,
                                                   uint32_t *ret_nth) {
    *ret_nth = 0;
    for (uint32_t i = 0;; i++) {
        if (!a.parts[i].w.exl3.half_bits) continue;
        uint32_t blocks = a.parts[i].w.rows / EXL3_BLOCK;
        if (*block < blocks) return a.parts[i];
        *block -= blocks;
        ++*ret_nth;
    }
}
