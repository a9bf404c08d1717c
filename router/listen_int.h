/* listen_int: what listen.c and conn.c share: the listener and its connections. For these two files alone. */
#pragma once
#include <h2o.h>
#include <sys/queue.h>
#include <uv.h>

#include "router/apierr.h"
#include "router/h1scan.h"
#include "router/h2heads.h"
#include "router/listen.h"
#include "router/send.h"

enum { CONN_SWEEP_MS = 250, CONN_REMOTE_BYTES = 72, LISTEN_URL_BYTES = 160 };

struct conn {
    struct listener *listener;
    h2o_socket_t *sock;
    uv_stream_t *stream; // sock's
    TAILQ_ENTRY(conn) link, unhooked_link;
    // h2o's own reader, which conn.c stands in front of.
    h2o_socket_cb inner;
    bool
        unhooked; // on the listener's list: h2o has stopped to read, or has put its own reader back
    bool *gone;   // set when the connection goes while its reader runs
    struct h1scan scan;
    struct h2heads packed;
    const struct apierr *early_answer; // the answer to the request that is being dispatched
    struct h2ignore *ignored; // HTTP/2: streams answered before their body came; NULL: none yet
    struct apierr *refused;   // why nothing more is read; NULL: it is read
    uint64_t read_bytes;      // in all
    struct timeval connected_at;
    bool shaking;  // hands, over TLS
    uint32_t busy; // requests in handlers
    uint64_t idle_since_ms;
    bool is_http2, is_proxy;
    bool was_cut;
    uint32_t lost_writes; // sweeps that found a write which will never end
    uint32_t resets;      // of HTTP/2 streams, since resets_since_ms
    uint64_t resets_since_ms;
    // What the sweep found last.
    uint32_t heads, bodies;   // requests whose head, whose body is still coming
    bool is_late;             // one of them is past its time
    bool is_large;            // HTTP/2: one of the bodies is over its limit
    uint64_t bodies_since_ms; // 0: none is coming
    uint64_t rate_since_ms;   // of the rate that is being measured
    uint64_t rate_bytes;      // read until then
    uint64_t body_bytes;      // HTTP/2: of the bodies so far
    uint64_t held_bytes;      // HTTP/2: of them and their heads, in memory
    uint64_t base_bytes;      // HTTP/2: read, and in no body that is still coming
    char remote[CONN_REMOTE_BYTES];
};
TAILQ_HEAD(conn_list, conn);
TAILQ_HEAD(unhooked_list, conn);

struct listener {
    struct listener_config config;
    h2o_globalconf_t global;
    h2o_context_t ctx;
    h2o_accept_ctx_t accept_ctx;
    struct ssl_ctx_st *tls; // NULL: plain text
    union {
        uv_handle_t handle;
        uv_stream_t stream;
        uv_tcp_t tcp;
        uv_pipe_t pipe;
    } socket;
    uv_timer_t sweep;
    uv_prepare_t prepare;
    struct conn_list conns;
    struct unhooked_list unhooked;
    uint32_t conn_count;
    bool accept_paused;     // at connections_max: one connection waits to be accepted
    uint64_t full_since_ms; // 0: there is room
    bool draining, stopped;
    bool closing_replies; // as listener_set_closing
    struct send_set sends;
    char url[LISTEN_URL_BYTES];
    bool is_unix;
    char *unix_path;  // of a socket file that we made; else NULL
    unsigned closing; // handles not closed yet
    void (*closed)(void *arg);
    void *closed_arg;
};

void conn_take(struct listener *l, uv_stream_t *stream);
void conn_hook(struct listener *l); // before the loop sleeps
void conn_cut(struct conn *c);
void conn_cut_idle(struct listener *l); // those of HTTP/1 between two requests
void conn_sweep(uv_timer_t *t);
// Writes a whole HTTP/1.1 error to a plain-text socket on which no reply is under way, as far as it goes at once.
void conn_answer_fd(int fd, enum apierr_code code, const char *why, struct metrics *m);
// After connections have ended: lets a waiting one in, or turns it away when it has waited long enough.
void listener_room(struct listener *l, uint64_t now_ms);
