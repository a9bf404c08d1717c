/* draft_attn: attention of a block's rows over their stream's context and over the block itself.
 *
 *   out[t,h,:] = sum_j softmax_j(q[t,h,:] . k[j,:] * scale) v[j,:]
 * Row r of a block at position p + r sees the context rows j, first <= j < p, with p + r - j < window; and of the block the rows c
 * with |r - c| < window, if causal only c <= r. window 0: no bound. Key head of query head h: h / (H / heads).
 * Shapes  q, out [T, H * dim] f32, k and v of the block [T, heads * dim] f32, normed and rotated already.
 * Order   context in tiles of 32 keys from the first one that any row sees, then the block; a tile's maximum and sum by lanes, tiles
 *         merged in order. fp32 throughout, own exp.
 * Source  the DFlash drafters of z-lab (Qwen3 attention, not causal); window and causal rule as vLLM and mistral.rs have them. */
#pragma once
#include <stdbool.h>

#include "kernels/draft/draft.h"

struct draft_attn_args {
    struct draft_context context;
    devptr blocks; // [blocks_count] struct draft_block
    uint32_t blocks_count, rows;
    devptr q, k, v, out;
    uint32_t heads; // H, a multiple of context.heads
    uint32_t window;
    bool causal;
    float scale;
};
