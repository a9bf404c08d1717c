/* pick: which worker a request goes to: of the ready ones with room, the one that can start it soonest. Pure. */
#pragma once
#include <stdbool.h>
#include <stdint.h>

struct pick_worker {
    bool ready;
    uint32_t room;            // SUBMITs it would take now
    uint32_t streams;         // submitted and not ended
    uint64_t unfilled_tokens; // prompt ids of those, not filled yet
    double fill_tokens_per_s; // measured; 0: not yet
    double round_ms;          // smoothed; 0: not yet
};

// Predicted seconds until a prompt of that many ids would be filled there.
double pick_start_s(const struct pick_worker *w, uint32_t prompt_tokens);
// The index of the worker, ties to the lowest; -1: none has room.
int pick(const struct pick_worker *workers, uint32_t count, uint32_t prompt_tokens);
