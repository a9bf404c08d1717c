/* exl3_many: see linear.h and exl3_block.cuh. The EXL3 parts of a call of many rows, on tensor cores that whole groups of warps
 * feed (sm_90a).
 *
 * A tile is 128 outputs and 64 or 128 rows; a unit of work a segment of K of a tile. Units go tile by tile, rows before outputs, and
 * every block has an equal run of them. A warp decodes sixteen outputs' weights in registers, half a group of K while the tensor
 * cores have the other half; a ninth warp fetches the rows. Sums of segments are added in registers. Of a tile that several blocks
 * share, the one with the first segment leaves its sum in memory and the others each segment's; the last to come adds and finishes.
 * Order   linear_order.h's. The shape of the grid, the tiles and the rows of a call change no bit.
 * Equals  linear_ref.c, bit for bit.
 * Cost    2 T N K flop; decoding, for each tile of rows. */
#include "kernels/linear/copies.cuh"
#include "kernels/linear/exl3_block.cuh"
#include "kernels/linear/exl3_many.h"
#include "kernels/linear/wgmma.cuh"

struct tile {
    uint32_t part, nth; // its place among the call's parts, and among the EXL3 ones
    uint32_t block;     // of 128 outputs
    uint32_t row;       // the first
};

template <int ROWS> DEVICE_FN struct tile tile_at(const struct exl3_params &p, uint32_t t) {
    struct tile ret = {};
    uint32_t across = (p.a.rows + ROWS - 1) / ROWS;
    for (;; ret.part++) {
        const struct weight &w = p.a.parts[ret.part].w;
        if (!w.exl3.half_bits) continue;
        uint32_t tiles = w.rows / EXL3_BLOCK * across;
        if (t < tiles) {
            ret.block = t / across;
            ret.row = t % across * ROWS;
            return ret;
        }
        t -= tiles;
        ret.nth++;
    }
}

#if __CUDA_ARCH__ == 900 && defined __CUDA_ARCH_FEAT_SM90_ALL

enum { STAGES = EXL3_MANY_STAGES, WARPS = EXL3_MANY_WARPS, PAD = EXL3_MANY_PAD };

// What all warps of a block know.
struct work {
    uint32_t from, to;         // units
    uint32_t segments, groups; // of K; of a segment
    uint32_t groups_all;
    uint32_t rows, full, empty; // shared: stages; barriers of each
};

DEVICE_FN uint32_t groups_of(const struct work &w, uint32_t segment) {
    uint32_t left = w.groups_all - segment * w.groups;
    return left < w.groups ? left : w.groups;
}

// The block that has a unit.
DEVICE_FN uint32_t owner(const struct exl3_params &p, uint32_t unit) {
    return (uint32_t)((((uint64_t)unit + 1) * gridDim.x - 1) / p.units);
}

DEVICE_FN uint32_t first_unit(const struct exl3_params &p, uint32_t block) {
    return (uint32_t)((uint64_t)p.units * block / gridDim.x);
}

// Rows

template <int ROWS> DEVICE_FN void fetch_rows(const struct exl3_params &p, const struct work &w) {
    uint32_t stage = 0, turn = 0;
    for (uint32_t u = w.from; u < w.to; u++) {
        struct tile t = tile_at<ROWS>(p, u / w.segments);
        uint32_t segment = u % w.segments, groups = groups_of(w, segment);
        uint32_t left = p.a.rows - t.row, bytes = (left < ROWS ? left : ROWS) * EXL3_GROUP_BYTES;
        uint64_t group = (uint64_t)t.nth * w.groups_all + segment * w.groups;
        const char *at =
            device_ptr<const char>(p.rotated) + (group * p.a.rows + t.row) * EXL3_GROUP_BYTES;
#pragma unroll 1 // unrolled, ptxas 13.0 loses the upper half of an address
        for (uint32_t i = 0; i < groups; i++) {
            barrier_wait(w.empty + stage * 8, ~turn & 1);
            copies_piece(w.rows + stage * ROWS * EXL3_GROUP_BYTES, at, bytes, w.full + stage * 8);
            at += (uint64_t)p.a.rows * EXL3_GROUP_BYTES;
            if (++stage == STAGES) {
                stage = 0;
                turn++;
            }
        }
    }
}

