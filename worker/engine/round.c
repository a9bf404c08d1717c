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

enum { TABLES = 7 };

static void list_tables(struct table ret[TABLES], struct round *r) {
    const struct table all[TABLES] = {
        {r->ids, r->rows * sizeof *r->ids, &r->dev_ids},
        {r->keys, r->rows * sizeof *r->keys, &r->dev_keys},
        {r->pos, r->rows * sizeof *r->pos, &r->dev_pos},
        {r->runs, r->runs_count * sizeof *r->runs, &r->dev_runs},
        {r->key_runs, r->runs_count * sizeof *r->key_runs, &r->dev_key_runs},
        {r->picks, r->picks_count * sizeof *r->picks, &r->dev_picks},
        {r->draws, r->picks_count * sizeof *r->draws, &r->dev_draws},
    };
    memcpy(ret, all, sizeof all);
}

static uint64_t bytes_max(const struct round *r) {
    return (uint64_t)r->rows_max * (sizeof *r->ids + sizeof *r->keys + sizeof *r->pos) +
           (uint64_t)r->runs_max * (sizeof *r->runs + sizeof *r->key_runs) +
           (uint64_t)r->picks_max * (sizeof *r->picks + sizeof *r->draws) + TABLES * TABLE_ALIGN;
}

void round_init(struct round *r, uint32_t rows_max, uint32_t runs_max) {
    *r = (struct round){.rows_max = rows_max, .runs_max = runs_max, .picks_max = rows_max};
    r->ids = mem_calloc(rows_max, sizeof *r->ids);
    r->keys = mem_calloc(rows_max, sizeof *r->keys);
    r->run = mem_calloc(rows_max, sizeof *r->run);
    r->pos = mem_calloc(rows_max, sizeof *r->pos);
    r->runs = mem_calloc(runs_max, sizeof *r->runs);
    r->key_runs = mem_calloc(runs_max, sizeof *r->key_runs);
    r->picks = mem_calloc(rows_max, sizeof *r->picks);
    r->draws = mem_calloc(rows_max, sizeof *r->draws);
    r->packed = mem_calloc(bytes_max(r), 1);
}

void round_fini(struct round *r) {
    free(r->ids);
    free(r->keys);
    free(r->run);
    free(r->pos);
    free(r->runs);
    free(r->key_runs);
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

static uint32_t add(struct round *r, const struct run *run, uint32_t keys, const uint32_t *ids) {
    assert(run->count && run->count <= r->rows_max - r->rows && r->runs_count < r->runs_max);
    memcpy(r->ids + run->row, ids, run->count * sizeof *ids);
    for (uint32_t i = 0; i < run->count; i++) {
        r->keys[run->row + i] = keys;
        r->run[run->row + i] = r->runs_count;
        r->pos[run->row + i] = run->pos + i;
    }
    r->runs[r->runs_count] = r->key_runs[r->runs_count] = *run;
    r->key_runs[r->runs_count++].slot = keys;
    r->rows += run->count;
    if (run->record) r->record_rows += run->count;
    return run->row;
}

uint32_t round_add(struct round *r, uint32_t slot, uint32_t pos, const uint32_t *ids,
                   uint32_t count, bool record) {
    struct run run = {.slot = slot,
                      .row = r->rows,
                      .pos = pos,
                      .count = count,
                      .record = record ? r->record_rows + 1 : 0};
    return add(r, &run, slot, ids);
}

uint32_t round_add_branch(struct round *r, uint32_t slot, uint32_t keys, uint32_t pos,
                          const uint32_t *ids, uint32_t count) {
    struct run run = {
        .slot = slot, .row = r->rows, .pos = pos, .count = count, .record = r->record_rows + 1};
    return add(r, &run, keys, ids);
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
                         .slot = r->dev_keys,
                         .pos = r->dev_pos,
                         .runs = r->dev_runs};
}

struct rows round_key_rows(const struct round *r) {
    struct rows rows = round_rows(r);
    rows.runs = r->dev_key_runs;
    return rows;
}
