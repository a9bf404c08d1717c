/* send: see send.h. */
#include "router/send.h"
#include "common/mem.h"
#include "common/mono.h"
#include "router/apierr.h"
#include "router/cors.h"
#include "router/http.h"
#include "router/listen.h"
#include "router/metrics.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

struct watch { // outlives the send until libuv has let go of it
    uv_poll_t poll;
    int fd;
    struct send *send; // NULL once the send is over
};

struct send {
    h2o_generator_t gen; // first: h2o hands it back
    h2o_req_t *req;
    struct http_call *call;
    struct send_set *set;
    struct send_events events;
    struct watch *watch;
    TAILQ_ENTRY(send) open_link, dirty_link, unread_link;
    struct strbuf buf[2];
    h2o_iovec_t fixed; // in place of both: what a whole reply is, and stays as it is
    int filling;       // index of the buffer that fills
    uint64_t sent_at_ms;
    size_t unread_bytes; // of the last write, while it is on the set's list; 0: it is not
    bool begun;          // h2o_start_response was called
    bool head_pending;   // and the headers have not been handed over yet
    bool in_flight;
    bool dirty;
    bool owned;   // events may be called
    bool final;   // the filling buffer is the last
    bool done;    // FINAL was handed over: h2o wants nothing more
    bool is_gone; // the client has gone
};

void send_set_init(struct send_set *set, uv_loop_t *loop, bool half_close) {
    *set = (struct send_set){
        .loop = loop, .half_close = half_close, .unread_bytes_max = SEND_UNREAD_BYTES_MAX};
    TAILQ_INIT(&set->open);
    TAILQ_INIT(&set->dirty);
    TAILQ_INIT(&set->unread);
}

static void on_watch_closed(uv_handle_t *h) {
    struct watch *w = h->data;
    close(w->fd);
    free(w);
}

static void stop_watch(struct send *s) {
    struct watch *w = s->watch;
    if (!w) return;
    s->watch = NULL;
    w->send = NULL;
    uv_poll_stop(&w->poll);
    uv_close((uv_handle_t *)&w->poll, on_watch_closed);
}

static void tell_gone(struct send *s) {
    if (!s->owned) return;
    s->owned = false;
    s->events.on_gone(s->events.arg);
}

static int socket_fd(struct send *s) {
    return h2o_socket_get_fd(s->req->conn->callbacks->get_socket(s->req->conn));
}

static void clean(struct send *s) {
    if (!s->dirty) return;
    s->dirty = false;
    TAILQ_REMOVE(&s->set->dirty, s, dirty_link);
}

static void forget_unread(struct send *s) {
    if (!s->unread_bytes) return;
    TAILQ_REMOVE(&s->set->unread, s, unread_link);
    s->set->unread_bytes -= s->unread_bytes;
    s->unread_bytes = 0;
}

// The request's pool is being cleared: the one way a send ends.
static void on_dispose(void *p) {
    struct send *s = p;
    if (!s->done && s->call->status == 0) s->call->status = 499;
    tell_gone(s);
    stop_watch(s);
    clean(s);
    TAILQ_REMOVE(&s->set->open, s, open_link);
    s->set->open_count--;
    forget_unread(s);
    strbuf_fini(&s->buf[0]);
    strbuf_fini(&s->buf[1]);
}

static void count_unread(struct send *s, size_t bytes) {
    if (!bytes) return;
    s->unread_bytes = bytes;
    s->set->unread_bytes += bytes;
    TAILQ_INSERT_TAIL(&s->set->unread, s, unread_link);
}

static void flush(struct send *s) {
    if (s->in_flight || s->done || !s->begun) return;
    struct strbuf *b = &s->buf[s->filling];
    if (!b->len && !s->final && !s->head_pending) return;
    bool fixed = s->fixed.base;
    h2o_iovec_t v = fixed ? s->fixed : h2o_iovec_init(b->p, b->len);
    s->filling ^= 1;
    strbuf_reset(&s->buf[s->filling]);
    s->head_pending = false;
    s->in_flight = true;
    s->sent_at_ms = mono_ms();
    s->call->bytes_out += v.len;
    if (s->final) {
        s->done = true;
        stop_watch(s);
        if (!fixed) count_unread(s, v.len);
        h2o_send(s->req, &v, v.len != 0, H2O_SEND_STATE_FINAL);
        return; // the request, and s with it, may be gone
    }
    h2o_send(s->req, &v, v.len != 0, H2O_SEND_STATE_IN_PROGRESS);
}

