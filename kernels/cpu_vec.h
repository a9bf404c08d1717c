/* cpu_vec: the sixteen virtual lanes that every sum of the CPU backend is made of.
 *
 * Written with the compilers' vector extensions and always inlined: the same source is compiled for several instruction
 * sets, which cut a 16-lane vector into pieces as they like. Lanes never mix except in the sums below, whose order is
 * written out; fused is what vn_fma and vf_fma say and nothing else (-ffp-contract=off), so all variants give the same
 * bits. */
#pragma once
#include <stdint.h>
#include <string.h>

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#include "kernels/fma_exact.h"
#include "kernels/types.h"

#define CPU_INLINE static inline __attribute__((always_inline))

enum { LANES = 16 };

// Vector types need a name of their own: the attribute cannot be written into every declaration.
typedef float vf __attribute__((vector_size(64)));
typedef int32_t vi __attribute__((vector_size(64)));
typedef uint32_t vu __attribute__((vector_size(64)));
typedef uint16_t vh __attribute__((vector_size(32)));

#if defined(__AVX512F__)
enum { NATIVE = 16 };
#elif defined(__AVX2__)
enum { NATIVE = 8 };
#else
enum { NATIVE = 4 };
#endif
enum { PARTS = LANES / NATIVE };
typedef float vn __attribute__((vector_size(NATIVE * 4)));
typedef int32_t vni __attribute__((vector_size(NATIVE * 4)));
typedef uint32_t vnu __attribute__((vector_size(NATIVE * 4)));
typedef uint16_t vnh __attribute__((vector_size(NATIVE * 2)));

CPU_INLINE vn vn_load(const float *p) {
    vn v;
    memcpy(&v, p, sizeof v);
    return v;
}

CPU_INLINE void vn_store(float *p, vn v) {
    memcpy(p, &v, sizeof v);
}

CPU_INLINE vn vn_set(float x) {
    return x - (vn){0}; // no step at all; 0 + x would be one, for the sake of -0
}

// a * b + c, rounded once: every sum of products is made of these.
CPU_INLINE vn vn_fma(vn a, vn b, vn c) {
#if defined(__AVX512F__)
    return (vn)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined(__FMA__)
    return (vn)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#elif defined(__aarch64__)
    return (vn)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b);
#else
    float x[NATIVE], y[NATIVE], z[NATIVE];
    vn_store(x, a);
    vn_store(y, b);
    vn_store(z, c);
    fma_exact_many(x, y, z, z, NATIVE);
    return vn_load(z);
#endif
}

// Zero-extends. The intrinsics do what __builtin_convertvector says; the compilers make several steps of that.
CPU_INLINE vnu vnu_widen(const uint16_t *p) {
#if defined(__AVX512F__)
    return (vnu)_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i_u *)p));
#elif defined(__AVX2__)
    return (vnu)_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i_u *)p));
#elif defined(__x86_64__)
    return (vnu)_mm_unpacklo_epi16(_mm_loadl_epi64((const __m128i_u *)p), _mm_setzero_si128());
#else
    vnh h;
    memcpy(&h, p, sizeof h);
    return __builtin_convertvector(h, vnu);
#endif
}

// Exact for every value: subnormals come out right because the product with 2^112 is exact.
CPU_INLINE vn vn_from_f16(vnu u) {
    vnu sign = (u & 0x8000u) << 16, rest = (u & 0x7fffu) << 13;
    vni special = (vni)(rest >= (0x7c00u << 13)); // infinity, NaN
    vni scaled = (vni)((vn)rest * 0x1p112f), kept = (vni)(rest | 0x7f800000u);
    return (vn)((vnu)((special & kept) | (~special & scaled)) | sign);
}

// Exact: e4m3's bias is 7, fp32's 127. 0x7f is NaN.
CPU_INLINE vn vn_from_e4m3(const uint8_t *p) {
    vnu u;
    for (uint32_t i = 0; i < NATIVE; i++) u[i] = p[i];
    vnu rest = u & 0x7fu;
    vni nan = (vni)(rest == 0x7fu);
    vnu scaled = (vnu)((vn)(rest << 20) * 0x1p120f);
    return (vn)((vnu)((nan & 0x7fc00000) | (~nan & (vni)scaled)) | (u & 0x80u) << 24);
}

