/* exl3_int_many: EXL3 parts by integers (exl3_int.h) for many rows.
 *
 * exl3_int_many_rows makes integers of the rows, once for each part. exl3_int_many_R_B multiplies R rows by the weights of a width (B half bits,
 * 0: any): weights are decoded in registers to b' in fp16, rows are fp16 integers, the tensor cores' fp32 sums are integers.
 * sm_90: wgmma of four warps, the weights from registers; elsewhere mma.sync.
 * Exact   a unit of 64 inputs is summed from 0. Let L = 510 * sum |q| of the row's unit. If a partial sum reached 2^24, the unit's
 *         sum as computed would be at least 2^25 - L - 16 in size: each step cuts less than 2, and what follows changes a sum by no
 *         more than its share of L. Units with L up to 2^25 - 2^22 - 16 whose sums are below 2^22 are therefore exact. All others
 *         are done again in pieces of 16 inputs, which always are: 16 * 510 * 2047 < 2^24.
 * Equals  exl3_int_ref.c, bit for bit, whatever the rows of a launch and its count of thread blocks.
 * Cost    decoding the weights once for each R rows. */
#include "kernels/linear/exl3_int_many.cuh"

enum {
#if __CUDA_ARCH__ >= 900
    MANY_COPIES = 1, // arrivals that fill a stage
#else
    MANY_COPIES = EXL3_INT_MANY_THREADS,
#endif
};

// A warp's 128 channels: rotated.
DEVICE_FN void rows_rotate(const float *x, const uint16_t *suh, uint32_t block, float v[4]) {
    uint32_t first = block * EXL3_BLOCK + threadIdx.x % WARP * EXL3_LANE_CHANNELS;
    float4 f = *reinterpret_cast<const float4 *>(x + first);
    uint2 s = *reinterpret_cast<const uint2 *>(suh + first);
    v[0] = f.x * arith_from_f16((uint16_t)s.x);
    v[1] = f.y * arith_from_f16((uint16_t)(s.x >> 16));
    v[2] = f.z * arith_from_f16((uint16_t)s.y);
    v[3] = f.w * arith_from_f16((uint16_t)(s.y >> 16));
    exl3_rotate(v);
}

// A warp's 128 channels to integers: written, and what is known of them.
DEVICE_FN int32_t rows_write(const struct exl3_int_many_params &p, const float v[4], float inverse,
                             uint32_t block, uint32_t part, uint32_t row) {
    uint32_t lane = threadIdx.x % WARP, units = p.a.parts[0].w.cols / EXL3_INT_MANY_UNIT;
    int32_t q[4], sum = 0, size = 0, square = 0;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        q[i] = exl3_int_value(v[i], inverse);
        sum += q[i];
        size += abs(q[i]);
        square += q[i] * q[i];
    }
    // Of tile c, lane m = lane % 4 has inputs 4 m .. 4 m + 3.
    uint32_t low = many_f16(q[0], q[1]), high = many_f16(q[2], q[3]);
    uint32_t unit = block * 2 + lane / 16, m = lane % 4, c = lane % 16 / 4;
    uint64_t at = ((uint64_t)part * units + unit) * p.rows_padded + row;
    char *to = device_ptr<char>(p.q) + at * 128;
    if (p.by_tile) {
        bool second = m & 2;
        uint32_t other = __shfl_xor_sync(0xffffffffu, second ? low : high, 2);
        uint32_t s = m % 2 * 2 + (second ? 1 : 0), piece = (2 * c + s / 2) ^ (row & 7);
        *reinterpret_cast<uint2 *>(to + piece * 16 + s % 2 * 8) =
            second ? make_uint2(other, high) : make_uint2(low, other);
#pragma unroll
        for (int d = 8; d; d /= 2) square += __shfl_xor_sync(0xffffffffu, square, d);
        int32_t both = square + __shfl_xor_sync(0xffffffffu, square, 16);
        uint32_t kind = lane / 8; // 0, 2: a unit's; 1: of both
        uint64_t norm = ((uint64_t)part * (units / 2) + block) * EXL3_INT_WIDE_NORMS + kind;
        if (lane % 8 == 0 && kind < EXL3_INT_WIDE_NORMS)
            atomicMax(device_ptr<uint32_t>(p.q_norms) +
                          norm * (p.rows_padded / EXL3_INT_WIDE_HALF) + row / EXL3_INT_WIDE_HALF,
                      (uint32_t)(kind == 1 ? both : square));
    } else {
        uint32_t s = m % 2 * 2, half = m / 2;
        *reinterpret_cast<uint32_t *>(to + ((2 * s + half) ^ (row & 7)) * 16 + 4 * c) = low;
        *reinterpret_cast<uint32_t *>(to + ((2 * s + 2 + half) ^ (row & 7)) * 16 + 4 * c) = high;
#pragma unroll
        for (int d = 8; d; d /= 2) size += __shfl_xor_sync(0xffffffffu, size, d);
        if (lane % 16 == 0) device_ptr<uint8_t>(p.flat)[at] = size > MANY_FLAT_SUM;
    }
    return sum;
}

