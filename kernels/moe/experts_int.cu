/* experts_int: the products of the experts' MUL1 matrices, by integers (linear/exl3_int.h), for up to 8 rows of an expert. See experts.h.
 *
 *   up     gate and up: a block has 128 outputs of a matrix and a part of its inputs, whose sums it leaves as they are
 *   down   adds those sums and finishes gate and up, silu(gate) * up, then down: a block has 128 outputs and all inputs
 *
 * Rows    A block rotates all inputs of its rows, for the largest; its own part becomes integers in shared memory, EXPERTS_INT_WINDOW
 *         groups of 64 at a time, as exl3_int_few.cu has them.
 * Product Two teams of four warps have half of a window's groups each; their sums add in shared memory. A warp copies its own
 *         weights, EXL3_INT_RING groups ahead.
 * Equals  experts_ref.c, bit for bit.
 * Cost    as exl3_int_few.cu's. */
#include "kernels/linear/exl3_int_params.h"
#include "kernels/moe/experts_add.cuh"
#include "kernels/moe/experts_items.cuh"

enum {
    WARPS = EXPERTS_INT_WARPS,
    THREADS = WARPS * WARP,
    TEAMS = WARPS / EXL3_INT_TEAM,
    WINDOW = EXPERTS_INT_WINDOW,
    EACH = WINDOW / TEAMS, // groups of a window that a team has
    ROWS = EXPERTS_INT_ROWS,
    LINE = EXL3_BLOCK + 8, // of sums in shared memory, for the banks
};

extern __shared__ __align__(1024) char shared[];

// What a block does.
struct job {
    const struct expert &e;
    struct weight w;
    uint32_t count;              // rows
    uint32_t block, step, all;   // of 128 outputs: the first, from one to the next, of the matrix
    uint32_t part, from, blocks; // of 128 inputs: the part's
    struct experts_picks *picks;
};

struct __align__(16) sums_of { // a block's, in shared memory
    uint32_t sizes[ROWS];
    int32_t q_sums[ROWS];
    int32_t total[ROWS][LINE];
};

// Copies of weights

struct copier {
    const char *from; // of the lane's first piece
    uint32_t to;      // where it goes, from a place's beginning
    uint32_t pitch;   // bytes of sixteen inputs
    uint32_t step;    // bytes of them in a place
    bool some, wide;
    uint32_t next, count, groups; // groups that were copied, all of the team's, all of the part's
    uint32_t left, step_bytes;    // blocks of outputs that are left, from one to the next
};

// The nth group of a team among the part's.
DEVICE_FN uint32_t group_at(uint32_t nth, uint32_t groups) {
    uint32_t team = threadIdx.x / WARP / EXL3_INT_TEAM, window = nth / EACH * WINDOW;
    uint32_t each = groups - window < WINDOW ? (groups - window) / TEAMS : EACH;
    return window + team * each + nth % EACH;
}

DEVICE_FN struct copier copier_of(const struct job &j) {
    uint32_t warp = threadIdx.x / WARP % EXL3_INT_TEAM, lane = threadIdx.x % WARP;
    uint32_t half_bits = j.w.exl3.half_bits, output = j.block * EXL3_BLOCK + warp * 32;
    struct copier c;
    c.pitch = j.w.rows * half_bits;
    c.wide = half_bits > 8;
    // As exl3_int_few.cu has it.
    uint32_t tile = c.wide ? 0 : lane / 16, piece = c.wide ? lane : lane % 16;
    uint32_t at = tile * 2 * half_bits + piece, swap = half_bits % 8 ? 0 : half_bits == 8 ? 1 : 3;
    c.some = piece < 2 * half_bits;
    c.from = device_ptr<const char>(j.w.data) + (uint64_t)(j.from * 8 + tile) * c.pitch +
             (uint64_t)output * half_bits + piece * 16;
    c.to = (at ^ (at >> 3 & swap)) * 16;
    c.step = 32 * half_bits;
    c.next = 0;
    c.groups = j.blocks * 2;
    c.count = j.blocks * 2 / TEAMS;
    c.left = (j.all - j.block + j.step - 1) / j.step;
    c.step_bytes = j.step * EXL3_BLOCK * half_bits;
    return c;
}

DEVICE_FN void copy_next(struct copier &c, uint32_t to) {
    if (c.left && c.some) {
        const char *from = c.from + (uint64_t)group_at(c.next, c.groups) * 4 * c.pitch;
        to += c.to;
        copies_16(to, from);
        copies_16(to + 2 * c.step, from + 2 * (uint64_t)c.pitch);
        if (c.wide) {
            copies_16(to + c.step, from + c.pitch);
            copies_16(to + 3 * c.step, from + 3 * (uint64_t)c.pitch);
        }
    }
    if (++c.next == c.count && c.left) {
        c.next = 0;
        c.left--;
        c.from += c.step_bytes;
    }
    copies_end_group();
}

