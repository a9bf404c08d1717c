/* exl3_wide: the product of rows and written out weights (exl3_wide.h), for chains and for integers.
 *
 * Two thread blocks, a cluster, take a tile of 192 rows and 256 outputs: each 128 outputs of the same rows, whose copy they share:
 * each asks for half of the rows and both get them. A warp group has 64 rows and all outputs of its block; a fourth one copies, units
 * of 64 inputs, as far ahead as there are stages. While a group looks after its sums or ends a tile, the others keep the tensor
 * cores busy.
 * Tiles go part by part, pairs of blocks of outputs by rows. Each pair has p.whole of them; those of the rest are cut along K among
 * p.shares pairs, whose sums meet in memory: the last to come has them all.
 * Sums     of a thread of a group: d[4 j + i]: output 8 j + 2 c + i % 2 of row 16 w + g + 8 (i / 2), w being the warp of the group,
 *          lane 4 g + c. */
#pragma once
#include "kernels/linear/exl3.cuh"
#include "kernels/linear/exl3_int_many.cuh"
#include "kernels/linear/exl3_wide.h"

#if __CUDA_ARCH__ >= 900
#define WIDE_PAIR __cluster_dims__(2, 1, 1)
#else
#define WIDE_PAIR
#endif

enum {
    WIDE_UNIT = 64,
    WIDE_LINE = 128, // bytes of a row of a unit
    WIDE_TILE = EXL3_BLOCK * WIDE_LINE,
    WIDE_GROUP_ROWS = 64,
    WIDE_GROUP_BYTES = WIDE_GROUP_ROWS * WIDE_LINE,
    WIDE_HALF_ROWS = EXL3_WIDE_ROWS / 2, // that a block copies for both
    WIDE_ROWS_BYTES = EXL3_WIDE_ROWS * WIDE_LINE,
    WIDE_CONSUMERS = EXL3_WIDE_GROUPS * 4, // warps
    WIDE_TURN = 1 + EXL3_WIDE_GROUPS,      // barriers of turns, behind those of groups
};

DEVICE_FN uint32_t wide_units(const struct exl3_wide_params &p) { // of K
    return p.a.parts[0].w.cols / WIDE_UNIT;
}

struct wide_tile {
    uint32_t part;
    uint32_t block, nth; // of 128 outputs: of the part, of the slice
    uint32_t row;        // the first
    bool real; // else the pair has one block of outputs, and this is the other one of its cluster
};

DEVICE_FN uint32_t wide_blocks(const struct exl3_wide_params &p, uint32_t part) {
    return p.slice.parts == 1 ? p.slice.count : p.a.parts[part].w.rows / EXL3_BLOCK;
}

// rank: of the thread block in its pair.
DEVICE_FN struct wide_tile wide_tile_at(const struct exl3_wide_params &p, uint32_t tile,
                                        uint32_t rank) {
    uint32_t across = (p.a.rows + EXL3_WIDE_ROWS - 1) / EXL3_WIDE_ROWS;
    uint32_t part = p.slice.part, before = 0, blocks = wide_blocks(p, part);
    while (tile >= (blocks + 1) / 2 * across) {
        tile -= (blocks + 1) / 2 * across;
        before += blocks;
        blocks = wide_blocks(p, ++part);
    }
    uint32_t block = tile / across * 2 + rank;
    bool real = block < blocks;
    if (!real) block--;
    return {part, p.slice.first + block, before + block, tile % across * EXL3_WIDE_ROWS, real};
}

// Work of a pair: a tile, or a share of one.
struct wide_job {
    struct wide_tile tile;
    uint32_t rest, share; // of the shared tiles; of its sharers
    bool shared;
};

// The nth job of this pair; false: there is none.
DEVICE_FN bool wide_job_at(const struct exl3_wide_params &p, uint32_t nth, uint32_t rank,
                           struct wide_job *ret) {
    uint32_t pairs = gridDim.x / 2, pair = blockIdx.x / 2;
    if (nth < p.whole) {
        *ret = {wide_tile_at(p, nth * pairs + pair, rank), 0, 0, false};
        return true;
    }
    if (nth > p.whole || pair >= p.rest * p.shares) return false;
    uint32_t rest = pair % p.rest;
    *ret = {wide_tile_at(p, p.whole * pairs + rest, rank), rest, pair / p.rest, p.shares > 1};
    return true;
}

