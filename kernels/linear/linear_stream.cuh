/* linear_stream: what the plain linear layers copy to shared memory with, and the layer of up to eight rows.
 *
 * Pieces   16 bytes, eight weights of a row. In shared memory rows are a power of two of pieces, at least eight, and piece p of row
 *          r stands at p ^ (r & 7): the same pieces of eight rows lie in different banks, as ldmatrix wants them.
 * Reads    of what an earlier launch wrote go past the first cache: a launch that overlaps the ones before may find old lines there.
 * Unit     of the layer of few rows: the warps of one tile of outputs, a warp a segment of K. It has a run of outputs of its own,
 *          cut into tiles of at most sixteen. The rows stay in shared memory whole; a warp's weights pass through a ring of slots
 *          that it alone fills and reads. A slot holds 64 inputs of sixteen outputs, or as many more of fewer outputs. */
#pragma once
#include "kernels/cuda/device.cuh"
#include "kernels/linear/linear.h"
#include "kernels/linear/linear_order.h"

enum { STREAM_SPAN = LINEAR_STEP * LINEAR_GROUP }; // what rows are filled up to with zeros

DEVICE_FN uint32_t stream_shared(const void *p) {
    return (uint32_t)__cvta_generic_to_shared(p);
}

DEVICE_FN void stream_commit() {
    asm volatile("cp.async.commit_group;" ::: "memory");
}

template <int LEFT> DEVICE_FN void stream_wait() {
    asm volatile("cp.async.wait_group %0;" ::"n"(LEFT) : "memory");
}

DEVICE_FN void stream_16(uint32_t to, const void *from) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}

// Eight values of a row from column k on to shared memory; 0 behind the row's end. quick: rows start at multiples of 16 bytes.
DEVICE_FN void stream_piece(uint32_t to, const uint16_t *row, uint32_t k, uint32_t cols,
                            bool quick) {
    if (quick) {
        uint32_t bytes = k < cols ? 16 : 0;
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to),
                     "l"(row + (bytes ? k : 0)), "r"(bytes)
                     : "memory");
        return;
    }
    uint32_t v[4];
#pragma unroll
    for (int i = 0; i < 4; i++) {
        uint32_t at = k + 2 * i;
        v[i] = (at < cols ? row[at] : 0u) | (at + 1 < cols ? (uint32_t)row[at + 1] : 0u) << 16;
    }
    asm volatile("st.shared.v4.b32 [%0], {%1,%2,%3,%4};" ::"r"(to), "r"(v[0]), "r"(v[1]), "r"(v[2]),
                 "r"(v[3])
                 : "memory");
}

DEVICE_FN bool stream_quick(const struct weight &w) {
    return w.cols % 8 == 0 && w.data % 16 == 0;
}

// Four 8x8 blocks of 16-bit values, rows at the lanes' addresses.
DEVICE_FN void stream_ldmatrix(uint32_t ret[4], uint32_t shared) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(ret[0]), "=r"(ret[1]), "=r"(ret[2]), "=r"(ret[3])
                 : "r"(shared)
                 : "memory");
}

DEVICE_FN void stream_barrier(uint32_t number, uint32_t threads) {
    asm volatile("bar.sync %0, %1;" ::"r"(number), "r"(threads) : "memory");
}

// Four neighbours of a row of fp32 values; 0 behind its end. quick: rows start at multiples of 16 bytes.
DEVICE_FN float4 stream_quad(const float *x, uint32_t k, uint32_t cols, bool quick) {
    if (quick && k < cols) return __ldcg(reinterpret_cast<const float4 *>(x + k));
    return make_float4(k < cols ? __ldcg(x + k) : 0, k + 1 < cols ? __ldcg(x + k + 1) : 0,
                       k + 2 < cols ? __ldcg(x + k + 2) : 0, k + 3 < cols ? __ldcg(x + k + 3) : 0);
}

/* Rows as 16-bit values: [K / STREAM_SPAN, rows, STREAM_SPAN], 0 behind their ends, piece p of row r of a span at p ^ (r & 7). So in
 * memory and in shared memory: a piece of K is a piece of memory, and ldmatrix and wgmma read it without conflicts. Offset of
 * columns k .. k + 7 in bytes: */
