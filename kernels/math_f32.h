/* math_f32: exp and its kin on sixteen lanes, in fp32, without the C library: the same bits everywhere.
 *
 * Only IEEE sums, products, divisions and integer steps; fused where vf_fma says so. Errors against the exact value, measured
 * in tests/unit/kernels/math_f32_test.c: exp 1.0 ulp, sigmoid 2.3, silu 2.4, log1p 1.9 on [0, 1], softplus 2.5. NaN in, NaN out. */
#pragma once
#include "kernels/cpu_vec.h"

/* e^x. Below e^-87.33 (the smallest normal) the result is 0, above e^88.72 infinity.
 * x = n ln 2 + r with |r| <= ln 2 / 2, ln 2 in two parts of which the first has 9 bits, so that n times it is exact;
 * e^r by a polynomial (near-minimax on that interval, fitted for this file). */
CPU_INLINE vf vf_exp(vf x) {
    const float low = -87.33654f, high = 88.72283f;
    vf c = vf_select(x < low, vf_set(low), vf_select(x > high, vf_set(high), x));
    // 1.5 * 2^23: the sum's low bits are the nearest integer
    vf shifted = vf_fma(c, vf_set(1.44269504f), vf_set(12582912.0f));
    vi n = (vi)shifted - 0x4b400000;
    vf nf = shifted - 12582912.0f;
    vf r = vf_fma(nf, vf_set(-0.693359375f), c);
    r = vf_fma(nf, vf_set(2.12194440e-4f), r);
    vf p = vf_set(0.00139336504f);
    p = vf_fma(p, r, vf_set(0.00836318012f));
    p = vf_fma(p, r, vf_set(0.0416664649f));
    p = vf_fma(p, r, vf_set(0.16666577f));
    p = vf_fma(p, r, vf_set(0.500000001f));
    p = vf_fma(p, r, vf_set(1.0f));
    p = vf_fma(p, r, vf_set(1.0f));
    // 2^n in two factors, since n reaches 128.
    vi half = n >> 1;
    vf scale1 = (vf)((half + 127) << 23), scale2 = (vf)((n - half + 127) << 23);
    p = (p * scale1) * scale2;
    p = vf_select(x < low, vf_set(0), p);
    return vf_select(x > high, vf_set(__builtin_inff()), p);
}

CPU_INLINE vf vf_sigmoid(vf x) {
    return 1.0f / (1.0f + vf_exp(-x));
}

CPU_INLINE vf vf_silu(vf x) {
    return x / (1.0f + vf_exp(-x));
}

/* log(1 + u) for u in [0, 1], to a relative error that holds for the smallest u too:
 * 2 atanh(s) with s = u / (2 + u), as 2 s (1 + z P(z)), z = s^2 in [0, 1/9]; P a near-minimax fit. */
CPU_INLINE vf vf_log1p_unit(vf u) {
    vf s = u / (2.0f + u);
    vf z = s * s;
    vf p = vf_set(0.104006837f);
    p = vf_fma(p, z, vf_set(0.0873044647f));
    p = vf_fma(p, z, vf_set(0.11132540f));
    p = vf_fma(p, z, vf_set(0.142851456f));
    p = vf_fma(p, z, vf_set(0.200000055f));
    p = vf_fma(p, z, vf_set(0.333333333f));
    vf twice = s + s;
    return vf_fma(twice, z * p, twice);
}

// log(1 + e^x)
CPU_INLINE vf vf_softplus(vf x) {
    vf magnitude = vf_select(x > 0, x, -x);
    return vf_select(x > 0, x, vf_set(0)) + vf_log1p_unit(vf_exp(-magnitude));
}
