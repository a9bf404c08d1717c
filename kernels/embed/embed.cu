/* embed: see embed.h. A block is a row, which the card reads where it lies, in its own memory or the host's: all of it is asked for
 * at once, since the host's is a long way off.
 * Cost    D of the table's values read and 4 D bytes written a row. */
#include "kernels/cuda/quads.cuh"
#include "kernels/embed/embed.h"

enum { AHEAD = 5 };

// Four 16-bit values at a time.
DEVICE_FN void embed_quads(const uint2 *from, float4 *x, uint32_t count, bool bf16) {
    for (uint32_t d = threadIdx.x; d < count; d += blockDim.x * AHEAD) {
        uint2 v[AHEAD];
#pragma unroll
        for (uint32_t i = 0; i < AHEAD; i++)
            if (d + i * blockDim.x < count) v[i] = from[d + i * blockDim.x];
#pragma unroll
        for (uint32_t i = 0; i < AHEAD; i++) {
            uint16_t h[4] = {(uint16_t)v[i].x, (uint16_t)(v[i].x >> 16), (uint16_t)v[i].y,
                             (uint16_t)(v[i].y >> 16)};
            float f[4];
            if (d + i * blockDim.x >= count) break;
#pragma unroll
            for (uint32_t k = 0; k < 4; k++)
                f[k] = bf16 ? arith_from_bf16(h[k]) : arith_from_f16(h[k]);
            x[d + i * blockDim.x] = {f[0], f[1], f[2], f[3]};
        }
    }
}

extern "C" __global__ void embed(const struct embed_args a) {
    uint32_t t = blockIdx.x, dim = a.table.cols;
    device_wait_prior();
    device_let_next();
    uint64_t first = (uint64_t)device_ptr<const uint32_t>(a.ids)[t] * dim;
    float *x = device_ptr<float>(a.x) + (uint64_t)t * dim;
    const uint16_t *halves = device_ptr<const uint16_t>(a.table.data) + first;
    if (a.table.dtype != DTYPE_F32 && quads_whole(x, dim) &&
        reinterpret_cast<uintptr_t>(halves) % 8 == 0) {
        embed_quads(reinterpret_cast<const uint2 *>(halves), reinterpret_cast<float4 *>(x), dim / 4,
                    a.table.dtype == DTYPE_BF16);
        return;
    }
    for (uint32_t d = threadIdx.x; d < dim; d += blockDim.x)
        x[d] = device_load(device_ptr<const void>(a.table.data), first + d, a.table.dtype);
}
