/* experts_items: a warp's part of an item of work: 32 outputs of 64 inputs, its weights in shared memory, times the integers of up to 4
 * or 8 rows. exl3_int_few.cu says how the weights lie, experts_params.h how the integers do. */
#pragma once
#include "kernels/linear/copies.cuh"
#include "kernels/linear/exl3_int.cuh"
#include "kernels/moe/experts_params.h"

// A lane's W words of an item at `at`, and before them the one that comes before in the tile's ring.
template <int W> DEVICE_FN void exl3_int_load_words(const char *at, uint32_t ret[W + 1]) {
    uint32_t lane = threadIdx.x % WARP, rt = lane / 16, h = lane / 4 % 4, c = lane % 4;
    uint32_t mine = 8 * c + 4 * rt + h, before = 8 * c + 4 * rt + (h + 3) % 4;
    const uint32_t swap = W % 8 ? 0 : W == 8 ? 1 : 3;
    if constexpr (W % 4 == 0) {
        uint32_t turn = mine * W / 32 & swap;
#pragma unroll
        for (uint32_t i = 0; i < W / 4; i++) {
            const uint4 v = *reinterpret_cast<const uint4 *>(at + mine * W * 4 + (i ^ turn) * 16);
            ret[1 + 4 * i] = v.x;
            ret[2 + 4 * i] = v.y;
            ret[3 + 4 * i] = v.z;
            ret[4 + 4 * i] = v.w;
        }
        uint32_t last = ((uint32_t)(W / 4 - 1) ^ (before * W / 32 & swap)) * 16 + 12;
        ret[0] = *reinterpret_cast<const uint32_t *>(at + before * W * 4 + last);
    } else if constexpr (W % 2 == 0) {
#pragma unroll
        for (uint32_t i = 0; i < W / 2; i++) {
            const uint2 v = *reinterpret_cast<const uint2 *>(at + mine * W * 4 + i * 8);
            ret[1 + 2 * i] = v.x;
            ret[2 + 2 * i] = v.y;
        }
        ret[0] = *reinterpret_cast<const uint32_t *>(at + before * W * 4 + (W - 1) * 4);
    } else {
#pragma unroll
        for (uint32_t i = 0; i < W; i++)
            ret[1 + i] = *reinterpret_cast<const uint32_t *>(at + mine * W * 4 + i * 4);
        ret[0] = *reinterpret_cast<const uint32_t *>(at + before * W * 4 + (W - 1) * 4);
    }
}

// Products. sum[set]: outputs 2 h + set and 2 h + set + 8 of the tile; two columns, then the same of the second eight.

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
/* The integers of a step as wgmma's descriptor has them: no swizzle; pieces of 8 columns by 16 bytes, 128 apart along k and 256 along
 * the columns. */
DEVICE_FN uint64_t exl3_int_step_matrix(uint32_t sixteens) {
    return (uint64_t)(256 >> 4) << 32 | (uint32_t)(((128 >> 4) << 16) + sixteens);
}

DEVICE_FN void exl3_int_multiply(int32_t sum[4], const uint32_t a[4], uint64_t b) {
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, 1, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n8k32.s32.u8.s8 {%0,%1,%2,%3}, {%4,%5,%6,%7}, %8, p;\n}"
        : "+r"(sum[0]), "+r"(sum[1]), "+r"(sum[2]), "+r"(sum[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}

DEVICE_FN void exl3_int_multiply_two(int32_t sum[8], const uint32_t a[4], uint64_t b) {
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, 1, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n16k32.s32.u8.s8 {%0,%1,%2,%3,%4,%5,%6,%7}, "
                 "{%8,%9,%10,%11}, %12, p;\n}"
                 : "+r"(sum[0]), "+r"(sum[1]), "+r"(sum[2]), "+r"(sum[3]), "+r"(sum[4]),
                   "+r"(sum[5]), "+r"(sum[6]), "+r"(sum[7])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}
#else
DEVICE_FN void exl3_int_multiply(int32_t sum[4], const uint32_t a[4], const uint32_t b[2]) {
    asm volatile("mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, "
                 "{%8,%9}, {%0,%1,%2,%3};"
                 : "+r"(sum[0]), "+r"(sum[1]), "+r"(sum[2]), "+r"(sum[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
#endif

/* A step: eight symbols of each set (inputs 2 s + {0, 1, 8, 9} of the lane's tile), two products for each: inputs 2 s and 2 s + 8, then
 * 2 s + 1 and 2 s + 9. v: the sets' bytes. digits: address of the group's integers in shared memory, in sixteen bytes. */
template <int COLUMNS>
DEVICE_FN void exl3_int_multiply_step(int32_t sum[2][COLUMNS / 2], const uint32_t v[2][8],
                                      uint32_t digits, uint32_t s) {
#pragma unroll
    for (uint32_t m = 0; m < 2; m++) {
        uint32_t at = digits + (2 * s + m) * (experts_int_step_bytes(COLUMNS) / 16);
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
        uint64_t matrix = exl3_int_step_matrix(at);
#else
        uint32_t lane_at = at * 16 + threadIdx.x % WARP * 4;
#endif
#pragma unroll
        for (uint32_t set = 0; set < 2; set++) {
            const uint32_t a[4] = {v[set][m], v[set][m + 4], v[set][m + 2], v[set][m + 6]};
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
            if constexpr (COLUMNS == 8)
                exl3_int_multiply(sum[set], a, matrix);
            else
                exl3_int_multiply_two(sum[set], a, matrix);
#else
#pragma unroll
            for (uint32_t n = 0; n < COLUMNS / 8; n++) {
                uint32_t b[2];
#pragma unroll
                for (uint32_t i = 0; i < 2; i++)
                    asm volatile("ld.shared.u32 %0, [%1];"
                                 : "=r"(b[i])
                                 : "r"(lane_at + n * 256 + i * 128));
                exl3_int_multiply(sum[set] + n * 4, a, b);
            }
#endif
        }
    }
}

DEVICE_FN void exl3_int_begin() { // registers that were written may be read by the tensor cores
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#endif
}

DEVICE_FN void exl3_int_commit() {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
#endif
}

template <int LEFT> DEVICE_FN void exl3_int_wait() {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(LEFT) : "memory");
#endif
}