DEVICE_FN uint64_t stream_at(uint32_t row, uint32_t rows, uint32_t k) {
    uint64_t line = (uint64_t)(k / STREAM_SPAN) * rows + row;
    return line * (STREAM_SPAN * 2) + (k / 8 % 8 ^ row % 8) * 16;
}

// A warp's columns from .. to - 1 of rows to shared memory, at ret those of column 0; from and to are multiples of STREAM_SPAN.
DEVICE_FN void stream_rounded(unsigned char *ret, const unsigned char *x, uint32_t rows,
                              uint32_t from, uint32_t to) {
    enum { BATCH = 10 };
    uint64_t start = stream_at(0, rows, from);
    uint32_t all = (uint32_t)(stream_at(0, rows, to) - start) / 16;
    const uint4 *in = reinterpret_cast<const uint4 *>(x + start);
    uint4 *out = reinterpret_cast<uint4 *>(ret + start);
    for (uint32_t first = threadIdx.x % WARP; first < all; first += BATCH * WARP) {
        uint4 v[BATCH];
#pragma unroll
        for (int i = 0; i < BATCH; i++)
            if (first + i * WARP < all) v[i] = __ldcg(in + first + i * WARP);
#pragma unroll
        for (int i = 0; i < BATCH; i++)
            if (first + i * WARP < all) out[first + i * WARP] = v[i];
    }
    __syncwarp();
}

// A slot has PIECES pieces: 128 hold 64 inputs of sixteen outputs.

// Outputs of a unit, from the first on, in tiles of `per`.
struct stream_run {
    uint32_t first, count, per;
    uint32_t shift; // 1 << shift pieces of each output in a slot
};

template <int PIECES> DEVICE_FN struct stream_run stream_run_of(uint32_t first, uint32_t end) {
    struct stream_run r = {first, end - first, 1, 0};
    if (!r.count) return r;
    uint32_t tiles = (r.count + LINEAR_TILE - 1) / LINEAR_TILE;
    r.per = (r.count + tiles - 1) / tiles;
    while (r.per <= PIECES >> (r.shift + 1) && PIECES >> (r.shift + 1)) r.shift++;
    return r;
}

/* A warp's way through its segment of the weights, tile by tile. Source: .row(output) is where an output's weights start, .cols,
 * .quick. */
template <int PIECES, class Source> struct stream_loader {
    const Source &source;
    struct stream_run run;
    uint32_t from, to; // of the segment; steps of zeros behind the end of the row add nothing
    uint32_t tile, k;  // the next to be copied; tile counts outputs
    const uint16_t *rows[PIECES / WARP];

    __device__ __forceinline__ void find_rows() {
#pragma unroll
        for (int j = 0; j < PIECES / WARP; j++) {
            uint32_t r = tile + ((threadIdx.x % WARP + WARP * j) >> run.shift);
            rows[j] = source.row(run.first + (r < run.count ? r : 0));
        }
    }

    __device__ __forceinline__ void copy(uint32_t slot) {
        if (tile < run.count) {
            uint32_t left = run.count - tile, count = left < run.per ? left : run.per;
#pragma unroll
            for (int j = 0; j < PIECES / WARP; j++) {
                uint32_t piece = threadIdx.x % WARP + WARP * j, r = piece >> run.shift;
                uint32_t p = piece & ((1u << run.shift) - 1), at = k + p * 8;
                if (r < count && at < to)
                    stream_piece(slot + (r << run.shift | (p ^ (r & 7))) * 16, rows[j], at,
                                 source.cols, source.quick);
            }
            k += 8u << run.shift;
            if (k >= to) {
                k = from;
                tile += run.per;
                if (tile < run.count) find_rows();
            }
        }
        stream_commit();
    }
};

/* All outputs of a unit. x: the unit's rows in shared memory; slots: of this warp; part: [2][warps of the unit][8][LINEAR_TILE]; Sink:
 * .store(row, output, sum). fill(from, to) is called once, after the first copies of weights: it brings those columns of the rows. */