// Ends a reply that nobody reads any more, and its connection. The request, and s with it, may be gone behind it.
static void cut_off(struct send *s) {
    clean(s);
    s->done = true;
    h2o_send(s->req, NULL, 0, H2O_SEND_STATE_ERROR);
}

static void on_proceed(h2o_generator_t *g, h2o_req_t *req) {
    struct send *s = (struct send *)g;
    s->in_flight = false;
    s->sent_at_ms = mono_ms();
    if (s->is_gone) { // its last write got through all the same: nothing else would end the connection
        cut_off(s);
        return;
    }
    if (s->owned && s->events.on_room) s->events.on_room(s->events.arg);
    clean(s);
    flush(s);
}

static void on_stop(h2o_generator_t *g, h2o_req_t *req) {
    struct send *s = (struct send *)g;
    s->is_gone = true;
    if (s->call->status < 400) s->call->status = 499;
    tell_gone(s);
}

// The client's end of an HTTP/1 connection has closed. h2o reads nothing while a request is being answered and would
// notice only by a failing write.
static void on_client_gone(uv_poll_t *p, int status, int events) {
    struct watch *w = p->data;
    struct send *s = w->send;
    if (!s || (status == 0 && !(events & UV_DISCONNECT))) return;
    stop_watch(s);
    if (s->done) return;
    s->is_gone = true;
    s->call->status = 499;
    tell_gone(s);
    if (s->in_flight) {
        shutdown(socket_fd(s), SHUT_RDWR); // the write fails and h2o closes
        return;
    }
    s->req->http1_is_persistent = 0;
    strbuf_reset(&s->buf[s->filling]);
    clean(s);
    if (s->begun) {
        cut_off(s);
        return;
    }
    s->req->res.status = 499;
    s->req->res.reason = "Client Closed Request";
    s->req->res.content_length = 0;
    s->begun = s->final = true;
    h2o_start_response(s->req, &s->gen);
    flush(s);
}

static void start_watch(struct send *s) {
    if (s->req->version >= 0x200 || s->set->half_close) return; // HTTP/2 tells by itself
    int fd = fcntl(socket_fd(s), F_DUPFD_CLOEXEC, 3);
    if (fd < 0) return; // out of descriptors: the next failing write will tell
    struct watch *w = mem_calloc(1, sizeof *w);
    *w = (struct watch){.fd = fd, .send = s};
    if (uv_poll_init(s->set->loop, &w->poll, fd)) {
        close(fd);
        free(w);
        return;
    }
    w->poll.data = w;
    s->watch = w;
    uv_poll_start(&w->poll, UV_DISCONNECT, on_client_gone);
}

struct send *send_new(struct http_call *c, struct send_set *set, const struct send_events *events) {
    struct send *s = h2o_mem_alloc_shared(&c->req->pool, sizeof *s, on_dispose);
    *s = (struct send){.gen = {on_proceed, on_stop},
                       .req = c->req,
                       .call = c,
                       .set = set,
                       .sent_at_ms = mono_ms()};
    TAILQ_INSERT_TAIL(&set->open, s, open_link);
    set->open_count++;
    if (events) {
        s->events = *events;
        s->owned = true;
        start_watch(s);
    }
    return s;
}

/* ---- headers ---- */

const char *send_reason(int status) {
    static const struct {
        int status;
        const char *text;
    } phrases[] = {{200, "OK"},
                   {204, "No Content"},
                   {400, "Bad Request"},
                   {401, "Unauthorized"},
                   {403, "Forbidden"},
                   {404, "Not Found"},
                   {405, "Method Not Allowed"},
                   {408, "Request Timeout"},
                   {413, "Payload Too Large"},
                   {414, "URI Too Long"},
                   {415, "Unsupported Media Type"},
                   {429, "Too Many Requests"},
                   {431, "Request Header Fields Too Large"},
                   {500, "Internal Server Error"},
                   {503, "Service Unavailable"},
                   {504, "Gateway Timeout"},
                   {529, "Overloaded"}};
    for (size_t i = 0; i < sizeof phrases / sizeof *phrases; i++)
        if (phrases[i].status == status) return phrases[i].text;
    return "Status";
}

