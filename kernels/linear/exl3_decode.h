/* exl3_decode: a tile of an EXL3 trellis (16 inputs by 16 outputs) to the fp16 values it stands for, as fp32.
 *
 * Format  ExLlamaV3's EXL3 (turboderp-org/exllamav3), a bitshift trellis after QTIP (Tseng et al. 2024). A tile is a ring
 *         of 256 symbols; with B bits a weight, symbol t ends at bit floor((t + 1) B), and its state is the 16 bits of the
 *         ring that end there. B comes in halves: at 3.5, symbols have 3 and 4 bits in turn. The ring's bits stand in
 *         32-bit little-endian words, the most significant bit first.
 *         Symbol t = 8 l + j is the value of input 2 (l & 3) + (j & 1) + 8 (j >> 1 & 1), output (l >> 2) + 8 (j >> 2).
 * Values  exact: each is the fp16 number that the format defines, whatever computes it.
 * Method  The 32 symbols of outputs g and g + 8 take 2 B sixteen-bit units of the ring, the same way for every g: a table
 *         for each width says from which two neighbouring units, and from which bit, each one's state comes. A column of
 *         the tile is one vector of sixteen lanes. AVX-512 takes the units where they lie; the other variants write down
 *         all pairs of neighbours first. */
#pragma once
#include "kernels/cpu_vec.h"

enum {
    EXL3_TILE = 16,
    EXL3_TILE_WORDS_MAX = 64,
    // Pairs of neighbouring units, plus what the last vector loads past its own.
    EXL3_PAIRS = 2 * EXL3_TILE_WORDS_MAX + 2 * LANES,
};

// Bytes of a tile.
static inline uint32_t exl3_tile_bytes(uint32_t half_bits) {
    return 16 * half_bits;
}

// Where the states of outputs g (first) and g + 8 (second) come from, by input.
struct exl3_taps {
    uint8_t pair[2][LANES];  // of the group's pairs of units
    uint8_t shift[2][LANES]; // of that pair, to the right
};

// Symbol of the group for input r of half h, the bit where it ends, counted from the unit before the group; its pair, shift.
#define EXL3_SYMBOL(r, h) (8 * (((r)&7) >> 1) + ((r)&1) + 2 * ((r) >> 3) + 4 * (h))
#define EXL3_END(w, r, h) ((EXL3_SYMBOL(r, h) + 1) * (w) / 2)
#define EXL3_PAIR(w, r, h) ((EXL3_END(w, r, h) - 1) / 16)
#define EXL3_SHIFT(w, r, h) (15 - (EXL3_END(w, r, h) - 1) % 16)
#define EXL3_LANES(F, w, h)                                                                        \
    {                                                                                              \
        F(w, 0, h), F(w, 1, h), F(w, 2, h), F(w, 3, h), F(w, 4, h), F(w, 5, h), F(w, 6, h),        \
            F(w, 7, h), F(w, 8, h), F(w, 9, h), F(w, 10, h), F(w, 11, h), F(w, 12, h),             \
            F(w, 13, h), F(w, 14, h), F(w, 15, h)                                                  \
    }
#define EXL3_TAPS(w)                                                                               \
    [w] = {{EXL3_LANES(EXL3_PAIR, w, 0), EXL3_LANES(EXL3_PAIR, w, 1)},                             \
           {EXL3_LANES(EXL3_SHIFT, w, 0), EXL3_LANES(EXL3_SHIFT, w, 1)}}

static const struct exl3_taps exl3_taps[EXL3_HALF_BITS_MAX + 1] = {
    EXL3_TAPS(2),  EXL3_TAPS(3),  EXL3_TAPS(4),  EXL3_TAPS(5),  EXL3_TAPS(6),
    EXL3_TAPS(7),  EXL3_TAPS(8),  EXL3_TAPS(9),  EXL3_TAPS(10), EXL3_TAPS(11),
    EXL3_TAPS(12), EXL3_TAPS(13), EXL3_TAPS(14), EXL3_TAPS(15), EXL3_TAPS(16)};

