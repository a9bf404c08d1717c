/* attn_rows: see attn.h; attn.cu has the order of arithmetic. For many rows of a stream, on sm_90a: a block is 128 queries (rows and
 * heads of one key head), two warpgroups of 64, which walk over a unit's tiles (attn_units.cuh); a third one copies.
 *
 * A warpgroup keeps the chunk's values in registers. The two take turns at the tensor cores: one has its softmax while the other
 * has its products, those of a tile's values and of the next tile's scores together. Where a chunk ends it joins what the group had,
 * in scratch of the block's own; so does a group.
 * Equals  attn_ref.c, bit for bit.
 * Cost    one H200, 2048 rows of 24 heads on 4 key heads, BF16: 246, 395 and 472 TFLOP/s behind 1000, 8191 and 32768 positions. */
#include "kernels/attn/attn_pipe.cuh"
#include "kernels/attn/attn_units.cuh"
#include "kernels/attn/attn_wgmma.cuh"
#include "kernels/cuda/kv_at.h"

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

enum {
    DIM = 256,
    GROUP_THREADS = 4 * WARP, // a warpgroup
    WARPS = 8,                // that compute
    THREADS = WARPS * WARP,
    QUERIES = ATTN_ROWS_QUERIES,
    HALF_QUERIES = QUERIES / 2,
    TILE_BYTES = ATTN_TILE * DIM * 2, // of halves
    BLOCKS = DIM * 2 / KV_LINE_BYTES,
    RAW_BYTES = ATTN_TILE * DIM, // of E4M3
    STAGES = 2,
    SYNC = 1, // barrier of the computing warps; then one a warpgroup
    TURN = 4, // a warpgroup's turn at the tensor cores
    CONVERTERS = 3 * WARP,
    LEVEL_BATCH = 4, // loads of a lane on their way at once
    END = 0xffffffff,
};

template <enum dtype D> struct form {
    static const enum dtype half = D == DTYPE_E4M3 ? DTYPE_F16 : DTYPE_BF16;
    static const bool converts = D == DTYPE_E4M3;
    static const uint32_t unit_readers = WARPS + (D == DTYPE_E4M3 ? CONVERTERS / WARP : 0);
};

struct shared {
    unsigned char queries[2][HALF_QUERIES * DIM * 2];
    unsigned char keys[STAGES][TILE_BYTES], values[STAGES][TILE_BYTES];
    uint64_t key_full[STAGES], key_empty[STAGES], value_full[STAGES], value_empty[STAGES];
    uint64_t raw_full[STAGES], raw_empty[STAGES], unit_full[2], unit_empty[2];
    struct attn_unit unit[2];
    uint32_t flag;
    float2 chunk_of[QUERIES],
        group_of[QUERIES]; // maximum and sum: of the chunk that ended, of its group so far
    __align__(128) unsigned char raw[1]; // [STAGES][RAW_BYTES], E4M3 alone
};
static_assert(offsetof(struct shared, raw) <= ATTN_ROWS_SHARED, "");

// The copying warp.

// Rows of a page: n, and zeros behind them.
DEVICE_FN void copy_rows(unsigned char *to, const unsigned char *from, uint32_t n, uint64_t *full) {
    uint32_t lane = threadIdx.x % WARP;
    if (n == ATTN_TILE) {
        pipe_copy(to, from, TILE_BYTES, full);
        return;
    }
    for (uint32_t block = 0; block < BLOCKS; block++)
        for (uint32_t i = n * KV_LINE_BYTES + lane * 16; i < KV_BLOCK_BYTES; i += WARP * 16)
            *reinterpret_cast<uint4 *>(to + block * KV_BLOCK_BYTES + i) = make_uint4(0, 0, 0, 0);
    pipe_fence();
    __syncwarp();
    if (lane == 0) {
        asm volatile(
            "{\n\t.reg .b64 t;\n\tmbarrier.arrive.expect_tx.shared.b64 t, [%0], %1;\n\t}" ::"r"(
                pipe_at(full)),
            "r"(n * KV_LINE_BYTES * BLOCKS)
            : "memory");
        for (uint32_t block = 0; block < BLOCKS; block++)
            asm volatile(
                "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], "
                "%2, [%3];" ::"r"(pipe_at(to + block * KV_BLOCK_BYTES)),
                "l"(from + block * KV_BLOCK_BYTES), "r"(n * KV_LINE_BYTES), "r"(pipe_at(full))
                : "memory");
    }
    __syncwarp();
}

