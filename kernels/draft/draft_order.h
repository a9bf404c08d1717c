/* draft_order: what the kernels of drafters and their plans agree on. */
#pragma once

enum {
    DRAFT_THREADS = 256,
    DRAFT_ATTN_CHUNK = 512, // keys of a block of threads, from a multiple of it on
    DRAFT_ATTN_TILE = 32,   // keys that stand in shared memory
    DRAFT_ATTN_WARPS = 8,
    DRAFT_TOP_WARPS = 8,
    DRAFT_TOP_BATCH = 256, // candidates that a warp looks at together
    DRAFT_MMA_CHUNK = 128, // as DRAFT_ATTN_CHUNK, of draft_attn_mma; likewise
    DRAFT_MMA_TILE = 64,
    DRAFT_MMA_STAGES = 2, // tiles that stand in shared memory or are on their way
    DRAFT_MMA_WARPS = 4,
    DRAFT_MMA_PAD = 8, // values behind a key, so that eight of them lie in different banks
    Q4_WARPS = 8,      // of a block: they share the groups of K
};
