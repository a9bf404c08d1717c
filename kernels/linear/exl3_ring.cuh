/* exl3_ring: a warp's ring of weights in shared memory: of its tiles of sixteen outputs, one after another, 128 inputs a stage, fetched by
 * asynchronous copies some stages before their turn. */
#pragma once
#include "kernels/linear/copies.cuh"
#include "kernels/linear/exl3.cuh"
#include "kernels/linear/linear_order.h"

enum { EXL3_RING_GROUPS = 2 }; // of a stage

struct exl3_ring {
    const char *base;
    uint32_t stage_bytes;
    uint32_t fill, take; // the next stage to fill, and to take
    uint32_t left;       // stages still to fetch of the tile in hand
    uint32_t pieces;     // of sixteen bytes, of a group
    uint32_t step;       // bytes from group to group
    const char *at;      // the lane's first piece
    uint32_t second;     // bytes from there to its second one
};

// The stages to fetch next: of a tile of sixteen outputs.
DEVICE_FN void exl3_ring_aim(struct exl3_ring &r, const struct weight &w, uint32_t tile,
                             uint32_t first_group, uint32_t groups) {
    uint32_t half_bits = w.exl3.half_bits, lane = threadIdx.x % WARP;
    uint32_t row = w.rows * half_bits; // bytes of sixteen inputs
    uint32_t piece = lane + WARP, at = lane / half_bits * row + lane % half_bits * 16;
    r.pieces = LINEAR_GROUP * half_bits;
    r.step = LINEAR_GROUP * row;
    r.left = groups / EXL3_RING_GROUPS;
    r.at = device_ptr<const char>(w.data) + (uint64_t)first_group * r.step +
           (uint64_t)tile * LINEAR_TILE * half_bits + at;
    r.second = piece / half_bits * row + piece % half_bits * 16 - at;
}

// Fetches a stage, or nothing if none is left.
DEVICE_FN void exl3_ring_fill(struct exl3_ring &r) {
    if (r.left) {
        uint32_t lane = threadIdx.x % WARP;
        uint32_t to = copies_shared(r.base) + r.fill * r.stage_bytes + lane * 16;
#pragma unroll
        for (int i = 0; i < EXL3_RING_GROUPS; i++) {
            if (lane < r.pieces) copies_16(to, r.at);
            if (r.pieces > WARP && lane + WARP < r.pieces)
                copies_16(to + WARP * 16, r.at + r.second);
            r.at += r.step;
            to += r.pieces * 16;
        }
        r.left--;
    }
    copies_end_group();
    r.fill = (r.fill + 1) % EXL3_RING;
}

// The next stage, once it has come for all lanes. The stage before may be filled from then on.
DEVICE_FN const char *exl3_ring_take(struct exl3_ring &r) {
    copies_wait<EXL3_RING - 2>();
    __syncwarp();
    const char *stage = r.base + r.take * r.stage_bytes;
    r.take = (r.take + 1) % EXL3_RING;
    return stage;
}
