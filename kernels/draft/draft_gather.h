/* draft_gather: rows of several tables side by side: x[t] = [table_0[pick[t]] | table_1[pick[t]] | ..].
 * Table i begins at tables + i * stride bytes, rows [dim] f32; x [T, count * dim] f32; pick [T] u32. */
#pragma once
#include "kernels/types.h"

struct draft_gather_args {
    devptr tables;
    uint64_t stride;
    uint32_t count, dim, rows;
    devptr pick, x;
};
