/* exl3_int_wide: EXL3 parts by integers (exl3_int.h) for prompts, on sm_90.
 *
 * exl3_int_expand_B writes b' of a part's weights (of a width; 0: any) as fp16, tiles as exl3_int_many.h has them, and a bound of its norms.
 * exl3_int_wide multiplies: a thread block takes tiles of 128 rows and 256 outputs, two warp groups having 64 rows each; a thread of the
 * third copies tiles, three units ahead. A warp group's sums are two halves of 128 outputs: while one half's products run, the
 * other's sums are moved on.
 * Exact   the fp32 sums are integers below 2^24. Moving on: t = d + 1.5 * 2^39 rounds d to a multiple of 2^16, whose count t has in
 *         its low bits; counts are kept modulo 2^16, two in a register, and d keeps the rest (at most 2^15). What comes between
 *         two moves is at most |q| |b'| of those inputs (Cauchy-Schwarz): 128 inputs, or 64, where that bound allows it for
 *         all rows and outputs of the tile; else 16, which always hold: 16 * 510 * 2047 + 2^15 < 2^24.
 * Equals  exl3_int_ref.c, bit for bit.
 * Cost    2 T N K flop, and writing and reading N K halves once for each call. */
#include "kernels/linear/exl3_int_many.cuh"

enum {
    TILE_BYTES = 128 * 128, // 128 rows or outputs of a unit
    HALF_BYTES = TILE_BYTES / 2,
    WIDE_STAGE = 3 * TILE_BYTES, // rows, then outputs
    EXPAND_THREADS = 256,
    WIDE_SHARERS = 6,
};

DEVICE_FN uint32_t wide_square(uint32_t sum, uint32_t pair) { // + (pair / 8)^2, in fp16
    uint32_t e, r;
    asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(e) : "r"(pair), "r"(0x30003000u));
    asm("fma.rn.f16x2 %0, %1, %1, %2;" : "=r"(r) : "r"(e), "r"(sum));
    return r;
}

DEVICE_FN float
wide_norm(uint32_t sum) { // of 16 inputs, from a lane; all four lanes of an output together
    float v = (arith_from_f16((uint16_t)sum) + arith_from_f16((uint16_t)(sum >> 16))) * 64.0f;
    v += __shfl_xor_sync(0xffffffffu, v, 1);
    v += __shfl_xor_sync(0xffffffffu, v, 2);
    return v;
}

