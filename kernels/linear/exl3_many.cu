/* exl3_many: see linear.h and exl3_block.cuh. The EXL3 parts of a call of many rows, on tensor cores that whole groups of warps
 * feed (sm_90a).
 *
 * A tile is 128 outputs and 64 or 128 rows, or 256 outputs and 128 rows; a unit of work a segment of K of a tile. Units go tile by
 * tile, rows before outputs, and every block has an equal run of them. A warp decodes sixteen outputs' weights in registers, some
 * steps while the tensor cores have those before; another warp fetches rows and weights. Sums of segments are added in registers, or,
 * of wide tiles, in shared memory. Of a tile that several blocks share, the one with the first segment leaves its sum in memory and
 * the others each segment's; the last to come adds and finishes.
 * Order   linear_order.h's. The shape of the grid, the tiles and the rows of a call change no bit.
 * Equals  linear_ref.c, bit for bit.
 * Cost    2 T N K flop; decoding, for each tile of rows. */
#include "kernels/linear/exl3_int.h"
#include "kernels/linear/copies.cuh"
#include "kernels/linear/exl3_block.cuh"
#include "kernels/linear/exl3_many.h"
#include "kernels/linear/wgmma.cuh"

// Shapes (exl3_many.h), for templates. BATCH: steps that are decoded at a time. SHARED: totals lie in shared memory.
#define EXL3_SHAPE(name, ROWS_, OUTPUTS_, STAGES_, BATCH_, SHARED_)                                \
    struct name {                                                                                  \
        enum {                                                                                     \
            ROWS = ROWS_,                                                                          \
            OUTPUTS = OUTPUTS_,                                                                    \
            WARPS = OUTPUTS_ / LINEAR_TILE,                                                        \
            STAGES = STAGES_,                                                                      \
            BLOCKS = OUTPUTS_ / EXL3_BLOCK,                                                        \
            BATCH = BATCH_,                                                                        \
            SHARED = SHARED_,                                                                      \
        };                                                                                         \
        static constexpr struct exl3_many_shape shape = {ROWS, OUTPUTS, STAGES};                   \
    };
EXL3_SHAPE(rows_64, 64, 128, 6, 2, 0)
EXL3_SHAPE(rows_128, 128, 128, 6, 2, 0)
EXL3_SHAPE(wide_64, 64, 256, 6, 4, 0)
EXL3_SHAPE(wide_128, 128, 256, 3, 4, 1)

struct tile {
    uint32_t part, nth;     // its place among the call's parts, and among the EXL3 ones
    uint32_t block, blocks; // of 128 outputs: the first, and how many
    uint32_t row;           // the first
};

template <class S> DEVICE_FN struct tile tile_at(const struct exl3_params &p, uint32_t t) {
    struct tile ret = {};
    uint32_t across = (p.a.rows + S::ROWS - 1) / S::ROWS;
    for (;; ret.part++) {
        const struct weight &w = p.a.parts[ret.part].w;
        if (!exl3_chain_weight(&w)) continue;
        uint32_t blocks = w.rows / EXL3_BLOCK,
                 tiles = (blocks + S::BLOCKS - 1) / S::BLOCKS * across;
        if (t < tiles) {
            ret.block = t / across * S::BLOCKS;
            ret.blocks = blocks - ret.block < S::BLOCKS ? blocks - ret.block : S::BLOCKS;
            ret.row = t % across * S::ROWS;
            return ret;
        }
        t -= tiles;
        ret.nth++;
    }
}

#if __CUDA_ARCH__ == 900 && defined __CUDA_ARCH_FEAT_SM90_ALL

