/* rope_cpu: see rope.h. A unit is a row. */
#include "kernels/cpu.h"
#include "kernels/math_sincos.h"
#include "kernels/rope/rope.h"

enum { WORK = 100 }; // a sine and cosine in double cost about that many multiply-adds

static void rope_row(void *arg, uint32_t t, uint32_t thread) {
    const struct rope_args *a = arg;
    const float *freq = cpu_ptr(a->freq);
    float pos = (float)((const uint32_t *)cpu_ptr(a->pos))[t];
    float *out = (float *)cpu_ptr(a->angles) + (uint64_t)t * 2 * a->pairs;
    for (uint32_t i = 0; i < a->pairs; i++) {
        float angle = pos * freq[i];
        struct sincos sc = sincos_f64((double)angle);
        out[i] = (float)sc.cos * a->scale;
        out[a->pairs + i] = (float)sc.sin * a->scale;
    }
}

void CPU_NAME(rope)(void *ctx, const struct rope_args *a) {
    struct rope_args args = *a;
    cpu_for(ctx, (uint64_t)a->rows * a->pairs * WORK, a->rows, rope_row, &args);
}