// The product

struct warp {
    struct exl3_source source; // of the unit in hand
    struct exl3_ahead ahead;   // its first words
    uint32_t stage, turn;      // of rows: the next to take
};

template <int ROWS>
DEVICE_FN struct exl3_source source_of(const struct exl3_params &p, const struct work &w,
                                       uint32_t unit) {
    struct tile t = tile_at<ROWS>(p, unit / w.segments);
    return exl3_source_of(p.a.parts[t.part].w, t.block * WARPS + threadIdx.x / WARP,
                          unit % w.segments * w.groups);
}

// Of a lane, where it says so.
DEVICE_FN void arrive_if(uint32_t barrier, bool mine) {
    asm volatile("{\n\t.reg .pred p;\n\tsetp.ne.u32 p, %1, 0;\n\t"
                 "@p mbarrier.arrive.shared.b64 _, [%0];\n\t}" ::"r"(barrier),
                 "r"((uint32_t)mine)
                 : "memory");
}

// The weights of a group that a lane has loaded.
template <int HALF_BITS> struct decoder {
    struct exl3_lane<HALF_BITS> lane;
    struct exl3_code code;
    __device__ __forceinline__ void step(int s, uint32_t ret[4]) const {
        exl3_lane_factors<HALF_BITS>(lane, code, s, ret);
    }
};

// Of any width and codebook, from memory itself.
template <> struct decoder<0> {
    const uint32_t *tile;
    struct exl3 q;
    __device__ __forceinline__ void step(int s, uint32_t ret[4]) const {
        exl3_factors(tile, q.half_bits, q.codebook, threadIdx.x % WARP / 4, s, ret);
    }
};

// A group: halves of it are decoded while the tensor cores have the one before. before: the stage of the group before, if any.
template <int ROWS, int HALF_BITS>
DEVICE_FN void multiply_group(const struct work &w, struct warp &s,
                              const struct decoder<HALF_BITS> &d, uint32_t (&a)[2][2][4],
                              uint32_t before, float (&sum)[ROWS / 2]) {
    d.step(0, a[0][0]);
    d.step(1, a[0][1]);
    barrier_wait(w.full + s.stage * 8, s.turn & 1);
    uint64_t b = wgmma_descriptor(w.rows + s.stage * ROWS * EXL3_GROUP_BYTES);
    wgmma_fence();
    wgmma_step(sum, a[0][0], b);
    wgmma_step(sum, a[0][1], b + 2);
    wgmma_commit();
    wgmma_wait<1>();
    arrive_if(before, before && threadIdx.x % WARP == 0);
    d.step(2, a[1][0]);
    d.step(3, a[1][1]);
    wgmma_fence();
    wgmma_step(sum, a[1][0], b + 4);
    wgmma_step(sum, a[1][1], b + 6);
    wgmma_commit();
    wgmma_wait<1>();
}

// On to the next stage of rows; its barrier of empty ones.
DEVICE_FN uint32_t next_stage(const struct work &w, struct warp &s) {
    uint32_t ret = w.empty + s.stage * 8;
    s.turn += s.stage + 1 == STAGES;
    s.stage = s.stage + 1 == STAGES ? 0 : s.stage + 1;
    return ret;
}

template <int ROWS> DEVICE_FN void clear(float (&sum)[ROWS / 2]) {
#pragma unroll
    for (int i = 0; i < ROWS / 2; i++) sum[i] = 0;
}

