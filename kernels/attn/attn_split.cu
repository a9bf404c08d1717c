/* attn_split: see attn.h; attn.cu has the order of arithmetic. For few rows of a stream: the context is cut into units (attn_units.cuh)
 * that blocks take as they come, so that all of them read the cache at once. Eight warps compute, one copies.
 *
 * A tile: scores = keys x queries (each warp sixteen keys), softmax (a warp a query), values^T x p (each warp an eighth of the
 * dimensions), with keys and values the left factors. Blocks are bound by what they read for up to eight queries; more cost more.
 * Equals  attn_ref.c, bit for bit. */
#include "kernels/attn/attn_pipe.cuh"
#include "kernels/attn/attn_units.cuh"
#include "kernels/cuda/kv_at.h"

enum {
    WARPS = 8, // that compute
    THREADS = WARPS * WARP,
    SCORE_ROW = ATTN_TILE + 4, // floats: columns of a step's result fall into different banks
    P_ROW_BYTES = ATTN_TILE * 2,
    STAGES_MAX = ATTN_SPLIT_STAGES_MAX,
    SYNC = 1, // barrier of the computing warps
    END = 0xffffffff,
};

template <enum dtype D, uint32_t DIM_, uint32_t COLS_> struct form {
    static const enum dtype cache = D;
    static const enum dtype half = D == DTYPE_E4M3 ? DTYPE_F16 : DTYPE_BF16;
    static const uint32_t DIM = DIM_, COLS = COLS_, SIZE = D == DTYPE_E4M3 ? 1 : 2;
    static const uint32_t PAGE_BYTES = DIM * SIZE * ATTN_TILE;
    static const uint32_t PARTS = PAGE_BYTES > ATTN_STAGE_BYTES ? PAGE_BYTES / ATTN_STAGE_BYTES : 1;
    static const uint32_t PART_BYTES = PAGE_BYTES / PARTS;
    static const uint32_t NT = COLS / 8;          // steps' columns
    static const uint32_t NT_WARP = (NT + 1) / 2; // of a warp's scores
    static const uint32_t MT = DIM / WARPS / 16;  // steps' rows of a warp's values
};

template <class F> struct shared {
    uint64_t full[STAGES_MAX], empty[STAGES_MAX], unit_full[2], unit_empty[2];
    struct attn_unit unit[2];
    uint32_t flag;
    __align__(16) float old[F::COLS], join_old[F::COLS], join_fresh[F::COLS], inverse[F::COLS];
    float all_max[F::COLS], all_sum[F::COLS]; // of the unit
    uint32_t pos[F::COLS];                    // the queries' positions
    __align__(128) unsigned char queries[F::COLS * F::DIM *
                                         2]; // halves, in lines of 16 bytes at u ^ (col % 8)
    __align__(128) unsigned char p[F::COLS * P_ROW_BYTES];
    float score[F::COLS * SCORE_ROW];
};

static_assert(sizeof(struct shared<form<DTYPE_BF16, 256, 8>>) <= ATTN_SPLIT_SHARED(256, 8), "");
static_assert(sizeof(struct shared<form<DTYPE_BF16, 256, 48>>) <= ATTN_SPLIT_SHARED(256, 48), "");

DEVICE_FN void load_matrices(uint32_t r[4], uint32_t at) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(at));
}

DEVICE_FN void load_transposed(uint32_t r[4], uint32_t at) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(at));
}

// Two E4M3 in the low 16 bits to two fp16.
DEVICE_FN uint32_t halves_of(uint32_t pair) {
#if __CUDA_ARCH__ >= 890
    uint32_t r;
    asm("{\n\t.reg .b16 h;\n\tcvt.u16.u32 h, %1;\n\tcvt.rn.f16x2.e4m3x2 %0, h;\n\t}"
        : "=r"(r)
        : "r"(pair));
    return r;
#else
    return device_pack<DTYPE_F16>(arith_from_e4m3(pair & 255), arith_from_e4m3(pair >> 8 & 255));
#endif
}

// Where a stage or two of the ring hold a page: its 128-byte line `block` of row `row`.
template <class F> struct page_view {
    const unsigned char *ring;
    struct ring first; // stage of its first part
    uint32_t stages;
};

