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
#include "kernels/linear/exl3_int.h"
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
        if (!exl3_chain_weight(&w)) continue;
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
    const char *stages;
    uint32_t stage_bytes;
    uint32_t full, empty; // shared: barriers of each stage
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

// One thread: fetches the rows and the weights of all groups, a stage each.
template <int ROWS> DEVICE_FN void fetch(const struct exl3_params &p, const struct work &w) {
    uint32_t stage = 0, turn = 0;
    for (uint32_t u = w.from; u < w.to; u++) {
        struct tile t = tile_at<ROWS>(p, u / w.segments);
        const struct weight &weight = p.a.parts[t.part].w;
        uint32_t segment = u % w.segments, groups = groups_of(w, segment);
        uint32_t left = p.a.rows - t.row,
                 row_bytes = (left < ROWS ? left : ROWS) * EXL3_GROUP_BYTES;
        uint32_t half_bits = weight.exl3.half_bits, weight_bytes = EXL3_BLOCK * half_bits;
        uint64_t group = segment * w.groups;
        const char *rows =
            device_ptr<const char>(p.rotated) +
            ((t.nth * (uint64_t)w.groups_all + group) * p.a.rows + t.row) * EXL3_GROUP_BYTES;
        const char *weights = device_ptr<const char>(weight.data) +
                              group * LINEAR_GROUP * weight.rows * half_bits +
                              (uint64_t)t.block * weight_bytes;
#pragma unroll 1 // unrolled, ptxas 13.0 loses the upper half of an address
        for (uint32_t i = 0; i < groups; i++) {
            uint32_t to = copies_shared(w.stages) + stage * w.stage_bytes,
                     full = w.full + stage * 8;
            barrier_wait(w.empty + stage * 8, ~turn & 1);
            barrier_expect(full, row_bytes + LINEAR_GROUP * weight_bytes);
            copies_piece(to, rows, row_bytes, full);
            to += ROWS * EXL3_GROUP_BYTES;
#pragma unroll 1
            for (uint32_t j = 0; j < LINEAR_GROUP; j++) {
                copies_piece(to, weights, weight_bytes, full);
                weights += (uint64_t)weight.rows * half_bits;
                to += exl3_many_weights(half_bits);
            }
            rows += (uint64_t)p.a.rows * EXL3_GROUP_BYTES;
            if (++stage == STAGES) {
                stage = 0;
                turn++;
            }
        }
    }
}

// The product

// A warp's place among the stages.
struct place {
    uint32_t stage, turn;
};

DEVICE_FN struct place next_place(const struct place &s) {
    bool end = s.stage + 1 == STAGES;
    return {end ? 0 : s.stage + 1, s.turn + end};
}

DEVICE_FN void wait_stage(const struct work &w, const struct place &s) {
    barrier_wait(w.full + s.stage * 8, s.turn & 1);
}

// Of a lane, where it says so.
DEVICE_FN void arrive_if(uint32_t barrier, bool mine) {
    asm volatile("{\n\t.reg .pred p;\n\tsetp.ne.u32 p, %1, 0;\n\t"
                 "@p mbarrier.arrive.shared.b64 _, [%0];\n\t}" ::"r"(barrier),
                 "r"((uint32_t)mine)
                 : "memory");
}

// Where a lane's tile lies in a stage.
template <int ROWS>
DEVICE_FN const char *tile_of(const struct work &w, const struct place &s, uint32_t half_bits) {
    return w.stages + s.stage * w.stage_bytes + ROWS * EXL3_GROUP_BYTES +
           threadIdx.x % 4 * exl3_many_weights(half_bits) +
           threadIdx.x / WARP * LINEAR_TILE * half_bits;
}

// The weights of a group.
template <int HALF_BITS> struct decoder {
    struct exl3_lane<HALF_BITS> lane;
    struct exl3_code code;
    template <int ROWS>
    __device__ __forceinline__ void take(const struct work &w, const struct place &s) {
        exl3_lane_take<HALF_BITS>(
            tile_of<ROWS>(w, s, HALF_BITS) + threadIdx.x % WARP / 4 * 2 * HALF_BITS, lane);
    }
    __device__ __forceinline__ void begin() { exl3_lane_before<HALF_BITS>(lane); }
    __device__ __forceinline__ void step(int s, uint32_t ret[4]) const {
        exl3_lane_factors<HALF_BITS>(lane, code, s, ret);
    }
};