CPU_INLINE vn vn_load_dtype(const void *p, uint64_t first, enum dtype d) {
    if (d == DTYPE_F32) return vn_load((const float *)p + first);
    if (d == DTYPE_E4M3) return vn_from_e4m3((const uint8_t *)p + first);
    vnu u = vnu_widen((const uint16_t *)p + first);
    return d == DTYPE_BF16 ? (vn)(u << 16) : vn_from_f16(u);
}

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

CPU_INLINE vf vf_fma(vf a, vf b, vf c) {
#if defined(__AVX512F__)
    return vn_fma(a, b, c);
#else
    float x[LANES], y[LANES], z[LANES];
    vf_store(x, a);
    vf_store(y, b);
    vf_store(z, c);
#pragma GCC unroll 4
    for (uint32_t i = 0; i < LANES; i += NATIVE)
        vn_store(z + i, vn_fma(vn_load(x + i), vn_load(y + i), vn_load(z + i)));
    return vf_load(z);
#endif
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

CPU_INLINE vf vf_load_dtype(const void *p, uint64_t first, enum dtype d) {
    float t[LANES];
    for (uint32_t i = 0; i < LANES; i += NATIVE) vn_store(t + i, vn_load_dtype(p, first + i, d));
    return vf_load(t);
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

// To the nearest e4m3 number, ties to even, what lies beyond 448 to 448; a NaN becomes 0x7f. In the low 8 bits of each lane.
CPU_INLINE vu vf_to_e4m3(vf v) {
    vu u = (vu)v, sign = u >> 24 & 0x80u, mag = u & 0x7fffffffu;
    vu normal = (mag + 0x7ffffu + (mag >> 20 & 1u) - (120u << 23)) >> 20;
    vu small =
        (vu)((vf)mag + 16384.0f) - 0x46800000u; // subnormal: multiples of 2^-9, by one rounded sum
    vi is_small = (vi)(mag < 0x3c800000u), is_large = (vi)(mag >= 0x43e00000u), nan = v != v;
    vi r = (is_small & (vi)small) | (~is_small & (vi)normal);
    r = (is_large & 0x7e) | (~is_large & r);
    return (vu)((nan & 0x7f) | (~nan & (r | (vi)sign)));
}

// The sum of the lanes: halves added, i + 8, then i + 4, i + 2, i + 1.
CPU_INLINE float vf_sum(vf v) {
    float t[LANES];
    vf_store(t, v);
    for (uint32_t half = LANES / 2; half; half /= 2)
        for (uint32_t i = 0; i < half; i++) t[i] = t[i] + t[i + half];
    return t[0];
}

// The same additions on the sixteen lanes in PARTS registers, down to one register.
CPU_INLINE vn vn_fold(const vn *part) {
#if defined(__AVX512F__)
    return part[0];
#elif defined(__AVX2__)
    return part[0] + part[1]; // i + 8
#else
    return (part[0] + part[2]) + (part[1] + part[3]); // i + 8, then i + 4
#endif
}

/* Many sums at once, of registers that vn_fold gave: ret[i] from a[i], n being 4, 8 or 16. Each step adds halves of two
 * registers at a time and puts the sums side by side, so that no addition is wasted on lanes nobody wants. */
#if defined(__AVX512F__)
CPU_INLINE vn vn_add_halves(vn a, vn b) { // i + 8: lanes 0..7 from a, 8..15 from b
    return (vn)_mm512_shuffle_f32x4((__m512)a, (__m512)b, 0x44) +
           (vn)_mm512_shuffle_f32x4((__m512)a, (__m512)b, 0xee);
}

CPU_INLINE vn vn_sum_to_4(const vn *a) { // quarter q: four lanes of a[q]
    vn ab = vn_add_halves(a[0], a[1]), cd = vn_add_halves(a[2], a[3]);
    return (vn)_mm512_shuffle_f32x4((__m512)ab, (__m512)cd, 0x88) +
           (vn)_mm512_shuffle_f32x4((__m512)ab, (__m512)cd, 0xdd);
}

CPU_INLINE vn vn_sum_to_2(vn a, vn b) { // of each quarter: two lanes of a's, two of b's
    return (vn)_mm512_shuffle_ps((__m512)a, (__m512)b, 0x44) +
           (vn)_mm512_shuffle_ps((__m512)a, (__m512)b, 0xee);
}

CPU_INLINE vn vn_sum_to_1(vn a, vn b) { // of each quarter: a's two sums, b's two
    return (vn)_mm512_shuffle_ps((__m512)a, (__m512)b, 0x88) +
           (vn)_mm512_shuffle_ps((__m512)a, (__m512)b, 0xdd);
}

CPU_INLINE void vn_sums(const vn *a, const uint32_t n, float *ret) {
    vn s = vn_sum_to_4(a);
    if (n == 16) {
        vn low = vn_sum_to_2(s, vn_sum_to_4(a + 4));
        s = vn_sum_to_1(low, vn_sum_to_2(vn_sum_to_4(a + 8), vn_sum_to_4(a + 12)));
    } else {
        s = vn_sum_to_2(s, n == 8 ? vn_sum_to_4(a + 4) : s);
        s = vn_sum_to_1(s, s);
    }
    // Lane 4 q + j has the sum of a[q + 4 j].
    s = __builtin_shufflevector(s, s, 0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    memcpy(ret, &s, n * sizeof *ret);
}
#elif defined(__AVX2__)
CPU_INLINE void vn_sums(const vn *a, const uint32_t n, float *ret) {
#pragma GCC unroll 4
    for (uint32_t i = 0; i < n; i += 4) {
        vn ab = __builtin_shufflevector(a[i], a[i + 1], 0, 1, 2, 3, 8, 9, 10, 11) +
                __builtin_shufflevector(a[i], a[i + 1], 4, 5, 6, 7, 12, 13, 14, 15);
        vn cd = __builtin_shufflevector(a[i + 2], a[i + 3], 0, 1, 2, 3, 8, 9, 10, 11) +
                __builtin_shufflevector(a[i + 2], a[i + 3], 4, 5, 6, 7, 12, 13, 14, 15);
        vn s = __builtin_shufflevector(ab, cd, 0, 1, 8, 9, 4, 5, 12, 13) +
               __builtin_shufflevector(ab, cd, 2, 3, 10, 11, 6, 7, 14, 15); // a c b d, two each
        s = s + __builtin_shufflevector(s, s, 1, 0, 3, 2, 5, 4, 7, 6);
        s = __builtin_shufflevector(s, s, 0, 4, 2, 6, 0, 4, 2, 6);
        memcpy(ret + i, &s, 4 * sizeof *ret);
    }
}
#else
CPU_INLINE void vn_sums(const vn *a, const uint32_t n, float *ret) {
#pragma GCC unroll 4
    for (uint32_t i = 0; i < n; i += 4) {
        vn ab = __builtin_shufflevector(a[i], a[i + 1], 0, 1, 4, 5) +
                __builtin_shufflevector(a[i], a[i + 1], 2, 3, 6, 7);
        vn cd = __builtin_shufflevector(a[i + 2], a[i + 3], 0, 1, 4, 5) +
                __builtin_shufflevector(a[i + 2], a[i + 3], 2, 3, 6, 7);
        vn_store(ret + i, __builtin_shufflevector(ab, cd, 0, 2, 4, 6) +
                              __builtin_shufflevector(ab, cd, 1, 3, 5, 7));
    }
}
#endif

// The dot product of linear.h, of two fp32 rows.
CPU_INLINE float vf_dot(const float *a, const float *b, uint32_t n) {
    vn acc[PARTS];
    uint32_t k = 0;
    for (uint32_t i = 0; i < PARTS; i++) acc[i] = vn_set(0);
    for (; k + LANES <= n; k += LANES)
#pragma GCC unroll 4
        for (uint32_t i = 0; i < PARTS; i++)
            acc[i] = vn_fma(vn_load(a + k + i * NATIVE), vn_load(b + k + i * NATIVE), acc[i]);
    if (k < n) {
        float x[LANES], y[LANES];
        vf_store(x, vf_load_part(a + k, n - k));
        vf_store(y, vf_load_part(b + k, n - k));
#pragma GCC unroll 4
        for (uint32_t i = 0; i < PARTS; i++)
            acc[i] = vn_fma(vn_load(x + i * NATIVE), vn_load(y + i * NATIVE), acc[i]);
    }
    float s[4];
    vn f = vn_fold(acc);
    vn_sums((const vn[4]){f, f, f, f}, 4, s);
    return s[0];
}
