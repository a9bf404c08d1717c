/* pick: which worker a request goes to: of the ready ones with room, the one that can start it soonest; of equals, the one
 * that the client's affinity key falls on. Pure. */
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
struct pick_request {
    uint32_t prompt_tokens;
    uint64_t affinity; // hash of a key; 0: none
};
// The index of the worker; -1: none has room. Ties go by the affinity, so that equal keys meet at the same one of the same
// workers, else to the lowest. *ret_by_affinity: it decided.
int pick(const struct pick_worker *workers, uint32_t count, const struct pick_request *r,
         bool *ret_by_affinity);
