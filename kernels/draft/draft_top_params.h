/* draft_top_params: the argument of the kernels of draft_top. */
#pragma once
#include "kernels/draft/draft_top.h"

struct draft_top_params {
    struct draft_top_args a;
    devptr keys;     // [rows, blocks, k] u64: the best of each block's candidates, none: 0
    uint32_t blocks; // of a row
};