// Grid: pairs of units, blocks of 128 outputs. A warp: 32 outputs of a unit. Also clears the rows' norms for the launch behind.
template <int BITS2> DEVICE_FN void wide_expand(const struct exl3_int_many_params &p) {
    extern __shared__ __align__(128) char tiles[];
    __shared__ float norms[2][EXL3_BLOCK], largest[EXL3_BLOCK / WARP][EXL3_INT_WIDE_NORMS];
    const struct weight &weight = p.a.parts[p.part].w;
    uint32_t half_bits = BITS2 ? BITS2 : p.half_bits, units = weight.cols / EXL3_INT_MANY_UNIT;
    uint32_t lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, h = lane / 4 % 4, c = lane % 4;
    uint32_t unit = blockIdx.x * 2 + warp / 4;
    const uint32_t *t = device_ptr<const uint32_t>(weight.data) +
                        ((uint64_t)(unit * 4 + c) * (weight.rows / 16) + (p.from + blockIdx.y) * 8 +
                         warp % 4 * 2 + lane / 16) *
                            (4 * half_bits);
    __align__(16) uint32_t w[(BITS2 ? BITS2 : 16) + 4];
    w[3] = h ? t[h * half_bits - 1] : t[4 * half_bits - 1];
    if (BITS2)
        many_words<BITS2>(t + h * half_bits, w + 4);
    else
        for (uint32_t i = 0; i < half_bits; i++) w[4 + i] = t[h * half_bits + i];
    char *tile = tiles + warp / 4 * TILE_BYTES;
#pragma unroll
    for (uint32_t odd = 0; odd < 2; odd++) {
        uint32_t n = warp % 4 * 32 + lane / 16 * 16 + 2 * h + odd, low = 0, high = 0;
#pragma unroll
        for (uint32_t half = 0; half < 2; half++) {
            uint32_t a[4], b[4];
            many_factors<BITS2>(w + 3, half_bits, odd * 4 + half * 2, a);
            many_factors<BITS2>(w + 3, half_bits, odd * 4 + half * 2 + 1, b);
            uint32_t at = n * 128 + ((2 * c + half) ^ (n & 7)) * 16;
            *reinterpret_cast<uint4 *>(tile + at) = make_uint4(a[0], a[2], b[0], b[2]);
            *reinterpret_cast<uint4 *>(tile + at + 8 * 128) = make_uint4(a[1], a[3], b[1], b[3]);
            low = wide_square(wide_square(wide_square(wide_square(low, a[0]), a[2]), b[0]), b[2]);
            high = wide_square(wide_square(wide_square(wide_square(high, a[1]), a[3]), b[1]), b[3]);
        }
        float low_norm = wide_norm(low), high_norm = wide_norm(high);
        if (c == 0) {
            norms[warp / 4][n] = low_norm;
            norms[warp / 4][n + 8] = high_norm;
        }
    }
    device_let_next();
    device_wait_prior();
#if MANY_HOPPER
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
    __syncthreads();
    char *to =
        device_ptr<char>(p.wide) + ((uint64_t)blockIdx.y * units + blockIdx.x * 2) * TILE_BYTES;
#if MANY_HOPPER
    if (threadIdx.x == 0) {
        asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to),
                     "r"(many_shared(tiles)), "r"(2 * TILE_BYTES)
                     : "memory");
        asm volatile("cp.async.bulk.commit_group;" ::: "memory");
        asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
    }
#else
    for (uint32_t i = threadIdx.x; i < 2 * TILE_BYTES / 16; i += EXPAND_THREADS)
        reinterpret_cast<uint4 *>(to)[i] = reinterpret_cast<const uint4 *>(tiles)[i];
#endif
    uint32_t nth = blockIdx.y * gridDim.x + blockIdx.x;
    for (uint32_t i = nth * EXPAND_THREADS + threadIdx.x; i < p.clear;
         i += gridDim.x * gridDim.y * EXPAND_THREADS)
        device_ptr<uint32_t>(p.q_norms)[i] = 0;
    if (threadIdx.x < EXL3_BLOCK) {
        float first = norms[0][threadIdx.x], second = norms[1][threadIdx.x];
        float both = device_warp_max(first + second);
        first = device_warp_max(first);
        second = device_warp_max(second);
        if (lane == 0) {
            largest[warp][0] = first;
            largest[warp][1] = both;
            largest[warp][2] = second;
        }
    }
    __syncthreads();
    if (threadIdx.x < EXL3_INT_WIDE_NORMS) {
        float v = largest[0][threadIdx.x];
        for (uint32_t i = 1; i < EXL3_BLOCK / WARP; i++) v = fmaxf(v, largest[i][threadIdx.x]);
        device_ptr<float>(p.w_norms)[(uint64_t)nth * EXL3_INT_WIDE_NORMS + threadIdx.x] = v;
    }
}

#define EXPAND_KERNEL(bits2_)                                                                      \
    extern "C" __global__ void __launch_bounds__(EXPAND_THREADS)                                   \
        exl3_int_expand_##bits2_(const struct exl3_int_many_params p) {                            \
        wide_expand<bits2_>(p);                                                                    \
    }
EXPAND_KERNEL(0)
EXPAND_KERNEL(6)
EXPAND_KERNEL(7)
EXPAND_KERNEL(8)
EXPAND_KERNEL(10)
EXPAND_KERNEL(12)

#define WIDE_D8(i_)                                                                                \
    "+f"(d[i_]), "+f"(d[i_ + 1]), "+f"(d[i_ + 2]), "+f"(d[i_ + 3]), "+f"(d[i_ + 4]),               \
        "+f"(d[i_ + 5]), "+f"(d[i_ + 6]), "+f"(d[i_ + 7])
