/* kv_at: where a position stands in the paged cache (types.h), for kernels and twins.
 *
 * A page of a head is KV_PAGE_TOKENS rows of dim values. Rows of 16-bit and 8-bit values that fill lines of 128 bytes stand as
 * tensor cores take them from shared memory, so that a page is copied there as it is: line i of all rows, then line i + 1 ..,
 * and in a line of row r the 16 bytes number u at u ^ (r % 8). Other rows stand one after another. */
#pragma once
#include "kernels/cuda/arith.h"
#include "kernels/types.h"

enum { KV_LINE_BYTES = 128, KV_BLOCK_BYTES = KV_LINE_BYTES * KV_PAGE_TOKENS };

ARITH_FN int kv_in_lines(const struct kv_view *kv) {
    uint32_t size = kv->dtype == DTYPE_E4M3 ? 1 : 2;
    return kv->dtype != DTYPE_F32 && kv->dim * size % KV_LINE_BYTES == 0;
}

// Index of the first element of a page of a head behind kv.k or kv.v.
ARITH_FN uint64_t kv_page_at(const struct kv_view *kv, const uint32_t *pages, uint32_t pos,
                             uint32_t head) {
    uint64_t page = pages[pos / KV_PAGE_TOKENS];
    return (page * kv->heads + head) * KV_PAGE_TOKENS * kv->dim;
}

// Index in such a page of value d of row r.
ARITH_FN uint32_t kv_in_page(const struct kv_view *kv, uint32_t r, uint32_t d) {
    if (!kv_in_lines(kv)) return r * kv->dim + d;
    uint32_t size = kv->dtype == DTYPE_E4M3 ? 1 : 2, byte = d * size, u = byte / 16 % 8;
    byte = byte / KV_LINE_BYTES * KV_BLOCK_BYTES + r * KV_LINE_BYTES + (u ^ r % 8) * 16 + byte % 16;
    return byte / size;
}

// The cache's own rounding at the store.
ARITH_FN void kv_put(void *base, uint64_t i, enum dtype d, float x) {
    switch (d) {
    case DTYPE_F32: ((float *)base)[i] = x; break;
    case DTYPE_E4M3: ((uint8_t *)base)[i] = arith_to_e4m3(x); break;
    default: ((uint16_t *)base)[i] = arith_to_bf16(x); break;
    }
}
