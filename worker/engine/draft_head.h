/* draft_head: the target's head for drafts: logits of the ids that may be proposed alone, and the best of each row.
 *
 * Ids come in spans. A span's logits are products with a view of some rows of the head and have the bits that the whole head gives them;
 * views of an EXL3 head grow to whole blocks of rows, whose other ids are never taken. Where the backend has no such views, they are
 * copies, made at load. Engine thread. */
#pragma once
#include <stdint.h>

#include "kernels/draft/draft.h"
#include "worker/engine/engine.h"

struct carve;
struct err;
struct model;

struct draft_head {
    const struct model *m;
    struct engine_range spans[DRAFT_PARTS_MAX]; // ascending, apart
    struct engine_range views[DRAFT_PARTS_MAX]; // of the head's rows; each holds one span or more
    uint32_t spans_count, views_count;
    uint32_t top, rows_max;
    devptr copies[DRAFT_PARTS_MAX]; // trellis of each view; 0: it is a view
    devptr logits[DRAFT_PARTS_MAX]; // of each view, [rows_max, its rows] f32
    devptr ids, values;             // [rows_max, top]
};

struct draft_head_spans {
    const char *name; // of what gave them, for messages
    const struct engine_range *spans;
    uint32_t count; // 0: all ids
};

// ST_INVAL: spans that are empty, not ascending, or reach past the vocabulary; fewer ids than top.
int draft_head_init(struct draft_head *h, const struct model *m, struct draft_head_spans given,
                    uint32_t top, struct err *e);
// Behind the weights of the model, whose head decides the views: first what stays, then room that others may use in between.
void draft_head_carve_copies(struct draft_head *h, struct carve *c);
void draft_head_carve(struct draft_head *h, struct carve *c, uint32_t rows_max);
// The same with the logits in memory of others: [rows_max, V] f32 are enough.
void draft_head_carve_in(struct draft_head *h, struct carve *c, uint32_t rows_max, devptr logits);
void draft_head_load(struct draft_head *h);          // behind the model's weights
uint32_t draft_head_ids(const struct draft_head *h); // how many may be proposed
// The `top` best ids of each of up to rows_max rows x [rows, D], into ids and values.
void draft_head_run(struct draft_head *h, devptr x, uint32_t rows);
