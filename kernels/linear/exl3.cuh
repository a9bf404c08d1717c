/* exl3: the EXL3 format on the device: the rotation of 128 channels, and the decoding of a lane's symbols.
 * The values are the format's own, exactly, as exl3_decode.h's are; the rotation's butterflies are hadamard.h's. */
#pragma once
#include "kernels/cuda/device.cuh"

enum { EXL3_LANE_CHANNELS = EXL3_BLOCK / WARP };

/* A warp's 128 channels, lane l having 4 l .. 4 l + 3: butterflies (a, b) -> (a + b, a - b) at distances 1, 2, 4 .. 64, then
 * times 1 / sqrt(128) as the format has it. */
DEVICE_FN void exl3_rotate(float v[EXL3_LANE_CHANNELS]) {
    float a = v[0] + v[1], b = v[0] - v[1], c = v[2] + v[3], d = v[2] - v[3];
    v[0] = a + c;
    v[1] = b + d;
    v[2] = a - c;
    v[3] = b - d;
#pragma unroll
    for (uint32_t lanes = 1; lanes < WARP; lanes *= 2) {
        bool upper = threadIdx.x & lanes;
#pragma unroll
        for (int i = 0; i < EXL3_LANE_CHANNELS; i++) {
            float other = __shfl_xor_sync(0xffffffffu, v[i], lanes);
            v[i] = upper ? other - v[i] : v[i] + other;
        }
    }
#pragma unroll
    for (int i = 0; i < EXL3_LANE_CHANNELS; i++) v[i] = v[i] * 0.088388347648f;
}

// The 16 bits of the tile's ring that end at bit `end` (of `words` words, the most significant bit first).
DEVICE_FN uint32_t exl3_state(const uint32_t *tile, uint32_t words, uint32_t end) {
    uint32_t start = end >= 16 ? end - 16 : end + words * 32 - 16, w = start / 32;
    uint32_t next = w + 1 == words ? 0 : w + 1;
    return __funnelshift_l(tile[next], tile[w], start % 32) >> 16;
}

// The fp16 value of a state.
DEVICE_FN uint32_t exl3_value(uint32_t state, enum exl3_codebook codebook) {
    uint16_t h;
    if (codebook == EXL3_MUL1) {
        int32_t sum = (int32_t)__dp4a(state * 0x83dcd12du, 0x01010101u, 0u);
        float v = (float)(sum * 1774 - 905216) * 0x1p-18f;
        asm("cvt.rn.f16.f32 %0, %1;" : "=h"(h) : "f"(v));
        return h;
    }
    uint32_t x = codebook == EXL3_MCG ? state * 0xcbac1fedu : state * 89226354u + 64248484u;
    x = (x & 0x8fff8fffu) ^ 0x3b603b60u;
    asm("add.rn.f16 %0, %1, %2;" : "=h"(h) : "h"((uint16_t)x), "h"((uint16_t)(x >> 16)));
    return h;
}

/* The factor registers of one step: outputs g and g + 8, inputs 2 s + {0, 1, 8, 9} of the tile: its symbols 32 g + 8 s .. +7,
 * which stand as mma.sync wants them but for the order of the pairs. */
DEVICE_FN void exl3_factors(const uint32_t *tile, uint32_t half_bits, enum exl3_codebook codebook,
                            uint32_t g, uint32_t s, uint32_t ret[4]) {
    uint32_t v[8];
#pragma unroll
    for (uint32_t i = 0; i < 8; i++) {
        uint32_t end = (32 * g + 8 * s + i + 1) * half_bits / 2;
        v[i] = exl3_value(exl3_state(tile, 4 * half_bits, end), codebook);
    }
    ret[0] = v[0] | v[1] << 16;
    ret[1] = v[4] | v[5] << 16;
    ret[2] = v[2] | v[3] << 16;
    ret[3] = v[6] | v[7] << 16;
}
