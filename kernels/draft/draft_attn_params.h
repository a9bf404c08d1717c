/* draft_attn_params: the argument of the kernels of draft_attn. */
#pragma once
#include "kernels/draft/draft_attn.h"

struct draft_attn_params {
    struct draft_attn_args a;
    devptr partial;  // [rows, heads, chunks, 2 + dim] f32: greatest score, sum, values
    uint32_t chunks; // with the block's own rows
    uint32_t chunk;  // keys of one
};
