/* costs: what rounds and drafts take, as a table for one device and shape of model. A file (docs/drafting.md), one of those that
 * the program carries (worker/costs/), or a rule of thumb. How many drafts a round takes follows from it (draft_width.h), never from a clock; it changes no token.
 *
 * The file is JSON:
 *   {"railyard_costs": 1, "device": "cpu", "shape": "qwen3_5 8x256x4096 plain", "rows_ms": [c1, c2, ..], "draft_ms": {"mtp": [d1, d2, ..]}}
 * and, for people, a text "about": how it was measured. rows_ms: a forward of 1, 2, .. rows of one stream, with all their logits. draft_ms: by kind, 1, 2, .. drafts. Only ratios
 * matter. Reading is for the start; afterwards pure. */
#pragma once
#include <stdint.h>

#include "worker/engine/engine.h"

struct err;

enum { COSTS_FILE_BYTES_MAX = 64 << 10, COSTS_SHAPE_BYTES = 96 };

struct costs {
    double rows_ms[ENGINE_WINDOW_ROWS_MAX + 1];                  // [rows]
    double draft_ms[ENGINE_DRAFT_KINDS][ENGINE_WINDOW_ROWS_MAX]; // [drafts]
};

// "copy", "mtp", ..
const char *costs_kind(enum engine_draft kind);
// What the file's shape must be.
void costs_shape(char ret[COSTS_SHAPE_BYTES], const struct engine_info *info);
void costs_builtin(struct costs *ret);
// A file for this device and shape, with at least `rows` rows. What it does not have is as built in, scaled to its first row.
// ST_IO, ST_CORRUPT, ST_INVAL (another device or shape): e names the file, the key, wanted and found. device and shape NULL:
// whatever they are, and *ret is of no use.
int costs_read(struct costs *ret, const char *path, const char *device, const char *shape,
               uint32_t rows, struct err *e);
// The table that the program carries for this device and shape, and its name; NULL: it has none, and *ret is as it was.
const char *costs_find(struct costs *ret, const char *device, const char *shape, uint32_t rows);
// Kinds whose first cost is 0 are left out. ST_IO.
int costs_write(const struct costs *c, const char *path, const char *device, const char *shape,
                uint32_t rows, struct err *e);
// Of a round with so many drafts of one stream.
double costs_round(const struct costs *c, enum engine_draft kind, uint32_t drafts);
// ... and a branch of so many copied ids; 0: without.
double costs_branch(const struct costs *c, enum engine_draft kind, uint32_t drafts,
                    uint32_t copied);
