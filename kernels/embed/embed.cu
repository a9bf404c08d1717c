/* embed: see embed.h. A block is a row, which the card reads where it lies, in its own memory or the host's: all of it is asked for
 * at once, since the host's is a long way off.
 * Cost    D of the table's values read and 4 D bytes written a row. */
#include "kernels/cuda/quads.cuh"
#include "kernels/embed/embed.h"

enum { AHEAD = 3 };

// Eight 16-bit values at a time.
DEVICE_FN void embed_eights(const uint4 *from, float4 *x, uint32_t count, bool bf16) {
    for (uint32_t d = threadIdx.x; d < count; d += blockDim.x * AHEAD) {
        uint4 v[AHEAD];
#pragma unroll
        for (uint32_t i = 0; i < AHEAD; i++)
            if (d + i * blockDim.x < count) v[i] = from[d + i * blockDim.x];
#pragma unroll
        for (uint32_t i = 0; i < AHEAD; i++) {
            if (d + i * blockDim.x >= count) break;
            uint32_t w[4] = {v[i].x, v[i].y, v[i].z, v[i].w};
            float f[8];
#pragma unroll
            for (uint32_t k = 0; k < 8; k++) {
                uint16_t h = (uint16_t)(w[k / 2] >> (k % 2 * 16));
                f[k] = bf16 ? arith_from_bf16(h) : arith_from_f16(h);
            }
            x[2 * (d + i * blockDim.x)] = {f[0], f[1], f[2], f[3]};
            x[2 * (d + i * blockDim.x) + 1] = {f[4], f[5], f[6], f[7]};
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
    if (a.table.dtype != DTYPE_F32 && dim % 8 == 0 && quads_whole(halves, dim) &&
        quads_whole(x, dim)) {
        embed_eights(reinterpret_cast<const uint4 *>(halves), reinterpret_cast<float4 *>(x),
                     dim / 8, a.table.dtype == DTYPE_BF16);
        return;
    }
    for (uint32_t d = threadIdx.x; d < dim; d += blockDim.x)
        x[d] = device_load(device_ptr<const void>(a.table.data), first + d, a.table.dtype);
}
