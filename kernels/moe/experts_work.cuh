/* experts_work: what the products of few rows share: the picks of a block, gate and up as their down takes them. */
#pragma once
#include "kernels/linear/exl3_int.h"
#include "kernels/moe/experts_channels.cuh"
#include "kernels/moe/experts_params.h"

// The expert of a pick.
DEVICE_FN uint32_t experts_number(const struct experts_params &p, uint32_t pick) {
    uint32_t row = pick / p.per, place = pick % p.per, k = p.a.per_token;
    if (place == k) return p.a.count;
    return __ldcg(device_ptr<const uint32_t>(p.a.experts) + (uint64_t)row * k + place);
}

DEVICE_FN const struct expert &experts_of(const struct experts_params &p, uint32_t number) {
    return device_ptr<const struct expert>(p.a.dev_table)[number];
}

// A block's picks, in shared memory.
struct experts_picks {
    uint32_t rows[EXPERTS_INT_ROWS], slots[EXPERTS_INT_ROWS];
};

/* All threads: the picks of item blockIdx.y, up to `most`, and how many; 0: there is no such item, or a block of another pick of the same
 * expert has them: not sorted, the first, and every one `most` behind it, have those up to the next. */
DEVICE_FN uint32_t experts_find(const struct experts_params &p, uint32_t most,
                                struct experts_picks *ret, uint32_t *ret_number) {
    uint32_t lane = threadIdx.x % WARP, count = 0;
    if (p.items) {
        const struct experts_item *items = device_ptr<const struct experts_item>(p.items);
        if (blockIdx.y >= __ldcg(&items->number)) return 0;
        items += 1 + blockIdx.y;
        uint32_t from = __ldcg(&items->from);
        *ret_number = __ldcg(&items->number);
        count = __ldcg(&items->count);
        if (threadIdx.x < count) {
            ret->rows[lane] = __ldcg(device_ptr<const uint32_t>(p.sorted) + from + lane) / p.per;
            ret->slots[lane] = from + lane;
        }
        __syncthreads();
        return count;
    }
    // Of up to a warp's picks each lane has one: one read of memory.
    uint32_t mine = blockIdx.y, before = 0;
    uint32_t first = lane < p.picks ? experts_number(p, lane) : UINT32_MAX;
    uint32_t number = mine < WARP ? __shfl_sync(0xffffffffu, first, mine) : experts_number(p, mine);
    for (uint32_t base = 0; base < p.picks; base += WARP) {
        uint32_t pick = base + lane;
        bool same = pick < p.picks && (base ? experts_number(p, pick) : first) == number;
        uint32_t found = __ballot_sync(0xffffffffu, same);
        uint32_t below = base < mine ? mine - base < WARP ? (1u << (mine - base)) - 1 : ~0u : 0;
        before += __popc(found & below);
        uint32_t to = count + __popc(found & ~below & ((1u << lane) - 1));
        if (same && pick >= mine && threadIdx.x < WARP && to < most) {
            ret->rows[to] = pick / p.per;
            ret->slots[to] = pick;
        }
        count += __popc(found & ~below);
    }
    *ret_number = number;
    __syncthreads();
    return before % most ? 0 : min(count, most);
}

// Sums of a slot's gate (0) or up (1) and a segment.
DEVICE_FN float *experts_sums(const struct experts_params &p, uint32_t up, uint32_t segment,
                              uint32_t slot) {
    return device_ptr<float>(p.sums) +
           (((uint64_t)up * p.segments + segment) * p.picks + slot) * p.a.width;
}

DEVICE_FN float *experts_out(const struct experts_params &p, uint32_t slot) {
    return device_ptr<float>(p.out) + (uint64_t)slot * p.a.dim;
}

// Where a slot's share of a gate's or up's integers stands among all.
DEVICE_FN uint64_t experts_int_at(const struct experts_params &p, uint32_t up, uint32_t part,
                                  uint32_t slot) {
    return ((uint64_t)up * p.parts + part) * p.picks + slot;
}

DEVICE_FN uint32_t *experts_flat(const struct experts_params &p, uint32_t matrix, uint32_t slot) {
    uint32_t words = experts_flat_words(p.a.dim > p.a.width ? p.a.dim : p.a.width);
    return device_ptr<uint32_t>(p.flat) + ((uint64_t)matrix * p.picks + slot) * words;
}

