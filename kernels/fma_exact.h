/* fma_exact: a * b + c rounded once, for machines without an instruction for it: the bits that those with one give.
 *
 * A product of two fp32 numbers is exact in double (48 bits of 53). s, the sum with c in double, has a rounding error
 * that is a double too (Knuth's two-sum). Where it is not 0, the exact value lies strictly between two neighbouring
 * doubles, and s becomes the odd one of them; rounding that to fp32 gives what rounding the exact value would, since double
 * has more than two bits beyond fp32 (Boldo and Melquiond 2008), subnormals included. Infinities and NaN have no error. */
#pragma once
#include <stdint.h>
#include <string.h>

// Vector types need a name of their own: the attribute cannot be written into every declaration.
typedef double fma_exact_v __attribute__((vector_size(16)));
typedef uint64_t fma_exact_bits __attribute__((vector_size(16)));

static inline __attribute__((always_inline)) fma_exact_v fma_exact_odd(fma_exact_v a, fma_exact_v b,
                                                                       fma_exact_v c) {
    fma_exact_v p = a * b, s = p + c, c_part = s - p;
    fma_exact_v error = (p - (s - c_part)) + (c - c_part);
    fma_exact_bits inexact = (fma_exact_bits)(error < 0) | (fma_exact_bits)(error > 0);
    fma_exact_bits bits = (fma_exact_bits)s;
    // An even s whose exact value is nearer to 0 goes to the odd neighbour on that side; any other even one away from 0.
    fma_exact_bits nearer = (((fma_exact_bits)error ^ bits) >> 63) & ~bits & inexact;
    return (fma_exact_v)((bits - nearer) | (inexact & 1));
}

// n values, a multiple of 2.
static inline __attribute__((always_inline)) void
fma_exact_many(const float *a, const float *b, const float *c, float *ret, const uint32_t n) {
#pragma GCC unroll 16
    for (uint32_t i = 0; i < n; i += 2) {
        fma_exact_v s = fma_exact_odd((fma_exact_v){a[i], a[i + 1]}, (fma_exact_v){b[i], b[i + 1]},
                                      (fma_exact_v){c[i], c[i + 1]});
        ret[i] = (float)s[0];
        ret[i + 1] = (float)s[1];
    }
}
