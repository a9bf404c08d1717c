/* noise: the pieces of a draw that host and CUDA share (docs/sampling.md): which logits may be drawn, their order, the noise. Pure;
 * the same bits on both. */
#pragma once
#include <float.h>

#include "kernels/cuda/arith.h"
#include "kernels/math_f64_steps.h"

// What a broken model may hand us, made drawable or not: NaN and -infinity may not be drawn, +infinity is a large number.
// Adding 0 makes -0 into 0, so that equal logits have equal bits.
ARITH_FN float noise_tame(float x) {
    if (x != x) return -HUGE_VALF;
    return (x > FLT_MAX ? FLT_MAX : x) + 0.0f;
}

/* A candidate is one word: the logit's order in the upper half (0 is the greatest), the id in the lower. Ascending words
 * are (logit descending, id ascending), the order of the contract. */
ARITH_FN uint64_t noise_cand(float logit, uint32_t id) {
    uint32_t b = arith_bits(logit);
    b ^= b >> 31 ? 0
                 : 0x7fffffff; // ascending bits: positive numbers from the top, then negative ones
    return (uint64_t)b << 32 | id;
}

ARITH_FN float noise_cand_logit(uint64_t c) {
    uint32_t b = (uint32_t)(c >> 32);
    b ^= b >> 31 ? 0 : 0x7fffffff;
    return arith_float(b);
}

// Stafford's mix 13, as mix_u64 (common/num.h).
ARITH_FN uint64_t noise_mix(uint64_t x) {
    x ^= x >> 30;
    x *= 0xBF58476D1CE4E5B9u;
    x ^= x >> 27;
    x *= 0x94D049BB133111EBu;
    x ^= x >> 31;
    return x;
}

ARITH_FN uint64_t noise_base(uint64_t seed, uint64_t position) {
    return noise_mix(noise_mix(seed + 0x9E3779B97F4A7C15u) ^ (position * 0xD1B54A32D192ED03u));
}

ARITH_FN double noise_u(uint64_t base, uint32_t id) {
    double u = (double)(noise_mix(base ^ id) >> 11) * 0x1p-53 + 0x1p-54;
    return u < 1 ? u : 1 - 0x1p-53;
}

ARITH_FN double noise_gumbel(double u) {
    return -math_f64_log_of(-math_f64_log_of(u));
}

// At least the noise of u: -ln(-ln u) <= -ln(1 - u) <= k ln 2 where 1 - u >= 2^-k, and a little for our rounding.
// 1 - u is exact from u = 1/2 on; below, only k = 1 or 0 can come out, and rounding cannot make it less than true.
ARITH_FN double noise_bound(double u) {
    return 0.6931471805599454 * (1023 - (double)(math_f64_bits(1 - u) >> 52)) + 1e-9;
}

// z at or above this passes min_p. z0 is the greatest.
ARITH_FN double noise_floor(double z0, double min_p) {
    return min_p > 0 ? z0 + math_f64_log_of(min_p) : -HUGE_VAL;
}
