/* experts: see experts.h. Launches, one after another:
 *
 *   experts_sort     one block: the picks, sorted by expert. Their order within an expert decides nothing.
 *   experts_rotate   EXL3: a pick's row for its gate and up, or its activation for its down
 *   experts_up_*     gate and up of all picks; a block goes through all rows of its expert
 *   swiglu           gate = silu(gate) * up
 *   experts_down_*   the down product of all picks
 *   experts_add      a row's answers, from 0, in ascending number of their experts: product and sum rounded apart
 * Order   the products' is linear_order.h's.
 * Equals  experts_ref.c, bit for bit. */
#include "kernels/linear/exl3_block.cuh"
#include "kernels/linear/linear_block.cuh"
#include "kernels/moe/experts_params.h"

enum { SORT_THREADS = EXPERTS_SORT_THREADS, ADD_THREADS = 256 };

extern "C" __global__ void __launch_bounds__(SORT_THREADS)
    experts_sort(const struct experts_params p) {
    uint32_t picks = p.a.rows * p.a.per_token, *first = device_ptr<uint32_t>(p.first);
    const uint32_t *experts = device_ptr<const uint32_t>(p.a.experts);
    uint32_t *active = device_ptr<uint32_t>(p.active);
    for (uint32_t e = threadIdx.x; e <= p.a.count; e += SORT_THREADS) first[e] = 0;
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < picks; i += SORT_THREADS) atomicAdd(&first[experts[i]], 1u);
    __syncthreads();
    if (threadIdx.x == 0) { // counts to ends
        uint32_t at = 0, used = 0;
        for (uint32_t e = 0; e < p.a.count; e++) {
            if (first[e]) active[++used] = e;
            at += first[e];
            first[e] = at;
        }
        first[p.a.count] = at;
        active[0] = used;
    }
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < picks; i += SORT_THREADS) {
        uint32_t to = atomicSub(&first[experts[i]], 1u) - 1; // ends to beginnings
        device_ptr<uint32_t>(p.picks)[to] = i;
        device_ptr<uint32_t>(p.owner)[to] = experts[i];
        device_ptr<uint32_t>(p.place)[i] = to;
    }
}

DEVICE_FN const struct expert &expert_at(const struct experts_params &p, uint32_t e) {
    return device_ptr<const struct expert>(p.a.dev_table)[e];
}

// Grid: sorted picks, channels / 128, gate and up.
extern "C" __global__ void __launch_bounds__(WARP) experts_rotate(const struct experts_params p) {
    uint64_t i = blockIdx.x, picks = (uint64_t)p.a.rows * p.a.per_token;
    const struct expert &e = expert_at(p, device_ptr<const uint32_t>(p.owner)[i]);
    const struct weight &w = blockIdx.z ? e.up : e.gate;
    uint64_t row = device_ptr<const uint32_t>(p.picks)[i] / p.a.per_token;
    if (!w.exl3.half_bits) return;
    struct exl3_rows to = {device_ptr<uint16_t>(p.rotated) + blockIdx.z * picks * p.a.dim,
                           (uint32_t)picks};
    exl3_rotate_in(exl3_channels(device_ptr<const float>(p.a.x) + row * p.a.dim, blockIdx.y),
                   exl3_suh(w, blockIdx.y), exl3_lane_group(blockIdx.y), (uint32_t)i, to);
}

// Grid: sorted picks, channels / 128.
extern "C" __global__ void __launch_bounds__(WARP)
    experts_rotate_down(const struct experts_params p) {
    uint64_t i = blockIdx.x, picks = (uint64_t)p.a.rows * p.a.per_token;
    const struct expert &e = expert_at(p, device_ptr<const uint32_t>(p.owner)[i]);
    if (!e.down.exl3.half_bits) return;
    struct exl3_rows to = {device_ptr<uint16_t>(p.rotated) + 2 * picks * p.a.dim, (uint32_t)picks};
    exl3_rotate_in(exl3_channels(device_ptr<const float>(p.gate) + i * p.a.width, blockIdx.y),
                   exl3_suh(e.down, blockIdx.y), exl3_lane_group(blockIdx.y), (uint32_t)i, to);
}