// Of any width and codebook, from the stage itself.
template <> struct decoder<0> {
    const char *tile;
    struct exl3 q;
    template <int ROWS>
    __device__ __forceinline__ void take(const struct work &w, const struct place &s) {
        tile = tile_of<ROWS>(w, s, q.half_bits);
    }
    __device__ __forceinline__ void begin() {}
    __device__ __forceinline__ void step(int s, uint32_t ret[4]) const {
        exl3_factors(reinterpret_cast<const uint32_t *>(tile), q.half_bits, q.codebook,
                     threadIdx.x % WARP / 4, s, ret);
    }
};

// A segment, from 0. Half a group is decoded while the tensor cores have the half before it.
template <int ROWS, int HALF_BITS>
DEVICE_FN void multiply_width(struct decoder<HALF_BITS> &d, const struct work &w, struct place &s,
                              uint32_t groups, float (&sum)[ROWS / 2]) {
    uint32_t before = 0, a[2][2][4]; // before: the barrier of the stage before, once there is one
#pragma unroll
    for (int i = 0; i < ROWS / 2; i++) sum[i] = 0;
    wait_stage(w, s);
    d.template take<ROWS>(w, s);
#pragma unroll 1
    for (uint32_t i = 0; i < groups; i++) {
        struct place next = next_place(s), ahead = i + 1 < groups ? next : s;
        uint64_t b = wgmma_descriptor(copies_shared(w.stages) + s.stage * w.stage_bytes);
        d.begin();
        d.step(0, a[0][0]);
        d.step(1, a[0][1]);
        wgmma_fence();
        wgmma_step(sum, a[0][0], b);
        wgmma_step(sum, a[0][1], b + 2);
        wgmma_commit();
        wait_stage(w, ahead);
        wgmma_wait<1>();
        arrive_if(before, before && threadIdx.x % WARP == 0);
        d.step(2, a[1][0]);
        d.step(3, a[1][1]);
        d.template take<ROWS>(w, ahead);
        wgmma_fence();
        wgmma_step(sum, a[1][0], b + 4);
        wgmma_step(sum, a[1][1], b + 6);
        wgmma_commit();
        wgmma_wait<1>();
        before = w.empty + s.stage * 8;
        s = next;
    }
    wgmma_wait<0>();
    arrive_if(before, threadIdx.x % WARP == 0);
}

