/* experts_exl3: chains of EXL3 steps by one warp, of any width, from a ring of asynchronous copies: sixteen outputs, up
 * to eight rows that stand in shared memory whole, or up to 64 that pass through it for all warps of a block. The order of a step's inputs is linear_order.h's, the values are exl3_decode.h's.
 *
 * Rows     in shared memory, rotated, f16, as linear_stream.cuh has them: [groups of 64 inputs, rows, 64], pieces swizzled.
 * Symbols  lane 4 g + c has symbols 32 g .. 32 g + 31 of tile c of a group: as many bits, with the sixteen bits before them. */
#pragma once
#include "kernels/linear/exl3.cuh"
#include "kernels/linear/linear_order.h"
#include "kernels/linear/linear_stream.cuh"
#include "kernels/moe/experts_params.h"

enum {
    EXPERTS_SLOT_BYTES = 64 * EXL3_HALF_BITS_MAX, // at most, of a group
};

// What a warp copies: groups of four tiles, one after another in K. A lane has up to two pieces of 16 bytes of each.
struct experts_ring {
    const char *first, *second; // of the lane
    bool have_first, have_second;
    uint32_t step;   // bytes from group to group
    uint32_t left;   // groups still to copy
    uint32_t shared; // where the ring is
    uint32_t next;   // slot
    uint32_t slot_bytes;
};

// Groups from .. to - 1 of the tiles of sixteen outputs.
DEVICE_FN struct experts_ring experts_ring_of(const struct weight &w, uint32_t tile, uint32_t from,
                                              uint32_t to, uint32_t shared) {
    uint32_t half_bits = w.exl3.half_bits, row = w.rows * half_bits; // bytes of sixteen inputs
    uint32_t lane = threadIdx.x % WARP, other = lane + WARP;
    const char *at = device_ptr<const char>(w.data) + (uint64_t)from * LINEAR_GROUP * row +
                     (uint64_t)tile * LINEAR_TILE * half_bits;
    return {at + lane / half_bits * row + lane % half_bits * 16,
            at + other / half_bits * row + other % half_bits * 16,
            lane < LINEAR_GROUP * half_bits,
            other < LINEAR_GROUP * half_bits,
            LINEAR_GROUP * row,
            to - from,
            shared,
            0,
            EXPERTS_SLOT_BYTES};
}

DEVICE_FN void experts_ring_fill(struct experts_ring &r) {
    if (r.left) {
        uint32_t to = r.shared + r.next * r.slot_bytes + threadIdx.x % WARP * 16;
        if (r.have_first) stream_16(to, r.first);
        if (r.have_second) stream_16(to + WARP * 16, r.second);
        r.first += r.step;
        r.second += r.step;
        r.left--;
    }
    stream_commit();
    r.next = r.next + 1 == EXPERTS_RING ? 0 : r.next + 1;
}

#define EXPERTS_WIDTHS                                                                             \
    EXPERTS_WIDTH(2)                                                                               \
    EXPERTS_WIDTH(3)                                                                               \
    EXPERTS_WIDTH(4)                                                                               \
    EXPERTS_WIDTH(5)                                                                               \
    EXPERTS_WIDTH(6)                                                                               \
    EXPERTS_WIDTH(7)                                                                               \
    EXPERTS_WIDTH(8)                                                                               \
    EXPERTS_WIDTH(9)                                                                               \
    EXPERTS_WIDTH(10)                                                                              \
    EXPERTS_WIDTH(11)                                                                              \
    EXPERTS_WIDTH(12)                                                                              \
    EXPERTS_WIDTH(13)                                                                              \
    EXPERTS_WIDTH(14)                                                                              \
    EXPERTS_WIDTH(15)                                                                              \
    EXPERTS_WIDTH(16)

template <int HALF_BITS> struct experts_symbols {
    enum { WORDS = (HALF_BITS + 1) / 2 + 1, TILE_WORDS = 4 * HALF_BITS };
    uint32_t v[WORDS]; // from the low half of v[0] on

    __device__ __forceinline__ void load(const uint32_t *tile, uint32_t g) {
        uint32_t first = (g * HALF_BITS + 1) / 2, shift = HALF_BITS % 2 && g % 2 ? 16 : 0;
        v[0] = tile[first ? first - 1 : TILE_WORDS - 1];
#pragma unroll
        for (uint32_t i = 1; i < WORDS; i++) {
            uint32_t at = first - 1 + i;
            v[i] = tile[HALF_BITS % 2 && at == TILE_WORDS ? 0 : at];
        }
        if (HALF_BITS % 2) {
#pragma unroll
            for (int i = WORDS - 1; i > 0; i--) v[i] = __funnelshift_r(v[i], v[i - 1], shift);
            v[0] >>= shift;
        }
    }

    __device__ __forceinline__ uint32_t state(int i) const {
        int at = 16 + (i + 1) * HALF_BITS / 2, word = at / 32, bit = at % 32;
        if (bit == 0) return v[word] >> 16;
        if (bit <= 16) return v[word] >> (16 - bit) & 0xffffu;
        return __funnelshift_l(v[word + 1], v[word], bit) >> 16;
    }
};