// A normal fp32 number or zero to the nearest fp16 number, for the sums below: Veltkamp's split, which cuts 13 bits. It may
// differ from the nearest even at a tie; for none of the values that the codebooks can give (tests/golden/exl3).
CPU_INLINE vf exl3_round(vf v) {
    vf t = v * 8193.0f;
    return t - (t - v);
}

// A fp16 number of 1/8 to 2 in the high half to fp32: the sign, and the rest three bits further down below 0x3e0.
CPU_INLINE vf exl3_int_widen(vu h) {
    return (vf)(((vu)((vi)h >> 3) & 0x8fffe000u) | 0x3e000000u);
}

// The sum of each lane's four bytes, times 1774.
CPU_INLINE vi exl3_byte_sums(vu x) {
#if defined(__AVX512BW__)
    __m512i pairs = _mm512_maddubs_epi16((__m512i)x, _mm512_set1_epi8(1));
    return (vi)_mm512_madd_epi16(pairs, _mm512_set1_epi16(1774));
#else
    x = (x & 0xff00ffu) + ((x >> 8) & 0xff00ffu);
    return (vi)((x + (x >> 16)) & 0x7ffu) * 1774;
#endif
}

/* The value of each state. 3INST and MCG mask x so that both halves are normal fp16 numbers of 1/8 to 2: their sum is
 * exact in fp32, and is zero or at least 2^-13. MUL1 is an affine function of the sum of x's bytes, exact in fp32 too. */
CPU_INLINE vf exl3_value(vu state, const enum exl3_codebook codebook) {
    if (codebook == EXL3_MUL1) {
        vi n = exl3_byte_sums(state * 0x83dcd12du) - 905216;
        return exl3_round(__builtin_convertvector(n, vf) * vf_set(0x1p-18f));
    }
    vu x = codebook == EXL3_MCG ? state * 0xcbac1fedu : state * 89226354u + 64248484u;
    x = (x & 0x8fff8fffu) ^ 0x3b603b60u;
    return exl3_round(exl3_int_widen(x << 16) + exl3_int_widen(x));
}

#if defined(__AVX512BW__)
// Where the states of a group come from, in 16-bit halves of the words from the one with the unit before the group's first.
struct exl3_picks {
    vu halves[2][2]; // [the group's first unit is odd][half]: two of each lane
    vu shift[2];
    __mmask16 words[2]; // that a group has
};

static inline struct exl3_picks exl3_picks_of(uint32_t half_bits) {
    const struct exl3_taps *t = &exl3_taps[half_bits];
    struct exl3_picks ret;
    for (uint32_t h = 0; h < 2; h++)
        for (uint32_t odd = 0; odd < 2; odd++) {
            uint16_t at[2 * LANES];
            for (uint32_t i = 0; i < LANES; i++) { // the first unit of a word is its upper half
                uint32_t unit = t->pair[h][i] + (odd ? 1 : 2);
                at[2 * i] = (uint16_t)(unit ^ 1);
                at[2 * i + 1] = (uint16_t)((unit - 1) ^ 1);
            }
            memcpy(&ret.halves[odd][h], at, sizeof at);
        }
    for (uint32_t h = 0; h < 2; h++) {
        uint32_t shift[LANES];
        for (uint32_t i = 0; i < LANES; i++) shift[i] = t->shift[h][i];
        ret.shift[h] = vu_load(shift);
    }
    ret.words[0] = (__mmask16)((1u << ((half_bits + 3) / 2)) - 1);
    ret.words[1] = (__mmask16)((1u << (half_bits / 2 + 1)) - 1);
    return ret;
}

