/* exl3_few: see linear.h and exl3_block.cuh. The EXL3 parts of a call of few rows.
 *
 * A unit of work is a tile of sixteen outputs and some segments of K that a warp adds up (`chain`, one or all of them). Units go by
 * parts, then by K, then by outputs, and every block has an equal run of them: its rows are then a short piece of K, which it holds
 * in shared memory, rotating up to eight of them itself, and making them (linear.h). Units of a run go to the warps in turn. A warp decodes a group of K in
 * registers, from a ring of its own that asynchronous copies fill. Sums go to memory; the block that brings the last ones of 128 outputs finishes them.
 * Order   linear_order.h's. The shape of the grid, the chain and the rows of a call change no bit.
 * Equals  linear_ref.c, bit for bit.
 * Cost    decoding: 5 to 6 instructions a weight. */
#include "kernels/linear/copies.cuh"
#include "kernels/linear/exl3_block.cuh"
#include "kernels/linear/exl3_few.h"
#include "kernels/linear/exl3_int.h"
#include "kernels/linear/exl3_ring.cuh"
#include "kernels/norm/rmsnorm.cuh"

// Units

// Those of a part and a piece of K that follow one another.
struct span {
    uint32_t part, nth; // its place among the call's parts, and among the EXL3 ones
    uint32_t blocks;    // of 128 outputs, of the EXL3 parts before
    uint32_t chunk;     // of K
    uint32_t from, to;  // its groups
    uint32_t tile;      // of the first unit
    uint32_t end;       // the first unit behind the span
};

DEVICE_FN uint32_t chunks_of(const struct exl3_params &p) {
    return p.segments / p.chain;
}

// The span of unit u, from there on.
DEVICE_FN struct span span_at(const struct exl3_params &p, uint32_t u) {
    uint32_t at = u, per = p.groups * p.chain, groups = p.a.parts[0].w.cols / EXL3_GROUP;
    struct span s = {};
    for (;; s.part++) {
        const struct weight &w = p.a.parts[s.part].w;
        if (!exl3_chain_weight(&w)) continue;
        uint32_t tiles = w.rows / LINEAR_TILE, units = tiles * chunks_of(p);
        if (at < units) {
            s.chunk = at / tiles;
            s.tile = at % tiles;
            s.from = s.chunk * per;
            s.to = groups < s.from + per ? groups : s.from + per;
            s.end = u + tiles - s.tile;
            return s;
        }
        at -= units;
        s.nth++;
        s.blocks += w.rows / EXL3_BLOCK;
    }
}

// The product

// What a warp fetches, ahead of what it multiplies.
struct ahead {
    struct exl3_ring ring;
    uint32_t unit, to;   // the next to fetch; the end of the block's
    uint32_t end;        // of the span of the unit in hand
    uint32_t groups;     // of a unit of that span
    uint32_t turn_bytes; // from a unit of the warp to the next one in that span
};

DEVICE_FN void fill(const struct exl3_params &p, struct ahead &a) {
    if (!a.ring.left && a.unit < a.to) {
        if (a.unit < a.end) {
            a.ring.at += (int64_t)a.turn_bytes - (int64_t)a.groups * a.ring.step;
            a.ring.left = a.groups / EXL3_RING_GROUPS;
        } else {
            struct span s = span_at(p, a.unit);
            const struct weight &w = p.a.parts[s.part].w;
            a.end = s.end;
            a.groups = s.to - s.from;
            a.turn_bytes = blockDim.x / WARP * LINEAR_TILE * w.exl3.half_bits;
            exl3_ring_aim(a.ring, w, s.tile, s.from, a.groups);
        }
        a.unit += blockDim.x / WARP;
    }
    exl3_ring_fill(a.ring);
}

DEVICE_FN void load_factors(uint32_t shared, uint32_t ret[4]) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(ret[0]), "=r"(ret[1]), "=r"(ret[2]), "=r"(ret[3])
                 : "r"(shared)
                 : "memory");
}

