/* exl3_int_many: what the kernels of EXL3 parts by integers for many rows share: a lane's symbols to b' in fp16, the rows' way out. */
#pragma once
#include "kernels/linear/exl3.cuh"
#include "kernels/linear/exl3_int.h"
#include "kernels/linear/exl3_int_many.h"

enum { MANY_FLAT_SUM = 57500 }; // 510 * 57500 < 2^25 - 2^22 - 16: exl3_int_many.cu

// wgmma is of this architecture's own code alone.
#if defined(__CUDA_ARCH_FEAT_SM90_ALL) || !defined(__CUDA_ARCH__)
#define MANY_HOPPER 1
#else
#define MANY_HOPPER 0
#endif

DEVICE_FN uint32_t many_shared(const void *p) {
    return (uint32_t)__cvta_generic_to_shared(p);
}

DEVICE_FN uint32_t many_f16(int32_t a, int32_t b) { // exact: |q| <= 2047
    uint32_t r;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(r) : "f"((float)b), "f"((float)a));
    return r;
}

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

/* One unit, all rows, in pieces of sixteen inputs or whole: 32 outputs of a warp, of which even and odd ones are a factor each.
 * acc[odd][8 rows]. */
template <int ROWS, int BITS2, bool PIECE>
DEVICE_FN void many_unit(const uint32_t *w, uint32_t half_bits, const char *q,
                         float acc[2][ROWS / 8][4], int32_t total[2][ROWS / 8][4]) {
    uint32_t g = threadIdx.x % WARP / 4, c = threadIdx.x % 4;
    q += g * 128 + 4 * c;
#pragma unroll
    for (int odd = 0; odd < 2; odd++)
#pragma unroll
        for (int n = 0; n < ROWS / 8; n++)
#pragma unroll
            for (int i = 0; i < 4; i++) acc[odd][n][i] = 0;
#pragma unroll
    for (uint32_t s = 0; s < 4; s++) {
        uint32_t f[2][4];
        many_factors<BITS2>(w, half_bits, s, f[0]);
        many_factors<BITS2>(w, half_bits, 4 + s, f[1]);
#pragma unroll
        for (int n = 0; n < ROWS / 8; n++) {
            const uint32_t two[2] = {
                *reinterpret_cast<const uint32_t *>(q + n * 1024 + ((2 * s) ^ g) * 16),
                *reinterpret_cast<const uint32_t *>(q + n * 1024 + ((2 * s + 1) ^ g) * 16)};
#pragma unroll
            for (int odd = 0; odd < 2; odd++) {
                device_mma<DTYPE_F16>(acc[odd][n], f[odd], two);
                if (PIECE)
#pragma unroll
                    for (int i = 0; i < 4; i++) {
                        total[odd][n][i] += __float2int_rn(acc[odd][n][i]);
                        acc[odd][n][i] = 0;
                    }
            }
        }
    }
}

#if MANY_HOPPER
#define MANY_D8(i_)                                                                                \
    "+f"(d[i_]), "+f"(d[i_ + 1]), "+f"(d[i_ + 2]), "+f"(d[i_ + 3]), "+f"(d[i_ + 4]),               \
        "+f"(d[i_ + 5]), "+f"(d[i_ + 6]), "+f"(d[i_ + 7])

// d = A B, or more of it: 64 outputs of four warps, ROWS rows, sixteen inputs.
template <int ROWS, int MORE> DEVICE_FN void many_wgmma(float *d, const uint32_t a[4], uint64_t b) {
    if constexpr (ROWS == 16)
        asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %13, 0;\n"
                     "wgmma.mma_async.sync.aligned.m64n16k16.f32.f16.f16 "
                     "{%0,%1,%2,%3,%4,%5,%6,%7}, {%8,%9,%10,%11}, %12, p, 1, 1, 0;\n}"
                     : MANY_D8(0)
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "n"(MORE));
    else if constexpr (ROWS == 32)
        asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %21, 0;\n"
                     "wgmma.mma_async.sync.aligned.m64n32k16.f32.f16.f16 {%0,%1,%2,%3,%4,%5,%6,%7,"
                     "%8,%9,%10,%11,%12,%13,%14,%15}, {%16,%17,%18,%19}, %20, p, 1, 1, 0;\n}"
                     : MANY_D8(0), MANY_D8(8)
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "n"(MORE));
    else
        asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %37, 0;\n"
                     "wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 {%0,%1,%2,%3,%4,%5,%6,%7,"
                     "%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,"
                     "%27,%28,%29,%30,%31}, {%32,%33,%34,%35}, %36, p, 1, 1, 0;\n}"
                     : MANY_D8(0), MANY_D8(8), MANY_D8(16), MANY_D8(24)
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "n"(MORE));
}

