/* kvpool: numbers of the KV cache's pages. The engine owns the device memory behind them.
 *
 * A stream takes all pages of its longest run when it is admitted, so what is admitted never runs out. Everything is
 * allocated in kvpool_new. Engine thread only. */
#pragma once
#include <stdint.h>

struct err;
struct kvpool; // defined in kvpool.c

int kvpool_new(struct kvpool **ret, uint32_t page_count, struct err *e);
void kvpool_free(struct kvpool *p); // NULL is fine
// Takes exactly page_count pages, or none and ST_FULL: normal under load, so no message is made.
// The pages given back last go out first: they are the likeliest to be in a cache.
int kvpool_take(struct kvpool *p, uint32_t page_count, uint32_t *ret_pages);
void kvpool_give(struct kvpool *p, const uint32_t *pages, uint32_t page_count);
uint32_t kvpool_total(const struct kvpool *p);
uint32_t kvpool_used(const struct kvpool *p);
