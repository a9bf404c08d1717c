/* budget: how many streams of which context the memory holds, and where the rows of the embedding go. Measures the device
 * arena with the code that carves it. Start-up only, engine thread. */
#pragma once
#include <stdint.h>

#include "worker/engine/placement.h"

struct engine_config;
struct err;
struct model;
struct round;

struct budget {
    uint32_t context_max, streams_max, chunk_tokens, round_rows_max;
    uint32_t rows_beside;   // of prompts, in a round in which streams decode
    uint32_t pages;         // KV pages in all
    struct placement place; // of the embedding's rows
    uint64_t room, need; // of the device: what may be used; what one stream of the context asks for
};

// The settings alone, beside the checkpoint's longest context. ST_INVAL names one.
int budget_check(const struct engine_config *c, uint32_t max_position, struct err *e);
// Lays m out at addresses of no memory, for as many streams as there may be, one page of keys, and the context asked for or the
// checkpoint's: what the launches of its rounds follow from. ST_INVAL names a setting.
int budget_lay_out(struct model *m, struct round *r, const struct engine_config *config,
                   struct err *e);
// Checks the settings, fills *ret and m->lim and sizes the round. less: bytes to leave of what the device says is free,
// because it would not give as much. ST_INVAL names a setting; ST_NOMEM says what was needed, what is left, and the
// largest context that would fit.
int budget_make(struct budget *ret, struct model *m, struct round *r,
                const struct engine_config *config, uint64_t less, struct err *e);
