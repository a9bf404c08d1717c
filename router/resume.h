/* resume: how a choice survives the loss of its worker: it waits for another one of the same kind, or for a successor,
 * and goes on there behind the ids it has. Clients notice a pause. Pure; a part of struct choice, and of struct request
 * what counts for all its choices.
 *
 * A request that has ids goes on only where the same bits would come: at a worker of equal fingerprint. One without any
 * may go anywhere. One that was live at RESUME_DEATHS_MAX unplanned deaths is given up: it may well be their cause. */
#pragma once
#include <stdbool.h>
#include <stdint.h>

#include "router/fingerprint.h"
#include "router/metrics.h"

enum { RESUME_DEATHS_MAX = 2 };

struct resume_deaths { // of a request; zero-initialised: none
    uint32_t count;    // workers that died while it was live there, not counting planned ends
    uint64_t last;     // as resume_met's death
};

struct resume {         // zero-initialised: never lost
    uint32_t times;     // it went on
    uint64_t since_ms;  // of its last loss, while nothing has come since; else 0
    uint64_t paused_us; // of the first loss in this pause
    enum metric_cause cause;
    char kind[FINGERPRINT_DIGEST_BYTES]; // of the worker that gave the first id; "": none has come
};

// One of its choices was live at this death, a number that all choices lost with that worker name. False: it has met too
// many.
bool resume_met(struct resume_deaths *d, uint64_t death);
void resume_lost(struct resume *r, enum metric_cause cause, uint64_t now_us); // its worker is gone
// Ids or the end came from a worker of that kind. Returns the pause that this ended, in us; 0: none.
uint64_t resume_moved(struct resume *r, const char kind[FINGERPRINT_DIGEST_BYTES], uint64_t now_us);
bool resume_fits(const struct resume *r, const char kind[FINGERPRINT_DIGEST_BYTES]);

static inline bool resume_waits(const struct resume *r) {
    return r->since_ms != 0;
}