// Where a share begins, of `all` pieces of K; all of them are a whole tile's.
DEVICE_FN uint32_t wide_share_from(const struct exl3_wide_params &p, const struct wide_job &job,
                                   uint32_t all, uint32_t more) {
    return job.shared ? all * (job.share + more) / p.shares : all * more;
}

#define WIDE_D8(i_)                                                                                \
    "+f"(d[i_]), "+f"(d[i_ + 1]), "+f"(d[i_ + 2]), "+f"(d[i_ + 3]), "+f"(d[i_ + 4]),               \
        "+f"(d[i_ + 5]), "+f"(d[i_ + 6]), "+f"(d[i_ + 7])
#define WIDE_D64                                                                                   \
    WIDE_D8(0), WIDE_D8(8), WIDE_D8(16), WIDE_D8(24), WIDE_D8(32), WIDE_D8(40), WIDE_D8(48),       \
        WIDE_D8(56)

DEVICE_FN void wide_hold(float d[64]) { // nothing that uses d moves across
    asm volatile("" : WIDE_D64::"memory");
}

// A thread's sums of a slot.
DEVICE_FN uint32_t *wide_slot(const struct exl3_wide_params &p, uint32_t slot, uint32_t rank) {
    return device_ptr<uint32_t>(p.sums) + ((uint64_t)slot * 2 + rank) * EXL3_WIDE_SUMS +
           threadIdx.x;
}

DEVICE_FN void wide_slot_put(uint32_t *slot, const float d[64]) {
#pragma unroll
    for (int i = 0; i < 64; i++) __stcg(slot + i * EXL3_WIDE_GROUPS * 128, arith_bits(d[i]));
}

DEVICE_FN void wide_group_sync(uint32_t group) {
    asm volatile("bar.sync %0, 128;" ::"r"(group + 1) : "memory");
}

// Tells that `mine` of `all` pieces of a shared tile's sums lie in memory. Whether all do, which one group of all sharers learns.
DEVICE_FN bool wide_gather(const struct exl3_wide_params &p, const struct wide_job &job,
                           uint32_t rank, uint32_t group, uint32_t mine, uint32_t all) {
    __shared__ uint32_t last[EXL3_WIDE_GROUPS];
    uint32_t *counter =
        device_ptr<uint32_t>(p.counters) + (job.rest * 2 + rank) * EXL3_WIDE_GROUPS + group;
    __threadfence();
    wide_group_sync(group);
    if (threadIdx.x % 128 == 0) {
        last[group] = atomicAdd(counter, mine) + mine == all;
        if (last[group]) *counter = 0;
    }
    wide_group_sync(group);
    // The same for all: no branch that might part them.
    bool ret = __any_sync(0xffffffffu, last[group]);
    if (ret) __threadfence();
    return ret;
}

// From a warp's sums of sixteen rows, the thread's first being `row`, to answers: a block of outputs is rotated and written.
DEVICE_FN void wide_finish(const struct exl3_wide_params &p, const struct wide_tile &t, float d[64],
                           uint32_t row) {
    const struct linear_part &part = p.a.parts[t.part];
    uint32_t c = threadIdx.x % 4;
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
    uint32_t n = t.block * EXL3_BLOCK + 2 * c;
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

// A unit of a group; at: its stage.
DEVICE_FN void wide_unit(float d[64], uint32_t at, uint32_t group) {
    uint64_t a = wide_factor(at + group * WIDE_GROUP_BYTES), b = wide_factor(at + WIDE_ROWS_BYTES);
    wide_fence();
#pragma unroll
    for (int k = 0; k < 4; k++) wide_mma(d, a + 2 * k, b + 2 * k);
    wide_commit();
}

DEVICE_FN uint32_t wide_rank() {
    uint32_t r;
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(r));
    return r;
}

DEVICE_FN void wide_cluster_sync() { // all threads of both blocks
    asm volatile(
        "barrier.cluster.arrive.release.aligned;\n\tbarrier.cluster.wait.acquire.aligned;" ::
            : "memory");
}

