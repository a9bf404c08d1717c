/* kv_order: what the CUDA kernels of attention and their twins agree on. */
#pragma once

enum {
    KV_DIM_MAX = 512, // of a head
    KV_APPEND_WARPS = 4,
    ATTN_QUERIES = 8,     // query heads of a block: the columns of a tensor-core step
    ATTN_CHUNK_TILES = 4, // tiles merged among themselves before they are merged with what was
};
