/* dflash_context: keys and values of the target's committed rows, for every layer of a drafter and every slot.
 *
 * A sliding layer keeps a ring of window - 1 rows a slot, the most that any row of a block sees; a full layer keeps all rows, in pages that
 * are numbered as the target's. Keys stand rotated to their absolute position. Of each slot we know which rows are there: they follow
 * on one another up to `end`; a gap drops those before it. Engine thread. */
#pragma once
#include <stdbool.h>
#include <stdint.h>

#include "kernels/draft/draft.h"
#include "worker/engine/dflash_config.h"

struct carve;
struct model;

struct
    dflash_known { // rows first .. end - 1 of a slot are there, or were before the window went on
    uint32_t first, end;
};

struct dflash_context {
    const struct dflash_config *cfg;
    const struct model *m;
    uint32_t slots;
    enum dtype dtype;
    uint64_t row_bytes; // of keys alone
    devptr keys[DFLASH_LAYERS_MAX], values[DFLASH_LAYERS_MAX];
    struct dflash_known *known; // [slots]
};

enum { DFLASH_ROWS_LEAST = 64 }; // behind a gap, before blocks are drafted again

void dflash_context_carve(struct dflash_context *x, struct carve *c, uint32_t slots);
void dflash_context_load(struct dflash_context *x);
void dflash_context_close(struct dflash_context *x); // zeroed is fine
struct draft_context dflash_context_layer(const struct dflash_context *x, uint32_t layer);
// Rows pos .. pos + count - 1 come to the slot. Tells how many of them need not be kept, because no block will see them.
uint32_t dflash_context_add(struct dflash_context *x, uint32_t slot, uint32_t pos, uint32_t count);
// Whether there is enough behind position pos, up to which all rows must have come.
bool dflash_context_ready(const struct dflash_context *x, uint32_t slot, uint32_t pos);

// As drafter.h has them.
uint64_t dflash_context_bytes(const struct dflash_context *x, uint32_t rows);
void dflash_context_read(const struct dflash_context *x, uint32_t slot, uint32_t rows, void *ret);
void dflash_context_write(struct dflash_context *x, uint32_t slot, uint32_t rows, const void *p);
