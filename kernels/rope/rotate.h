/* rotate: a row's pairs (i, i + pairs) by its angles (rope.h), for the CPU's files. */
#pragma once
#include <stdint.h>

static inline void rotate_pairs(float *x, const float *angles, uint32_t pairs) {
    const float *cos = angles, *sin = angles + pairs;
    for (uint32_t i = 0; i < pairs; i++) {
        float a = x[i], b = x[pairs + i];
        x[i] = a * cos[i] - b * sin[i];
        x[pairs + i] = b * cos[i] + a * sin[i];
    }
}
