/* backend_int: what the three files of the backends share. See backend.h for what they do together:
 * backend.c the set and what is asked of it; backend_join.c from HELLO to the last frame of an incarnation;
 * backend_watch.c health, processes, the end. Loop thread only. */
#pragma once
#include "common/arena.h"
#include "router/backend.h"
#include "router/child.h"
#include "router/health.h"
#include "router/inbox.h"
#include "router/restart.h"

struct lobby;
struct peer;

enum {
    BACKEND_TICK_MS = 200,
    BACKEND_PING_MS = 1000,
    BACKEND_REASON_BYTES = 512,
    BACKEND_URL_BYTES = 160,
    BACKEND_GUEST_LINGER_MS = 1000, // at stop: a guest gets that long to take its GOODBYE
    BACKEND_CLOSE_MS = 5000,        // at stop: sockets get that long beyond the grace to close
    BACKEND_DIAL_MS = 5000,         // from WELCOME to the worker's connection
    BACKEND_ORPHAN_MS = 5000, // a process of ours whose incarnation is over gets that long to end
};

struct backend {
    struct backends *set;
    uint32_t rank;
    bool own; // the router starts this rank's process
    enum backend_state state;
    uint64_t since_ms;
    char reason[BACKEND_REASON_BYTES];
    char fault[BACKEND_FAULT_BYTES]; // as backend_info's; "": none
    enum backend_failure failure;    // why we are about to end it; COUNT: we are not
    uint64_t restarts, frames_dropped;

    // The incarnation; peer NULL: none.
    struct peer *peer;
    bool up; // the worker has dialled its socket
    uint32_t generation;
    char url[BACKEND_URL_BYTES];
    struct arena hello_arena;
    struct frame_hello hello; // zero before the first
    uint64_t joined_ms;
    uint64_t heard_us; // its last frame
    bool said_goodbye;
    bool exit_asked; // to stay down: its end is no failure
    bool drain_asked;
    struct arena status_arena;
    struct frame_status status; // the last one of this incarnation
    struct frame_stream *live;  // submitted and not ended
    uint32_t live_count, live_cap;

    struct health health;      // on the set's own clock: turned_ms
    uint64_t last_progress_ms; // mono, for people

    // The process of an own rank.
    struct child child;
    struct restart restart;
    uint64_t started_ms, start_at_ms; // start_at_ms 0: not waiting to start
    uint64_t lost_ms; // when the incarnation ended while the process went on; 0: it did not
};

struct backends {
    struct backends_config c;
    char lobby_url[BACKEND_URL_BYTES];
    struct inbox inbox;
    struct lobby *lobby;
    uv_timer_t tick;
    uint64_t router_epoch;
    uint64_t turned_ms,
        last_tick_ms;     // turned_ms: time during which the loop turned; stalls count little
    struct arena scratch; // of the frame being handled
    uint32_t closing;     // sockets and the lobby, on their way
    char refusal[BACKEND_REASON_BYTES]; // the text of the last FAIL to a HELLO
    bool stopping, stopped;
    bool abandoned; // a socket did not close in time: what it may still touch is not freed
    uint64_t stop_by_ms, guests_by_ms; // mono
    void (*done)(void *arg);
    void *done_arg;
    uint32_t count;
    struct backend b[];
};

// backend.c
void backend_set_state(struct backend *b, enum backend_state state);
void backend_set_reason(struct backend *b, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));
bool backend_forget_stream(struct backend *b, struct frame_stream s); // false: it was not live

// backend_join.c
void backend_on_hello(void *arg, const struct frame_hello *h, struct frame *answer);
// The incarnation is over: socket closed, streams forgotten, on_lost called; next is the state then. Nothing when there
// is none. A process of ours is expected to end by itself, so its next is BACKOFF until its exit says more.
void backend_lose(struct backend *b, const char *reason, enum backend_state next);

// backend_watch.c
void backend_drop_as(struct backend *b, enum backend_failure why, const char *reason);
void backend_failed(struct backend *b, enum backend_failure why); // tells on_failed, once
int backend_start_process(struct backend *b, struct err *e);
void backend_on_tick(uv_timer_t *t);
void backend_after_close(void *set); // a socket has closed; the stop may be complete
