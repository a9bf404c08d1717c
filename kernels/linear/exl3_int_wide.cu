/* exl3_int_wide: EXL3 parts by integers (exl3_int.h) for prompts, on sm_90: exl3_wide.h, exl3_wide.cuh.
 *
 * exl3_int_expand_B writes b' of a part's weights (of a width; 0: any) as fp16, tiles as exl3_wide.h has them, and a bound of its norms.
 * exl3_int_wide multiplies. Beside the thread that copies, a warp looks ahead for each group: how far its sums may go.
 * Exact   the fp32 sums are integers below 2^24, from 0 again whenever they have been moved to integers modulo 2^32. What comes between two
 *         moves is at most |q| |b'| of those inputs (Cauchy-Schwarz): 128 inputs, or 64, where that bound allows it for all rows of
 *         the group and outputs of the block; else 16, which always hold: 16 * 510 * 2047 < 2^24.
 * Equals  exl3_int_ref.c, bit for bit.
 * Cost    2 T N K flop, and writing and reading N K halves once for each call. */
#include "kernels/linear/exl3_wide.cuh"

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
    char *tile = tiles + warp / 4 * WIDE_TILE;
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
        device_ptr<char>(p.wide) + ((uint64_t)blockIdx.y * units + blockIdx.x * 2) * WIDE_TILE;
#if MANY_HOPPER
    if (threadIdx.x == 0) {
        asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to),
                     "r"(many_shared(tiles)), "r"(2 * WIDE_TILE)
                     : "memory");
        asm volatile("cp.async.bulk.commit_group;" ::: "memory");
        asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
    }
#else
    for (uint32_t i = threadIdx.x; i < 2 * WIDE_TILE / 16; i += EXL3_WIDE_EXPAND_THREADS)
        reinterpret_cast<uint4 *>(to)[i] = reinterpret_cast<const uint4 *>(tiles)[i];
#endif
    uint32_t nth = blockIdx.y * gridDim.x + blockIdx.x;
    for (uint32_t i = nth * EXL3_WIDE_EXPAND_THREADS + threadIdx.x; i < p.clear;
         i += gridDim.x * gridDim.y * EXL3_WIDE_EXPAND_THREADS)
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
    extern "C" __global__ void __launch_bounds__(EXL3_WIDE_EXPAND_THREADS)                         \
        exl3_int_expand_##bits2_(const struct exl3_int_many_params p) {                            \
        wide_expand<bits2_>(p);                                                                    \
    }
EXPAND_KERNEL(0)
EXPAND_KERNEL(6)
EXPAND_KERNEL(7)
EXPAND_KERNEL(8)
EXPAND_KERNEL(10)
EXPAND_KERNEL(12)

// Sums of no inputs. Constants, which the tensor cores then do not read.
DEVICE_FN void int_zero(float d[64]) {
#pragma unroll
    for (int i = 0; i < 64; i++) d[i] = 0;
}

// To integers: a conversion and a sum, which is less work than to take multiples of some power of two off and keep the rest.
DEVICE_FN void int_move(const float d[64], uint32_t total[64]) {
#pragma unroll
    for (int i = 0; i < 64; i++) total[i] += (uint32_t)__float2int_rn(d[i]);
}

// Integers of the thread's rows, the first being `row`, to answers before the rotation.
DEVICE_FN void int_answers(const struct exl3_wide_params &p, uint32_t part,
                           const uint32_t total[64], uint32_t row, uint32_t padded, float ret[64]) {
    const struct exl3_int_many_info *info =
        device_ptr<const struct exl3_int_many_info>(p.info) + (uint64_t)part * padded + row;
    struct exl3_int_many_info two[2] = {info[0], info[8]};
#pragma unroll
    for (int i = 0; i < 64; i++)
        ret[i] = exl3_int_answer((int32_t)total[i], two[i / 2 % 2].q_sum, two[i / 2 % 2].scale);
}

#if MANY_HOPPER

// Inputs between two moves, of each pair of units.
enum int_reach { REACH_16, REACH_64, REACH_128 };

// A pair of units. No product is under way at the end.
DEVICE_FN void int_pair(struct wide_pipe &s, uint32_t group, uint32_t total[64]) {
    float d[64];
    int_zero(d);
    wide_turn(group);
    wide_unit(d, wide_take(s), group);
    wide_unit(d, wide_take(s), group);
    wide_turn_pass(group);
    wide_wait<1>();
    wide_give(s, 1);
    wide_wait<0>();
    wide_hold(d);
    wide_give(s, 0);
    int_move(d, total);
}

// The same, moved on every 64 inputs.
DEVICE_FN void int_units(struct wide_pipe &s, uint32_t group, uint32_t total[64]) {
    wide_turn(group);
    wide_turn_pass(group);
#pragma unroll 1
    for (uint32_t u = 0; u < 2; u++) {
        float d[64];
        int_zero(d);
        wide_unit(d, wide_take(s), group);
        wide_wait<0>();
        wide_hold(d);
        wide_give(s, 0);
        int_move(d, total);
    }
}

