/* exl3_int_few: MUL1 parts for up to 16 rows. See exl3_int.h for the arithmetic.
 *
 * Launch  exl3_int_R_W has the parts of a width, W half bits, of a call of up to R rows.
 * Work    An item is 64 inputs of as many outputs as a block has teams of four warps, 128 a team and 32 a warp. The items of all
 *         parts stand in one order: for a chunk of the inputs all outputs, and for these the chunk's inputs. Blocks have equal runs of it.
 *         A lane owns 64 neighbouring symbols of a tile: outputs 2 h, 2 h + 1, + 8 of the warp's tile rt, inputs of the item's
 *         tile c (lane = 16 rt + 4 h + c).
 * Product Bytes: the four of 0x83dcd12d * state, unsigned, times q's digits, signed, each four times: two neighbouring columns are a
 *         row's low and high digit, a tile of eight columns four rows. Sums are modulo 2^32, as exl3_int.h has them.
 * Ring    A warp copies its own weights, some items ahead, the first ones before the launch before has ended.
 * Ends    A block adds its sums to p.sums and says how many groups of inputs they were; whose are the last ones rotates the outputs,
 *         writes them, and sets sums and counters back to 0.
 * Beside  Blocks behind those have the call's plain parts, where they are small.
 * Equals  exl3_int_ref.c and linear_ref.c, bit for bit.
 * Cost    of a warp's 64 symbols a lane at 4 bits: 152 instructions that decode, some 40 around them, and 6.2 clocks for each of 16
 *         products a tile, in which nothing else goes on. */
#include "kernels/linear/exl3_int.cuh"
#include "kernels/linear/exl3_int_params.h"
#include "kernels/linear/linear_order.h"

enum {
    TEAM_THREADS = EXL3_INT_TEAM * WARP,
    THREADS = EXL3_INT_TEAMS * TEAM_THREADS,
    RUNS = 24,            // of items, that a block tells of at a time
    PREFETCH_HALVES = 64, // 16-bit numbers of a line of the second cache
};

// Items of the same outputs, one after another.
struct span {
    uint32_t part;  // in the call
    uint32_t nth;   // among the MUL1 parts
    uint32_t strip; // of the part's outputs, as many as a block's teams have
    uint32_t place; // of that strip among all parts'
    uint32_t group, count;
    uint32_t chunk; // to tell chunks of inputs apart
};

DEVICE_FN uint32_t part_strips(const struct weight &w) {
    uint32_t outputs = blockDim.x / TEAM_THREADS * EXL3_BLOCK;
    return (w.rows + outputs - 1) / outputs;
}

// The span that item i of the launch's width begins, not past item `end`.
template <int W>
DEVICE_FN struct span find_span(const struct exl3_int_params &p, uint32_t i, uint32_t end) {
    struct span r = {0, 0, 0, 0, 0, 0, 0};
    uint32_t groups = p.a.parts[0].w.cols / EXL3_INT_GROUP, strips = 0, left = end - i;
    for (;; r.part++) {
        const struct weight &w = p.a.parts[r.part].w;
        if (!exl3_int_weight(&w)) continue;
        if (w.exl3.half_bits == W) {
            strips = part_strips(w);
            if (i < strips * groups) break;
            i -= strips * groups;
            r.place += strips;
        }
        r.nth++;
    }
    uint32_t chunk = p.chunk == groups ? 0 : i / (strips * p.chunk);
    uint32_t size = min(p.chunk, groups - chunk * p.chunk);
    i -= chunk * strips * p.chunk;
    r.strip = i / size;
    r.place += r.strip;
    r.group = chunk * p.chunk + i % size;
    r.count = min(left, size - i % size);
    r.chunk = r.nth << 16 | chunk;
    return r;
}

// Copies of weights

DEVICE_FN void copy_16(uint32_t to, const void *from) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}

// Pieces of sixteen bytes, in an item's place, change places within eights where lanes that read together would meet in the banks.
template <int W> DEVICE_FN uint32_t swap_of(uint32_t piece) {
    return piece >> 3 & (W % 8 ? 0 : W == 8 ? 1 : 3);
}

// A warp's weights on their way, in the order of the items.
struct copier {
    uint32_t next, end; // items whose run has not begun
    uint32_t left;      // items of the run
    uint32_t pitch;     // bytes of sixteen inputs
    uint32_t to;        // the lane's, in the first place of the ring
    bool some;          // this lane has pieces to copy
    const char *from;   // this lane's, of the next item
};