// Two steps: their weights times the rows, whose factors lie at `rows` for the lane, eight rows 1 KiB apart.
template <int TILES>
DEVICE_FN void multiply_steps(const uint32_t a[2][4], uint32_t rows, float sum[TILES][4]) {
#pragma unroll
    for (int i = 0; i < TILES; i++) {
        uint32_t b[4];
        load_factors(rows + i * EXL3_STEP_ROWS * EXL3_GROUP_BYTES, b);
        device_mma<DTYPE_F16>(sum[i], a[0], b);
        device_mma<DTYPE_F16>(sum[i], a[1], b + 2);
    }
}

template <int TILES, int HALF_BITS>
DEVICE_FN void multiply_group(const struct exl3_lane<HALF_BITS> &l, const struct exl3_code &code,
                              uint32_t rows, float sum[TILES][4]) {
#pragma unroll
    for (int half = 0; half < 2; half++) {
        uint32_t a[2][4];
        exl3_lane_factors<HALF_BITS>(l, code, 2 * half, a[0]);
        exl3_lane_factors<HALF_BITS>(l, code, 2 * half + 1, a[1]);
        multiply_steps<TILES>(a, rows ^ half * 64, sum);
    }
}

template <int TILES> DEVICE_FN void clear(float sum[TILES][4]) {
#pragma unroll
    for (int i = 0; i < TILES; i++)
#pragma unroll
        for (int j = 0; j < 4; j++) sum[i][j] = 0;
}

template <int TILES>
DEVICE_FN void add(float total[TILES][4], const float sum[TILES][4], bool first) {
#pragma unroll
    for (int i = 0; i < TILES; i++)
#pragma unroll
        for (int j = 0; j < 4; j++) total[i][j] = first ? sum[i][j] : total[i][j] + sum[i][j];
}

// A unit. rows: the lane's address of its rows' first group; from group to group it is rows_step. HALF_BITS 0: of any width and
// codebook.
template <int TILES, int HALF_BITS>
DEVICE_FN void multiply_width(const struct exl3_params &p, const struct exl3 &q, struct ahead &w,
                              uint32_t rows, uint32_t rows_step, uint32_t groups,
                              float total[TILES][4]) {
    struct exl3_code code = exl3_code_of(q.codebook, p.masks);
    uint32_t half_bits = HALF_BITS ? HALF_BITS : q.half_bits;
    uint32_t g = threadIdx.x % WARP / 4, lane_at = threadIdx.x % 4 * LINEAR_TILE * half_bits;
    if (HALF_BITS) lane_at += g * 2 * half_bits;
    for (uint32_t from = 0; from < groups; from += p.groups) {
        uint32_t end = rows + (groups - from < p.groups ? groups - from : p.groups) * rows_step;
        float sum[TILES][4];
        clear<TILES>(sum);
#pragma unroll 1
        while (rows != end) {
            const char *at = exl3_ring_take(w.ring) + lane_at;
            if (HALF_BITS) {
                struct exl3_lane<HALF_BITS ? HALF_BITS : 8> l[EXL3_RING_GROUPS];
#pragma unroll
                for (int j = 0; j < EXL3_RING_GROUPS; j++) {
                    exl3_lane_take(at + j * EXL3_GROUP * HALF_BITS, l[j]);
                    exl3_lane_before(l[j]);
                }
                fill(p, w);
#pragma unroll
                for (int j = 0; j < EXL3_RING_GROUPS; j++) {
                    multiply_group<TILES>(l[j], code, rows, sum);
                    rows += rows_step;
                }
            } else {
                fill(p, w);
#pragma unroll 1
                for (int step = 0; step < EXL3_RING_GROUPS * LINEAR_GROUP; step += 2) {
                    const uint32_t *tile = reinterpret_cast<const uint32_t *>(
                        at + step / LINEAR_GROUP * EXL3_GROUP * half_bits);
                    uint32_t a[2][4];
                    exl3_factors(tile, half_bits, q.codebook, g, step % LINEAR_GROUP, a[0]);
                    exl3_factors(tile, half_bits, q.codebook, g, step % LINEAR_GROUP + 1, a[1]);
                    multiply_steps<TILES>(a, rows ^ step % LINEAR_GROUP * 32, sum);
                    if (step % LINEAR_GROUP) rows += rows_step;
                }
            }
        }
        add<TILES>(total, sum, from == 0);
    }
}

