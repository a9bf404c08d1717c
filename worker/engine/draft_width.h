/* draft_width: how many drafts of one kind a stream's next round takes: as many as give the most tokens for the time, by a
 * table of costs (costs.h) and by how the stream's own drafts of that kind fared. No clock and no other stream has a say,
 * so the tokens of a stream's rounds are a function of its request. Pure. */
#pragma once
#include <stdint.h>

#include "worker/engine/engine.h"

struct costs;

enum {
    DRAFT_GAP_FIRST = 4, // rounds without drafts before one is tried again, doubling up to
    DRAFT_GAP_MAX = 512,
    DRAFT_DEEPER_EVERY = 8, // rounds with drafts; the last goes one deeper than what looks best
};

struct draft_width {
    enum engine_draft kind;
    double kept[ENGINE_WINDOW_ROWS_MAX]; // [j]: share of drafts j + 1 kept where those before were
    uint32_t idle, gap;                  // rounds without drafts; how many before a try
    uint32_t turns;                      // rounds with drafts
};

void draft_width_init(struct draft_width *w, enum engine_draft kind);
void draft_width_init_branch(struct draft_width *w); // of copies beside a block that says otherwise
// For the next round, at most max. 0: drafts do not pay now.
uint32_t draft_width_pick(struct draft_width *w, const struct costs *c, uint32_t max);

struct draft_beside { // a window that a branch may stand beside
    const struct draft_width *width;
    uint32_t drafts; // of it
};
// The same of a branch: one row more than it has drafts.
uint32_t draft_width_pick_beside(struct draft_width *w, const struct costs *c,
                                 const struct draft_beside *b, uint32_t max);
void draft_width_learn(struct draft_width *w, uint32_t drafted, uint32_t kept);
