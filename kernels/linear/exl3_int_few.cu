/* exl3_int_few: MUL1 parts for up to 8 rows. See exl3_int.h for the arithmetic.
 *
 * Work    A unit is 128 outputs times 64 inputs, for all rows; a team of four warps has it, 32 outputs a warp. The units of
 *         all parts stand in one order: teams side by side, then inputs, then the next outputs; each block has an equal
 *         run of it. A lane owns 64 neighbouring symbols of a tile: outputs 2 h, 2 h + 1, + 8 of the warp's tile rt, inputs of
 *         the group's tile c (lane = 16 rt + 4 h + c).
 * Product Bytes: the four of 0x83dcd12d * state, unsigned, times q's digits, signed, each four times, for all rows of the launch: two
 *         neighbouring columns are a row's low and high digit. Sums are modulo 2^32, as exl3_int.h has them.
 *         sm_90: wgmma m64n8k32 or m64n16k32 of a team, the weights from registers; elsewhere mma.sync m16n8k32. Same sums.
 * Ring    A warp copies its own weights, EXL3_INT_RING units ahead, the first ones before the launch before has ended.
 * Ends    A team adds its sums to p.sums and says how many groups they were; whose are the last ones rotates the outputs, writes
 *         them, and sets sums and counters back to 0.
 * Equals  exl3_int_ref.c, bit for bit.
 * Cost    instructions of the decoding, or the tensor cores' 13 clocks for 512 weights: 3.3 clocks a weight and scheduler. */
#include "kernels/linear/exl3_int.cuh"
#include "kernels/linear/exl3_int_params.h"

enum {
    TEAM_THREADS = EXL3_INT_TEAM * WARP,
    THREADS = EXL3_INT_TEAMS * TEAM_THREADS,
};

// Neighbours in the order of work: groups from .. to of some 128-output blocks of a part, from the unit `from` on.
struct span {
    uint32_t part;     // in the call
    uint32_t nth;      // among the MUL1 parts
    uint32_t blocks;   // of 128 outputs, of the parts before it
    uint32_t block;    // the first, in the part
    uint32_t width;    // blocks side by side
    uint32_t from, to; // units: group * width + block
};

// A team's units of a run.
struct share {
    uint32_t block; // in the part
    uint32_t group, step, count;
};

// What a block does: units of the order of work, for some rows.
struct job {
    uint32_t from, end;
    uint32_t row, rows; // the first, how many
    uint32_t stride;    // rows of a block of outputs in p.sums
    bool own; // no other block has units of the same outputs: sums stand by block, not by output
};

// The span that unit u begins, not past `end`.
DEVICE_FN struct span find_span(const struct linear_args &a, uint32_t teams, uint32_t u,
                                uint32_t end) {
    struct span r = {0, 0, 0, 0, 0, 0, 0};
    uint32_t groups = a.parts[0].w.cols / EXL3_INT_GROUP, blocks = 0;
    for (;; r.part++) {
        if (!exl3_int_weight(&a.parts[r.part].w)) continue;
        blocks = a.parts[r.part].w.rows / EXL3_BLOCK;
        if (u < blocks * groups) break;
        u -= blocks * groups;
        end -= blocks * groups;
        r.blocks += blocks;
        r.nth++;
    }
    uint32_t whole = blocks / teams;
    if (u < whole * teams * groups) {
        r.width = teams;
        r.block = u / (teams * groups) * teams;
    } else { // what is left: two and one
        r.block = whole * teams;
        r.width = blocks - r.block >= 2 ? 2 : 1;
        if (u >= (r.block + r.width) * groups) {
            r.block += r.width;
            r.width = 1;
        }
    }
    r.from = u - r.block * groups;
    r.to = min(end - r.block * groups, r.width * groups);
    return r;
}

DEVICE_FN struct share find_share(const struct span &r, uint32_t teams, uint32_t team) {
    uint32_t first = r.from + (team + teams - r.from % teams) % teams;
    return {r.block + first % r.width, first / r.width, teams / r.width,
            first < r.to ? (r.to - first + teams - 1) / teams : 0};
}

// Copies of weights

DEVICE_FN void copy_16(uint32_t to, const void *from) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}

