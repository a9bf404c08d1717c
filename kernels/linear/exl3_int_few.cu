/* exl3_int_few: MUL1 parts for up to 8 rows. See exl3_int.h for the arithmetic.
 *
 * Work    An item is 64 inputs of as many outputs as a block has teams of four warps, 128 a team and 32 a warp. The items of all
 *         parts stand in one order: for a chunk of the inputs all outputs, and for these the chunk's inputs. Blocks have equal runs of it.
 *         A lane owns 64 neighbouring symbols of a tile: outputs 2 h, 2 h + 1, + 8 of the warp's tile rt, inputs of the item's
 *         tile c (lane = 16 rt + 4 h + c).
 * Product Bytes: the four of 0x83dcd12d * state, unsigned, times q's digits, signed, each four times, for all rows of the launch: two
 *         neighbouring columns are a row's low and high digit. Sums are modulo 2^32, as exl3_int.h has them.
 *         sm_90: wgmma m64n8k32 or m64n16k32 of a team, the weights from registers; elsewhere mma.sync m16n8k32. Same sums.
 * Ring    A warp copies its own weights, EXL3_INT_RING items ahead, the first ones before the launch before has ended.
 * Ends    A block adds its sums to p.sums and says how many groups of inputs they were; whose are the last ones rotates the outputs,
 *         writes them, and sets sums and counters back to 0.
 * Equals  exl3_int_ref.c, bit for bit.
 * Cost    instructions of the decoding, 3.3 a weight, beside the tensor cores' 13 clocks for 512 weights. */
#include "kernels/linear/exl3_int_items.cuh"

enum {
    TEAM_THREADS = EXL3_INT_TEAM * WARP,
    THREADS = EXL3_INT_TEAMS * TEAM_THREADS,
};

