/* types: what every operation's arguments are made of: device addresses, weights, the rows of a round. */
#pragma once
#include <stdint.h>

// An address on the device. An integer, so that nothing outside kernels/ can follow it; 0 is "none". Offsets are bytes.
typedef uint64_t devptr;

// E4M3: 8 bits (OCP FP8), of the KV cache alone.
enum dtype { DTYPE_F32, DTYPE_BF16, DTYPE_F16, DTYPE_E4M3 };

static inline uint32_t dtype_bytes(enum dtype d) {
    return d == DTYPE_F32 ? 4 : d == DTYPE_E4M3 ? 1 : 2;
}

// The codes of EXL3 (ExLlamaV3's format, after QTIP): how a 16-bit state becomes a value. See linear/exl3_decode.h.
enum exl3_codebook { EXL3_3INST, EXL3_MCG, EXL3_MUL1 };

enum {
    EXL3_BLOCK =
        128, // channels of one rotation: rows and cols of an EXL3 weight are multiples of it
    EXL3_HALF_BITS_MIN = 2, // widths go from 1 to 8 bits a weight, in halves
    EXL3_HALF_BITS_MAX = 16,
};

struct exl3 {
    uint32_t half_bits; // twice the bits of a weight; 0: the weight is plain
    enum exl3_codebook codebook;
    devptr suh;  // [cols] f16, factors of the inputs
    devptr svh;  // [rows] f16, factors of the outputs
    devptr bias; // [rows] f32, or 0
    uint32_t
        rows_whole; // of a view of some rows: how many the whole has, whose trellis this is; else 0
};

/* A matrix [rows, cols] as the checkpoint holds it: plain, row-major without gaps; or, with half_bits set, EXL3, data
 * being the trellis [cols / 16, rows / 16, 8 * half_bits] of 16-bit words. Linear layers take either. */
struct weight {
    devptr data;
    enum dtype dtype; // plain only
    uint32_t rows, cols;
    struct exl3 exl3;
};

// Rows first .. first + count - 1 of a weight: gives the bits that those outputs of the whole have. EXL3: multiples of
// EXL3_BLOCK, and of a weight that is no view.
static inline struct weight weight_rows(const struct weight *w, uint32_t first, uint32_t count) {
    struct weight v = *w;
    v.rows = count;
    if (!w->exl3.half_bits) {
        v.data += (uint64_t)first * w->cols * dtype_bytes(w->dtype);
        return v;
    }
    v.data += (uint64_t)first * w->exl3.half_bits; // 16 bytes for each half bit of 16 outputs
    v.exl3.svh += (uint64_t)first * sizeof(uint16_t);
    if (v.exl3.bias) v.exl3.bias += (uint64_t)first * sizeof(float);
    v.exl3.rows_whole = w->rows;
    return v;
}

/* A round's forward takes T rows, made of runs: count rows of one stream at consecutive positions. Rows of a run are
 * neighbours; runs stand in ascending order of their first row and cover all rows. */
struct run {
    uint32_t slot;  // the stream's place in states and page tables
    uint32_t row;   // its first row in the round
    uint32_t pos;   // absolute position of that row; 0: the stream starts here, from empty state
    uint32_t count; // rows, at least 1
    uint32_t
        record; // 0: states advance. Else they stay as they are (the caller has the rows recorded)
};

struct rows {
    uint32_t count, runs_count;
    devptr ids;  // [count] u32, token ids
    devptr slot; // [count] u32
    devptr pos;  // [count] u32
    devptr runs; // [runs_count] struct run
};

/* KV cache of one layer: pages of KV_PAGE_TOKENS positions, each [kv_heads, KV_PAGE_TOKENS, head_dim]. Position p of the
 * stream in slot s stands in page table[s * pages_per_slot + p / KV_PAGE_TOKENS]. In a page of a head a backend may have an order of
 * its own (cuda/kv_at.h). */
enum { KV_PAGE_TOKENS = 64 };

struct kv_view {
    devptr k, v;  // page 0 of this layer
    devptr table; // u32
    uint32_t pages_per_slot;
    uint32_t heads, dim;
    enum dtype
        dtype; // F32, BF16 or E4M3: to nearest even at the store; E4M3 with what lies beyond 448 to 448
};