// A row: a warp keeps up to KEPT blocks of 128 inputs in registers; what is beyond them is rotated twice.
template <uint32_t R_WARPS, uint32_t KEPT>
DEVICE_FN void rows_run(const struct exl3_int_many_params &p) {
    __shared__ uint32_t largest[R_WARPS];
    __shared__ int32_t sums[R_WARPS];
    uint32_t row = blockIdx.x, part = blockIdx.y, warp = threadIdx.x / WARP;
    uint32_t cols = p.a.parts[0].w.cols, blocks = cols / EXL3_BLOCK;
    const uint16_t *suh = device_ptr<const uint16_t>(p.a.parts[part].w.exl3.suh);
    device_let_next();
    device_wait_prior();
    bool have = row < p.a.rows;
    const float *x = device_ptr<const float>(p.a.x) + (uint64_t)row * cols;
    float v[KEPT][4];
    uint32_t top = 0;
#pragma unroll
    for (uint32_t i = 0; i < KEPT; i++) {
        uint32_t b = warp + i * R_WARPS;
        v[i][0] = v[i][1] = v[i][2] = v[i][3] = 0;
        if (b >= blocks || !have) continue;
        rows_rotate(x, suh, b, v[i]);
#pragma unroll
        for (int j = 0; j < 4; j++) top = max(top, exl3_int_size(v[i][j]));
    }
    for (uint32_t b = warp + KEPT * R_WARPS; b < blocks && have; b += R_WARPS) {
        float t[4];
        rows_rotate(x, suh, b, t);
#pragma unroll
        for (int j = 0; j < 4; j++) top = max(top, exl3_int_size(t[j]));
    }
    top = __reduce_max_sync(0xffffffffu, top);
    if (threadIdx.x % WARP == 0) largest[warp] = top;
    __syncthreads();
    for (uint32_t w = 0; w < R_WARPS; w++) top = max(top, largest[w]);
    float inverse = exl3_int_inverse(top);
    int32_t sum = 0;
#pragma unroll
    for (uint32_t i = 0; i < KEPT; i++) {
        uint32_t b = warp + i * R_WARPS;
        if (b < blocks) sum += rows_write(p, v[i], inverse, b, part, row);
    }
    for (uint32_t b = warp + KEPT * R_WARPS; b < blocks; b += R_WARPS) {
        float t[4] = {0, 0, 0, 0};
        if (have) rows_rotate(x, suh, b, t);
        sum += rows_write(p, t, inverse, b, part, row);
    }
    sum = __reduce_add_sync(0xffffffffu, sum);
    if (threadIdx.x % WARP == 0) sums[warp] = sum;
    __syncthreads();
    if (threadIdx.x) return;
    sum = 0;
    for (uint32_t w = 0; w < R_WARPS; w++) sum += sums[w];
    device_ptr<struct exl3_int_many_info>(p.info)[(uint64_t)part * p.rows_padded + row] =
        (struct exl3_int_many_info){exl3_int_scale(top), sum};
}

// Grid: rows, padded; parts.
extern "C" __global__ void __launch_bounds__(EXL3_INT_MANY_ROWS_THREADS)
    exl3_int_many_rows(const struct exl3_int_many_params p) {
    rows_run<EXL3_INT_MANY_ROWS_THREADS / WARP, EXL3_INT_MANY_ROWS_KEPT>(p);
}

