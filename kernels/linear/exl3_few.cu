/* exl3_few: see linear.h and exl3_block.cuh. The EXL3 parts of a call of few rows.
 *
 * A unit of work is a tile of sixteen outputs and some segments of K that a warp adds up (`chain`, one or all of them). Units go by
 * parts, then by K, then by outputs, and every block has an equal run of them: its rows are then a short piece of K, which it holds
 * in shared memory. Units of a run go to the warps in turn. A warp decodes a group of K in registers, from a ring of its own that
 * asynchronous copies fill. The sums go to memory; the warp that brings the last one of 128 outputs finishes their rows.
 * Order   linear_order.h's. The shape of the grid, the chain and the rows of a call change no bit.
 * Equals  linear_ref.c, bit for bit.
 * Cost    decoding: 5 to 6 instructions a weight; the ring holds what the memory's latency needs. */
#include "kernels/linear/exl3_block.cuh"
#include "kernels/linear/exl3_few.h"

// Units

struct unit {
    uint32_t part, tile;  // its place among the call's parts; of sixteen outputs
    uint32_t chunk;       // of K
    uint32_t nth, blocks; // EXL3 parts before it, and their blocks of 128 outputs
};

DEVICE_FN uint32_t chunks_of(const struct exl3_params &p) {
    return linear_exl3_segments(p.a.parts[0].w.cols) / p.chain;
}

DEVICE_FN struct unit unit_at(const struct exl3_params &p, uint32_t u) {
    struct unit ret = {};
    for (;; ret.part++) {
        const struct weight &w = p.a.parts[ret.part].w;
        if (!w.exl3.half_bits) continue;
        uint32_t tiles = w.rows / LINEAR_TILE, units = tiles * chunks_of(p);
        if (u < units) {
            ret.chunk = u / tiles;
            ret.tile = u % tiles;
            return ret;
        }
        u -= units;
        ret.nth++;
        ret.blocks += w.rows / EXL3_BLOCK;
    }
}

struct span {
    uint32_t from, to; // groups
};

DEVICE_FN struct span span_of(const struct exl3_params &p, uint32_t chunk) {
    uint32_t cols = p.a.parts[0].w.cols, groups = cols / EXL3_GROUP;
    uint32_t per = linear_exl3_groups(cols) * p.chain, from = chunk * per, to = from + per;
    return {from, to < groups ? to : groups};
}

// Asynchronous copies

DEVICE_FN void copy_16(uint32_t shared, const void *from) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared), "l"(from) : "memory");
}

DEVICE_FN void copies_end_group() {
    asm volatile("cp.async.commit_group;" ::: "memory");
}

template <int LEFT> DEVICE_FN void copies_wait() {
    asm volatile("cp.async.wait_group %0;" ::"n"(LEFT) : "memory");
}

// The ring of a warp: the groups of its units, one after another.
struct ring {
    uint32_t shared, stage; // address of its first stage; the next to fill
    uint32_t next, end;     // units
    uint32_t left;          // groups of the unit in hand
    uint32_t pieces;        // of sixteen bytes, of a group
    uint32_t step;          // bytes from group to group
    const char *at;         // the lane's first piece
    uint32_t second;        // bytes from there to its second one
};

DEVICE_FN void ring_take_unit(struct ring &r, const struct exl3_params &p) {
    struct unit u = unit_at(p, r.next);
    const struct weight &w = p.a.parts[u.part].w;
    struct span s = span_of(p, u.chunk);
    uint32_t half_bits = w.exl3.half_bits, lane = threadIdx.x % WARP;
    uint32_t row = w.rows * half_bits; // bytes of sixteen inputs
    const char *first = device_ptr<const char>(w.data) + (uint64_t)s.from * LINEAR_GROUP * row +
                        (uint64_t)u.tile * LINEAR_TILE * half_bits;
    r.pieces = LINEAR_GROUP * half_bits;
    r.step = LINEAR_GROUP * row;
    r.left = s.to - s.from;
    uint32_t piece = lane + WARP, at = lane / half_bits * row + lane % half_bits * 16;
    r.at = first + at;
    r.second = piece / half_bits * row + piece % half_bits * 16 - at;
    r.next += EXL3_FEW_WARPS;
}