// A segment whose first words are loaded; loads those of the next one on the way.
template <int ROWS, int HALF_BITS>
DEVICE_FN void multiply_width(const struct exl3_code &code, const struct work &w, struct warp &s,
                              const struct exl3_source &next, uint32_t groups,
                              float (&sum)[ROWS / 2]) {
    struct exl3_lane<HALF_BITS> l[EXL3_AHEAD];
    struct decoder<HALF_BITS> d;
    exl3_ahead_get<HALF_BITS>(s.ahead, l);
    d.code = code;
    const char *at = s.source.at + EXL3_AHEAD * (uint64_t)s.source.step;
    uint32_t step = s.source.step, before = 0, a[2][2][4];
    clear<ROWS>(sum);
#pragma unroll 1
    for (uint32_t i = 0; i < groups; i += EXL3_AHEAD) {
        if (i + EXL3_AHEAD == groups) { // what follows is the next segment's
            at = next.at;
            step = next.step;
        }
#pragma unroll
        for (int j = 0; j < EXL3_AHEAD; j++) {
            exl3_lane_before<HALF_BITS>(l[j]);
            d.lane = l[j];
            multiply_group<ROWS, HALF_BITS>(w, s, d, a, before, sum);
            exl3_lane_load<HALF_BITS>(at, l[j]);
            at += step;
            before = next_stage(w, s);
        }
    }
    wgmma_wait<0>();
    arrive_if(before, threadIdx.x % WARP == 0);
    exl3_ahead_put<HALF_BITS>(s.ahead, l);
}

template <int ROWS>
DEVICE_FN void multiply_any(const struct weight &weight, const struct work &w, struct warp &s,
                            uint32_t tile, uint32_t first, uint32_t groups,
                            float (&sum)[ROWS / 2]) {
    struct decoder<0> d;
    d.q = weight.exl3;
    uint64_t words = 4ull * d.q.half_bits, row = weight.rows / LINEAR_TILE * words;
    uint32_t before = 0, a[2][2][4];
    clear<ROWS>(sum);
#pragma unroll 1
    for (uint32_t i = first; i < first + groups; i++) {
        d.tile = device_ptr<const uint32_t>(weight.data) + tile * words +
                 (i * LINEAR_GROUP + threadIdx.x % 4) * row;
        multiply_group<ROWS, 0>(w, s, d, a, before, sum);
        before = next_stage(w, s);
    }
    wgmma_wait<0>();
    arrive_if(before, threadIdx.x % WARP == 0);
}

// A unit: sum becomes its segment's.
template <int ROWS>
DEVICE_FN void multiply_unit(const struct exl3_params &p, const struct work &w, struct warp &s,
                             const struct tile &t, uint32_t unit, float (&sum)[ROWS / 2]) {
    const struct weight &weight = p.a.parts[t.part].w;
    struct exl3_code code = exl3_code_of(weight.exl3.codebook, p.masks);
    uint32_t segment = unit % w.segments, groups = groups_of(w, segment);
    struct exl3_source next = s.source;
    if (segment + 1 < w.segments)
        next.at += groups * (uint64_t)next.step;
    else if (unit + 1 < w.to)
        next = source_of<ROWS>(p, w, unit + 1);
    bool same = next.half_bits == s.source.half_bits;
    struct exl3_source ahead = same ? next : s.source; // else loaded for nothing
    switch (s.source.half_bits) {
#define EXL3_MANY_MULTIPLY(width)                                                                  \
    case width: multiply_width<ROWS, width>(code, w, s, ahead, groups, sum); break;
        EXL3_WIDTHS(EXL3_MANY_MULTIPLY)
    default:
        multiply_any<ROWS>(weight, w, s, t.block * WARPS + threadIdx.x / WARP, segment * w.groups,
                           groups, sum);
        break;
    }
    s.source = next;
    if (!same) exl3_ahead_load(s.ahead, s.source);
}

// The end of a tile

DEVICE_FN void sync_warps() { // that multiply
    asm volatile("bar.sync 1, %0;" ::"n"(EXL3_MANY_WARPS * 32) : "memory");
}