// The same for longer rows.
extern "C" __global__ void __launch_bounds__(2 * EXL3_INT_MANY_ROWS_THREADS)
    exl3_int_many_rows_long(const struct exl3_int_many_params p) {
    rows_run<2 * EXL3_INT_MANY_ROWS_THREADS / WARP, EXL3_INT_MANY_ROWS_KEPT_LONG>(p);
}

/* The work of a launch: tiles of ROWS rows, in each the blocks of 128 outputs of all parts, in each the units of 64 inputs. Thread
 * blocks take equal runs of it. */
struct many_place {
    const struct linear_part *part;
    uint32_t nth;   // the part's number
    uint32_t block; // of the part's outputs
    uint32_t row;   // the tile's first
};

DEVICE_FN struct many_place many_find(const struct exl3_int_many_params &p, uint32_t whole,
                                      uint32_t rows) {
    uint32_t i = 0, block = whole % p.blocks;
    while (block >= p.a.parts[i].w.rows / EXL3_BLOCK) block -= p.a.parts[i++].w.rows / EXL3_BLOCK;
    return (struct many_place){&p.a.parts[i], i, block, whole / p.blocks * rows};
}

// The first unit of a thread block.
DEVICE_FN uint32_t many_from(const struct exl3_int_many_params &p, uint32_t units, uint32_t rows,
                             uint32_t nth) {
    uint64_t all = (uint64_t)p.rows_padded / rows * p.blocks * units;
    return (uint32_t)(all * nth / gridDim.x);
}

#if __CUDA_ARCH__ < 900
DEVICE_FN void many_copy16(uint32_t to, const char *from) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}
#endif

// Where the next copies come from: a unit's tiles, of 128 outputs, and its rows.
struct many_source {
    const char *tiles, *q, *flat;
    uint32_t stride;   // bytes between rows of tiles
    uint32_t at, left; // the unit, and how many are left of its block of outputs
};

template <int ROWS>
DEVICE_FN struct many_source many_source_of(const struct exl3_int_many_params &p, uint32_t at) {
    uint32_t units = p.a.parts[0].w.cols / EXL3_INT_MANY_UNIT, unit = at % units;
    struct many_place place = many_find(p, at / units, ROWS);
    const struct weight &w = place.part->w;
    uint64_t row = ((uint64_t)place.nth * units + unit) * p.rows_padded + place.row;
    uint32_t stride = w.rows * p.half_bits;
    return (struct many_source){device_ptr<const char>(w.data) +
                                    (uint64_t)place.block * EXL3_BLOCK * p.half_bits +
                                    (uint64_t)unit * 4 * stride,
                                device_ptr<const char>(p.q) + row * 128,
                                device_ptr<const char>(p.flat) + row,
                                stride,
                                at,
                                units - unit};
}

template <int ROWS>
DEVICE_FN void many_next(const struct exl3_int_many_params &p, uint32_t to, struct many_source *s) {
    s->at++;
    s->tiles += (uint64_t)4 * s->stride;
    s->q += (uint64_t)p.rows_padded * 128;
    s->flat += p.rows_padded;
    if (--s->left == 0 && s->at < to) *s = many_source_of<ROWS>(p, s->at);
}

// A warp's share of a unit's copies: a row of tiles,
template <int ROWS>
DEVICE_FN void many_copy_tiles(const struct many_source &s, uint32_t half_bits, uint32_t to,
                               uint32_t full) {
    uint32_t warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    uint32_t row_bytes = EXL3_BLOCK * half_bits;
    const char *from = s.tiles + (uint64_t)warp * s.stride;
    to += exl3_int_many_tiles(ROWS) + warp * exl3_int_many_tile_row(half_bits);
#if __CUDA_ARCH__ >= 900
    if (lane) return;
    if (warp == 0) many_expect(full, ROWS * 129 + 4 * row_bytes);
    many_copy(to, from, row_bytes, full);
#else
    for (uint32_t o = lane * 16; o < row_bytes; o += WARP * 16) many_copy16(to + o, from + o);
#endif
}