// A warp's units, in order.
struct copier {
    const char *from; // this lane's
    uint32_t left;    // in the run
    uint32_t pitch;   // bytes of sixteen inputs
    uint32_t advance;
    uint32_t half_bits;
    uint32_t to;   // this lane's, in a unit's place
    uint32_t next; // the first unit that is not in the run
};

DEVICE_FN void copier_next_span(struct copier &c, const struct linear_args &a, uint32_t end) {
    uint32_t teams = blockDim.x / TEAM_THREADS, team = threadIdx.x / TEAM_THREADS;
    uint32_t warp = threadIdx.x / WARP % EXL3_INT_TEAM, lane = threadIdx.x % WARP;
    while (c.left == 0 && c.next < end) {
        struct span r = find_span(a, teams, c.next, end);
        struct share s = find_share(r, teams, team);
        const struct weight &w = a.parts[r.part].w;
        c.next += r.to - r.from;
        c.left = s.count;
        c.half_bits = w.exl3.half_bits;
        c.pitch = w.rows * c.half_bits;
        c.advance = s.step * 4 * c.pitch;
        // Sixteen inputs of a warp's two tiles are 2 W pieces of 16 bytes. Half a warp takes them, or all of it. Where lanes
        // that read together would meet in the banks, pieces change places within eights.
        uint32_t tile = c.half_bits <= 8 ? lane / 16 : 0,
                 piece = c.half_bits <= 8 ? lane % 16 : lane;
        uint32_t at = tile * 2 * c.half_bits + piece, swap = c.half_bits % 8    ? 0
                                                             : c.half_bits == 8 ? 1
                                                                                : 3;
        c.from = device_ptr<const char>(w.data) + (uint64_t)(s.group * 4 + tile) * c.pitch +
                 (uint64_t)(s.block * 8 + warp * 2) * 16 * c.half_bits + piece * 16;
        c.to = (at ^ (at >> 3 & swap)) * 16;
        if (piece >= 2 * c.half_bits) c.to = 0xffffffffu; // this lane has nothing to do
    }
}

// The next unit's weights to the place at `to`. A group of copies, if an empty one.
DEVICE_FN void copier_step(struct copier &c, const struct linear_args &a, uint32_t end,
                           uint32_t to) {
    if (c.left == 0) copier_next_span(c, a, end);
    if (c.left != 0) {
        if (c.to != 0xffffffffu) {
            to += c.to;
            if (c.half_bits <= 8) {
                copy_16(to, c.from);
                copy_16(to + 64 * c.half_bits, c.from + 2 * c.pitch);
            } else {
#pragma unroll
                for (int i = 0; i < 4; i++)
                    copy_16(to + i * 32 * c.half_bits, c.from + (uint64_t)i * c.pitch);
            }
        }
        c.from += c.advance;
        c.left--;
    }
    asm volatile("cp.async.commit_group;" ::: "memory");
}

// A lane's W words of a unit at `at`, and before them the one that comes before in the tile's ring.
template <int W> DEVICE_FN void load_words(const char *at, uint32_t ret[W + 1]) {
    uint32_t lane = threadIdx.x % WARP, rt = lane / 16, h = lane / 4 % 4, c = lane % 4;
    uint32_t mine = 8 * c + 4 * rt + h, before = 8 * c + 4 * rt + (h + 3) % 4;
    const uint32_t swap = W % 8 ? 0 : W == 8 ? 1 : 3;
    if constexpr (W % 4 == 0) {
        uint32_t turn = mine * W / 32 & swap;
#pragma unroll
        for (uint32_t i = 0; i < W / 4; i++) {
            const uint4 v = *reinterpret_cast<const uint4 *>(at + mine * W * 4 + (i ^ turn) * 16);
            ret[1 + 4 * i] = v.x;
            ret[2 + 4 * i] = v.y;
            ret[3 + 4 * i] = v.z;
            ret[4 + 4 * i] = v.w;
        }
        uint32_t last = ((uint32_t)(W / 4 - 1) ^ (before * W / 32 & swap)) * 16 + 12;
        ret[0] = *reinterpret_cast<const uint32_t *>(at + before * W * 4 + last);
    } else if constexpr (W % 2 == 0) {
#pragma unroll
        for (uint32_t i = 0; i < W / 2; i++) {
            const uint2 v = *reinterpret_cast<const uint2 *>(at + mine * W * 4 + i * 8);
            ret[1 + 2 * i] = v.x;
            ret[2 + 2 * i] = v.y;
        }
        ret[0] = *reinterpret_cast<const uint32_t *>(at + before * W * 4 + (W - 1) * 4);
    } else {
#pragma unroll
        for (uint32_t i = 0; i < W; i++)
            ret[1 + i] = *reinterpret_cast<const uint32_t *>(at + mine * W * 4 + i * 4);
        ret[0] = *reinterpret_cast<const uint32_t *>(at + before * W * 4 + (W - 1) * 4);
    }
}