#define WIDE_D64                                                                                   \
    WIDE_D8(0), WIDE_D8(8), WIDE_D8(16), WIDE_D8(24), WIDE_D8(32), WIDE_D8(40), WIDE_D8(48),       \
        WIDE_D8(56)

DEVICE_FN void wide_hold(float d[64]) { // nothing that uses d moves across
    asm volatile("" : WIDE_D64::"memory");
}

// Multiples of 2^16 from d to the counts.
DEVICE_FN void wide_move(float d[64], uint32_t count[32]) {
    const float big = 0x1.8p39f;
    wide_hold(d);
#pragma unroll
    for (int i = 0; i < 32; i++) {
        float t = d[2 * i] + big, u = d[2 * i + 1] + big;
        d[2 * i] = d[2 * i] - (t - big);
        d[2 * i + 1] = d[2 * i + 1] - (u - big);
        count[i] = __vadd2(count[i], __byte_perm(arith_bits(t), arith_bits(u), 0x5410));
    }
}

// The sums as integers, whose bits stand for floats'.
DEVICE_FN void wide_sums(float d[64], const uint32_t count[32]) {
    wide_hold(d);
#pragma unroll
    for (int i = 0; i < 64; i++) {
        uint32_t high = i % 2 ? count[i / 2] & 0xffff0000u : count[i / 2] << 16;
        d[i] = arith_float((uint32_t)__float2int_rn(d[i]) + high);
    }
}

// 128 outputs of the warp's sixteen rows: sums to answers. A thread has outputs 8 j + 2 c + {0, 1} of rows g and g + 8.
DEVICE_FN void wide_finish(const struct exl3_int_many_params &p, float d[64], uint32_t row,
                           uint32_t block) {
    const struct linear_part &part = p.a.parts[p.part];
    uint32_t c = threadIdx.x % 4;
    const struct exl3_int_many_info *info = device_ptr<const struct exl3_int_many_info>(p.info) +
                                            (uint64_t)p.part * p.rows_padded + row;
    struct exl3_int_many_info two[2] = {info[0], info[8]};
#pragma unroll
    for (int i = 0; i < 64; i++)
        d[i] =
            exl3_int_answer((int32_t)arith_bits(d[i]), two[i / 2 % 2].q_sum, two[i / 2 % 2].scale);
#pragma unroll
    for (int i = 0; i < 64; i += 2) {
        float a = d[i], b = d[i + 1];
        d[i] = a + b;
        d[i + 1] = a - b;
    }
#pragma unroll
    for (uint32_t lanes = 1; lanes < 4; lanes *= 2)
#pragma unroll
        for (int i = 0; i < 64; i++) {
            float other = __shfl_xor_sync(0xffffffffu, d[i], lanes);
            d[i] = threadIdx.x & lanes ? other - d[i] : d[i] + other;
        }
#pragma unroll
    for (int far = 4; far < 64; far *= 2)
#pragma unroll
        for (int i = 0; i < 64; i++)
            if (!(i & far)) {
                float a = d[i], b = d[i + far];
                d[i] = a + b;
                d[i + far] = a - b;
            }
    // What all rows share is read before anything is written, and old answers by fours: each wait once.
    uint32_t n = block * EXL3_BLOCK + 2 * c;
    uint32_t svh[16];
#pragma unroll
    for (int j = 0; j < 16; j++)
        svh[j] = device_ptr<const uint32_t>(part.w.exl3.svh)[n / 2 + 4 * j];
    float *y = device_ptr<float>(part.y) + (uint64_t)row * part.w.rows + n;
    uint64_t below = (uint64_t)8 * part.w.rows;
    bool have[2] = {row < p.a.rows, row + 8 < p.a.rows};
#pragma unroll
    for (int j = 0; j < 64; j++) {
        uint16_t factor = (uint16_t)(svh[j / 4] >> (j % 2 * 16));
        d[j] = d[j] * 0.088388347648f;
        d[j] = d[j] * arith_from_f16(factor);
    }
    if (part.w.exl3.bias) {
        const float2 *bias = device_ptr<const float2>(part.w.exl3.bias) + n / 2;
#pragma unroll
        for (int j = 0; j < 16; j++) {
            float2 b = bias[4 * j];
            d[4 * j] = d[4 * j] + b.x;
            d[4 * j + 1] = d[4 * j + 1] + b.y;
            d[4 * j + 2] = d[4 * j + 2] + b.x;
            d[4 * j + 3] = d[4 * j + 3] + b.y;
        }
    }
#pragma unroll
    for (int first = 0; first < 16; first += 4) {
        if (part.add) {
            float2 old[8];
#pragma unroll
            for (int j = 0; j < 8; j++) {
                old[j] = make_float2(0, 0);
                if (have[j % 2])
                    old[j] =
                        *reinterpret_cast<const float2 *>(y + 8 * (first + j / 2) + j % 2 * below);
            }
#pragma unroll
            for (int j = 0; j < 8; j++) {
                int at = 4 * (first + j / 2) + 2 * (j % 2);
                d[at] = d[at] + old[j].x;
                d[at + 1] = d[at + 1] + old[j].y;
            }
        }
#pragma unroll
        for (int j = 0; j < 8; j++) {
            int at = 4 * (first + j / 2) + 2 * (j % 2);
            if (have[j % 2])
                *reinterpret_cast<float2 *>(y + 8 * (first + j / 2) + j % 2 * below) =
                    make_float2(d[at], d[at + 1]);
        }
    }
}

