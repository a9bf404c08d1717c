/* wgmma: one step of the tensor cores for a group of four warps (sm_90a): 64 outputs, N rows, sixteen k. */
#pragma once
#include "kernels/cuda/device.cuh"

// Of a factor in shared memory, [rows, 64] f16 with the swizzle of 128 bytes, at a multiple of 1 KiB; a step further: + 2.
DEVICE_FN uint64_t wgmma_descriptor(uint32_t shared) {
    return (uint64_t)1 << 62 | (uint64_t)(1024 >> 4) << 32 | (uint64_t)1 << 16 |
           (shared & 0x3ffff) >> 4;
}

DEVICE_FN void wgmma_fence() {
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

DEVICE_FN void wgmma_commit() {
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

template <int LEFT> DEVICE_FN void wgmma_wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(LEFT) : "memory");
}

#define WGMMA_D8(i)                                                                                \
    "+f"(sum[i]), "+f"(sum[i + 1]), "+f"(sum[i + 2]), "+f"(sum[i + 3]), "+f"(sum[i + 4]),          \
        "+f"(sum[i + 5]), "+f"(sum[i + 6]), "+f"(sum[i + 7])

// sum += A B: a: the registers of mma.sync's A factor, each warp's sixteen outputs; sums as mma.sync's of the
// tiles of eight rows, one after another.
DEVICE_FN void wgmma_step(float (&sum)[32], const uint32_t a[4], uint64_t b) {
    asm volatile("wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 "
                 "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
                 "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
                 "{%32, %33, %34, %35}, %36, 1, 1, 1, 0;"
                 : WGMMA_D8(0), WGMMA_D8(8), WGMMA_D8(16), WGMMA_D8(24)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}

DEVICE_FN void wgmma_step(float (&sum)[64], const uint32_t a[4], uint64_t b) {
    asm volatile("wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 "
                 "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
                 "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
                 "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
                 "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, "
                 "{%64, %65, %66, %67}, %68, 1, 1, 1, 0;"
                 : WGMMA_D8(0), WGMMA_D8(8), WGMMA_D8(16), WGMMA_D8(24), WGMMA_D8(32), WGMMA_D8(40),
                   WGMMA_D8(48), WGMMA_D8(56)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}
