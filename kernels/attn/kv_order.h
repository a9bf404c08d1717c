/* kv_order: what the CUDA kernels of attention and their twins agree on: where keys are cut, how a softmax weight is computed,
 * how two parts join. attn.cu's header has the order in words. */
#pragma once
#include "kernels/attn/attn.h"
#include "kernels/cuda/arith.h"

enum {
    KV_DIM_MAX = 512, // of a head
    KV_APPEND_WARPS = 4,
    ATTN_QUERIES = 8, // query heads of a block of the plain form: the columns of a tensor-core step
    ATTN_GROUP_TILES = 128,
    // Chunks of 4 tiles to position 2048, of 8 to 8192, of 16 behind: short contexts go to many blocks, long ones merge seldom.
    ATTN_SHORT_END = 32, // tiles
    ATTN_SHORT_TILES = 4,
    ATTN_MIDDLE_END = ATTN_GROUP_TILES,
    ATTN_MIDDLE_TILES = 8,
    ATTN_LONG_TILES = 16,
    ATTN_SHORT_CHUNKS = ATTN_SHORT_END / ATTN_SHORT_TILES,
    ATTN_FIRST_CHUNKS =
        ATTN_SHORT_CHUNKS + (ATTN_MIDDLE_END - ATTN_SHORT_END) / ATTN_MIDDLE_TILES, // of group 0
    ATTN_GROUP_CHUNKS = ATTN_GROUP_TILES / ATTN_LONG_TILES,                         // of any other
};

ARITH_FN uint32_t attn_chunk_of(uint32_t tile) {
    if (tile < ATTN_SHORT_END) return tile / ATTN_SHORT_TILES;
    if (tile < ATTN_MIDDLE_END)
        return ATTN_SHORT_CHUNKS + (tile - ATTN_SHORT_END) / ATTN_MIDDLE_TILES;
    return ATTN_FIRST_CHUNKS + (tile - ATTN_MIDDLE_END) / ATTN_LONG_TILES;
}

ARITH_FN uint32_t attn_chunk_tile(uint32_t chunk) { // its first tile
    if (chunk < ATTN_SHORT_CHUNKS) return chunk * ATTN_SHORT_TILES;
    if (chunk < ATTN_FIRST_CHUNKS)
        return ATTN_SHORT_END + (chunk - ATTN_SHORT_CHUNKS) * ATTN_MIDDLE_TILES;
    return ATTN_MIDDLE_END + (chunk - ATTN_FIRST_CHUNKS) * ATTN_LONG_TILES;
}

ARITH_FN uint32_t attn_chunk_tiles(uint32_t tile) { // of the chunk that a tile is in
    return tile < ATTN_SHORT_END    ? ATTN_SHORT_TILES
           : tile < ATTN_MIDDLE_END ? ATTN_MIDDLE_TILES
                                    : ATTN_LONG_TILES;
}

ARITH_FN uint32_t attn_group_of_chunk(uint32_t chunk) {
    return chunk < ATTN_FIRST_CHUNKS ? 0 : 1 + (chunk - ATTN_FIRST_CHUNKS) / ATTN_GROUP_CHUNKS;
}

ARITH_FN uint32_t attn_group_chunk(uint32_t group) { // its first chunk
    return group ? ATTN_FIRST_CHUNKS + (group - 1) * ATTN_GROUP_CHUNKS : 0;
}

// A tile's place: does a chunk begin with it, does one end, a group?
ARITH_FN int attn_chunk_begins(uint32_t tile) {
    return tile % attn_chunk_tiles(tile) == 0;
}

ARITH_FN int attn_chunk_ends(uint32_t tile) {
    return (tile + 1) % attn_chunk_tiles(tile) == 0;
}

ARITH_FN int attn_group_ends(uint32_t tile) {
    return (tile + 1) % ATTN_GROUP_TILES == 0;
}

/* 2^x for x not above 0 by more than a rounding, to 3e-6 of its value (the polynomial is a minimax fit on [-1/2, 1/2] with its
 * first coefficient 1); exactly 0 from -127 down and for a NaN, exactly 1 for 0. */
ARITH_FN float attn_exp2(float x) {
    float c = fmaxf(x, -127.0f);
    float shifted = c + 12582912.0f; // its low bits are the nearest integer
    float r = c - (shifted - 12582912.0f);
    float p = fmaf(0.009582852944731712f, r, 0.05590642988681793f);
    p = fmaf(p, r, 0.24024099111557007f);
    p = fmaf(p, r, 0.6931241750717163f);
    p = fmaf(p, r, 1.0f);
    return arith_float(arith_bits(p) + (arith_bits(shifted) << 23));
}

// What scores are multiplied with before attn_exp2.
ARITH_FN float attn_unit(float scale) {
    return scale * 1.44269504f;
}

// What one part weighs beside another whose maximum is not below its own; unit: attn_unit.
ARITH_FN float attn_weight(float max, float of, float unit) {
    return attn_exp2((max - of) * unit);
}