#if MANY_HOPPER
DEVICE_FN uint64_t wide_factor(uint32_t shared) { // rows of 128 bytes, pieces swapped by the row
    return (uint64_t)(shared >> 4) | (uint64_t)1 << 16 | (uint64_t)64 << 32 | (uint64_t)1 << 62;
}

// d += A B: 64 rows, 128 outputs, sixteen inputs.
DEVICE_FN void wide_mma(float d[64], uint64_t a, uint64_t b) {
    asm volatile(
        "wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 {"
        "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,"
        "%24,%25,%26,%27,%28,%29,%30,%31,%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,"
        "%46,%47,%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63}, "
        "%64, %65, 1, 1, 1, 0, 0;"
        : WIDE_D64
        : "l"(a), "l"(b));
}

DEVICE_FN void wide_fence() {
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

DEVICE_FN void wide_commit() {
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

template <int LEFT> DEVICE_FN void wide_wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(LEFT) : "memory");
}

// A unit of one half.
DEVICE_FN void wide_unit(float d[64], uint32_t rows, uint32_t outputs) {
    uint64_t a = wide_factor(rows), b = wide_factor(outputs);
    wide_fence();
#pragma unroll
    for (int k = 0; k < 4; k++) wide_mma(d, a + 2 * k, b + 2 * k);
    wide_commit();
}

struct wide_state {
    uint32_t full, empty, stages; // shared addresses
    uint32_t at;                  // units taken so far
    bool leader;                  // lane 0
};

DEVICE_FN uint32_t wide_take(const struct wide_state &s, uint32_t at) {
    many_await(s.full + at % EXL3_INT_WIDE_STAGES * 8, at / EXL3_INT_WIDE_STAGES & 1);
    return s.stages + at % EXL3_INT_WIDE_STAGES * WIDE_STAGE;
}

DEVICE_FN void wide_give(const struct wide_state &s, uint32_t at) {
    many_arrive_if(s.empty + at % EXL3_INT_WIDE_STAGES * 8, s.leader);
}

/* UNITS units, both halves; sums moved on after every EVERY of them, while the other half's products run. No product is under way
 * at the end: the compiler would wait for each, did one go on into the next turn of a loop. */
