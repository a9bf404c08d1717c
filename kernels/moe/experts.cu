/* experts: see experts.h. Launches, one after another, where rows are many:
 *
 *   experts_sort     one block: the picks, sorted by expert. Their order within an expert decides nothing.
 *   experts_spread   a pick's row as its gate and up take it: EXL3: rotated; else rounded to the weight's type
 *   experts_exl3     the products of the experts' EXL3 matrices that have chains, experts_plain those of the plain ones; a block has some
 *                    outputs of an expert and goes through all its rows, 64 at a time; experts_int.cu: MUL1
 *   experts_between  gate and up finished, silu(gate) * up, as the down matrix takes it
 *   experts_exl3, experts_plain, experts_int   of the down matrices
 *   experts_add      a row's answers, finished, from 0, in ascending number of their experts: product and sum rounded apart; then the shared
 *                    expert
 * Few rows have experts_few.cu and experts_int.cu, and experts_add after them.
 * Order   the products' is linear_order.h's.
 * Equals  experts_ref.c, bit for bit. */
#include "kernels/linear/exl3_int_many.cuh"
#include "kernels/linear/linear_wide.cuh"
#include "kernels/moe/experts_add.cuh"
#include "kernels/moe/experts_exl3.cuh"

enum { SORT_THREADS = EXPERTS_SORT_THREADS, THREADS = EXPERTS_THREADS, WARPS = THREADS / WARP };

extern __shared__ __align__(1024) unsigned char shared[];

// Of the experts before a thread's: their picks, those that have any, their items.
struct before {
    uint32_t picks, active, items;
};

DEVICE_FN struct before plus(const struct before &a, const struct before &b) {
    return {a.picks + b.picks, a.active + b.active, a.items + b.items};
}

DEVICE_FN struct before from_lane(const struct before &v, uint32_t lane) {
    return {__shfl_sync(0xffffffffu, v.picks, lane), __shfl_sync(0xffffffffu, v.active, lane),
            __shfl_sync(0xffffffffu, v.items, lane)};
}

// Sums of all lanes before this one; *io: with it.
DEVICE_FN struct before scan_warp(struct before *io) {
    uint32_t lane = threadIdx.x % WARP;
    struct before mine = *io;
#pragma unroll
    for (uint32_t d = 1; d < WARP; d *= 2) {
        struct before other = from_lane(*io, lane - d);
        if (lane >= d) *io = plus(*io, other);
    }
    return {io->picks - mine.picks, io->active - mine.active, io->items - mine.items};
}

// All threads: sums of those before this one; *ret_all: of all.
DEVICE_FN struct before scan_block(struct before v, struct before *ret_all) {
    __shared__ struct before warps[WARP];
    struct before with = v, sum = scan_warp(&with);
    uint32_t warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    if (lane == WARP - 1) warps[warp] = with;
    __syncthreads();
    struct before of_warp = lane < SORT_THREADS / WARP ? warps[lane] : before{0, 0, 0};
    struct before end = of_warp, start = scan_warp(&end);
    *ret_all = from_lane(end, WARP - 1);
    return plus(from_lane(start, warp), sum);
}

// Shared memory: a count for each expert, and the shared one.
extern "C" __global__ void __launch_bounds__(SORT_THREADS)
    experts_sort(const struct experts_params p) {
    uint32_t *counts = reinterpret_cast<uint32_t *>(shared);
    uint32_t all = p.a.count + (p.per > p.a.per_token),
             each = (all + SORT_THREADS - 1) / SORT_THREADS;
    for (uint32_t e = threadIdx.x; e < all; e += SORT_THREADS) counts[e] = 0;
    device_let_next();
    device_wait_prior();
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < p.picks; i += SORT_THREADS)
        atomicAdd(&counts[experts_number(p, i)], 1u);
    __syncthreads();
    struct before mine = {0, 0, 0}, total;
    uint32_t from = threadIdx.x * each, end = min(from + each, all);
    for (uint32_t e = from; e < end; e++) {
        uint32_t n = counts[e];
        mine = plus(mine, {n, n > 0, (n + p.item_rows - 1) / p.item_rows});
    }
    struct before at = scan_block(mine, &total);
    uint32_t *first = device_ptr<uint32_t>(p.first), *active = device_ptr<uint32_t>(p.active);
    struct experts_item *items = device_ptr<struct experts_item>(p.items);
    for (uint32_t e = from; e < end; e++) {
        uint32_t n = counts[e];
        first[e] = at.picks;
        counts[e] = at.picks;
        if (n) active[1 + at.active++] = e;
        for (uint32_t done = 0; done < n; done += p.item_rows)
            items[1 + at.items++] = {e, at.picks + done, min(n - done, p.item_rows)};
        at.picks += n;
    }
    if (threadIdx.x == 0) {
        first[all] = p.picks;
        active[0] = total.active;
        items[0].number = total.items;
    }
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < p.picks; i += SORT_THREADS) {
        uint32_t expert = experts_number(p, i), to = atomicAdd(&counts[expert], 1u);
        device_ptr<uint32_t>(p.sorted)[to] = i;
        device_ptr<uint32_t>(p.owner)[to] = expert;
        device_ptr<uint32_t>(p.place)[i] = to;
    }
}