// A lane's symbols of a group. Even widths have them as the linear layers do.
template <int HALF_BITS> struct experts_lane {
    experts_symbols<HALF_BITS> symbols;

    __device__ __forceinline__ void load(const char *slot) {
        uint32_t g = threadIdx.x % WARP / 4, c = threadIdx.x % 4;
        symbols.load(reinterpret_cast<const uint32_t *>(slot) + c * symbols.TILE_WORDS, g);
    }

    // The factor registers of step s: symbols 8 s .. 8 s + 7, as mma.sync wants them but for the order of the pairs.
    __device__ __forceinline__ void factors(int s, const struct exl3_code &code, uint32_t ret[4]) {
#pragma unroll
        for (int j = 0; j < 4; j++) {
            int first = 8 * s + (j & 1 ? 4 : 0) + (j & 2);
            ret[j] = exl3_pair(symbols.state(first) * code.mul + code.add,
                               symbols.state(first + 1) * code.mul + code.add, code.masks);
        }
    }
};

template <int HALF_BITS> struct experts_lane_even {
    struct exl3_lane<HALF_BITS> lane;

    __device__ __forceinline__ void load(const char *slot) {
        uint32_t g = threadIdx.x % WARP / 4, c = threadIdx.x % 4;
        exl3_lane_take<HALF_BITS>(slot + c * 16 * HALF_BITS + g * 2 * HALF_BITS, lane);
        exl3_lane_before<HALF_BITS>(lane);
    }

    __device__ __forceinline__ void factors(int s, const struct exl3_code &code, uint32_t ret[4]) {
        exl3_lane_factors<HALF_BITS>(lane, code, s, ret);
    }
};

template <int HALF_BITS, bool EVEN = HALF_BITS % 2 == 0> struct experts_lane_of {
    typedef experts_lane<HALF_BITS> type;
};
template <int HALF_BITS> struct experts_lane_of<HALF_BITS, true> {
    typedef experts_lane_even<HALF_BITS> type;
};

// A lane's inputs of a row's group, by step: 16 c + 2 s + {0, 1} and 16 c + 8 + 2 s + {0, 1}.
struct experts_inputs {
    uint32_t low[LINEAR_GROUP], high[LINEAR_GROUP];
};

// line: the row's.
DEVICE_FN struct experts_inputs experts_inputs_of(const uint4 *line, uint32_t row, uint32_t c) {
    uint4 low = line[2 * c ^ row % 8], high = line[(2 * c + 1) ^ row % 8];
    return {{low.x, low.y, low.z, low.w}, {high.x, high.y, high.z, high.w}};
}

/* `groups` groups from 0. slots: the ring's, as a pointer; *slot: the next to take. x: the lane's line of the first group, in pieces;
 * row: of that line; step: from group to group. */
template <int HALF_BITS>
DEVICE_FN void experts_chain(struct experts_ring &r, const struct exl3_code &code,
                             const char *slots, uint32_t &slot, uint32_t groups, const uint4 *x,
                             uint32_t row, uint32_t step, float sum[4]) {
    uint32_t c = threadIdx.x % 4;
#pragma unroll
    for (int j = 0; j < 4; j++) sum[j] = 0;
#pragma unroll 1
    for (uint32_t i = 0; i < groups; i++, x += step) {
        stream_wait<EXPERTS_RING - 2>();
        __syncwarp(); // the slot is here, and all lanes have read the one before it
        typename experts_lane_of<HALF_BITS>::type lane;
        lane.load(slots + slot * r.slot_bytes);
        experts_ring_fill(r);
        slot = slot + 1 == EXPERTS_RING ? 0 : slot + 1;
        struct experts_inputs in = experts_inputs_of(x, row, c);
#pragma unroll
        for (int s = 0; s < LINEAR_GROUP; s++) {
            const uint32_t b[2] = {in.low[s], in.high[s]};
            uint32_t a[4];
            lane.factors(s, code, a);
            device_mma<DTYPE_F16>(sum, a, b);
        }
    }
}

// The same of any width and codebook.
DEVICE_FN void experts_chain_of(const struct exl3 &q, const struct exl3_code &code,
                                struct experts_ring &r, const char *slots, uint32_t &slot,
                                uint32_t groups, const uint4 *x, uint32_t row, uint32_t step,
                                float sum[4]) {
    switch (q.half_bits) {
#define EXPERTS_WIDTH(w)                                                                           \
    case w: experts_chain<w>(r, code, slots, slot, groups, x, row, step, sum); break;
        EXPERTS_WIDTHS
#undef EXPERTS_WIDTH
    default: break;
    }
}

// Many rows

enum {
    EXPERTS_ROWS = 64,       // at a time
    EXPERTS_ROWS_STAGES = 6, // of the block's ring of rows, and of those of its warps
    EXPERTS_ROWS_BYTES = EXPERTS_ROWS * STREAM_SPAN * 2,
};

// The rows of a block: `count` lines, of groups that are `step` bytes apart.
struct experts_rows {
    const unsigned char *at;
    uint64_t step;
    uint32_t count, shared; // where the ring is, for copies
    const unsigned char *ring;
};

