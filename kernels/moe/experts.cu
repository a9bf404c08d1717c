/* experts: see experts.h. Launches, one after another:
 *
 *   experts_sort     one block: the picks, sorted by expert. Their order within an expert decides nothing.
 *   experts_spread   a pick's row as its gate and up take it: EXL3: rotated; else rounded to the weight's type
 *   experts_exl3     the products of the experts' EXL3 matrices, experts_plain those of the others; a block has some outputs of an
 *                    expert and goes through all its rows, 64 at a time
 *   experts_between  gate and up finished, silu(gate) * up, as the down matrix takes it
 *   experts_exl3, experts_plain   of the down matrices
 *   experts_add      a row's answers, finished, from 0, in ascending number of their experts: product and sum rounded apart
 * Few rows have experts_few.cu, and experts_add after it.
 * Order   the products' is linear_order.h's.
 * Equals  experts_ref.c, bit for bit. */
#include "kernels/linear/linear_wide.cuh"
#include "kernels/moe/experts_channels.cuh"
#include "kernels/moe/experts_exl3.cuh"
#include "kernels/moe/experts_params.h"

enum { SORT_THREADS = EXPERTS_SORT_THREADS, THREADS = EXPERTS_THREADS, WARPS = THREADS / WARP };

extern __shared__ __align__(1024) unsigned char shared[];

extern "C" __global__ void __launch_bounds__(SORT_THREADS)
    experts_sort(const struct experts_params p) {
    device_let_next();
    device_wait_prior();
    uint32_t picks = p.a.rows * p.a.per_token, *first = device_ptr<uint32_t>(p.first);
    const uint32_t *experts = device_ptr<const uint32_t>(p.a.experts);
    uint32_t *active = device_ptr<uint32_t>(p.active);
    for (uint32_t e = threadIdx.x; e <= p.a.count; e += SORT_THREADS) first[e] = 0;
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < picks; i += SORT_THREADS)
        atomicAdd(&first[__ldcg(experts + i)], 1u);
    __syncthreads();
    if (threadIdx.x == 0) { // counts to ends
        uint32_t at = 0, used = 0;
        for (uint32_t e = 0; e < p.a.count; e++) {
            uint32_t count = __ldcg(first + e); // what atomics left
            if (count) active[++used] = e;
            at += count;
            first[e] = at;
        }
        first[p.a.count] = at;
        active[0] = used;
    }
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < picks; i += SORT_THREADS) {
        uint32_t expert = __ldcg(experts + i),
                 to = atomicSub(&first[expert], 1u) - 1; // ends to beginnings
        device_ptr<uint32_t>(p.picks)[to] = i;
        device_ptr<uint32_t>(p.owner)[to] = expert;
        device_ptr<uint32_t>(p.place)[i] = to;
    }
}

DEVICE_FN const struct expert &expert_at(const struct experts_params &p, uint32_t e) {
    return device_ptr<const struct expert>(p.a.dev_table)[e];
}

// A sorted pick's expert, and its place among the expert's.
struct pick {
    const struct expert &e;
    uint32_t row, place;
};