// A sorted pick's expert, and its place among the expert's.
struct pick {
    const struct expert &e;
    uint32_t row, place;
};

DEVICE_FN struct pick pick_at(const struct experts_params &p, uint32_t i) {
    uint32_t number = __ldcg(device_ptr<const uint32_t>(p.owner) + i);
    return {experts_of(p, number), __ldcg(device_ptr<const uint32_t>(p.sorted) + i) / p.per,
            i - __ldcg(device_ptr<const uint32_t>(p.first) + number)};
}

// Where sorted pick i's values for a matrix go: its line of the first span is line i of `lines`, all of which have n lines a span.
DEVICE_FN void put(const struct weight &w, unsigned char *lines, uint64_t n, uint32_t i,
                   uint32_t place, float *plain, uint32_t channel, float v[4]) {
    if (!w.exl3.half_bits && w.dtype == DTYPE_F32) {
        for (uint32_t j = 0; j < 4 && channel + j < w.cols; j++) plain[channel + j] = v[j];
        return;
    }
    if (channel >= (w.cols + STREAM_SPAN - 1) / STREAM_SPAN * STREAM_SPAN) return;
    uint64_t line = channel / STREAM_SPAN * n + i;
    uint32_t piece = channel / 8 % 8 ^ place % 8;
    *reinterpret_cast<uint2 *>(lines + line * WIDE_LINE + piece * 16 + channel % 8 * 2) =
        experts_halves(w, channel, v);
}

/* All threads: a sorted pick's inputs of a MUL1 matrix as integers, in experts_int_many's lines; load(block, v): the lane's four of 128
 * of them. A warp keeps the first ones that it has rotated. */