DEVICE_FN uint32_t unit_keys(const struct attn_params &p, const struct attn_unit *u) {
    return attn_query_of(p, u, u->count - 1).pos + 1; // of the piece's context
}

DEVICE_FN uint32_t tile_keys(uint32_t keys, uint32_t tile) {
    uint32_t left = keys - tile * ATTN_TILE;
    return left < ATTN_TILE ? left : ATTN_TILE;
}

struct rings {
    struct ring keys, values, raw, units;
};

template <enum dtype D>
DEVICE_FN void copy_tile(struct shared *s, struct rings *at, const unsigned char *k,
                         const unsigned char *v, uint32_t n) {
    if (form<D>::converts) {
        for (uint32_t i = 0; i < 2; i++) {
            pipe_wait(&s->raw_empty[at->raw.stage], at->raw.phase ^ 1);
            pipe_copy(s->raw + at->raw.stage * RAW_BYTES, i ? v : k, RAW_BYTES,
                      &s->raw_full[at->raw.stage]);
            ring_step(&at->raw, STAGES);
        }
        return;
    }
    pipe_wait(&s->key_empty[at->keys.stage], at->keys.phase ^ 1);
    pipe_copy(s->keys[at->keys.stage], k, TILE_BYTES, &s->key_full[at->keys.stage]);
    ring_step(&at->keys, STAGES);
    pipe_wait(&s->value_empty[at->values.stage], at->values.phase ^ 1);
    copy_rows(s->values[at->values.stage], v, n, &s->value_full[at->values.stage]);
    ring_step(&at->values, STAGES);
}

template <enum dtype D>
DEVICE_FN void copy_unit(const struct attn_params &p, struct shared *s, struct rings *at,
                         const struct attn_unit *u) {
    const uint32_t *pages =
        device_ptr<const uint32_t>(p.a.kv.table) + (uint64_t)u->slot * p.a.kv.pages_per_slot;
    const uint32_t bytes = D == DTYPE_E4M3 ? RAW_BYTES : TILE_BYTES;
    uint32_t lane = threadIdx.x % WARP, keys = unit_keys(p, u);
    for (uint32_t first = u->tile; first < u->end; first += WARP) {
        uint32_t mine = first + lane < u->end ? pages[first + lane] : 0;
        uint32_t count = u->end - first < WARP ? u->end - first : WARP;
        for (uint32_t i = 0; i < count; i++) {
            uint64_t page = __shfl_sync(0xffffffffu, mine, i);
            uint64_t byte = (page * p.a.kv.heads + u->head) * bytes;
            copy_tile<D>(s, at, device_ptr<const unsigned char>(p.a.kv.k) + byte,
                         device_ptr<const unsigned char>(p.a.kv.v) + byte,
                         tile_keys(keys, first + i));
        }
    }
}

template <enum dtype D> DEVICE_FN void copy_all(const struct attn_params &p, struct shared *s) {
    struct attn_work w = attn_coarsest(p, false, QUERIES);
    struct rings at = {};
    uint32_t lane = threadIdx.x % WARP, next = blockIdx.x;
    while (true) {
        uint32_t now = __shfl_sync(0xffffffffu, next, 0);
        if (lane == 0 && now < w.units) next = attn_take(p);
        struct attn_unit u = {};
        if (now < w.units) {
            u = attn_find(p, w, now, false, QUERIES);
            if (u.tile == u.end) continue;
        } else {
            u.mode = END;
        }
        pipe_wait(&s->unit_empty[at.units.stage], at.units.phase ^ 1);
        if (lane == 0) {
            s->unit[at.units.stage] = u;
            pipe_arrive(&s->unit_full[at.units.stage]);
        }
        __syncwarp();
        ring_step(&at.units, 2);
        if (u.mode == END) break;
        copy_unit<D>(p, s, &at, &u);
    }
    if (lane == 0) attn_take_done(p);
}