DEVICE_FN void experts_load_ints(const struct experts_params &p, uint32_t up, uint32_t slot,
                                 uint32_t first, float v[4]) {
    const int32_t *ints = device_ptr<const int32_t>(p.ints) + first;
    const int32_t *q_sums = device_ptr<const int32_t>(p.q_sums);
    float scale = __ldcg(device_ptr<const float>(p.scales) + (uint64_t)up * p.picks + slot);
    int4 s[EXPERTS_INT_PARTS];
    int32_t q[EXPERTS_INT_PARTS];
#pragma unroll
    for (uint32_t i = 0; i < EXPERTS_INT_PARTS; i++) {
        uint64_t at = experts_int_at(p, up, i < p.parts ? i : 0, slot);
        s[i] = __ldcg(reinterpret_cast<const int4 *>(ints + at * p.a.width));
        q[i] = __ldcg(q_sums + at);
    }
    uint32_t all[4] = {0, 0, 0, 0};
    int32_t q_sum = 0;
#pragma unroll
    for (uint32_t i = 0; i < EXPERTS_INT_PARTS; i++) {
        if (i >= p.parts) continue;
        all[0] += (uint32_t)s[i].x;
        all[1] += (uint32_t)s[i].y;
        all[2] += (uint32_t)s[i].z;
        all[3] += (uint32_t)s[i].w;
        q_sum += q[i];
    }
    uint32_t middle = (uint32_t)q_sum * EXL3_INT_MIDDLE;
#pragma unroll
    for (int j = 0; j < 4; j++) v[j] = exl3_int_answer((int32_t)(all[j] - middle), q_sum, scale);
}

DEVICE_FN void experts_load_sums(const struct experts_params &p, uint32_t up, uint32_t slot,
                                 uint32_t first, float v[4]) {
    enum { SEGMENTS = 8 };
    const float *sums = experts_sums(p, up, 0, slot) + first;
    uint64_t apart = (uint64_t)p.picks * p.a.width;
    uint32_t count = p.splits == 1 ? 1 : p.segments;
    float4 s[SEGMENTS];
#pragma unroll
    for (int i = 0; i < SEGMENTS; i++)
        if (i < count) s[i] = __ldcg(reinterpret_cast<const float4 *>(sums + i * apart));
    v[0] = s[0].x, v[1] = s[0].y, v[2] = s[0].z, v[3] = s[0].w;
#pragma unroll
    for (int i = 1; i < SEGMENTS; i++)
        if (i < count) {
            v[0] = v[0] + s[i].x;
            v[1] = v[1] + s[i].y;
            v[2] = v[2] + s[i].z;
            v[3] = v[3] + s[i].w;
        }
}

// The lane's four channels of a slot's gate or up, whose weight is w.
DEVICE_FN void experts_load(const struct experts_params &p, const struct weight &w, uint32_t up,
                            uint32_t slot, uint32_t first, float v[4]) {
    if (!w.exl3.half_bits) {
        const float *sums = experts_sums(p, up, 0, slot) + first;
#pragma unroll
        for (int j = 0; j < 4; j++) v[j] = first + j < w.rows ? __ldcg(sums + j) : 0;
        return;
    }
    if (exl3_int_weight(&w))
        experts_load_ints(p, up, slot, first, v);
    else
        experts_load_sums(p, up, slot, first, v);
    experts_finish(v, w.exl3, first);
}

// The same of silu(gate) * up.
DEVICE_FN void experts_load_both(const struct experts_params &p, const struct expert &e,
                                 uint32_t slot, uint32_t first, float v[4]) {
    float up[4];
    experts_load(p, e.gate, 0, slot, first, v);
    experts_load(p, e.up, 1, slot, first, up);
#pragma unroll
    for (int j = 0; j < 4; j++) v[j] = arith_silu(v[j]) * up[j];
}

/* Whether a launch does something before it waits for the one before. The down of few rows knows its experts from two launches before, and
 * its weights are no launch's: it asks for them first. The launches of gate and up let it begin only behind their own wait, so what
 * was written before them is there. */
DEVICE_FN bool experts_ahead(const struct experts_params &p) {
    return p.down && !p.items;
}