DEVICE_FN void experts_rows_fill(struct experts_rows &x, struct experts_ring &r) {
    if (r.left) {
        uint32_t to = x.shared + r.next * EXPERTS_ROWS_BYTES;
        for (uint32_t i = threadIdx.x * 16; i < x.count * STREAM_SPAN * 2; i += blockDim.x * 16)
            stream_16(to + i, x.at + i);
        x.at += x.step;
        uint32_t mine = r.shared + r.next * EXPERTS_SLOT_BYTES + threadIdx.x % WARP * 16;
        if (r.have_first) stream_16(mine, r.first);
        if (r.have_second) stream_16(mine + WARP * 16, r.second);
        r.first += r.step;
        r.second += r.step;
        r.left--;
    }
    stream_commit();
    r.next = r.next + 1 == EXPERTS_ROWS_STAGES ? 0 : r.next + 1;
}

/* `groups` groups from 0, by all warps of the block at once. */
template <int HALF_BITS>
DEVICE_FN void experts_rows_chain(struct experts_ring &r, struct experts_rows &x,
                                  const struct exl3_code &code, const char *slots, uint32_t &slot,
                                  uint32_t groups, float (*sum)[4]) {
    enum { TILES = EXPERTS_ROWS / 8 };
    uint32_t g = threadIdx.x % WARP / 4, c = threadIdx.x % 4;
#pragma unroll
    for (int i = 0; i < TILES; i++)
#pragma unroll
        for (int j = 0; j < 4; j++) sum[i][j] = 0;
#pragma unroll 1
    for (uint32_t n = 0; n < groups; n++) {
        stream_wait<EXPERTS_ROWS_STAGES - 2>();
        __syncthreads(); // the slot is here for all, and all have read the one before it
        typename experts_lane_of<HALF_BITS>::type lane;
        lane.load(slots + slot * EXPERTS_SLOT_BYTES);
        const uint4 *line = reinterpret_cast<const uint4 *>(x.ring + slot * EXPERTS_ROWS_BYTES) +
                            g * (STREAM_SPAN * 2 / 16);
        experts_rows_fill(x, r);
        slot = slot + 1 == EXPERTS_ROWS_STAGES ? 0 : slot + 1;
        uint32_t a[LINEAR_GROUP][4];
#pragma unroll
        for (int s = 0; s < LINEAR_GROUP; s++) lane.factors(s, code, a[s]);
#pragma unroll
        for (int i = 0; i < TILES; i++, line += STREAM_SPAN * 2 / 16 * 8) {
            if (i * 8 >= x.count) break;
            struct experts_inputs in = experts_inputs_of(line, g, c);
#pragma unroll
            for (int s = 0; s < LINEAR_GROUP; s++) {
                const uint32_t b[2] = {in.low[s], in.high[s]};
                device_mma<DTYPE_F16>(sum[i], a[s], b);
            }
        }
    }
}

DEVICE_FN void experts_rows_chain_of(const struct exl3 &q, const struct exl3_code &code,
                                     struct experts_ring &r, struct experts_rows &x,
                                     const char *slots, uint32_t &slot, uint32_t groups,
                                     float (*sum)[4]) {
    switch (q.half_bits) {
#define EXPERTS_WIDTH(w)                                                                           \
    case w: experts_rows_chain<w>(r, x, code, slots, slot, groups, sum); break;
        EXPERTS_WIDTHS
#undef EXPERTS_WIDTH
    default: break;
    }
}

/* total = a tile of sixteen outputs times count rows, whose lines start at `lines`, of groups of n lines. All warps of the block, which
 * has EXPERTS_ROWS_STAGES stages of rows at shared and the warps' rings behind them. */
DEVICE_FN void experts_rows_product(const struct weight &w, const struct exl3_code &code,
                                    uint32_t tile, const unsigned char *lines, uint32_t n,
                                    uint32_t count, const unsigned char *shared,
                                    float (*total)[4]) {
    uint32_t groups = w.cols / STREAM_SPAN, per = linear_exl3_groups(w.cols), slot = 0;
    const unsigned char *slots =
        shared +
        EXPERTS_ROWS_STAGES * (EXPERTS_ROWS_BYTES + threadIdx.x / WARP * EXPERTS_SLOT_BYTES);
    struct experts_ring ring = experts_ring_of(w, tile, 0, groups, stream_shared(slots));
    struct experts_rows x = {lines, (uint64_t)n * STREAM_SPAN * 2, count, stream_shared(shared),
                             shared};
    for (int i = 0; i < EXPERTS_ROWS_STAGES - 1; i++) experts_rows_fill(x, ring);
    for (uint32_t at = 0; at < groups; at += per) {
        float sum[EXPERTS_ROWS / 8][4];
        experts_rows_chain_of(w.exl3, code, ring, x, reinterpret_cast<const char *>(slots), slot,
                              groups - at < per ? groups - at : per, sum);
#pragma unroll
        for (int i = 0; i < EXPERTS_ROWS / 8; i++)
#pragma unroll
            for (int j = 0; j < 4; j++) total[i][j] = at ? total[i][j] + sum[i][j] : sum[i][j];
    }
}