DEVICE_FN const struct attn_unit *next_unit(struct shared *s, const struct ring *at) {
    pipe_wait(&s->unit_full[at->stage], at->phase);
    return &s->unit[at->stage];
}

DEVICE_FN void release(uint64_t *empty) {
    __syncwarp();
    if (threadIdx.x % WARP == 0) pipe_arrive(empty);
}

DEVICE_FN void unit_done(struct shared *s, struct ring *at) {
    release(&s->unit_empty[at->stage]);
    ring_step(at, 2);
}

// The converting warps: E4M3 pages to fp16 ones.

DEVICE_FN uint2 four_halves(uint32_t x) {
    uint2 r;
    asm("{\n\t.reg .b16 a, b;\n\tmov.b32 {a, b}, %2;\n\tcvt.rn.f16x2.e4m3x2 %0, a;\n\t"
        "cvt.rn.f16x2.e4m3x2 %1, b;\n\t}"
        : "=r"(r.x), "=r"(r.y)
        : "r"(x));
    return r;
}

// Sixteen bytes at a time; rows from n on are zero.
DEVICE_FN void convert_page(unsigned char *to, const unsigned char *from, uint32_t n) {
    const uint32_t units = DIM / 16;
    for (uint32_t i = threadIdx.x - THREADS - WARP; i < ATTN_TILE * units; i += CONVERTERS) {
        uint32_t row = i / units, u = i % units; // the row's unit, two of the fp16 ones
        uint4 x = make_uint4(0, 0, 0, 0);
        if (row < n)
            x = *reinterpret_cast<const uint4 *>(from + u / 8 * KV_BLOCK_BYTES +
                                                 row * KV_LINE_BYTES + (u % 8 ^ row % 8) * 16);
        uint2 a = four_halves(x.x), b = four_halves(x.y), c = four_halves(x.z),
              d = four_halves(x.w);
        unsigned char *line = to + u / 4 * KV_BLOCK_BYTES + row * KV_LINE_BYTES;
        uint32_t first = u % 4 * 2;
        *reinterpret_cast<uint4 *>(line + (first ^ row % 8) * 16) = make_uint4(a.x, a.y, b.x, b.y);
        *reinterpret_cast<uint4 *>(line + (first + 1 ^ row % 8) * 16) =
            make_uint4(c.x, c.y, d.x, d.y);
    }
    pipe_fence();
}

DEVICE_FN void convert_next(struct shared *s, struct ring *raw, struct ring *at,
                            unsigned char (*stages)[TILE_BYTES], uint64_t *full, uint64_t *empty,
                            uint32_t n) {
    pipe_wait(&s->raw_full[raw->stage], raw->phase);
    pipe_wait(&empty[at->stage], at->phase ^ 1);
    convert_page(stages[at->stage], s->raw + raw->stage * RAW_BYTES, n);
    pipe_arrive(&full[at->stage]);
    __syncwarp();
    if (threadIdx.x % WARP == 0) pipe_arrive(&s->raw_empty[raw->stage]);
    ring_step(raw, STAGES);
    ring_step(at, STAGES);
}

DEVICE_FN void convert_all(const struct attn_params &p, struct shared *s) {
    struct rings at = {};
    while (true) {
        const struct attn_unit *u = next_unit(s, &at.units);
        if (u->mode == END) return;
        uint32_t keys = unit_keys(p, u), end = u->end;
        for (uint32_t tile = u->tile; tile < end; tile++) {
            uint32_t n = tile_keys(keys, tile);
            convert_next(s, &at.raw, &at.keys, s->keys, s->key_full, s->key_empty, n);
            convert_next(s, &at.raw, &at.values, s->values, s->value_full, s->value_empty, n);
        }
        unit_done(s, &at.units);
    }
}