// Products. sum[set]: outputs 2 h + set and 2 h + set + 8 of the tile; two columns, then the same of the second eight.

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
DEVICE_FN uint64_t step_matrix(
    uint32_t
        at) { // no swizzle; pieces of 8 columns by 16 bytes: 128 apart along k, 256 along columns
    return (uint64_t)(at >> 4 & 0x3fff) | (uint64_t)(128 >> 4) << 16 | (uint64_t)(256 >> 4) << 32;
}

DEVICE_FN void multiply(int32_t sum[4], const uint32_t a[4], uint64_t b) {
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, 1, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n8k32.s32.u8.s8 {%0,%1,%2,%3}, {%4,%5,%6,%7}, %8, p;\n}"
        : "+r"(sum[0]), "+r"(sum[1]), "+r"(sum[2]), "+r"(sum[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}

DEVICE_FN void multiply_two(int32_t sum[8], const uint32_t a[4], uint64_t b) {
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, 1, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n16k32.s32.u8.s8 {%0,%1,%2,%3,%4,%5,%6,%7}, "
                 "{%8,%9,%10,%11}, %12, p;\n}"
                 : "+r"(sum[0]), "+r"(sum[1]), "+r"(sum[2]), "+r"(sum[3]), "+r"(sum[4]),
                   "+r"(sum[5]), "+r"(sum[6]), "+r"(sum[7])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}
#else
DEVICE_FN void multiply(int32_t sum[4], const uint32_t a[4], const uint32_t b[2]) {
    asm volatile("mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, "
                 "{%8,%9}, {%0,%1,%2,%3};"
                 : "+r"(sum[0]), "+r"(sum[1]), "+r"(sum[2]), "+r"(sum[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
#endif

/* A step: eight symbols of each set (inputs 2 s + {0, 1, 8, 9} of the lane's tile), two products for each: inputs 2 s and 2 s + 8, then
 * 2 s + 1 and 2 s + 9. v: the sets' bytes. b: the integers of this step. */
template <int COLUMNS>
DEVICE_FN void multiply_step(int32_t sum[2][COLUMNS / 2], const uint32_t v[2][8], uint32_t b) {
#pragma unroll
    for (uint32_t m = 0; m < 2; m++, b += exl3_int_step_bytes(COLUMNS)) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
        uint64_t matrix = step_matrix(b);
#else
        uint32_t lane = threadIdx.x % WARP;
#endif
#pragma unroll
        for (uint32_t set = 0; set < 2; set++) {
            const uint32_t a[4] = {v[set][m], v[set][m + 4], v[set][m + 2], v[set][m + 6]};
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
            if constexpr (COLUMNS == 8)
                multiply(sum[set], a, matrix);
            else
                multiply_two(sum[set], a, matrix);
#else
#pragma unroll
            for (uint32_t n = 0; n < COLUMNS / 8; n++) {
                uint32_t digits[2];
#pragma unroll
                for (uint32_t i = 0; i < 2; i++)
                    asm volatile("ld.shared.u32 %0, [%1];"
                                 : "=r"(digits[i])
                                 : "r"(b + n * 256 + i * 128 + lane * 4));
                multiply(sum[set] + n * 4, a, digits);
            }
#endif
        }
    }
}

DEVICE_FN void products_begin() { // registers that were written may be read by the tensor cores
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#endif
}

DEVICE_FN void products_commit() {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
#endif
}

template <int LEFT> DEVICE_FN void products_wait() {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(LEFT) : "memory");
#endif
}

// What a block has in shared memory: integers of a window of groups, then the rings of its warps.
struct place {
    uint32_t digits;   // address of the window in shared memory
    uint32_t ring;     // of this warp's ring
    const char *units; // the same
    uint32_t unit_bytes;
    uint32_t turn; // of the ring
};

template <int W, int COLUMNS>
DEVICE_FN void multiply_share(const struct linear_args &a, struct copier &c, uint32_t end,
                              struct place &at, const struct share &mine, uint32_t slot,
                              int32_t sum[2][COLUMNS / 2]) {
    uint32_t groups = a.parts[0].w.cols / EXL3_INT_GROUP;
    for (uint32_t left = mine.count; left; left--) {
        asm volatile("cp.async.wait_group %0;" ::"n"(EXL3_INT_RING - 1) : "memory");
        __syncwarp();
        uint32_t words[W + 1];
        load_words<W>(at.units + at.turn * at.unit_bytes, words);
        __syncwarp(); // all have read: the place is free
        copier_step(c, a, end, at.ring + at.turn * at.unit_bytes);
        at.turn = at.turn + 1 == EXL3_INT_RING ? 0 : at.turn + 1;
        uint32_t b = at.digits + slot * exl3_int_group_bytes(COLUMNS);
        slot += mine.step;
        if (slot >= groups) slot -= groups;
#pragma unroll
        for (int s = 0; s < 4; s++, b += 2 * exl3_int_step_bytes(COLUMNS)) {
            uint32_t v[2][8];
            exl3_int_bytes<W>(words + 1, 8 * s, v[0]);
            exl3_int_bytes<W>(words + 1, 32 + 8 * s, v[1]);
            products_begin();
            multiply_step<COLUMNS>(sum, v, b);
            products_commit();
            products_wait<0>();
        }
    }
}

/* The integers of `count` groups from `first` on (behind the last one comes the first), of all rows, into the window: step 2 s + m, half
 * i, column, tile c: a digit of input 16 c + 2 s + m + 8 i, four times. Sixteen threads are a group and row, each with four inputs. */
template <int COLUMNS>
DEVICE_FN void load_window(const struct exl3_int_params &p, const struct job &job, uint32_t nth,
                           uint32_t first, uint32_t count, char *to, const float *inverse) {
    uint32_t rows = job.rows, cols = p.a.parts[0].w.cols, groups = cols / EXL3_INT_GROUP;
    const float *v =
        device_ptr<const float>(p.rotated) + ((uint64_t)nth * p.a.rows + job.row) * cols;
    for (uint32_t i = threadIdx.x; i < (count * rows * 16 + 31) / 32 * 32; i += blockDim.x) {
        uint32_t j = i % 16, row = i / 16 % rows, slot = i / 16 / rows;
        if (slot >= count) slot = count - 1; // a second time
        uint32_t group = first + slot < groups ? first + slot : first + slot - groups;
        const float *from = v + (uint64_t)row * cols + group * EXL3_INT_GROUP + j;
        uint32_t low[4], high[4];
        int32_t sum = 0;
#pragma unroll
        for (int c = 0; c < 4; c++) {
            int32_t q = exl3_int_value(from[16 * c], inverse[row]);
            low[c] = __byte_perm((uint32_t)q, 0, 0x0000);
            high[c] = __byte_perm((uint32_t)exl3_int_high(q), 0, 0x0000);
            sum += q;
        }
#pragma unroll
        for (int d = 8; d; d /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, d);
        char *at = to + slot * exl3_int_group_bytes(COLUMNS);
        if (j == 0)
            *reinterpret_cast<int32_t *>(at + 8 * exl3_int_step_bytes(COLUMNS) + row * 4) = sum;
        at += j % 8 * exl3_int_step_bytes(COLUMNS) + row / 4 * 256 + j / 8 * 128 + row % 4 * 32;
        *reinterpret_cast<uint4 *>(at) = make_uint4(low[0], low[1], low[2], low[3]);
        *reinterpret_cast<uint4 *>(at + 16) = make_uint4(high[0], high[1], high[2], high[3]);
    }
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}

// The factors of a part's rows.
DEVICE_FN void load_factors(const struct exl3_int_params &p, const struct job &job, uint32_t nth,
                            float *inverse, float *scale) {
    uint32_t warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, size = 0;
    uint32_t blocks = p.a.parts[0].w.cols / EXL3_BLOCK;
    if (warp >= job.rows) return; // there are 8 warps at least
    const uint32_t *sizes =
        device_ptr<const uint32_t>(p.sizes) + ((uint64_t)nth * p.a.rows + job.row + warp) * blocks;
    for (uint32_t i = lane; i < blocks; i += WARP) size = max(size, sizes[i]);
    size = __reduce_max_sync(0xffffffffu, size);
    if (lane) return;
    inverse[warp] = exl3_int_inverse(size);
    scale[warp] = exl3_int_scale(size);
}

static_assert(TEAM_THREADS == 128, "team_sync");
DEVICE_FN void team_sync(uint32_t team) {
    asm volatile("bar.sync %0, 128;" ::"r"(team + 1) : "memory");
}

// Where a team's sums go: which 128 outputs of all.
DEVICE_FN uint32_t find_place(const struct job &job, const struct span &r,
                              const struct share &mine) {
    return job.own ? blockIdx.x * EXL3_INT_TEAMS + mine.block - r.block : r.blocks + mine.block;
}

// A team's sums of a block of 128 outputs to those of the other teams.
template <int COLUMNS>
DEVICE_FN void add_sums(const struct exl3_int_params &p, const struct job &job, uint32_t nth,
                        const struct share &mine, uint32_t slot, const int32_t sum[2][COLUMNS / 2],
                        const char *window) {
    uint32_t warp = threadIdx.x / WARP % EXL3_INT_TEAM, lane = threadIdx.x % WARP, rows = job.rows;
    uint32_t output = warp * 32 + lane / 16 * 16 + lane / 4 % 4 * 2;
    int32_t *to = device_ptr<int32_t>(p.sums) + (uint64_t)nth * job.stride * EXL3_BLOCK + output;
#pragma unroll
    for (uint32_t n = 0; n < COLUMNS / 8; n++) {
        uint32_t row = n * 4 + lane % 4;
        if (row >= rows) continue;
#pragma unroll
        for (uint32_t i = 0; i < 4; i++) { // set, half
            const int32_t *s = sum[i % 2] + n * 4 + i / 2 * 2;
            atomicAdd(to + row * EXL3_BLOCK + i % 2 + i / 2 * 8,
                      s[0] + (int32_t)((uint32_t)s[1] << 8));
        }
    }
    if (warp) return;
    uint32_t groups = p.a.parts[0].w.cols / EXL3_INT_GROUP;
    for (uint32_t row = 0; row < rows; row++) {
        int32_t q = 0;
        for (uint32_t i = lane; i < mine.count; i += WARP) {
            uint32_t s = slot + i * mine.step;
            if (s >= groups) s -= groups;
            q += *reinterpret_cast<const int32_t *>(window + s * exl3_int_group_bytes(COLUMNS) +
                                                    8 * exl3_int_step_bytes(COLUMNS) + row * 4);
        }
        q = __reduce_add_sync(0xffffffffu, q);
        if (lane == 0)
            atomicAdd(device_ptr<int32_t>(p.q_sums) + (uint64_t)nth * job.stride + row, q);
    }
}

// A warp: a row of a block of 128 outputs, all sums being there.
DEVICE_FN void finish_row(const struct exl3_int_params &p, const struct job &job,
                          const struct linear_part &part, uint32_t nth, uint32_t block,
                          uint32_t row, float scale) {
    uint32_t lane = threadIdx.x % WARP, n = block * EXL3_BLOCK + lane * EXL3_LANE_CHANNELS;
    int4 *sums = device_ptr<int4>(p.sums) + ((uint64_t)nth * job.stride + row) * WARP + lane;
    int32_t *q_sums = device_ptr<int32_t>(p.q_sums) + (uint64_t)nth * job.stride + row;
    int4 in = __ldcg(sums);
    int32_t q = __ldcg(q_sums), middle = q * EXL3_INT_MIDDLE;
    float v[EXL3_LANE_CHANNELS] = {
        exl3_int_answer(in.x - middle, q, scale), exl3_int_answer(in.y - middle, q, scale),
        exl3_int_answer(in.z - middle, q, scale), exl3_int_answer(in.w - middle, q, scale)};
    *sums = make_int4(0, 0, 0, 0);
    __syncwarp();
    if (lane == 0) *q_sums = 0;
    exl3_rotate(v);
    float *y = device_ptr<float>(part.y) + (uint64_t)(job.row + row) * part.w.rows;
#pragma unroll
    for (int j = 0; j < EXL3_LANE_CHANNELS; j++) {
        v[j] = v[j] * arith_from_f16(device_ptr<const uint16_t>(part.w.exl3.svh)[n + j]);
        if (part.w.exl3.bias) v[j] = v[j] + device_ptr<const float>(part.w.exl3.bias)[n + j];
        y[n + j] = part.add ? v[j] + y[n + j] : v[j];
    }
}

// The team whose groups are the last ones of a block of outputs finishes it.
DEVICE_FN void arrive(const struct exl3_int_params &p, const struct job &job, const struct span &r,
                      const struct share &mine, uint32_t *flag, const float *scale) {
    uint32_t team = threadIdx.x / TEAM_THREADS, nth = find_place(job, r, mine);
    uint32_t *arrived = device_ptr<uint32_t>(p.arrived) + nth;
    __threadfence();
    team_sync(team);
    if (threadIdx.x % TEAM_THREADS == 0) {
        *flag = atomicAdd(arrived, mine.count) + mine.count == p.a.parts[0].w.cols / EXL3_INT_GROUP;
        if (*flag) *arrived = 0;
    }
    team_sync(team);
    if (!*flag) return;
    __threadfence();
    for (uint32_t row = threadIdx.x / WARP % EXL3_INT_TEAM; row < job.rows; row += EXL3_INT_TEAM)
        finish_row(p, job, p.a.parts[r.part], nth, mine.block, row, scale[row]);
}

template <int W, int COLUMNS>
DEVICE_FN void run_share(const struct exl3_int_params &p, const struct job &job, struct copier &c,
                         struct place &at, const struct span &r, const struct share &mine,
                         uint32_t slot, const char *window) {
    int32_t sum[2][COLUMNS / 2];
#pragma unroll
    for (int i = 0; i < COLUMNS; i++) sum[i % 2][i / 2] = 0;
    multiply_share<W, COLUMNS>(p.a, c, job.end, at, mine, slot, sum);
    add_sums<COLUMNS>(p, job, find_place(job, r, mine), mine, slot, sum, window);
}

template <int COLUMNS>
DEVICE_FN void run_width(const struct exl3_int_params &p, const struct job &job, struct copier &c,
                         struct place &at, const struct span &r, const struct share &mine,
                         uint32_t slot, const char *window) {
#define WIDTH(w)                                                                                   \
    case w: run_share<w, COLUMNS>(p, job, c, at, r, mine, slot, window); break;
    switch (p.a.parts[r.part].w.exl3.half_bits) {
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

// The end of a window that begins at unit u: of the same part, not past `end`, and of at most p.window groups unless that is all.
DEVICE_FN uint32_t window_end(const struct exl3_int_params &p, uint32_t teams, uint32_t u,
                              uint32_t end, uint32_t *ret_groups) {
    uint32_t groups = p.a.parts[0].w.cols / EXL3_INT_GROUP, count = 0, part = 0;
    for (bool first = true; u < end; first = false) {
        struct span r = find_span(p.a, teams, u, end);
        if (first) part = r.part;
        if (r.part != part) break;
        uint32_t from = r.from / r.width, to = (r.to + r.width - 1) / r.width;
        if (p.window < groups && count + to - from > p.window) {
            uint32_t cut = (from + p.window - count) * r.width;
            if (cut > r.from) u += cut - r.from;
            count = p.window;
            break;
        }
        count += to - from;
        u += r.to - r.from;
    }
    *ret_groups = min(count, groups);
    return u;
}

// All MUL1 parts.
struct total {
    uint32_t units, unit_bytes; // bytes of the widest
};

DEVICE_FN struct total find_total(const struct linear_args &a) {
    struct total t = {0, 0};
    for (uint32_t i = 0; i < a.parts_count; i++) {
        if (!exl3_int_weight(&a.parts[i].w)) continue;
        t.units += a.parts[i].w.rows / EXL3_BLOCK * (a.parts[i].w.cols / EXL3_INT_GROUP);
        t.unit_bytes = max(t.unit_bytes, exl3_int_unit_bytes(a.parts[i].w.exl3.half_bits));
    }
    return t;
}

template <int COLUMNS>
DEVICE_FN void run_job(const struct exl3_int_params &p, const struct job &job, uint32_t unit_bytes,
                       bool waited) {
    extern __shared__ uint4 shared[];
    __shared__ float inverse[EXL3_INT_ROWS], scale[EXL3_INT_ROWS];
    __shared__ uint32_t flags[EXL3_INT_TEAMS];
    uint32_t teams = blockDim.x / TEAM_THREADS, team = threadIdx.x / TEAM_THREADS;
    uint32_t groups = p.a.parts[0].w.cols / EXL3_INT_GROUP, u = job.from;
    char *window = reinterpret_cast<char *>(shared);
    uint32_t ring =
        p.window * exl3_int_group_bytes(COLUMNS) + threadIdx.x / WARP * EXL3_INT_RING * unit_bytes;
    struct place at = {(uint32_t)__cvta_generic_to_shared(window),
                       (uint32_t)__cvta_generic_to_shared(window) + ring, window + ring, unit_bytes,
                       0};
    struct copier c = {nullptr, 0, 0, 0, 0, 0, u};
#pragma unroll
    for (int i = 0; i < EXL3_INT_RING; i++) copier_step(c, p.a, job.end, at.ring + i * unit_bytes);
    if (!waited) device_wait_prior();
    while (u < job.end) {
        uint32_t count, window_to = window_end(p, teams, u, job.end, &count);
        struct span r = find_span(p.a, teams, u, window_to);
        uint32_t first = r.from / r.width;
        load_factors(p, job, r.nth, inverse, scale);
        __syncthreads();
        load_window<COLUMNS>(p, job, r.nth, first, count, window, inverse);
        __syncthreads();
        for (; u < window_to; u += r.to - r.from) {
            r = find_span(p.a, teams, u, window_to);
            struct share mine = find_share(r, teams, team);
            if (mine.count == 0) continue;
            uint32_t slot = mine.group >= first ? mine.group - first : mine.group + groups - first;
            run_width<COLUMNS>(p, job, c, at, r, mine, slot, window);
            arrive(p, job, r, mine, &flags[team], scale);
        }
        __syncthreads();
    }
}

// The units of all parts, shared out equally.
DEVICE_FN struct job equal_job(const struct exl3_int_params &p, uint32_t units) {
    return {(uint32_t)((uint64_t)units * blockIdx.x / gridDim.x),
            (uint32_t)((uint64_t)units * (blockIdx.x + 1) / gridDim.x),
            0,
            p.a.rows,
            p.a.rows,
            false};
}

extern "C" __global__ void __launch_bounds__(THREADS, 2)
    exl3_int_4(const struct exl3_int_params p) {
    struct total t = find_total(p.a);
    device_let_next();
    run_job<8>(p, equal_job(p, t.units), t.unit_bytes, false);
}

// More than 8 rows: a block's next job, all inputs of some outputs for eight rows after eight. At first job.end and nth are 0.
DEVICE_FN bool next_job(const struct exl3_int_params &p, uint32_t units, struct job &job,
                        uint32_t &nth) {
    do {
        job.from = job.end;
        if (job.from == units) {
            job.from = nth = 0;
            job.row += EXL3_INT_ROWS;
            if (job.row >= p.a.rows) return false;
        }
        struct span s = find_span(p.a, blockDim.x / TEAM_THREADS, job.from, units);
        job.end = job.from + s.to - s.from;
    } while (nth++ % gridDim.x != blockIdx.x);
    job.rows = min(p.a.rows - job.row, (uint32_t)EXL3_INT_ROWS);
    return true;
}

extern "C" __global__ void __launch_bounds__(THREADS, 2)
    exl3_int_8(const struct exl3_int_params p) {
    struct total t = find_total(p.a);
    struct job job = equal_job(p, t.units);
    bool own = p.a.rows > EXL3_INT_ROWS;
    uint32_t nth = 0;
    device_let_next();
    if (own) {
        device_wait_prior();
        job = {0, 0, 0, 0, EXL3_INT_ROWS, true};
        next_job(p, t.units, job, nth);
    }
    do run_job<16>(p, job, t.unit_bytes, own);
    while (own && next_job(p, t.units, job, nth));
}