static void header(h2o_req_t *req, const char *name, const char *value) {
    h2o_iovec_t v = h2o_strdup(&req->pool, value, SIZE_MAX);
    h2o_add_header_by_str(&req->pool, &req->res.headers, name, strlen(name), 1, NULL, v.base,
                          v.len);
}

static void header_int(h2o_req_t *req, const char *name, int64_t value) {
    char text[24];
    snprintf(text, sizeof text, "%lld", (long long)value);
    header(req, name, text);
}

// Whole seconds, 1..60, and the exact figure beside it.
static void header_retry(h2o_req_t *req, uint32_t ms) {
    uint32_t s = (ms + 999) / 1000;
    header_int(req, "retry-after", s < 1 ? 1 : s > 60 ? 60 : s);
    header_int(req, "retry-after-ms", ms);
}

static void header_preflight(h2o_req_t *req) {
    h2o_iovec_t asked = http_header(req, "access-control-request-headers");
    header(req, "access-control-allow-methods", "GET, POST, OPTIONS");
    header(req, "access-control-max-age", "600");
    if (asked.len)
        h2o_add_header_by_str(&req->pool, &req->res.headers,
                              H2O_STRLIT("access-control-allow-headers"), 1, NULL, asked.base,
                              asked.len);
}

static void header_cors(h2o_req_t *req, const struct cors *cors, bool preflight) {
    if (!cors_on(cors)) return;
    h2o_iovec_t origin = http_header(req, "origin");
    header(req, "vary", "Origin");
    if (!origin.len || !cors_allows(cors, origin.base, origin.len)) return;
    if (cors->any) origin = h2o_iovec_init(H2O_STRLIT("*"));
    h2o_add_header_by_str(&req->pool, &req->res.headers, H2O_STRLIT("access-control-allow-origin"),
                          1, NULL, origin.base, origin.len);
    if (preflight)
        header_preflight(req);
    else
        header(req, "access-control-expose-headers",
               "X-Request-Id, Retry-After, retry-after-ms, x-should-retry, openai-processing-ms, "
               "X-Railyard-Worker, X-Railyard-Queue-Ms, X-Railyard-First-Token-Ms");
}

static void set_head(struct send *s, const struct send_head *h, size_t length) {
    h2o_req_t *req = s->req;
    if (h->status == 204) length = SIZE_MAX; // must not have one
    req->res.status = h->status;
    req->res.reason = send_reason(h->status);
    req->res.content_length = length;
    if (h->content_type) header(req, "content-type", h->content_type);
    header(req, "x-request-id", s->call->request_id);
    if (h->stream) {
        header(req, "cache-control", "no-cache");
        header(req, "x-accel-buffering", "no");
    }
    if (h->allow) header(req, "allow", h->allow);
    if (h->status == 401) header(req, "www-authenticate", "Bearer");
    header_cors(req, listener_cors(s->call->listener), h->preflight);
    if (h->retry_after_ms) header_retry(req, h->retry_after_ms);
    if (h->no_retry) header(req, "x-should-retry", "false");
    if (h->worker >= 0) header_int(req, "x-railyard-worker", h->worker);
    if (h->queue_ms >= 0) header_int(req, "x-railyard-queue-ms", h->queue_ms);
    if (h->first_token_ms >= 0) header_int(req, "x-railyard-first-token-ms", h->first_token_ms);
    if (h->processing_ms >= 0) header_int(req, "openai-processing-ms", h->processing_ms);
    if (listener_is_closing(s->call->listener)) req->http1_is_persistent = 0;
    s->call->status = h->status;
}

/* ---- whole replies ---- */

// HEAD: the length that GET's body has, and no body; h2o leaves that to the handler.
static bool wants_body(const struct send *s) {
    return !h2o_memis(s->req->method.base, s->req->method.len, H2O_STRLIT("HEAD"));
}

