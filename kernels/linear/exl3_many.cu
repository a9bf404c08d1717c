/* exl3_many: EXL3 parts by integers (exl3_int.h) for many rows.
 *
 * exl3_rows_int makes integers of the rows, once for each part. exl3_many_R_B multiplies R rows by the weights of a width (B half bits,
 * 0: any): weights are decoded in registers to b' in fp16, rows are fp16 integers, the tensor cores' fp32 sums are integers.
 * Exact   a unit of 64 inputs is summed from 0. Let L = 510 * sum |q| of the row's unit. If a partial sum reached 2^24, the unit's
 *         sum as computed would be at least 2^25 - L - 16 in size: each step cuts less than 2, and what follows changes a sum by no
 *         more than its share of L. Units with L up to 2^25 - 2^22 - 16 whose sums are below 2^22 are therefore exact. All others
 *         are done again in pieces of 16 inputs, which always are: 16 * 510 * 2047 < 2^24.
 * Equals  exl3_int_ref.c, bit for bit, whatever the rows of a launch and its count of thread blocks.
 * Cost    decoding the weights once for each R rows. */
#include "kernels/linear/exl3_many.cuh"

enum {
    R_WARPS = EXL3_ROWS_THREADS / WARP,
    FLAT_SUM = 57500, // 510 * 57500 < 2^25 - 2^22 - 16
#if __CUDA_ARCH__ >= 900
    MANY_COPIERS = WARP, // threads that copy
    MANY_COPIES = 1,     // arrivals that fill a stage
#else
    MANY_COPIERS = EXL3_MANY_THREADS,
    MANY_COPIES = EXL3_MANY_THREADS,
#endif
};

struct row_part {
    uint32_t largest;
    int32_t q_sum;
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

DEVICE_FN uint32_t rows_f16(int32_t a, int32_t b) { // exact: |q| <= 2047
    uint32_t r;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(r) : "f"((float)b), "f"((float)a));
    return r;
}

// A warp's 128 channels to integers: written, and what is known of them.
DEVICE_FN int32_t rows_write(const struct exl3_many_params &p, const float v[4], float inverse,
                             uint32_t block, uint32_t part, uint32_t row) {
    uint32_t lane = threadIdx.x % WARP, units = p.a.parts[0].w.cols / EXL3_MANY_UNIT;
    int32_t q[4], sum = 0, size = 0, square = 0;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        q[i] = exl3_int_value(v[i], inverse);
        sum += q[i];
        size += abs(q[i]);
        square += q[i] * q[i];
    }
    // Of a tile, lane m = lane % 4 has inputs 4 m .. 4 m + 3; places 4 s .. 4 s + 3 are inputs 2 s + {0, 1, 8, 9}.
    uint32_t low = rows_f16(q[0], q[1]), high = rows_f16(q[2], q[3]);
    bool second = lane & 2;
    uint32_t other = __shfl_xor_sync(0xffffffffu, second ? low : high, 2);
    uint2 pair = second ? make_uint2(other, high) : make_uint2(low, other);
    uint32_t unit = block * 2 + lane / 16, s = (lane & 1) * 2 + (second ? 1 : 0);
    uint64_t at = ((uint64_t)part * units + unit) * p.rows_padded + row;
    uint32_t piece = (lane % 16 / 4 * 2 + s / 2) ^ (row & 7);
    *reinterpret_cast<uint2 *>(device_ptr<char>(p.q) + at * 128 + piece * 16 + s % 2 * 8) = pair;
#pragma unroll
    for (int d = 8; d; d /= 2) {
        size += __shfl_xor_sync(0xffffffffu, size, d);
        square += __shfl_xor_sync(0xffffffffu, square, d);
    }
    if (lane % 16 == 0) {
        device_ptr<uint8_t>(p.flat)[at] = size > FLAT_SUM;
        if (p.q_norms)
            atomicMax(device_ptr<uint32_t>(p.q_norms) +
                          ((uint64_t)part * units + unit) * (p.rows_padded / EXL3_WIDE_HALF) +
                          row / EXL3_WIDE_HALF,
                      (uint32_t)square);
    }
    return sum;
}

