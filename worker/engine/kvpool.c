/* kvpool: see kvpool.h. A stack of free page numbers, and a bit per page to catch one given twice. */
#include "worker/engine/kvpool.h"
#include "common/err.h"

#include <assert.h>
#include <stdbool.h>
#include <stdlib.h>

struct kvpool {
    uint32_t total, free_count;
    uint32_t *free_pages; // [total], the top is at free_count - 1
    bool *taken;          // [total]
};

int kvpool_new(struct kvpool **ret, uint32_t page_count, struct err *e) {
    struct kvpool *p = calloc(1, sizeof *p);
    if (p) p->free_pages = calloc(page_count ? page_count : 1, sizeof *p->free_pages);
    if (p) p->taken = calloc(page_count ? page_count : 1, sizeof *p->taken);
    if (!p || !p->free_pages || !p->taken) {
        kvpool_free(p);
        return err_set(e, ST_NOMEM, "no memory for a list of %u KV pages", page_count);
    }
    p->total = p->free_count = page_count;
    for (uint32_t i = 0; i < page_count; i++) p->free_pages[i] = page_count - 1 - i; // page 0 first
    *ret = p;
    return ST_OK;
}

void kvpool_free(struct kvpool *p) {
    if (!p) return;
    free(p->free_pages);
    free(p->taken);
    free(p);
}

int kvpool_take(struct kvpool *p, uint32_t page_count, uint32_t *ret_pages) {
    if (page_count > p->free_count) return ST_FULL;
    for (uint32_t i = 0; i < page_count; i++) {
        ret_pages[i] = p->free_pages[--p->free_count];
        p->taken[ret_pages[i]] = true;
    }
    return ST_OK;
}

void kvpool_give(struct kvpool *p, const uint32_t *pages, uint32_t page_count) {
    for (uint32_t i = page_count; i-- > 0;) {
        assert(pages[i] < p->total && p->taken[pages[i]]);
        p->taken[pages[i]] = false;
        p->free_pages[p->free_count++] = pages[i];
    }
}

uint32_t kvpool_total(const struct kvpool *p) {
    return p->total;
}

uint32_t kvpool_used(const struct kvpool *p) {
    return p->total - p->free_count;
}
