/* device: what the kernels share: pointers, loads, sums over a warp or a block, one step of the tensor cores. */
#pragma once
#include <stdint.h>

#include "kernels/cuda/arith.h"
#include "kernels/types.h"

#define DEVICE_FN static __device__ __forceinline__

enum { WARP = 32 };

template <class T> DEVICE_FN T *device_ptr(devptr p) {
    return reinterpret_cast<T *>(p);
}

/* Launches that overlap (launch.early): device_wait_prior waits until the launch before has ended and its stores are seen. Before it
 * nothing may be written, and nothing read but what stays as it was loaded (weights): neither what a launch wrote nor what the
 * host wrote for the round, such as its tables of rows, of which old lines lie in the first cache. Every thread of every block of an early
 * kernel calls it. device_let_next lets the next launch start its blocks where there is room; it may be called at any
 * time. Neither does anything before sm_90. */
DEVICE_FN void device_wait_prior() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

DEVICE_FN void device_let_next() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

DEVICE_FN uint16_t device_to_f16(float x) { // arith_to_f16
    float c = x > 65504.0f ? 65504.0f : x < -65504.0f ? -65504.0f : x;
    uint16_t h;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(h) : "f"(c));
    return h;
}

// Two values in one register, the first in the low half.
template <enum dtype D> DEVICE_FN uint32_t device_pack(float low, float high) {
    if (D == DTYPE_BF16) {
        uint32_t r;
        asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
        return r;
    }
    return device_to_f16(low) | (uint32_t)device_to_f16(high) << 16;
}

DEVICE_FN float device_load(const void *p, uint64_t i, enum dtype d) {
    switch (d) {
    case DTYPE_F32: return static_cast<const float *>(p)[i];
    case DTYPE_BF16: return arith_from_bf16(static_cast<const uint16_t *>(p)[i]);
    default: return arith_from_f16(static_cast<const uint16_t *>(p)[i]);
    }
}

// Lanes added by xor 16, 8, 4, 2, 1; every lane has the sum.
DEVICE_FN float device_warp_sum(float v) {
#pragma unroll
    for (int d = WARP / 2; d; d /= 2) v = v + __shfl_xor_sync(0xffffffffu, v, d);
    return v;
}

DEVICE_FN float device_warp_max(float v) {
#pragma unroll
    for (int d = WARP / 2; d; d /= 2) {
        float o = __shfl_xor_sync(0xffffffffu, v, d);
        v = o > v ? o : v;
    }
    return v;
}

// Warp sums added in the order of the warps, from the first. part: one float a warp, shared. Every thread has the sum.
DEVICE_FN float device_block_sum(float v, float *part, uint32_t warps) {
    v = device_warp_sum(v);
    if (threadIdx.x % WARP == 0) part[threadIdx.x / WARP] = v;
    __syncthreads();
    float sum = part[0];
    for (uint32_t w = 1; w < warps; w++) sum = sum + part[w];
    return sum;
}

// sum += A B: mma.sync m16n8k16 as in the PTX ISA; a: four registers of the 16x16 factor, b: two of the 16x8 one.
template <enum dtype D>
DEVICE_FN void device_mma(float sum[4], const uint32_t a[4], const uint32_t b[2]) {
    if (D == DTYPE_BF16)
        asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, "
            "{%8,%9}, "
            "{%0,%1,%2,%3};"
            : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
    else
        asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, "
            "{%8,%9}, "
            "{%0,%1,%2,%3};"
            : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