// ret[output * stride + input], 16 of each. codebook is a constant at every call. Reads nothing but the tile.
CPU_INLINE void exl3_tile_by(const struct exl3_picks *p, const void *tile, uint32_t half_bits,
                             const enum exl3_codebook codebook, float *ret, uint64_t stride) {
    const uint32_t *words = tile;
    int last = (int)words[4 * half_bits - 1];
#pragma GCC unroll 8
    for (uint32_t g = 0; g < 8; g++) {
        uint32_t first = g * half_bits, odd = first & 1;
        __mmask16 mask = p->words[odd];
        __m512i v;
        if (g)
            v = _mm512_maskz_loadu_epi32(mask, words + (first - 1) / 2);
        else // the ring's last word comes before its first one
            v = _mm512_mask_set1_epi32(_mm512_maskz_loadu_epi32((__mmask16)(mask & ~1u), words - 1),
                                       1, last);
#pragma GCC unroll 2
        for (uint32_t h = 0; h < 2; h++) {
            vu pair = (vu)_mm512_permutexvar_epi16((__m512i)p->halves[odd][h], v);
            vf_store(ret + (g + 8 * h) * stride,
                     exl3_value((pair >> p->shift[h]) & 0xffffu, codebook));
        }
    }
}
#else
struct exl3_picks {
    vu pair[2], shift[2]; // of the group's pairs of units; in that pair, to the right
};

CPU_INLINE vu vu_load_bytes(const uint8_t *p) {
    uint32_t t[LANES];
    for (int i = 0; i < LANES; i++) t[i] = p[i];
    return vu_load(t);
}

static inline struct exl3_picks exl3_picks_of(uint32_t half_bits) {
    const struct exl3_taps *t = &exl3_taps[half_bits];
    struct exl3_picks ret;
    for (int h = 0; h < 2; h++) {
        ret.pair[h] = vu_load_bytes(t->pair[h]);
        ret.shift[h] = vu_load_bytes(t->shift[h]);
    }
    return ret;
}

// All pairs of neighbouring units of the ring: pairs[i] is unit i - 1 above unit i.
CPU_INLINE void exl3_pairs(const void *tile, uint32_t half_bits, uint32_t *pairs) {
    uint32_t count = 4 * half_bits;
    uint32_t ring[1 + EXL3_TILE_WORDS_MAX + LANES];
    memcpy(ring + 1, tile, count * sizeof *ring);
    memset(ring + 1 + count, 0,
           LANES * sizeof *ring); // the last vector goes past the end: nobody takes those pairs
    ring[0] = ring[count];
    for (uint32_t i = 0; i < count; i += LANES) {
        vu w = vu_load(ring + 1 + i), before = vu_load(ring + i);
        vu across = (before << 16) | (w >> 16);
        vu low = __builtin_shufflevector(across, w, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22,
                                         7, 23);
        vu high = __builtin_shufflevector(across, w, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29,
                                          14, 30, 15, 31);
        memcpy(pairs + 2 * i, &low, sizeof low);
        memcpy(pairs + 2 * i + LANES, &high, sizeof high);
    }
}

// ret[output * stride + input], 16 of each. codebook is a constant at every call.
CPU_INLINE void exl3_tile_by(const struct exl3_picks *p, const void *tile, uint32_t half_bits,
                             const enum exl3_codebook codebook, float *ret, uint64_t stride) {
    uint32_t pairs[EXL3_PAIRS];
    exl3_pairs(tile, half_bits, pairs);
    for (uint32_t g = 0; g < 8; g++) {
        vu mine = vu_load(pairs + g * half_bits);
#pragma GCC unroll 2
        for (uint32_t h = 0; h < 2; h++) {
            vu state = (vu_pick(mine, p->pair[h]) >> p->shift[h]) & 0xffffu;
            vf_store(ret + (g + 8 * h) * stride, exl3_value(state, codebook));
        }
    }
}
#endif

CPU_INLINE void exl3_tile(const void *tile, uint32_t half_bits, const enum exl3_codebook codebook,
                          float *ret, uint64_t stride) {
    struct exl3_picks p = exl3_picks_of(half_bits);
    exl3_tile_by(&p, tile, half_bits, codebook, ret, stride);
}
