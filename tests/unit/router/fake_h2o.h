/* fake_h2o: h2o's side of a reply, for tests of what router/send.c does: it takes one send at a time, does not copy
 * the bytes, asks for more (fake_proceed), goes away (fake_reset), and complains when a rule is broken. The functions
 * stand in for those of libh2o and of router/listen.c. */
#pragma once
#include <h2o.h>
#include <stdlib.h>
#include <string.h>

#include "common/strbuf.h"
#include "router/http.h"
#include "router/listen.h"
#include "router/metrics.h"
#include "router/send.h"
#include "tests/lib/test.h"

struct fake {
    h2o_req_t req;
    h2o_conn_t conn;
    struct http_call *call;
    struct strbuf body; // what the client has
    h2o_iovec_t flying; // bytes handed over and not asked behind yet
    char *flying_copy;  // as they were when handed over
    bool started, in_flight, final, error, disposed;
    unsigned sends, empty_sends;
};

static struct send_set fake_sends;
static struct metrics *fake_metrics;
static bool fake_draining;
static int32_t fake_rank = -1; // whose port the next request comes by
static bool fake_from_proxy;   // and from a trusted proxy
static int fake_last_status;   // of the call that was disposed of last

static struct fake *fake_of(h2o_req_t *req) {
    return (struct fake *)req;
}

void h2o_start_response(h2o_req_t *req, h2o_generator_t *generator) {
    struct fake *f = fake_of(req);
    CHECK(!f->started);
    f->started = true;
    req->_generator = generator;
}

void h2o_send(h2o_req_t *req, h2o_iovec_t *bufs, size_t bufcnt, h2o_send_state_t state) {
    struct fake *f = fake_of(req);
    CHECK(f->started);
    CHECK(!f->in_flight); // h2o ends the process
    CHECK(!f->final && !f->error);
    CHECK(bufcnt <= 1);
    f->sends++;
    f->flying = bufcnt ? bufs[0] : h2o_iovec_init(NULL, 0);
    // An empty send is for the headers alone: later ones are not answered over HTTP/2.
    if (state == H2O_SEND_STATE_IN_PROGRESS && !f->flying.len) CHECK_EQ(f->sends, 1);
    f->flying_copy = malloc(f->flying.len + 1);
    if (f->flying.len) memcpy(f->flying_copy, f->flying.base, f->flying.len);
    f->in_flight = true;
    f->final = state == H2O_SEND_STATE_FINAL;
    f->error = state == H2O_SEND_STATE_ERROR;
    if (f->final || f->error) req->_generator = NULL;
}

// The bytes have been written. True: the reply is over.
static bool fake_proceed(struct fake *f) {
    CHECK(f->in_flight);
    if (f->flying.len)
        CHECK_MEM(f->flying.base, f->flying_copy, f->flying.len); // unmoved, unchanged
    strbuf_add(&f->body, f->flying_copy, f->flying.len);
    free(f->flying_copy);
    f->flying_copy = NULL;
    f->in_flight = false;
    if (f->final || f->error) return true;
    f->req._generator->proceed(f->req._generator, &f->req);
    return false;
}

static void fake_end(struct fake *f) {
    if (f->disposed) return;
    f->disposed = true;
    h2o_mem_clear_pool(&f->req.pool);
    free(f->flying_copy);
    f->flying_copy = NULL;
}

// The stream is reset or its connection is gone.
static void fake_reset(struct fake *f) {
    if (f->req._generator && f->req._generator->stop)
        f->req._generator->stop(f->req._generator, &f->req);
    f->req._generator = NULL;
    fake_end(f);
}

static void fake_call_over(void *call) {
    fake_last_status = ((const struct http_call *)call)->status;
}

static void fake_init(struct fake *f, void *app) {
    memset(f, 0, sizeof *f);
    h2o_mem_init_pool(&f->req.pool);
    f->req.conn = &f->conn;
    f->req.version = 0x200; // no watch on a descriptor
    f->req.res.content_length = SIZE_MAX;
    f->call = h2o_mem_alloc_shared(&f->req.pool, sizeof *f->call, fake_call_over);
    *f->call = (struct http_call){.req = &f->req, .app = app, .begun_us = 1000};
    strcpy(f->call->request_id, "req_test");
}

static void fake_fini(struct fake *f) {
    fake_end(f);
    strbuf_fini(&f->body);
}

static inline const char *fake_header(const struct fake *f, const char *name) {
    ssize_t i = h2o_find_header_by_str(&f->req.res.headers, name, strlen(name), -1);
    return i < 0 ? NULL : f->req.res.headers.entries[i].value.base;
}

struct send_set *listener_sends(struct listener *l) {
    return &fake_sends;
}
bool listener_is_closing(const struct listener *l) {
    return fake_draining;
}
int listener_overload_status(const struct listener *l) {
    return 429;
}
struct metrics *listener_metrics(const struct listener *l) {
    return fake_metrics;
}
static struct cors fake_cors;
const struct cors *listener_cors(const struct listener *l) {
    return &fake_cors;
}
const struct http_limits *listener_limits(const struct listener *l) {
    static const struct http_limits limits = {32 << 10, 100, 8 << 10, 1 << 20};
    return &limits;
}
struct keys *listener_keys(const struct listener *l) {
    return NULL;
}
bool listener_metrics_auth(const struct listener *l) {
    return false;
}
bool listener_is_local(const struct listener *l) {
    return true;
}
int32_t listener_rank(const struct listener *l) {
    return fake_rank;
}
const struct proxies *listener_proxies(const struct listener *l) {
    return NULL;
}
const char *conn_remote(const struct conn *conn) {
    return "127.0.0.1:1";
}
bool conn_is_proxy(const struct conn *conn) {
    return fake_from_proxy;
}
struct conn *conn_of(struct http_call *c) {
    return NULL;
}
void conn_call_begin(struct conn *conn, struct http_call *c) {}
void conn_call_end(struct conn *conn, struct http_call *c) {}
const struct apierr *conn_early(const struct conn *conn) {
    return NULL;
}
const struct apierr *conn_refusal(const struct conn *conn, const struct http_call *call) {
    return NULL;
}
