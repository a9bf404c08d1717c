/* server: the request loop with everything on it, from start to end (docs/map.md). main thread. */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include <sys/queue.h>
#include <uv.h>

#include "router/api_status.h"
#include "router/queue.h"

struct access_log;
struct admin;
struct apierr;
struct backends;
struct config;
struct control;
struct err;
struct keys;
struct listener;
struct metrics;
struct model;
struct ops;
struct proxies;
struct relay;
struct request;
struct snapshots;

enum { SERVER_WORKER_PORTS = 8 };

TAILQ_HEAD(request_list, request);

struct server {
    struct status_source status; // first: api_status reads it
    uv_loop_t loop;
    struct config *config; // in effect: reload.c replaces it; constant once the threads run
    struct model *model;
    struct metrics *metrics;
    struct snapshots *snapshots;
    struct access_log *access;
    struct keys *keys;
    struct proxies *proxies;
    struct listener *api; // the first of the next; NULL: closed
    struct listener *listeners[1 + SERVER_WORKER_PORTS];
    uint32_t listener_count;
    struct ops *ops;
    struct admin *admin;
    struct control *control;
    struct backends *backends;
    struct relay *relay;
    struct queue queue;
    struct request_list requests; // all that are not over
    uint32_t ranks;
    uint64_t no_ready_since_ms; // 0: a worker is ready
    bool ever_ready;
    bool draining;              // not ready any more: it ends, or an operator wants it so
    bool refusing;              // and new requests are turned away
    bool ending;                // it will not come back from it
    uint64_t operator_drain_ms; // an operator's drain began then; 0: none
    bool place_wanted;
};

// Signals that end or reload a server wait from here on until server_run hears them. The first thing of the process, before
// any thread.
void server_hold_signals(void);
// Runs until SIGTERM or SIGINT. spawn: `serve`, else `router`. c->workers is at least 1; c->run_dir is filled in.
// Returns the exit status.
int server_run(struct config *c, bool spawn);

// The snapshot as of now, for whoever reads it next.
void server_publish(struct server *s);
// An operator's drain of the whole router: not ready at once, new requests refused after drain.settle_s, and what still
// runs drain.timeout_s later fails; or its end.
// APIERR_CONFLICT: the router is ending.
int server_set_draining(struct server *s, bool on, struct apierr *e);
struct server_drain {
    bool draining, drained; // drained: nothing is left, and nothing new is taken
    bool ending;            // it drains because it ends
    uint64_t requests;      // in flight
};
void server_drain(const struct server *s, struct server_drain *ret);
void server_draining(const struct server *s, struct apierr *ret); // what a client is told
// Waiting requests are placed on workers with room before the loop sleeps next. From anywhere on the loop.
void server_want_place(struct server *s);
// The longest context of a worker that has said so, else the checkpoint's.
uint32_t server_context_max(const struct server *s);
uint32_t server_queue_requests_max(const struct server *s); // most requests that may wait
uint32_t server_ready_workers(const struct server *s);
bool server_worker_ready(const struct server *s, uint32_t rank);
// The error of a request that no worker is there for, with what has become of them.
void server_no_worker(const struct server *s, struct apierr *ret);
