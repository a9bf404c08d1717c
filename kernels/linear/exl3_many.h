/* exl3_many: EXL3 parts of the MUL1 codebook for many rows: where plan and kernels find things. The arithmetic is exl3_int.h's.
 *
 * All parts of a call are cut alike: inputs into units of 64 (four tensor-core steps), outputs into blocks of 128 (one rotation).
 * Scratch:
 *   q      [part][K / 64][T padded][64] f16: the rows as integers. A unit's inputs stand in the order of a tile's symbols
 *          (exl3_many_place), its eight pieces of 16 bytes swapped by the row: piece j at j ^ row % 8, so that tiles of
 *          rows need no further shuffling in shared memory. Rows behind the last are 0.
 *   flat   [part][K / 64][T padded] u8: 1 where a unit's integers are large together: exl3_many.cuh
 *   info   [part][T padded]: the row's factor and sum
 *   sums   [slots][rows of a tile][128] i32: running sums, two slots for each thread block of exl3_many
 *   wide   [block of outputs][K / 64][128][64] f16: b' of one part, in q's order and swaps
 *   q_norms, w_norms  bounds for the length of exact sums: exl3_wide.cuh */
#pragma once
#include "kernels/cuda/arith.h"
#include "kernels/linear/linear.h"

enum {
    EXL3_MANY_UNIT = 64,
    EXL3_MANY_STAGE = 128, // inputs that a thread block of exl3_many has in flight at a time
    EXL3_MANY_STAGES = 4,  // of them, or one less
    EXL3_MANY_WARPS = 8,
    EXL3_MANY_THREADS = EXL3_MANY_WARPS * 32,
    EXL3_MANY_ROWS_MAX = 64,
    EXL3_ROWS_THREADS = 512,
    EXL3_ROWS_KEPT = 9, // blocks of 128 inputs that a warp keeps in registers
    EXL3_WIDE_M = 128,  // rows of a tile of exl3_wide
    EXL3_WIDE_N = 256,  // outputs of it
    EXL3_WIDE_STAGES = 4,
    EXL3_WIDE_THREADS = 384,
    EXL3_WIDE_HALF = 64, // rows of a warp group
};

struct exl3_many_info {
    float scale;
    int32_t q_sum;
};

struct exl3_many_params {
    struct linear_args a; // the EXL3 parts of this launch alone
    uint32_t rows_padded;
    uint32_t half_bits;   // of the launch's weights
    uint32_t blocks;      // of 128 outputs, all parts
    uint32_t part;        // exl3_expand, exl3_wide: the one they work on,
    uint32_t from, count; // and its blocks of 128 outputs
    uint32_t clear;       // exl3_expand: q_norms, how many are to be 0
    uint32_t stages;      // exl3_many: 3 or 4
    uint64_t sums_bytes;
    devptr q, flat, info, sums, wide, q_norms, w_norms, counters;
};

// A stage of exl3_many in shared memory: two units of the rows, the tiles, two units of flat. Bytes of a row of tiles (sixteen
// inputs), with what keeps neighbours apart in the banks; where the tiles and flat begin; all of it.
ARITH_FN uint32_t exl3_many_tile_row(uint32_t half_bits) {
    return EXL3_BLOCK * half_bits + 16;
}

ARITH_FN uint32_t exl3_many_tiles(uint32_t rows) {
    return EXL3_MANY_STAGE * 2 * rows;
}

ARITH_FN uint32_t exl3_many_flat(uint32_t rows, uint32_t half_bits) {
    return exl3_many_tiles(rows) + EXL3_MANY_STAGE / 16 * exl3_many_tile_row(half_bits);
}

ARITH_FN uint32_t exl3_many_stage(uint32_t rows, uint32_t half_bits) {
    return (exl3_many_flat(rows, half_bits) + 2 * rows + 127) / 128 * 128;
}

struct cuda_arch;
struct cuda_work;
struct launch_list;

#ifdef __cplusplus
extern "C" {
#endif
// The launches of a call's MUL1 parts, part of linear_plan; the work memory behind what ret already needs. Pure, any thread.
void exl3_many_plan(const struct linear_args *a, const struct cuda_arch *arch,
                    const struct cuda_work *w, struct launch_list *ret);
#ifdef __cplusplus
}
#endif
