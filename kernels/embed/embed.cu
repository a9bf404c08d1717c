/* embed: see embed.h. A block is a row; one read and one write of each value. */
#include "kernels/cuda/device.cuh"
#include "kernels/embed/embed.h"

extern "C" __global__ void embed(const struct embed_args a) {
    uint32_t t = blockIdx.x, dim = a.table.cols;
    uint64_t first = (uint64_t)device_ptr<const uint32_t>(a.ids)[t] * dim;
    float *x = device_ptr<float>(a.x) + (uint64_t)t * dim;
    for (uint32_t d = threadIdx.x; d < dim; d += blockDim.x)
        x[d] = device_load(device_ptr<const void>(a.table.data), first + d, a.table.dtype);
}
