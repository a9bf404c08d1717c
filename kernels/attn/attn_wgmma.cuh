/* attn_wgmma: the warpgroup products of attn_rows on sm_90a. */
#pragma once
#include "kernels/cuda/device.cuh"

DEVICE_FN void wgmma_begin() { // before products, after their registers were written
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

DEVICE_FN void wgmma_end() { // a group
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

template <int PENDING> DEVICE_FN void wgmma_wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
}

// Keeps the compiler from moving uses of registers across what stands before.
template <int N> DEVICE_FN void wgmma_hold(float (&r)[N]) {
#pragma unroll
    for (int i = 0; i < N; i++) asm volatile("" : "+f"(r[i])::"memory");
}

template <int N> DEVICE_FN void wgmma_hold(uint32_t (&r)[N]) {
#pragma unroll
    for (int i = 0; i < N; i++) asm volatile("" : "+r"(r[i])::"memory");
}

/* What a factor in shared memory is described by: lines of 128 bytes, swizzled, eight of them 1024 bytes; `lead`: bytes from
 * sixty-four columns to the next, where columns are neighbours. */
DEVICE_FN uint64_t wgmma_lines(uint32_t at, uint32_t lead) {
    return (uint64_t)(at >> 4) | (uint64_t)(lead >> 4) << 16 | (uint64_t)(1024 >> 4) << 32 |
           (uint64_t)1 << 62;
}

#define WGMMA_4(d, i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define WGMMA_16(d, i) WGMMA_4(d, i), WGMMA_4(d, i + 4), WGMMA_4(d, i + 8), WGMMA_4(d, i + 12)
#define WGMMA_REGS_32                                                                              \
    "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,"  \
    "%25,%26,%27,%28,%29,%30,%31}"
#define WGMMA_REGS_128                                                                             \
    "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,"  \
    "%25,%26,%27,%28,%29,%30,%31,%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47," \
    "%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63,%64,%65,%66,%67,%68,%69,%70," \
    "%71,%72,%73,%74,%75,%76,%77,%78,%79,%80,%81,%82,%83,%84,%85,%86,%87,%88,%89,%90,%91,%92,%93," \
    "%94,%95,%96,%97,%98,%99,%100,%101,%102,%103,%104,%105,%106,%107,%108,%109,%110,%111,%112,"    \
    "%113,%114,%115,%116,%117,%118,%119,%120,%121,%122,%123,%124,%125,%126,%127}"

// d [64, 64] = (more ? d : 0) + a [64, 16] b [64, 16]^T, both in shared memory, k neighbours.
#define WGMMA_SCORES(type)                                                                         \
    asm volatile("{\n\t.reg .pred p;\n\tsetp.ne.b32 p, %34, 0;\n\t"                                \
                 "wgmma.mma_async.sync.aligned.m64n64k16.f32." type "." type " " WGMMA_REGS_32     \
                 ", %32, %33, p, 1, 1, 0, 0;\n\t}"                                                 \
                 : WGMMA_16(d, 0), WGMMA_16(d, 16)                                                 \
                 : "l"(a), "l"(b), "r"(more))
template <enum dtype D>
DEVICE_FN void wgmma_scores(float (&d)[32], uint64_t a, uint64_t b, uint32_t more) {
    if (D == DTYPE_BF16)
        WGMMA_SCORES("bf16");
    else
        WGMMA_SCORES("f16");
}

// d [64, 256] += a [64, 16] b [16, 256], a in registers, b in shared memory, columns neighbours.
#define WGMMA_VALUES(type)                                                                         \
    asm volatile("{\n\t.reg .pred p;\n\tsetp.ne.b32 p, 1, 0;\n\t"                                  \
                 "wgmma.mma_async.sync.aligned.m64n256k16.f32." type "." type " " WGMMA_REGS_128   \
                 ", {%128,%129,%130,%131}, %132, p, 1, 1, 1;\n\t}"                                 \
                 : WGMMA_16(d, 0), WGMMA_16(d, 16), WGMMA_16(d, 32), WGMMA_16(d, 48),              \
                   WGMMA_16(d, 64), WGMMA_16(d, 80), WGMMA_16(d, 96), WGMMA_16(d, 112)             \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b))
template <enum dtype D>
DEVICE_FN void wgmma_values(float (&d)[128], const uint32_t *a, uint64_t b) {
    if (D == DTYPE_BF16)
        WGMMA_VALUES("bf16");
    else
        WGMMA_VALUES("f16");
}