// All rows of an expert times one of its weights, the outputs shared among the blocks of x.
template <int TILES>
DEVICE_FN void multiply(const struct linear_part &part, struct linear_rows r,
                        const struct exl3_rows &rotated, uint32_t end) {
    __shared__ union {
        float plain[LINEAR_WARPS][TILES * 8][LINEAR_TILE];
        float exl3[TILES * 8][EXL3_BLOCK];
    } s;
    bool exl3 = part.w.exl3.half_bits;
    uint32_t blocks = exl3 ? part.w.rows / EXL3_BLOCK : linear_blocks(&part.w), from = r.first;
    for (uint32_t block = blockIdx.x; block < blocks; block += gridDim.x)
        for (r.first = from; r.first < end; r.first += TILES * 8) {
            r.count = end - r.first < TILES * 8 ? end - r.first : TILES * 8;
            __syncthreads(); // the turn before has read its sums
            if (exl3)
                exl3_block<TILES>(part, rotated, r.y, r.first, r.count, block, s.exl3);
            else
                linear_block<TILES>(part, r, block, s.plain);
        }
}

// Grid: outputs, experts that have rows, gate and up (or down alone).
template <int TILES, bool DOWN> DEVICE_FN void run(const struct experts_params &p) {
    const uint32_t *active = device_ptr<const uint32_t>(p.active);
    const uint32_t *first = device_ptr<const uint32_t>(p.first);
    if (blockIdx.y >= active[0]) return;
    uint32_t number = active[1 + blockIdx.y];
    const struct expert &e = expert_at(p, number);
    uint64_t picks = (uint64_t)p.a.rows * p.a.per_token;
    struct linear_part part = {.w = DOWN ? e.down : blockIdx.z ? e.up : e.gate};
    struct exl3_rows rotated = {device_ptr<uint16_t>(p.rotated), (uint32_t)picks};
    rotated.at += DOWN ? 2 * picks * p.a.dim : blockIdx.z * picks * p.a.dim;
    struct linear_rows r = {.x = device_ptr<const float>(DOWN ? p.gate : p.a.x),
                            .y = device_ptr<float>(DOWN         ? p.out
                                                   : blockIdx.z ? p.up
                                                                : p.gate),
                            .map = DOWN ? nullptr : device_ptr<const uint32_t>(p.picks),
                            .per = p.a.per_token,
                            .first = first[number]};
    multiply<TILES>(part, r, rotated, first[number + 1]);
}

#define EXPERTS_KERNEL(name, tiles, down)                                                          \
    extern "C" __global__ void __launch_bounds__(LINEAR_THREADS, 1)                                \
        name(const struct experts_params p) {                                                      \
        run<tiles, down>(p);                                                                       \
    }
EXPERTS_KERNEL(experts_up_8, 1, false)
EXPERTS_KERNEL(experts_up_32, 4, false)
EXPERTS_KERNEL(experts_down_8, 1, true)
EXPERTS_KERNEL(experts_down_32, 4, true)

// Grid: columns / ADD_THREADS, rows.
extern "C" __global__ void __launch_bounds__(ADD_THREADS)
    experts_add(const struct experts_params p) {
    uint32_t d = blockIdx.x * ADD_THREADS + threadIdx.x, k = p.a.per_token;
    uint64_t t = blockIdx.y;
    const uint32_t *experts = device_ptr<const uint32_t>(p.a.experts) + t * k;
    const uint32_t *place = device_ptr<const uint32_t>(p.place) + t * k;
    const float *weights = device_ptr<const float>(p.a.weights) + t * k;
    if (d >= p.a.dim) return;
    float y = 0;
    for (uint32_t n = 0, last = 0; n < k; n++) { // the next expert above the last one
        uint32_t best = k;
        for (uint32_t i = 0; i < k; i++)
            if ((n == 0 || experts[i] > last) && (best == k || experts[i] < experts[best]))
                best = i;
        last = experts[best];
        y = y + weights[best] * device_ptr<const float>(p.out)[(uint64_t)place[best] * p.a.dim + d];
    }
    device_ptr<float>(p.a.y)[t * p.a.dim + d] = y;
}
