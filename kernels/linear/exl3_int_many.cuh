/* exl3_int_many: what the kernels of EXL3 parts by integers for many rows share: a lane's symbols to b' in fp16, the rows' way out. */
#pragma once
#include "kernels/linear/exl3.cuh"
#include "kernels/linear/exl3_int.h"
#include "kernels/linear/exl3_int_many.h"

// wgmma is of this architecture's own code alone.
#if defined(__CUDA_ARCH_FEAT_SM90_ALL) || !defined(__CUDA_ARCH__)
#define MANY_HOPPER 1
#else
#define MANY_HOPPER 0
#endif

// The 16 bits (at least; more lie above them) of a lane's words that end at bit `end`; w[0] is the word before the lane's first.
DEVICE_FN uint32_t many_window(const uint32_t *w, uint32_t end) {
    uint32_t last = (end - 1) / 32, shift = 32 * (last + 1) - end;
    return shift > 16 ? __funnelshift_r(w[last + 1], w[last], shift) : w[last + 1] >> shift;
}

DEVICE_FN uint32_t many_sum(uint32_t x) { // 1024 + b as fp16
    return __dp4a(x, 0x01010101u, 0x6400u);
}

DEVICE_FN uint32_t many_pair(uint32_t first, uint32_t second) { // b' of both
    uint32_t v = __byte_perm(first, second, 0x5410), r;
    asm("sub.rn.f16x2 %0, %1, %2;" : "=r"(r) : "r"(v), "r"(0x65fe65feu)); // 1024 + 510
    return r;
}

/* Symbols 8 j .. 8 j + 7 of the lane's 64 as registers of a 16x16 factor: inputs 2 (j % 4) + {0, 1, 8, 9} of the tile, outputs
 * 2 h + j / 4 and 8 more. w: shared memory for BITS2 = 0. */
template <int BITS2>
DEVICE_FN void many_factors(const uint32_t *w, uint32_t half_bits, uint32_t j, uint32_t ret[4]) {
    uint32_t v[8];
    if (BITS2 == 8) {
#pragma unroll
        for (uint32_t i = 0; i < 4; i++) {
            uint32_t two = i == 3 ? w[j + 1] : __funnelshift_r(w[j + 1], w[j], 12 - 4 * i);
            v[i] = many_sum((two >> 16) * EXL3_INT_MULTIPLIER);
            v[i + 4] = many_sum((two & 0xffffu) * EXL3_INT_MULTIPLIER);
        }
    } else {
#pragma unroll
        for (uint32_t i = 0; i < 8; i++) {
            uint32_t end = (8 * j + i + 1) * (BITS2 ? BITS2 : half_bits) / 2;
            v[i] = many_sum((many_window(w, end) & 0xffffu) * EXL3_INT_MULTIPLIER);
        }
    }
    ret[0] = many_pair(v[0], v[1]);
    ret[1] = many_pair(v[4], v[5]);
    ret[2] = many_pair(v[2], v[3]);
    ret[3] = many_pair(v[6], v[7]);
}

// A lane's words, from an address that is a multiple of their size where that is one of 16 or 8.
template <int WORDS> DEVICE_FN void many_words(const uint32_t *t, uint32_t *w) {
    if (WORDS % 4 == 0) {
#pragma unroll
        for (int i = 0; i < WORDS; i += 4)
            *reinterpret_cast<uint4 *>(w + i) = *reinterpret_cast<const uint4 *>(t + i);
    } else if (WORDS % 2 == 0) {
#pragma unroll
        for (int i = 0; i < WORDS; i += 2)
            *reinterpret_cast<uint2 *>(w + i) = *reinterpret_cast<const uint2 *>(t + i);
    } else {
#pragma unroll
        for (int i = 0; i < WORDS; i++) w[i] = t[i];
    }
}

// Four neighbouring outputs of each lane of a warp, which have a rotation.
struct many_outputs {
    float factor[EXL3_LANE_CHANNELS], bias[EXL3_LANE_CHANNELS];
    bool biased, add;
};

DEVICE_FN struct many_outputs many_outputs_of(const struct linear_part &p, uint32_t n) {
    struct many_outputs r;
    r.biased = p.w.exl3.bias != 0;
    r.add = p.add;
#pragma unroll
    for (int j = 0; j < EXL3_LANE_CHANNELS; j++) {
        r.factor[j] = arith_from_f16(device_ptr<const uint16_t>(p.w.exl3.svh)[n + j]);
        r.bias[j] = r.biased ? device_ptr<const float>(p.w.exl3.bias)[n + j] : 0.0f;
    }
    return r;
}

// From a row's values before the rotation of the outputs to its answers.
DEVICE_FN void many_answer(const struct many_outputs &o, float v[EXL3_LANE_CHANNELS], float *y) {
    float4 *to = reinterpret_cast<float4 *>(y);
    exl3_rotate(v);
#pragma unroll
    for (int j = 0; j < EXL3_LANE_CHANNELS; j++) {
        v[j] = v[j] * o.factor[j];
        if (o.biased) v[j] = v[j] + o.bias[j];
    }
    if (o.add) {
        float4 old = *to;
        *to = make_float4(v[0] + old.x, v[1] + old.y, v[2] + old.z, v[3] + old.w);
    } else {
        *to = make_float4(v[0], v[1], v[2], v[3]);
    }
}

DEVICE_FN uint32_t many_shared(const void *p) {
    return (uint32_t)__cvta_generic_to_shared(p);
}

/* Barriers in shared memory, by its addresses: `count` arrivals and the bytes that were asked for make a phase. */
DEVICE_FN void many_barrier_init(uint32_t barrier, uint32_t count) {
    asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(barrier), "r"(count) : "memory");
}

DEVICE_FN void many_arrive(uint32_t barrier) {
    asm volatile("{\n.reg .b64 t;\nmbarrier.arrive.shared.b64 t, [%0];\n}" ::"r"(barrier)
                 : "memory");
}

DEVICE_FN void many_arrive_if(uint32_t barrier, bool on) { // without a branch
    asm volatile("{\n.reg .pred p;\n.reg .b64 t;\nsetp.ne.u32 p, %1, 0;\n"
                 "@p mbarrier.arrive.shared.b64 t, [%0];\n}" ::"r"(barrier),
                 "r"((uint32_t)on)
                 : "memory");
}

DEVICE_FN void many_await(uint32_t barrier, uint32_t parity) {
#if __CUDA_ARCH__ >= 900
#define MANY_TRY "try_wait"
#else
#define MANY_TRY "test_wait"
#endif
    asm volatile("{\n.reg .pred p;\n"
                 "again:\n"
                 "mbarrier." MANY_TRY ".parity.shared.b64 p, [%0], %1;\n"
                 "@p bra done;\n"
                 "bra again;\n"
                 "done:\n}" ::"r"(barrier),
                 "r"(parity)
                 : "memory");
}

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
// One arrival, and that many bytes to come.
DEVICE_FN void many_expect(uint32_t barrier, uint32_t bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
                 : "memory");
}

// Multiples of 16 bytes.
DEVICE_FN void many_copy(uint32_t to, const char *from, uint32_t bytes, uint32_t barrier) {
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, "
        "[%3];" ::"r"(to),
        "l"(from), "r"(bytes), "r"(barrier)
        : "memory");
}
#endif
