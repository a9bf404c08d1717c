/* rope: see rope.h. A thread is a pair; in double, as on the CPU, whose bits these are too.
 * Equals  rope_ref.c, bit for bit. */
#include "kernels/cuda/device.cuh"
#include "kernels/math_sincos.h"
#include "kernels/rope/rope.h"

extern "C" __global__ void rope(const struct rope_args a) {
    uint32_t t = blockIdx.x;
    device_wait_prior();
    device_let_next();
    float pos = (float)device_ptr<const uint32_t>(a.pos)[t];
    float *out = device_ptr<float>(a.angles) + (uint64_t)t * 2 * a.pairs;
    for (uint32_t i = threadIdx.x; i < a.pairs; i += blockDim.x) {
        float angle = pos * device_ptr<const float>(a.freq)[i];
        struct sincos sc = sincos_f64((double)angle);
        out[i] = (float)sc.cos * a.scale;
        out[a.pairs + i] = (float)sc.sin * a.scale;
    }
}
