/* cpu_vec: the sixteen virtual lanes that every sum of the CPU backend is made of.
 *
 * Written with the compilers' vector extensions and always inlined: the same source is compiled for several instruction
 * sets, which cut a 16-lane vector into pieces as they like. Lanes never mix except in the sums below, whose order is
 * written out; nothing is fused (-ffp-contract=off), so all variants give the same bits. */
#pragma once
#include <stdint.h>
#include <string.h>

#if defined(__AVX2__)
#include <immintrin.h>
#endif

#include "kernels/types.h"

#define CPU_INLINE static inline __attribute__((always_inline))

enum { LANES = 16 };

// Vector types need a name of their own: the attribute cannot be written into every declaration.
typedef float vf __attribute__((vector_size(64)));
typedef int32_t vi __attribute__((vector_size(64)));
typedef uint32_t vu __attribute__((vector_size(64)));
typedef uint16_t vh __attribute__((vector_size(32)));

CPU_INLINE vf vf_load(const float *p) {
    vf v;
    memcpy(&v, p, sizeof v);
    return v;
}

CPU_INLINE void vf_store(float *p, vf v) {
    memcpy(p, &v, sizeof v);
}

CPU_INLINE vf vf_set(float x) {
    return (vf){x, x, x, x, x, x, x, x, x, x, x, x, x, x, x, x};
}

// mask: all ones or all zeros a lane, as comparisons give it.
CPU_INLINE vf vf_select(vi mask, vf yes, vf no) {
    return (vf)((mask & (vi)yes) | (~mask & (vi)no));
}

CPU_INLINE vf vf_max(vf a, vf b) {
    return vf_select(a > b, a, b);
}

// table[at[i]] in lane i; each at below LANES.
CPU_INLINE vu vu_pick(vu table, vu at) {
#if defined(__AVX512F__)
    return (vu)_mm512_permutexvar_epi32((__m512i)at, (__m512i)table);
#elif defined(__AVX2__)
    __m256i t[2], a[2], r[2];
    memcpy(t, &table, sizeof t);
    memcpy(a, &at, sizeof a);
    for (int i = 0; i < 2; i++) {
        __m256i low = _mm256_permutevar8x32_epi32(t[0], a[i]); // takes the index modulo 8
        __m256i high = _mm256_permutevar8x32_epi32(t[1], a[i]);
        r[i] = _mm256_blendv_epi8(low, high, _mm256_cmpgt_epi32(a[i], _mm256_set1_epi32(7)));
    }
    vu v;
    memcpy(&v, r, sizeof v);
    return v;
#else
    uint32_t t[LANES], a[LANES];
    memcpy(t, &table, sizeof t);
    memcpy(a, &at, sizeof a);
    vu v;
    for (int i = 0; i < LANES; i++) v[i] = t[a[i]];
    return v;
#endif
}

CPU_INLINE vu vu_load(const uint32_t *p) {
    vu v;
    memcpy(&v, p, sizeof v);
    return v;
}

// n < LANES values, the rest 0.
CPU_INLINE vf vf_load_part(const float *p, uint32_t n) {
    float t[LANES] = {0};
    memcpy(t, p, n * sizeof *p);
    return vf_load(t);
}

CPU_INLINE void vf_store_part(float *p, vf v, uint32_t n) {
    float t[LANES];
    vf_store(t, v);
    memcpy(p, t, n * sizeof *p);
}

// Zero-extends. The intrinsics do what __builtin_convertvector says; the compilers make several steps of that.
CPU_INLINE vu vu_widen(vh h) {
#if defined(__AVX512F__)
    return (vu)_mm512_cvtepu16_epi32((__m256i)h);
#elif defined(__AVX2__)
    __m256i half[2] = {_mm256_cvtepu16_epi32(_mm256_castsi256_si128((__m256i)h)),
                       _mm256_cvtepu16_epi32(_mm256_extracti128_si256((__m256i)h, 1))};
    vu u;
    memcpy(&u, half, sizeof u);
    return u;
#else
    return __builtin_convertvector(h, vu);
#endif
}