// A thread's sums of a block's slot.
template <int ROWS>
DEVICE_FN float4 *slot_at(const struct exl3_params &p, const struct work &w, uint32_t block,
                          uint32_t segment) {
    return device_ptr<float4>(p.sums) +
           ((uint64_t)block * w.segments + segment) * (ROWS * EXL3_BLOCK / 4) + threadIdx.x;
}

template <int ROWS> DEVICE_FN void slot_put(float4 *slot, const float (&v)[ROWS / 2]) {
#pragma unroll
    for (int i = 0; i < ROWS / 8; i++)
        __stcg(slot + i * WARPS * WARP,
               make_float4(v[4 * i], v[4 * i + 1], v[4 * i + 2], v[4 * i + 3]));
}

template <int ROWS> DEVICE_FN void slot_add(const float4 *slot, float (&v)[ROWS / 2], bool first) {
#pragma unroll
    for (int i = 0; i < ROWS / 8; i++) {
        float4 s = __ldcg(slot + i * WARPS * WARP);
        v[4 * i] = first ? s.x : v[4 * i] + s.x;
        v[4 * i + 1] = first ? s.y : v[4 * i + 1] + s.y;
        v[4 * i + 2] = first ? s.z : v[4 * i + 2] + s.z;
        v[4 * i + 3] = first ? s.w : v[4 * i + 3] + s.w;
    }
}

// Tells of the block's share of a tile that lies in memory. Is it the last? Then sum becomes the tile's.
template <int ROWS>
DEVICE_FN bool gather(const struct exl3_params &p, const struct work &w, uint32_t number,
                      uint32_t *flag, float (&sum)[ROWS / 2]) {
    uint32_t first = owner(p, number * w.segments);
    uint32_t last = owner(p, number * w.segments + w.segments - 1);
    uint32_t *counter = device_ptr<uint32_t>(p.counters) + number;
    __threadfence();
    sync_warps();
    if (threadIdx.x == 0) *flag = atomicAdd(counter, 1);
    sync_warps();
    if (*flag != last - first) return false;
    __threadfence();
    if (threadIdx.x == 0) *counter = 0;
    slot_add<ROWS>(slot_at<ROWS>(p, w, first, 0), sum, true);
    for (uint32_t s = first_unit(p, first + 1) - number * w.segments; s < w.segments; s++)
        slot_add<ROWS>(slot_at<ROWS>(p, w, owner(p, number * w.segments + s), s), sum, false);
    return true;
}

template <int ROWS>
DEVICE_FN void finish(const struct exl3_params &p, const struct tile &t,
                      float (*total)[EXL3_BLOCK + PAD], const float (&sum)[ROWS / 2]) {
    uint32_t warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, g = lane / 4, c = lane % 4;
    const struct linear_part &part = p.a.parts[t.part];
    sync_warps(); // the tile before has been read
#pragma unroll
    for (int i = 0; i < ROWS / 8; i++)
#pragma unroll
        for (int j = 0; j < 4; j++)
            total[i * 8 + 2 * c + j % 2][warp * LINEAR_TILE + g + j / 2 * 8] = sum[4 * i + j];
    sync_warps();
    for (uint32_t row = warp; row < ROWS && t.row + row < p.a.rows; row += WARPS) {
        float4 f = *reinterpret_cast<const float4 *>(&total[row][lane * EXL3_LANE_CHANNELS]);
        float v[EXL3_LANE_CHANNELS] = {f.x, f.y, f.z, f.w};
        exl3_finish_row(part, v, t.block * EXL3_BLOCK,
                        device_ptr<float>(part.y) + (uint64_t)(t.row + row) * part.w.rows);
    }
}

