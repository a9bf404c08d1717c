/* listen: one listening address with its loop's h2o context: accepts, keeps the list of connections, cuts the slow
 * and the idle, and winds down. Every call on the loop's thread. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <uv.h>

struct err;
struct http_call;
struct http_endpoint;
struct listener; // defined in listen.c
struct metrics;
struct send_set;

struct listener_config {
    uv_loop_t *loop;
    const char *address; // HOST:PORT (port 0: any free one) or unix:/path
    void *app;           // given to handlers
    const struct http_endpoint *endpoints;
    size_t endpoint_count;
    struct metrics *metrics;
    // A request is over (answered or abandoned): for the access log. May be NULL.
    void (*on_call_over)(void *app, struct http_call *c);
    size_t body_bytes_max;
    double header_s, body_s, keepalive_s, write_stall_s;
    uint32_t connections_max;
    bool half_close;
    int overload_status; // of full queues: 429, 503 or 529
};

// A failure leaves a handle to close: the loop must turn once more.
int listener_new(struct listener **ret, const struct listener_config *c, struct err *e);
const char *listener_url(const struct listener *l); // "http://127.0.0.1:8000", "unix:/path"
struct send_set *listener_sends(struct listener *l);
size_t listener_body_bytes_max(const struct listener *l);
struct metrics *listener_metrics(const struct listener *l);
bool listener_is_local(const struct listener *l); // a loopback address or a unix socket
int listener_overload_status(const struct listener *l);
bool listener_is_draining(const struct listener *l);
uint32_t listener_connections(const struct listener *l);

// In the order of a drain: replies say that the connection closes and HTTP/2 gets GOAWAY; no more connections and the
// idle ones end; every connection ends now.
void listener_drain(struct listener *l);
void listener_stop(struct listener *l);
void listener_cut(struct listener *l);
// Gives everything back: connections must be none (listener_connections), then the loop must turn until closed is called.
void listener_close(struct listener *l, void (*closed)(void *arg), void *arg);

/* For http.c: a request begins and ends on a connection. */
struct conn;
struct conn *conn_of(struct http_call *c);
void conn_call_begin(struct conn *conn);
void conn_call_end(struct conn *conn, struct http_call *c);
const char *conn_remote(const struct conn *conn);