// The computing warpgroups. A lane has two queries, its rows g and g + 8 of its warp's sixteen.

struct part {
    float max[2], sum[2];
};

DEVICE_FN struct part part_empty() {
    return (struct part){{-INFINITY, -INFINITY}, {0, 0}};
}

DEVICE_FN uint32_t lane_query(uint32_t which) {
    return threadIdx.x / WARP * 16 + threadIdx.x % WARP / 4 + 8 * which;
}

template <enum dtype D>
DEVICE_FN void load_queries(const struct attn_params &p, unsigned char *to,
                            const struct attn_unit *u) {
    uint32_t lane = threadIdx.x % WARP, first = threadIdx.x / WARP % 4 * 16;
#pragma unroll 8
    for (uint32_t i = 0; i < 16; i++) {
        uint32_t row = first + i, query = threadIdx.x / GROUP_THREADS * HALF_QUERIES + row;
        float4 x = make_float4(0, 0, 0, 0), y = x;
        if (query < u->count) {
            struct attn_query q = attn_query_of(p, u, query);
            const float4 *from = reinterpret_cast<const float4 *>(
                device_ptr<const float>(p.a.qg) + ((uint64_t)q.row * p.a.heads + q.head) * 2 * DIM +
                8 * lane);
            x = from[0];
            y = from[1];
        }
        *reinterpret_cast<uint4 *>(to + lane / 8 * KV_BLOCK_BYTES + row * KV_LINE_BYTES +
                                   (lane % 8 ^ row % 8) * 16) =
            make_uint4(device_pack<form<D>::half>(x.x, x.y), device_pack<form<D>::half>(x.z, x.w),
                       device_pack<form<D>::half>(y.x, y.y), device_pack<form<D>::half>(y.z, y.w));
    }
    pipe_fence();
}

template <enum dtype D>
DEVICE_FN void start_scores(float (&score)[32], uint64_t queries, const unsigned char *keys) {
    uint64_t k = wgmma_lines(pipe_at(keys), 16);
    wgmma_begin();
#pragma unroll
    for (uint32_t i = 0; i < DIM / 16; i++) {
        uint32_t at = (i / 4 * KV_BLOCK_BYTES + i % 4 * 32) >> 4;
        wgmma_scores<form<D>::half>(score, queries + at, k + at, i != 0);
    }
    wgmma_end();
}

template <enum dtype D>
DEVICE_FN void start_values(float (&o)[128], const uint32_t (&weights)[16],
                            const unsigned char *values) {
    uint64_t v = wgmma_lines(pipe_at(values), KV_BLOCK_BYTES);
    wgmma_begin();
#pragma unroll
    for (uint32_t i = 0; i < ATTN_TILE / 16; i++)
        wgmma_values<form<D>::half>(o, weights + 4 * i, v + (i * 16 * KV_LINE_BYTES >> 4));
    wgmma_end();
}

// Scores to p; old: what the chunk's values weigh from now on.
DEVICE_FN void softmax(float (&x)[32], struct part *chunk, float (&old)[2], uint32_t tile,
                       const uint32_t (&pos)[2], bool masks, float unit) {
    uint32_t c = threadIdx.x % 4;
    if (masks) {
#pragma unroll
        for (uint32_t i = 0; i < 32; i++)
            if (tile * ATTN_TILE + i / 4 * 8 + 2 * c + i % 2 > pos[i / 2 % 2]) x[i] = -INFINITY;
    }
#pragma unroll
    for (uint32_t q = 0; q < 2; q++) {
        float max = fmaxf(x[2 * q], x[2 * q + 1]), pairs[8];
#pragma unroll
        for (uint32_t i = 1; i < 8; i++)
            max = fmaxf(max, fmaxf(x[4 * i + 2 * q], x[4 * i + 2 * q + 1]));
        max = fmaxf(max, __shfl_xor_sync(0xffffffffu, max, 1));
        max = fmaxf(max, __shfl_xor_sync(0xffffffffu, max, 2));
        float now = fmaxf(chunk->max[q], max), base = now * unit;
        old[q] = attn_weight(chunk->max[q], now, unit);
#pragma unroll
        for (uint32_t i = 0; i < 8; i++) {
            float *p = &x[4 * i + 2 * q];
            p[0] = attn_exp2(fmaf(p[0], unit, -base));
            p[1] = attn_exp2(fmaf(p[1], unit, -base));
            pairs[i] = p[0] + p[1];
        }
#pragma unroll
        for (uint32_t half = 4; half; half /= 2)
#pragma unroll
            for (uint32_t i = 0; i < half; i++) pairs[i] = pairs[i] + pairs[i + half];
        chunk->sum[q] = fmaf(chunk->sum[q], old[q], pairs[0]);
        chunk->max[q] = now;
    }
}

