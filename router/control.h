/* control: what an operator asks of the workers: drain, resume, stop, start, restart, one of them or all in turn.
 *
 * A verb sets a rank's goal; the goal is pursued from then on, over crashes too, until it is reached or another verb
 * comes. From the moment a verb that drains has returned, no new request reaches that worker. Loop thread. */
#pragma once
#include <stdbool.h>
#include <stdint.h>

struct apierr;
struct backend;
struct control; // defined in control.c
struct server;

enum control_verb {
    CONTROL_DRAIN,
    CONTROL_RESUME,
    CONTROL_RESTART,
    CONTROL_STOP,
    CONTROL_START,
    CONTROL_VERB_COUNT
};

enum control_streams { // what becomes of a draining worker's streams
    CONTROL_FINISH,    // they finish; those that run at the timeout move
    CONTROL_MOVE,      // they go on at another worker at once
    CONTROL_CANCEL,    // they finish; those that run at the timeout fail
    CONTROL_STREAMS_COUNT
};

struct control_how {
    double timeout_s; // of the drain
    double start_s;   // of a restart: until the worker is ready again
    enum control_streams streams;
    bool force; // fewer ready workers than ready.workers_min are fine
};

struct control_operation { // a restart of all
    uint32_t id, step, steps;
    uint32_t
        passed; // steps that were passed by: an operator has stopped that worker, or a guest has gone
    enum { CONTROL_RUNNING, CONTROL_DONE, CONTROL_FAILED, CONTROL_CANCELLED } state;
    int32_t rank; // the present one; -1: over
    char error[1024];
};

enum { CONTROL_OPERATIONS_KEPT = 16 }; // that are over and may still be asked for

struct control *control_new(struct server *s);
void control_free(struct control *c); // NULL is fine

const char *control_verb_name(enum control_verb v);       // "drain"
const char *control_streams_name(enum control_streams s); // "finish"
// APIERR_NOT_FOUND: no such rank; APIERR_CONFLICT: not from its present state, or too few ready workers would be left.
// *ret_changed: false where it was so already.
int control_worker(struct control *c, uint32_t rank, enum control_verb verb,
                   const struct control_how *how, bool *ret_changed, struct apierr *e);
// Restarts every rank that a worker has, one after the other, each there again before the next. What an operator asks of
// one worker meanwhile is stronger: one that is stopped stays so and is passed by, one that is drained is drained again when
// it is back.
int control_restart_all(struct control *c, const struct control_how *how, uint32_t *ret_id,
                        struct apierr *e);
// False: never begun, or forgotten behind CONTROL_OPERATIONS_KEPT later ones.
bool control_operation(const struct control *c, uint32_t id, struct control_operation *ret);
// Ends it: no further worker is restarted; the present one goes on as it was where it only drains, else it starts again.
// APIERR_NOT_FOUND: as control_operation. *ret_changed: false where it was over.
int control_cancel(struct control *c, uint32_t id, bool *ret_changed, struct apierr *e);
void control_on_state(struct control *c,
                      struct backend *b); // it has changed, and nothing was placed since
void control_tick(struct control *c);     // often: goals and the operation go on