DEVICE_FN void ring_fill(struct ring &r, const struct exl3_params &p) {
    if (!r.left && r.next < r.end) ring_take_unit(r, p);
    if (r.left) {
        uint32_t lane = threadIdx.x % WARP, to = r.shared + r.stage * p.stage_bytes + lane * 16;
        if (lane < r.pieces) copy_16(to, r.at);
        if (lane + WARP < r.pieces) copy_16(to + WARP * 16, r.at + r.second);
        r.at += r.step;
        r.left--;
    }
    copies_end_group();
    r.stage = r.stage + 1 == EXL3_FEW_RING ? 0 : r.stage + 1;
}

// The product

DEVICE_FN void load_factors(uint32_t shared, uint32_t ret[4]) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(ret[0]), "=r"(ret[1]), "=r"(ret[2]), "=r"(ret[3])
                 : "r"(shared)
                 : "memory");
}

// A group: the rows' factors lie at rows for the lane, eight rows 1 KiB apart.
template <int TILES, int HALF_BITS>
DEVICE_FN void multiply_group(const struct exl3_lane<HALF_BITS> &l, const struct exl3_code &code,
                              uint32_t rows, float sum[TILES][4]) {
#pragma unroll
    for (int half = 0; half < 2; half++) {
        uint32_t a[2][4];
        exl3_lane_factors<HALF_BITS>(l, code, 2 * half, a[0]);
        exl3_lane_factors<HALF_BITS>(l, code, 2 * half + 1, a[1]);
#pragma unroll
        for (int i = 0; i < TILES; i++) {
            uint32_t b[4];
            load_factors((rows ^ half * 64) + i * EXL3_STEP_ROWS * EXL3_GROUP_BYTES, b);
            device_mma<DTYPE_F16>(sum[i], a[0], b);
            device_mma<DTYPE_F16>(sum[i], a[1], b + 2);
        }
    }
}

// Of any width and codebook, from the stage itself.
template <int TILES>
DEVICE_FN void multiply_any(const struct exl3 &q, const uint32_t *tile, uint32_t rows,
                            float sum[TILES][4]) {
#pragma unroll 1
    for (int half = 0; half < 2; half++) {
        uint32_t a[2][4], g = threadIdx.x % WARP / 4;
        exl3_factors(tile, q.half_bits, q.codebook, g, 2 * half, a[0]);
        exl3_factors(tile, q.half_bits, q.codebook, g, 2 * half + 1, a[1]);
#pragma unroll
        for (int i = 0; i < TILES; i++) {
            uint32_t b[4];
            load_factors((rows ^ half * 64) + i * EXL3_STEP_ROWS * EXL3_GROUP_BYTES, b);
            device_mma<DTYPE_F16>(sum[i], a[0], b);
            device_mma<DTYPE_F16>(sum[i], a[1], b + 2);
        }
    }
}

struct warp {
    struct ring ring;
    uint32_t stage;   // the next to take
    const char *base; // of the ring
    uint32_t rows;    // the lane's address of the rows' first group; a group is rows_step further
    uint32_t rows_step;
};

// A segment of `groups`, from 0. HALF_BITS 0: any.
template <int TILES, int HALF_BITS>
DEVICE_FN void multiply_segment(const struct exl3_params &p, const struct exl3 &q, struct warp &w,
                                uint32_t groups, float sum[TILES][4]) {
    uint32_t g = threadIdx.x % WARP / 4, c = threadIdx.x % 4;
    struct exl3_code code = exl3_code_of(q.codebook, p.masks);
#pragma unroll
    for (int i = 0; i < TILES; i++)
#pragma unroll
        for (int j = 0; j < 4; j++) sum[i][j] = 0;
#pragma unroll 1
    for (uint32_t i = 0; i < groups; i++) {
        copies_wait<EXL3_FEW_RING - 2>();
        __syncwarp(); // the stage has come for all lanes, and all have read the one before it
        const uint32_t *tile =
            reinterpret_cast<const uint32_t *>(w.base + w.stage * p.stage_bytes) +
            c * 4 * (HALF_BITS ? HALF_BITS : q.half_bits);
        if (HALF_BITS) {
            struct exl3_lane<HALF_BITS ? HALF_BITS : 8> l;
            exl3_lane_load<HALF_BITS ? HALF_BITS : 8>(tile, g, l);
            ring_fill(w.ring, p);
            multiply_group<TILES, HALF_BITS ? HALF_BITS : 8>(l, code, w.rows, sum);
        } else {
            ring_fill(w.ring, p);
            multiply_any<TILES>(q, tile, w.rows, sum);
        }
        w.stage = w.stage + 1 == EXL3_FEW_RING ? 0 : w.stage + 1;
        w.rows += w.rows_step;
    }
}