// Grid: rows, padded; parts. Also zeroes the running sums of the launch behind.
extern "C" __global__ void __launch_bounds__(EXL3_ROWS_THREADS)
    exl3_rows_int(const struct exl3_many_params p) {
    __shared__ uint32_t largest[R_WARPS];
    __shared__ int32_t sums[R_WARPS];
    uint32_t row = blockIdx.x, part = blockIdx.y, warp = threadIdx.x / WARP;
    uint32_t cols = p.a.parts[0].w.cols, blocks = cols / EXL3_BLOCK;
    const uint16_t *suh = device_ptr<const uint16_t>(p.a.parts[part].w.exl3.suh);
    device_let_next();
    device_wait_prior();
    for (uint64_t i = ((uint64_t)part * gridDim.x + row) * EXL3_ROWS_THREADS + threadIdx.x;
         i < p.sums_bytes / sizeof(uint4); i += (uint64_t)gridDim.x * gridDim.y * EXL3_ROWS_THREADS)
        device_ptr<uint4>(p.sums)[i] = make_uint4(0, 0, 0, 0);
    bool have = row < p.a.rows;
    const float *x = device_ptr<const float>(p.a.x) + (uint64_t)row * cols;
    float v[EXL3_ROWS_KEPT][4];
    uint32_t top = 0;
#pragma unroll
    for (uint32_t i = 0; i < EXL3_ROWS_KEPT; i++) {
        uint32_t b = warp + i * R_WARPS;
        v[i][0] = v[i][1] = v[i][2] = v[i][3] = 0;
        if (b >= blocks || !have) continue;
        rows_rotate(x, suh, b, v[i]);
#pragma unroll
        for (int j = 0; j < 4; j++) top = max(top, exl3_int_size(v[i][j]));
    }
    for (uint32_t b = warp + EXL3_ROWS_KEPT * R_WARPS; b < blocks && have; b += R_WARPS) {
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
    for (uint32_t i = 0; i < EXL3_ROWS_KEPT; i++) {
        uint32_t b = warp + i * R_WARPS;
        if (b < blocks) sum += rows_write(p, v[i], inverse, b, part, row);
    }
    for (uint32_t b = warp + EXL3_ROWS_KEPT * R_WARPS; b < blocks; b += R_WARPS) {
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
    device_ptr<struct exl3_many_info>(p.info)[(uint64_t)part * p.rows_padded + row] =
        (struct exl3_many_info){exl3_int_scale(top), sum};
}

/* The work of a launch: tiles of ROWS rows, in each the blocks of 128 outputs of all parts, in each the stages of 128 inputs.
 * Thread blocks take equal runs of it. A block of outputs whose stages are several thread blocks' is added up in a slot of
 * p.sums: that of the first thread block that starts inside it. */
struct many_place {
    const struct linear_part *part;
    uint32_t nth;   // the part's number
    uint32_t block; // of the part's outputs
    uint32_t row;   // the tile's first
};

DEVICE_FN struct many_place many_find(const struct exl3_many_params &p, uint32_t whole,
                                      uint32_t rows) {
    uint32_t i = 0, block = whole % p.blocks;
    while (block >= p.a.parts[i].w.rows / EXL3_BLOCK) block -= p.a.parts[i++].w.rows / EXL3_BLOCK;
    return (struct many_place){&p.a.parts[i], i, block, whole / p.blocks * rows};
}

// The first stage of a thread block.
DEVICE_FN uint32_t many_from(const struct exl3_many_params &p, uint32_t stages, uint32_t rows,
                             uint32_t nth) {
    uint64_t all = (uint64_t)p.rows_padded / rows * p.blocks * stages;
    return (uint32_t)(all * nth / gridDim.x);
}

/* One unit, all rows: 32 outputs of a warp, of which even and odd ones are a factor each. acc[odd][8 rows]. PIECE: the sums are
 * moved on after every sixteen inputs. */
template <int ROWS, int BITS2, bool PIECE>
DEVICE_FN void many_unit(const uint32_t *w, uint32_t half_bits, const char *q,
                         float acc[2][ROWS / 8][4], int32_t total[2][ROWS / 8][4]) {
    uint32_t lane = threadIdx.x % WARP, g = lane / 4, c = lane % 4;
#pragma unroll
    for (int odd = 0; odd < 2; odd++)
#pragma unroll
        for (int n = 0; n < ROWS / 8; n++)
#pragma unroll
            for (int i = 0; i < 4; i++) acc[odd][n][i] = 0;
#pragma unroll
    for (uint32_t half = 0; half < 2; half++) {
        uint4 b[ROWS / 8];
#pragma unroll
        for (int n = 0; n < ROWS / 8; n++)
            b[n] =
                *reinterpret_cast<const uint4 *>(q + (n * 8 + g) * 128 + ((2 * c + half) ^ g) * 16);
#pragma unroll
        for (uint32_t s = 0; s < 2; s++)
#pragma unroll
            for (uint32_t odd = 0; odd < 2; odd++) {
                uint32_t f[4];
                many_factors<BITS2>(w, half_bits, odd * 4 + half * 2 + s, f);
#pragma unroll
                for (int n = 0; n < ROWS / 8; n++) {
                    const uint32_t two[2] = {s ? b[n].z : b[n].x, s ? b[n].w : b[n].y};
                    device_mma<DTYPE_F16>(acc[odd][n], f, two);
                    if (PIECE)
#pragma unroll
                        for (int i = 0; i < 4; i++) {
                            total[odd][n][i] += __float2int_rn(acc[odd][n][i]);
                            acc[odd][n][i] = 0;
                        }
                }
            }
    }
}

template <int ROWS, int BITS2>
DEVICE_FN void many_step(const uint32_t *w, uint32_t half_bits, const char *q, const char *flat,
                         int32_t total[2][ROWS / 8][4]) {
    uint32_t lane = threadIdx.x % WARP;
    float acc[2][ROWS / 8][4];
    bool bad = lane < ROWS / 4 && reinterpret_cast<const uint32_t *>(flat)[lane];
    if (!__any_sync(0xffffffffu, bad)) {
        many_unit<ROWS, BITS2, false>(w, half_bits, q, acc, total);
        uint32_t wrong = 0;
#pragma unroll
        for (int odd = 0; odd < 2; odd++)
#pragma unroll
            for (int n = 0; n < ROWS / 8; n++)
#pragma unroll
                for (int i = 0; i < 4;
                     i++) { // within +-2^22 the sum has the integer in its low bits
                    acc[odd][n][i] = acc[odd][n][i] + 12582912.0f;
                    wrong |= arith_bits(acc[odd][n][i]) ^ 0x4b000000u;
                }
        if (!__any_sync(0xffffffffu, wrong >> 23)) {
#pragma unroll
            for (int odd = 0; odd < 2; odd++)
#pragma unroll
                for (int n = 0; n < ROWS / 8; n++)
#pragma unroll
                    for (int i = 0; i < 4; i++)
                        total[odd][n][i] += (int32_t)(arith_bits(acc[odd][n][i]) - 0x4b400000u);
            return;
        }
    }
    many_unit<ROWS, BITS2, true>(w, half_bits, q, acc, total);
}

#if __CUDA_ARCH__ < 900
DEVICE_FN void many_copy16(uint32_t to, const char *from) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}
#endif

// Copies of a stage, by one warp: 128 inputs of 128 outputs,
template <int ROWS, int BITS2>
DEVICE_FN void many_copy_tiles(const struct exl3_many_params &p, uint32_t stage_nth, uint32_t to,
                               uint32_t full) {
    uint32_t half_bits = BITS2 ? BITS2 : p.half_bits, nth = threadIdx.x;
    uint32_t stages = p.a.parts[0].w.cols / EXL3_MANY_STAGE, stage = stage_nth % stages;
    struct many_place at = many_find(p, stage_nth / stages, ROWS);
    uint32_t row_bytes = 128 * half_bits, stride = at.part->w.rows * half_bits;
    const char *tiles = device_ptr<const char>(at.part->w.data) + (uint64_t)at.block * row_bytes +
                        (uint64_t)stage * 8 * stride;
    to += exl3_many_tiles(ROWS);
#if __CUDA_ARCH__ >= 900
    if (nth < 8)
        many_copy(to + nth * exl3_many_tile_row(half_bits), tiles + (uint64_t)nth * stride,
                  row_bytes, full);
#else
    nth /= WARP;
    for (uint32_t o = threadIdx.x % WARP * 16; o < row_bytes; o += WARP * 16)
        many_copy16(to + nth * exl3_many_tile_row(half_bits) + o,
                    tiles + (uint64_t)nth * stride + o);
#endif
}

// and of the rows.
template <int ROWS>
DEVICE_FN void many_copy_rows(const struct exl3_many_params &p, uint32_t stage_nth, uint32_t to,
                              uint32_t flat_at, uint32_t full) {
    uint32_t cols = p.a.parts[0].w.cols, units = cols / EXL3_MANY_UNIT, nth = threadIdx.x;
    uint32_t stages = cols / EXL3_MANY_STAGE, stage = stage_nth % stages;
    struct many_place at = many_find(p, stage_nth / stages, ROWS);
    uint64_t row = ((uint64_t)at.nth * units + stage * 2) * p.rows_padded + at.row;
    const char *q = device_ptr<const char>(p.q), *flat = device_ptr<const char>(p.flat);
#if __CUDA_ARCH__ >= 900
    if (nth < 2) {
        row += nth * p.rows_padded;
        many_copy(to + nth * ROWS * 128, q + row * 128, ROWS * 128, full);
        many_copy(to + flat_at + nth * ROWS, flat + row, ROWS, full);
    }
#else
    for (uint32_t u = 0; u < 2; u++, row += p.rows_padded) {
        for (uint32_t o = nth * 16; o < ROWS * 128; o += MANY_COPIERS * 16)
            many_copy16(to + u * ROWS * 128 + o, q + row * 128 + o);
        if (nth < ROWS / 16) many_copy16(to + flat_at + u * ROWS + nth * 16, flat + row + nth * 16);
    }
    asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(full) : "memory");
#endif
}

