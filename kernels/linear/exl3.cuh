/* exl3: the EXL3 format on the device: the rotation of 128 channels, and the decoding of a lane's symbols.
 * The values are the format's own, exactly, as exl3_decode.h's are; the rotation's butterflies are hadamard.h's. */
#pragma once
#include "kernels/cuda/device.cuh"
#include "kernels/linear/exl3_params.h"

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
        float sign = threadIdx.x & lanes ? -1.0f : 1.0f; // the product is exact
#pragma unroll
        for (int i = 0; i < EXL3_LANE_CHANNELS; i++)
            v[i] = fmaf(v[i], sign, __shfl_xor_sync(0xffffffffu, v[i], lanes));
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

// What makes x of a state, of the codebooks that add two halves of x: state * mul + add. both: of two states in one word.
struct exl3_code {
    uint32_t mul, add, both;
    struct exl3_masks masks;
};

DEVICE_FN exl3_code exl3_code_of(enum exl3_codebook codebook, const struct exl3_masks &m) {
    if (codebook == EXL3_MCG) return {0xcbac1fedu, 0, 0, m};
    return {89226354u, 64248484u, 64248484u + (64248484u << 16), m};
}

// The fp16 values of two x, the first in the low half.
DEVICE_FN uint32_t exl3_pair(uint32_t a, uint32_t b, const struct exl3_masks &m) {
    uint32_t ret;
    a = (a & m.keep) ^ m.flip;
    b = (b & m.keep) ^ m.flip;
    asm("{\n\t.reg .f16 a, b, c, d;\n\t"
        "mov.b32 {a, b}, %1;\n\tmov.b32 {c, d}, %2;\n\t"
        "add.rn.f16 a, a, b;\n\tadd.rn.f16 c, c, d;\n\t"
        "mov.b32 %0, {a, c};\n\t}"
        : "=r"(ret)
        : "r"(a), "r"(b));
    return ret;
}

/* A lane's 32 neighbouring symbols, HALF_BITS even: words[0] is the word before them, words[1] .. the HALF_BITS / 2 words of
 * their own. */
template <int HALF_BITS> struct exl3_lane { uint32_t words[1 + HALF_BITS / 2]; };

// The lane's own words. mine: of its symbols, in shared memory.
template <int HALF_BITS>
DEVICE_FN void exl3_lane_take(const char *mine, struct exl3_lane<HALF_BITS> &ret) {
    if (HALF_BITS % 8 == 0) {
#pragma unroll
        for (int i = 0; i < HALF_BITS / 8; i++) {
            uint4 v = reinterpret_cast<const uint4 *>(mine)[i];
            ret.words[1 + 4 * i] = v.x;
            ret.words[2 + 4 * i] = v.y;
            ret.words[3 + 4 * i] = v.z;
            ret.words[4 + 4 * i] = v.w;
        }
    } else if (HALF_BITS % 4 == 0) {
#pragma unroll
        for (int i = 0; i < HALF_BITS / 4; i++) {
            uint2 v = reinterpret_cast<const uint2 *>(mine)[i];
            ret.words[1 + 2 * i] = v.x;
            ret.words[2 + 2 * i] = v.y;
        }
    } else {
#pragma unroll
        for (int i = 0; i < HALF_BITS / 2; i++)
            ret.words[1 + i] = reinterpret_cast<const uint32_t *>(mine)[i];
    }
}

// The word before the lane's own. All lanes of the warp, lane 4 g + c having symbols 32 g .. of tile c.
template <int HALF_BITS> DEVICE_FN void exl3_lane_before(struct exl3_lane<HALF_BITS> &l) {
    l.words[0] = __shfl_sync(0xffffffffu, l.words[HALF_BITS / 2], threadIdx.x + WARP - 4);
}

// State i, 16 bits.
template <int HALF_BITS>
DEVICE_FN uint32_t exl3_lane_state(const struct exl3_lane<HALF_BITS> &l, int i) {
    int end = 32 + (i + 1) * (HALF_BITS / 2), last = (end - 1) / 32, past = (last + 1) * 32 - end;
    if (past == 16) return l.words[last] >> 16;
    if (past < 16) return l.words[last] >> past & 0xffffu;
    return __funnelshift_r(l.words[last], l.words[last - 1], past) & 0xffffu;
}

// The factor registers of step s, as exl3_factors has them.
template <int HALF_BITS>
DEVICE_FN void exl3_lane_factors(const struct exl3_lane<HALF_BITS> &l, const struct exl3_code &code,
                                 int s, uint32_t ret[4]) {
    uint32_t x[8];
    if (HALF_BITS == 8) {
#pragma unroll
        for (int i = 0; i < 4; i++) { // symbols i and i + 4 are neighbours of 16 bits
            uint32_t pair =
                i == 3 ? l.words[1 + s] : __funnelshift_l(l.words[1 + s], l.words[s], 20 + 4 * i);
            x[i] = (pair >> 16) * code.mul + code.add;
            x[i + 4] = x[i] * 0xffff0000u + (pair * code.mul + code.both);
        }
    } else {
#pragma unroll
        for (int i = 0; i < 8; i++)
            x[i] = exl3_lane_state<HALF_BITS>(l, 8 * s + i) * code.mul + code.add;
    }
    ret[0] = exl3_pair(x[0], x[1], code.masks);
    ret[1] = exl3_pair(x[4], x[5], code.masks);
    ret[2] = exl3_pair(x[2], x[3], code.masks);
    ret[3] = exl3_pair(x[6], x[7], code.masks);
}

#define EXL3_WIDTHS(X) X(6) X(8) X(12) // twice the bits of weights that have a form of their own

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