template <class F> DEVICE_FN uint32_t part_stage(const struct page_view<F> &v, uint32_t part) {
    uint32_t s = v.first.stage + part;
    return s < v.stages ? s : s - v.stages;
}

template <class F> DEVICE_FN uint32_t part_phase(const struct page_view<F> &v, uint32_t part) {
    return v.first.stage + part < v.stages ? v.first.phase : v.first.phase ^ 1;
}

template <class F> DEVICE_FN uint32_t line_at(const struct page_view<F> &v, uint32_t block) {
    uint32_t part = block * KV_BLOCK_BYTES / F::PART_BYTES;
    return pipe_at(v.ring + part_stage(v, part) * ATTN_STAGE_BYTES +
                   block * KV_BLOCK_BYTES % F::PART_BYTES);
}

// The copying warp.

template <class F>
DEVICE_FN void copy_page(struct shared<F> *s, unsigned char *ring, struct ring *at, uint32_t stages,
                         const unsigned char *from) {
#pragma unroll
    for (uint32_t part = 0; part < F::PARTS; part++) {
        pipe_wait(&s->empty[at->stage], at->phase ^ 1);
        pipe_copy(ring + at->stage * ATTN_STAGE_BYTES, from + part * F::PART_BYTES, F::PART_BYTES,
                  &s->full[at->stage]);
        ring_step(at, stages);
    }
}

template <class F>
DEVICE_FN void copy_unit(const struct attn_params &p, struct shared<F> *s, unsigned char *ring,
                         struct ring *at, const struct attn_unit *u) {
    const uint32_t *pages =
        device_ptr<const uint32_t>(p.a.kv.table) + (uint64_t)u->slot * p.a.kv.pages_per_slot;
    uint32_t lane = threadIdx.x % WARP;
    for (uint32_t first = u->tile; first < u->end; first += WARP) {
        uint32_t mine = first + lane < u->end ? pages[first + lane] : 0;
        uint32_t count = u->end - first < WARP ? u->end - first : WARP;
        for (uint32_t i = 0; i < count; i++) {
            uint64_t page = __shfl_sync(0xffffffffu, mine, i);
            uint64_t byte = (page * p.a.kv.heads + u->head) * F::PAGE_BYTES;
            copy_page(s, ring, at, p.stages, device_ptr<const unsigned char>(p.a.kv.k) + byte);
            copy_page(s, ring, at, p.stages, device_ptr<const unsigned char>(p.a.kv.v) + byte);
        }
    }
}

template <class F>
DEVICE_FN void copy_all(const struct attn_params &p, struct shared<F> *s, unsigned char *ring) {
    struct attn_work w = attn_finest(p, true, F::COLS);
    struct ring at = {0, 0}, units = {0, 0};
    uint32_t lane = threadIdx.x % WARP, next = blockIdx.x;
    while (true) {
        uint32_t now = __shfl_sync(0xffffffffu, next, 0);
        if (lane == 0 && now < w.units) next = attn_take(p);
        struct attn_unit u = {};
        if (now < w.units) {
            u = attn_find(p, w, now, true, F::COLS);
            if (u.tile == u.end) continue;
        } else {
            u.mode = END;
        }
        pipe_wait(&s->unit_empty[units.stage], units.phase ^ 1);
        if (lane == 0) {
            s->unit[units.stage] = u;
            pipe_arrive(&s->unit_full[units.stage]);
        }
        __syncwarp();
        ring_step(&units, 2);
        if (u.mode == END) break;
        copy_unit(p, s, ring, &at, &u);
    }
    if (lane == 0) attn_take_done(p);
}

// The computing warps.

