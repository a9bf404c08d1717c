/* exl3_find: the EXL3 parts of a call that have chains, among the others. */
#pragma once
#include "kernels/cuda/device.cuh"
#include "kernels/linear/exl3_int.h"
#include "kernels/linear/exl3_params.h"

// The place of the nth.
DEVICE_FN uint32_t exl3_nth_part(const struct linear_args &a, uint32_t nth) {
    uint32_t i = 0;
    while (!exl3_chain_weight(&a.parts[i].w) || nth--) i++;
    return i;
}

// The part whose turn is `block`, counted in blocks of 128 outputs, and the block's place in it; *ret_nth: how many stand before it.
DEVICE_FN const struct linear_part &exl3_find_part(const struct linear_args &a, uint32_t *block,
                                                   uint32_t *ret_nth) {
    *ret_nth = 0;
    for (uint32_t i = 0;; i++) {
        if (!exl3_chain_weight(&a.parts[i].w)) continue;
        uint32_t blocks = a.parts[i].w.rows / EXL3_BLOCK;
        if (*block < blocks) return a.parts[i];
        *block -= blocks;
        ++*ret_nth;
    }
}