// Head and body, which the caller has put in its place, at once.
static void send_all(struct send *s, const struct send_head *h, size_t len) {
    s->owned = false;
    set_head(s, h, len);
    s->begun = s->final = true;
    h2o_start_response(s->req, &s->gen);
    clean(s);
    flush(s);
}

void send_whole(struct send *s, const struct send_head *h, const char *body, size_t len) {
    assert(!s->begun && !s->final);
    strbuf_reset(&s->buf[s->filling]);
    if (wants_body(s)) strbuf_add(&s->buf[s->filling], body, len);
    send_all(s, h, len);
}

void send_error(struct send *s, const struct apierr *e) {
    struct strbuf body = {0};
    apierr_body(e, s->call->request_id, &body);
    int status = apierr_status(e->code);
    s->call->facts.code = apierr_name(e->code);
    metrics_error(listener_metrics(s->call->listener), e->code);
    if (status == 429) status = listener_overload_status(s->call->listener);
    send_whole(s,
               &SEND_HEAD(.status = status, .content_type = "application/json",
                          .retry_after_ms = e->retry_after_ms,
                          .no_retry = apierr_no_retry(e->code)),
               body.p, body.len);
    strbuf_fini(&body);
}

void send_reply(struct http_call *c, const struct send_head *h, const char *body, size_t len) {
    send_whole(send_new(c, listener_sends(c->listener), NULL), h, body, len);
}

void send_reply_fixed(struct http_call *c, const struct send_head *h, const char *body,
                      size_t len) {
    struct send *s = send_new(c, listener_sends(c->listener), NULL);
    if (wants_body(s)) s->fixed = h2o_iovec_init(body, len);
    send_all(s, h, len);
}

void send_reply_error(struct http_call *c, const struct apierr *e) {
    send_error(send_new(c, listener_sends(c->listener), NULL), e);
}

/* ---- streams ---- */

void send_begin(struct send *s, const struct send_head *h) {
    assert(!s->begun);
    set_head(s, h, SIZE_MAX);
    s->begun = s->head_pending = true;
    h2o_start_response(s->req, &s->gen);
    send_touch(s);
}

bool send_begun(const struct send *s) {
    return s->begun;
}

struct strbuf *send_buffer(struct send *s) {
    assert(!s->final);
    return &s->buf[s->filling];
}

void send_touch(struct send *s) {
    if (s->dirty) return;
    s->dirty = true;
    TAILQ_INSERT_TAIL(&s->set->dirty, s, dirty_link);
}

size_t send_waiting_bytes(const struct send *s) {
    return s->buf[s->filling].len;
}

uint64_t send_last_ms(const struct send *s) {
    return s->sent_at_ms;
}

void send_end(struct send *s) {
    assert(s->begun && !s->final);
    s->owned = false;
    s->final = true;
    send_touch(s);
}

void send_set_flush(struct send_set *set) {
    struct send *s;
    while ((s = TAILQ_FIRST(&set->dirty))) {
        clean(s);
        flush(s);
    }
}

// Of a reply whose client takes nothing: h2o lets go of it when it sees that the connection has ended.
static void cut_unread(struct send *s) {
    if (s->call->status < 400) {
        s->call->status = 499;
        s->call->facts.code = apierr_name(APIERR_CLIENT_CLOSED);
    }
    shutdown(socket_fd(s), SHUT_RDWR);
}

static void bound_unread(struct send_set *set, uint64_t now_ms) {
    struct send *s;
    while (set->unread_bytes > set->unread_bytes_max && (s = TAILQ_FIRST(&set->unread))) {
        if (mono_since(s->sent_at_ms, now_ms) < SEND_UNREAD_AGE_MS) return;
        cut_unread(s);
        forget_unread(s);
    }
}

void send_set_sweep(struct send_set *set, uint64_t now_ms, uint64_t stall_ms) {
    struct send *s;
    bound_unread(set, now_ms);
    TAILQ_FOREACH(s, &set->open, open_link)
    if (s->in_flight && mono_since(s->sent_at_ms, now_ms) > stall_ms) cut_unread(s);
}