// Sixteen inputs of a warp's two tiles are 2 W pieces of 16 bytes. Half a warp takes them, or all of it.
template <int W> DEVICE_FN struct copier copier_of(uint32_t ring, uint32_t from, uint32_t end) {
    uint32_t lane = threadIdx.x % WARP;
    uint32_t at = W > 8 ? lane : lane / 16 * 2 * W + lane % 16;
    return {from, end, 0, 0, ring + (at ^ swap_of<W>(at)) * 16, false, nullptr};
}

// The next run, where there is one; else c.some is false and c.left many.
template <int W> DEVICE_FN void copier_begin(struct copier &c, const struct exl3_int_params &p) {
    uint32_t warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    c.some = false;
    c.left = 0xffffffffu;
    if (c.next == c.end) return;
    struct span r = find_span<W>(p, c.next, c.end);
    const struct weight &w = p.a.parts[r.part].w;
    uint32_t output = r.strip * (blockDim.x / WARP * 32) + warp * 32;
    c.next += r.count;
    c.left = r.count;
    c.pitch = w.rows * W;
    uint32_t tile = W > 8 ? 0 : lane / 16, piece = W > 8 ? lane : lane % 16;
    c.some = piece < 2 * W && output < w.rows;
    c.from = device_ptr<const char>(w.data) + (uint64_t)(r.group * 4 + tile) * c.pitch +
             (uint64_t)output * W + piece * 16;
}

// The next item's weights, if there is one, `turn` bytes into the ring; a group of copies.
template <int W> DEVICE_FN void copier_step(struct copier &c, uint32_t turn) {
    uint32_t to = c.to + turn;
    if (c.some) {
        copy_16(to, c.from);
        if (W > 8) copy_16(to + 32 * W, c.from + c.pitch);
        copy_16(to + 64 * W, c.from + 2 * (uint64_t)c.pitch);
        if (W > 8) copy_16(to + 96 * W, c.from + 3 * (uint64_t)c.pitch);
    }
    c.from += 4 * (uint64_t)c.pitch;
    asm volatile("cp.async.commit_group;" ::: "memory");
}

// Where a lane's W words of an item are.
template <int W> DEVICE_FN uint32_t words_at(uint32_t item) {
    uint32_t lane = threadIdx.x % WARP, rt = lane / 16, h = lane / 4 % 4, c = lane % 4;
    uint32_t at = (8 * c + 4 * rt + h) * W * 4;
    return item + (W % 4 ? at : at ^ swap_of<W>(at / 16) * 16);
}

// Those, and before them the one that comes before in the tile's ring. An item lies at a multiple of 128 bytes.
template <int W> DEVICE_FN void load_words(uint32_t at, uint32_t ret[W + 1]) {
    if constexpr (W % 4 == 0) {
#pragma unroll
        for (uint32_t i = 0; i < W / 4; i++)
            asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                         : "=r"(ret[1 + 4 * i]), "=r"(ret[2 + 4 * i]), "=r"(ret[3 + 4 * i]),
                           "=r"(ret[4 + 4 * i])
                         : "r"(W % 8 ? at + i * 16 : at ^ i * 16));
    } else if constexpr (W % 2 == 0) {
#pragma unroll
        for (uint32_t i = 0; i < W / 2; i++)
            asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];"
                         : "=r"(ret[1 + 2 * i]), "=r"(ret[2 + 2 * i])
                         : "r"(at + i * 8));
    } else {
#pragma unroll
        for (uint32_t i = 0; i < W; i++)
            asm volatile("ld.shared.u32 %0, [%1];" : "=r"(ret[1 + i]) : "r"(at + i * 4));
    }
    uint32_t lane = threadIdx.x % WARP;
    ret[0] = __shfl_sync(0xffffffffu, ret[W], (lane & 0x13) | ((lane + 12) & 0xc));
}

// Products. sum[set]: outputs 2 h + set and 2 h + set + 8 of the tile; two columns, then the same of the second eight.