template <class Load>
DEVICE_FN void put_ints(const struct experts_params &p, const struct weight &w, uint32_t matrix,
                        uint32_t i, uint32_t place, const Load &load) {
    enum { KEPT = 2 };
    __shared__ uint32_t size_max, flat[EXPERTS_MANY_FLAT_WORDS];
    __shared__ int32_t q_all;
    uint32_t warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, blocks = w.cols / EXL3_BLOCK;
    uint32_t words = experts_flat_words(w.cols), size = 0;
    float kept[KEPT][4];
    auto rotated = [&](uint32_t block, float v[4]) {
        load(block, v);
        experts_times_halves(v, w.exl3.suh, block * EXL3_BLOCK + lane * EXL3_LANE_CHANNELS);
        exl3_rotate(v);
    };
    if (threadIdx.x < words) flat[threadIdx.x] = 0;
    if (threadIdx.x == 0) {
        size_max = 0;
        q_all = 0;
    }
    __syncthreads();
#pragma unroll
    for (uint32_t n = 0; n < KEPT; n++) {
        uint32_t block = warp + n * WARPS;
        if (block >= blocks) continue;
        rotated(block, kept[n]);
#pragma unroll
        for (int j = 0; j < 4; j++) size = max(size, exl3_int_size(kept[n][j]));
    }
    for (uint32_t block = warp + KEPT * WARPS; block < blocks; block += WARPS) {
        float v[4];
        rotated(block, v);
#pragma unroll
        for (int j = 0; j < 4; j++) size = max(size, exl3_int_size(v[j]));
    }
    size = __reduce_max_sync(0xffffffffu, size);
    if (lane == 0) atomicMax(&size_max, size);
    __syncthreads();
    float inverse = exl3_int_inverse(size_max);
    char *lines = device_ptr<char>(p.lines) + matrix * experts_lines_bytes(p.picks, p.a.dim);
    int32_t sum = 0;
    auto write = [&](uint32_t block, const float v[4]) {
        int32_t q[4], large = 0;
#pragma unroll
        for (int j = 0; j < 4; j++) {
            q[j] = exl3_int_value(v[j], inverse);
            sum += q[j];
            large += abs(q[j]);
        }
        // Of tile c, lane m = lane % 4 has inputs 4 m .. 4 m + 3.
        uint32_t unit = block * 2 + lane / 16, m = lane % 4, c = lane % 16 / 4;
        uint32_t s = m % 2 * 2, half = m / 2;
        char *to = lines + ((uint64_t)unit * p.picks + i) * WIDE_LINE + 4 * c;
        *reinterpret_cast<uint32_t *>(to + ((2 * s + half) ^ place % 8) * 16) =
            many_f16(q[0], q[1]);
        *reinterpret_cast<uint32_t *>(to + ((2 * s + 2 + half) ^ place % 8) * 16) =
            many_f16(q[2], q[3]);
#pragma unroll
        for (int d = 8; d; d /= 2) large += __shfl_xor_sync(0xffffffffu, large, d);
        if (lane % 16 == 0 && large > MANY_FLAT_SUM) atomicOr(&flat[unit / 32], 1u << unit % 32);
    };
#pragma unroll
    for (uint32_t n = 0; n < KEPT; n++)
        if (warp + n * WARPS < blocks) write(warp + n * WARPS, kept[n]);
    for (uint32_t block = warp + KEPT * WARPS; block < blocks; block += WARPS) {
        float v[4];
        rotated(block, v);
        write(block, v);
    }
    sum = __reduce_add_sync(0xffffffffu, sum);
    if (lane == 0) atomicAdd(&q_all, sum);
    __syncthreads();
    if (threadIdx.x < words) experts_flat(p, matrix, i)[threadIdx.x] = flat[threadIdx.x];
    if (threadIdx.x) return;
    device_ptr<int32_t>(p.q_sums)[(uint64_t)matrix * p.picks + i] = q_all;
    device_ptr<float>(p.scales)[(uint64_t)matrix * p.picks + i] = exl3_int_scale(size_max);
}

// Grid: sorted picks, gate and up.
extern "C" __global__ void __launch_bounds__(THREADS)
    experts_spread(const struct experts_params p) {
    device_let_next();
    device_wait_prior();
    struct pick k = pick_at(p, blockIdx.x);
    const struct weight w = blockIdx.y ? k.e.up : k.e.gate;
    if (!w.exl3.half_bits && w.dtype == DTYPE_F32) return; // its product reads x
    const float *x = device_ptr<const float>(p.a.x) + (uint64_t)k.row * p.a.dim;
    if (exl3_int_weight(&w)) {
        if (!p.many) return; // likewise
        put_ints(p, w, blockIdx.y, blockIdx.x, k.place, [&](uint32_t block, float v[4]) {
            float4 in = __ldcg(reinterpret_cast<const float4 *>(x + block * EXL3_BLOCK) +
                               threadIdx.x % WARP);
            v[0] = in.x, v[1] = in.y, v[2] = in.z, v[3] = in.w;
        });
        return;
    }
    bool quick = p.a.dim % 4 == 0 && p.a.x % 16 == 0;
    uint64_t n = p.picks;
    unsigned char *lines =
        device_ptr<unsigned char>(p.lines) + blockIdx.y * experts_lines_bytes(n, p.a.dim);
    uint32_t first = threadIdx.x * 4, blocks = (p.a.dim + EXL3_BLOCK - 1) / EXL3_BLOCK;
    for (uint32_t channel = first; channel < blocks * EXL3_BLOCK; channel += THREADS * 4) {
        float4 in = stream_quad(x, channel, p.a.dim, quick);
        float v[4] = {in.x, in.y, in.z, in.w};
        put(w, lines, n, blockIdx.x, k.place, nullptr, channel, v);
    }
}

