/* hadamard: the rotation of EXL3: 128 channels times the Sylvester matrix H[i][j] = (-1)^popcount(i & j), over sqrt(128).
 *
 * Butterflies (a, b) -> (a + b, a - b) at distances 1, 2, 4 .. 64 in fp32, then one product with the factor: one order,
 * whatever the vector width. The matrix is symmetric and its own inverse. */
#pragma once
#include "kernels/cpu_vec.h"

enum { HADAMARD_CHANNELS = 128, HADAMARD_VECTORS = HADAMARD_CHANNELS / LANES };
static const float hadamard_factor = 0.088388347648f; // 1 / sqrt(128), as the format has it

// Lanes whose bit `distance` is clear: v + partner; set: partner - v.
CPU_INLINE vf hadamard_pair(vf v, vf partner, vu flip) {
    return (vf)((vu)v ^ flip) + partner;
}

CPU_INLINE vf hadamard_lanes(vf v) {
    const uint32_t n = 0x80000000u;
    v = hadamard_pair(
        v, __builtin_shufflevector(v, v, 1, 0, 3, 2, 5, 4, 7, 6, 9, 8, 11, 10, 13, 12, 15, 14),
        (vu){0, n, 0, n, 0, n, 0, n, 0, n, 0, n, 0, n, 0, n});
    v = hadamard_pair(
        v, __builtin_shufflevector(v, v, 2, 3, 0, 1, 6, 7, 4, 5, 10, 11, 8, 9, 14, 15, 12, 13),
        (vu){0, 0, n, n, 0, 0, n, n, 0, 0, n, n, 0, 0, n, n});
    v = hadamard_pair(
        v, __builtin_shufflevector(v, v, 4, 5, 6, 7, 0, 1, 2, 3, 12, 13, 14, 15, 8, 9, 10, 11),
        (vu){0, 0, 0, 0, n, n, n, n, 0, 0, 0, 0, n, n, n, n});
    return hadamard_pair(
        v, __builtin_shufflevector(v, v, 8, 9, 10, 11, 12, 13, 14, 15, 0, 1, 2, 3, 4, 5, 6, 7),
        (vu){0, 0, 0, 0, 0, 0, 0, 0, n, n, n, n, n, n, n, n});
}

CPU_INLINE void hadamard_128(vf v[HADAMARD_VECTORS]) {
#pragma GCC unroll 8
    for (int i = 0; i < HADAMARD_VECTORS; i++) v[i] = hadamard_lanes(v[i]);
#pragma GCC unroll 3
    for (int d = 1; d < HADAMARD_VECTORS; d *= 2)
#pragma GCC unroll 8
        for (int i = 0; i < HADAMARD_VECTORS; i++)
            if (!(i & d)) {
                vf a = v[i], b = v[i + d];
                v[i] = a + b;
                v[i + d] = a - b;
            }
#pragma GCC unroll 8
    for (int i = 0; i < HADAMARD_VECTORS; i++) v[i] = v[i] * vf_set(hadamard_factor);
}