// Rows

// A row's block of 128 inputs: the lane's four, before the rotation.
struct inputs {
    float v[4];
    uint2 suh;
};

DEVICE_FN void load_inputs(const struct experts_params &p, const struct job &j, uint32_t row,
                           uint32_t block, struct inputs &ret) {
    uint32_t first = block * EXL3_BLOCK + threadIdx.x % WARP * EXL3_LANE_CHANNELS;
    ret.suh = *reinterpret_cast<const uint2 *>(device_ptr<const uint16_t>(j.w.exl3.suh) + first);
    if (p.down) {
        experts_load_both(p, j.e, j.picks->slots[row], first, ret.v);
        return;
    }
    const float *x =
        device_ptr<const float>(p.a.x) + (uint64_t)j.picks->rows[row] * p.a.dim + first;
    float4 in = __ldcg(reinterpret_cast<const float4 *>(x));
    ret.v[0] = in.x, ret.v[1] = in.y, ret.v[2] = in.z, ret.v[3] = in.w;
}

// Rotates them, for the row's size; the part's own go to own.
DEVICE_FN void rotate_inputs(const struct job &j, uint32_t row, uint32_t block, struct inputs &in,
                             float *own, struct sums_of *s) {
    uint32_t lane = threadIdx.x % WARP, size = 0, nth = block - j.from;
    float *v = in.v;
    v[0] = v[0] * arith_from_f16((uint16_t)in.suh.x);
    v[1] = v[1] * arith_from_f16((uint16_t)(in.suh.x >> 16));
    v[2] = v[2] * arith_from_f16((uint16_t)in.suh.y);
    v[3] = v[3] * arith_from_f16((uint16_t)(in.suh.y >> 16));
    exl3_rotate(v);
#pragma unroll
    for (int n = 0; n < 4; n++) size = max(size, exl3_int_size(v[n]));
    size = __reduce_max_sync(0xffffffffu, size);
    if (lane == 0) atomicMax(&s->sizes[row], size);
    if (nth < j.blocks)
        reinterpret_cast<float4 *>(own + (row * j.blocks + nth) * EXL3_BLOCK)[lane] =
            make_float4(v[0], v[1], v[2], v[3]);
}

// All rows' sizes; the part's own inputs to own: [rows, inputs of the part]. Two blocks of inputs are on their way together.
DEVICE_FN void rotate_all(const struct experts_params &p, const struct job &j, float *own,
                          struct sums_of *s) {
    uint32_t tasks = j.w.cols / EXL3_BLOCK * j.count;
    for (uint32_t i = threadIdx.x / WARP; i < tasks; i += 2 * WARPS) {
        uint32_t other = i + WARPS;
        bool two = other < tasks;
        struct inputs a, b;
        load_inputs(p, j, i % j.count, i / j.count, a);
        if (two) load_inputs(p, j, other % j.count, other / j.count, b);
        rotate_inputs(j, i % j.count, i / j.count, a, own, s);
        if (two) rotate_inputs(j, other % j.count, other / j.count, b, own, s);
    }
    __syncthreads();
}

// The integers of `groups` groups from `first` on, of all rows: experts_params.h's window.
template <int COLUMNS>
DEVICE_FN void fill_window(const struct job &j, const float *own, uint32_t first, uint32_t groups,
                           bool count_them, char *window, struct sums_of *s) {
    uint32_t n = threadIdx.x % 16;
    for (uint32_t turn = 0; turn < groups * j.count; turn += THREADS / 16) {
        uint32_t task = turn + threadIdx.x / 16;
        bool is = task < groups * j.count;
        uint32_t row = task % j.count, group = is ? task / j.count : 0;
        const float *v = own + row * j.blocks * EXL3_BLOCK + (first + group) * EXL3_INT_GROUP + n;
        float inverse = exl3_int_inverse(s->sizes[row]);
        uint32_t low[4], high[4];
        int32_t sum = 0;
#pragma unroll
        for (int c = 0; c < 4; c++) {
            int32_t q = exl3_int_value(v[16 * c], inverse);
            low[c] = __byte_perm((uint32_t)q, 0, 0x0000);
            high[c] = __byte_perm((uint32_t)exl3_int_high(q), 0, 0x0000);
            sum += q;
        }
#pragma unroll
        for (int d = 8; d; d /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, d);
        if (!is) continue;
        if (n == 0 && count_them) atomicAdd(&s->q_sums[row], sum);
        char *to = window + group * experts_int_group_bytes(COLUMNS) +
                   n % 8 * experts_int_step_bytes(COLUMNS) + row / 4 * 256 + n / 8 * 128 +
                   row % 4 * 32;
        *reinterpret_cast<uint4 *>(to) = make_uint4(low[0], low[1], low[2], low[3]);
        *reinterpret_cast<uint4 *>(to + 16) = make_uint4(high[0], high[1], high[2], high[3]);
    }
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
    __syncthreads();
}

