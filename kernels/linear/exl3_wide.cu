/* exl3_wide: see exl3_wide.h and exl3_wide.cuh. The EXL3 parts that have chains, for prompts, on sm_90.
 *
 * exl3_wide_expand writes a slice's weights as fp16, which they are. exl3_wide_chain multiplies: a group has a segment of K from 0,
 * then adds it to what it has of the tile. Of a tile that pairs share, each segment's sums go to memory.
 * Order   linear_order.h's. Tiles, shares and the rows of a call change no bit.
 * Equals  linear_ref.c, bit for bit.
 * Cost    2 T N K flop, and writing and reading N K halves once for each call. */
#include "kernels/linear/exl3_wide.cuh"

// A unit of sixteen outputs, by a warp: its part of a tile.
template <int HALF_BITS>
DEVICE_FN void expand_tile(const char *trellis, const struct exl3 &q, const struct exl3_masks &m,
                           char *tile) {
    uint32_t lane = threadIdx.x % WARP, g = lane / 4, c = lane % 4;
    struct exl3_lane<HALF_BITS ? HALF_BITS : 8> l;
    struct exl3_code code = exl3_code_of(q.codebook, m);
    if (HALF_BITS) {
        exl3_lane_take<HALF_BITS ? HALF_BITS : 8>(trellis + g * 2 * HALF_BITS, l);
        exl3_lane_before<HALF_BITS ? HALF_BITS : 8>(l);
    }
#pragma unroll
    for (int s = 0; s < 4; s++) {
        uint32_t a[4];
        if (HALF_BITS)
            exl3_lane_factors<HALF_BITS ? HALF_BITS : 8>(l, code, s, a);
        else
            exl3_factors(reinterpret_cast<const uint32_t *>(trellis), q.half_bits, q.codebook, g, s,
                         a);
        char *low = tile + g * WIDE_LINE + ((2 * s) ^ g) * 16 + 4 * c;
        char *high = tile + g * WIDE_LINE + ((2 * s + 1) ^ g) * 16 + 4 * c;
        *reinterpret_cast<uint32_t *>(low) = a[0];
        *reinterpret_cast<uint32_t *>(low + 8 * WIDE_LINE) = a[1];
        *reinterpret_cast<uint32_t *>(high) = a[2];
        *reinterpret_cast<uint32_t *>(high + 8 * WIDE_LINE) = a[3];
    }
}

// Grid: pairs of units, blocks of the slice. A warp has sixteen outputs of both units.
extern "C" __global__ void __launch_bounds__(EXL3_WIDE_EXPAND_THREADS)
    exl3_wide_expand(const struct exl3_wide_params p) {
    extern __shared__ __align__(128) char tiles[];
    uint32_t part = p.slice.part, block = blockIdx.y, units = wide_units(p);
    while (block >= wide_blocks(p, part)) block -= wide_blocks(p, part++);
    const struct weight &w = p.a.parts[part].w;
    uint32_t warp = threadIdx.x / WARP, c = threadIdx.x % 4, tile_bytes = 16 * w.exl3.half_bits;
    uint32_t output_tile = (p.slice.first + block) * 8 + warp;
#pragma unroll 1
    for (uint32_t i = 0; i < 2; i++) {
        const char *trellis =
            device_ptr<const char>(w.data) +
            ((uint64_t)((blockIdx.x * 2 + i) * 4 + c) * (w.rows / 16) + output_tile) * tile_bytes;
        char *to = tiles + i * WIDE_TILE + warp * 16 * WIDE_LINE;
        switch (w.exl3.half_bits) {
#define EXPAND_WIDTH(width)                                                                        \
    case width: expand_tile<width>(trellis, w.exl3, p.masks, to); break;
            EXL3_WIDTHS(EXPAND_WIDTH)
        default: expand_tile<0>(trellis, w.exl3, p.masks, to);
        }
    }
    device_let_next();
    device_wait_prior();
    char *to =
        device_ptr<char>(p.wide) + ((uint64_t)blockIdx.y * units + blockIdx.x * 2) * WIDE_TILE;
#if MANY_HOPPER
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    __syncthreads();
    if (threadIdx.x == 0) {
        asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to),
                     "r"(many_shared(tiles)), "r"(2 * WIDE_TILE)
                     : "memory");
        asm volatile("cp.async.bulk.commit_group;" ::: "memory");
        asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
    }
#else
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < 2 * WIDE_TILE / 16; i += EXL3_WIDE_EXPAND_THREADS)
        reinterpret_cast<uint4 *>(to)[i] = reinterpret_cast<const uint4 *>(tiles)[i];
#endif
}