// The same, moved on every sixteen inputs.
DEVICE_FN void int_steps(struct wide_pipe &s, uint32_t group, uint32_t total[64]) {
    wide_turn(group);
    wide_turn_pass(group);
#pragma unroll 1
    for (uint32_t u = 0; u < 2; u++) {
        uint32_t at = wide_take(s);
#pragma unroll 1
        for (uint32_t k = 0; k < 4; k++) {
            float d[64];
            int_zero(d);
            wide_fence();
            wide_mma(d, wide_factor(at + group * WIDE_GROUP_BYTES) + 2 * k,
                     wide_factor(at + WIDE_ROWS_BYTES) + 2 * k);
            wide_commit();
            wide_wait<0>();
            wide_hold(d);
            int_move(d, total);
        }
        wide_give(s, 0);
    }
}

// For a group without rows.
DEVICE_FN void int_skip(struct wide_pipe &s, uint32_t pairs, uint32_t group) {
#pragma unroll 1
    for (uint32_t i = 0; i < pairs; i++) {
        wide_turn(group);
        wide_turn_pass(group);
        wide_skip(s, 2);
    }
}

// The first pair of units of a job, or the one behind its last.
DEVICE_FN uint32_t int_from(const struct exl3_wide_params &p, const struct wide_job &job,
                            uint32_t more) {
    return wide_share_from(p, job, wide_units(p) / 2, more);
}

// A warp looks ahead for each group.
struct int_plans {
    uint8_t reach[2][EXL3_WIDE_GROUPS][EXL3_WIDE_PAIRS_MAX];
    uint64_t full[2][EXL3_WIDE_GROUPS], empty[2][EXL3_WIDE_GROUPS];
};

// Of a pair of units: squares of the largest norms of the group's rows and the block's outputs.
struct int_norms {
    float rows[EXL3_INT_WIDE_NORMS], outputs[EXL3_INT_WIDE_NORMS];
};

DEVICE_FN struct int_norms int_norms_at(const uint32_t *q, uint32_t step, const float *w) {
    struct int_norms r;
#pragma unroll
    for (uint32_t i = 0; i < EXL3_INT_WIDE_NORMS; i++) {
        r.rows[i] = (float)q[i * step];
        r.outputs[i] = w[i];
    }
    return r;
}

DEVICE_FN enum int_reach int_reach_of(const struct int_norms &n) {
    const float limit = 2.79e14f; // (2^24)^2 is 2.81e14; norms are rounded, by 0.2% at most
    if (n.rows[1] * n.outputs[1] <= limit) return REACH_128;
    return fmaxf(n.rows[0] * n.outputs[0], n.rows[2] * n.outputs[2]) <= limit ? REACH_64 : REACH_16;
}

DEVICE_FN void int_look_ahead(const struct exl3_wide_params &p, struct int_plans *plans,
                              uint32_t rank, uint32_t group) {
    struct wide_job job;
    uint32_t norms = wide_units(p) / 2 * EXL3_INT_WIDE_NORMS, halves = p.stride / WIDE_GROUP_ROWS;
    for (uint32_t nth = 0; wide_job_at(p, nth, rank, &job); nth++) {
        uint32_t first = int_from(p, job, 0), pairs = int_from(p, job, 1) - first;
        const uint32_t *q =
            device_ptr<const uint32_t>(p.q_norms) +
            ((uint64_t)job.tile.part * norms + first * EXL3_INT_WIDE_NORMS) * halves +
            job.tile.row / WIDE_GROUP_ROWS + group;
        const float *w = device_ptr<const float>(p.w_norms) + (uint64_t)job.tile.nth * norms +
                         first * EXL3_INT_WIDE_NORMS;
        many_await(many_shared(&plans->empty[nth % 2][group]), (nth / 2 & 1) ^ 1);
        for (uint32_t i = threadIdx.x % WARP; i < pairs; i += WARP) {
            uint32_t at = i * EXL3_INT_WIDE_NORMS;
            plans->reach[nth % 2][group][i] =
                (uint8_t)int_reach_of(int_norms_at(q + at * halves, halves, w + at));
        }
        many_arrive(many_shared(&plans->full[nth % 2][group]));
    }
}

// Whether a pair has that reach: the same for all, so that no branch parts them.
DEVICE_FN bool int_is(const uint8_t *reach, uint32_t i, uint32_t pairs, enum int_reach r) {
    return i < pairs && !__any_sync(0xffffffffu, reach[i] != r);
}

// A group's products of a job.
DEVICE_FN void int_multiply(struct wide_pipe &s, const uint8_t *reach, uint32_t pairs,
                            uint32_t group, uint32_t total[64]) {
#pragma unroll
    for (int i = 0; i < 64; i++) total[i] = 0;
    for (uint32_t i = 0; i < pairs;) {
#pragma unroll 1
        for (; int_is(reach, i, pairs, REACH_128); i++) int_pair(s, group, total);
#pragma unroll 1
        for (; int_is(reach, i, pairs, REACH_64); i++) int_units(s, group, total);
#pragma unroll 1
        for (; int_is(reach, i, pairs, REACH_16); i++) int_steps(s, group, total);
    }
}