// The product

// The team's groups of a window.
template <int W, int COLUMNS>
DEVICE_FN void multiply_window(const struct experts_params &p, struct copier &c, const char *ring,
                               uint32_t &turn, uint32_t count, uint32_t digits,
                               int32_t sum[2][COLUMNS / 2]) {
    for (uint32_t i = 0; i < count; i++, digits += experts_int_group_bytes(COLUMNS) / 16) {
        copies_wait<EXL3_INT_RING - 1>();
        __syncwarp();
        uint32_t words[W + 1];
        exl3_int_load_words<W>(ring + turn, words);
        __syncwarp(); // all have read: the place is free
        copy_next(c, copies_shared(ring) + turn);
        turn += p.item_bytes;
        if (turn == EXL3_INT_RING * p.item_bytes) turn = 0;
#pragma unroll
        for (int s = 0; s < 4; s++) {
            uint32_t v[2][8];
            exl3_int_bytes<W>(words + 1, 8 * s, v[0]);
            exl3_int_bytes<W>(words + 1, 32 + 8 * s, v[1]);
            exl3_int_begin();
            exl3_int_multiply_step<COLUMNS>(sum, v, digits, s);
            exl3_int_commit();
            exl3_int_wait<0>();
        }
    }
}

// The lane's sums to shared memory: the first team's, with the second one's that are there.
template <int COLUMNS>
DEVICE_FN void put_sums(const int32_t sum[2][COLUMNS / 2], bool add, struct sums_of *s) {
    uint32_t warp = threadIdx.x / WARP % EXL3_INT_TEAM, lane = threadIdx.x % WARP;
    uint32_t output = warp * 32 + lane / 16 * 16 + lane / 4 % 4 * 2;
#pragma unroll
    for (uint32_t n = 0; n < COLUMNS / 8; n++) {
        int32_t *to = s->total[n * 4 + lane % 4] + output;
#pragma unroll
        for (uint32_t i = 0; i < 4; i++) { // set, half
            const int32_t *d = sum[i % 2] + n * 4 + i / 2 * 2;
            int32_t v = d[0] + (int32_t)((uint32_t)d[1] << 8), *at = to + i % 2 + i / 2 * 8;
            *at = add ? *at + v : v;
        }
    }
}

// A warp: a row's 128 outputs, from the block's sums.
DEVICE_FN void finish_row(const struct experts_params &p, const struct job &j, uint32_t block,
                          uint32_t row, const struct sums_of *s) {
    uint32_t lane = threadIdx.x % WARP, slot = j.picks->slots[row];
    uint32_t first = block * EXL3_BLOCK + lane * EXL3_LANE_CHANNELS;
    int4 in = reinterpret_cast<const int4 *>(s->total[row])[lane];
    int32_t q_sum = s->q_sums[row];
    float scale = exl3_int_scale(s->sizes[row]);
    if (!p.down) {
        uint64_t at = experts_int_at(p, blockIdx.z, j.part, slot);
        int32_t *to = device_ptr<int32_t>(p.ints) + at * p.a.width + first;
        *reinterpret_cast<int4 *>(to) = in;
        if (lane || block) return;
        device_ptr<int32_t>(p.q_sums)[at] = q_sum;
        if (!j.part) device_ptr<float>(p.scales)[(uint64_t)blockIdx.z * p.picks + slot] = scale;
        return;
    }
    uint32_t middle = (uint32_t)q_sum * EXL3_INT_MIDDLE;
    const int32_t all[4] = {in.x, in.y, in.z, in.w};
    float v[4];
#pragma unroll
    for (int i = 0; i < 4; i++)
        v[i] = exl3_int_answer((int32_t)((uint32_t)all[i] - middle), q_sum, scale);
    experts_finish(v, j.w.exl3, first);
    *reinterpret_cast<float4 *>(experts_out(p, slot) + first) = make_float4(v[0], v[1], v[2], v[3]);
}

// The same of the matrix's width.
template <int COLUMNS>
DEVICE_FN void multiply_of(const struct experts_params &p, uint32_t half_bits, struct copier &c,
                           const char *ring, uint32_t &turn, uint32_t count, uint32_t digits,
                           int32_t sum[2][COLUMNS / 2]) {
#define WIDTH(w)                                                                                   \
    case w: multiply_window<w, COLUMNS>(p, c, ring, turn, count, digits, sum); break;
    switch (half_bits) {
        WIDTH(2)
        WIDTH(3)
        WIDTH(4)
        WIDTH(5)
        WIDTH(6)
        WIDTH(7)
        WIDTH(8)
        WIDTH(9)
        WIDTH(10)
        WIDTH(11)
        WIDTH(12)
        WIDTH(13)
        WIDTH(14)
        WIDTH(15)
        WIDTH(16)
    }
#undef WIDTH
}

