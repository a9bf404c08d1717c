/* carve: the device arena, laid out twice by the same code: against base 0 to learn its size (measure pass), then against
 * the real block. Everything in it belongs to a named region, for the start-up report. Pure, any thread. */
#pragma once
#include <stdbool.h>
#include <stdint.h>

#include "kernels/types.h"

enum { CARVE_REGIONS_MAX = 24, CARVE_ALIGN = 256 };

struct carve_region {
    const char *name; // a literal
    uint64_t bytes;
};

struct carve {
    devptr base;   // 0: measuring
    bool disjoint; // parts lie behind one another instead: for comparison
    uint64_t used,
        high; // of the block; high: the end of the longest of the parts that lie over one another
    struct carve_region regions[CARVE_REGIONS_MAX];
    uint32_t regions_count;
};

void carve_begin(struct carve *c, const char *name); // what follows belongs to this region
devptr carve_take(struct carve *c, uint64_t bytes);  // aligned; 0 bytes give a valid address too
// Parts that never live together: mark, take the first, rewind to the mark, take the second, .. , past: behind the longest.
uint64_t carve_mark(const struct carve *c);
void carve_rewind(struct carve *c, uint64_t mark);
void carve_past(struct carve *c);
uint64_t carve_bytes(const struct carve *c); // of the whole block