template <int TILES>
DEVICE_FN void multiply_width(const struct exl3_params &p, const struct exl3 &q, struct warp &w,
                              uint32_t groups, float sum[TILES][4]) {
    uint32_t width = q.codebook == EXL3_MUL1 ? 0 : q.half_bits;
    switch (width) {
    case 6: multiply_segment<TILES, 6>(p, q, w, groups, sum); break;
    case 8: multiply_segment<TILES, 8>(p, q, w, groups, sum); break;
    case 12: multiply_segment<TILES, 12>(p, q, w, groups, sum); break;
    default: multiply_segment<TILES, 0>(p, q, w, groups, sum); break;
    }
}

// The end

DEVICE_FN float4 load_sums(const float *at) {
    return __ldcg(reinterpret_cast<const float4 *>(at) + threadIdx.x % WARP);
}

// A warp: 128 outputs, all rows. sums: [count][rows][128].
DEVICE_FN void finish(const struct linear_part &part, const float *sums, uint32_t count,
                      uint32_t rows, uint32_t block) {
    for (uint32_t row = 0; row < rows; row++) {
        float4 v[8];
#pragma unroll
        for (uint32_t i = 0; i < 8; i++)
            if (i < count) v[i] = load_sums(sums + ((uint64_t)i * rows + row) * EXL3_BLOCK);
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
}

// A unit's sum to memory; the last one of 128 outputs finishes them.
template <int TILES>
DEVICE_FN void put(const struct exl3_params &p, const struct unit &u, const float sum[TILES][4]) {
    uint32_t lane = threadIdx.x % WARP, g = lane / 4, c = lane % 4, rows = p.a.rows;
    uint32_t chunks = chunks_of(p), block = u.tile / LINEAR_WARPS, all = u.blocks + block;
    float *sums = device_ptr<float>(p.sums) + (uint64_t)all * chunks * rows * EXL3_BLOCK;
    float *mine =
        sums + (uint64_t)u.chunk * rows * EXL3_BLOCK + u.tile % LINEAR_WARPS * LINEAR_TILE;
#pragma unroll
    for (int i = 0; i < TILES; i++)
#pragma unroll
        for (int j = 0; j < 4; j++) {
            uint32_t row = i * EXL3_STEP_ROWS + 2 * c + j % 2;
            if (row < rows) __stcg(mine + (uint64_t)row * EXL3_BLOCK + g + j / 2 * 8, sum[i][j]);
        }
    uint32_t *counter = device_ptr<uint32_t>(p.counters) + all, before = 0;
    __threadfence();
    __syncwarp();
    if (lane == 0) before = atomicAdd(counter, 1);
    before = __shfl_sync(0xffffffffu, before, 0);
    if (before + 1 < chunks * LINEAR_WARPS) return;
    __threadfence();
    if (lane == 0) *counter = 0;
    finish(p.a.parts[u.part], sums, chunks, rows, block);
}

// A unit, whose rows lie in shared memory.
template <int TILES>
DEVICE_FN void multiply_unit(const struct exl3_params &p, const struct unit &u, struct warp &w) {
    const struct exl3 &q = p.a.parts[u.part].w.exl3;
    uint32_t per = linear_exl3_groups(p.a.parts[0].w.cols);
    struct span s = span_of(p, u.chunk);
    float total[TILES][4];
    multiply_width<TILES>(p, q, w, s.to - s.from < per ? s.to - s.from : per, total);
    for (uint32_t at = s.from + per; at < s.to; at += per) {
        float sum[TILES][4];
        multiply_width<TILES>(p, q, w, s.to - at < per ? s.to - at : per, sum);
#pragma unroll
        for (int i = 0; i < TILES; i++)
#pragma unroll
            for (int j = 0; j < 4; j++) total[i][j] = total[i][j] + sum[i][j];
    }
    put<TILES>(p, u, total);
}

// All threads: the rows of a unit's part and piece of K, to shared memory.
DEVICE_FN void copy_rows(const struct exl3_params &p, const struct unit &u, uint32_t shared) {
    struct span s = span_of(p, u.chunk);
    uint32_t line = p.a.rows * EXL3_GROUP_BYTES, bytes = (s.to - s.from) * line;
    const char *from = device_ptr<const char>(p.rotated) +
                       ((uint64_t)u.nth * (p.a.parts[0].w.cols / EXL3_GROUP) + s.from) * line;
    for (uint32_t i = threadIdx.x * 16; i < bytes; i += EXL3_FEW_THREADS * 16)
        copy_16(shared + i, from + i);
}

// The first unit behind u's part and piece of K.
DEVICE_FN uint32_t span_end(const struct exl3_params &p, uint32_t at, const struct unit &u) {
    return at + p.a.parts[u.part].w.rows / LINEAR_TILE - u.tile;
}

template <int TILES> DEVICE_FN void run(const struct exl3_params &p) {
    extern __shared__ __align__(1024) char shared[];
    uint32_t warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, row = lane % EXL3_STEP_ROWS;
    uint32_t from = (uint32_t)((uint64_t)p.units * blockIdx.x / gridDim.x);
    uint32_t to = (uint32_t)((uint64_t)p.units * (blockIdx.x + 1) / gridDim.x);
    uint32_t base = (uint32_t)__cvta_generic_to_shared(shared);
    uint32_t rings = p.buffers * p.rows_bytes + warp * EXL3_FEW_RING * p.stage_bytes;
    struct warp w = {};
    w.ring.shared = base + rings;
    w.ring.next = from + warp;
    w.ring.end = to;
    w.base = shared + rings;
    w.rows_step = p.a.rows * EXL3_GROUP_BYTES;
    uint32_t lane_row = row < p.a.rows ? row : p.a.rows - 1;
    uint32_t lane_at = lane_row * EXL3_GROUP_BYTES + (lane / EXL3_STEP_ROWS ^ lane_row) * 16;
    device_let_next();
    for (int i = 0; i < EXL3_FEW_RING - 1; i++) ring_fill(w.ring, p);
    device_wait_prior();
    uint32_t next = from + warp, buffer = 0;
    for (uint32_t at = from; at < to;) {
        struct unit first = unit_at(p, at);
        uint32_t end = span_end(p, at, first);
        if (p.buffers == 1 || at == from) {
            __syncthreads(); // the rows before have been read
            copy_rows(p, first, base + buffer * p.rows_bytes);
            copies_end_group();
        }
        copies_wait<0>();
        __syncthreads();
        if (p.buffers == 2 && end < to)
            copy_rows(p, unit_at(p, end), base + (buffer ^ 1) * p.rows_bytes);
        for (; next < to && next < end; next += EXL3_FEW_WARPS) {
            w.rows = base + buffer * p.rows_bytes + lane_at;
            multiply_unit<TILES>(p, unit_at(p, next), w);
        }
        at = end;
        if (p.buffers == 2) buffer ^= 1;
    }
}

#define EXL3_FEW_KERNEL(name, tiles)                                                               \
    extern "C" __global__ void __launch_bounds__(EXL3_FEW_THREADS, 1)                              \
        name(const struct exl3_params p) {                                                         \
        run<tiles>(p);                                                                             \
    }
EXL3_FEW_KERNEL(exl3_few_8, 1)
EXL3_FEW_KERNEL(exl3_few_16, 2)
EXL3_FEW_KERNEL(exl3_few_32, 4)