template <int UNITS, int EVERY>
DEVICE_FN void wide_turn(struct wide_state &s, uint32_t group, float d0[64], float d1[64],
                         uint32_t c0[32], uint32_t c1[32]) {
    uint32_t at = wide_take(s, s.at);
    wide_unit(d0, at + group * HALF_BYTES, at + TILE_BYTES);
#pragma unroll
    for (int u = 0; u < UNITS; u++) {
        bool move = (u + 1) % EVERY == 0;
        wide_unit(d1, at + group * HALF_BYTES, at + 2 * TILE_BYTES);
        if (move) {
            wide_wait<1>();
            wide_move(d0, c0);
        }
        if (u + 1 < UNITS) {
            at = wide_take(s, s.at + u + 1);
            wide_unit(d0, at + group * HALF_BYTES, at + TILE_BYTES);
            wide_wait<1>();
        } else {
            wide_wait<0>();
        }
        wide_give(s, s.at + u);
        if (move) wide_move(d1, c1);
    }
    s.at += UNITS;
}

// The same, moved on every sixteen inputs.
DEVICE_FN void wide_slow(struct wide_state &s, uint32_t units, uint32_t group, float d0[64],
                         float d1[64], uint32_t c0[32], uint32_t c1[32]) {
    for (uint32_t u = 0; u < units; u++) {
        uint32_t at = wide_take(s, s.at);
        uint64_t a = wide_factor(at + group * HALF_BYTES);
        uint64_t b0 = wide_factor(at + TILE_BYTES), b1 = wide_factor(at + 2 * TILE_BYTES);
        for (uint32_t k = 0; k < 4; k++) {
            wide_fence();
            wide_mma(d0, a + 2 * k, b0 + 2 * k);
            wide_mma(d1, a + 2 * k, b1 + 2 * k);
            wide_commit();
            wide_wait<0>();
            wide_move(d0, c0);
            wide_move(d1, c1);
        }
        wide_give(s, s.at++);
    }
}

/* Work of a thread block: pairs of units from .. to of a tile. Whole tiles as long as all blocks have one; the rest in equal runs, of
 * two pairs if tiles are made of such, by as many blocks that no tile has more than WIDE_SHARERS and some. */
struct wide_job {
    uint32_t tile, from, to;
    uint32_t first, last; // of a tile of the rest: the blocks that share it
};

DEVICE_FN uint32_t wide_pairs(const struct exl3_int_many_params &p) { // of a tile
    return p.a.parts[p.part].w.cols / EXL3_INT_MANY_UNIT / 2;
}

// Where the rest's run of a block begins, in pairs.
DEVICE_FN uint32_t wide_from(uint32_t rest, uint32_t pairs, uint32_t block) {
    uint32_t step = pairs % 2 ? 1 : 2,
             blocks = min(gridDim.x, rest * min(pairs / step, (uint32_t)WIDE_SHARERS));
    return (uint32_t)((uint64_t)rest * (pairs / step) * min(block, blocks) / max(blocks, 1u)) *
           step;
}

// The nth job of this thread block; false: there is none.
DEVICE_FN bool wide_job_of(const struct exl3_int_many_params &p, uint32_t nth,
                           struct wide_job *ret) {
    uint32_t pairs = wide_pairs(p), tiles = (p.count + 1) / 2 * (p.rows_padded / EXL3_INT_WIDE_M);
    uint32_t each = tiles / gridDim.x, rest = tiles - each * gridDim.x;
    if (nth < each) {
        *ret = (struct wide_job){nth * gridDim.x + blockIdx.x, 0, pairs, 0, 0};
        return true;
    }
    uint32_t from = wide_from(rest, pairs, blockIdx.x);
    uint32_t to = wide_from(rest, pairs, blockIdx.x + 1), tile = from / pairs + nth - each;
    if (nth > each) from = tile * pairs;
    if (from >= to) return false;
    uint32_t first = blockIdx.x, last = blockIdx.x, end = (tile + 1) * pairs;
    while (wide_from(rest, pairs, first) > tile * pairs) first--;
    while (wide_from(rest, pairs, last + 1) < end) last++;
    *ret = (struct wide_job){each * gridDim.x + tile, from - tile * pairs,
                             min(to, end) - tile * pairs, first, last};
    return true;
}

