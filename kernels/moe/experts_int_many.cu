/* experts_int_many: the products of the experts' MUL1 matrices for many rows: linear/exl3_int_many.cu's arithmetic, row by row those of an
 * item, which are 128 bytes a unit of 64 inputs as experts_spread and experts_between leave them.
 *
 *   up     a block has 128 outputs of a gate or up and all inputs; sums go to p.ints, with b for b'
 *   down   likewise, and finishes them
 *
 * Weights and rows come by asynchronous copies, STAGES - 1 units ahead. Rows that an item lacks are 0.
 * Equals  experts_ref.c, bit for bit. */
#include "kernels/linear/copies.cuh"
#include "kernels/linear/exl3_int_many.cuh"
#include "kernels/moe/experts_work.cuh"

enum { WARPS = EXL3_INT_MANY_WARPS, THREADS = WARPS * WARP, STAGES = EXPERTS_MANY_STAGES };

extern __shared__ __align__(1024) char shared[];

struct job {
    struct weight w;
    struct experts_item item;
    uint32_t matrix, block;   // gate, up, down; of 128 outputs
    const char *tiles, *rows; // of unit 0
    const uint32_t *pieces;   // by unit, a bit: it goes in pieces
};

// Thread's share of a unit's copies.
template <int ROWS>
DEVICE_FN void copy_unit(const struct experts_params &p, const struct job &j, uint32_t unit,
                         uint32_t to) {
    uint32_t half_bits = j.w.exl3.half_bits, row_bytes = EXL3_BLOCK * half_bits;
    uint64_t stride = (uint64_t)j.w.rows * half_bits;
    if (unit < j.w.cols / EXL3_INT_MANY_UNIT) {
        const char *rows = j.rows + (uint64_t)unit * p.picks * 128;
        for (uint32_t o = threadIdx.x * 16; o < j.item.count * 128; o += THREADS * 16)
            copies_16(to + o, rows + o);
        uint32_t warp = threadIdx.x / WARP;
        const char *tiles = j.tiles + (unit * 4 + warp) * stride;
        to += exl3_int_many_tiles(ROWS) + warp * exl3_int_many_tile_row(half_bits);
        for (uint32_t o = threadIdx.x % WARP * 16; o < row_bytes; o += WARP * 16)
            copies_16(to + o, tiles + o);
    }
    copies_end_group();
}

// The rows of all stages that the item lacks: they become 0.
template <int ROWS> DEVICE_FN void clear_rows(const struct job &j, uint32_t stage_bytes) {
    uint32_t pieces = (ROWS - j.item.count) * 8;
    for (uint32_t i = threadIdx.x; i < STAGES * pieces; i += THREADS)
        *reinterpret_cast<uint4 *>(shared + i / pieces * stage_bytes + j.item.count * 128 +
                                   i % pieces * 16) = make_uint4(0, 0, 0, 0);
}

template <int ROWS>
DEVICE_FN void put_ints(const struct experts_params &p, const struct job &j,
                        const int32_t total[2][ROWS / 8][4]) {
    uint32_t lane = threadIdx.x % WARP, c = lane % 4;
    uint32_t output =
        j.block * EXL3_BLOCK + threadIdx.x / WARP * 32 + lane / 16 * 16 + lane / 4 % 4 * 2;
#pragma unroll
    for (int n = 0; n < ROWS / 8; n++)
#pragma unroll
        for (int i = 0; i < 2; i++) {
            uint32_t row = n * 8 + 2 * c + i;
            if (row >= j.item.count) continue;
            uint64_t at = experts_int_at(p, j.matrix, 0, j.item.from + row);
            int32_t middle = __ldcg(device_ptr<const int32_t>(p.q_sums) + at) * EXL3_INT_MIDDLE;
            int32_t *to = device_ptr<int32_t>(p.ints) + at * p.a.width + output;
#pragma unroll
            for (int half = 0; half < 2; half++)
                *reinterpret_cast<int2 *>(to + half * 8) = make_int2(
                    total[0][n][i + 2 * half] + middle, total[1][n][i + 2 * half] + middle);
        }
}

// Sums to shared memory, then a warp has a row.
template <int ROWS>
DEVICE_FN void finish(const struct experts_params &p, const struct job &j,
                      const int32_t total[2][ROWS / 8][4]) {
    enum { LINE = EXL3_BLOCK + 4 };
    uint32_t lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, c = lane % 4;
    int32_t *sums = reinterpret_cast<int32_t *>(shared);
    __syncthreads(); // the last unit has been multiplied
#pragma unroll
    for (int n = 0; n < ROWS / 8; n++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            int32_t *to = sums + (n * 8 + 2 * c + i % 2) * LINE + warp * 32 + lane / 16 * 16 +
                          lane / 4 % 4 * 2 + i / 2 * 8;
            *reinterpret_cast<int2 *>(to) = make_int2(total[0][n][i], total[1][n][i]);
        }
    __syncthreads();
    uint32_t first = j.block * EXL3_BLOCK + lane * EXL3_LANE_CHANNELS;
    for (uint32_t row = warp; row < j.item.count; row += WARPS) {
        uint64_t at = 2ull * p.picks + j.item.from + row;
        int32_t q_sum = __ldcg(device_ptr<const int32_t>(p.q_sums) + at);
        float scale = __ldcg(device_ptr<const float>(p.scales) + at);
        int4 s = reinterpret_cast<const int4 *>(sums + row * LINE)[lane];
        float v[4] = {exl3_int_answer(s.x, q_sum, scale), exl3_int_answer(s.y, q_sum, scale),
                      exl3_int_answer(s.z, q_sum, scale), exl3_int_answer(s.w, q_sum, scale)};
        experts_finish(v, j.w.exl3, first);
        *reinterpret_cast<float4 *>(experts_out(p, j.item.from + row) + first) =
            make_float4(v[0], v[1], v[2], v[3]);
    }
}