template <int ROWS>
DEVICE_FN void multiply(const struct exl3_params &p, const struct work &w, struct warp &s,
                        float (*total)[EXL3_BLOCK + PAD], uint32_t *flag) {
    for (uint32_t u = w.from; u < w.to;) {
        uint32_t number = u / w.segments, first = u % w.segments;
        uint32_t end = w.to - u < w.segments - first ? first + w.to - u : w.segments;
        struct tile t = tile_at<ROWS>(p, number);
        float sum[ROWS / 2];
        float all[ROWS / 2];
        for (uint32_t segment = first; segment < end; segment++) {
            multiply_unit<ROWS>(p, w, s, t, u + segment - first, sum);
            if (first)
                slot_put<ROWS>(slot_at<ROWS>(p, w, blockIdx.x, segment), sum);
            else
#pragma unroll
                for (int i = 0; i < ROWS / 2; i++)
                    all[i] = sum[i] = segment ? all[i] + sum[i] : sum[i];
        }
        bool whole = first == 0 && end == w.segments;
        if (!first && !whole) slot_put<ROWS>(slot_at<ROWS>(p, w, blockIdx.x, 0), sum);
        if (whole || gather<ROWS>(p, w, number, flag, sum)) finish<ROWS>(p, t, total, sum);
        u += end - first;
    }
}

template <int ROWS> DEVICE_FN void run(const struct exl3_params &p) {
    extern __shared__ __align__(1024) char shared[];
    uint32_t cols = p.a.parts[0].w.cols;
    char *total = shared + exl3_many_totals(ROWS);
    struct work w = {.from = first_unit(p, blockIdx.x),
                     .to = first_unit(p, blockIdx.x + 1),
                     .segments = p.segments,
                     .groups = p.groups,
                     .groups_all = cols / EXL3_GROUP,
                     .rows = copies_shared(shared)};
    w.full = w.rows + exl3_many_barriers(ROWS);
    w.empty = w.full + STAGES * 8;
    uint32_t *flag =
        reinterpret_cast<uint32_t *>(shared + exl3_many_barriers(ROWS) + 2 * STAGES * 8);
    if (threadIdx.x < STAGES) {
        barrier_init(w.full + threadIdx.x * 8, 1);
        barrier_init(w.empty + threadIdx.x * 8, WARPS);
    }
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    __syncthreads();
    device_let_next();
    if (threadIdx.x >= WARPS * WARP) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
        device_wait_prior();
        // Rows were written by ordinary stores; copies of pieces go another way.
        asm volatile("fence.proxy.async;" ::: "memory");
        if (threadIdx.x == WARPS * WARP) fetch_rows<ROWS>(p, w);
        return;
    }
    asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
    struct warp s = {};
    s.source = source_of<ROWS>(p, w, w.from);
    exl3_ahead_load(s.ahead, s.source);
    device_wait_prior();
    multiply<ROWS>(p, w, s, reinterpret_cast<float(*)[EXL3_BLOCK + PAD]>(total), flag);
}

#else // the same work on the tensor cores of single warps

template <int ROWS> DEVICE_FN void run(const struct exl3_params &p) {
    extern __shared__ __align__(1024) char shared[];
    uint32_t cols = p.a.parts[0].w.cols, tiles = p.units / p.segments;
    device_let_next();
    device_wait_prior();
    for (uint32_t number = blockIdx.x; number < tiles; number += gridDim.x) {
        struct tile t = tile_at<ROWS>(p, number);
        const struct linear_part &part = p.a.parts[t.part];
        struct exl3_rows x = {device_ptr<uint16_t>(p.rotated) + (uint64_t)t.nth * p.a.rows * cols,
                              p.a.rows};
        for (uint32_t row = t.row; row < t.row + ROWS && row < p.a.rows; row += 32) {
            uint32_t count = p.a.rows - row < 32 ? p.a.rows - row : 32;
            exl3_block<4>(part, x, device_ptr<float>(part.y), row, count, t.block,
                          reinterpret_cast<float(*)[EXL3_BLOCK]>(shared));
            __syncthreads();
        }
    }
}

#endif

extern "C" __global__ void __launch_bounds__(EXL3_MANY_THREADS, 1)
    exl3_many_64(const struct exl3_params p) {
    run<64>(p);
}

extern "C" __global__ void __launch_bounds__(EXL3_MANY_THREADS, 1)
    exl3_many_128(const struct exl3_params p) {
    run<128>(p);
}
