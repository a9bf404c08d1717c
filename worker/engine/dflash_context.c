/* dflash_context: see dflash_context.h. */
#include "worker/engine/dflash_context.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "common/mem.h"
#include "common/num.h"
#include "kernels/ops.h"
#include "worker/engine/carve.h"
#include "worker/engine/model_qwen3_5.h"

static uint32_t ring(const struct dflash_config *c, uint32_t layer) {
    return c->sliding[layer] ? c->window - 1 : 0;
}

void dflash_context_carve(struct dflash_context *x, struct carve *c, uint32_t slots) {
    const struct dflash_config *cfg = x->cfg;
    x->slots = slots;
    x->dtype = x->m->lim.kv_dtype == DTYPE_F32 ? DTYPE_F32 : DTYPE_BF16;
    x->row_bytes = (uint64_t)cfg->kv_heads * cfg->head_dim * dtype_bytes(x->dtype);
    for (uint32_t i = 0; i < cfg->layers; i++) {
        uint64_t rows = cfg->sliding[i] ? (uint64_t)slots * ring(cfg, i)
                                        : (uint64_t)x->m->lim.pages * KV_PAGE_TOKENS;
        x->keys[i] = carve_take(c, rows * x->row_bytes);
        x->values[i] = carve_take(c, rows * x->row_bytes);
    }
}

void dflash_context_load(struct dflash_context *x) {
    x->known = mem_calloc(x->slots, sizeof *x->known);
}

void dflash_context_close(struct dflash_context *x) {
    free(x->known);
    x->known = NULL;
}

struct draft_context dflash_context_layer(const struct dflash_context *x, uint32_t layer) {
    return (struct draft_context){.k = x->keys[layer],
                                  .v = x->values[layer],
                                  .ring = ring(x->cfg, layer),
                                  .table = x->m->page_table,
                                  .pages_per_slot = x->m->lim.pages_per_slot,
                                  .heads = x->cfg->kv_heads,
                                  .dim = x->cfg->head_dim,
                                  .dtype = x->dtype};
}

uint32_t dflash_context_add(struct dflash_context *x, uint32_t slot, uint32_t pos, uint32_t count) {
    struct dflash_known *k = &x->known[slot];
    assert(slot < x->slots);
    if (pos != k->end || !pos) k->first = pos;
    k->end = pos + count;
    if (!dflash_config_all_slide(x->cfg)) return 0;
    return count > x->cfg->window - 1 ? count - (x->cfg->window - 1) : 0;
}

bool dflash_context_ready(const struct dflash_context *x, uint32_t slot, uint32_t pos) {
    const struct dflash_known *k = &x->known[slot];
    uint32_t least = DFLASH_ROWS_LEAST;
    assert(k->end == pos);
    if (dflash_config_all_slide(x->cfg)) least = min_u32(least, x->cfg->window - 1);
    return !k->first || k->end - k->first >= least;
}

/* Saved: what is known, then for each layer keys and values of the rows that a later block may see, in the order of positions. */
static uint32_t kept(const struct dflash_context *x, uint32_t layer, uint32_t rows) {
    return x->cfg->sliding[layer] ? min_u32(rows, ring(x->cfg, layer)) : rows;
}

uint64_t dflash_context_bytes(const struct dflash_context *x, uint32_t rows) {
    uint64_t bytes = sizeof(struct dflash_known);
    for (uint32_t i = 0; i < x->cfg->layers; i++) bytes += 2 * kept(x, i, rows) * x->row_bytes;
    return bytes;
}

struct copy {
    const struct dflash_context *x;
    uint32_t slot, rows, first; // first: of the rows that are there
    const uint32_t *table;      // of the slot, on the host
    char *host;
    bool to_host;
};

// Rows from .. of a layer that lie behind one another in memory, up to `to`: where they start, and how many.
static uint32_t piece(const struct copy *s, const struct draft_context *c, uint32_t from,
                      uint32_t to, uint64_t *ret_row) {
    uint32_t step = c->ring ? c->ring : KV_PAGE_TOKENS;
    *ret_row = c->ring ? (uint64_t)s->slot * c->ring + from % step
                       : (uint64_t)s->table[from / step] * step + from % step;
    return min_u32(to - from, step - from % step);
}

static void copy_rows(const struct copy *s, const struct draft_context *c, devptr base, char *host,
                      uint32_t from, uint32_t to) {
    const struct ops *o = s->x->m->ops;
    uint64_t row, bytes = s->x->row_bytes;
    for (uint32_t n; from < to; from += n, host += n * bytes) {
        n = piece(s, c, from, to, &row);
        if (s->to_host)
            o->read(o->ctx, host, base + row * bytes, n * bytes);
        else
            o->write(o->ctx, base + row * bytes, host, n * bytes);
    }
}

static void copy_all(const struct copy *s) {
    char *at = s->host + sizeof(struct dflash_known);
    for (uint32_t i = 0; i < s->x->cfg->layers; i++) {
        struct draft_context c = dflash_context_layer(s->x, i);
        uint32_t count = kept(s->x, i, s->rows), oldest = s->rows - count;
        uint32_t from = max_u32(oldest, s->first);
        uint64_t skip = (from - oldest) * s->x->row_bytes, bytes = count * s->x->row_bytes;
        copy_rows(s, &c, c.k, at + skip, from, s->rows);
        copy_rows(s, &c, c.v, at + bytes + skip, from, s->rows);
        at += 2 * bytes;
    }
}

static uint32_t *slot_table(const struct dflash_context *x, uint32_t slot) {
    uint64_t bytes = x->m->lim.pages_per_slot * sizeof(uint32_t);
    uint32_t *table = mem_alloc(bytes);
    x->m->ops->read(x->m->ops->ctx, table, x->m->page_table + slot * bytes, bytes);
    return table;
}

void dflash_context_read(const struct dflash_context *x, uint32_t slot, uint32_t rows, void *ret) {
    const struct dflash_known *k = &x->known[slot];
    assert(k->end == rows);
    uint32_t *table = slot_table(x, slot);
    memset(ret, 0, dflash_context_bytes(x, rows));
    memcpy(ret, k, sizeof *k);
    copy_all(&(struct copy){x, slot, rows, k->first, table, ret, true});
    free(table);
}

void dflash_context_write(struct dflash_context *x, uint32_t slot, uint32_t rows, const void *p) {
    struct dflash_known k = {rows, rows};
    if (p) memcpy(&k, p, sizeof k);
    assert(k.end == rows && k.first <= rows);
    x->known[slot] = k;
    if (!p) return;
    uint32_t *table = slot_table(x, slot);
    copy_all(&(struct copy){x, slot, rows, k.first, table, (char *)p, false});
    free(table);
}