// A segment of a part.
template <int ROWS>
DEVICE_FN void multiply_segment(const struct exl3_params &p, const struct exl3 &q,
                                const struct work &w, struct place &s, uint32_t groups,
                                float (&sum)[ROWS / 2]) {
    switch (q.codebook == EXL3_MUL1 ? 0 : q.half_bits) {
#define EXL3_MANY_MULTIPLY(width)                                                                  \
    case width: {                                                                                  \
        struct decoder<width> d = {                                                                \
            .code = exl3_code_of(q.codebook, p.masks)                                              \
        };                                                                                         \
        multiply_width<ROWS, width>(d, w, s, groups, sum);                                         \
        break;                                                                                     \
    }
        EXL3_WIDTHS(EXL3_MANY_MULTIPLY)
    default: {
        struct decoder<0> d = {
            .q = q
        };
        multiply_width<ROWS, 0>(d, w, s, groups, sum);
        break;
    }
    }
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

// The outputs of a tile, in shared memory, for the warps that finish them; they empty the place, the others fill it.
template <int ROWS> struct outputs {
    float total[ROWS][EXL3_BLOCK + PAD];
    struct tile tile;
    bool end; // there is none
};

enum { FINISHERS = EXL3_MANY_THREADS / WARP - WARPS - 1 };

DEVICE_FN void wait_emptied() {
    asm volatile("bar.sync 3, %0;" ::"n"((WARPS + FINISHERS) * WARP) : "memory");
}

DEVICE_FN void tell_emptied() {
    asm volatile("bar.arrive 3, %0;" ::"n"((WARPS + FINISHERS) * WARP) : "memory");
}

DEVICE_FN void wait_filled() {
    asm volatile("bar.sync 2, %0;" ::"n"((WARPS + FINISHERS) * WARP) : "memory");
}

DEVICE_FN void tell_filled() {
    asm volatile("bar.arrive 2, %0;" ::"n"((WARPS + FINISHERS) * WARP) : "memory");
}

template <int ROWS>
DEVICE_FN void pass_on(const struct tile &t, const float (&sum)[ROWS / 2],
                       struct outputs<ROWS> *out) {
    uint32_t warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, g = lane / 4, c = lane % 4;
    wait_emptied();
#pragma unroll
    for (int i = 0; i < ROWS / 8; i++)
#pragma unroll
        for (int j = 0; j < 4; j++)
            out->total[i * 8 + 2 * c + j % 2][warp * LINEAR_TILE + g + j / 2 * 8] = sum[4 * i + j];
    if (threadIdx.x == 0) {
        out->tile = t;
        out->end = false;
    }
    tell_filled();
}

template <int ROWS>
DEVICE_FN void finish(const struct exl3_params &p, const struct outputs<ROWS> *out) {
    uint32_t lane = threadIdx.x % WARP;
    for (;;) {
        tell_emptied();
        wait_filled();
        if (out->end) return;
        struct tile t = out->tile;
        const struct linear_part &part = p.a.parts[t.part];
        for (uint32_t row = threadIdx.x / WARP - WARPS - 1; row < ROWS && t.row + row < p.a.rows;
             row += FINISHERS) {
            float4 f = reinterpret_cast<const float4 *>(out->total[row])[lane];
            float v[EXL3_LANE_CHANNELS] = {f.x, f.y, f.z, f.w};
            exl3_finish_row(part, v, t.block * EXL3_BLOCK,
                            device_ptr<float>(part.y) + (uint64_t)(t.row + row) * part.w.rows);
        }
    }
}

template <int ROWS>
DEVICE_FN void multiply(const struct exl3_params &p, const struct work &w,
                        struct outputs<ROWS> *out, uint32_t *flag) {
    struct place s = {};
    for (uint32_t u = w.from; u < w.to;) {
        uint32_t number = u / w.segments, first = u % w.segments;
        uint32_t end = w.to - u < w.segments - first ? first + w.to - u : w.segments;
        struct tile t = tile_at<ROWS>(p, number);
        float sum[ROWS / 2];
        float all[ROWS / 2];
        for (uint32_t segment = first; segment < end; segment++) {
            multiply_segment<ROWS>(p, p.a.parts[t.part].w.exl3, w, s, groups_of(w, segment), sum);
            if (first)
                slot_put<ROWS>(slot_at<ROWS>(p, w, blockIdx.x, segment), sum);
            else
#pragma unroll
                for (int i = 0; i < ROWS / 2; i++)
                    all[i] = sum[i] = segment ? all[i] + sum[i] : sum[i];
        }
        bool whole = first == 0 && end == w.segments;
        if (!first && !whole) slot_put<ROWS>(slot_at<ROWS>(p, w, blockIdx.x, 0), sum);
        if (whole || gather<ROWS>(p, w, number, flag, sum)) pass_on<ROWS>(t, sum, out);
        u += end - first;
    }
    wait_emptied();
    if (threadIdx.x == 0) out->end = true;
    tell_filled();
}

template <int ROWS> DEVICE_FN void run(const struct exl3_params &p) {
    extern __shared__ __align__(1024) char shared[];
    uint32_t cols = p.a.parts[0].w.cols;
    char *barriers = shared + exl3_many_barriers(ROWS, p.half_bits_max);
    struct work w = {.from = first_unit(p, blockIdx.x),
                     .to = first_unit(p, blockIdx.x + 1),
                     .segments = p.segments,
                     .groups = p.groups,
                     .groups_all = cols / EXL3_GROUP,
                     .stages = shared,
                     .stage_bytes = exl3_many_stage(ROWS, p.half_bits_max)};
    struct outputs<ROWS> *out =
        reinterpret_cast<struct outputs<ROWS> *>(shared + STAGES * w.stage_bytes);
    w.full = copies_shared(barriers);
    w.empty = w.full + STAGES * 8;
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
        if (threadIdx.x >= (WARPS + 1) * WARP) finish<ROWS>(p, out);
        if (threadIdx.x == WARPS * WARP) fetch<ROWS>(p, w);
        return;
    }
    asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
    device_wait_prior();
    multiply<ROWS>(p, w, out, reinterpret_cast<uint32_t *>(barriers + 2 * STAGES * 8));
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