template <int ROWS, int BITS2>
DEVICE_FN void run_width(const struct experts_params &p, const struct job &j) {
    uint32_t half_bits = j.w.exl3.half_bits, units = j.w.cols / EXL3_INT_MANY_UNIT;
    uint32_t warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, h = lane / 4 % 4;
    uint32_t stage_bytes = experts_many_stage(ROWS, half_bits), base = copies_shared(shared);
    clear_rows<ROWS>(j, stage_bytes);
    for (uint32_t i = 0; i < STAGES - 1; i++) copy_unit<ROWS>(p, j, i, base + i * stage_bytes);
    int32_t total[2][ROWS / 8][4];
#pragma unroll
    for (int i = 0; i < ROWS; i++) total[i / (ROWS / 2)][i / 4 % (ROWS / 8)][i % 4] = 0;
    // The lane's words: tile lane / 16 of the warp's two, row lane % 4 of tiles, from symbol 64 h on.
    uint32_t mine = exl3_int_many_tiles(ROWS) + lane % 4 * exl3_int_many_tile_row(half_bits) +
                    (warp * 2 + lane / 16) * 16 * half_bits;
    uint32_t before = h ? h * half_bits - 1 : 4 * half_bits - 1, stage = 0;
    for (uint32_t unit = 0; unit < units; unit++) {
        copies_wait<STAGES - 2>();
#if MANY_HOPPER
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
        __syncthreads(); // the stage is here, and the one before has been multiplied
        const char *rows = shared + stage * stage_bytes;
        uint32_t ahead = stage ? stage - 1 : STAGES - 1;
        copy_unit<ROWS>(p, j, unit + STAGES - 1, base + ahead * stage_bytes);
        const uint32_t *t = reinterpret_cast<const uint32_t *>(rows + mine);
        __align__(16) uint32_t w[(BITS2 ? BITS2 : EXL3_HALF_BITS_MAX) + 4];
        w[3] = t[before];
        if (BITS2)
            many_words<BITS2>(t + h * half_bits, w + 4);
        else
            for (uint32_t k = 0; k < half_bits; k++) w[k + 4] = t[h * half_bits + k];
        many_step<ROWS, BITS2>(w + 3, half_bits, rows, j.pieces[unit / 32] >> unit % 32 & 1, total);
        stage = stage + 1 == STAGES ? 0 : stage + 1;
    }
    if (j.matrix == 2)
        finish<ROWS>(p, j, total);
    else
        put_ints<ROWS>(p, j, total);
}

template <int ROWS> DEVICE_FN void run(const struct experts_params &p, const struct job &j) {
    switch (j.w.exl3.half_bits) {
    case 6: run_width<ROWS, 6>(p, j); break;
    case 7: run_width<ROWS, 7>(p, j); break;
    case 8: run_width<ROWS, 8>(p, j); break;
    case 10: run_width<ROWS, 10>(p, j); break;
    case 12: run_width<ROWS, 12>(p, j); break;
    default: run_width<ROWS, 0>(p, j); break;
    }
}

// Grid: blocks of 128 outputs, items, gate and up (down alone).
template <int ROWS> DEVICE_FN void run_item(const struct experts_params &p) {
    __shared__ uint32_t pieces[EXPERTS_MANY_FLAT_WORDS];
    device_let_next();
    device_wait_prior();
    const struct experts_item *items = device_ptr<const struct experts_item>(p.items);
    if (blockIdx.y >= __ldcg(&items->number)) return;
    items += 1 + blockIdx.y;
    struct job j;
    j.item = {__ldcg(&items->number), __ldcg(&items->from), __ldcg(&items->count)};
    const struct expert &e = experts_of(p, j.item.number);
    j.matrix = p.down ? 2 : blockIdx.z;
    j.w = p.down ? e.down : blockIdx.z ? e.up : e.gate;
    j.block = blockIdx.x;
    if (!exl3_int_weight(&j.w) || blockIdx.x >= j.w.rows / EXL3_BLOCK) return;
    uint32_t words = experts_flat_words(j.w.cols);
    for (uint32_t i = threadIdx.x; i < words; i += THREADS) {
        uint32_t v = 0;
        for (uint32_t row = 0; row < j.item.count; row++)
            v |= __ldcg(experts_flat(p, j.matrix, j.item.from + row) + i);
        pieces[i] = v;
    }
    j.pieces = pieces; // seen behind the first unit's barrier
    j.tiles =
        device_ptr<const char>(j.w.data) + (uint64_t)j.block * EXL3_BLOCK * j.w.exl3.half_bits;
    j.rows = device_ptr<const char>(p.lines) + j.matrix * experts_lines_bytes(p.picks, p.a.dim) +
             (uint64_t)j.item.from * 128;
    if (ROWS > 16 && j.item.count <= 16)
        run<16>(p, j);
    else if (ROWS > 32 && j.item.count <= 32)
        run<32>(p, j);
    else
        run<ROWS>(p, j);
}

#define EXPERTS_INT_KERNEL(rows, blocks)                                                           \
    extern "C" __global__ void __launch_bounds__(THREADS, blocks)                                  \
        experts_int_##rows(const struct experts_params p) {                                        \
        run_item<rows>(p);                                                                         \
    }
EXPERTS_INT_KERNEL(16, 4)
EXPERTS_INT_KERNEL(32, 4)
EXPERTS_INT_KERNEL(64, 2)