// A thread's way through the stages.
struct wide_pipe {
    uint32_t
        base; // shared address of the stages; behind them the barriers of filled ones, then of free ones
    uint32_t peer; // of the first lane of each block: that block's barriers of free stages; else 0
    uint32_t take, phase; // the next stage to be filled
};

DEVICE_FN uint32_t wide_full(const struct wide_pipe &s, uint32_t stage) {
    return s.base + EXL3_WIDE_STAGES * EXL3_WIDE_STAGE_BYTES + stage * 8;
}

DEVICE_FN uint32_t wide_empty(const struct wide_pipe &s, uint32_t stage) {
    return wide_full(s, stage) + EXL3_WIDE_STAGES * 8;
}

DEVICE_FN void wide_step(struct wide_pipe &s) {
    bool end = s.take + 1 == EXL3_WIDE_STAGES;
    s.take = end ? 0 : s.take + 1;
    s.phase ^= end;
}

// The next stage, filled.
DEVICE_FN uint32_t wide_take(struct wide_pipe &s) {
    many_await(wide_full(s, s.take), s.phase);
    uint32_t at = s.base + s.take * EXL3_WIDE_STAGE_BYTES;
    wide_step(s);
    return at;
}

// The stage that was taken `ago` before the last one is free, of a warp; both blocks learn of it.
DEVICE_FN void wide_give(const struct wide_pipe &s, uint32_t ago) {
    uint32_t stage = s.take > ago ? s.take - ago - 1 : s.take + EXL3_WIDE_STAGES - ago - 1;
    asm volatile("{\n\t.reg .pred p;\n\tsetp.ne.u32 p, %1, 0;\n\t"
                 "@p mbarrier.arrive.shared::cluster.b64 _, [%0];\n\t}" ::"r"(s.peer + stage * 8),
                 "r"(s.peer)
                 : "memory");
}

/* Groups that spend time on their sums take turns at the tensor cores, a pair of units each: else all would be busy with their sums at the
 * same time. All groups take as many turns; the first one's first is given by the last. */
DEVICE_FN void wide_turn(uint32_t group) {
    asm volatile("bar.sync %0, 256;" ::"r"(WIDE_TURN + group) : "memory");
}

DEVICE_FN void wide_turn_pass(uint32_t group) {
    uint32_t next = group + 1 == EXL3_WIDE_GROUPS ? 0 : group + 1;
    asm volatile("bar.arrive %0, 256;" ::"r"(WIDE_TURN + next) : "memory");
}

// For a group without rows.
DEVICE_FN void wide_skip(struct wide_pipe &s, uint32_t units) {
#pragma unroll 1
    for (uint32_t u = 0; u < units; u++) {
        wide_take(s);
        wide_give(s, 0);
    }
}

// To both blocks, where each has `to` and `barrier`.
DEVICE_FN void wide_copy_both(uint32_t to, const char *from, uint32_t bytes, uint32_t barrier) {
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster "
        "[%0], [%1], %2, [%3], %4;" ::"r"(to),
        "l"(from), "r"(bytes), "r"(barrier), "h"((uint16_t)3)
        : "memory");
}

// One thread: a job's units from .. to - 1.
DEVICE_FN void wide_produce(const struct exl3_wide_params &p, const struct wide_tile &t,
                            struct wide_pipe &s, uint32_t rank, uint32_t from, uint32_t to) {
    uint32_t units = wide_units(p), left = p.stride - t.row;
    if (left > EXL3_WIDE_ROWS) left = EXL3_WIDE_ROWS;
    uint32_t before = rank * WIDE_HALF_ROWS, mine = left > before ? left - before : 0;
    if (mine > WIDE_HALF_ROWS) mine = WIDE_HALF_ROWS;
    uint64_t step = (uint64_t)p.stride * WIDE_LINE;
    const char *rows = device_ptr<const char>(p.q) + ((uint64_t)t.part * units + from) * step +
                       (uint64_t)(t.row + before) * WIDE_LINE;
    const char *w = device_ptr<const char>(p.wide) + ((uint64_t)t.nth * units + from) * WIDE_TILE;
#pragma unroll 1
    for (uint32_t u = from; u < to; u++) {
        uint32_t full = wide_full(s, s.take), at = s.base + s.take * EXL3_WIDE_STAGE_BYTES;
        many_await(wide_empty(s, s.take), s.phase ^ 1);
        many_expect(full, left * WIDE_LINE + WIDE_TILE);
        if (mine) wide_copy_both(at + before * WIDE_LINE, rows, mine * WIDE_LINE, full);
        many_copy(at + WIDE_ROWS_BYTES, w, WIDE_TILE, full);
        rows += step;
        w += WIDE_TILE;
        wide_step(s);
    }
}