DEVICE_FN void scale_values(float (&o)[128], const float (&by)[2]) {
    // Mostly the maximum stays what it was.
    if (!__any_sync(0xffffffffu, by[0] != 1.0f || by[1] != 1.0f)) return;
#pragma unroll
    for (uint32_t i = 0; i < 128; i++) o[i] = o[i] * by[i / 2 % 2];
}

template <enum dtype D> DEVICE_FN void pack_weights(uint32_t (&w)[16], const float (&x)[32]) {
#pragma unroll
    for (uint32_t i = 0; i < 16; i++) w[i] = device_pack<form<D>::half>(x[2 * i], x[2 * i + 1]);
}

// The values so far of a level, in scratch: a lane's own.
DEVICE_FN float4 *level_at(const struct attn_params &p, uint32_t level) {
    uint32_t group = threadIdx.x / GROUP_THREADS;
    return device_ptr<float4>(p.levels) +
           ((uint64_t)(blockIdx.x * 2 + group) * 2 + level) * (32 * GROUP_THREADS) +
           threadIdx.x % GROUP_THREADS;
}

DEVICE_FN float4 load_level(const float4 *at, uint32_t i) {
    float4 x;
    asm volatile("ld.global.cg.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(x.x), "=f"(x.y), "=f"(x.z), "=f"(x.w)
                 : "l"(at + i * GROUP_THREADS)
                 : "memory");
    return x;
}

// A level's maximum and sum of a query, beside its values.
DEVICE_FN float2 *level_sum_at(const struct attn_params &p, uint32_t which) {
    return device_ptr<float2>(p.levels) + (uint64_t)gridDim.x * (ATTN_ROWS_LEVELS_BYTES / 8) +
           (uint64_t)blockIdx.x * QUERIES + lane_query(which);
}

/* part joins `to`, whose values stand in level (unless it is empty); the result is in o and, if `keeps`, in level again. */
DEVICE_FN void join(const struct attn_params &p, float (&o)[128], const struct part &from,
                    struct part *to, bool empty, bool keeps, uint32_t level, float unit) {
    float old[2], fresh[2];
#pragma unroll
    for (uint32_t q = 0; q < 2; q++) {
        float now = fmaxf(to->max[q], from.max[q]);
        old[q] = attn_weight(to->max[q], now, unit);
        fresh[q] = attn_weight(from.max[q], now, unit);
        to->sum[q] = fmaf(from.sum[q], fresh[q], to->sum[q] * old[q]);
        to->max[q] = now;
    }
    float4 *at = level_at(p, level);
#pragma unroll
    for (uint32_t first = 0; first < 32; first += LEVEL_BATCH) {
        float4 x[LEVEL_BATCH]; // all on their way before the first is used
        if (!empty) {
#pragma unroll
            for (uint32_t i = 0; i < LEVEL_BATCH; i++) x[i] = load_level(at, first + i);
#pragma unroll
            for (uint32_t i = 0; i < LEVEL_BATCH; i++) {
                float *y = o + 4 * (first + i);
                y[0] = fmaf(y[0], fresh[0], x[i].x * old[0]);
                y[1] = fmaf(y[1], fresh[0], x[i].y * old[0]);
                y[2] = fmaf(y[2], fresh[1], x[i].z * old[1]);
                y[3] = fmaf(y[3], fresh[1], x[i].w * old[1]);
            }
        }
        if (!keeps) continue;
#pragma unroll
        for (uint32_t i = 0; i < LEVEL_BATCH; i++) {
            const float *y = o + 4 * (first + i);
            at[(first + i) * GROUP_THREADS] = make_float4(y[0], y[1], y[2], y[3]);
        }
    }
}