// A whole stage.
template <int ROWS, int BITS2>
DEVICE_FN void many_copy_stage(const struct exl3_many_params &p, uint32_t nth, uint32_t to,
                               uint32_t full, bool tiles, bool rows) {
    uint32_t half_bits = BITS2 ? BITS2 : p.half_bits;
#if __CUDA_ARCH__ >= 900
    if (tiles && threadIdx.x == 0) many_expect(full, 2 * ROWS * 129 + 8 * EXL3_BLOCK * half_bits);
    __syncwarp();
#endif
    if (tiles) many_copy_tiles<ROWS, BITS2>(p, nth, to, full);
    if (rows) many_copy_rows<ROWS>(p, nth, to, exl3_many_flat(ROWS, half_bits), full);
}

/* A thread block's sums to a slot: [row][128], the outputs in the order of the lanes: warp % 4, odd, upper eight of sixteen, g.
 * The two halves of the warps have other inputs of the same outputs. */
template <int ROWS> DEVICE_FN void many_add(int32_t *slot, int32_t total[2][ROWS / 8][4]) {
    uint32_t lane = threadIdx.x % WARP, g = lane / 4, c = lane % 4;
    slot += threadIdx.x / WARP % 4 * 32;
#pragma unroll
    for (int odd = 0; odd < 2; odd++)
#pragma unroll
        for (int n = 0; n < ROWS / 8; n++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                atomicAdd(slot + (n * 8 + 2 * c + i % 2) * EXL3_BLOCK + odd * 16 + i / 2 * 8 + g,
                          total[odd][n][i]);
                total[odd][n][i] = 0;
            }
}

