/* exl3_signs: the factors of early EXL3 files, one bit a channel: bit i of word j set, channel 16 j + i has -1, else 1. */
#pragma once
#include <stdint.h>

// As fp16. packed: words of two bytes, little-endian.
static inline uint16_t exl3_sign(const uint8_t *packed, uint64_t channel) {
    return packed[channel / 8] >> channel % 8 & 1 ? 0xbc00 : 0x3c00;
}