// A chunk has got all its scores: its maximum and sum go where end_chunk finds them, and the next begins.
DEVICE_FN void keep_chunk(struct shared *s, struct part *chunk) {
#pragma unroll
    for (uint32_t q = 0; q < 2; q++) {
        float sum = chunk->sum[q] + __shfl_xor_sync(0xffffffffu, chunk->sum[q], 2);
        sum = sum + __shfl_xor_sync(0xffffffffu, sum, 1);
        if (threadIdx.x % 4 == 0) s->chunk_of[lane_query(q)] = make_float2(chunk->max[q], sum);
    }
    __syncwarp();
    *chunk = part_empty();
}

DEVICE_FN struct part kept(const float2 *of) {
    float2 a = of[lane_query(0)], b = of[lane_query(1)];
    return (struct part){{a.x, b.x}, {a.y, b.y}};
}

DEVICE_FN void keep(float2 *of, const struct part &x) {
    __syncwarp();
    if (threadIdx.x % 4 == 0) {
        of[lane_query(0)] = make_float2(x.max[0], x.sum[0]);
        of[lane_query(1)] = make_float2(x.max[1], x.sum[1]);
    }
    __syncwarp();
}

/* Tile `tile` ended a chunk, whose values are in o. The last of the unit leaves the unit's values in o, and gives their maxima and
 * sums. */
DEVICE_FN struct part end_chunk(const struct attn_params &p, struct shared *s,
                                const struct attn_unit *u, float (&o)[128], uint32_t tile,
                                bool last, float unit) {
    uint32_t chunk = attn_chunk_of(tile), group = tile / ATTN_GROUP_TILES;
    bool first = chunk == attn_group_chunk(group) || u->mode == ATTN_FINE;
    bool group_ends = last || attn_group_ends(tile);
    struct part now = kept(s->chunk_of), to = kept(s->group_of);
    join(p, o, now, &to, first, !group_ends, 0, unit);
    keep(s->group_of, group_ends ? part_empty() : to);
    if (!group_ends) return to;
    struct part all = part_empty();
    first = group == u->tile / ATTN_GROUP_TILES;
    if (!first)
#pragma unroll
        for (uint32_t q = 0; q < 2; q++) {
            float2 x = __ldcg(level_sum_at(p, q));
            all.max[q] = x.x;
            all.sum[q] = x.y;
        }
    join(p, o, to, &all, first, !last, 1, unit);
    __syncwarp();
    if (!last && threadIdx.x % 4 == 0)
#pragma unroll
        for (uint32_t q = 0; q < 2; q++)
            __stcg(level_sum_at(p, q), make_float2(all.max[q], all.sum[q]));
    __syncwarp();
    return all;
}

// Where 16 bytes of a row stand while results are brought into rows: 128 floats a row, pairs of 16 bytes spread over the banks.
DEVICE_FN unsigned char *staged(unsigned char *memory, uint32_t row, uint32_t vector) {
    return memory + row * 512 + (vector / 2 ^ row % 8) * 32 + vector % 2 * 16;
}