DEVICE_FN uint32_t many_slot_place(uint32_t output) { // of 128
    uint32_t in = output % 8;
    return output / 32 * 32 + in % 2 * 16 + output / 8 % 2 * 8 + output / 16 % 2 * 4 + in / 2;
}

// Rows of a block of outputs from their sums, which become 0.
template <int ROWS>
DEVICE_FN void many_finish(const struct exl3_many_params &p, uint32_t whole, int32_t *slot) {
    struct many_place at = many_find(p, whole, ROWS);
    uint32_t lane = threadIdx.x % WARP;
    for (uint32_t r = threadIdx.x / WARP; r < ROWS; r += EXL3_MANY_WARPS) {
        uint32_t row = at.row + r;
        int32_t *sums = slot + r * EXL3_BLOCK;
        struct exl3_many_info info =
            device_ptr<const struct exl3_many_info>(p.info)[(uint64_t)at.nth * p.rows_padded + row];
        float v[4];
#pragma unroll
        for (uint32_t j = 0; j < 4; j++)
            v[j] = exl3_int_answer(__ldcg(sums + many_slot_place(lane * 4 + j)), info.q_sum,
                                   info.scale);
        __syncwarp();
#pragma unroll
        for (uint32_t j = 0; j < 4; j++) __stcg(sums + lane + j * WARP, 0);
        if (row < p.a.rows)
            many_answer(*at.part, v, at.block * EXL3_BLOCK + lane * 4,
                        device_ptr<float>(at.part->y) + (uint64_t)row * at.part->w.rows);
    }
}