template <int ROWS> DEVICE_FN void many_hold(float *d) { // nothing that uses d moves across
#pragma unroll
    for (int i = 0; i < ROWS / 2; i++) asm volatile("" : "+f"(d[i])::"memory");
}

// A unit's products of even or odd outputs, begun.
template <int ROWS, int BITS2>
DEVICE_FN void many_begin(const uint32_t *w, uint32_t half_bits, uint32_t odd, uint64_t q,
                          float *d) {
    uint32_t f[4][4];
#pragma unroll
    for (uint32_t s = 0; s < 4; s++) many_factors<BITS2>(w, half_bits, odd * 4 + s, f[s]);
    many_hold<ROWS>(d);
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
    many_wgmma<ROWS, 0>(d, f[0], q);
#pragma unroll
    for (uint32_t s = 1; s < 4; s++) many_wgmma<ROWS, 1>(d, f[s], q + 2 * s);
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
#endif

// Within +-2^22, d + 1.5 * 2^23 has the integer in its low bits. Bits of ret above 22: it is not within.
template <int ROWS> DEVICE_FN uint32_t many_move(float *d) {
    uint32_t wrong[4] = {0, 0, 0, 0};
#pragma unroll
    for (int i = 0; i < ROWS / 2; i++) {
        d[i] = d[i] + 12582912.0f;
        wrong[i % 4] |= arith_bits(d[i]) ^ 0x4b000000u;
    }
    return wrong[0] | wrong[1] | wrong[2] | wrong[3];
}

// A unit's sums to total. flat: of one of a warp's lanes, that it must go in pieces.
template <int ROWS, int BITS2>
DEVICE_FN void many_step(const uint32_t *w, uint32_t half_bits, const char *q, bool flat,
                         int32_t total[2][ROWS / 8][4]) {
    float acc[2][ROWS / 8][4];
    uint32_t wrong = flat ? 1u << 31 : 0;
#if MANY_HOPPER
    // The rows of a unit: 128 bytes each, pieces swapped by the row.
    uint64_t b = (uint64_t)(many_shared(q) >> 4) | (uint64_t)1 << 16 | (uint64_t)64 << 32 |
                 (uint64_t)1 << 62;
    many_begin<ROWS, BITS2>(w, half_bits, 0, b, acc[0][0]);
    many_begin<ROWS, BITS2>(w, half_bits, 1, b, acc[1][0]);
    asm volatile("wgmma.wait_group.sync.aligned 1;" ::: "memory");
    many_hold<ROWS>(acc[0][0]);
    wrong |= many_move<ROWS>(acc[0][0]);
    asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
    many_hold<ROWS>(acc[1][0]);
#else
    many_unit<ROWS, BITS2, false>(w, half_bits, q, acc, total);
    wrong |= many_move<ROWS>(acc[0][0]);
#endif
    wrong |= many_move<ROWS>(acc[1][0]);
    if (!__any_sync(0xffffffffu, wrong >> 23)) {
#pragma unroll
        for (int odd = 0; odd < 2; odd++)
#pragma unroll
            for (int n = 0; n < ROWS / 8; n++)
#pragma unroll
                for (int i = 0; i < 4; i++)
                    total[odd][n][i] += (int32_t)(arith_bits(acc[odd][n][i]) - 0x4b400000u);
        return;
    }
    many_unit<ROWS, BITS2, true>(w, half_bits, q, acc, total);
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