// Halves of the piece's queries; E4M3: of sixteen neighbours first 0, 1, 4, 5, 8, .. then 2, 3, 6, .., as a lane gets
// four neighbouring keys' bytes at once.
template <class F>
DEVICE_FN void load_queries(const struct attn_params &p, struct shared<F> *s,
                            const struct attn_unit *u) {
    const uint32_t quads = F::DIM / 4;
    for (uint32_t i = threadIdx.x; i < F::COLS * quads; i += THREADS) {
        uint32_t col = i / quads, d = i % quads * 4;
        float4 x = make_float4(0, 0, 0, 0);
        if (col < u->count) {
            struct attn_query q = attn_query_of(p, u, col);
            x = *reinterpret_cast<const float4 *>(
                device_ptr<const float>(p.a.qg) +
                ((uint64_t)q.row * p.a.heads + q.head) * 2 * F::DIM + d);
        }
        uint32_t low = device_pack<F::half>(x.x, x.y), high = device_pack<F::half>(x.z, x.w);
        unsigned char *row = s->queries + col * F::DIM * 2;
        if (F::cache == DTYPE_E4M3) {
            uint32_t at =
                d % 16 / 4 * 4; // byte in the sixteen bytes of the first and the second half
            *reinterpret_cast<uint32_t *>(row + ((d / 8 & ~1u) ^ col % 8) * 16 + at) = low;
            *reinterpret_cast<uint32_t *>(row + ((d / 8 | 1u) ^ col % 8) * 16 + at) = high;
        } else {
            *reinterpret_cast<uint2 *>(row + (d / 8 ^ col % 8) * 16 + d % 8 * 2) =
                make_uint2(low, high);
        }
    }
}

template <class F> DEVICE_FN void release(struct shared<F> *s, uint32_t stage) {
    __syncwarp();
    if (threadIdx.x % WARP == 0) pipe_arrive(&s->empty[stage]);
}

// Left factors of the sixteen keys from `key` on, of four steps: bf16 a line's 64 dimensions, E4M3 half a line's 64.
template <class F>
DEVICE_FN void load_keys(uint32_t a[4][4], uint32_t line, uint32_t unit, uint32_t key) {
    uint32_t lane = threadIdx.x % WARP, row = key + lane % 16;
    line += row * KV_LINE_BYTES;
    if (F::cache == DTYPE_E4M3) {
#pragma unroll
        for (uint32_t i = 0; i < 2; i++) {
            uint32_t r[4];
            load_matrices(r, line + ((unit + 2 * i + lane / 16) ^ row % 8) * 16);
#pragma unroll
            for (uint32_t k = 0; k < 4; k++) { // of step k / 2 rows g, then g + 8
                a[2 * i + k / 2][k % 2] = halves_of(r[k] & 0xffff);
                a[2 * i + k / 2][k % 2 + 2] = halves_of(r[k] >> 16);
            }
        }
    } else {
#pragma unroll
        for (uint32_t i = 0; i < 4; i++)
            load_matrices(a[i], line + ((unit + 2 * i + lane / 16) ^ row % 8) * 16);
    }
}

// sum[j] += keys x queries (column + j) * 8 .., dimensions dim .. dim + 63.
template <class F>
DEVICE_FN void add_scores(float sum[F::NT_WARP][4], const struct shared<F> *s, uint32_t line,
                          uint32_t unit, uint32_t dim, uint32_t key, uint32_t column) {
    uint32_t lane = threadIdx.x % WARP, a[4][4], b[F::NT_WARP][2][4];
    load_keys<F>(a, line, unit, key);
#pragma unroll
    for (uint32_t j = 0; j < F::NT_WARP; j++) {
        uint32_t col = (column + j) * 8 % F::COLS + lane % 8;
#pragma unroll
        for (uint32_t i = 0; i < 2; i++)
            load_matrices(b[j][i], pipe_at(s->queries) + col * F::DIM * 2 +
                                       ((dim / 8 + 4 * i + lane / 8) ^ col % 8) * 16);
    }
#pragma unroll
    for (uint32_t i = 0; i < 4; i++)
#pragma unroll
        for (uint32_t j = 0; j < F::NT_WARP; j++)
            device_mma<F::half>(sum[j], a[i], b[j][i / 2] + i % 2 * 2);
}

