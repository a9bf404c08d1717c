/* math_f64_steps: what math_f64.h is made of, for the host and for CUDA kernels, whose bits are the same: IEEE steps, none fused.
 *
 * exp: x = k ln 2 + r with |r| <= ln 2 / 2 held as a sum of two doubles; exp r by its Taylor series, whose last sum is
 * made without loss. log: x = 2^k m with m in [sqrt 1/2, sqrt 2]; log m = 2 atanh(s), s = (m-1)/(m+1) with the
 * division's remainder carried along. Both are textbook forms (Muller, Elementary Functions, chapters 10 and 11). */
#pragma once
#include <stdint.h>
#include <string.h>

#ifdef __CUDACC__
#define MATH_F64_FN static __host__ __device__ __forceinline__
#else
#define MATH_F64_FN static inline
#endif

// ln 2 in two parts: the first has 32 significant bits, so that times an exponent it is exact.
#define MATH_F64_LN2_HI 0x1.62e42fefp-1
#define MATH_F64_LN2_LO 0x1.473de6af278edp-34
#define MATH_F64_LOG2_E 0x1.71547652b82fep+0

MATH_F64_FN uint64_t math_f64_bits(double x) {
    uint64_t b;
    memcpy(&b, &x, sizeof b);
    return b;
}

MATH_F64_FN double math_f64_of(uint64_t b) {
    double x;
    memcpy(&x, &b, sizeof x);
    return x;
}

MATH_F64_FN double math_f64_power_of_2(int k) { // -1022 <= k <= 1023
    return math_f64_of((uint64_t)(k + 1023) << 52);
}

// r^2 / 2! + r^3 / 3! + ...; the first term left out is below 2^-58 of exp r.
MATH_F64_FN double math_f64_exp_tail(double r) {
    double p = 1.0 / 6227020800;
    p = p * r + 1.0 / 479001600;
    p = p * r + 1.0 / 39916800;
    p = p * r + 1.0 / 3628800;
    p = p * r + 1.0 / 362880;
    p = p * r + 1.0 / 40320;
    p = p * r + 1.0 / 5040;
    p = p * r + 1.0 / 720;
    p = p * r + 1.0 / 120;
    p = p * r + 1.0 / 24;
    p = p * r + 1.0 / 6;
    p = p * r + 0.5;
    return p * r * r;
}

MATH_F64_FN double math_f64_exp_of(double x) {
    if (x != x) return x;
    if (x > 709.8)
        return math_f64_of(0x7ffull << 52); // the largest finite result is at 709.7827...
    if (x < -745.2) return 0;               // half the least subnormal is at -745.1332...
    int k = (int)(x * MATH_F64_LOG2_E + (x < 0 ? -0.5 : 0.5));
    double hi = x - k * MATH_F64_LN2_HI, lo = k * MATH_F64_LN2_LO;
    double r = hi - lo;
    double rest = (hi - r) - lo; // r + rest is the reduced argument
    double one = 1 + r;
    double lost = r - (one - 1);
    double y = one + (lost + (math_f64_exp_tail(r) + rest * one));
    if (k > 1023) return y * 2 * math_f64_power_of_2(k - 1);
    if (k < -1022) return y * math_f64_power_of_2(k + 54) * 0x1p-54;
    return y * math_f64_power_of_2(k);
}

// 2 (s^2 / 3 + s^4 / 5 + ...) with q = s^2 <= 0.0295; the first term left out is below 2^-60.
MATH_F64_FN double math_f64_atanh_tail(double q) {
    double p = 2.0 / 25;
    p = p * q + 2.0 / 23;
    p = p * q + 2.0 / 21;
    p = p * q + 2.0 / 19;
    p = p * q + 2.0 / 17;
    p = p * q + 2.0 / 15;
    p = p * q + 2.0 / 13;
    p = p * q + 2.0 / 11;
    p = p * q + 2.0 / 9;
    p = p * q + 2.0 / 7;
    p = p * q + 2.0 / 5;
    p = p * q + 2.0 / 3;
    return p * q;
}

MATH_F64_FN double
math_f64_upper_half(double x) { // 26 leading bits: products of two such are exact
    return math_f64_of(math_f64_bits(x) & ~0x7ffffffull);
}

MATH_F64_FN double math_f64_log_of(double x) {
    uint64_t b = math_f64_bits(x);
    int k = -1023;
    if (b - 1 >= (0x7ffull << 52) - 1) { // 0, negative, infinite or NaN
        if (x == 0) return -math_f64_of(0x7ffull << 52);
        return b >> 63 && x == x ? math_f64_of(0x7ff8ull << 48) : x;
    }
    if (b < 1ull << 52) { // subnormal
        b = math_f64_bits(x * 0x1p54);
        k -= 54;
    }
    // Fraction above sqrt 2: take half of it and one more power of 2.
    uint64_t up = (b & 0xfffffffffffff) >= 0x6a09e667f3bcd;
    k += (int)(b >> 52) + (int)up;
    double f = math_f64_of((b & 0xfffffffffffff) | (1023 - up) << 52) - 1;
    double d = 2 + f;
    double s = f / d;
    double s_hi = math_f64_upper_half(s), f_hi = math_f64_upper_half(f);
    // f - s_hi (2 + f): every product is exact, so is the first difference.
    double s_lo = (((f - 2 * s_hi) - s_hi * f_hi) - s_hi * (f - f_hi)) / d;
    double tail = s * math_f64_atanh_tail(s * s) + 2 * s_lo;
    double base = k * MATH_F64_LN2_HI, y = base + 2 * s_hi;
    double lost = k ? 2 * s_hi - (y - base) : 0;
    return y + (lost + (tail + k * MATH_F64_LN2_LO));
}
