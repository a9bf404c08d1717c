/* draft_where: what the kernels of drafters share. */
#pragma once
#include "kernels/cuda/device.cuh"
#include "kernels/draft/draft.h"
#include "kernels/draft/draft_order.h"

// The row of a position in the context: draft_context_row.
DEVICE_FN uint64_t draft_where(const struct draft_context &c, uint32_t slot, uint32_t pos) {
    if (c.ring) return (uint64_t)slot * c.ring + pos % c.ring;
    const uint32_t *table = device_ptr<const uint32_t>(c.table) + (uint64_t)slot * c.pages_per_slot;
    return (uint64_t)table[pos / KV_PAGE_TOKENS] * KV_PAGE_TOKENS + pos % KV_PAGE_TOKENS;
}
