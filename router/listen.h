/* listen: one listening address with its loop's h2o context: accepts, keeps the list of connections, cuts the slow
 * and the idle, and winds down. Every call on the loop's thread. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <uv.h>

#include "router/cors.h"

struct err;
struct http_call;
struct http_endpoint;
struct keys;
struct listener; // defined in listen.c
struct metrics;
struct proxies;
struct send_set;

enum {
    HTTP_BODY_SLACK_BYTES = 256 << 10
}; // h2o's limit of a body is that much higher: more than one read of an HTTP/2 connection

struct http_limits {
    size_t head_bytes_max, fields_max, uri_bytes_max, body_bytes_max;
};

struct listener_config {
    uv_loop_t *loop;
    const char *address; // HOST:PORT (port 0: any free one) or unix:/path
    bool inherited;      // the socket is there already, and address says nothing
    int fd;              // then; ours from now on
    void *app;           // given to handlers
    const struct http_endpoint *endpoints;
    size_t endpoint_count;
    struct metrics *metrics;
    // A request is over (answered or abandoned): for the access log. May be NULL.
    void (*on_call_over)(void *app, struct http_call *c);
    struct http_limits limits;
    size_t bodies_bytes_max; // of bodies still coming, on all connections
    double header_s, body_s, keepalive_s, write_stall_s;
    double body_rate_min, body_rate_after_s; // bytes a second, measured over so long
    uint32_t h2_streams_max, h2_resets_max;
    uint32_t connections_max;
    bool half_close;
    const char *tls_cert, *tls_key; // files; NULL or "": plain text
    struct keys *keys;
    const struct proxies *proxies; // NULL: none is trusted
    int32_t rank;                  // what comes by it runs on this worker; -1: on any
    struct cors cors;
    bool metrics_auth;
    int overload_status; // of full queues: 429, 503 or 529
};

// A failure leaves a handle to close: the loop must turn once more.
int listener_new(struct listener **ret, const struct listener_config *c, struct err *e);
const char *listener_url(const struct listener *l); // "http://127.0.0.1:8000", "unix:/path"
struct send_set *listener_sends(struct listener *l);
const struct http_limits *listener_limits(const struct listener *l);
struct keys *listener_keys(const struct listener *l);
const struct cors *listener_cors(const struct listener *l);
bool listener_metrics_auth(const struct listener *l);
// Reads certificate and key again, for new connections. A failure leaves the old ones.
int listener_reload_tls(struct listener *l, struct err *e);
void listener_share_tls(struct listener *l, const struct listener *from); // what another one has
struct metrics *listener_metrics(const struct listener *l);
bool listener_is_local(const struct listener *l); // a loopback address or a unix socket
const struct proxies *listener_proxies(const struct listener *l);
int32_t listener_rank(const struct listener *l);
int listener_overload_status(const struct listener *l);
// Each HTTP/1 reply ends its connection while on: clients dial anew, and a balancer sends them elsewhere.
void listener_set_closing(struct listener *l, bool on);
bool listener_is_closing(const struct listener *l); // or draining
uint32_t listener_connections(const struct listener *l);

// In the order of a drain: replies say that the connection closes and HTTP/2 gets GOAWAY; no more connections and the
// idle ones end; every connection ends now.
void listener_drain(struct listener *l);
void listener_stop(struct listener *l);
void listener_cut(struct listener *l);
// Gives everything back: connections must be none (listener_connections), then the loop must turn until closed is called. h2o turns
// it within: whatever runs on it must not know the listener any more, and closed may be called before this returns.
void listener_close(struct listener *l, void (*closed)(void *arg), void *arg);

/* For http.c, in conn.c: a request begins and ends on a connection. */
struct conn;
struct conn *conn_of(struct http_call *c);
void conn_call_begin(struct conn *conn, struct http_call *c);
void conn_call_end(struct conn *conn, struct http_call *c);
// Why this request was refused before h2o saw it, or before it saw all of it: one of the method CONN_REFUSED_METHOD stands in
// its place, or it stands there itself, without its body. NULL: it was not.
const struct apierr *conn_refusal(const struct conn *conn, const struct http_call *call);
// What this request is to be answered with, whatever it asks; NULL: nothing of the kind.
const struct apierr *conn_early(const struct conn *conn);
#define CONN_REFUSED_METHOD "REFUSED"
const char *conn_remote(const struct conn *conn); // the peer, not who stands behind it
bool conn_is_proxy(const struct conn *conn);      // a trusted one