// Grid: sorted picks.
extern "C" __global__ void __launch_bounds__(THREADS)
    experts_between(const struct experts_params p) {
    device_let_next();
    device_wait_prior();
    struct pick k = pick_at(p, blockIdx.x);
    uint64_t n = p.picks;
    const struct weight down = k.e.down;
    if (exl3_int_weight(&down)) {
        if (!p.many) return; // its product does the same
        put_ints(p, down, 2, blockIdx.x, k.place, [&](uint32_t block, float v[4]) {
            experts_load_both(p, k.e, blockIdx.x, block * EXL3_BLOCK + threadIdx.x % WARP * 4, v);
        });
        return;
    }
    uint32_t first = threadIdx.x * 4, blocks = (p.a.width + EXL3_BLOCK - 1) / EXL3_BLOCK;
    float *gates = experts_sums(p, 0, 0, blockIdx.x);
    for (uint32_t channel = first; channel < blocks * EXL3_BLOCK; channel += THREADS * 4) {
        float v[4];
        experts_load_both(p, k.e, blockIdx.x, channel, v);
        put(down, device_ptr<unsigned char>(p.lines) + 2 * experts_lines_bytes(n, p.a.dim), n,
            blockIdx.x, k.place, gates, channel, v);
    }
}

// What a block of a product has: a matrix, and the sorted picks of its expert.
struct product {
    struct weight w;
    uint32_t from, to;
    const unsigned char *lines; // of pick `from`
    float *out;                 // of pick 0
    bool mine;
};

DEVICE_FN struct product product_of(const struct experts_params &p, bool down) {
    const uint32_t *active = device_ptr<const uint32_t>(p.active);
    const uint32_t *first = device_ptr<const uint32_t>(p.first);
    struct product k = {};
    if (blockIdx.y >= __ldcg(active)) return k;
    uint32_t number = __ldcg(active + 1 + blockIdx.y);
    const struct expert &e = experts_of(p, number);
    uint64_t n = p.picks;
    k.w = down ? e.down : blockIdx.z ? e.up : e.gate;
    k.from = __ldcg(first + number);
    k.to = __ldcg(first + number + 1);
    k.lines = device_ptr<const unsigned char>(p.lines) +
              (down ? 2 : blockIdx.z) * experts_lines_bytes(n, p.a.dim) +
              (uint64_t)k.from * WIDE_LINE;
    k.out = down ? experts_out(p, 0) : experts_sums(p, blockIdx.z, 0, 0);
    k.mine = true;
    return k;
}

// Grid: outputs / 128, experts that have rows, gate and up (or down alone).
extern "C" __global__ void __launch_bounds__(THREADS, 2)
    experts_exl3(const struct experts_params p) {
    device_let_next();
    device_wait_prior();
    struct product k = product_of(p, p.down);
    if (!k.mine || !exl3_chain_weight(&k.w) || blockIdx.x >= k.w.rows / EXL3_BLOCK) return;
    const struct exl3_code code = exl3_code_of(k.w.exl3.codebook, p.masks);
    uint32_t n = p.picks, tile = blockIdx.x * WARPS + threadIdx.x / WARP;
    uint32_t g = threadIdx.x % WARP / 4, c = threadIdx.x % 4;
    for (uint32_t row = k.from; row < k.to; row += EXPERTS_ROWS) {
        uint32_t count = k.to - row < EXPERTS_ROWS ? k.to - row : EXPERTS_ROWS;
        float total[EXPERTS_ROWS / 8][4];
        __syncthreads(); // the rows before have left the ring
        experts_rows_product(k.w, code, tile, k.lines + (uint64_t)(row - k.from) * WIDE_LINE, n,
                             count, shared, total);
        float *out = k.out + (uint64_t)row * k.w.rows + tile * LINEAR_TILE;
#pragma unroll
        for (int i = 0; i < EXPERTS_ROWS / 8; i++)
#pragma unroll
            for (int j = 0; j < 4; j++) {
                uint32_t r = i * 8 + 2 * c + j % 2;
                if (r < count) out[(uint64_t)r * k.w.rows + g + j / 2 * 8] = total[i][j];
            }
    }
}