// The tiles' copies, three units ahead.
DEVICE_FN void wide_produce(const struct exl3_int_many_params &p, const struct wide_state &s) {
    struct wide_job job;
    uint32_t units = 2 * wide_pairs(p), tiles_m = p.rows_padded / EXL3_INT_WIDE_M, at = 0;
    const char *q = device_ptr<const char>(p.q) + (uint64_t)p.part * units * p.rows_padded * 128;
    for (uint32_t nth = 0; wide_job_of(p, nth, &job); nth++) {
        uint32_t m = job.tile % tiles_m, n = job.tile / tiles_m * 2;
        bool both = n + 1 < p.count;
        const char *w = device_ptr<const char>(p.wide) + (uint64_t)n * units * TILE_BYTES;
        for (uint32_t u = job.from * 2; u < job.to * 2; u++, at++) {
            uint32_t slot = at % EXL3_INT_WIDE_STAGES, full = s.full + slot * 8;
            uint32_t to = s.stages + slot * WIDE_STAGE;
            many_await(s.empty + slot * 8, (at / EXL3_INT_WIDE_STAGES & 1) ^ 1);
            many_expect(full, (both ? 3 : 2) * TILE_BYTES);
            many_copy(to, q + ((uint64_t)u * p.rows_padded + m * EXL3_INT_WIDE_M) * 128, TILE_BYTES,
                      full);
            many_copy(to + TILE_BYTES, w + (uint64_t)u * TILE_BYTES, TILE_BYTES, full);
            if (both)
                many_copy(to + 2 * TILE_BYTES, w + (uint64_t)(units + u) * TILE_BYTES, TILE_BYTES,
                          full);
        }
    }
}

DEVICE_FN void wide_group_sync(uint32_t group) { // of a warp group
    asm volatile("bar.sync %0, 128;" ::"r"(group + 1) : "memory");
}

/* A part of a tile's inputs: the sums go to the block's slot, the second one where it has begun with another tile. Who is the last
 * takes the others' too. d: integers, as bits. */
DEVICE_FN bool wide_share(const struct exl3_int_many_params &p, const struct wide_job &job,
                          uint32_t group, float d0[64], float d1[64]) {
    __shared__ uint32_t last[2];
    uint32_t mine = job.to - job.from, thread = threadIdx.x;
    int32_t *sums = device_ptr<int32_t>(p.sums) + thread;
    // Of a block: 0 if its run begins in the tile or before it and it is not the first.
    uint32_t slot = 2 * blockIdx.x + (blockIdx.x == job.first ? 1 : 0);
    uint32_t *counter = device_ptr<uint32_t>(p.counters) + 2 * job.first + group;
#pragma unroll
    for (int i = 0; i < 64; i++) {
        sums[(slot * 128 + i) * 256] = (int32_t)arith_bits(d0[i]);
        sums[(slot * 128 + 64 + i) * 256] = (int32_t)arith_bits(d1[i]);
    }
    __threadfence();
    wide_group_sync(group);
    if (thread % 128 == 0) {
        last[group] = atomicAdd(counter, mine) + mine == wide_pairs(p);
        if (last[group]) *counter = 0;
    }
    wide_group_sync(group);
    // The same for all: no branch that might part them.
    if (!__any_sync(0xffffffffu, last[group])) return false;
    __threadfence();
    for (uint32_t b = job.first; b <= job.last; b++) {
        if (b == blockIdx.x) continue;
        slot = 2 * b + (b == job.first ? 1 : 0);
#pragma unroll
        for (int i = 0; i < 64; i++) {
            d0[i] =
                arith_float(arith_bits(d0[i]) + (uint32_t)__ldcg(sums + (slot * 128 + i) * 256));
            d1[i] = arith_float(arith_bits(d1[i]) +
                                (uint32_t)__ldcg(sums + (slot * 128 + 64 + i) * 256));
        }
    }
    return true;
}

