/* draft_top: the k best ids of each row of logits, by value and then by id, ascending.
 *
 * The logits of a row stand in parts, views of a head: of part i, columns col .. col + count - 1 of logits [T, stride] f32 are ids
 * id .. id + count - 1. Ids ascend over the parts. A NaN counts as -infinity. k at most the ids there are.
 * ids [T, k] u32, values [T, k] f32. */
#pragma once
#include "kernels/draft/draft.h"

struct draft_top_part {
    devptr logits;
    uint32_t stride, col, id, count;
};

struct draft_top_args {
    struct draft_top_part parts[DRAFT_PARTS_MAX];
    uint32_t parts_count, rows, k;
    devptr ids, values;
};
