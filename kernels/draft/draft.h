/* draft: what the operations of block drafters (DFlash) share: blocks, and where the context's keys and values stand.
 *
 * These operations change no reply, only which ids are proposed, so they owe no other operation its bits. The same call gives
 * the same bits, whatever the threads and the vector width. draft_top, which draws on the device take a row's best ids from
 * too, has one answer on every backend. */
#pragma once
#include "kernels/types.h"

enum {
    DRAFT_BLOCK_MAX = 32, // rows of a block
    DRAFT_HEAD_DIM_MAX = 512,
    DRAFT_CONV_TAPS_MAX = 4,
    DRAFT_TOP_MAX = 32,
    DRAFT_TAPS_MAX = 32,
    DRAFT_PARTS_MAX = 16, // views of a head
};

// Rows that are drafted for one stream: positions pos .. pos + count - 1, behind the context rows first .. pos - 1.
struct draft_block {
    uint32_t slot;
    uint32_t row; // its first row in the call; blocks stand in ascending order and cover all rows
    uint32_t pos, count;
    uint32_t first; // of the context rows that are kept
};

/* Rows [heads, dim] of keys and of values of all slots, of one layer. With `ring`, position p of slot s stands in row
 * s * ring + p % ring. Without, rows come in pages of KV_PAGE_TOKENS, numbered as the target's: page
 * table[s * pages_per_slot + p / KV_PAGE_TOKENS]. */
struct draft_context {
    devptr k, v;
    uint32_t ring;
    devptr table; // u32
    uint32_t pages_per_slot;
    uint32_t heads, dim;
    enum dtype dtype; // F32 or BF16: to nearest even at the store
};

static inline uint64_t draft_context_row(const struct draft_context *c, const uint32_t *table,
                                         uint32_t slot, uint32_t pos) {
    if (c->ring) return (uint64_t)slot * c->ring + pos % c->ring;
    uint64_t page = table[(uint64_t)slot * c->pages_per_slot + pos / KV_PAGE_TOKENS];
    return page * KV_PAGE_TOKENS + pos % KV_PAGE_TOKENS;
}