// What all threads do first.
DEVICE_FN struct wide_pipe wide_begin(const void *shared) {
    uint32_t lane = threadIdx.x % WARP;
    struct wide_pipe s = {(many_shared(shared) + 1023) & ~1023u, 0, 0, 0};
    asm("mapa.shared::cluster.u32 %0, %1, %2;"
        : "=r"(s.peer)
        : "r"(wide_empty(s, 0)), "r"(lane % 2));
    if (lane >= 2) s.peer = 0;
    if (threadIdx.x == 0) {
        for (uint32_t i = 0; i < EXL3_WIDE_STAGES; i++) {
            many_barrier_init(wide_full(s, i), 1);
            many_barrier_init(wide_empty(s, i), 2 * WIDE_CONSUMERS);
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    wide_cluster_sync();
    return s;
}

#else // what the driver compiles for a card that would have had wgmma

// d += A B of a unit: sixteen rows from the first on, of `held`; `move` comes behind each step.
template <class F>
DEVICE_FN void wide_unit(const char *rows, uint32_t held, const char *outputs, float d[64],
                         F move) {
    uint32_t g = threadIdx.x % WARP / 4, c = threadIdx.x % 4;
    const char *r = rows + (g < held ? g * 128 : 0),
               *r8 = rows + (g + 8 < held ? (g + 8) * 128 : 0);
    const char *o = outputs + g * 128;
    for (uint32_t k = 0; k < 4; k++) {
        uint32_t low = ((2 * k) ^ g) * 16 + 4 * c, high = ((2 * k + 1) ^ g) * 16 + 4 * c;
        const uint32_t a[4] = {*reinterpret_cast<const uint32_t *>(r + low),
                               *reinterpret_cast<const uint32_t *>(r8 + low),
                               *reinterpret_cast<const uint32_t *>(r + high),
                               *reinterpret_cast<const uint32_t *>(r8 + high)};
#pragma unroll
        for (int n = 0; n < 16; n++) {
            const uint32_t b[2] = {*reinterpret_cast<const uint32_t *>(o + n * 1024 + low),
                                   *reinterpret_cast<const uint32_t *>(o + n * 1024 + high)};
            device_mma<DTYPE_F16>(d + 4 * n, a, b);
        }
        move();
    }
}

// All tiles, sixteen rows a warp; form(part's rows, how many are held, the outputs' units, sums) multiplies a block.
template <class F> DEVICE_FN void wide_all(const struct exl3_wide_params &p, F form) {
    uint32_t warp = threadIdx.x / WARP, units = wide_units(p);
    uint32_t tiles = p.whole * (gridDim.x / 2) + p.rest;
    device_let_next();
    device_wait_prior();
    for (uint32_t i = blockIdx.x; i < 2 * tiles; i += gridDim.x) {
        struct wide_tile t = wide_tile_at(p, i / 2, i % 2);
        uint32_t row = t.row + warp * 16;
        if (!t.real || warp >= WIDE_CONSUMERS || row >= p.a.rows) continue;
        float d[64];
        form(t,
             device_ptr<const char>(p.q) + ((uint64_t)t.part * units * p.stride + row) * WIDE_LINE,
             p.stride - row, device_ptr<const char>(p.wide) + (uint64_t)t.nth * units * WIDE_TILE,
             d, row + threadIdx.x % WARP / 4);
        wide_finish(p, t, d, row + threadIdx.x % WARP / 4);
    }
}

#endif