struct plain_source {
    const uint16_t *data;
    uint32_t cols;
    bool quick;

    __device__ __forceinline__ const uint16_t *row(uint32_t n) const {
        return data + (uint64_t)n * cols;
    }
};

template <enum dtype D>
DEVICE_FN void run_half(const struct experts_params &p, const struct product &k) {
    enum { N = EXPERTS_ROWS, STAGES = EXPERTS_PLAIN_STAGES, HIGH = EXPERTS_PLAIN_OUTPUTS };
    plain_source source = {device_ptr<const uint16_t>(k.w.data), k.w.cols, stream_quick(k.w)};
    struct wide_ring ring = wide_ring_of<N, STAGES>(stream_shared(shared), HIGH);
    uint32_t first = blockIdx.x * HIGH, left = k.w.rows - first;
    for (uint32_t row = k.from; row < k.to; row += N) {
        struct wide_band band = {
            .first = first,
            .count = left < HIGH ? left : HIGH,
            .lines = HIGH,
            .x = k.lines + (uint64_t)(row - k.from) * WIDE_LINE,
            .all_rows = p.picks,
            .rows = k.to - row < N ? k.to - row : N,
            .segment = 0,
            .segment_end = linear_segments(k.w.cols),
        };
        float total[N / 8][4];
        __syncthreads(); // the rows before have left the ring
        wide_product<D, N, STAGES>(
            source, band, ring, total, []() {}, [](uint32_t, float(*)[4]) {});
        float *out = k.out + (uint64_t)row * k.w.rows + first;
        wide_each<N>(band, [&](int i, int j, uint32_t r, uint32_t output) {
            out[(uint64_t)r * k.w.rows + output] = total[i][j];
        });
    }
}

// A warp is an output, as linear_f32 has it.
DEVICE_FN void run_f32(const struct experts_params &p, const struct product &k) {
    uint32_t warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, cols = k.w.cols;
    const float *all = p.down ? experts_sums(p, 0, 0, 0) : device_ptr<const float>(p.a.x);
    for (uint32_t i = warp; i < EXPERTS_PLAIN_OUTPUTS; i += WARPS) {
        uint32_t n = blockIdx.x * EXPERTS_PLAIN_OUTPUTS + i;
        if (n >= k.w.rows) return;
        const float *w = device_ptr<const float>(k.w.data) + (uint64_t)n * cols;
        for (uint32_t r = k.from; r < k.to; r++) {
            uint32_t row = p.down ? r : __ldcg(device_ptr<const uint32_t>(p.sorted) + r) / p.per;
            const float *x = all + (uint64_t)row * cols;
            float sum = 0;
            for (uint32_t c = lane; c < cols; c += WARP) sum = fmaf(__ldcg(x + c), w[c], sum);
            sum = device_warp_sum(sum);
            if (lane == 0) k.out[(uint64_t)r * k.w.rows + n] = sum;
        }
    }
}

// Grid: outputs / EXPERTS_PLAIN_OUTPUTS, experts that have rows, gate and up (or down alone).
extern "C" __global__ void __launch_bounds__(THREADS, 2)
    experts_plain(const struct experts_params p) {
    device_let_next();
    device_wait_prior();
    struct product k = product_of(p, p.down);
    if (!k.mine || k.w.exl3.half_bits || blockIdx.x * EXPERTS_PLAIN_OUTPUTS >= k.w.rows) return;
    switch (k.w.dtype) {
    case DTYPE_F32: run_f32(p, k); break;
    case DTYPE_BF16: run_half<DTYPE_BF16>(p, k); break;
    default: run_half<DTYPE_F16>(p, k); break;
    }
}

// Grid: columns / (4 threads), rows.
extern "C" __global__ void __launch_bounds__(THREADS) experts_add(const struct experts_params p) {
    device_let_next();
    device_wait_prior();
    uint32_t channel = (blockIdx.x * THREADS + threadIdx.x) * 4;
    if (channel / EXL3_BLOCK * EXL3_BLOCK >= p.a.dim) return; // of a warp all or none
    experts_add_row(p, blockIdx.y, channel);
}