// The sums of a tile, to memory.
template <int TILES>
DEVICE_FN void put(const struct exl3_params &p, const struct span &s, uint32_t tile,
                   const float sum[TILES][4]) {
    uint32_t lane = threadIdx.x % WARP, g = lane / 4, c = lane % 4, rows = p.a.rows;
    uint32_t block = s.blocks + tile / LINEAR_WARPS;
    float *mine = device_ptr<float>(p.sums) +
                  ((uint64_t)block * chunks_of(p) + s.chunk) * rows * EXL3_BLOCK +
                  tile % LINEAR_WARPS * LINEAR_TILE + 2 * c * EXL3_BLOCK + g;
#pragma unroll
    for (int i = 0; i < TILES; i++)
#pragma unroll
        for (int j = 0; j < 4; j++)
            if (i * EXL3_STEP_ROWS + 2 * c + j % 2 < rows)
                __stcg(mine + (i * EXL3_STEP_ROWS + j % 2) * EXL3_BLOCK + j / 2 * 8, sum[i][j]);
}

// A warp's units of a span, from `unit` on, in turns of all warps; returns the next one behind the span. rows: as above.
template <int TILES>
DEVICE_FN uint32_t multiply_span(const struct exl3_params &p, const struct span &s, struct ahead &w,
                                 uint32_t rows, uint32_t unit) {
    const struct weight &weight = p.a.parts[s.part].w;
    const struct exl3 &q = weight.exl3;
    uint32_t first = s.end - weight.rows / LINEAR_TILE; // unit of tile 0
    uint32_t rows_step = p.a.rows * EXL3_GROUP_BYTES, groups = s.to - s.from;
    for (; unit < w.to && unit < s.end; unit += blockDim.x / WARP) {
        float total[TILES][4];
        switch (q.codebook == EXL3_MUL1 ? 0 : q.half_bits) {
#define EXL3_FEW_MULTIPLY(width)                                                                   \
    case width: multiply_width<TILES, width>(p, q, w, rows, rows_step, groups, total); break;
            EXL3_WIDTHS(EXL3_FEW_MULTIPLY)
        default: multiply_width<TILES, 0>(p, q, w, rows, rows_step, groups, total); break;
        }
        put<TILES>(p, s, unit - first, total);
    }
    return unit;
}

// Rows

// All threads: the rotated rows of a span, to shared memory.
DEVICE_FN void copy_rows(const struct exl3_params &p, const struct span &s, uint32_t shared) {
    uint32_t line = p.a.rows * EXL3_GROUP_BYTES, bytes = (s.to - s.from) * line;
    const char *from = device_ptr<const char>(p.rotated) +
                       ((uint64_t)s.nth * (p.a.parts[0].w.cols / EXL3_GROUP) + s.from) * line;
    for (uint32_t i = threadIdx.x * 16; i < bytes; i += blockDim.x * 16)
        copies_16(shared + i, from + i);
    copies_end_group();
}

// A norm's factors of all rows. All threads; factors: of each row. sums: room.
DEVICE_FN void norm_rows(const struct exl3_params &p, float *factors, float *sums) {
    uint32_t cols = p.a.parts[0].w.cols, each = rmsnorm_threads(cols) / WARP;
    for (uint32_t i = threadIdx.x / WARP; i < p.a.rows * each; i += blockDim.x / WARP) {
        const float *x = device_ptr<const float>(p.a.from.x) + (uint64_t)(i / each) * cols;
        float sum = rmsnorm_warp_sum(x, cols, i % each);
        if (threadIdx.x % WARP == 0) sums[i / each * RMSNORM_WARPS_MAX + i % each] = sum;
    }
    __syncthreads();
    for (uint32_t row = threadIdx.x; row < p.a.rows; row += blockDim.x)
        factors[row] = rmsnorm_factor(sums + row * RMSNORM_WARPS_MAX, cols, p.a.from.eps);
    __syncthreads();
}

/* The same as copy_rows, from the rows themselves, or from what they are made of. A warp has several pieces of 128 channels under way.
 * factors: norm_rows'. */
