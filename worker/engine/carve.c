/* carve: see carve.h. Sizes come from a checked config and stay far below 2^64. */
#include "worker/engine/carve.h"
#include "common/num.h"

#include <assert.h>

static void grow_region(struct carve *c, uint64_t high) {
    if (high <= c->high) return;
    if (c->regions_count) c->regions[c->regions_count - 1].bytes += high - c->high;
    c->high = high;
}

void carve_begin(struct carve *c, const char *name) {
    assert(c->regions_count < CARVE_REGIONS_MAX && c->used == c->high);
    c->regions[c->regions_count++] = (struct carve_region){.name = name};
}

devptr carve_take(struct carve *c, uint64_t bytes) {
    devptr p = c->base + c->used;
    c->used += align_up_size(bytes ? bytes : 1, CARVE_ALIGN);
    grow_region(c, c->used);
    return p;
}

uint64_t carve_mark(const struct carve *c) {
    return c->used;
}

void carve_rewind(struct carve *c, uint64_t mark) {
    c->used = c->disjoint ? c->high : mark;
}

void carve_past(struct carve *c) {
    c->used = c->high;
}

uint64_t carve_bytes(const struct carve *c) {
    return c->high;
}
