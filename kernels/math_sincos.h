/* math_sincos: sin and cos in double, without the C library: the same bits everywhere, on the CPU and on a GPU. Pure, any thread.
 *
 * For |x| up to 2^21, which holds the angle of any position below a million with room to spare; the error is below 2 ulp
 * of the larger of the two. x = n pi/2 + r: pi/2 in three parts of 33 bits, so that n times the first two is exact
 * (Cody and Waite 1980); then Taylor series on |r| <= pi/4, whose first term left out is below 1e-19. */
#pragma once
#include <stdint.h>

#ifdef __CUDACC__
#define SINCOS_FN static __host__ __device__ __forceinline__
#else
#define SINCOS_FN static inline
#endif

struct sincos {
    double sin, cos;
};

SINCOS_FN double sincos_reduce(double x, int64_t *ret_quarter) {
    const double two_over_pi = 0.63661977236758134308;
    const double part1 = 0x1.921fb544p+0, part2 = 0x1.0b4611a6p-34, part3 = 0x1.3198a2e037073p-69;
    double turns = x * two_over_pi;
    int64_t n = (int64_t)(turns + (turns < 0 ? -0.5 : 0.5));
    double nd = (double)n;
    *ret_quarter = n;
    return ((x - nd * part1) - nd * part2) - nd * part3;
}

SINCOS_FN struct sincos sincos_f64(double x) {
    int64_t n;
    double r = sincos_reduce(x, &n), z = r * r;
    // 1/k! for k = 17, 15, .. 3 and 16, 14, .. 2, signs alternating
    double s = 1.0 / 355687428096000.0;
    s = s * z - 1.0 / 1307674368000.0;
    s = s * z + 1.0 / 6227020800.0;
    s = s * z - 1.0 / 39916800.0;
    s = s * z + 1.0 / 362880.0;
    s = s * z - 1.0 / 5040.0;
    s = s * z + 1.0 / 120.0;
    s = s * z - 1.0 / 6.0;
    double sine = r + r * (z * s);
    double c = 1.0 / 20922789888000.0;
    c = c * z - 1.0 / 87178291200.0;
    c = c * z + 1.0 / 479001600.0;
    c = c * z - 1.0 / 3628800.0;
    c = c * z + 1.0 / 40320.0;
    c = c * z - 1.0 / 720.0;
    c = c * z + 1.0 / 24.0;
    c = c * z - 0.5;
    double cosine = 1.0 + z * c;
    struct sincos ret = {sine, cosine};
    if (n & 1) {
        ret.sin = cosine;
        ret.cos = -sine;
    }
    if (n & 2) {
        ret.sin = -ret.sin;
        ret.cos = -ret.cos;
    }
    return ret;
}