template <class F>
DEVICE_FN void tile_scores(struct shared<F> *s, const struct page_view<F> &keys) {
    uint32_t warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    uint32_t key = warp % 4 * 16, column = warp / 4 * F::NT_WARP;
    bool works = column < F::NT;
    float sum[F::NT_WARP][4];
#pragma unroll
    for (uint32_t j = 0; j < F::NT_WARP; j++)
#pragma unroll
        for (uint32_t i = 0; i < 4; i++) sum[j][i] = 0;
#pragma unroll
    for (uint32_t part = 0; part < F::PARTS; part++) {
        uint32_t stage = part_stage(keys, part);
        if (works) {
            const uint32_t blocks = F::PART_BYTES / KV_BLOCK_BYTES;
            pipe_wait(&s->full[stage], part_phase(keys, part));
#pragma unroll
            for (uint32_t d = 0; d < blocks * KV_LINE_BYTES / F::SIZE; d += 64) {
                uint32_t block = part * blocks + d * F::SIZE / KV_LINE_BYTES;
                add_scores<F>(sum, s, line_at(keys, block), d * F::SIZE % KV_LINE_BYTES / 16,
                              part * (F::PART_BYTES / ATTN_TILE / F::SIZE) + d, key, column);
            }
        }
        release(s, stage);
    }
    uint32_t g = lane / 4, c = lane % 4;
    if (!works) return;
#pragma unroll
    for (uint32_t j = 0; j < F::NT_WARP; j++)
#pragma unroll
        for (uint32_t i = 0; i < 4; i++)
            if ((column + j) * 8 < F::COLS)
                s->score[((column + j) * 8 + 2 * c + i % 2) * SCORE_ROW + key + g + i / 2 * 8] =
                    sum[j][i];
}

struct
    softmax { // of a query: the chunk's maximum and a lane's class of its sums; the unit's maximum and sum
    float max, sum, all_max, all_sum;
};

// With tile `tile` a chunk has ended: query col's maximum and sum join the unit's.
template <class F>
DEVICE_FN void end_chunk(struct shared<F> *s, struct softmax *m, uint32_t col, float unit) {
    float sum = m->sum + __shfl_xor_sync(0xffffffffu, m->sum, 2);
    sum = sum + __shfl_xor_sync(0xffffffffu, sum, 1);
    float before = s->all_max[col], all = fmaxf(before, m->max);
    float old = attn_weight(before, all, unit), fresh = attn_weight(m->max, all, unit);
    sum = fmaf(sum, fresh, s->all_sum[col] * old);
    m->max = -INFINITY;
    m->sum = 0;
    __syncwarp();
    if (threadIdx.x % WARP) return;
    s->all_max[col] = all;
    s->all_sum[col] = sum;
    s->join_old[col] = old;
    s->join_fresh[col] = fresh;
    s->inverse[col] = 1.0f / sum;
}

// A warp's queries, every eighth; side by side, since each is a chain of exchanges between the lanes.
template <class F>
DEVICE_FN void tile_softmax(struct shared<F> *s, struct softmax (&m)[F::NT], uint32_t tile,
                            float unit) {
    uint32_t warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    uint32_t key = tile * ATTN_TILE + 2 * lane;
    float2 x[F::NT];
    float now[F::NT], sum[F::NT];
#pragma unroll
    for (uint32_t j = 0; j < F::NT; j++) {
        uint32_t col = j * WARPS + warp, pos = s->pos[col];
        x[j] = *reinterpret_cast<const float2 *>(s->score + col * SCORE_ROW + 2 * lane);
        if (key > pos) x[j].x = -INFINITY;
        if (key + 1 > pos) x[j].y = -INFINITY;
        now[j] = fmaxf(x[j].x, x[j].y);
    }
#pragma unroll
    for (uint32_t d = WARP / 2; d; d /= 2)
#pragma unroll
        for (uint32_t j = 0; j < F::NT; j++)
            now[j] = fmaxf(now[j], __shfl_xor_sync(0xffffffffu, now[j], d));
#pragma unroll
    for (uint32_t j = 0; j < F::NT; j++) {
        uint32_t col = j * WARPS + warp;
        now[j] = fmaxf(m[j].max, now[j]);
        float old = attn_weight(m[j].max, now[j], unit), base = now[j] * unit;
        x[j].x = attn_exp2(fmaf(x[j].x, unit, -base));
        x[j].y = attn_exp2(fmaf(x[j].y, unit, -base));
        sum[j] = x[j].x + x[j].y;
        m[j].max = now[j];
        *reinterpret_cast<uint32_t *>(s->p + col * P_ROW_BYTES + (lane / 4 ^ col % 8) * 16 +
                                      lane % 4 * 4) = device_pack<F::half>(x[j].x, x[j].y);
        if (lane == 0) s->old[col] = old;
        now[j] = old;
    }
#pragma unroll
    for (uint32_t d = WARP / 2; d >= 4; d /= 2)
#pragma unroll
        for (uint32_t j = 0; j < F::NT; j++)
            sum[j] = sum[j] + __shfl_xor_sync(0xffffffffu, sum[j], d);
#pragma unroll
    for (uint32_t j = 0; j < F::NT; j++) m[j].sum = fmaf(m[j].sum, now[j], sum[j]);
}