// The unit's result, half of the dimensions at a time, through the warp's part of the memory that held the queries.
DEVICE_FN void store(const struct attn_params &p, const struct attn_unit *u, unsigned char *memory,
                     const float (&o)[128], const struct part &all) {
    bool final = attn_is_final(u);
    uint32_t lane = threadIdx.x % WARP, c = lane % 4, first = threadIdx.x / WARP % 4 * 16;
    float inverse[2] = {1, 1};
#pragma unroll
    for (uint32_t k = 0; k < 2; k++) {
        if (final) inverse[k] = 1.0f / all.sum[k];
        if (final || c != 0 || lane_query(k) >= u->count) continue;
        uint64_t part = attn_part(p, u, attn_query_of(p, u, lane_query(k)), attn_unit_slot(u));
        *attn_part_sum(p, part) = make_float2(all.max[k], all.sum[k]);
    }
#pragma unroll
    for (uint32_t half = 0; half < 2; half++) {
        __syncwarp();
#pragma unroll
        for (uint32_t i = 0; i < 16; i++)
#pragma unroll
            for (uint32_t k = 0; k < 2; k++) {
                const float *x = o + 64 * half + 4 * i + 2 * k;
                unsigned char *to = staged(memory, first + lane / 4 + 8 * k, 2 * i + c / 2);
                *reinterpret_cast<float2 *>(to + c % 2 * 8) =
                    make_float2(x[0] * inverse[k], x[1] * inverse[k]);
            }
        __syncwarp();
#pragma unroll 4
        for (uint32_t i = 0; i < 16; i++) {
            uint32_t query = threadIdx.x / GROUP_THREADS * HALF_QUERIES + first + i;
            if (query >= u->count) break;
            struct attn_query q = attn_query_of(p, u, query);
            uint64_t head = (uint64_t)q.row * p.a.heads + q.head;
            uint32_t d = 128 * half + 4 * lane;
            float4 x = *reinterpret_cast<const float4 *>(staged(memory, first + i, lane));
            float *to = device_ptr<float>(p.a.out) + head * DIM;
            if (final) {
                float4 g = *reinterpret_cast<const float4 *>(device_ptr<const float>(p.a.qg) +
                                                             head * 2 * DIM + DIM + d);
                x.x = x.x * arith_sigmoid(g.x);
                x.y = x.y * arith_sigmoid(g.y);
                x.z = x.z * arith_sigmoid(g.z);
                x.w = x.w * arith_sigmoid(g.w);
            } else {
                to = attn_part_values(p, attn_part(p, u, q, attn_unit_slot(u)));
            }
            *reinterpret_cast<float4 *>(to + d) = x;
        }
    }
}

template <enum dtype D>
DEVICE_FN void run_unit(const struct attn_params &p, struct shared *s, struct rings *at,
                        const struct attn_unit *u) {
    uint32_t group = threadIdx.x / GROUP_THREADS, pos[2];
    float unit = attn_unit(p.a.scale), score[32], o[128], old[2];
    uint32_t weights[16];
    struct part chunk = part_empty();
    pipe_sync(SYNC + 1 + group, GROUP_THREADS);
    load_queries<D>(p, s->queries[group], u);
    keep(s->group_of, part_empty());
    pipe_sync(SYNC + 1 + group, GROUP_THREADS);
    uint64_t queries = wgmma_lines(pipe_at(s->queries[group]), 16);
#pragma unroll
    for (uint32_t k = 0; k < 2; k++) {
        uint32_t i = lane_query(k);
        pos[k] = attn_query_of(p, u, i < u->count ? i : u->count - 1).pos;
    }
    uint32_t lowest = group * HALF_QUERIES;
    lowest = attn_query_of(p, u, lowest < u->count ? lowest : u->count - 1).pos;
#pragma unroll
    for (uint32_t i = 0; i < 128; i++) o[i] = 0;

    pipe_wait(&s->key_full[at->keys.stage], at->keys.phase);
    start_scores<D>(score, queries, s->keys[at->keys.stage]);
    wgmma_wait<0>();
    wgmma_hold(score);
    release(&s->key_empty[at->keys.stage]);
    ring_step(&at->keys, STAGES);
    softmax(score, &chunk, old, u->tile, pos, (u->tile + 1) * ATTN_TILE > lowest + 1, unit);
    pack_weights<D>(weights, score);
    const uint32_t end = u->end;
    for (uint32_t tile = u->tile + 1; tile < end; tile++) {
        pipe_wait(&s->key_full[at->keys.stage], at->keys.phase);
        pipe_wait(&s->value_full[at->values.stage], at->values.phase);
        pipe_sync(TURN + group,
                  THREADS); // in turn: one has products while the other has its softmax
        start_scores<D>(score, queries, s->keys[at->keys.stage]);
        start_values<D>(o, weights, s->values[at->values.stage]);
        pipe_pass(TURN + 1 - group, THREADS);
        wgmma_wait<1>();
        wgmma_hold(score);
        release(&s->key_empty[at->keys.stage]);
        ring_step(&at->keys, STAGES);
        bool ended = attn_chunk_ends(tile - 1);
        if (ended) keep_chunk(s, &chunk);
        softmax(score, &chunk, old, tile, pos, (tile + 1) * ATTN_TILE > lowest + 1, unit);
        wgmma_wait<0>();
        wgmma_hold(o);
        wgmma_hold(weights);
        release(&s->value_empty[at->values.stage]);
        ring_step(&at->values, STAGES);
        if (ended) end_chunk(p, s, u, o, tile - 1, false, unit);
        scale_values(o, old);
        pack_weights<D>(weights, score);
    }
    pipe_wait(&s->value_full[at->values.stage], at->values.phase);
    start_values<D>(o, weights, s->values[at->values.stage]);
    wgmma_wait<0>();
    wgmma_hold(o);
    wgmma_hold(weights);
    release(&s->value_empty[at->values.stage]);
    ring_step(&at->values, STAGES);
    keep_chunk(s, &chunk);
    struct part all = end_chunk(p, s, u, o, end - 1, true, unit);
    pipe_sync(SYNC + 1 + group, GROUP_THREADS); // all have done with the queries
    store(p, u, s->queries[group], o, all);
    if (!attn_is_final(u)) attn_gather<DIM, THREADS>(p, u, &s->flag, threadIdx.x, SYNC);
}