DEVICE_FN void rotate_rows(const struct exl3_params &p, const struct span &s, const float *factors,
                           char *shared) {
    enum { BESIDE = 4 };
    const struct weight &w = p.a.parts[s.part].w;
    uint32_t block = s.from / 2, count = (s.to / 2 - block) * p.a.rows;
    uint32_t warps = blockDim.x / WARP;
    const enum linear_maker maker = p.a.from.maker;
    const float *x = device_ptr<const float>(maker ? p.a.from.x : p.a.x);
    struct exl3_rows to = {reinterpret_cast<uint16_t *>(shared), p.a.rows};
    for (uint32_t first = threadIdx.x / WARP; first < count; first += warps * BESIDE) {
        float4 in[BESIDE], other[BESIDE];
        uint2 suh[BESIDE];
#pragma unroll
        for (int i = 0; i < BESIDE; i++) {
            uint32_t n = first + i * warps, at = block + n / p.a.rows;
            uint64_t row = (uint64_t)(n % p.a.rows) * w.cols;
            if (n >= count) continue;
            suh[i] = exl3_suh(w, at);
            in[i] = exl3_channels(x + row, at);
            if (maker)
                other[i] = exl3_channels(device_ptr<const float>(p.a.from.other) +
                                             (maker == LINEAR_SWIGLU ? row : 0),
                                         at);
        }
#pragma unroll
        for (int i = 0; i < BESIDE; i++) {
            uint32_t n = first + i * warps, group = exl3_lane_group(block + n / p.a.rows);
            if (n >= count) continue;
            if (maker == LINEAR_NORM)
                in[i] = quads_times(quads_scale(in[i], factors[n % p.a.rows]), other[i]);
            if (maker == LINEAR_SWIGLU) in[i] = quads_times(quads_silu(in[i]), other[i]);
            exl3_rotate_in(in[i], suh[i], group - s.from, n % p.a.rows, to);
        }
    }
}

// The end

// A warp: 128 outputs of a row. sums: of all its pieces of K, `step` floats apart.
DEVICE_FN void finish(const struct linear_part &part, const float *sums, uint32_t count,
                      uint64_t step, uint32_t block, uint32_t row) {
    float4 v[8];
#pragma unroll
    for (uint32_t i = 0; i < 8; i++)
        if (i < count)
            v[i] = __ldcg(reinterpret_cast<const float4 *>(sums + i * step) + threadIdx.x % WARP);
    float t[EXL3_LANE_CHANNELS] = {v[0].x, v[0].y, v[0].z, v[0].w};
#pragma unroll
    for (uint32_t i = 1; i < 8; i++)
        if (i < count) {
            t[0] = t[0] + v[i].x;
            t[1] = t[1] + v[i].y;
            t[2] = t[2] + v[i].z;
            t[3] = t[3] + v[i].w;
        }
    exl3_finish_row(part, t, block * EXL3_BLOCK,
                    device_ptr<float>(part.y) + (uint64_t)row * part.w.rows);
}

// 128 outputs that a block has had tiles of, for one piece of K.
struct share {
    uint32_t part, block, all; // all: among all blocks of 128 outputs
    uint32_t tiles;
};

// The share of a number among those of units from .. to; false behind the last one.
DEVICE_FN bool share_at(const struct exl3_params &p, uint32_t from, uint32_t to, uint32_t number,
                        struct share *ret) {
    while (from < to) {
        struct span s = span_at(p, from);
        uint32_t end = s.tile + (s.end < to ? s.end : to) - from; // of its tiles
        uint32_t block = s.tile / LINEAR_WARPS + number, begin = block * LINEAR_WARPS;
        if (begin < end) {
            uint32_t until = begin + LINEAR_WARPS < end ? begin + LINEAR_WARPS : end;
            *ret = {s.part, block, s.blocks + block, until - (begin < s.tile ? s.tile : begin)};
            return true;
        }
        number -= (end + LINEAR_WARPS - 1) / LINEAR_WARPS - s.tile / LINEAR_WARPS;
        from = s.end;
    }
    return false;
}

/* All threads, once the units from .. to lie in memory: tells of them, and finishes the outputs of which they were the last. done: room
 * for a share of each thread, in shared memory. */