// What a block does: items, for some rows.
struct job {
    uint32_t from, to;
    uint32_t row, rows; // the first, how many
    uint32_t stride;    // rows of a strip in p.sums
    bool own; // no other block has items of the same outputs: sums stand by block, not by strip
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

// The span that item i begins, not past item `end`.
DEVICE_FN struct span find_span(const struct exl3_int_params &p, uint32_t i, uint32_t end) {
    struct span r = {0, 0, 0, 0, 0, 0, 0};
    uint32_t groups = p.a.parts[0].w.cols / EXL3_INT_GROUP, strips = 0, left = end - i;
    for (;; r.part++) {
        if (!exl3_int_weight(&p.a.parts[r.part].w)) continue;
        strips = part_strips(p.a.parts[r.part].w);
        if (i < strips * groups) break;
        i -= strips * groups;
        r.place += strips;
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

// A warp's weights on their way, in the order of the items.
struct copier {
    uint32_t next, end; // items whose run has not begun
    uint32_t left;      // items of the run
    bool wide;          // more than 4 bits
    uint32_t pitch;     // bytes of sixteen inputs
    uint32_t to_step;
    bool some;        // this lane has pieces to copy
    const char *from; // this lane's, of the next item
    uint32_t to;      // and where, in an item's place
};

// The next run, where there is one; else c.some is false and c.left many.
DEVICE_FN void copier_begin(struct copier &c, const struct exl3_int_params &p) {
    uint32_t warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    c.some = false;
    c.left = 0xffffffffu;
    if (c.next == c.end) return;
    struct span r = find_span(p, c.next, c.end);
    const struct weight &w = p.a.parts[r.part].w;
    uint32_t half_bits = w.exl3.half_bits;
    uint32_t output = r.strip * (blockDim.x / WARP * 32) + warp * 32;
    c.next += r.count;
    c.left = r.count;
    c.pitch = w.rows * half_bits;
    c.wide = half_bits > 8;
    // Sixteen inputs of a warp's two tiles are 2 W pieces of 16 bytes. Half a warp takes them, or all of it. Where lanes
    // that read together would meet in the banks, pieces change places within eights.
    uint32_t tile = c.wide ? 0 : lane / 16, piece = c.wide ? lane : lane % 16;
    uint32_t at = tile * 2 * half_bits + piece, swap = half_bits % 8 ? 0 : half_bits == 8 ? 1 : 3;
    c.some = piece < 2 * half_bits && output < w.rows;
    c.from = device_ptr<const char>(w.data) + (uint64_t)(r.group * 4 + tile) * c.pitch +
             (uint64_t)output * half_bits + piece * 16;
    c.to = (at ^ (at >> 3 & swap)) * 16;
    c.to_step = 32 * half_bits;
}

// The next item's weights, if there is one, to the place at `to`; a group of copies.
DEVICE_FN void copier_step(struct copier &c, uint32_t to) {
    to += c.to;
    if (c.wide) {
        if (c.some)
#pragma unroll
            for (uint32_t i = 0; i < 4; i++)
                copies_16(to + i * c.to_step, c.from + (uint64_t)i * c.pitch);
    } else if (c.some) {
        copies_16(to, c.from);
        copies_16(to + 2 * c.to_step, c.from + 2 * (uint64_t)c.pitch);
    }
    c.from += 4 * (uint64_t)c.pitch;
    asm volatile("cp.async.commit_group;" ::: "memory");
}

// What a warp has in shared memory.
struct place {
    uint32_t digits;   // address of the block's window of integers
    const char *items; // the warp's ring
    uint32_t ring;     // its address
    uint32_t turn;     // bytes into the ring
};

// The whole ring.
DEVICE_FN void copier_fill(struct copier &c, const struct exl3_int_params &p,
                           const struct place &at) {
#pragma unroll 1
    for (uint32_t i = 0; i < EXL3_INT_RING; i++) {
        if (c.left == 0) copier_begin(c, p);
        copier_step(c, at.ring + i * p.item_bytes);
        c.left--;
    }
}

template <int W, int COLUMNS>
DEVICE_FN void multiply_run(const struct exl3_int_params &p, struct copier &c, struct place &at,
                            uint32_t count, uint32_t slot, int32_t sum[2][COLUMNS / 2]) {
    uint32_t digits = at.digits + slot * (exl3_int_group_bytes(COLUMNS) / 16);
    for (uint32_t some; count; count -= some) {
        if (c.left == 0) copier_begin(c, p);
        some = min(count, c.left);
        c.left -= some;
        for (uint32_t i = 0; i < some; i++, digits += exl3_int_group_bytes(COLUMNS) / 16) {
            asm volatile("cp.async.wait_group %0;" ::"n"(EXL3_INT_RING - 1) : "memory");
            __syncwarp();
            uint32_t words[W + 1];
            exl3_int_load_words<W>(at.items + at.turn, words);
            __syncwarp(); // all have read: the place is free
            copier_step(c, at.ring + at.turn);
            at.turn += p.item_bytes;
            if (at.turn == EXL3_INT_RING * p.item_bytes) at.turn = 0;
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
}

// The factors of the rows of all parts: a warp each.
DEVICE_FN void load_factors(const struct exl3_int_params &p, const struct job &job,
                            float (*inverse)[EXL3_INT_ROWS], float (*scale)[EXL3_INT_ROWS]) {
    uint32_t lane = threadIdx.x % WARP, blocks = p.a.parts[0].w.cols / EXL3_BLOCK;
    for (uint32_t i = threadIdx.x / WARP; i < p.parts * job.rows; i += blockDim.x / WARP) {
        uint32_t nth = i / job.rows, row = i % job.rows, size = 0;
        const uint32_t *sizes = device_ptr<const uint32_t>(p.sizes) +
                                ((uint64_t)nth * p.a.rows + job.row + row) * blocks;
        for (uint32_t k = lane; k < blocks; k += WARP) size = max(size, sizes[k]);
        size = __reduce_max_sync(0xffffffffu, size);
        if (lane) continue;
        inverse[nth][row] = exl3_int_inverse(size);
        scale[nth][row] = exl3_int_scale(size);
    }
}

// A group of inputs in the window: where it is, in rotated rows.
struct source {
    uint32_t nth, group;
};

DEVICE_FN struct source &window_source(char *window, uint32_t slot, uint32_t columns) {
    return *reinterpret_cast<struct source *>(window + (slot + 1) * exl3_int_group_bytes(columns) -
                                              16);
}

// Of a row's q in the group.
DEVICE_FN int32_t &window_sum(char *window, uint32_t slot, uint32_t columns, uint32_t row) {
    return *reinterpret_cast<int32_t *>(window + slot * exl3_int_group_bytes(columns) +
                                        8 * exl3_int_step_bytes(columns) + row * 4);
}

/* The integers of a window's groups, of all rows: step 2 s + m, half i, column, tile c: a digit of input 16 c + 2 s + m + 8 i, four
 * times. A task is a group, a row and four inputs, one of each tile: sixteen threads have a group and row. Some tasks of a thread are
 * on their way together. */
struct tasks {
    float in[3][4];
};

enum { TASKS = sizeof(struct tasks) / sizeof(float[4]) };

struct task {
    uint32_t row, slot;
    bool is; // there is such a row and slot
};

template <int COLUMNS>
DEVICE_FN struct task find_task(const struct job &job, uint32_t turn, uint32_t i, uint32_t count) {
    uint32_t task = (turn + i * blockDim.x + threadIdx.x) / 16;
    uint32_t row = task % (COLUMNS / 2), slot = task / (COLUMNS / 2);
    return {row, slot, row < job.rows && slot < count};
}

template <int COLUMNS>
DEVICE_FN void load_tasks(const struct exl3_int_params &p, const struct job &job, uint32_t turn,
                          uint32_t count, char *window, struct tasks &ret) {
    uint32_t cols = p.a.parts[0].w.cols;
    const float *v =
        device_ptr<const float>(p.rotated) + (uint64_t)job.row * cols + threadIdx.x % 16;
#pragma unroll
    for (uint32_t i = 0; i < TASKS; i++) {
        struct task t = find_task<COLUMNS>(job, turn, i, count);
        struct source s = t.is ? window_source(window, t.slot, COLUMNS) : source{0, 0};
        const float *from =
            v + ((uint64_t)s.nth * p.a.rows + t.row) * cols + s.group * EXL3_INT_GROUP;
#pragma unroll
        for (int c = 0; c < 4; c++) ret.in[i][c] = t.is ? from[16 * c] : 0.0f;
    }
}

template <int COLUMNS>
DEVICE_FN void store_tasks(const struct job &job, uint32_t turn, uint32_t count, char *window,
                           const float (*inverse)[EXL3_INT_ROWS], const struct tasks &tasks) {
    uint32_t j = threadIdx.x % 16;
#pragma unroll
    for (uint32_t i = 0; i < TASKS; i++) {
        struct task t = find_task<COLUMNS>(job, turn, i, count);
        float factor = t.is ? inverse[window_source(window, t.slot, COLUMNS).nth][t.row] : 0.0f;
        uint32_t low[4], high[4];
        int32_t sum = 0;
#pragma unroll
        for (int c = 0; c < 4; c++) {
            int32_t q = exl3_int_value(tasks.in[i][c], factor);
            low[c] = __byte_perm((uint32_t)q, 0, 0x0000);
            high[c] = __byte_perm((uint32_t)exl3_int_high(q), 0, 0x0000);
            sum += q;
        }
#pragma unroll
        for (int d = 8; d; d /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, d);
        if (!t.is) continue;
        if (j == 0) window_sum(window, t.slot, COLUMNS, t.row) = sum;
        char *to = window + t.slot * exl3_int_group_bytes(COLUMNS) +
                   j % 8 * exl3_int_step_bytes(COLUMNS) + t.row / 4 * 256 + j / 8 * 128 +
                   t.row % 4 * 32;
        *reinterpret_cast<uint4 *>(to) = make_uint4(low[0], low[1], low[2], low[3]);
        *reinterpret_cast<uint4 *>(to + 16) = make_uint4(high[0], high[1], high[2], high[3]);
    }
}

// After the last of them: the block may use the window.
DEVICE_FN void window_done() {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
    __syncthreads();
}

// Where a run's sums go: which strip.
DEVICE_FN uint32_t find_place(const struct job &job, const struct span &r) {
    return job.own ? blockIdx.x : r.place;
}

// A run's sums to those of the other blocks. Warps without outputs count too.
template <int COLUMNS>
DEVICE_FN void add_sums(const struct exl3_int_params &p, const struct job &job,
                        const struct span &r, uint32_t slot, const int32_t sum[2][COLUMNS / 2],
                        char *window) {
    uint32_t warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, outputs = blockDim.x / WARP * 32;
    uint32_t output = warp * 32 + lane / 16 * 16 + lane / 4 % 4 * 2;
    uint64_t place = (uint64_t)find_place(job, r) * job.stride;
    int32_t *to = device_ptr<int32_t>(p.sums) + place * outputs + output;
    bool mine = r.strip * outputs + output < p.a.parts[r.part].w.rows;
#pragma unroll
    for (uint32_t n = 0; n < COLUMNS / 8; n++) {
        uint32_t row = n * 4 + lane % 4;
        if (!mine || row >= job.rows) continue;
#pragma unroll
        for (uint32_t i = 0; i < 4; i++) { // set, half
            const int32_t *s = sum[i % 2] + n * 4 + i / 2 * 2;
            atomicAdd(to + row * outputs + i % 2 + i / 2 * 8,
                      s[0] + (int32_t)((uint32_t)s[1] << 8));
        }
    }
    for (uint32_t row = warp; row < job.rows; row += blockDim.x / WARP) {
        int32_t q = 0;
        for (uint32_t i = lane; i < r.count; i += WARP)
            q += window_sum(window, slot + i, COLUMNS, row);
        q = __reduce_add_sync(0xffffffffu, q);
        if (lane == 0) atomicAdd(device_ptr<int32_t>(p.q_sums) + place + row, q);
    }
}

// A warp: a row of 128 outputs of a strip, all sums being there.
DEVICE_FN void finish_row(const struct exl3_int_params &p, const struct job &job,
                          const struct span &r, uint32_t block, uint32_t row, float scale) {
    const struct linear_part &part = p.a.parts[r.part];
    uint32_t lane = threadIdx.x % WARP, blocks = blockDim.x / TEAM_THREADS;
    uint32_t n = (r.strip * blocks + block) * EXL3_BLOCK + lane * EXL3_LANE_CHANNELS;
    uint64_t place = (uint64_t)find_place(job, r) * job.stride + row;
    int4 *sums = device_ptr<int4>(p.sums) + (place * blocks + block) * WARP + lane;
    int4 in = __ldcg(sums);
    int32_t q = __ldcg(device_ptr<const int32_t>(p.q_sums) + place), middle = q * EXL3_INT_MIDDLE;
    float v[EXL3_LANE_CHANNELS] = {
        exl3_int_answer(in.x - middle, q, scale), exl3_int_answer(in.y - middle, q, scale),
        exl3_int_answer(in.z - middle, q, scale), exl3_int_answer(in.w - middle, q, scale)};
    *sums = make_int4(0, 0, 0, 0);
    exl3_rotate(v);
    float *y = device_ptr<float>(part.y) + (uint64_t)(job.row + row) * part.w.rows;
#pragma unroll
    for (int j = 0; j < EXL3_LANE_CHANNELS; j++) {
        v[j] = v[j] * arith_from_f16(device_ptr<const uint16_t>(part.w.exl3.svh)[n + j]);
        if (part.w.exl3.bias) v[j] = v[j] + device_ptr<const float>(part.w.exl3.bias)[n + j];
        y[n + j] = part.add ? v[j] + y[n + j] : v[j];
    }
}

// The block whose groups are the last ones of a strip finishes it.
DEVICE_FN void arrive(const struct exl3_int_params &p, const struct job &job, const struct span &r,
                      uint32_t *flag, const float *scale) {
    uint32_t place = find_place(job, r), *arrived = device_ptr<uint32_t>(p.arrived) + place;
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) {
        *flag = atomicAdd(arrived, r.count) + r.count == p.a.parts[0].w.cols / EXL3_INT_GROUP;
        if (*flag) *arrived = 0;
    }
    __syncthreads();
    if (!*flag) return;
    __threadfence();
    uint32_t blocks = blockDim.x / TEAM_THREADS,
             left = p.a.parts[r.part].w.rows / EXL3_BLOCK - r.strip * blocks;
    blocks = min(blocks, left);
    for (uint32_t i = threadIdx.x / WARP; i < blocks * job.rows; i += blockDim.x / WARP)
        finish_row(p, job, r, i / job.rows, i % job.rows, scale[i % job.rows]);
    __syncthreads();
    int32_t *q_sums = device_ptr<int32_t>(p.q_sums) + (uint64_t)place * job.stride;
    if (threadIdx.x < job.rows) q_sums[threadIdx.x] = 0;
}

template <int W, int COLUMNS>
DEVICE_FN void run_width(const struct exl3_int_params &p, const struct job &job, struct copier &c,
                         struct place &at, const struct span &r, uint32_t slot, char *window) {
    int32_t sum[2][COLUMNS / 2];
#pragma unroll
    for (int i = 0; i < COLUMNS; i++) sum[i % 2][i / 2] = 0;
    multiply_run<W, COLUMNS>(p, c, at, r.count, slot, sum);
    add_sums<COLUMNS>(p, job, r, slot, sum, window);
}

template <int COLUMNS>
DEVICE_FN void run_one(const struct exl3_int_params &p, const struct job &job, struct copier &c,
                       struct place &at, const struct span &r, uint32_t slot, char *window) {
#define WIDTH(w)                                                                                   \
    case w: run_width<w, COLUMNS>(p, job, c, at, r, slot, window); break;
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

/* A job's items: windows of integers, and runs. Where the window takes all of them it has one slot an item, of any part. Else it has one
 * chunk of the inputs after another. */
template <int COLUMNS>
DEVICE_FN void run_job(const struct exl3_int_params &p, const struct job &job, bool waited) {
    extern __shared__ uint4 shared[];
    __shared__ float inverse[LINEAR_PARTS_MAX][EXL3_INT_ROWS],
        scale[LINEAR_PARTS_MAX][EXL3_INT_ROWS];
    __shared__ uint32_t flag;
    char *window = reinterpret_cast<char *>(shared);
    char *ring = window + p.window * exl3_int_group_bytes(COLUMNS) +
                 threadIdx.x / WARP * EXL3_INT_RING * p.item_bytes;
    struct place at = {(uint32_t)__cvta_generic_to_shared(window) / 16, ring,
                       (uint32_t)__cvta_generic_to_shared(ring), 0};
    struct copier c = {job.from, job.to, 0, false, 0, 0, false, nullptr, 0};
    copier_fill(c, p, at);
    bool all = job.to - job.from <= p.window, first = true;
    for (uint32_t i = job.from; i < job.to;) {
        struct span r = find_span(p, i, job.to);
        uint32_t chunk = r.chunk, base = (r.chunk & 0xffffu) * p.chunk, slot = 0;
        uint32_t count =
            all ? job.to - i : min(p.chunk, p.a.parts[0].w.cols / EXL3_INT_GROUP - base);
        for (uint32_t k = threadIdx.x; k < count; k += blockDim.x) {
            struct source from = {r.nth, all ? r.group + k : base + k};
            if (all && k >= r.count) {
                struct span other = find_span(p, i + k, job.to);
                from = {other.nth, other.group};
            }
            window_source(window, k, COLUMNS) = from;
        }
        __syncthreads();
        if (!waited) device_wait_prior();
        waited = true;
        struct tasks tasks;
        load_tasks<COLUMNS>(p, job, 0, count, window, tasks);
        if (first) load_factors(p, job, inverse, scale);
        __syncthreads();
        store_tasks<COLUMNS>(job, 0, count, window, inverse, tasks);
        for (uint32_t turn = TASKS * blockDim.x; turn < count * (COLUMNS / 2) * 16;
             turn += TASKS * blockDim.x) {
            load_tasks<COLUMNS>(p, job, turn, count, window, tasks);
            store_tasks<COLUMNS>(job, turn, count, window, inverse, tasks);
        }
        window_done();
        first = false;
        for (; i < job.to; i += r.count, slot += r.count) {
            r = find_span(p, i, job.to);
            if (!all && r.chunk != chunk) break;
            if (!all) slot = r.group - base;
            run_one<COLUMNS>(p, job, c, at, r, slot, window);
            arrive(p, job, r, &flag, scale[r.nth]);
        }
        __syncthreads();
    }
}

// The items of all parts, shared out equally.
DEVICE_FN struct job equal_job(const struct exl3_int_params &p) {
    uint32_t from = blockIdx.x * p.items + min(blockIdx.x, p.more);
    return {from, from + p.items + (blockIdx.x < p.more), 0, p.a.rows, p.a.rows, false};
}

extern "C" __global__ void __launch_bounds__(THREADS, 2)
    exl3_int_4(const struct exl3_int_params p) {
    device_let_next();
    run_job<8>(p, equal_job(p), false);
}

// More than 8 rows: a block's jobs, all inputs of a strip, chunk by chunk, for eight rows after eight.
struct walk {
    uint32_t part, strip, chunk;
    uint32_t before; // items of the parts before it
    uint32_t nth;    // strips met
};

DEVICE_FN bool next_job(const struct exl3_int_params &p, struct walk &w, struct job &job) {
    uint32_t groups = p.a.parts[0].w.cols / EXL3_INT_GROUP;
    for (;;) {
        const struct weight &m = p.a.parts[w.part].w;
        uint32_t strips = exl3_int_weight(&m) ? part_strips(m) : 0;
        if (w.strip < strips && w.chunk * p.chunk < groups && w.nth % gridDim.x == blockIdx.x) {
            uint32_t base = w.chunk++ * p.chunk, size = min(p.chunk, groups - base);
            job.from = w.before + base * strips + w.strip * size;
            job.to = job.from + size;
            job.rows = min(p.a.rows - job.row, (uint32_t)EXL3_INT_ROWS);
            return true;
        }
        w.chunk = 0;
        if (w.strip < strips) {
            w.strip++;
            w.nth++;
            continue;
        }
        w.before += strips * groups;
        w.strip = 0;
        if (++w.part < p.a.parts_count) continue;
        w = {0, 0, 0, 0, 0};
        job.row += EXL3_INT_ROWS;
        if (job.row >= p.a.rows) return false;
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 2)
    exl3_int_8(const struct exl3_int_params p) {
    struct job job = equal_job(p);
    struct walk walk = {0, 0, 0, 0, 0};
    bool own = p.a.rows > EXL3_INT_ROWS;
    device_let_next();
    if (own) {
        device_wait_prior();
        job = {0, 0, 0, 0, EXL3_INT_ROWS, true};
        if (!next_job(p, walk, job)) return;
    }
    do run_job<16>(p, job, own);
    while (own && next_job(p, walk, job));
}