template <enum dtype D> DEVICE_FN void start_barriers(struct shared *s) {
    for (uint32_t i = 0; i < STAGES; i++) {
        pipe_init(&s->key_full[i], form<D>::converts ? CONVERTERS : PIPE_COPY_ARRIVALS);
        pipe_init(&s->value_full[i], form<D>::converts ? CONVERTERS : PIPE_COPY_ARRIVALS);
        pipe_init(&s->key_empty[i], WARPS);
        pipe_init(&s->value_empty[i], WARPS);
        pipe_init(&s->raw_full[i], PIPE_COPY_ARRIVALS);
        pipe_init(&s->raw_empty[i], CONVERTERS / WARP);
    }
    for (uint32_t i = 0; i < 2; i++) {
        pipe_init(&s->unit_full[i], 1);
        pipe_init(&s->unit_empty[i], form<D>::unit_readers);
    }
    pipe_init_done();
}

template <enum dtype D> DEVICE_FN void attn_rows(const struct attn_params &p) {
    extern __shared__ __align__(1024) unsigned char memory[];
    struct shared *s = reinterpret_cast<struct shared *>(memory);
    if (threadIdx.x == 0) start_barriers<D>(s);
    __syncthreads();
    device_let_next();
    device_wait_prior();
    if (threadIdx.x >= THREADS) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
        if (threadIdx.x < THREADS + WARP)
            copy_all<D>(p, s);
        else if (form<D>::converts)
            convert_all(p, s);
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
        struct rings at = {};
        if (threadIdx.x >= GROUP_THREADS) pipe_pass(TURN, THREADS); // the first turn is the first's
        while (true) {
            const struct attn_unit *u = next_unit(s, &at.units);
            if (u->mode == END) break;
            run_unit<D>(p, s, &at, u);
            unit_done(s, &at.units);
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS + GROUP_THREADS, 1)
    attn_rows_bf16_sm90(const struct attn_params p) {
    attn_rows<DTYPE_BF16>(p);
}

extern "C" __global__ void __launch_bounds__(THREADS + GROUP_THREADS, 1)
    attn_rows_e4m3_sm90(const struct attn_params p) {
    attn_rows<DTYPE_E4M3>(p);
}

#endif
