/* draft_order: what the kernels of drafters and their plans agree on. */
#pragma once

enum {
    DRAFT_THREADS = 256,
    DRAFT_ATTN_CHUNK = 512, // keys of a block of threads, from a multiple of it on
    DRAFT_ATTN_TILE = 32,   // keys that stand in shared memory
    DRAFT_ATTN_WARPS = 8,
    DRAFT_TOP_WARPS = 8,
    DRAFT_TOP_BATCH = 256, // candidates that a warp looks at together
    Q4_WARPS = 8,          // of a block: they share the groups of K
    Q4_TILE = 16,          // outputs of a block
};