DEVICE_FN struct pick pick_at(const struct experts_params &p, uint32_t i) {
    uint32_t number = __ldcg(device_ptr<const uint32_t>(p.owner) + i);
    return {expert_at(p, number), __ldcg(device_ptr<const uint32_t>(p.picks) + i) / p.a.per_token,
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

// Bytes of n picks' lines of some inputs.
DEVICE_FN uint64_t lines_bytes(uint64_t n, uint32_t cols) {
    return n * ((cols + STREAM_SPAN - 1) / STREAM_SPAN * WIDE_LINE);
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
    bool quick = p.a.dim % 4 == 0 && p.a.x % 16 == 0;
    uint64_t n = (uint64_t)p.a.rows * p.a.per_token;
    unsigned char *lines =
        device_ptr<unsigned char>(p.lines) + blockIdx.y * lines_bytes(n, p.a.dim);
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
    uint64_t n = (uint64_t)p.a.rows * p.a.per_token, at = (uint64_t)blockIdx.x * p.a.width;
    const struct weight gate = k.e.gate, up = k.e.up, down = k.e.down;
    uint32_t first = threadIdx.x * 4, blocks = (p.a.width + EXL3_BLOCK - 1) / EXL3_BLOCK;
    float *gates = device_ptr<float>(p.gate) + at, *ups = device_ptr<float>(p.up) + at;
    for (uint32_t channel = first; channel < blocks * EXL3_BLOCK; channel += THREADS * 4) {
        float v[4], u[4];
#pragma unroll
        for (int j = 0; j < 4; j++) {
            v[j] = channel + j < p.a.width ? __ldcg(gates + channel + j) : 0;
            u[j] = channel + j < p.a.width ? __ldcg(ups + channel + j) : 0;
        }
        experts_finish(v, gate.exl3, channel);
        experts_finish(u, up.exl3, channel);
#pragma unroll
        for (int j = 0; j < 4; j++) v[j] = arith_silu(v[j]) * u[j];
        put(down, device_ptr<unsigned char>(p.lines) + 2 * lines_bytes(n, p.a.dim), n, blockIdx.x,
            k.place, gates, channel, v);
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
    const struct expert &e = expert_at(p, number);
    uint64_t n = (uint64_t)p.a.rows * p.a.per_token;
    k.w = down ? e.down : blockIdx.z ? e.up : e.gate;
    k.from = __ldcg(first + number);
    k.to = __ldcg(first + number + 1);
    k.lines = device_ptr<const unsigned char>(p.lines) +
              (down ? 2 : blockIdx.z) * lines_bytes(n, p.a.dim) + (uint64_t)k.from * WIDE_LINE;
    k.out = device_ptr<float>(down ? p.out : blockIdx.z ? p.up : p.gate);
    k.mine = true;
    return k;
}

// Grid: outputs / 128, experts that have rows, gate and up (or down alone).
extern "C" __global__ void __launch_bounds__(THREADS, 2)
    experts_exl3(const struct experts_params p) {
    device_let_next();
    device_wait_prior();
    struct product k = product_of(p, p.down);
    if (!k.mine || !k.w.exl3.half_bits || blockIdx.x >= k.w.rows / EXL3_BLOCK) return;
    uint32_t n = p.a.rows * p.a.per_token, tile = blockIdx.x * WARPS + threadIdx.x / WARP;
    uint32_t g = threadIdx.x % WARP / 4, c = threadIdx.x % 4;
    for (uint32_t row = k.from; row < k.to; row += EXPERTS_ROWS) {
        uint32_t count = k.to - row < EXPERTS_ROWS ? k.to - row : EXPERTS_ROWS;
        float total[EXPERTS_ROWS / 8][4];
        __syncthreads(); // the rows before have left the ring
        experts_rows_product(k.w, tile, k.lines + (uint64_t)(row - k.from) * WIDE_LINE, n, count,
                             shared, total);
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
            .all_rows = p.a.rows * p.a.per_token,
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
    const float *all = device_ptr<const float>(p.down ? p.gate : p.a.x);
    for (uint32_t i = warp; i < EXPERTS_PLAIN_OUTPUTS; i += WARPS) {
        uint32_t n = blockIdx.x * EXPERTS_PLAIN_OUTPUTS + i;
        if (n >= k.w.rows) return;
        const float *w = device_ptr<const float>(k.w.data) + (uint64_t)n * cols;
        for (uint32_t r = k.from; r < k.to; r++) {
            uint32_t row =
                p.down ? r : __ldcg(device_ptr<const uint32_t>(p.picks) + r) / p.a.per_token;
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

/* Grid: columns / (4 threads), rows. A lane has four columns of 128. Sorted picks are finished here; others (no place) have been. The
 * next experts' answers are asked for before the first is added. */
extern "C" __global__ void __launch_bounds__(THREADS) experts_add(const struct experts_params p) {
    enum { BATCH = 8 };
    device_let_next();
    device_wait_prior();
    uint32_t channel = (blockIdx.x * THREADS + threadIdx.x) * 4, k = p.a.per_token;
    uint32_t lane = threadIdx.x % WARP;
    uint64_t t = blockIdx.y;
    if (channel / EXL3_BLOCK * EXL3_BLOCK >= p.a.dim) return; // of a warp all or none
    const uint32_t *experts = device_ptr<const uint32_t>(p.a.experts) + t * k;
    const float *weights = device_ptr<const float>(p.a.weights) + t * k;
    float y[4] = {0, 0, 0, 0};
    for (uint32_t done = 0; done < k; done += BATCH) {
        float v[BATCH][4], weight[BATCH];
        uint32_t number[BATCH];
#pragma unroll
        for (int i = 0; i < BATCH; i++) { // the experts of which `done + i` are lower
            if (done + i >= k) break;
            uint32_t which = 0;
            for (uint32_t base = 0; base < k; base += WARP) {
                uint32_t mine = base + lane < k ? __ldcg(experts + base + lane) : UINT32_MAX,
                         lower = 0;
                for (uint32_t j = 0; j < k; j++) lower += __ldcg(experts + j) < mine;
                uint32_t found = __ballot_sync(0xffffffffu, base + lane < k && lower == done + i);
                if (found) which = base + __ffs(found) - 1;
            }
            number[i] = __ldcg(experts + which);
            weight[i] = __ldcg(weights + which);
            uint64_t at = t * k + which;
            if (p.place) at = __ldcg(device_ptr<const uint32_t>(p.place) + at);
            const float *out = device_ptr<const float>(p.out) + at * p.a.dim;
#pragma unroll
            for (int j = 0; j < 4; j++)
                v[i][j] = channel + j < p.a.dim ? __ldcg(out + channel + j) : 0;
        }
#pragma unroll
        for (int i = 0; i < BATCH; i++) {
            if (done + i >= k) break;
            if (p.place) experts_finish(v[i], expert_at(p, number[i]).down.exl3, channel);
#pragma unroll
            for (int j = 0; j < 4; j++) y[j] = y[j] + weight[i] * v[i][j];
        }
    }
    float *to = device_ptr<float>(p.a.y) + t * p.a.dim;
    for (uint32_t j = 0; j < 4 && channel + j < p.a.dim; j++) to[channel + j] = y[j];
}