// For each turn of four units of a job, how many inputs may go between two moves: 128, 64, or 16 (0). A thread looks at a turn.
DEVICE_FN void wide_plan(const struct exl3_int_many_params &p, const struct wide_job &job,
                         uint32_t group, uint8_t *reach) {
    const float limit = 2.7e14f; // (2^24 - 2^15)^2 is 2.8e14; the rest is for what was rounded
    uint32_t tiles_m = p.rows_padded / EXL3_INT_WIDE_M, n = job.tile / tiles_m * 2;
    uint32_t halves = p.rows_padded / EXL3_INT_WIDE_HALF,
             norms = wide_pairs(p) * EXL3_INT_WIDE_NORMS;
    const uint32_t *q = device_ptr<const uint32_t>(p.q_norms) + (uint64_t)p.part * norms * halves +
                        job.tile % tiles_m * 2 + group;
    const float *w = device_ptr<const float>(p.w_norms) + (uint64_t)n * norms;
    const float *w2 = n + 1 < p.count ? w + norms : w;
    for (uint32_t t = threadIdx.x % 128; t < (job.to - job.from) / 2; t += 128) {
        float most[EXL3_INT_WIDE_NORMS] = {0, 0, 0};
#pragma unroll
        for (uint32_t i = 0; i < 2 * EXL3_INT_WIDE_NORMS; i++) {
            uint32_t at = (job.from + 2 * t) * EXL3_INT_WIDE_NORMS + i;
            float bound = (float)q[at * halves] * fmaxf(w[at], w2[at]);
            most[i % EXL3_INT_WIDE_NORMS] = fmaxf(most[i % EXL3_INT_WIDE_NORMS], bound);
        }
        reach[t] = most[1] <= limit ? 128 : fmaxf(most[0], most[2]) <= limit ? 64 : 0;
    }
    wide_group_sync(group);
}

DEVICE_FN void wide_consume(const struct exl3_int_many_params &p, struct wide_state &s) {
    __shared__ uint8_t reach[2][EXL3_INT_WIDE_TURNS_MAX];
    uint32_t group = threadIdx.x / 128;
    struct wide_job job;
    for (uint32_t nth = 0; wide_job_of(p, nth, &job); nth++) {
        wide_plan(p, job, group, reach[group]);
        float d0[64], d1[64];
        uint32_t c0[32], c1[32];
#pragma unroll
        for (int i = 0; i < 64; i++) d0[i] = d1[i] = 0;
#pragma unroll
        for (int i = 0; i < 32; i++) c0[i] = c1[i] = 0;
        uint32_t turns = (job.to - job.from) / 2;
        uint32_t t = 0;
        while (t < turns) {
            for (; t < turns && !__any_sync(0xffffffffu, reach[group][t] != 128); t++)
                wide_turn<4, 2>(s, group, d0, d1, c0, c1);
            for (; t < turns && !__any_sync(0xffffffffu, reach[group][t] != 64); t++)
                wide_turn<4, 1>(s, group, d0, d1, c0, c1);
            for (; t < turns && !__any_sync(0xffffffffu, reach[group][t] != 0); t++)
                wide_slow(s, 4, group, d0, d1, c0, c1);
        }
        if ((job.to - job.from) % 2) wide_slow(s, 2, group, d0, d1, c0, c1);
        wide_sums(d0, c0);
        wide_sums(d1, c1);
        wide_group_sync(group); // reach has been read
        bool mine = job.to - job.from == wide_pairs(p) || wide_share(p, job, group, d0, d1);
        if (!mine) continue;
        uint32_t tiles_m = p.rows_padded / EXL3_INT_WIDE_M, n = job.tile / tiles_m * 2;
        uint32_t row =
            job.tile % tiles_m * EXL3_INT_WIDE_M + threadIdx.x / WARP * 16 + threadIdx.x % WARP / 4;
        wide_finish(p, d0, row, p.from + n);
        if (n + 1 < p.count) wide_finish(p, d1, row, p.from + n + 1);
    }
}

