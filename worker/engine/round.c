/* round: see round.h. */
#include "worker/engine/round.h"
#include "common/mem.h"
#include "common/num.h"
#include "kernels/sample/draw.h"
#include "worker/engine/carve.h"
#include "worker/engine/tables.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

enum { TABLES = 6 };

static void list_tables(struct table ret[TABLES], struct round *r) {
    const struct table all[TABLES] = {
        {r->ids, r->rows * sizeof *r->ids, &r->dev_ids},
        {r->slot, r->rows * sizeof *r->slot, &r->dev_slot},
        {r->pos, r->rows * sizeof *r->pos, &r->dev_pos},
        {r->runs, r->runs_count * sizeof *r->runs, &r->dev_runs},
        {r->picks, r->picks_count * sizeof *r->picks, &r->dev_picks},
        {r->draws, r->picks_count * sizeof *r->draws, &r->dev_draws},
    };
    memcpy(ret, all, sizeof all);
}

static uint64_t bytes_max(const struct round *r) {
    return (uint64_t)r->rows_max * (sizeof *r->ids + sizeof *r->slot + sizeof *r->pos) +
           r->runs_max * sizeof *r->runs +
           (uint64_t)r->picks_max * (sizeof *r->picks + sizeof *r->draws) + TABLES * TABLE_ALIGN;
}

void round_init(struct round *r, uint32_t rows_max, uint32_t runs_max) {
    *r = (struct round){.rows_max = rows_max, .runs_max = runs_max, .picks_max = rows_max};
    r->ids = mem_calloc(rows_max, sizeof *r->ids);
    r->slot = mem_calloc(rows_max, sizeof *r->slot);
    r->pos = mem_calloc(rows_max, sizeof *r->pos);
    r->runs = mem_calloc(runs_max, sizeof *r->runs);
    r->picks = mem_calloc(rows_max, sizeof *r->picks);
    r->draws = mem_calloc(rows_max, sizeof *r->draws);
    r->packed = mem_calloc(bytes_max(r), 1);
}

void round_fini(struct round *r) {
    free(r->ids);
    free(r->slot);
    free(r->pos);
    free(r->runs);
    free(r->picks);
    free(r->draws);
    free(r->packed);
    *r = (struct round){0};
}

void round_carve(struct round *r, struct carve *c) {
    r->dev = carve_take(c, bytes_max(r));
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
    r->draws[r->picks_count] = (struct draw_row){0};
    r->picks[r->picks_count++] = row;
}

void round_place(struct round *r) {
    struct table t[TABLES];
    list_tables(t, r);
    tables_place(t, TABLES, r->dev);
}

void round_write(struct round *r, const struct ops *ops) {
    struct table t[TABLES];
    list_tables(t, r);
    tables_write(t, TABLES, r->dev, r->packed, ops);
}

struct rows round_rows(const struct round *r) {
    return (struct rows){.count = r->rows,
                         .runs_count = r->runs_count,
                         .ids = r->dev_ids,
                         .slot = r->dev_slot,
                         .pos = r->dev_pos,
                         .runs = r->dev_runs};
}
