/* kv_at: where a position stands in the paged cache (types.h), for kernels and twins. */
#pragma once
#include "kernels/cuda/arith.h"
#include "kernels/types.h"

// Index of the first element of (page table of the slot, position, head) behind kv.k or kv.v.
ARITH_FN uint64_t kv_at(const struct kv_view *kv, const uint32_t *pages, uint32_t pos,
                        uint32_t head) {
    uint64_t page = pages[pos / KV_PAGE_TOKENS];
    return ((page * kv->heads + head) * KV_PAGE_TOKENS + pos % KV_PAGE_TOKENS) * kv->dim;
}

// The cache's own rounding at the store.
ARITH_FN void kv_put(void *base, uint64_t i, enum dtype d, float x) {
    switch (d) {
    case DTYPE_F32: ((float *)base)[i] = x; break;
    case DTYPE_E4M3: ((uint8_t *)base)[i] = arith_to_e4m3(x); break;
    default: ((uint16_t *)base)[i] = arith_to_bf16(x); break;
    }
}