DEVICE_FN void multiply(int32_t sum[4], const uint32_t a[4], uint32_t b0, uint32_t b1) {
    asm volatile("mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, "
                 "{%8,%9}, {%0,%1,%2,%3};"
                 : "+r"(sum[0]), "+r"(sum[1]), "+r"(sum[2]), "+r"(sum[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// How many tiles of columns have their digits four times in the window. More would not leave room for all warps' rings: their digits
// are multiplied out on the way.
template <int TILES> DEVICE_FN constexpr bool wide_digits() {
    return TILES <= EXL3_INT_TILES_WIDE;
}

// The lane's digits of an item that stand once in the window: of each tile of columns a word a step.
template <int TILES> struct thin_digits { uint4 tiles[wide_digits<TILES>() ? 1 : TILES]; };

DEVICE_FN uint4 load_digits(uint32_t at) {
    uint4 v;
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "r"(at));
    return v;
}

template <int TILES> DEVICE_FN void load_thin(uint32_t digits, struct thin_digits<TILES> &ret) {
    if constexpr (!wide_digits<TILES>())
#pragma unroll
        for (int n = 0; n < TILES; n++) ret.tiles[n] = load_digits(digits + n * EXL3_INT_TILE_THIN);
}

/* A step: eight symbols of each set (inputs 2 s + {0, 1, 8, 9} of the lane's tile), two products for each: inputs 2 s and 2 s + 8, then
 * 2 s + 1 and 2 s + 9. v: the sets' bytes. digits: the lane's address of the item's integers in shared memory. */
template <int TILES>
DEVICE_FN void multiply_step(int32_t sum[TILES][2][4], const uint32_t v[2][8], uint32_t digits,
                             const struct thin_digits<TILES> &thin, int s) {
#pragma unroll
    for (int n = 0; n < TILES; n++) {
        uint4 b;
        if constexpr (wide_digits<TILES>()) {
            b = load_digits(digits + n * EXL3_INT_TILE_BYTES + s * EXL3_INT_STEP_BYTES);
        } else {
            const uint4 t = thin.tiles[n];
            uint32_t word = s == 0 ? t.x : s == 1 ? t.y : s == 2 ? t.z : t.w;
            b = make_uint4(__byte_perm(word, 0, 0x0000), __byte_perm(word, 0, 0x1111),
                           __byte_perm(word, 0, 0x2222), __byte_perm(word, 0, 0x3333));
        }
#pragma unroll
        for (int set = 0; set < 2; set++) {
            const uint32_t first[4] = {v[set][0], v[set][4], v[set][2], v[set][6]};
            const uint32_t second[4] = {v[set][1], v[set][5], v[set][3], v[set][7]};
            multiply(sum[n][set], first, b.x, b.y);
            multiply(sum[n][set], second, b.z, b.w);
        }
    }
}

// What a warp has in shared memory: addresses.
struct place {
    uint32_t digits; // the lane's in the block's window of integers
    uint32_t words;  // the lane's in the first place of the warp's ring
    uint32_t turn;   // bytes into the ring
};

template <int W, int TILES>
DEVICE_FN void multiply_run(const struct exl3_int_params &p, struct copier &c, struct place &at,
                            uint32_t count, uint32_t slot, int32_t sum[TILES][2][4]) {
    const uint32_t item = exl3_int_item_bytes(W), last = (exl3_int_ring(W) - 1) * item;
    uint32_t digits = at.digits + slot * exl3_int_group_bytes(TILES);
    for (uint32_t some; count; count -= some) {
        if (c.left == 0) copier_begin<W>(c, p);
        some = min(count, c.left);
        c.left -= some;
        uint32_t end = digits + some * exl3_int_group_bytes(TILES);
#pragma unroll 1
        for (; digits != end; digits += exl3_int_group_bytes(TILES)) {
            asm volatile("cp.async.wait_group %0;" ::"n"(
                             W > EXL3_INT_RING_WIDTH ? EXL3_INT_RING - 2 : EXL3_INT_RING - 1)
                         : "memory");
            __syncwarp();
            uint32_t words[W + 1];
            load_words<W>(at.words + at.turn, words);
            __syncwarp(); // all have read: the place is free
            copier_step<W>(c, at.turn);
            at.turn = at.turn == last ? 0 : at.turn + item;
            struct thin_digits<TILES> thin;
            load_thin<TILES>(digits, thin);
#pragma unroll
            for (int s = 0; s < 4; s++) {
                uint32_t v[2][8];
                exl3_int_bytes<W>(words + 1, 8 * s, v[0]);
                exl3_int_bytes<W>(words + 1, 32 + 8 * s, v[1]);
                multiply_step<TILES>(sum, v, digits, thin, s);
            }
        }
    }
}

// A group of inputs in the window: where it is, in the rows' integers.
struct source {
    uint32_t nth, group;
};

DEVICE_FN struct source &window_source(char *window, uint32_t slot, uint32_t tiles) {
    return *reinterpret_cast<struct source *>(window + (slot + 1) * exl3_int_group_bytes(tiles) -
                                              16);
}

// Of a row's q in the group.
DEVICE_FN int32_t &window_sum(char *window, uint32_t slot, uint32_t tiles, uint32_t row) {
    return *reinterpret_cast<int32_t *>(window + (slot + 1) * exl3_int_group_bytes(tiles) - 16 -
                                        (EXL3_INT_ROWS - row) * 4);
}

DEVICE_FN uint32_t four_times(int32_t v) { // its low byte
    return __byte_perm((uint32_t)v, 0, 0x0000);
}

DEVICE_FN uint32_t bytes_of(const int32_t v[4]) { // their low bytes
    return __byte_perm(__byte_perm((uint32_t)v[0], (uint32_t)v[1], 0x0040),
                       __byte_perm((uint32_t)v[2], (uint32_t)v[3], 0x0040), 0x5410);
}

// What makes integers of rows, and answers of sums: of the rows of all parts.
struct factors {
    float inverse[LINEAR_PARTS_MAX][EXL3_INT_ROWS], scale[LINEAR_PARTS_MAX][EXL3_INT_ROWS];
};

// A warp each.
DEVICE_FN void load_factors(const struct exl3_int_params &p, struct factors &ret) {
    uint32_t lane = threadIdx.x % WARP, blocks = p.a.parts[0].w.cols / EXL3_BLOCK;
    for (uint32_t i = threadIdx.x / WARP; i < p.parts * p.a.rows; i += blockDim.x / WARP) {
        const uint32_t *sizes = device_ptr<const uint32_t>(p.sizes) + (uint64_t)i * blocks;
        uint32_t size = 0;
        for (uint32_t k = lane; k < blocks; k += WARP) size = max(size, __ldcg(sizes + k));
        size = __reduce_max_sync(0xffffffffu, size);
        if (lane) continue;
        ret.inverse[i / p.a.rows][i % p.a.rows] = exl3_int_inverse(size);
        ret.scale[i / p.a.rows][i % p.a.rows] = exl3_int_scale(size);
    }
}

// A task of a thread: inputs 2 s + {0, 1, 8, 9} of a tile of a group, of a row. Sixteen threads have a group and row.
struct task {
    uint32_t slot, row;
    float2 first, second;
};

enum { TASKS = 4 }; // of a thread, on their way together

template <int TILES>
DEVICE_FN void load_tasks(const struct exl3_int_params &p, uint32_t first, uint32_t count,
                          char *window, struct task ret[TASKS]) {
    uint32_t cols = p.a.parts[0].w.cols, j = threadIdx.x % 16, rows = p.a.rows;
#pragma unroll
    for (uint32_t i = 0; i < TASKS; i++) {
        uint32_t task = first + (i * blockDim.x + threadIdx.x) / 16;
        ret[i].slot = task / rows;
        ret[i].row = task % rows;
        ret[i].first = ret[i].second = {0, 0};
        if (ret[i].slot >= count) continue;
        struct source s = window_source(window, ret[i].slot, TILES);
        uint64_t at = ((uint64_t)s.nth * rows + ret[i].row) * cols + s.group * EXL3_INT_GROUP;
        const float2 *from = device_ptr<const float2>(p.rotated) + at / 2 + j % 4 * 8 + j / 4;
        ret[i].first = __ldcg(from);
        ret[i].second = __ldcg(from + 4);
    }
}

// Their integers' digits: exl3_int_params.h.
template <int TILES>
DEVICE_FN void store_tasks(const struct task tasks[TASKS], uint32_t count, char *window,
                           const struct factors &f) {
    uint32_t j = threadIdx.x % 16;
#pragma unroll
    for (uint32_t i = 0; i < TASKS; i++) {
        const struct task t = tasks[i];
        bool is = t.slot < count;
        float inverse = is ? f.inverse[window_source(window, t.slot, TILES).nth][t.row] : 0;
        int32_t q[4] = {exl3_int_value(t.first.x, inverse), exl3_int_value(t.second.x, inverse),
                        exl3_int_value(t.first.y, inverse), exl3_int_value(t.second.y, inverse)};
        int32_t sum = (q[0] + q[1]) + (q[2] + q[3]);
#pragma unroll
        for (int d = 8; d; d /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, d);
        if (!is) continue;
        if (j == 0) window_sum(window, t.slot, TILES, t.row) = sum;
        int32_t h[4] = {exl3_int_high(q[0]), exl3_int_high(q[1]), exl3_int_high(q[2]),
                        exl3_int_high(q[3])};
        char *to = window + t.slot * exl3_int_group_bytes(TILES) + t.row % 4 * 128 + j % 4 * 16;
        if (!wide_digits<TILES>()) {
            to += t.row / 4 * EXL3_INT_TILE_THIN + j / 4 * 4;
            *reinterpret_cast<uint32_t *>(to) = bytes_of(q);
            *reinterpret_cast<uint32_t *>(to + 64) = bytes_of(h);
            continue;
        }
        to += t.row / 4 * EXL3_INT_TILE_BYTES + j / 4 * EXL3_INT_STEP_BYTES;
        *reinterpret_cast<uint4 *>(to) =
            make_uint4(four_times(q[0]), four_times(q[1]), four_times(q[2]), four_times(q[3]));
        *reinterpret_cast<uint4 *>(to + 64) =
            make_uint4(four_times(h[0]), four_times(h[1]), four_times(h[2]), four_times(h[3]));
    }
}

// The digits of all rows for the groups of a window. made: the factors are there.
template <int TILES>
DEVICE_FN void fill_window(const struct exl3_int_params &p, uint32_t count, char *window, bool made,
                           struct factors &f) {
    struct task tasks[TASKS];
    load_tasks<TILES>(p, 0, count, window, tasks);
    if (!made) load_factors(p, f);
    __syncthreads();
    store_tasks<TILES>(tasks, count, window, f);
    uint32_t beside = TASKS * blockDim.x / 16;
    for (uint32_t first = beside; first < count * p.a.rows; first += beside) {
        load_tasks<TILES>(p, first, count, window, tasks);
        store_tasks<TILES>(tasks, count, window, f);
    }
    __syncthreads();
}

// A run's sums to those of the other blocks. Warps without outputs count too.
template <int TILES>
DEVICE_FN void add_sums(const struct exl3_int_params &p, const struct span &r, uint32_t slot,
                        const int32_t sum[TILES][2][4], char *window) {
    uint32_t warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, outputs = blockDim.x / WARP * 32;
    uint32_t output = warp * 32 + lane / 16 * 16 + lane / 4 % 4 * 2;
    int32_t *to = device_ptr<int32_t>(p.sums) + (uint64_t)r.place * p.a.rows * outputs + output;
    bool mine = r.strip * outputs + output < p.a.parts[r.part].w.rows;
#pragma unroll
    for (uint32_t n = 0; n < TILES; n++) {
        uint32_t row = n * 4 + lane % 4;
        if (!mine || row >= p.a.rows) continue;
#pragma unroll
        for (uint32_t i = 0; i < 4; i++) { // set, half
            const int32_t *s = sum[n][i % 2] + i / 2 * 2;
            atomicAdd(to + row * outputs + i % 2 + i / 2 * 8,
                      s[0] + (int32_t)((uint32_t)s[1] << 8));
        }
    }
    for (uint32_t row = warp; row < p.a.rows; row += blockDim.x / WARP) {
        int32_t q = 0;
        for (uint32_t i = lane; i < r.count; i += WARP)
            q += window_sum(window, slot + i, TILES, row);
        q = __reduce_add_sync(0xffffffffu, q);
        if (lane == 0)
            atomicAdd(device_ptr<int32_t>(p.q_sums) + (uint64_t)r.place * p.a.rows + row, q);
    }
}

// A warp: a row of 128 outputs of a strip, all sums being there.
DEVICE_FN void finish_row(const struct exl3_int_params &p, const struct span &r, uint32_t block,
                          uint32_t row, float scale) {
    const struct linear_part &part = p.a.parts[r.part];
    uint32_t lane = threadIdx.x % WARP, blocks = blockDim.x / TEAM_THREADS;
    uint32_t n = (r.strip * blocks + block) * EXL3_BLOCK + lane * EXL3_LANE_CHANNELS;
    int4 *sums = device_ptr<int4>(p.sums) +
                 (((uint64_t)r.place * p.a.rows + row) * blocks + block) * WARP + lane;
    float4 *y = device_ptr<float4>(part.y) + ((uint64_t)row * part.w.rows + n) / 4;
    int4 in = __ldcg(sums);
    int32_t q = __ldcg(device_ptr<const int32_t>(p.q_sums) + (uint64_t)r.place * p.a.rows + row);
    uint2 svh = *reinterpret_cast<const uint2 *>(device_ptr<const uint16_t>(part.w.exl3.svh) + n);
    float4 bias = {0, 0, 0, 0}, old = {0, 0, 0, 0};
    if (part.w.exl3.bias)
        bias = *reinterpret_cast<const float4 *>(device_ptr<const float>(part.w.exl3.bias) + n);
    if (part.add) old = __ldcg(y);
    int32_t middle = q * EXL3_INT_MIDDLE;
    float v[EXL3_LANE_CHANNELS] = {
        exl3_int_answer(in.x - middle, q, scale), exl3_int_answer(in.y - middle, q, scale),
        exl3_int_answer(in.z - middle, q, scale), exl3_int_answer(in.w - middle, q, scale)};
    exl3_rotate(v);
    float4 out = {
        v[0] * arith_from_f16((uint16_t)svh.x), v[1] * arith_from_f16((uint16_t)(svh.x >> 16)),
        v[2] * arith_from_f16((uint16_t)svh.y), v[3] * arith_from_f16((uint16_t)(svh.y >> 16))};
    if (part.w.exl3.bias) out = {out.x + bias.x, out.y + bias.y, out.z + bias.z, out.w + bias.w};
    if (part.add) out = {out.x + old.x, out.y + old.y, out.z + old.z, out.w + old.w};
    *y = out;
    *sums = make_int4(0, 0, 0, 0);
}

/* The runs of a block whose sums have been added. Whose groups are the last ones of a strip finishes it. last: whether a run's are. All
 * threads. */
DEVICE_FN void arrive(const struct exl3_int_params &p, const struct span *runs, bool *last,
                      uint32_t count, const struct factors &f) {
    uint32_t blocks = blockDim.x / TEAM_THREADS, rows = p.a.rows;
    __syncthreads();
    if (threadIdx.x < count) {
        const struct span r = runs[threadIdx.x];
        uint32_t *arrived = device_ptr<uint32_t>(p.arrived) + r.place;
        __threadfence(); // after the barrier: the stores of all threads
        last[threadIdx.x] =
            atomicAdd(arrived, r.count) + r.count == p.a.parts[0].w.cols / EXL3_INT_GROUP;
        if (last[threadIdx.x]) *arrived = 0;
        __threadfence();
    }
    __syncthreads();
    for (uint32_t k = 0; k < count; k++) {
        if (!last[k]) continue;
        const struct span r = runs[k];
        uint32_t left = p.a.parts[r.part].w.rows / EXL3_BLOCK - r.strip * blocks;
        for (uint32_t i = threadIdx.x / WARP; i < min(blocks, left) * rows; i += blockDim.x / WARP)
            finish_row(p, r, i / rows, i % rows, f.scale[r.nth][i % rows]);
        __syncthreads();
        if (threadIdx.x < rows)
            device_ptr<int32_t>(p.q_sums)[(uint64_t)r.place * rows + threadIdx.x] = 0;
    }
}

DEVICE_FN void prefetch(const void *at) {
    asm volatile("prefetch.global.L2 [%0];" ::"l"(at));
}

// The outputs' factors of a run, which whoever finishes it will want.
DEVICE_FN void prefetch_ends(const struct exl3_int_params &p, const struct span &r) {
    const struct weight &w = p.a.parts[r.part].w;
    uint32_t outputs = blockDim.x / WARP * 32,
             n = r.strip * outputs + threadIdx.x * PREFETCH_HALVES;
    if (threadIdx.x * PREFETCH_HALVES < outputs && n < w.rows)
        prefetch(device_ptr<const uint16_t>(w.exl3.svh) + n);
}

// Plain parts of few outputs, beside the others: a block's warps are segments of tiles of sixteen outputs. Order: linear_order.h's.

// The plain part of the call's tile, whose number in the part goes to *tile; p.a.parts_count: there is none.
DEVICE_FN uint32_t plain_part(const struct linear_args &a, uint32_t *tile) {
    uint32_t i = 0;
    for (; i < a.parts_count; i++) {
        if (a.parts[i].w.exl3.half_bits) continue;
        uint32_t tiles = (a.parts[i].w.rows + LINEAR_TILE - 1) / LINEAR_TILE;
        if (*tile < tiles) break;
        *tile -= tiles;
    }
    return i;
}

// Four neighbouring weights; 0 where `have` is not.
DEVICE_FN uint2 plain_weights(const uint16_t *w, bool have) {
    if (!have) return {0, 0};
    if (reinterpret_cast<uintptr_t>(w) % 8 == 0) return *reinterpret_cast<const uint2 *>(w);
    return {w[0] | (uint32_t)w[1] << 16, w[2] | (uint32_t)w[3] << 16};
}

// A segment of a tile, all rows. The lane has of each step inputs 4 c .. 4 c + 3, of outputs g and g + 8 and of row g.
template <enum dtype D>
DEVICE_FN void plain_segment(const struct exl3_int_params &p, const struct weight &w, uint32_t tile,
                             uint32_t from, uint32_t to, float sum[4]) {
    enum { BESIDE = 5 };
    uint32_t g = threadIdx.x % WARP / 4, c = threadIdx.x % 4, n = tile * LINEAR_TILE + g;
    bool have[2] = {n < w.rows, n + 8 < w.rows}, mine = g < p.a.rows;
    const uint16_t *at = device_ptr<const uint16_t>(w.data) + (uint64_t)n * w.cols + 4 * c;
    const float4 *x = device_ptr<const float4>(p.a.x) + ((uint64_t)g * w.cols) / 4 + c;
    for (uint32_t first = from; first < to; first += BESIDE) {
        uint2 a[BESIDE][2];
        float4 b[BESIDE];
#pragma unroll
        for (uint32_t i = 0; i < BESIDE; i++) {
            bool is = first + i < to;
            a[i][0] = plain_weights(at + (first + i) * LINEAR_STEP, is && have[0]);
            a[i][1] =
                plain_weights(at + (first + i) * LINEAR_STEP + 8 * (uint64_t)w.cols, is && have[1]);
            b[i] = is && mine ? __ldcg(x + (first + i) * (LINEAR_STEP / 4)) : float4{0, 0, 0, 0};
        }
#pragma unroll
        for (uint32_t i = 0; i < BESIDE; i++) {
            if (first + i >= to) continue;
            const uint32_t factor[4] = {a[i][0].x, a[i][1].x, a[i][0].y, a[i][1].y};
            const uint32_t row[2] = {device_pack<D>(b[i].x, b[i].y),
                                     device_pack<D>(b[i].z, b[i].w)};
            device_mma<D>(sum, factor, row);
        }
    }
}

// A segment of a tile on its way to the second cache.
DEVICE_FN void plain_prefetch(const struct weight &w, uint32_t tile, uint32_t from, uint32_t to) {
    uint32_t lines = (to - from) * LINEAR_STEP / PREFETCH_HALVES + 1;
    for (uint32_t i = threadIdx.x % WARP; i < lines * LINEAR_TILE; i += WARP) {
        uint32_t n = tile * LINEAR_TILE + i / lines;
        uint32_t k = min(from * LINEAR_STEP + i % lines * PREFETCH_HALVES, w.cols - 1);
        if (n < w.rows) prefetch(device_ptr<const uint16_t>(w.data) + (uint64_t)n * w.cols + k);
    }
}

DEVICE_FN void plain_run(const struct exl3_int_params &p, uint32_t block, float *shared) {
    uint32_t cols = p.a.parts[0].w.cols, segments = linear_segments(cols);
    uint32_t per = linear_segment_steps(cols), steps = cols / LINEAR_STEP;
    uint32_t warp = threadIdx.x / WARP, lane = threadIdx.x % WARP,
             beside = blockDim.x / WARP / segments;
    uint32_t unit = warp / segments, segment = warp % segments, tile = block * beside + unit;
    uint32_t nth = unit < beside ? plain_part(p.a, &tile) : p.a.parts_count;
    const struct linear_part &part = p.a.parts[min(nth, LINEAR_PARTS_MAX - 1)];
    bool is = nth < p.a.parts_count;
    uint32_t from = segment * per, to = min(from + per, steps);
    float sum[4] = {0, 0, 0, 0};
    if (is) plain_prefetch(part.w, tile, from, to);
    device_wait_prior();
    if (is) {
        if (part.w.dtype == DTYPE_BF16)
            plain_segment<DTYPE_BF16>(p, part.w, tile, from, to, sum);
        else
            plain_segment<DTYPE_F16>(p, part.w, tile, from, to, sum);
    }
    float *mine = shared + warp * LINEAR_TILE * 8; // [output][row]
#pragma unroll
    for (int i = 0; i < 4; i++) mine[(lane / 4 + i / 2 * 8) * 8 + lane % 4 * 2 + i % 2] = sum[i];
    __syncthreads();
    if (!is || segment) return;
    for (uint32_t i = lane; i < LINEAR_TILE * 8; i += WARP) {
        uint32_t n = tile * LINEAR_TILE + i / 8, row = i % 8;
        if (n >= part.w.rows || row >= p.a.rows) continue;
        float v = mine[i];
        for (uint32_t k = 1; k < segments; k++) v = v + mine[k * LINEAR_TILE * 8 + i];
        float *y = device_ptr<float>(part.y) + (uint64_t)row * part.w.rows + n;
        *y = part.add ? v + __ldcg(y) : v;
    }
}

/* A block's items, of which all blocks have as many: windows of integers, and runs. Where the window takes all of them it has one slot an
 * item, of any part. Else it has one chunk of the inputs after another. */
template <int W, int TILES> DEVICE_FN void run(const struct exl3_int_params &p) {
    extern __shared__ __align__(128) char shared[];
    __shared__ struct span runs[RUNS];
    __shared__ bool last[RUNS];
    __shared__ struct factors f;
    uint32_t runs_count = 0;
    device_let_next();
    if (blockIdx.x >= p.blocks) {
        plain_run(p, blockIdx.x - p.blocks, reinterpret_cast<float *>(shared));
        return;
    }
    uint32_t from = blockIdx.x * p.items + min(blockIdx.x, p.more);
    uint32_t to = from + p.items + (blockIdx.x < p.more);
    uint32_t address = (uint32_t)__cvta_generic_to_shared(shared);
    uint32_t ring =
        address + p.ring_at + threadIdx.x / WARP * exl3_int_ring(W) * exl3_int_item_bytes(W);
    struct place at = {address + threadIdx.x % WARP * 16, words_at<W>(ring), 0};
    struct copier c = copier_of<W>(ring, from, to);
#pragma unroll 1
    for (uint32_t i = 0; i < exl3_int_ring(W); i++) {
        if (c.left == 0) copier_begin<W>(c, p);
        copier_step<W>(c, i * exl3_int_item_bytes(W));
        c.left--;
    }
    bool all = to - from <= p.window, waited = false;
    for (uint32_t i = from; i < to;) {
        struct span r = find_span<W>(p, i, to);
        if (!waited) prefetch_ends(p, r);
        uint32_t chunk = r.chunk, base = (r.chunk & 0xffffu) * p.chunk, slot = 0;
        uint32_t count = all ? to - i : min(p.chunk, p.a.parts[0].w.cols / EXL3_INT_GROUP - base);
        for (uint32_t k = threadIdx.x; k < count; k += blockDim.x) {
            struct source s = {r.nth, all ? r.group + k : base + k};
            if (all && k >= r.count) {
                struct span other = find_span<W>(p, i + k, to);
                s = {other.nth, other.group};
            }
            window_source(shared, k, TILES) = s;
        }
        __syncthreads();
        if (!waited) device_wait_prior();
        fill_window<TILES>(p, count, shared, waited, f);
        waited = true;
        for (bool known = true; i < to; i += r.count, slot += r.count, known = false) {
            if (!known) r = find_span<W>(p, i, to);
            if (!all && r.chunk != chunk) break;
            if (!all) slot = r.group - base;
            int32_t sum[TILES][2][4];
#pragma unroll
            for (int k = 0; k < TILES * 8; k++) sum[k / 8][k / 4 % 2][k % 4] = 0;
            multiply_run<W, TILES>(p, c, at, r.count, slot, sum);
            add_sums<TILES>(p, r, slot, sum, shared);
            if (threadIdx.x == 0) runs[runs_count] = r;
            if (++runs_count < RUNS) continue;
            arrive(p, runs, last, runs_count, f);
            __syncthreads();
            runs_count = 0;
        }
        __syncthreads();
    }
    arrive(p, runs, last, runs_count, f);
}

#define EXL3_INT_FEW_KERNEL(name, width, tiles, beside)                                            \
    extern "C" __global__ void __launch_bounds__(THREADS, beside)                                  \
        name(const struct exl3_int_params p) {                                                     \
        run<width, tiles>(p);                                                                      \
    }
#define EXL3_INT_FEW_KERNELS(width)                                                                \
    EXL3_INT_FEW_KERNEL(exl3_int_4_##width, width, 1, 2)                                           \
    EXL3_INT_FEW_KERNEL(exl3_int_8_##width, width, 2, 2)                                           \
    EXL3_INT_FEW_KERNEL(exl3_int_16_##width, width, 4, 1)
EXL3_INT_FEW_KERNELS(2)
EXL3_INT_FEW_KERNELS(3)
EXL3_INT_FEW_KERNELS(4)
EXL3_INT_FEW_KERNELS(5)
EXL3_INT_FEW_KERNELS(6)
EXL3_INT_FEW_KERNELS(7)
EXL3_INT_FEW_KERNELS(8)
EXL3_INT_FEW_KERNELS(9)
EXL3_INT_FEW_KERNELS(10)
EXL3_INT_FEW_KERNELS(11)
EXL3_INT_FEW_KERNELS(12)
EXL3_INT_FEW_KERNELS(13)
EXL3_INT_FEW_KERNELS(14)
EXL3_INT_FEW_KERNELS(15)
EXL3_INT_FEW_KERNELS(16)