// Rows behind the piece's last position may hold anything; p is 0 there, and must meet a number.
template <class F>
DEVICE_FN void clear_behind(struct shared<F> *s, const struct page_view<F> &values, uint32_t n) {
    for (uint32_t part = 0; part < F::PARTS; part++)
        pipe_wait(&s->full[part_stage(values, part)], part_phase(values, part));
    const uint32_t blocks = F::PAGE_BYTES / KV_BLOCK_BYTES, units = KV_LINE_BYTES / 16;
    for (uint32_t i = threadIdx.x; i < (ATTN_TILE - n) * units * blocks; i += THREADS) {
        uint32_t block = i % blocks, rest = i / blocks;
        uint32_t to =
            line_at(values, block) + (n + rest / units) * KV_LINE_BYTES + rest % units * 16;
        asm volatile("st.shared.v4.b32 [%0], {%1,%1,%1,%1};" ::"r"(to), "r"(0) : "memory");
    }
    pipe_fence();
}

// Values of sixteen dimensions from `dim` on, all keys of the tile: four steps' left factors.
template <class F>
DEVICE_FN void load_values(uint32_t a[4][4], const struct page_view<F> &values, uint32_t dim) {
    uint32_t lane = threadIdx.x % WARP, byte = dim * F::SIZE;
    uint32_t line = line_at(values, byte / KV_LINE_BYTES), unit = byte % KV_LINE_BYTES / 16;
    if (F::cache == DTYPE_E4M3) {
#pragma unroll
        for (uint32_t k = 0; k < 4; k += 2) {
            uint32_t r[4], key = k * 16 + lane;
            load_transposed(r, line + key * KV_LINE_BYTES + (unit ^ key % 8) * 16);
#pragma unroll
            for (uint32_t i = 0; i < 4; i++) { // to: a dimension's two keys together
                uint32_t x = __byte_perm(r[i], 0, 0x3120);
                a[k + i / 2][i % 2 * 2] = halves_of(x & 0xffff);
                a[k + i / 2][i % 2 * 2 + 1] = halves_of(x >> 16);
            }
        }
    } else {
#pragma unroll
        for (uint32_t k = 0; k < 4; k++) {
            uint32_t key = k * 16 + lane % 8 + lane / 16 * 8, u = unit + lane / 8 % 2;
            load_transposed(a[k], line + key * KV_LINE_BYTES + (u ^ key % 8) * 16);
        }
    }
}

// Of a step's result i of a lane: its dimension among sixteen.
template <class F> DEVICE_FN uint32_t dim_of(uint32_t i) {
    uint32_t g = threadIdx.x % WARP / 4;
    return F::cache == DTYPE_E4M3 ? 2 * g + i / 2 : g + i / 2 * 8;
}

template <class F> struct sums { // a warp's values: of the chunk, of the unit
    float chunk[F::MT][F::NT][4], all[F::MT][F::NT][4];
};

// The warp's share of the tile's values.
template <class F>
DEVICE_FN void take_values(uint32_t a[F::MT][4][4], struct shared<F> *s,
                           const struct page_view<F> &values) {
    uint32_t dim = threadIdx.x / WARP * (F::DIM / WARPS);
    uint32_t mine = dim * F::SIZE / KV_LINE_BYTES * KV_BLOCK_BYTES / F::PART_BYTES;
    pipe_wait(&s->full[part_stage(values, mine)], part_phase(values, mine));
#pragma unroll
    for (uint32_t m = 0; m < F::MT; m++) load_values<F>(a[m], values, dim + 16 * m);
    for (uint32_t part = 0; part < F::PARTS; part++) release(s, part_stage(values, part));
}

