/* exl3_int: the device's part of exl3_int.h: rotated rows with their sizes, and the bytes that stand for weights. */
#pragma once
#include "kernels/linear/exl3.cuh"
#include "kernels/linear/exl3_int.h"
#include "kernels/linear/linear.h"

// The nth part of a call that exl3_int.h is for.
DEVICE_FN uint32_t exl3_int_nth_part(const struct linear_args &a, uint32_t nth) {
    uint32_t i = 0;
    while (!exl3_int_weight(&a.parts[i].w) || nth--) i++;
    return i;
}

/* The state of symbol p of a lane's 64. words: the lane's, words[-1] the one before them in the ring; W: twice the bits. Where it
 * stands is known to the compiler. */
template <int W> DEVICE_FN uint32_t exl3_int_state(const uint32_t *words, int p) {
    const int end = (p + 1) * W / 2, i = (end - 1) / 32, shift = 32 * (i + 1) - end;
    if (shift > 16) return __funnelshift_r(words[i], words[i - 1], shift) & 0xffffu;
    if (shift % 8 == 0) return __byte_perm(words[i], 0, 0x4410u + shift / 8 * 0x11u);
    return words[i] >> shift & 0xffffu;
}

/* What stands for the weights of eight neighbouring symbols: four bytes each, whose sum is b. */
template <int W> DEVICE_FN void exl3_int_bytes(const uint32_t *words, int first, uint32_t ret[8]) {
    if constexpr (W == 8) { // a window has two states, half a word apart
#pragma unroll
        for (int j = 0; j < 4; j++) {
            const int i = first / 8, shift = 12 - 4 * j;
            uint32_t window = __funnelshift_r(words[i], words[i - 1], shift);
            ret[j] = (window >> 16) * EXL3_INT_MULTIPLIER;
            // Shifts and masks have a pipe of their own, as products do: some of the low states without a mask.
            if (j == 0)
                asm("mad.lo.u32 %0, %1, %2, %3;"
                    : "=r"(ret[j + 4])
                    : "r"(ret[j]), "r"(0xffff0000u), "r"(window * EXL3_INT_MULTIPLIER));
            else
                ret[j + 4] = exl3_int_state<W>(words, first + j + 4) * EXL3_INT_MULTIPLIER;
        }
    } else {
#pragma unroll
        for (int j = 0; j < 8; j++)
            ret[j] = exl3_int_state<W>(words, first + j) * EXL3_INT_MULTIPLIER;
    }
}
