/* types: what every operation's arguments are made of: device addresses, weights, the rows of a round. */
#pragma once
#include <stdint.h>

// An address on the device. An integer, so that nothing outside kernels/ can follow it; 0 is "none". Offsets are bytes.
typedef uint64_t devptr;

enum dtype { DTYPE_F32, DTYPE_BF16, DTYPE_F16 };

static inline uint32_t dtype_bytes(enum dtype d) {
    return d == DTYPE_F32 ? 4 : 2;
}

// A matrix [rows, cols], row-major without gaps, as the checkpoint holds it.
struct weight {
    devptr data;
    enum dtype dtype;
    uint32_t rows, cols;
};

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
 * stream in slot s stands in page table[s * pages_per_slot + p / KV_PAGE_TOKENS]. */
enum { KV_PAGE_TOKENS = 64 };

struct kv_view {
    devptr k, v;  // page 0 of this layer
    devptr table; // u32
    uint32_t pages_per_slot;
    uint32_t heads, dim;
    enum dtype dtype; // F32 or BF16, rounded to nearest even at the store
};
