/* round: see round.h. */
#include "worker/engine/round.h"
#include "common/mem.h"
#include "kernels/ops.h"
#include "worker/engine/carve.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

void round_init(struct round *r, uint32_t rows_max, uint32_t runs_max) {
    *r = (struct round){.rows_max = rows_max, .runs_max = runs_max, .picks_max = rows_max};
    r->ids = mem_calloc(rows_max, sizeof *r->ids);
    r->slot = mem_calloc(rows_max, sizeof *r->slot);
    r->pos = mem_calloc(rows_max, sizeof *r->pos);
    r->runs = mem_calloc(runs_max, sizeof *r->runs);
    r->picks = mem_calloc(rows_max, sizeof *r->picks);
}

void round_fini(struct round *r) {
    free(r->ids);
    free(r->slot);
    free(r->pos);
    free(r->runs);
    free(r->picks);
    *r = (struct round){0};
}

void round_carve(struct round *r, struct carve *c) {
    r->dev_ids = carve_take(c, r->rows_max * sizeof *r->ids);
    r->dev_slot = carve_take(c, r->rows_max * sizeof *r->slot);
    r->dev_pos = carve_take(c, r->rows_max * sizeof *r->pos);
    r->dev_runs = carve_take(c, r->runs_max * sizeof *r->runs);
    r->dev_picks = carve_take(c, r->picks_max * sizeof *r->picks);
}

void round_reset(struct round *r) {
    r->rows = r->runs_count = r->picks_count = r->record_rows = 0;
}

uint32_t round_add(struct round *r, uint32_t slot, uint32_t pos, const uint32_t *ids,
                   uint32_t count, bool record) {
    assert(count && count <= r->rows_max - r->rows && r->runs_count < r->runs_max);
    uint32_t first = r->rows;
    r->runs[r->runs_count++] = (struct run){.slot = slot,
                                            .row = first,
                                            .pos = pos,
                                            .count = count,
                                            .record = record ? r->record_rows + 1 : 0};
    memcpy(r->ids + first, ids, count * sizeof *ids);
    for (uint32_t i = 0; i < count; i++) {
        r->slot[first + i] = slot;
        r->pos[first + i] = pos + i;
    }
    r->rows += count;
    if (record) r->record_rows += count;
    return first;
}

void round_pick(struct round *r, uint32_t row) {
    assert(row < r->rows && (!r->picks_count || r->picks[r->picks_count - 1] < row));
    r->picks[r->picks_count++] = row;
}

void round_write(const struct round *r, const struct ops *ops) {
    ops->write(ops->ctx, r->dev_ids, r->ids, r->rows * sizeof *r->ids);
    ops->write(ops->ctx, r->dev_slot, r->slot, r->rows * sizeof *r->slot);
    ops->write(ops->ctx, r->dev_pos, r->pos, r->rows * sizeof *r->pos);
    ops->write(ops->ctx, r->dev_runs, r->runs, r->runs_count * sizeof *r->runs);
    ops->write(ops->ctx, r->dev_picks, r->picks, r->picks_count * sizeof *r->picks);
}

struct rows round_rows(const struct round *r) {
    return (struct rows){.count = r->rows,
                         .runs_count = r->runs_count,
                         .ids = r->dev_ids,
                         .slot = r->dev_slot,
                         .pos = r->dev_pos,
                         .runs = r->dev_runs};
}
