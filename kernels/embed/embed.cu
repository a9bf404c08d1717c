/* embed: x[t,:] = table[ids[t],:] as fp32. See embed.h.
 *
 * Order   one block a row; each element is widened, which is exact.
 * Equals  embed_ref.c, bit for bit.
 * Cost    the bytes of the rows; a table in host memory is read over the bus, coalesced. */
#include "kernels/embed/embed_plan.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

template <typename T> static __device__ float widen(T v) { return (float)v; }

template <typename T>
static __device__ void gather(const embed_params &p) {
    uint64_t id = ((const uint32_t *)p.ids)[blockIdx.x];
    const T *from = (const T *)p.table + id * p.cols;
    float *to = (float *)p.x + (uint64_t)blockIdx.x * p.cols;
    for (uint32_t i = threadIdx.x; i < p.cols; i += blockDim.x) to[i] = widen(from[i]);
}

extern "C" __global__ void __launch_bounds__(EMBED_THREADS) embed_gather(const embed_params p) {
    switch (p.dtype) {
    case DTYPE_F32: gather<float>(p); break;
    case DTYPE_BF16: gather<__nv_bfloat16>(p); break;
    default: gather<__half>(p); break;
    }
}
