/* backend: the workers as the router sees them: lobby, sockets, processes, restarts.
 *
 * Owns the lobby socket, one socket per incarnation, and, in `serve`, the child processes. nng's threads only
 * put messages on a list and wake the loop; every callback and every call here is on the loop thread. */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include <uv.h>

#include "proto/frame.h"
#include "router/fingerprint.h"

struct err;
struct backends; // the set, defined in backend.c
struct backend;  // one rank

enum backend_state {
    BACKEND_STARTING, // process, no HELLO yet
    BACKEND_LOADING,
    BACKEND_READY,
    BACKEND_DRAINING,
    BACKEND_DRAINED,
    BACKEND_STOPPED,
    BACKEND_FAILED,
    BACKEND_BACKOFF, // waits for its next start
    BACKEND_STATE_COUNT,
};

// Why a worker failed. Of a process of ours what ended it; of others what became of the connection.
enum backend_failure {
    BACKEND_FAILURE_EXIT,      // with an exit code
    BACKEND_FAILURE_SIGNAL,    // killed by one
    BACKEND_FAILURE_HUNG,      // no progress, or no answer
    BACKEND_FAILURE_GPU_LOST,  // its device failed
    BACKEND_FAILURE_BAD_FRAME, // what it sent made no sense
    BACKEND_FAILURE_START,     // it could not be started, or never came up
    BACKEND_FAILURE_LOST,      // the connection ended without a word
    BACKEND_FAILURE_COUNT,
};
const char *backend_failure_name(enum backend_failure f);

struct backend_events { // all on the loop thread
    void *arg;
    // A frame of the present incarnation: TOKENS, DONE, FAIL. Its memory is gone when the call returns.
    void (*on_frame)(void *arg, struct backend *b, const struct frame *f);
    // The state changed; room may have changed with every STATUS: on_room.
    void (*on_state)(void *arg, struct backend *b, enum backend_state old_state);
    void (*on_room)(void *arg, struct backend *b);
    // The incarnation is over: its streams get nothing more. reason is one line; planned: it ended in good order.
    // Called before on_state.
    void (*on_lost)(void *arg, struct backend *b, const char *reason, bool planned);
    // A worker ended though nobody wanted it to: once for each such end, behind on_lost. May be NULL.
    void (*on_failed)(void *arg, struct backend *b, enum backend_failure why);
};

struct backends_config { // what it points to outlives the set
    uv_loop_t *loop;
    const char *run_dir; // exists, mode 0700
    uint32_t ranks;      // 0..ranks-1
    bool spawn;          // serve: start a worker for each rank
    // Ranks behind `ranks` for workers started by hand where spawn holds all others. BACKEND_STOPPED with generation 0
    // until one joins.
    uint32_t guest_ranks;
    char *const
        *worker_argv; // of the children, NULL-terminated; --rank, --lobby and the token are added
    double progress_s;
    double hello_s; // a child that has not said HELLO by then is killed
    struct backend_events events;
    const struct frame_vocab *vocab; // sent when a worker joins
    const char *model;               // a worker of another model is refused
};

// ST_IO: another router listens in run_dir, or it cannot be written; the loop must still turn, to close handles.
int backends_new(struct backends **ret, const struct backends_config *c, struct err *e);
// Stops children (SIGTERM, then SIGKILL after grace_s), says GOODBYE to others, closes the sockets, then calls done.
void backends_stop(struct backends *s, double grace_s, void (*done)(void *arg), void *arg);
void backends_free(struct backends *s); // after done; NULL is fine

uint32_t backends_count(const struct backends *s);
// Why no worker will come any more: the reason of the first rank, when every process of ours has failed for good and no
// other worker is there. NULL: not so.
const char *backends_given_up(const struct backends *s);
struct backend *backends_at(struct backends *s, uint32_t rank);

enum { BACKEND_FAULT_BYTES = 48 };
struct backend_info { // a snapshot; strings live until the next call on the loop
    uint32_t rank, generation;
    enum backend_state state;
    const char *name, *model, *reason, *version;
    const char *
        fault; // for clients, no path in it: why it is not there, in words of reason; NULL: no fault
    uint32_t pid;
    bool supervised;
    const char *gpu_name, *gpu_uuid, *gpu_pci;
    struct frame_fingerprint fingerprint;
    struct frame_status status;                 // the last one; zero before
    uint64_t since_ms, last_progress_ms, up_ms; // monotonic
    uint64_t restarts;
    uint64_t rounds, tokens; // as STATUS
    uint32_t streams_sent;   // submitted and not ended, as the router counts
    uint64_t frames_dropped; // of an old generation or an unknown type
};
void backend_info(const struct backend *b, struct backend_info *ret);
const char *backend_state_name(enum backend_state s);
bool backend_state_is_name(const char *name, size_t len);
uint32_t backend_rank(const struct backend *b);
enum backend_state backend_state(const struct backend *b);
// fingerprint_digest of what it runs.
void backend_kind(const struct backend *b, char ret[FINGERPRINT_DIGEST_BYTES]);
// When the last frame of it came, of this incarnation or the one that has just ended (monotonic).
uint64_t backend_heard_us(const struct backend *b);
// SUBMITs it would take now: the last STATUS's room less what was sent since.
uint32_t backend_room(const struct backend *b);

// ST_FULL: its send queue is over its byte limit or it has no room; ST_CLOSED: not ready. The frame is copied.
int backend_submit(struct backend *b, const struct frame_submit *s, struct err *e);
// Cannot fail and cannot be lost while the incarnation lives: cancels wait in a set that is merged into one frame.
void backend_cancel(struct backend *b, struct frame_stream s);
// Sends DRAIN. After FINISH and EXIT it takes no SUBMIT, whatever a STATUS under way says, until RESUME.
int backend_drain(struct backend *b, const struct frame_drain *d, struct err *e);
// Asks it to end in good order; from then on it stays STOPPED. Streams that it has are lost to it (on_lost).
void backend_stop(struct backend *b);
// Of an own rank whose process does not run: starts it, and forgets its failures.
void backend_start(struct backend *b);
// What it sent makes no sense: its incarnation ends (on_lost is called) and its process, if it is ours, is killed.
void backend_drop(struct backend *b, const char *reason);
