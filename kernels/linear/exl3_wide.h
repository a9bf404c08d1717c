/* exl3_wide: EXL3 parts for prompts, on sm_90: the weights are written out as fp16 first (exl3_wide.cu; MUL1: exl3_int_wide.cu), then
 * multiplied. Where plans and kernels find things; exl3_wide.cuh has how the product goes.
 *
 * A slice is what one launch multiplies: whole parts, or some blocks of 128 outputs of one part.
 *   q      [part][K / 64][stride][64] f16: rows as exl3_params.h has them, or integers as exl3_int_many.h has them
 *   wide   [block of the slice][K / 64][128][64] f16: weights in q's order, with its swaps
 *   sums   what pairs of thread blocks leave of tiles that they share: [tile, share or segment][rank][64][3 x 128] */
#pragma once
#include "kernels/cuda/arith.h"
#include "kernels/linear/exl3_params.h"
#include "kernels/linear/linear.h"

#include <assert.h>
#include <stdbool.h>

enum {
    EXL3_WIDE_GROUPS = 3, // warp groups that multiply
    EXL3_WIDE_ROWS = 192, // of a tile; a group has 64
    EXL3_WIDE_STAGES = 5, // units of 64 inputs that a thread block has room for
    EXL3_WIDE_THREADS = 512,
    EXL3_WIDE_STAGE_BYTES = (EXL3_WIDE_ROWS + EXL3_BLOCK) * 128,
    // Stages, two barriers for each, and what aligns them.
    EXL3_WIDE_SHARED = EXL3_WIDE_STAGES * (EXL3_WIDE_STAGE_BYTES + 16) + 1024,
    EXL3_WIDE_BYTES = 192 << 20, // that written out weights may take
    EXL3_WIDE_SUMS = EXL3_WIDE_ROWS * EXL3_BLOCK,
    EXL3_WIDE_PAIRS_MAX = 255, // of 128 inputs: integers, whose moves are counted
    EXL3_WIDE_EXPAND_THREADS = 256,
    EXL3_WIDE_EXPAND_BYTES = 2 * 128 * 128,
};

struct exl3_wide_slice {
    uint32_t part, parts; // the first, how many
    uint32_t first,
        count; // of blocks of 128 outputs: the first part's first, all; `first` is 0 where parts are whole
};

struct exl3_wide_params {
    struct linear_args a; // the parts of this kind alone
    struct exl3_wide_slice slice;
    uint32_t stride;              // rows of a unit of q
    uint32_t whole, rest, shares; // tiles of each pair; tiles that are shared, by how many pairs
    uint32_t segments, groups;    // chains: of K; units of a segment
    struct exl3_masks masks;
    devptr q, wide, sums, counters;
    devptr info, q_norms, w_norms; // integers: exl3_int_many.h
};

static_assert(sizeof(struct exl3_wide_params) <= 512, "");

struct cuda_arch;
struct launch_list;

#ifdef __cplusplus
extern "C" {
#endif
// The slice behind *at, the first one behind an empty one; false: there is none.
bool exl3_wide_next(const struct linear_args *a, struct exl3_wide_slice *at);
uint32_t exl3_wide_slices(const struct linear_args *a); // how many
uint32_t exl3_wide_blocks(const struct linear_args *a); // of the largest
// Slots of sums, of EXL3_WIDE_SUMS for each block of a pair, and counters: at most, whatever the rows. segments: of chains; 0: integers.
uint32_t exl3_wide_slots(const struct cuda_arch *arch, uint32_t segments);
uint32_t exl3_wide_counters(const struct cuda_arch *arch);
// The product of p->slice; lays out its tiles. pieces: what K can be shared by.
void exl3_wide_add(struct exl3_wide_params *p, const char *kernel, uint32_t pieces,
                   const struct cuda_arch *arch, struct launch_list *ret);
#ifdef __cplusplus
}
#endif
