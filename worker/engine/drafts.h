/* drafts: where the drafts of a round come from, and what became of them (docs/drafting.md). Owns the engine's drafter, the
 * copies and, per slot, how a stream's drafts fared.
 *
 * For each decoding stream, in this order: a copy, where one matches long enough; what the drafter proposes; nothing. Beside a
 * block whose first id is another than a shorter copy's, that copy goes as a branch from the same anchor. How many
 * follows from the stream and the table of costs alone, never from its neighbours. Engine thread only; a round allocates
 * nothing. */
#pragma once
#include <stdbool.h>
#include <stdint.h>

#include "worker/engine/copy_draft.h"
#include "worker/engine/costs.h"
#include "worker/engine/draft_vocab.h"
#include "worker/engine/draft_width.h"
#include "worker/engine/drafter.h"
#include "worker/engine/engine.h"

struct err;
struct model;
struct round;
struct stream;

enum { DRAFT_ROWS_DEFAULT = 16, DRAFT_RULE_BYTES = 256 };

struct draft_slot {
    bool on;    // the stream takes drafts
    bool model; // ... the drafter's too: it was told of every row
    enum engine_draft kind;
    bool alone;                           // what would be a branch: there is no block
    uint32_t count;                       // of this round's drafts
    uint32_t ids[ENGINE_WINDOW_ROWS_MAX]; // the rows as they are fed: the anchor, then the drafts
    uint32_t branch_count;                // copied ids beside them
    uint32_t branch[1 + COPY_BRANCH_MAX]; // as fed: the anchor again, then the copied ids
    uint32_t copied_count;                // of this round's match that replaces no block
    uint32_t copied[ENGINE_WINDOW_ROWS_MAX];
    struct copy_draft copy;
    struct draft_width copy_width, model_width, branch_width;
    uint64_t rounds; // that checked drafts
    uint64_t drafted[ENGINE_DRAFT_KINDS], accepted[ENGINE_DRAFT_KINDS];
};

struct drafts {
    bool copies, has_model, branches;
    bool lost_tap;        // planted: see ENGINE_FAULT_LOST_TAP
    uint32_t rows_max;    // of a stream's window; 1: there are no drafts
    uint32_t always;      // see engine_draft_always
    struct drafter model; // its kind stays when it is gone
    uint64_t model_bytes; // of the arena, taps left out
    struct draft_vocab vocab;
    struct drafter_limits lim;
    struct costs costs;
    struct model *target;
    uint32_t slots_count;
    struct draft_slot *slots;
    struct draft_ask *asks;
    struct draft_rows *told;
    char rule[DRAFT_RULE_BYTES]; // for the report
    char costs_rule[DRAFT_RULE_BYTES];
};

// As the settings say; from then on model_carve carves the drafter too. ST_INVAL and ST_UNSUPPORTED name the setting; otherwise as dflash_open and mtp_open.
int drafts_open(struct drafts *d, struct model *m, const struct engine_config *c, struct err *e);
// With one kind less, because memory is short: first the drafter, then the copies. False: nothing was there that nobody asked
// for by name.
bool drafts_shrink(struct drafts *d, const struct engine_config *c);
void drafts_off(struct drafts *d); // none, and nothing carved
// The table of costs, for this device and shape: the file that was named, else what the program carries. ST_INVAL: what is wrong
// with that file, as costs_read says it.
int drafts_read_costs(struct drafts *d, const struct engine_config *c, const char *device,
                      const char *shape, struct err *e);
// Of that file what needs no device: that it is there, its keys and values, enough rows. As drafts_read_costs.
int drafts_check_costs(const struct drafts *d, const struct engine_config *c, struct err *e);
void drafts_make(struct drafts *d,
                 uint32_t slots);    // what the host needs; after that the limits stand
void drafts_close(struct drafts *d); // zeroed is fine

void drafts_begin(struct drafts *d, struct stream *s, bool draft); // a stream that begins
// Fills the slots of all streams for the next round.
void drafts_propose(struct drafts *d, struct stream *streams);
// Rows of a stream's branch; 0: it has none.
uint32_t drafts_branch_rows(const struct drafts *d, uint32_t slot);
// What became of a stream's drafts: so many rows of its window stand, or of its branch.
void drafts_settle(struct drafts *d, const struct stream *s, uint32_t kept_rows, bool branch);
// The rows of the round last forwarded that stand, run by run.
void drafts_absorb(struct drafts *d, const struct run *runs, uint32_t count,
                   const struct stream *streams);