enum { PAD = EXL3_MANY_PAD };

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
template <class S> DEVICE_FN void fetch(const struct exl3_params &p, const struct work &w) {
    uint32_t stage = 0, turn = 0;
    for (uint32_t u = w.from; u < w.to; u++) {
        struct tile t = tile_at<S>(p, u / w.segments);
        const struct weight &weight = p.a.parts[t.part].w;
        uint32_t segment = u % w.segments, groups = groups_of(w, segment);
        uint32_t left = p.a.rows - t.row,
                 row_bytes = (left < S::ROWS ? left : S::ROWS) * EXL3_GROUP_BYTES;
        uint32_t half_bits = weight.exl3.half_bits, block_bytes = EXL3_BLOCK * half_bits;
        uint32_t weight_bytes = t.blocks * block_bytes;
        uint64_t group = segment * w.groups;
        const char *rows =
            device_ptr<const char>(p.rotated) +
            ((t.nth * (uint64_t)w.groups_all + group) * p.a.rows + t.row) * EXL3_GROUP_BYTES;
        const char *weights = device_ptr<const char>(weight.data) +
                              group * LINEAR_GROUP * weight.rows * half_bits +
                              (uint64_t)t.block * block_bytes;
#pragma unroll 1 // unrolled, ptxas 13.0 loses the upper half of an address
        for (uint32_t i = 0; i < groups; i++) {
            uint32_t to = copies_shared(w.stages) + stage * w.stage_bytes,
                     full = w.full + stage * 8;
            barrier_wait(w.empty + stage * 8, ~turn & 1);
            barrier_expect(full, row_bytes + LINEAR_GROUP * weight_bytes);
            copies_piece(to, rows, row_bytes, full);
            to += S::ROWS * EXL3_GROUP_BYTES;
#pragma unroll 1
            for (uint32_t j = 0; j < LINEAR_GROUP; j++) {
                copies_piece(to, weights, weight_bytes, full);
                weights += (uint64_t)weight.rows * half_bits;
                to += exl3_many_weights(S::OUTPUTS, half_bits);
            }
            rows += (uint64_t)p.a.rows * EXL3_GROUP_BYTES;
            if (++stage == S::STAGES) {
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

template <class S> DEVICE_FN struct place next_place(const struct place &s) {
    bool end = s.stage + 1 == S::STAGES;
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
template <class S>
DEVICE_FN const char *tile_of(const struct work &w, const struct place &s, uint32_t half_bits) {
    return w.stages + s.stage * w.stage_bytes + S::ROWS * EXL3_GROUP_BYTES +
           threadIdx.x % 4 * exl3_many_weights(S::OUTPUTS, half_bits) +
           threadIdx.x / WARP * LINEAR_TILE * half_bits;
}

// The weights of a group.
template <int HALF_BITS> struct decoder {
    struct exl3_lane<HALF_BITS> lane;
    struct exl3_code code;
    template <class S>
    __device__ __forceinline__ void take(const struct work &w, const struct place &s) {
        exl3_lane_take<HALF_BITS>(
            tile_of<S>(w, s, HALF_BITS) + threadIdx.x % WARP / 4 * 2 * HALF_BITS, lane);
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
    template <class S>
    __device__ __forceinline__ void take(const struct work &w, const struct place &s) {
        tile = tile_of<S>(w, s, q.half_bits);
    }
    __device__ __forceinline__ void begin() {}
    __device__ __forceinline__ void step(int s, uint32_t ret[4]) const {
        exl3_factors(reinterpret_cast<const uint32_t *>(tile), q.half_bits, q.codebook,
                     threadIdx.x % WARP / 4, s, ret);
    }
};

// A segment, from 0. Some steps are decoded while the tensor cores have those before; of a wide tile, those of other warps.
template <class S, int HALF_BITS>
DEVICE_FN void multiply_width(struct decoder<HALF_BITS> &d, const struct work &w, struct place &s,
                              uint32_t groups, float (&sum)[S::ROWS / 2]) {
    uint32_t before = 0; // the barrier of the stage before, once there is one
    uint32_t a[2][S::BATCH][4];
#pragma unroll
    for (int i = 0; i < S::ROWS / 2; i++) sum[i] = 0;
    wait_stage(w, s);
    d.template take<S>(w, s);
#pragma unroll 1
    for (uint32_t i = 0; i < groups; i++) {
        struct place next = next_place<S>(s), ahead = i + 1 < groups ? next : s;
        uint64_t b = wgmma_descriptor(copies_shared(w.stages) + s.stage * w.stage_bytes);
        d.begin();
#pragma unroll
        for (int j = 0; j < LINEAR_GROUP; j += S::BATCH) {
#pragma unroll
            for (int k = 0; k < S::BATCH; k++) d.step(j + k, a[j / S::BATCH % 2][k]);
            if (j + S::BATCH == LINEAR_GROUP) d.template take<S>(w, ahead);
            wgmma_fence();
#pragma unroll
            for (int k = 0; k < S::BATCH; k++)
                wgmma_step(sum, a[j / S::BATCH % 2][k], b + 2 * (j + k));
            wgmma_commit();
            if (j == 0) wait_stage(w, ahead);
            wgmma_wait<S::BLOCKS == 1>();
            if (S::BLOCKS == 1 && j == 0) arrive_if(before, before && threadIdx.x % WARP == 0);
        }
        before = w.empty + s.stage * 8;
        if (S::BLOCKS > 1) arrive_if(before, threadIdx.x % WARP == 0);
        s = next;
    }
    wgmma_wait<0>();
    if (S::BLOCKS == 1) arrive_if(before, threadIdx.x % WARP == 0);
}

// A segment of a part.
template <class S>
DEVICE_FN void multiply_segment(const struct exl3_params &p, const struct exl3 &q,
                                const struct work &w, struct place &s, uint32_t groups,
                                float (&sum)[S::ROWS / 2]) {
    uint32_t width = q.codebook == EXL3_MUL1 ? 0 : q.half_bits;
#define EXL3_MANY_MULTIPLY(w_)                                                                     \
    case w_: {                                                                                     \
        struct decoder<w_> d = {                                                                   \
            .code = exl3_code_of(S::BLOCKS > 1 ? EXL3_MCG : q.codebook, p.masks)                   \
        };                                                                                         \
        multiply_width<S, w_>(d, w, s, groups, sum);                                               \
        break;                                                                                     \
    }
    if (S::BLOCKS > 1) switch (width) {
            EXL3_MANY_WIDE_WIDTHS(EXL3_MANY_MULTIPLY)
        }
    else
        switch (width) {
            EXL3_WIDTHS(EXL3_MANY_MULTIPLY)
        default: {
            struct decoder<0> d = {
                .q = q
            };
            multiply_width<S, 0>(d, w, s, groups, sum);
            break;
        }
        }
}

// The end of a tile

template <class S> DEVICE_FN void sync_warps() { // that multiply
    asm volatile("bar.sync 1, %0;" ::"n"(S::WARPS * WARP) : "memory");
}

// A thread's sums of a block's slot.
template <class S>
DEVICE_FN float4 *slot_at(const struct exl3_params &p, const struct work &w, uint32_t block,
                          uint32_t segment) {
    return device_ptr<float4>(p.sums) +
           ((uint64_t)block * w.segments + segment) * (S::ROWS * S::OUTPUTS / 4) + threadIdx.x;
}

template <class S> DEVICE_FN void slot_put(float4 *slot, const float (&v)[S::ROWS / 2]) {
#pragma unroll
    for (int i = 0; i < S::ROWS / 8; i++)
        __stcg(slot + i * S::WARPS * WARP,
               make_float4(v[4 * i], v[4 * i + 1], v[4 * i + 2], v[4 * i + 3]));
}

template <class S>
DEVICE_FN void slot_add(const float4 *slot, float (&v)[S::ROWS / 2], bool first) {
#pragma unroll
    for (int i = 0; i < S::ROWS / 8; i++) {
        float4 s = __ldcg(slot + i * S::WARPS * WARP);
        v[4 * i] = first ? s.x : v[4 * i] + s.x;
        v[4 * i + 1] = first ? s.y : v[4 * i + 1] + s.y;
        v[4 * i + 2] = first ? s.z : v[4 * i + 2] + s.z;
        v[4 * i + 3] = first ? s.w : v[4 * i + 3] + s.w;
    }
}

// Tells of the block's share of a tile that lies in memory. Is it the last? Then sum becomes the tile's.
template <class S>
DEVICE_FN bool gather(const struct exl3_params &p, const struct work &w, uint32_t number,
                      uint32_t *flag, float (&sum)[S::ROWS / 2]) {
    uint32_t first = owner(p, number * w.segments);
    uint32_t last = owner(p, number * w.segments + w.segments - 1);
    uint32_t *counter = device_ptr<uint32_t>(p.counters) + number;
    __threadfence();
    sync_warps<S>();
    if (threadIdx.x == 0) *flag = atomicAdd(counter, 1);
    sync_warps<S>();
    if (*flag != last - first) return false;
    __threadfence();
    if (threadIdx.x == 0) *counter = 0;
    slot_add<S>(slot_at<S>(p, w, first, 0), sum, true);
    for (uint32_t s = first_unit(p, first + 1) - number * w.segments; s < w.segments; s++)
        slot_add<S>(slot_at<S>(p, w, owner(p, number * w.segments + s), s), sum, false);
    return true;
}

// The outputs of a tile, in shared memory.
template <class S> struct outputs { float total[S::BLOCKS][S::ROWS][EXL3_BLOCK + PAD]; };

template <class S>
DEVICE_FN void put_outputs(const float (&sum)[S::ROWS / 2], struct outputs<S> *out) {
    uint32_t warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, g = lane / 4, c = lane % 4;
    uint32_t at = warp % (EXL3_BLOCK / LINEAR_TILE) * LINEAR_TILE + g;
#pragma unroll
    for (int i = 0; i < S::ROWS / 8; i++)
#pragma unroll
        for (int j = 0; j < 4; j++)
            out->total[warp / (EXL3_BLOCK / LINEAR_TILE)][i * 8 + 2 * c + j % 2][at + j / 2 * 8] =
                sum[4 * i + j];
}

template <class S>
DEVICE_FN void finish(const struct exl3_params &p, const struct tile &t,
                      const float (&sum)[S::ROWS / 2], struct outputs<S> *out) {
    const struct linear_part &part = p.a.parts[t.part];
    uint32_t left = p.a.rows - t.row, rows = left < S::ROWS ? left : S::ROWS;
    sync_warps<S>(); // what lay there has been read
    put_outputs<S>(sum, out);
    sync_warps<S>();
    for (uint32_t block = 0; block < t.blocks; block++)
        for (uint32_t row = threadIdx.x / WARP; row < rows; row += S::WARPS) {
            float4 f = reinterpret_cast<const float4 *>(out->total[block][row])[threadIdx.x % WARP];
            float v[EXL3_LANE_CHANNELS] = {f.x, f.y, f.z, f.w};
            exl3_finish_row(part, v, (t.block + block) * EXL3_BLOCK,
                            device_ptr<float>(part.y) + (uint64_t)(t.row + row) * part.w.rows);
        }
}

// A wide tile's running totals, in the place of its outputs: sum becomes the total.
template <class S>
DEVICE_FN void add_wide(struct outputs<S> *out, float (&sum)[S::ROWS / 2], bool first, bool last) {
    float4 *at = reinterpret_cast<float4 *>(out) + threadIdx.x;
#pragma unroll
    for (int i = 0; i < S::ROWS / 8; i++) {
        float4 *v = at + i * S::WARPS * WARP;
        if (!first) {
            sum[4 * i] = v->x + sum[4 * i];
            sum[4 * i + 1] = v->y + sum[4 * i + 1];
            sum[4 * i + 2] = v->z + sum[4 * i + 2];
            sum[4 * i + 3] = v->w + sum[4 * i + 3];
        }
        if (!last) *v = make_float4(sum[4 * i], sum[4 * i + 1], sum[4 * i + 2], sum[4 * i + 3]);
    }
}

template <class S>
DEVICE_FN void multiply(const struct exl3_params &p, const struct work &w, struct outputs<S> *out,
                        uint32_t *flag) {
    struct place s = {};
    for (uint32_t u = w.from; u < w.to;) {
        uint32_t number = u / w.segments, first = u % w.segments;
        uint32_t end = w.to - u < w.segments - first ? first + w.to - u : w.segments;
        struct tile t = tile_at<S>(p, number);
        float sum[S::ROWS / 2];
        float all[S::SHARED ? 1 : S::ROWS / 2];
        for (uint32_t segment = first; segment < end; segment++) {
            multiply_segment<S>(p, p.a.parts[t.part].w.exl3, w, s, groups_of(w, segment), sum);
            if (first) {
                slot_put<S>(slot_at<S>(p, w, blockIdx.x, segment), sum);
            } else if (!S::SHARED) {
#pragma unroll
                for (int i = 0; i < S::ROWS / 2; i++)
                    all[i] = sum[i] = segment ? all[i] + sum[i] : sum[i];
            } else {
                if (segment == 0) sync_warps<S>(); // the tile before has been finished
                add_wide<S>(out, sum, segment == 0, segment + 1 == end);
            }
        }
        bool whole = first == 0 && end == w.segments;
        if (!first && !whole) slot_put<S>(slot_at<S>(p, w, blockIdx.x, 0), sum);
        if (whole || gather<S>(p, w, number, flag, sum)) finish<S>(p, t, sum, out);
        u += end - first;
    }
}

template <class S> DEVICE_FN void run(const struct exl3_params &p) {
    extern __shared__ __align__(1024) char shared[];
    uint32_t cols = p.a.parts[0].w.cols;
    char *barriers = shared + exl3_many_barriers(S::shape, p.half_bits_max);
    struct work w = {.from = first_unit(p, blockIdx.x),
                     .to = first_unit(p, blockIdx.x + 1),
                     .segments = p.segments,
                     .groups = p.groups,
                     .groups_all = cols / EXL3_GROUP,
                     .stages = shared,
                     .stage_bytes = exl3_many_stage(S::shape, p.half_bits_max)};
    struct outputs<S> *out =
        reinterpret_cast<struct outputs<S> *>(shared + S::STAGES * w.stage_bytes);
    w.full = copies_shared(barriers);
    w.empty = w.full + S::STAGES * 8;
    if (threadIdx.x < S::STAGES) {
        barrier_init(w.full + threadIdx.x * 8, 1);
        barrier_init(w.empty + threadIdx.x * 8, S::WARPS);
    }
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    __syncthreads();
    device_let_next();
    if (threadIdx.x >= S::WARPS * WARP) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 32;");
        device_wait_prior();
        // Rows were written by ordinary stores; copies of pieces go another way.
        asm volatile("fence.proxy.async;" ::: "memory");
        if (threadIdx.x == S::WARPS * WARP) fetch<S>(p, w);
        return;
    }
    if (S::BLOCKS == 1)
        asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
    else
        asm volatile("setmaxnreg.inc.sync.aligned.u32 112;");
    device_wait_prior();
    multiply<S>(p, w, out, reinterpret_cast<uint32_t *>(barriers + 2 * S::STAGES * 8));
}

#else // the same work on the tensor cores of single warps

template <class S> DEVICE_FN void run(const struct exl3_params &p) {
    extern __shared__ __align__(1024) char shared[];
    uint32_t cols = p.a.parts[0].w.cols, tiles = p.units / p.segments;
    device_let_next();
    device_wait_prior();
    for (uint32_t number = blockIdx.x; number < tiles; number += gridDim.x) {
        struct tile t = tile_at<S>(p, number);
        const struct linear_part &part = p.a.parts[t.part];
        struct exl3_rows x = {device_ptr<uint16_t>(p.rotated) + (uint64_t)t.nth * p.a.rows * cols,
                              p.a.rows};
        for (uint32_t row = t.row; row < t.row + S::ROWS && row < p.a.rows; row += 32)
            for (uint32_t block = t.block; block < t.block + t.blocks; block++) {
                uint32_t count = p.a.rows - row < 32 ? p.a.rows - row : 32;
                exl3_block<4>(part, x, device_ptr<float>(part.y), row, count, block,
                              reinterpret_cast<float(*)[EXL3_BLOCK]>(shared));
                __syncthreads();
            }
    }
}

#endif

#define EXL3_MANY_KERNEL(name, shape)                                                              \
    extern "C" __global__ void __launch_bounds__((shape::WARPS + 4) * WARP, 1)                     \
        name(const struct exl3_params p) {                                                         \
        run<shape>(p);                                                                             \
    }
EXL3_MANY_KERNEL(exl3_many_64, rows_64)
EXL3_MANY_KERNEL(exl3_many_128, rows_128)
EXL3_MANY_KERNEL(exl3_many_wide_64, wide_64)
EXL3_MANY_KERNEL(exl3_many_wide_128, wide_128)
