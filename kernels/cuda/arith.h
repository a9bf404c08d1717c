/* arith: the scalar arithmetic that a kernel and its twin share: exp and its kin, roundings to 16 and 8 bits. Pure.
 *
 * Compiled by nvcc for the device and by the C compiler for the twins; both without contraction, so a product and a sum are
 * fused where fmaf stands and nowhere else, and division and square root are IEEE's. The polynomials are math_f32.h's, with
 * their steps fused; so are the bounds of their errors. */
#pragma once
#include <math.h>
#include <stdint.h>
#include <string.h>

#ifdef __CUDACC__
#define ARITH_FN static __host__ __device__ __forceinline__
#else
#define ARITH_FN static inline
#endif

ARITH_FN uint32_t arith_bits(float x) {
#ifdef __CUDA_ARCH__
    return __float_as_uint(x);
#else
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    return u;
#endif
}

ARITH_FN float arith_float(uint32_t u) {
#ifdef __CUDA_ARCH__
    return __uint_as_float(u);
#else
    float x;
    memcpy(&x, &u, sizeof x);
    return x;
#endif
}

// e^x: 0 below e^-87.33, infinity above e^88.72; a NaN stays one.
ARITH_FN float arith_exp(float x) {
    const float low = -87.33654f, high = 88.72283f;
    float c = x < low ? low : x > high ? high : x;
    float shifted = fmaf(c, 1.44269504f, 12582912.0f); // its low bits are the nearest integer
    int32_t n = (int32_t)(arith_bits(shifted) - 0x4b400000u);
    float nf = shifted - 12582912.0f;
    float r = fmaf(nf, -0.693359375f, c);
    r = fmaf(nf, 2.12194440e-4f, r);
    float p = fmaf(0.00139336504f, r, 0.00836318012f);
    p = fmaf(p, r, 0.0416664649f);
    p = fmaf(p, r, 0.16666577f);
    p = fmaf(p, r, 0.500000001f);
    p = fmaf(p * r, r, r);
    p = p + 1.0f;
    if (!(x >= low)) return x < low ? 0.0f : x;
    if (x > high) return arith_float(0x7f800000u);
    int32_t half = n >> 1; // 2^n in two factors, since n reaches 128
    return (p * arith_float((uint32_t)(half + 127) << 23)) *
           arith_float((uint32_t)(n - half + 127) << 23);
}

ARITH_FN float arith_sigmoid(float x) {
    return 1.0f / (1.0f + arith_exp(-x));
}

ARITH_FN float arith_silu(float x) {
    return x / (1.0f + arith_exp(-x));
}

// log(1 + u) for u in [0, 1]
ARITH_FN float arith_log1p_unit(float u) {
    float s = u / (2.0f + u);
    float z = s * s;
    float p = fmaf(0.104006837f, z, 0.0873044647f);
    p = fmaf(p, z, 0.11132540f);
    p = fmaf(p, z, 0.142851456f);
    p = fmaf(p, z, 0.200000055f);
    p = fmaf(p, z, 0.333333333f);
    float twice = s + s;
    return fmaf(twice, z * p, twice);
}

// log(1 + e^x)
ARITH_FN float arith_softplus(float x) {
    return (x > 0 ? x : 0.0f) + arith_log1p_unit(arith_exp(x > 0 ? -x : x));
}

ARITH_FN float arith_from_bf16(uint16_t h) {
    return arith_float((uint32_t)h << 16);
}

// To nearest even; a NaN stays one.
ARITH_FN uint16_t arith_to_bf16(float x) {
    uint32_t u = arith_bits(x);
    if (x != x) return 0x7fff;
    return (uint16_t)((u + 0x7fffu + (u >> 16 & 1u)) >> 16);
}

// Exact for every value: the product with 2^112 is, for subnormals too.
ARITH_FN float arith_from_f16(uint16_t h) {
    uint32_t rest = (uint32_t)(h & 0x7fff) << 13, sign = (uint32_t)(h & 0x8000) << 16;
    if (rest >= (uint32_t)0x7c00 << 13) return arith_float(sign | 0x7f800000u | rest);
    return arith_float(sign | arith_bits(arith_float(rest) * 0x1p112f));
}

// To nearest even, what lies beyond 65504 to 65504; a NaN stays one.
ARITH_FN uint16_t arith_to_f16(float x) {
    uint32_t u = arith_bits(x), sign = u >> 16 & 0x8000u, mag = u & 0x7fffffffu;
    if (x != x) return 0x7fff;
    if (mag >= 0x477fe000u) return (uint16_t)(sign | 0x7bffu);
    if (mag < 0x38800000u) // subnormal: multiples of 2^-24, by one rounded sum
        return (uint16_t)(sign | (arith_bits(arith_float(mag) + 0.5f) - 0x3f000000u));
    uint32_t rounded = (mag + 0xfffu + (mag >> 13 & 1u) - (112u << 23)) >> 13;
    return (uint16_t)(sign | (rounded > 0x7bffu ? 0x7bffu : rounded));
}

// e4m3 (OCP FP8): no infinity, 0x7f is NaN, the largest is 448.
ARITH_FN float arith_from_e4m3(uint8_t b) {
    uint32_t sign = (uint32_t)(b & 0x80) << 24, rest = (uint32_t)(b & 0x7f) << 20;
    if ((b & 0x7f) == 0x7f) return arith_float(sign | 0x7fc00000u);
    return arith_float(sign | arith_bits(arith_float(rest) * 0x1p120f));
}

// To nearest even, what lies beyond 448 to 448; a NaN stays one.
ARITH_FN uint8_t arith_to_e4m3(float x) {
    uint32_t u = arith_bits(x), sign = u >> 24 & 0x80u, mag = u & 0x7fffffffu;
    if (x != x) return 0x7f;
    if (mag >= 0x43e00000u) return (uint8_t)(sign | 0x7eu);
    if (mag < 0x3c800000u) // subnormal: multiples of 2^-9
        return (uint8_t)(sign | (arith_bits(arith_float(mag) + 16384.0f) - 0x46800000u));
    return (uint8_t)(sign | ((mag + 0x7ffffu + (mag >> 20 & 1u) - (120u << 23)) >> 20));
}
