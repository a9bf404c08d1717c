/* exl3_int_many: EXL3 parts of the MUL1 codebook for many rows: where plan and kernels find things. The arithmetic is exl3_int.h's.
 *
 * All parts of a call are cut alike: inputs into units of 64 (four tensor-core steps), outputs into blocks of 128 (one rotation).
 * Scratch:
 *   q      [part][K / 64][T padded][64] f16: the rows as integers. A unit's eight pieces of 16 bytes are swapped by the row: piece
 *          j at j ^ row % 8, as the tensor cores want them in shared memory. Its inputs stand by step for exl3_int_many (step s
 *          has 16 c + 2 s + {0, 1} for c = 0 .. 3, then 16 c + 2 s + {8, 9}), as a tile's symbols for exl3_int_wide (the tile's
 *          2 s + {0, 1, 8, 9} for s = 0 .. 3). Rows behind the last are 0.
 *   flat   [part][K / 64][T padded] u8: 1 where a unit's integers are large together: exl3_int_many.cu
 *   info   [part][T padded]: the row's factor and sum
 *   wide   [block of outputs][K / 64][128][64] f16: b' of a part, in q's order and swaps
 *   q_norms, w_norms  [part][K / 128][3][T padded / 64] u32, [block][K / 128][3] f32: the largest sums of squares: exl3_int_wide.cu
 *   sums   [two for each thread block][rows of a tile, outputs of it] i32: its sums of tiles that it shares with others
 * Counters, 0 between launches: how much of a tile's inputs has been summed, by the first of its sharers. */
#pragma once
#include "kernels/cuda/arith.h"
#include "kernels/linear/linear.h"

enum {
    EXL3_INT_MANY_UNIT = 64,
    EXL3_INT_MANY_STAGES = 5, // units that a thread block of exl3_int_many has room for
    EXL3_INT_MANY_WARPS = 4,
    EXL3_INT_MANY_THREADS = EXL3_INT_MANY_WARPS * 32,
    EXL3_INT_MANY_ROWS_THREADS = 256, // twice as many for longer rows
    EXL3_INT_MANY_ROWS_KEPT = 5,      // blocks of 128 inputs that a warp keeps in registers
    EXL3_INT_MANY_ROWS_KEPT_LONG = 9,
    EXL3_INT_WIDE_HALF = 64, // rows that share a bound, in exl3_int_wide
    EXL3_INT_WIDE_NORMS = 3, // of a pair of units: the first one's, both together, the second one's
};

struct exl3_int_many_info {
    float scale;
    int32_t q_sum;
};

struct exl3_int_many_params {
    struct linear_args a; // the EXL3 parts of this launch alone
    uint32_t rows_padded;
    uint32_t half_bits;   // of the launch's weights
    uint32_t blocks;      // of 128 outputs, all parts
    uint32_t by_tile;     // the order of q: exl3_int_wide's
    uint32_t part;        // exl3_int_expand: the one it works on,
    uint32_t from, count; // and its blocks of 128 outputs
    uint32_t clear;       // exl3_int_expand: q_norms, how many are to be 0
    devptr q, flat, info, sums, wide, q_norms, w_norms, counters;
};

// A unit in exl3_int_many's shared memory: the rows, the tiles, flat. Bytes of a row of tiles (sixteen inputs), with what keeps
// neighbours apart in the banks; where the tiles and flat begin; all of it.
ARITH_FN uint32_t exl3_int_many_tile_row(uint32_t half_bits) {
    return EXL3_BLOCK * half_bits + 16;
}

ARITH_FN uint32_t exl3_int_many_tiles(uint32_t rows) {
    return EXL3_INT_MANY_UNIT * 2 * rows;
}

ARITH_FN uint32_t exl3_int_many_flat(uint32_t rows, uint32_t half_bits) {
    return exl3_int_many_tiles(rows) + EXL3_INT_MANY_UNIT / 16 * exl3_int_many_tile_row(half_bits);
}

ARITH_FN uint32_t exl3_int_many_stage(uint32_t rows, uint32_t half_bits) {
    return (exl3_int_many_flat(rows, half_bits) + rows + 1023) / 1024 * 1024;
}

struct cuda_arch;
struct cuda_work;
struct launch_list;

#ifdef __cplusplus
extern "C" {
#endif
// The launches of a call's MUL1 parts, part of linear_plan; the work memory behind what ret already needs. Pure, any thread.
void exl3_int_many_plan(const struct linear_args *a, const struct cuda_arch *arch,
                        const struct cuda_work *w, struct launch_list *ret);
#ifdef __cplusplus
}
#endif