// Where stages from first up to last of a block of outputs are added up. A slot of its own where they are all of it; else
// that of the first thread block that starts inside the block.
DEVICE_FN uint32_t many_slot(const struct exl3_many_params &p, uint32_t stages, uint32_t rows,
                             uint32_t from, uint32_t first, uint32_t last) {
    uint32_t slot = blockIdx.x;
    if (first >= from) return last - first == stages ? slot + gridDim.x : slot + 1;
    while (slot && many_from(p, stages, rows, slot - 1) > first) slot--;
    return slot;
}

template <int ROWS, int BITS2>
DEVICE_FN void many_go(const struct exl3_many_params &p, uint32_t from, uint32_t to,
                       const char *shared, uint32_t barriers) {
    __shared__ uint32_t last;
    uint32_t half_bits = BITS2 ? BITS2 : p.half_bits;
    uint32_t stages = p.a.parts[0].w.cols / EXL3_MANY_STAGE;
    uint32_t warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, unit = warp / 4;
    uint32_t stage_bytes = exl3_many_stage(ROWS, half_bits);
    // The lane's words: tile lane / 16 of the warp's two, tile row lane % 4 of the unit's four, from symbol 64 (lane / 4 % 4) on.
    uint32_t tile = exl3_many_tiles(ROWS) + (unit * 4 + lane % 4) * exl3_many_tile_row(half_bits) +
                    (warp % 4 * 2 + lane / 16) * 16 * half_bits;
    uint32_t h = lane / 4 % 4;
    uint32_t before = tile + (h ? h * half_bits - 1 : 4 * half_bits - 1) * 4;
    uint32_t flat = exl3_many_flat(ROWS, half_bits) + unit * ROWS;
    int32_t total[2][ROWS / 8][4];
#pragma unroll
    for (int i = 0; i < ROWS; i++) total[i / (ROWS / 2)][i / 4 % (ROWS / 8)][i % 4] = 0;
    // Stages are asked for `ahead` before their turn, and a slot is written again two turns after its last, so that warps need
    // not go in step.
    uint32_t ahead = p.stages - 2, first = to - from < ahead ? to - from : ahead;
    bool copier = threadIdx.x < MANY_COPIERS;
    // Weights are no earlier launch's: the first ones need not wait for it.
    for (uint32_t i = 0; i < first && copier; i++)
        many_copy_stage<ROWS, BITS2>(p, from + i, many_shared(shared) + i * stage_bytes,
                                     barriers + i * 8, true, false);
    device_wait_prior();
#if __CUDA_ARCH__ >= 900
    asm volatile("fence.proxy.async.global;" ::: "memory");
#endif
    for (uint32_t i = 0; i < first && copier; i++)
        many_copy_stage<ROWS, BITS2>(p, from + i, many_shared(shared) + i * stage_bytes,
                                     barriers + i * 8, false, true);
    uint32_t slot = 0, parity = 0, next = ahead, next_parity = 1;
    uint32_t done = 0, left = stages - from % stages;
    for (uint32_t i = from; i < to; i++) {
        if (copier && i + ahead < to) {
            many_await(barriers + (EXL3_MANY_STAGES + next) * 8, next_parity);
            many_copy_stage<ROWS, BITS2>(p, i + ahead, many_shared(shared) + next * stage_bytes,
                                         barriers + next * 8, true, true);
        }
        if (++next == p.stages) {
            next = 0;
            next_parity ^= 1;
        }
        const char *s = shared + slot * stage_bytes;
        const uint32_t *t = reinterpret_cast<const uint32_t *>(s + tile) + h * half_bits;
        many_await(barriers + slot * 8, parity);
        uint32_t w[(BITS2 ? BITS2 : EXL3_HALF_BITS_MAX) + 4];
        w[3] = *reinterpret_cast<const uint32_t *>(s + before);
        if (BITS2)
            many_words<BITS2>(t, w + 4);
        else
            for (uint32_t k = 0; k < half_bits; k++) w[k + 4] = t[k];
        many_step<ROWS, BITS2>(w + 3, half_bits, s + unit * ROWS * 128, s + flat, total);
        __syncwarp();
        if (lane == 0) many_arrive(barriers + (EXL3_MANY_STAGES + slot) * 8);
        if (++slot == p.stages) {
            slot = 0;
            parity ^= 1;
        }
        done++;
        if (--left && i + 1 < to) continue;
        uint32_t whole = i / stages;
        uint32_t to_slot = many_slot(p, stages, ROWS, from, whole * stages, i + 1);
        int32_t *sums = device_ptr<int32_t>(p.sums) + (uint64_t)to_slot * ROWS * EXL3_BLOCK;
        many_add<ROWS>(sums, total);
        __threadfence();
        __syncthreads();
        if (threadIdx.x == 0) {
            uint32_t *counter = device_ptr<uint32_t>(p.counters) + to_slot;
            last = done == stages || atomicAdd(counter, done) + done == stages;
            if (last) *counter = 0;
        }
        __syncthreads();
        done = 0;
        left = stages;
        if (!last) continue;
        __threadfence();
        many_finish<ROWS>(p, whole, sums);
        __syncthreads();
    }
}

