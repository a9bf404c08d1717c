/* kv_page: where a position stands in the paged cache (types.h), for the CPU's files. */
#pragma once
#include "kernels/cpu.h"

// Index of the first element of (slot, position, head) behind kv->k or kv->v.
static inline uint64_t kv_page_first(const struct kv_view *kv, uint32_t slot, uint32_t pos,
                                     uint32_t head) {
    const uint32_t *table =
        (const uint32_t *)cpu_ptr(kv->table) + (uint64_t)slot * kv->pages_per_slot;
    uint64_t page = table[pos / KV_PAGE_TOKENS];
    return ((page * kv->heads + head) * KV_PAGE_TOKENS + pos % KV_PAGE_TOKENS) * kv->dim;
}