CPU_INLINE vf vf_from_bf16(vh h) {
    return (vf)(vu_widen(h) << 16);
}

// Exact for every value: subnormals come out right because the product with 2^112 is exact.
CPU_INLINE vf vf_from_f16(vh h) {
    vu u = vu_widen(h);
    vu sign = (u & 0x8000u) << 16;
    vu rest = (u & 0x7fffu) << 13;
    vf scaled = (vf)rest * vf_set(0x1p112f);
    vi special = (vi)(rest >= (0x7c00u << 13)); // infinity, NaN
    vf value = vf_select(special, (vf)(rest | 0x7f800000u), scaled);
    return (vf)((vu)value | sign);
}

CPU_INLINE vf vf_load_dtype(const void *p, uint64_t first, enum dtype d) {
    if (d == DTYPE_F32) return vf_load((const float *)p + first);
    vh h;
    memcpy(&h, (const uint16_t *)p + first, sizeof h);
    return d == DTYPE_BF16 ? vf_from_bf16(h) : vf_from_f16(h);
}

CPU_INLINE vf vf_load_dtype_part(const void *p, uint64_t first, uint32_t n, enum dtype d) {
    if (d == DTYPE_F32) return vf_load_part((const float *)p + first, n);
    uint16_t t[LANES] = {0};
    memcpy(t, (const uint16_t *)p + first, n * sizeof *t);
    return vf_load_dtype(t, 0, d);
}

// Round to nearest even; a NaN stays one.
CPU_INLINE vh vf_to_bf16(vf v) {
    vu u = (vu)v;
    vu rounded = u + 0x7fffu + ((u >> 16) & 1u);
    vi nan = v != v;
    u = (vu)((nan & (vi)(u | 0x400000u)) | (~nan & (vi)rounded));
    return __builtin_convertvector(u >> 16, vh);
}

// The sum of the lanes: halves added, i + 8, then i + 4, i + 2, i + 1.
CPU_INLINE float vf_sum(vf v) {
    float t[LANES];
    vf_store(t, v);
    for (uint32_t half = LANES / 2; half; half /= 2)
        for (uint32_t i = 0; i < half; i++) t[i] = t[i] + t[i + half];
    return t[0];
}

// Four such sums at once, the same additions: ret[0..3].
CPU_INLINE void vf_sum4(vf a, vf b, vf c, vf d, float *ret) {
    vf ab =
        __builtin_shufflevector(a, b, 0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23) +
        __builtin_shufflevector(a, b, 8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27, 28, 29, 30, 31);
    vf cd =
        __builtin_shufflevector(c, d, 0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23) +
        __builtin_shufflevector(c, d, 8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27, 28, 29, 30, 31);
    vf s =
        __builtin_shufflevector(ab, cd, 0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19, 24, 25, 26, 27) +
        __builtin_shufflevector(ab, cd, 4, 5, 6, 7, 12, 13, 14, 15, 20, 21, 22, 23, 28, 29, 30, 31);
    s = s + __builtin_shufflevector(s, s, 2, 3, 0, 1, 6, 7, 4, 5, 10, 11, 8, 9, 14, 15, 12, 13);
    s = s + __builtin_shufflevector(s, s, 1, 0, 3, 2, 5, 4, 7, 6, 9, 8, 11, 10, 13, 12, 15, 14);
    ret[0] = s[0];
    ret[1] = s[4];
    ret[2] = s[8];
    ret[3] = s[12];
}

// The dot product of linear.h, of two fp32 rows.
CPU_INLINE float vf_dot(const float *a, const float *b, uint32_t n) {
    vf acc = vf_set(0);
    uint32_t k = 0;
    for (; k + LANES <= n; k += LANES) acc = acc + vf_load(a + k) * vf_load(b + k);
    if (k < n) acc = acc + vf_load_part(a + k, n - k) * vf_load_part(b + k, n - k);
    return vf_sum(acc);
}