template <class F>
DEVICE_FN void add_values(const struct shared<F> *s, struct sums<F> *o,
                          const uint32_t a[F::MT][4][4]) {
    uint32_t lane = threadIdx.x % WARP, c = lane % 4;
#pragma unroll
    for (uint32_t j = 0; j < F::NT; j++) {
        float2 old = *reinterpret_cast<const float2 *>(s->old + j * 8 + 2 * c);
#pragma unroll
        for (uint32_t m = 0; m < F::MT; m++)
#pragma unroll
            for (uint32_t i = 0; i < 4; i++)
                o->chunk[m][j][i] = o->chunk[m][j][i] * (i % 2 ? old.y : old.x);
    }
#pragma unroll
    for (uint32_t k = 0; k < 4; k += 2) {
        uint32_t b[F::NT][4];
#pragma unroll
        for (uint32_t j = 0; j < F::NT; j++) {
            uint32_t col = j * 8 + lane % 8;
            load_matrices(b[j],
                          pipe_at(s->p) + col * P_ROW_BYTES + ((2 * k + lane / 8) ^ col % 8) * 16);
        }
#pragma unroll
        for (uint32_t i = 0; i < 2; i++)
#pragma unroll
            for (uint32_t j = 0; j < F::NT; j++)
#pragma unroll
                for (uint32_t m = 0; m < F::MT; m++)
                    device_mma<F::half>(o->chunk[m][j], a[m][k + i], b[j] + 2 * i);
    }
}

// The chunk's values join the unit's.
template <class F> DEVICE_FN void join_values(const struct shared<F> *s, struct sums<F> *o) {
    uint32_t c = threadIdx.x % 4;
#pragma unroll
    for (uint32_t j = 0; j < F::NT; j++) {
        float2 was = *reinterpret_cast<const float2 *>(s->join_old + j * 8 + 2 * c);
        float2 fresh = *reinterpret_cast<const float2 *>(s->join_fresh + j * 8 + 2 * c);
#pragma unroll
        for (uint32_t m = 0; m < F::MT; m++)
#pragma unroll
            for (uint32_t i = 0; i < 4; i++) {
                float *all = &o->all[m][j][i];
                *all = fmaf(o->chunk[m][j][i], i % 2 ? fresh.y : fresh.x,
                            *all * (i % 2 ? was.y : was.x));
                o->chunk[m][j][i] = 0;
            }
    }
}

template <class F>
DEVICE_FN void store(const struct attn_params &p, const struct shared<F> *s,
                     const struct attn_unit *u, const struct sums<F> *o) {
    uint32_t warp = threadIdx.x / WARP, c = threadIdx.x % 4;
    bool final = attn_is_final(u);
#pragma unroll
    for (uint32_t j = 0; j < F::NT; j++)
#pragma unroll
        for (uint32_t k = 0; k < 2; k++) {
            uint32_t col = j * 8 + 2 * c + k;
            if (col >= u->count) continue;
            struct attn_query q = attn_query_of(p, u, col);
            uint64_t head = (uint64_t)q.row * p.a.heads + q.head;
            const float *gate = device_ptr<const float>(p.a.qg) + head * 2 * F::DIM + F::DIM;
            float *to = final ? device_ptr<float>(p.a.out) + head * F::DIM
                              : attn_part_values(p, attn_part(p, u, q, attn_unit_slot(u)));
#pragma unroll
            for (uint32_t m = 0; m < F::MT; m++)
#pragma unroll
                for (uint32_t i = k; i < 4; i += 2) {
                    uint32_t d = warp * (F::DIM / WARPS) + 16 * m + dim_of<F>(i);
                    float x = o->all[m][j][i];
                    to[d] = final ? attn_gated(x, s->inverse[col], gate[d]) : x;
                }
        }
}

