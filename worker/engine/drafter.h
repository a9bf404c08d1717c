/* drafter: a source of ids that may follow a stream's last one. What it proposes changes no reply, only how many rows of
 * a round are kept, so its arithmetic is free (docs/exactness.md); but the same calls give the same ids, always.
 *
 * A drafter keeps a state per slot. The engine tells it of every committed row of every stream that takes drafts, in order and once
 * (absorb), whichever drafter or none proposed it, and asks it for blocks (propose). Nothing that was proposed enters
 * its state before it was committed. A run at position 0 starts a slot anew.
 *
 * Memory: what it needs is carved out of the engine's arena like the model's own (carve.h: measured first, then for
 * real by the same code) and known before anything is loaded. The engine looks for the streams and the context that fit,
 * so carve runs many times, each time with other numbers in *lim (and in model.lim: pages, pages_per_slot, slots):
 * the drafter keeps the pointers and reads them in carve, never before. They stand still from load on. Keys per
 * position of a stream need no room of slots * context: pages of its own, numbered as the target's, with model.page_table,
 * grow with model.lim.pages. In absorb and propose the model's scratch, head_x and logits are free to use. Engine thread
 * only. After load no call allocates or fails: trouble of the device comes out of ops->sync. */
#pragma once
#include <stdbool.h>
#include <stdint.h>

#include "kernels/types.h"
#include "worker/engine/engine.h"
#include "worker/engine/model_qwen3_5.h"

struct carve;
struct err;
struct sample_params;

enum { DRAFT_IDS_MAX = ENGINE_WINDOW_ROWS_MAX - 1 };

struct draft_ask {
    uint32_t slot;
    uint32_t anchor; // the id drawn last, which no row was fed with yet
    uint32_t pos;    // its position: rows 0 .. pos - 1 are committed and were absorbed
    uint32_t want;   // at most so many ids, 1 .. ids_max; the stream has pages for their rows
    const struct sample_params
        *sampling; // for the noise that the draw at a position will use (kernels/sample/sample.h)
    uint32_t ret_count;              // 0 .. want
    uint32_t ret_ids[DRAFT_IDS_MAX]; // for positions pos + 1, pos + 2, ..
};

struct draft_rows {      // committed rows of one stream in the round last forwarded
    struct run run;      // slot, first row in the round, position; count: those kept, >= 1
    const uint32_t *ids; // the stream's, from position 0
    uint32_t ids_count;  // at least pos + count; more where the id behind the last row is known
};

struct drafter_limits {       // outlives the drafter
    uint32_t slots, rows_max; // of the engine, and of one forward of the target
    uint32_t context_max;     // rows of one stream
    uint64_t
        quantize_min; // matrices of so many values and more are quantised to 4 bits at load; 0: as its file says
    const struct engine_range
        *spans;           // ids that its head projects, ascending; those outside are never proposed
    uint32_t spans_count; // 0: all
    bool spans_yield;     // to those of the drafter's own file, where it has some
};

struct drafter {
    void *self;
    enum engine_draft kind; // none of copies
    uint32_t ids_max;       // of one block
    uint32_t vocab;         // ids that it may propose
    struct model_taps
        taps; // what it wants of each forward: the rows are in model.tap_rows and model.tap_final

    void (*carve)(void *self, struct carve *c);
    // Issues what absorb and propose do, with the counts of rows at which launches change, and reads nothing: for ops.measure,
    // behind a carve and before load. NULL: they need nothing beyond the memory that was carved.
    void (*plan)(void *self);
    // Graphs of what it issues most, as graphs.h makes those of rounds: early, behind a carve at no addresses, for their memory; then
    // once, behind load, at those that stay. NULL: it has none.
    int (*record)(void *self, bool early, struct err *e);
    int (*load)(void *self,
                struct err *e); // into what was carved; names file, tensor, wanted, found
    void (*absorb)(void *self, const struct draft_rows *rows, uint32_t count);
    void (*propose)(void *self, struct draft_ask *asks,
                    uint32_t count); // one block each, all in one forward
    // For measurements, while no stream lives: gathers a block of so many rows for each of the first slots, behind `pos` positions, and
    // issues its operations alone. NULL: it has no blocks.
    void (*gather)(void *self, uint32_t blocks, uint32_t rows, uint32_t pos);
    void (*issue)(void *self);
    // State of a slot at so many rows, as bytes on the host, for kept prefixes.
    uint64_t (*state_bytes)(void *self, uint32_t rows);
    void (*state_read)(void *self, uint32_t slot, uint32_t rows, void *ret);
    // p NULL: rows that came without a state; what the slot held before is not theirs.
    void (*state_write)(void *self, uint32_t slot, uint32_t rows, const void *p);
    void (*close)(void *self);
};

// The count of rows that plan tries behind n: every one where they are few, for there launches change most, then twice as many, then
// max; beyond max: there is none.
static inline uint32_t drafter_next_rows(uint32_t n, uint32_t max) {
    uint32_t next = n < 32 ? n + 1 : n * 2;
    return n < max && next > max ? max : next;
}

// A published DFlash or DFlash2 drafter in a folder. Refused by name and reason, before anything is carved: another
// vocabulary, hidden size or depth than the target's, no rope_theta, tensors unknown or missing (ST_INVAL, ST_UNSUPPORTED).
int dflash_open(struct drafter *ret, const char *dir, const struct model *m,
                const struct drafter_limits *lim, struct err *e);
// The target's own MTP head. ST_UNSUPPORTED: its checkpoint has none, or one that cannot be run; e says which.
int mtp_open(struct drafter *ret, struct model *m, const struct drafter_limits *lim, struct err *e);