template <enum dtype D, int PIECES, int STAGES, class Source, class Sink, class Fill>
DEVICE_FN void stream_unit(const Source &source, const Sink &sink, struct stream_run run,
                           uint32_t rows, uint32_t segments, uint32_t segment, uint32_t barrier,
                           uint32_t x, uint32_t slots, float (*part)[8][LINEAR_TILE],
                           const Fill &fill) {
    uint32_t lane = threadIdx.x % WARP, g = lane / 4, c = lane % 4, cols = source.cols;
    uint32_t span = linear_segment_steps(cols) * LINEAR_STEP, end = (segment + 1) * span;
    uint32_t filled = (cols + STREAM_SPAN - 1) / STREAM_SPAN * STREAM_SPAN;
    stream_loader<PIECES, Source> load = {source, run, segment * span, end < filled ? end : filled};
    load.tile = 0;
    load.k = load.from;
    if (run.count) load.find_rows();
    for (int i = 0; i < STAGES - 1; i++) load.copy(slots + i * PIECES * 16);
    fill(load.from, load.to);
    // Where this lane's rows of ldmatrix start: outputs (lane & 15) of a slot, inputs of the rows (lane & 7).
    uint32_t a_row = lane & 15 & ((PIECES >> run.shift) - 1), a_piece = lane / 16;
    uint32_t a_base = (a_row << run.shift) * 16, a_flip = a_row & 7;
    uint32_t x_row = lane % 8 < rows ? lane % 8 : rows - 1, x_line = rows * STREAM_SPAN * 2;
    x += x_row * STREAM_SPAN * 2;
    uint32_t slot = 0, next = STAGES - 1, turn = 0;
    for (uint32_t tile = 0; tile < run.count; tile += run.per, turn ^= 1) {
        float sum[4] = {0, 0, 0, 0};
        for (uint32_t k = load.from; k < load.to; k += 8u << run.shift) {
            stream_wait<STAGES - 2>();
            __syncwarp();
            load.copy(slots + next * PIECES * 16);
            uint32_t left = (load.to - k) / LINEAR_STEP, count = (8u << run.shift) / LINEAR_STEP;
            uint32_t base = slots + slot * PIECES * 16 + a_base;
            count = left < count ? left : count;
            for (uint32_t s = 0; s < count; s += LINEAR_GROUP) {
                uint32_t x_at = x + (k / STREAM_SPAN + s / LINEAR_GROUP) * x_line;
                uint32_t a[LINEAR_GROUP][4], b[LINEAR_GROUP / 2][4];
#pragma unroll
                for (int i = 0; i < LINEAR_GROUP; i++)
                    stream_ldmatrix(a[i], base + (((s + i) * 2 + a_piece) ^ a_flip) * 16);
#pragma unroll
                for (int i = 0; i < LINEAR_GROUP / 2; i++)
                    stream_ldmatrix(b[i], x_at + ((4 * i + lane / 8) ^ (x_row & 7)) * 16);
#pragma unroll
                for (int i = 0; i < LINEAR_GROUP; i++)
                    device_mma<D>(sum, a[i], b[i / 2] + i % 2 * 2);
            }
            slot = slot + 1 == STAGES ? 0 : slot + 1;
            next = next + 1 == STAGES ? 0 : next + 1;
        }
        float(*mine)[LINEAR_TILE] = part[turn * segments + segment];
#pragma unroll
        for (int j = 0; j < 4; j++) mine[2 * c + j % 2][g + j / 2 * 8] = sum[j];
        stream_barrier(barrier, segments * WARP);
        uint32_t left = run.count - tile, count = left < run.per ? left : run.per;
        for (uint32_t i = segment * WARP + lane; i < rows * LINEAR_TILE; i += segments * WARP) {
            uint32_t row = i / LINEAR_TILE, n = i % LINEAR_TILE;
            if (n >= count) continue;
            float v = part[turn * segments][row][n];
            for (uint32_t s = 1; s < segments; s++) v = v + part[turn * segments + s][row][n];
            sink.store(row, run.first + tile + n, v);
        }
    }
}
