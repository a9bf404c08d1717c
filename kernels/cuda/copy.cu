/* copy: dst[0, bytes) = src[0, bytes), which do not overlap; and the same for each piece, as many as the grid is high.
 *
 * A kernel and no copy of the driver's, so that it stands among overlapping launches and in a graph whose addresses come later.
 * Words of 16 bytes where everything is a multiple of it, else bytes. */
#include "kernels/cuda/copy.h"
#include "kernels/cuda/device.cuh"

enum { TOGETHER = 4 }; // words on their way

template <class T> DEVICE_FN void copy_words(const struct copy_params &a) {
    T *to = device_ptr<T>(a.dst);
    const T *from = device_ptr<const T>(a.src);
    uint64_t n = a.bytes / sizeof(T), step = (uint64_t)gridDim.x * blockDim.x;
    uint64_t i = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x;
    for (; i + (TOGETHER - 1) * step < n; i += TOGETHER * step) {
        T word[TOGETHER];
#pragma unroll
        for (int j = 0; j < TOGETHER; j++) word[j] = from[i + j * step];
#pragma unroll
        for (int j = 0; j < TOGETHER; j++) to[i + j * step] = word[j];
    }
    for (; i < n; i += step) to[i] = from[i];
}

extern "C" __global__ void __launch_bounds__(COPY_THREADS) copy(struct copy_params a) {
    device_let_next();
    device_wait_prior();
    a.dst += blockIdx.y * a.stride;
    a.src += blockIdx.y * a.stride;
    if ((a.dst | a.src | a.bytes) % sizeof(uint4))
        copy_words<unsigned char>(a);
    else
        copy_words<uint4>(a);
}