// Grid: any count of thread blocks, up to that of stages.
template <int ROWS, int BITS2> DEVICE_FN void many_run(const struct exl3_many_params &p) {
    extern __shared__ __align__(128) char many_stages[];
    __shared__ uint64_t barriers[2 * EXL3_MANY_STAGES];
    uint32_t stages = p.a.parts[0].w.cols / EXL3_MANY_STAGE;
    uint32_t from = many_from(p, stages, ROWS, blockIdx.x);
    uint32_t to = many_from(p, stages, ROWS, blockIdx.x + 1), full = many_shared(barriers);
    if (threadIdx.x < EXL3_MANY_STAGES) {
        many_barrier_init(full + threadIdx.x * 8, MANY_COPIES);
        many_barrier_init(full + (EXL3_MANY_STAGES + threadIdx.x) * 8, EXL3_MANY_WARPS);
#if __CUDA_ARCH__ >= 900
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
#endif
    }
    __syncthreads();
    device_let_next();
    many_go<ROWS, BITS2>(p, from, to, many_stages, full);
}

#define MANY_KERNEL(rows_, bits2_, blocks_)                                                        \
    extern "C" __global__ void __launch_bounds__(EXL3_MANY_THREADS, blocks_)                       \
        exl3_many_##rows_##_##bits2_(const struct exl3_many_params p) {                            \
        many_run<rows_, bits2_>(p);                                                                \
    }
#define MANY_KERNELS(bits2_)                                                                       \
    MANY_KERNEL(16, bits2_, 3) MANY_KERNEL(32, bits2_, 2) MANY_KERNEL(64, bits2_, 1)
MANY_KERNELS(0)
MANY_KERNELS(6)
MANY_KERNELS(7)
MANY_KERNELS(8)
MANY_KERNELS(10)
MANY_KERNELS(12)