extern "C" __global__ void __launch_bounds__(EXL3_INT_WIDE_THREADS, 1)
    exl3_int_wide(const struct exl3_int_many_params p) {
    extern __shared__ __align__(1024) char wide_stages[];
    __shared__ uint64_t barriers[2 * EXL3_INT_WIDE_STAGES];
    struct wide_state s = {many_shared(barriers), many_shared(barriers + EXL3_INT_WIDE_STAGES),
                           (many_shared(wide_stages) + 1023) & ~1023u, 0, threadIdx.x % WARP == 0};
    if (threadIdx.x == 0) {
        for (uint32_t i = 0; i < EXL3_INT_WIDE_STAGES; i++) {
            many_barrier_init(s.full + i * 8, 1);
            many_barrier_init(s.empty + i * 8, 8);
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    device_let_next();
    device_wait_prior();
    __syncthreads();
    if (threadIdx.x >= 256) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 24;");
        if (threadIdx.x == 256) {
            asm volatile("fence.proxy.async.global;" ::: "memory");
            wide_produce(p, s);
        }
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 240;");
        wide_consume(p, s);
    }
}
#else

// The same without wgmma, for what the driver compiles for a card that would have had it: plans take it for no other. A warp has
// sixteen rows, sums are moved on every sixteen inputs.
DEVICE_FN void wide_unit(const char *rows, const char *outputs, float d[64], uint32_t count[32]) {
    uint32_t g = threadIdx.x % WARP / 4, c = threadIdx.x % 4;
    for (uint32_t k = 0; k < 4; k++) {
        uint32_t low = ((2 * k) ^ g) * 16 + 4 * c, high = ((2 * k + 1) ^ g) * 16 + 4 * c;
        const char *r = rows + g * 128, *o = outputs + g * 128;
        const uint32_t a[4] = {*reinterpret_cast<const uint32_t *>(r + low),
                               *reinterpret_cast<const uint32_t *>(r + 1024 + low),
                               *reinterpret_cast<const uint32_t *>(r + high),
                               *reinterpret_cast<const uint32_t *>(r + 1024 + high)};
#pragma unroll
        for (int n = 0; n < 16; n++) {
            const uint32_t b[2] = {*reinterpret_cast<const uint32_t *>(o + n * 1024 + low),
                                   *reinterpret_cast<const uint32_t *>(o + n * 1024 + high)};
            device_mma<DTYPE_F16>(d + 4 * n, a, b);
        }
        wide_move(d, count);
    }
}

extern "C" __global__ void __launch_bounds__(EXL3_INT_WIDE_THREADS, 1)
    exl3_int_wide(const struct exl3_int_many_params p) {
    uint32_t units = p.a.parts[p.part].w.cols / EXL3_INT_MANY_UNIT;
    uint32_t tiles_m = p.rows_padded / EXL3_INT_WIDE_M, warps = EXL3_INT_WIDE_M / 16;
    uint32_t warp = threadIdx.x / WARP;
    device_let_next();
    device_wait_prior();
    if (warp >= warps) return;
    const char *q = device_ptr<const char>(p.q) + (uint64_t)p.part * units * p.rows_padded * 128;
    for (uint32_t t = blockIdx.x; t < (p.count + 1) / 2 * tiles_m; t += gridDim.x)
        for (uint32_t n = t / tiles_m * 2; n < t / tiles_m * 2 + 2 && n < p.count; n++) {
            uint32_t row = t % tiles_m * EXL3_INT_WIDE_M + warp * 16;
            const char *w = device_ptr<const char>(p.wide) + (uint64_t)n * units * TILE_BYTES;
            float d[64];
            uint32_t count[32];
#pragma unroll
            for (int i = 0; i < 64; i++) d[i] = 0;
#pragma unroll
            for (int i = 0; i < 32; i++) count[i] = 0;
            for (uint32_t u = 0; u < units; u++)
                wide_unit(q + ((uint64_t)u * p.rows_padded + row) * 128,
                          w + (uint64_t)u * TILE_BYTES, d, count);
            wide_sums(d, count);
            wide_finish(p, d, row + threadIdx.x % WARP / 4, p.from + n);
        }
}
#endif
