/* half: fp16 numbers on the host, for tests and tools: slow and plain. */
#pragma once
#include <math.h>
#include <stdint.h>

// To fp16, ties to even, any finite value up to 65504.
static inline uint16_t half_of(double x) {
    int e;
    double a = fabs(x), step;
    frexp(a, &e);
    step = ldexp(1, e - 11 < -24 ? -24 : e - 11);
    a = nearbyint(a / step) * step;
    uint16_t sign = signbit(x) ? 0x8000 : 0;
    if (a < 0x1p-14) return sign | (uint16_t)(a * 0x1p24);
    frexp(a, &e);
    return (uint16_t)(sign | (uint16_t)((e + 14) << 10) | ((uint16_t)(ldexp(a, 11 - e)) & 1023));
}

static inline float half_to(uint16_t h) {
    double a = h >> 10 & 31 ? ldexp(1024 + (h & 1023), (h >> 10 & 31) - 25) : ldexp(h & 1023, -24);
    return (float)(h & 0x8000 ? -a : a);
}