// and of the rows.
template <int ROWS>
DEVICE_FN void many_copy_rows(const struct many_source &s, uint32_t half_bits, uint32_t to,
                              uint32_t full) {
    uint32_t flat = to + exl3_int_many_flat(ROWS, half_bits);
#if __CUDA_ARCH__ >= 900
    if (threadIdx.x == WARP) many_copy(to, s.q, ROWS * 128, full);
    if (threadIdx.x == 2 * WARP) many_copy(flat, s.flat, ROWS, full);
#else
    for (uint32_t o = threadIdx.x * 16; o < ROWS * 128; o += EXL3_INT_MANY_THREADS * 16)
        many_copy16(to + o, s.q + o);
    if (threadIdx.x < ROWS / 16) many_copy16(flat + threadIdx.x * 16, s.flat + threadIdx.x * 16);
    asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(full) : "memory");
#endif
}

// A thread block's sums to its slot: [row][output]. They become 0.
template <int ROWS> DEVICE_FN void many_store(int32_t *slot, int32_t total[2][ROWS / 8][4]) {
    uint32_t lane = threadIdx.x % WARP, c = lane % 4;
    // The lane's outputs: 2 h, 2 h + 1 and 8 more of the warp's tile lane / 16.
    slot += threadIdx.x / WARP * 32 + lane / 16 * 16 + lane / 4 % 4 * 2;
#pragma unroll
    for (int n = 0; n < ROWS / 8; n++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            *reinterpret_cast<int2 *>(slot + (n * 8 + 2 * c + i % 2) * EXL3_BLOCK + i / 2 * 8) =
                make_int2(total[0][n][i], total[1][n][i]);
            total[0][n][i] = total[1][n][i] = 0;
        }
}

/* The thread blocks that have units of a block of outputs, and their slots: two each, the second for what it does not begin with. Sums
 * are mod 2^32: no order. */
struct many_sharers {
    uint32_t first, last;
    uint32_t first_slot; // of the first one
};

DEVICE_FN struct many_sharers many_sharers_of(const struct exl3_int_many_params &p, uint32_t units,
                                              uint32_t rows, uint32_t whole) {
    uint32_t from = whole * units, to = from + units, b = blockIdx.x, e = blockIdx.x;
    while (b && many_from(p, units, rows, b) > from) b--;
    while (e + 1 < gridDim.x && many_from(p, units, rows, e + 1) < to) e++;
    return (struct many_sharers){b, e, many_from(p, units, rows, b) < from ? 2 * b + 1 : 2 * b};
}

// Rows of a block of outputs from the sharers' sums, four of a warp at a time.
template <int ROWS>
DEVICE_FN void many_finish(const struct exl3_int_many_params &p, uint32_t whole,
                           const struct many_sharers &by) {
    enum { BESIDE = 4 };
    struct many_place at = many_find(p, whole, ROWS);
    uint32_t warp = threadIdx.x / WARP, n = threadIdx.x % WARP * EXL3_LANE_CHANNELS;
    const struct exl3_int_many_info *infos = device_ptr<const struct exl3_int_many_info>(p.info) +
                                             (uint64_t)at.nth * p.rows_padded + at.row;
    const int32_t *sums = device_ptr<const int32_t>(p.sums) + n;
    struct many_outputs out = many_outputs_of(*at.part, at.block * EXL3_BLOCK + n);
    for (uint32_t first = 0; first < ROWS / EXL3_INT_MANY_WARPS; first += BESIDE) {
        uint32_t row =
            warp + first * EXL3_INT_MANY_WARPS; // and every EXL3_INT_MANY_WARPS behind it
        if (at.row + row >= p.a.rows) break;
        uint4 s[BESIDE];
        struct exl3_int_many_info info[BESIDE];
#pragma unroll
        for (uint32_t i = 0; i < BESIDE; i++) {
            s[i] = make_uint4(0, 0, 0, 0);
            info[i] = infos[row + i * EXL3_INT_MANY_WARPS];
        }
        for (uint32_t b = by.first; b <= by.last; b++) {
            uint32_t slot = b == by.first ? by.first_slot : 2 * b;
            const int32_t *from = sums + ((uint64_t)slot * ROWS + row) * EXL3_BLOCK;
#pragma unroll
            for (uint32_t i = 0; i < BESIDE; i++) {
                uint4 v = __ldcg(
                    reinterpret_cast<const uint4 *>(from + i * EXL3_INT_MANY_WARPS * EXL3_BLOCK));
                s[i] = make_uint4(s[i].x + v.x, s[i].y + v.y, s[i].z + v.z, s[i].w + v.w);
            }
        }
#pragma unroll
        for (uint32_t i = 0; i < BESIDE; i++) {
            const uint32_t of[EXL3_LANE_CHANNELS] = {s[i].x, s[i].y, s[i].z, s[i].w};
            float v[EXL3_LANE_CHANNELS];
#pragma unroll
            for (uint32_t j = 0; j < EXL3_LANE_CHANNELS; j++)
                v[j] = exl3_int_answer((int32_t)of[j], info[i].q_sum, info[i].scale);
            uint32_t r = at.row + row + i * EXL3_INT_MANY_WARPS;
            if (r < p.a.rows)
                many_answer(out, v,
                            device_ptr<float>(at.part->y) + (uint64_t)r * at.part->w.rows +
                                at.block * EXL3_BLOCK + n);
        }
    }
}