// A warp is done with a job's plan.
DEVICE_FN void int_looked(struct int_plans *plans, uint32_t nth, uint32_t group) {
    __syncwarp();
    many_arrive_if(many_shared(&plans->empty[nth % 2][group]), threadIdx.x % WARP == 0);
}

DEVICE_FN void int_consume(const struct exl3_wide_params &p, struct wide_pipe &s,
                           struct int_plans *plans) {
    uint32_t group = threadIdx.x / 128;
    struct wide_job job;
    if (group + 1 == EXL3_WIDE_GROUPS) wide_turn_pass(group);
    for (uint32_t nth = 0; wide_job_at(p, nth, wide_rank(), &job); nth++) {
        uint32_t pairs = int_from(p, job, 1) - int_from(p, job, 0);
        many_await(many_shared(&plans->full[nth % 2][group]), nth / 2 & 1);
        // The same for all: no branch that might part them.
        if (!__any_sync(0xffffffffu, job.tile.row + group * WIDE_GROUP_ROWS < p.a.rows)) {
            int_looked(plans, nth, group);
            int_skip(s, pairs, group);
            continue;
        }
        uint32_t total[64];
        int_multiply(s, plans->reach[nth % 2][group], pairs, group, total);
        int_looked(plans, nth, group);
        // Found again, not kept: registers are for the sums.
        asm volatile("" : "+r"(nth));
        uint32_t rank = wide_rank();
        wide_job_at(p, nth, rank, &job);
        if (job.shared) {
            uint32_t slot = job.rest * p.shares;
            wide_slot_put(wide_slot(p, slot + job.share, rank), total);
            if (!wide_gather(p, job, rank, group, 1, p.shares)) continue;
#pragma unroll 1
            for (uint32_t i = 0; i < p.shares; i++) {
                if (i == job.share) continue;
                const uint32_t *at = wide_slot(p, slot + i, rank);
#pragma unroll
                for (int j = 0; j < 64; j++) total[j] += __ldcg(at + j * EXL3_WIDE_GROUPS * 128);
            }
        }
        uint32_t row = job.tile.row + threadIdx.x / WARP * 16 + threadIdx.x % WARP / 4;
        if (!job.tile.real) continue;
        float d[64];
        int_answers(p, job.tile.part, total, row, p.stride, d);
        wide_finish(p, job.tile, d, row);
    }
}

extern "C" __global__ void WIDE_PAIR __launch_bounds__(EXL3_WIDE_THREADS, 1)
    exl3_int_wide(const struct exl3_wide_params p) {
    extern __shared__ __align__(1024) char stages[];
    __shared__ struct int_plans plans;
    uint32_t rank = wide_rank();
    if (threadIdx.x < 2 * EXL3_WIDE_GROUPS) {
        many_barrier_init(many_shared(&plans.full[0][0] + threadIdx.x), WARP);
        many_barrier_init(many_shared(&plans.empty[0][0] + threadIdx.x), 4);
    }
    struct wide_pipe s = wide_begin(stages);
    device_let_next();
    device_wait_prior();
    if (threadIdx.x >= EXL3_WIDE_GROUPS * 128) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 32;");
        uint32_t warp = threadIdx.x / WARP - WIDE_CONSUMERS;
        if (warp) {
            int_look_ahead(p, &plans, rank, warp - 1);
        } else if (threadIdx.x % WARP == 0) {
            asm volatile("fence.proxy.async.global;" ::: "memory");
            struct wide_job job;
            for (uint32_t nth = 0; wide_job_at(p, nth, rank, &job); nth++)
                wide_produce(p, job.tile, s, rank, 2 * int_from(p, job, 0),
                             2 * int_from(p, job, 1));
        }
        __syncwarp();
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 160;");
        int_consume(p, s, &plans);
    }
    wide_cluster_sync(); // neither ends while the other may write to it
}

#else // sums are moved on every sixteen inputs

extern "C" __global__ void __launch_bounds__(EXL3_WIDE_THREADS, 1)
    exl3_int_wide(const struct exl3_wide_params p) {
    wide_all(p, [&](const struct wide_tile &t, const char *rows, uint32_t held, const char *outputs,
                    float *d, uint32_t row) {
        uint32_t total[64], units = wide_units(p);
        int_zero(d);
#pragma unroll
        for (int i = 0; i < 64; i++) total[i] = 0;
        for (uint32_t u = 0; u < units; u++)
            wide_unit(rows + (uint64_t)u * p.stride * WIDE_LINE, held,
                      outputs + (uint64_t)u * WIDE_TILE, d, [&] {
                          int_move(d, total);
                          int_zero(d);
                      });
        int_answers(p, t.part, total, row, p.stride, d);
    });
}

#endif