DEVICE_FN void finish_all(const struct exl3_params &p, uint32_t from, uint32_t to,
                          struct share *done, uint32_t *done_count) {
    uint32_t chunks = chunks_of(p), warps = blockDim.x / WARP;
    for (uint32_t first = 0;; first += blockDim.x) {
        __syncthreads();
        if (threadIdx.x == 0) *done_count = 0;
        __syncthreads();
        struct share s;
        bool have = share_at(p, from, to, first + threadIdx.x, &s);
        if (have) {
            uint32_t *counter = device_ptr<uint32_t>(p.counters) + s.all;
            __threadfence();
            uint32_t before = atomicAdd(counter, s.tiles);
            __threadfence();
            if (before + s.tiles == chunks * LINEAR_WARPS) {
                *counter = 0;
                done[atomicAdd(done_count, 1)] = s;
            }
        }
        bool more = __syncthreads_or(have && threadIdx.x == blockDim.x - 1);
        uint64_t step = (uint64_t)p.a.rows * EXL3_BLOCK;
        for (uint32_t i = threadIdx.x / WARP; i < *done_count * p.a.rows; i += warps) {
            struct share d = done[i / p.a.rows];
            uint32_t row = i % p.a.rows;
            finish(p.a.parts[d.part],
                   device_ptr<const float>(p.sums) + d.all * chunks * step + row * EXL3_BLOCK,
                   chunks, step, d.block, row);
        }
        if (!more) return;
    }
}

template <int TILES> DEVICE_FN void run(const struct exl3_params &p) {
    extern __shared__ __align__(1024) char shared[];
    __shared__ float factors[EXL3_FEW_NORMS];
    uint32_t warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, row = lane % EXL3_STEP_ROWS;
    uint32_t from = (uint32_t)((uint64_t)p.units * blockIdx.x / gridDim.x);
    uint32_t to = (uint32_t)((uint64_t)p.units * (blockIdx.x + 1) / gridDim.x);
    uint32_t lane_row = row < p.a.rows ? row : p.a.rows - 1;
    uint32_t lane_at = copies_shared(shared) + lane_row * EXL3_GROUP_BYTES +
                       (lane / EXL3_STEP_ROWS ^ lane_row) * 16;
    device_let_next();
    struct ahead w = {.unit = from + warp, .to = to};
    w.ring.stage_bytes = EXL3_RING_GROUPS * EXL3_GROUP * p.half_bits_max;
    w.ring.base = shared + p.buffers * p.rows_bytes + warp * EXL3_RING * w.ring.stage_bytes;
    for (int i = 0; i < EXL3_RING - 1; i++) fill(p, w);
    device_wait_prior();
    if (p.a.from.maker == LINEAR_NORM) norm_rows(p, factors, reinterpret_cast<float *>(shared));
    uint32_t next = from + warp;
    uint32_t have = from, nth = 0; // units before it find their rows in shared memory
    for (uint32_t at = from; at < to; nth++) {
        if (at == have) {
            __syncthreads(); // the rows before have been read
            for (uint32_t i = 0; i < p.buffers && have < to; i++) {
                struct span s = span_at(p, have);
                uint32_t buffer = (nth + i) % p.buffers * p.rows_bytes;
                if (p.rotates)
                    rotate_rows(p, s, factors, shared + buffer);
                else
                    copy_rows(p, s, copies_shared(shared) + buffer);
                have = s.end;
            }
            copies_wait<0>();
            __syncthreads();
        }
        struct span s = span_at(p, at);
        next = multiply_span<TILES>(p, s, w, lane_at + nth % p.buffers * p.rows_bytes, next);
        at = s.end;
    }
    finish_all(p, from, to, reinterpret_cast<struct share *>(shared + 16),
               reinterpret_cast<uint32_t *>(shared));
}

#define EXL3_FEW_KERNEL(name, tiles)                                                               \
    extern "C" __global__ void __launch_bounds__(exl3_few_warps(tiles) * WARP, 1)                  \
        name(const struct exl3_params p) {                                                         \
        run<tiles>(p);                                                                             \
    }
EXL3_FEW_KERNEL(exl3_few_8, 1)
EXL3_FEW_KERNEL(exl3_few_16, 2)
EXL3_FEW_KERNEL(exl3_few_32, 4)