template <class F>
DEVICE_FN void run_unit(const struct attn_params &p, struct shared<F> *s, const unsigned char *ring,
                        struct ring *at, const struct attn_unit *u) {
    uint32_t warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    float unit = attn_unit(p.a.scale);
    struct softmax m[F::NT];
    struct sums<F> o;
#pragma unroll
    for (uint32_t j = 0; j < F::NT; j++) {
        uint32_t col = j * WARPS + warp;
        m[j] = (struct softmax){-INFINITY, 0};
        if (lane == 0) {
            s->all_max[col] = -INFINITY;
            s->all_sum[col] = 0;
            s->pos[col] = attn_query_of(p, u, col < u->count ? col : u->count - 1).pos;
        }
#pragma unroll
        for (uint32_t k = 0; k < F::MT; k++)
#pragma unroll
            for (uint32_t i = 0; i < 4; i++) o.chunk[k][j][i] = o.all[k][j][i] = 0;
    }
    load_queries(p, s, u);
    pipe_sync(SYNC, THREADS);
    uint32_t keys = attn_query_of(p, u, u->count - 1).pos + 1; // of the piece's context
    for (uint32_t tile = u->tile; tile < u->end; tile++) {
        struct page_view<F> k = {
            ring, *at, p.stages
        };
        for (uint32_t i = 0; i < F::PARTS; i++) ring_step(at, p.stages);
        struct page_view<F> v = {
            ring, *at, p.stages
        };
        for (uint32_t i = 0; i < F::PARTS; i++) ring_step(at, p.stages);
        bool ends = tile + 1 == u->end || attn_chunk_ends(tile);
        uint32_t a[F::MT][4][4];
        tile_scores(s, k);
        pipe_sync(SYNC, THREADS);
        tile_softmax<F>(s, m, tile, unit);
        if (ends)
#pragma unroll
            for (uint32_t j = 0; j < F::NT; j++) end_chunk(s, &m[j], j * WARPS + warp, unit);
        if ((tile + 1) * ATTN_TILE > keys) {
            clear_behind(s, v, keys - tile * ATTN_TILE);
            pipe_sync(SYNC, THREADS);
        }
        take_values<F>(a, s, v);
        pipe_sync(SYNC, THREADS);
        add_values<F>(s, &o, a);
        if (ends) join_values<F>(s, &o);
    }
    store(p, s, u, &o);
    if (attn_is_final(u)) return;
#pragma unroll
    for (uint32_t j = 0; j < F::NT; j++) {
        uint32_t col = j * WARPS + warp;
        if (lane != 0 || col >= u->count) continue;
        struct attn_query q = attn_query_of(p, u, col);
        *attn_part_sum(p, attn_part(p, u, q, attn_unit_slot(u))) =
            make_float2(s->all_max[col], s->all_sum[col]);
    }
    attn_gather<F::DIM, THREADS>(p, u, &s->flag, threadIdx.x, SYNC);
}

template <class F> DEVICE_FN void attn_split(const struct attn_params &p) {
    extern __shared__ __align__(1024) unsigned char memory[];
    unsigned char *ring = memory;
    struct shared<F> *s =
        reinterpret_cast<struct shared<F> *>(memory + p.stages * ATTN_STAGE_BYTES);
    if (threadIdx.x == 0) {
        for (uint32_t i = 0; i < p.stages; i++) {
            pipe_init(&s->full[i], PIPE_COPY_ARRIVALS);
            pipe_init(&s->empty[i], WARPS);
        }
        for (uint32_t i = 0; i < 2; i++) {
            pipe_init(&s->unit_full[i], 1);
            pipe_init(&s->unit_empty[i], WARPS);
        }
        pipe_init_done();
    }
    __syncthreads();
    device_let_next();
    device_wait_prior();
    if (threadIdx.x >= THREADS) {
        copy_all(p, s, ring);
        return;
    }
    struct ring at = {0, 0}, units = {0, 0};
    while (true) {
        pipe_wait(&s->unit_full[units.stage], units.phase);
        const struct attn_unit *u = &s->unit[units.stage];
        if (u->mode == END) return;
        run_unit(p, s, ring, &at, u);
        pipe_sync(SYNC, THREADS); // before the next one's queries
        if (threadIdx.x % WARP == 0) pipe_arrive(&s->unit_empty[units.stage]);
        ring_step(&units, 2);
    }
}

#define ATTN_SPLIT(name, d, dim, cols, blocks)                                                     \
    extern "C" __global__ void __launch_bounds__(THREADS + WARP, blocks)                           \
        attn_split_##name##_##dim##_##cols(const struct attn_params p) {                           \
        attn_split<form<d, dim, cols>>(p);                                                         \
    }
#define ATTN_SPLIT_DIM(name, d, dim)                                                               \
    ATTN_SPLIT(name, d, dim, 8, 2)                                                                 \
    ATTN_SPLIT(name, d, dim, 24, 1)                                                                \
    ATTN_SPLIT(name, d, dim, 48, 1)
ATTN_SPLIT_DIM(bf16, DTYPE_BF16, 256)
ATTN_SPLIT_DIM(e4m3, DTYPE_E4M3, 256)