// What this thread block has of a block of outputs has been summed: where all sharers have, the last one finishes.
template <int ROWS>
DEVICE_FN void many_end(const struct exl3_int_many_params &p, uint32_t from, uint32_t whole,
                        uint32_t done, int32_t total[2][ROWS / 8][4]) {
    __shared__ uint32_t last;
    uint32_t units = p.a.parts[0].w.cols / EXL3_INT_MANY_UNIT;
    uint32_t slot = 2 * blockIdx.x + (from < whole * units ? 1 : 0);
    struct many_sharers by = many_sharers_of(p, units, ROWS, whole);
    many_store<ROWS>(device_ptr<int32_t>(p.sums) + (uint64_t)slot * ROWS * EXL3_BLOCK, total);
    if (by.first == by.last) {
        __syncthreads();
    } else {
        __threadfence();
        __syncthreads();
        if (threadIdx.x == 0) {
            uint32_t *counter = device_ptr<uint32_t>(p.counters) + by.first;
            last = atomicAdd(counter, done) + done == units;
            if (last) *counter = 0;
        }
        __syncthreads();
        if (!last) return;
        __threadfence();
    }
    many_finish<ROWS>(p, whole, by);
    __syncthreads();
}

// Grid: any count of thread blocks, up to that of units.
template <int ROWS, int BITS2> DEVICE_FN void many_run(const struct exl3_int_many_params &p) {
    extern __shared__ __align__(1024) char many_stages[];
    __shared__ uint64_t barriers[2 * EXL3_INT_MANY_STAGES];
    uint32_t half_bits = BITS2 ? BITS2 : p.half_bits, warp = threadIdx.x / WARP;
    uint32_t lane = threadIdx.x % WARP, h = lane / 4 % 4;
    uint32_t units = p.a.parts[0].w.cols / EXL3_INT_MANY_UNIT;
    uint32_t from = many_from(p, units, ROWS, blockIdx.x);
    uint32_t to = many_from(p, units, ROWS, blockIdx.x + 1);
    uint32_t stage_bytes = exl3_int_many_stage(ROWS, half_bits), full = many_shared(barriers);
    uint32_t empty = full + EXL3_INT_MANY_STAGES * 8;
    uint32_t align = -many_shared(many_stages) & 1023u, shared = many_shared(many_stages) + align;
    if (threadIdx.x < EXL3_INT_MANY_STAGES) {
        many_barrier_init(full + threadIdx.x * 8, MANY_COPIES);
        many_barrier_init(empty + threadIdx.x * 8, EXL3_INT_MANY_WARPS);
#if __CUDA_ARCH__ >= 900
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
#endif
    }
    __syncthreads();
    device_let_next();
    // A unit is asked for EXL3_INT_MANY_STAGES - 2 before its turn, so that warps need not go in step. Weights are no earlier launch's:
    // the first ones need not wait for it.
    const uint32_t ahead = EXL3_INT_MANY_STAGES - 2;
    uint32_t first = to - from < ahead ? to - from : ahead;
    struct many_source source = many_source_of<ROWS>(p, from);
    for (uint32_t i = 0; i < first; i++) {
        many_copy_tiles<ROWS>(source, half_bits, shared + i * stage_bytes, full + i * 8);
        many_next<ROWS>(p, to, &source);
    }
    device_wait_prior();
#if __CUDA_ARCH__ >= 900
    asm volatile("fence.proxy.async.global;" ::: "memory");
#endif
    source = many_source_of<ROWS>(p, from);
    for (uint32_t i = 0; i < first; i++) {
        many_copy_rows<ROWS>(source, half_bits, shared + i * stage_bytes, full + i * 8);
        many_next<ROWS>(p, to, &source);
    }
    // The lane's words: tile lane / 16 of the warp's two, row lane % 4 of tiles, from symbol 64 h on.
    const char *mine = many_stages + align + exl3_int_many_tiles(ROWS) +
                       lane % 4 * exl3_int_many_tile_row(half_bits) +
                       (warp * 2 + lane / 16) * 16 * half_bits;
    uint32_t before = (h ? h * half_bits - 1 : 4 * half_bits - 1) * 4;
    int32_t total[2][ROWS / 8][4];
#pragma unroll
    for (int i = 0; i < ROWS; i++) total[i / (ROWS / 2)][i / 4 % (ROWS / 8)][i % 4] = 0;
    uint32_t slot = 0, parity = 0, next = ahead, next_parity = 1;
    uint32_t whole = from / units, left = units - from % units, done = 0;
    for (uint32_t i = from; i < to; i++) {
        if (source.at < to) {
            many_await(empty + next * 8, next_parity);
            many_copy_tiles<ROWS>(source, half_bits, shared + next * stage_bytes, full + next * 8);
            many_copy_rows<ROWS>(source, half_bits, shared + next * stage_bytes, full + next * 8);
            many_next<ROWS>(p, to, &source);
        }
        if (++next == EXL3_INT_MANY_STAGES) {
            next = 0;
            next_parity ^= 1;
        }
        const char *s = mine + slot * stage_bytes;
        const char *rows = many_stages + align + slot * stage_bytes;
        const uint32_t *t = reinterpret_cast<const uint32_t *>(s) + h * half_bits;
        many_await(full + slot * 8, parity);
        __align__(16) uint32_t w[(BITS2 ? BITS2 : EXL3_HALF_BITS_MAX) + 4];
        w[3] = *reinterpret_cast<const uint32_t *>(s + before);
        if (BITS2)
            many_words<BITS2>(t, w + 4);
        else
            for (uint32_t k = 0; k < half_bits; k++) w[k + 4] = t[k];
        const char *flat = rows + exl3_int_many_flat(ROWS, half_bits);
        bool pieces = lane < ROWS / 4 && reinterpret_cast<const uint32_t *>(flat)[lane];
        many_step<ROWS, BITS2>(w + 3, half_bits, rows, pieces, total);
        __syncwarp();
        if (lane == 0) many_arrive(empty + slot * 8);
        if (++slot == EXL3_INT_MANY_STAGES) {
            slot = 0;
            parity ^= 1;
        }
        done++;
        if (--left && i + 1 < to) continue;
        many_end<ROWS>(p, from, whole++, done, total);
        done = 0;
        left = units;
    }
}

#define MANY_KERNEL(rows_, bits2_, blocks_)                                                        \
    extern "C" __global__ void __launch_bounds__(EXL3_INT_MANY_THREADS, blocks_)                   \
        exl3_int_many_##rows_##_##bits2_(const struct exl3_int_many_params p) {                    \
        many_run<rows_, bits2_>(p);                                                                \
    }
#define MANY_KERNELS(bits2_)                                                                       \
    MANY_KERNEL(16, bits2_, 4) MANY_KERNEL(32, bits2_, 4) MANY_KERNEL(64, bits2_, 2)
MANY_KERNELS(0)
MANY_KERNELS(6)
MANY_KERNELS(7)
MANY_KERNELS(8)
MANY_KERNELS(10)
MANY_KERNELS(12)