template <int COLUMNS>
DEVICE_FN void run(const struct experts_params &p, const struct job &j, struct copier &c,
                   const char *ring, const float *own, char *window, struct sums_of *s) {
    uint32_t team = threadIdx.x / WARP / EXL3_INT_TEAM, groups = j.blocks * 2, turn = 0;
#pragma unroll 1
    for (uint32_t block = j.block; block < j.all; block += j.step) {
        int32_t sum[2][COLUMNS / 2];
#pragma unroll
        for (int i = 0; i < COLUMNS; i++) sum[i % 2][i / 2] = 0;
#pragma unroll 1
        for (uint32_t first = 0; first < groups; first += WINDOW) {
            uint32_t count = min(groups - first, (uint32_t)WINDOW), each = count / TEAMS;
            if (first) __syncthreads(); // the window before has been multiplied
            if (block == j.block || groups > WINDOW)
                fill_window<COLUMNS>(j, own, first, count, block == j.block, window, s);
            multiply_of<COLUMNS>(
                p, j.w.exl3.half_bits, c, ring, turn, each,
                (copies_shared(window) + team * each * experts_int_group_bytes(COLUMNS)) / 16, sum);
        }
        if (team) put_sums<COLUMNS>(sum, false, s);
        __syncthreads();
        if (!team) put_sums<COLUMNS>(sum, true, s);
        __syncthreads();
        for (uint32_t row = threadIdx.x / WARP; row < j.count; row += WARPS)
            finish_row(p, j, block, row, s);
        if (p.down && p.adds)
            experts_add_last(p, *j.picks, j.count, block);
        else
            __syncthreads(); // the sums have been read
    }
}

// The factors that the down's inputs will be multiplied by, to the second cache.
DEVICE_FN void factors_ahead(const struct job &j) {
    devptr from[] = {j.e.gate.exl3.svh, j.e.up.exl3.svh, j.w.exl3.suh};
    uint32_t each = j.w.cols * sizeof(uint16_t);
    bool exl3 = j.e.gate.exl3.half_bits && j.e.up.exl3.half_bits;
    for (uint32_t i = threadIdx.x * 128; i < 3 * each && exl3; i += THREADS * 128)
        asm volatile("prefetch.global.L2 [%0];" ::"l"(device_ptr<char>(from[i / each]) + i % each));
}

// Grid: shares of the blocks of 128 outputs times parts, items, gate and up (down alone, whose inputs are one part).
extern "C" __global__ void __launch_bounds__(THREADS, 3)
    experts_int(const struct experts_params p) {
    __shared__ struct experts_picks picks;
    __shared__ struct sums_of sums;
    if (threadIdx.x < ROWS) {
        sums.sizes[threadIdx.x] = 0;
        sums.q_sums[threadIdx.x] = 0;
    }
    bool ahead = experts_ahead(p);
    if (!ahead) device_wait_prior();
    device_let_next();
    uint32_t number = 0, count = experts_find(p, p.item_rows, &picks, &number),
             parts = p.down ? 1 : p.parts;
    const struct expert &e = experts_of(p, number);
    struct job j = {e, p.down ? e.down : blockIdx.z ? e.up : e.gate};
    uint32_t all = j.w.cols / EXL3_BLOCK;
    j.picks = &picks;
    j.count = count;
    j.all = j.w.rows / EXL3_BLOCK;
    j.step = gridDim.x / parts;
    j.block = blockIdx.x % j.step;
    j.part = blockIdx.x / j.step;
    if (!count || !exl3_int_weight(&j.w) || j.block >= j.all) {
        if (ahead) device_wait_prior();
        return;
    }
    j.from = all * j.part / parts;
    j.blocks = all * (j.part + 1) / parts - j.from;
    // Rings, the window, rotated rows.
    char *ring = shared + threadIdx.x / WARP * EXL3_INT_RING * p.item_bytes;
    char *window = shared + WARPS * EXL3_INT_RING * p.item_bytes;
    bool few = count <= EXPERTS_INT_ROWS_FEW;
    float *own = reinterpret_cast<float *>(window + WINDOW * experts_int_group_bytes(few ? 8 : 16));
    struct copier c = copier_of(j);
#pragma unroll 1
    for (uint32_t i = 0; i < EXL3_INT_RING; i++)
        copy_next(c, copies_shared(ring) + i * p.item_bytes);
    if (ahead) {
        factors_ahead(j);
        device_wait_prior();
    }
    rotate_all(p, j, own, &sums);
    if (few)
        run<8>(p, j, c, ring, own, window, &sums);
    else
        run<16>(p, j, c, ring, own, window, &sums);
}
