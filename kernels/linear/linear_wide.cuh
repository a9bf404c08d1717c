/* linear_wide: a step of 64 outputs by many rows, by four warps (a group), the factors lying in shared memory in lines of 64 inputs as
 * linear_stream.cuh has its pieces: wgmma's layout with the swizzle of 128 bytes. sm_90a multiplies by wgmma, others by mma.sync: the
 * sums stand in the same places and have the same bits.
 *
 * Sums     of warp w of a group, lane 4 g + c: sum[i][j] is output 16 w + g + 8 (j / 2), row 8 i + 2 c + j % 2. */
#pragma once
#include "kernels/linear/linear_stream.cuh"

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define WIDE_WGMMA 1
#else
#define WIDE_WGMMA 0
#endif

enum { WIDE_GROUP = 4 * WARP, WIDE_OUTPUTS = 64, WIDE_LINE = STREAM_SPAN * 2 }; // bytes

// Piece p of line r.
DEVICE_FN uint32_t wide_piece(uint32_t r, uint32_t p) {
    return r * WIDE_LINE + (p ^ (r & 7)) * 16;
}

// What asynchronous copies have brought to shared memory is for wgmma to read from here on.
DEVICE_FN void wide_fence() {
#if WIDE_WGMMA
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}

DEVICE_FN void wide_begin() {
#if WIDE_WGMMA
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#endif
}

DEVICE_FN void wide_commit() {
#if WIDE_WGMMA
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
#endif
}

// All but the last LEFT commits are done.
template <int LEFT> DEVICE_FN void wide_wait() {
#if WIDE_WGMMA
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(LEFT) : "memory");
#endif
}

/* The lines of the rows, of which a stage has one piece of memory: by one bulk copy, which brings itself to a stage's barrier in shared
 * memory; by asynchronous copies before sm_90a. */
DEVICE_FN void wide_rows_init(uint32_t barriers, int stages) {
#if WIDE_WGMMA
    if (threadIdx.x == 0) {
        for (int i = 0; i < stages; i++)
            asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(barriers + 8 * i)
                         : "memory");
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    }
    __syncthreads();
#endif
}

DEVICE_FN void wide_rows_copy(uint32_t barrier, uint32_t to, const unsigned char *from,
                              uint32_t bytes) {
#if WIDE_WGMMA
    if (threadIdx.x == 0) {
        asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier),
                     "r"(bytes)
                     : "memory");
        asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], "
                     "[%1], %2, [%3];" ::"r"(to),
                     "l"(from), "r"(bytes), "r"(barrier)
                     : "memory");
    }
#else
    for (uint32_t i = threadIdx.x * 16; i < bytes; i += blockDim.x * 16)
        stream_16(to + i, from + i);
#endif
}

DEVICE_FN void wide_rows_wait(uint32_t barrier, uint32_t parity) {
#if WIDE_WGMMA
    asm volatile("{\n\t.reg .pred done;\n"
                 "AGAIN_%=:\n\t"
                 "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n\t"
                 "@!done bra AGAIN_%=;\n\t}" ::"r"(barrier),
                 "r"(parity)
                 : "memory");
#endif
}

#if WIDE_WGMMA
// A matrix of lines in shared memory: swizzle of 128 bytes, eight lines 1,024 bytes apart.
DEVICE_FN uint64_t wide_matrix(uint32_t shared) {
    return (uint64_t)1 << 62 | (uint64_t)(1024 >> 4) << 32 | (uint64_t)1 << 16 |
           (shared & 0x3ffff) >> 4;
}

#define WIDE_0_7 "%0,%1,%2,%3,%4,%5,%6,%7"
#define WIDE_0_15 WIDE_0_7 ",%8,%9,%10,%11,%12,%13,%14,%15"
#define WIDE_0_31 WIDE_0_15 ",%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"
#define WIDE_0_63                                                                                  \
    WIDE_0_31 ",%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,"                  \
              "%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63"
#define WIDE_0_95                                                                                  \
    WIDE_0_63 ",%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79,"                  \
              "%80,%81,%82,%83,%84,%85,%86,%87,%88,%89,%90,%91,%92,%93,%94,%95"
#define WIDE_4(i) "+f"(sum[i][0]), "+f"(sum[i][1]), "+f"(sum[i][2]), "+f"(sum[i][3])
#define WIDE_8(i) WIDE_4(i), WIDE_4(i + 1)
#define WIDE_16(i) WIDE_8(i), WIDE_8(i + 2)
#define WIDE_32(i) WIDE_16(i), WIDE_16(i + 4)
#define WIDE_64(i) WIDE_32(i), WIDE_32(i + 8)
#define WIDE_STEP(n, type, sums, a, b, p, ...)                                                     \
    asm volatile("{\n\t.reg .pred add;\n\tsetp.ne.b32 add, %" p ", 0;\n\t"                         \
                 "wgmma.mma_async.sync.aligned.m64n" n "k16.f32." type "." type " {" sums "}, %" a \
                 ", %" b ", add, 1, 1, 0, 0;\n\t}"                                                 \
                 : __VA_ARGS__                                                                     \
                 : "l"(wide_matrix(a_lines)), "l"(wide_matrix(b_lines)), "r"((uint32_t)add))
#define WIDE_STEPS(type)                                                                           \
    if (N == 16) WIDE_STEP("16", type, WIDE_0_7, "8", "9", "10", WIDE_8(0));                       \
    if (N == 32) WIDE_STEP("32", type, WIDE_0_15, "16", "17", "18", WIDE_16(0));                   \
    if (N == 64) WIDE_STEP("64", type, WIDE_0_31, "32", "33", "34", WIDE_32(0));                   \
    if (N == 128) WIDE_STEP("128", type, WIDE_0_63, "64", "65", "66", WIDE_64(0));                 \
    if (N == 192) WIDE_STEP("192", type, WIDE_0_95, "96", "97", "98", WIDE_64(0), WIDE_32(16));
#endif

/* sum += the product of 16 inputs, or = it without `add`; with wgmma it is done when wide_wait says so. a_lines: of the group's 64
 * outputs, b_lines: of N rows, both from the step's first inputs on, in lines that start at multiples of 1,024 bytes. */
template <enum dtype D, int N>
DEVICE_FN void wide_step(float (*sum)[4], uint32_t a_lines, uint32_t b_lines, bool add) {
#if WIDE_WGMMA
    if (D == DTYPE_BF16) {
        WIDE_STEPS("bf16")
    } else {
        WIDE_STEPS("f16")
    }
#else
    uint32_t lane = threadIdx.x % WARP, step = a_lines % WIDE_LINE / 16, a[4];
    a_lines -= step * 16;
    b_lines -= step * 16;
    stream_ldmatrix(a, a_lines +
                           wide_piece(threadIdx.x % WIDE_GROUP / WARP * LINEAR_TILE + (lane & 15),
                                      step + lane / 16));
#pragma unroll
    for (int i = 0; i < N / 8; i += 2) {
        uint32_t b[4];
        stream_ldmatrix(b, b_lines +
                               wide_piece(i * 8 + (lane & 7) + lane / 16 * 8, step + lane / 8 % 2));
#pragma unroll
        for (int j = 0; j < 8; j++)
            if (!add) sum[i + j / 4][j % 4] = 0;
        device_mma<D>(sum[i], a, b);
        device_mma<D>(sum[i + 1], a, b + 2);
    }
#endif
}