// Units of a segment; they are even.
DEVICE_FN uint32_t chain_units(const struct exl3_wide_params &p, uint32_t segment) {
    uint32_t left = wide_units(p) - segment * p.groups;
    return left < p.groups ? left : p.groups;
}

DEVICE_FN void chain_add(float total[64], const float d[64], bool first) {
#pragma unroll
    for (int i = 0; i < 64; i++) total[i] = first ? d[i] : total[i] + d[i];
}

#if MANY_HOPPER

// A segment, from 0.
DEVICE_FN void chain_segment(struct wide_pipe &s, uint32_t units, uint32_t group, float d[64]) {
#pragma unroll
    for (int i = 0; i < 64; i++) d[i] = 0;
    wide_unit(d, wide_take(s), group);
#pragma unroll 1
    for (uint32_t u = 1; u < units; u++) {
        wide_unit(d, wide_take(s), group);
        wide_wait<1>();
        wide_give(s, 1);
    }
    wide_wait<0>();
    wide_give(s, 0);
    wide_hold(d);
}

DEVICE_FN void chain_consume(const struct exl3_wide_params &p, struct wide_pipe &s, uint32_t rank) {
    uint32_t group = threadIdx.x / 128;
    struct wide_job job;
    for (uint32_t nth = 0; wide_job_at(p, nth, rank, &job); nth++) {
        uint32_t from = wide_share_from(p, job, p.segments, 0);
        uint32_t to = wide_share_from(p, job, p.segments, 1);
        // The same for all: no branch that might part them.
        if (!__any_sync(0xffffffffu, job.tile.row + group * WIDE_GROUP_ROWS < p.a.rows)) {
            for (uint32_t i = from; i < to; i++) wide_skip(s, chain_units(p, i));
            continue;
        }
        float d[64], total[64];
        uint32_t slot = job.rest * p.segments;
#pragma unroll 1
        for (uint32_t i = from; i < to; i++) {
            chain_segment(s, chain_units(p, i), group, d);
            if (job.shared)
                wide_slot_put(wide_slot(p, slot + i, rank), d);
            else
                chain_add(total, d, i == 0);
        }
        if (job.shared) {
            if (!wide_gather(p, job, rank, group, to - from, p.segments)) continue;
#pragma unroll 1
            for (uint32_t i = 0; i < p.segments; i++) {
                const uint32_t *at = wide_slot(p, slot + i, rank);
#pragma unroll
                for (int j = 0; j < 64; j++)
                    d[j] = arith_float(__ldcg(at + j * EXL3_WIDE_GROUPS * 128));
                chain_add(total, d, i == 0);
            }
        }
        uint32_t row = job.tile.row + threadIdx.x / WARP * 16 + threadIdx.x % WARP / 4;
        if (job.tile.real) wide_finish(p, job.tile, total, row);
    }
}

extern "C" __global__ void WIDE_PAIR __launch_bounds__(EXL3_WIDE_THREADS, 1)
    exl3_wide_chain(const struct exl3_wide_params p) {
    extern __shared__ __align__(1024) char stages[];
    uint32_t rank = wide_rank();
    struct wide_pipe s = wide_begin(stages);
    device_let_next();
    device_wait_prior();
    if (threadIdx.x >= EXL3_WIDE_GROUPS * 128) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 32;");
        if (threadIdx.x == EXL3_WIDE_GROUPS * 128) {
            asm volatile("fence.proxy.async.global;" ::: "memory");
            struct wide_job job;
            for (uint32_t nth = 0; wide_job_at(p, nth, rank, &job); nth++) {
                uint32_t last = wide_share_from(p, job, p.segments, 1) * p.groups;
                uint32_t units = wide_units(p);
                wide_produce(p, job.tile, s, rank,
                             wide_share_from(p, job, p.segments, 0) * p.groups,
                             last < units ? last : units);
            }
        }
        __syncwarp();
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 160;");
        chain_consume(p, s, rank);
    }
    wide_cluster_sync(); // neither ends while the other may write to it
}

#else

extern "C" __global__ void __launch_bounds__(EXL3_WIDE_THREADS, 1)
    exl3_wide_chain(const struct exl3_wide_params p) {
    wide_all(p, [&](const struct wide_tile &, const char *rows, uint32_t held, const char *outputs,
                    float *total, uint32_t) {
        uint64_t step = (uint64_t)p.stride * WIDE_LINE;
        for (uint32_t segment = 0; segment < p.segments; segment++) {
            float d[64];
#pragma unroll
            for (int i = 0; i < 64; i++) d[i] = 0;
            for (uint32_t u = 0; u < chain_units(p, segment); u++) {
                wide_unit(rows, held, outputs, d, [] {});
                rows += step;
                outputs += WIDE_TILE;
            }
            chain_add(total, d, segment == 0);
        }
    });
}

#endif
