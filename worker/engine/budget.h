/* budget: how many streams of which context the memory holds. Measures the device arena with the code that carves it.
 * Start-up only, engine thread. */
#pragma once
#include <stdint.h>

struct engine_config;
struct err;
struct model;
struct round;

struct budget {
    uint32_t context_max, streams_max, chunk_tokens, round_rows_max;
    uint32_t pages; // KV pages in all
};

// Checks the settings, fills *ret and m->lim and sizes the round. ST_INVAL names a setting; ST_NOMEM says what was
// needed, what is left and the largest context that would fit.
int budget_make(struct budget *ret, struct model *m, struct round *r,
                const struct engine_config *config, struct err *e);
