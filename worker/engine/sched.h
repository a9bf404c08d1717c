/* sched: which rows the next round takes. Pure but for the turn it remembers; engine thread only.
 *
 * Every stream that decodes gets its rows: prompts beside it may slow it down by `beside` rows, never by a whole prompt.
 * What is left of the round goes to the streams being filled, at most `chunk` rows each, beginning with the one whose
 * turn it is; who came too short begins the next round. None of this can change a bit of any stream. */
#pragma once
#include <stdbool.h>
#include <stdint.h>

struct sched {
    uint32_t turn; // slot that is served first among those being filled
};

struct sched_item {    // by slot
    uint32_t pending;  // rows that could be fed; 0: nothing to do, or no stream
    bool decoding;     // past its prompt: pending is its row, and those of its drafts
    uint32_t ret_rows; // rows to feed now
};

// rows_max must exceed the rows of decoding streams when another is being filled. Returns the rows of the round.
uint32_t sched_pick(struct sched *s, struct sched_item *items, uint32_t count, uint32_t rows_max,
                    uint32_t chunk, uint32_t beside);
