/* conn: the connections of a listener: what each is doing, and the sweep that has all the time limits h2o has no timer
 * for: heads, bodies and their rate, idling, stalled writes, stream resets, bytes of bodies in all (docs/http.md).
 *
 * h2o tells nobody that a request has begun, so the sweep asks it, every CONN_SWEEP_MS. Loop thread. */
#include "common/log.h"
#include "common/mem.h"
#include "common/mono.h"
#include "common/num.h"
#include "common/strbuf.h"
#include "router/h2early.h"
#include "router/h2ignore.h"
#include "router/http.h"
#include "router/listen_int.h"
#include "router/metrics.h"
#include "router/nonce.h"
#include "router/proxies.h"

#include <arpa/inet.h>
#include <errno.h>
#include <h2o/http1.h>
#include <h2o/http2.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>

enum {
    BUSY_SWEEP_MS = 25, // while the bodies' bytes are near their limit
    RESETS_WINDOW_MS = 10000,
    H2_IDLE_GRACE_MS = 5000, // h2o says GOAWAY first
    DROPS_MAX = 64,
    LOST_SWEEPS = 3, // a write that has ended may still have to be told
};

void conn_cut(struct conn *c) {
    c->was_cut = true;
    shutdown(h2o_socket_get_fd(c->sock), SHUT_RDWR);
}

static void on_conn_closed(void *data) {
    struct conn *c = data;
    struct listener *l = c->listener;
    if (c->gone) *c->gone = true;
    if (c->unhooked) TAILQ_REMOVE(&l->unhooked, c, unhooked_link);
    TAILQ_REMOVE(&l->conns, c, link);
    l->conn_count--;
    metrics_connections(l->config.metrics, c->is_http2, -1);
    free(c->refused);
    free(c->ignored);
    free(c);
}

static void name_remote(struct conn *c, const uv_stream_t *stream) {
    const struct proxies *proxies = c->listener->config.proxies;
    struct sockaddr_storage sa;
    int len = sizeof sa;
    char ip[INET6_ADDRSTRLEN];
    strcpy(c->remote, "unix");
    if (stream->type != UV_TCP) {
        c->is_proxy = proxies && proxies_trust(proxies, NULL);
        return;
    }
    strcpy(c->remote, "unknown");
    if (uv_tcp_getpeername((const uv_tcp_t *)stream, (struct sockaddr *)&sa, &len)) return;
    c->is_proxy = proxies && proxies_trust(proxies, (struct sockaddr *)&sa);
    const struct sockaddr_in *v4 = (const struct sockaddr_in *)&sa;
    const struct sockaddr_in6 *v6 = (const struct sockaddr_in6 *)&sa;
    if (sa.ss_family == AF_INET) {
        uv_ip4_name(v4, ip, sizeof ip);
        snprintf(c->remote, sizeof c->remote, "%s:%d", ip, ntohs(v4->sin_port));
    } else {
        uv_ip6_name(v6, ip, sizeof ip);
        snprintf(c->remote, sizeof c->remote, "[%s]:%d", ip, ntohs(v6->sin6_port));
    }
}

static void note_http2(struct conn *c) {
    if (c->is_http2) return;
    c->is_http2 = true;
    metrics_connections(c->listener->config.metrics, false, -1);
    metrics_connections(c->listener->config.metrics, true, 1);
}

/* ---- HTTP/2 bodies over the limit ---- */

static bool is_large(const h2o_req_t *req, size_t max) {
    size_t announced, bytes = h2early_bytes(req, &announced);
    return bytes > max || (announced != SIZE_MAX && announced > max);
}

struct large {
    const struct conn *conn;
    size_t max;
    h2o_req_t *found;
};

static int look_for_large(h2o_req_t *req, void *arg) {
    struct large *k = arg;
    const struct conn *c = req->conn->callbacks->get_socket(req->conn)->on_close.data;
    if (c != k->conn || req->processed_at.at.tv_sec || !is_large(req, k->max)) return 0;
    k->found = req;
    return 1;
}

// Of this connection. h2o would reset their streams as refused; answered they are told what is wrong.
static void answer_large(struct conn *c) {
    struct listener *l = c->listener;
    struct large k = {.conn = c, .max = l->config.limits.body_bytes_max};
    struct apierr e;
    while (l->global.http2.callbacks.foreach_request(&l->ctx, look_for_large, &k)) {
        size_t announced, bytes = h2early_bytes(k.found, &announced);
        apierr_set(&e, APIERR_BODY_TOO_LARGE, NULL, "the body must have at most %zu bytes, got %zu",
                   k.max, announced != SIZE_MAX && announced > bytes ? announced : bytes);
        c->early_answer = &e;
        if (!c->ignored) c->ignored = mem_calloc(1, sizeof *c->ignored);
        h2ignore_add(c->ignored, h2early_dispatch(k.found));
        c->early_answer = NULL;
    }
}

// What still comes of bodies that have been answered.
static void drop_ignored(struct conn *c) {
    h2o_buffer_t *in = c->sock->input;
    size_t taken;
    uint32_t id, bytes;
    bool reset;
    in->size = h2ignore_take(c->ignored, in->bytes, in->size, &taken);
    if (!taken) return;
    c->base_bytes += taken;
    h2early_credit(c->sock, 0, (uint32_t)taken);
    while (h2ignore_next(c->ignored, &id, &bytes, &reset)) {
        if (reset)
            h2early_reset(c->sock, id);
        else
            h2early_credit(c->sock, id, bytes);
    }
}

const struct apierr *conn_early(const struct conn *conn) {
    return conn->early_answer;
}

/* ---- ahead of h2o's reader ---- */

static void put_aside(struct conn *c) {
    if (c->unhooked) return;
    c->unhooked = true;
    TAILQ_INSERT_TAIL(&c->listener->unhooked, c, unhooked_link);
}

// In place of the head that was refused a request stands that http.c answers with the refusal: in its turn, and over
// TLS too. h2o looks for the end of a head only behind what it has seen of it, so this one is no shorter.
static void stand_in(struct conn *c, size_t at, size_t seen) {
    static const char head[] = CONN_REFUSED_METHOD " / HTTP/1.1\r\nhost: x\r\nx: ",
                      end[] = "\r\n\r\n";
    size_t fixed = sizeof head - 1 + sizeof end - 1;
    size_t fill = seen > fixed ? seen - fixed : 0;
    c->sock->input->size = at;
    h2o_iovec_t room = h2o_buffer_reserve(&c->sock->input, fixed + fill);
    if (!room.base) return; // no memory: the sweep cuts it
    memcpy(room.base, head, sizeof head - 1);
    memset(room.base + sizeof head - 1, 'x', fill);
    memcpy(room.base + sizeof head - 1 + fill, end, sizeof end - 1);
    c->sock->input->size += fixed + fill;
}

// What h2o must not act on in a head whose body is not taken: the client is neither asked for it nor upgraded.
static void spoil_field(char *line, size_t len) {
    static const char *const names[] = {"expect:", "upgrade:", "http2-settings:"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        size_t n = strlen(names[i]);
        if (len >= n && !strncasecmp(line, names[i], n)) line[0] = 'x';
    }
}

// The head stands, for its key, its origin and the log; its body is none.
static void take_body_away(struct conn *c, size_t at, size_t len) {
    char *head = c->sock->input->bytes + at, *end = head + len;
    memset(head + c->scan.length_at, '0', c->scan.length_len);
    for (char *line = head, *nl; line < end && (nl = memchr(line, '\n', (size_t)(end - line)));
         line = nl + 1)
        spoil_field(line, (size_t)(nl - line));
    c->sock->input->size = at + len;
}

// As below. What is not handed on ends with the connection.
static bool look_over_http2(struct conn *c, size_t fresh) {
    h2o_buffer_t *in = c->sock->input;
    // h2o, having said GOAWAY, would look at the rest of a head for ever.
    bool stuck = c->packed.open && h2early_ending(c->sock);
    if (stuck || h2heads_take(&c->packed, in->bytes + in->size - fresh, fresh,
                              &c->listener->config.limits)) {
        if (!stuck)
            log_warn("head", "remote=%s fields=%u bytes=%llu", c->remote, c->packed.fields,
                     (unsigned long long)c->packed.bytes);
        in->size -= fresh;
        conn_cut(c);
        return false;
    }
    if (c->ignored) drop_ignored(c);
    return true;
}

// The last bytes of the input are new. False: h2o has nothing to learn of them.
static bool look_over(struct conn *c, size_t fresh) {
    h2o_buffer_t *in = c->sock->input;
    struct apierr e;
    size_t good;
    if (c->is_http2) return look_over_http2(c, fresh);
    if (c->refused) { // nothing behind it is a request
        in->size -= fresh;
        return false;
    }
    if (!h1scan_take(&c->scan, in->bytes, in->size, fresh, &c->listener->config.limits, &good,
                     &e)) {
        if (c->scan.state != H1SCAN_HTTP2) return true;
        note_http2(c);
        return look_over_http2(c, in->size); // it began with the connection
    }
    c->refused = mem_alloc(sizeof e);
    *c->refused = e;
    size_t bad_at = in->size - fresh + good;
    if (c->scan.body_refused)
        take_body_away(c, bad_at + 1 - c->scan.seen, c->scan.seen);
    else if (c->scan.head_refused)
        stand_in(c, bad_at + 1 - c->scan.seen, c->scan.seen);
    else
        in->size = bad_at; // conn_hook ends it as soon as what is in front of it has been answered
    return true;
}

static void hook(struct conn *c);

// Behind a read that filled its buffer to the last byte libuv reads once more, and when nothing is there yet it says so:
// over TLS h2o takes that for a read that failed. One that did has been the last: the socket then says so as well.
static bool found_nothing(const struct conn *c, const char *err) {
    char byte;
    if (err != h2o_socket_error_io || !c->sock->ssl) return false;
    ssize_t n = recv(h2o_socket_get_fd(c->sock), &byte, 1, MSG_PEEK | MSG_DONTWAIT);
    return n > 0 || (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK));
}

static void on_read(h2o_socket_t *sock, const char *err) {
    struct conn *c = sock->on_close.data;
    if (found_nothing(c, err)) return;
    bool gone = false, *outer = c->gone;
    size_t fresh = err ? 0 : sock->bytes_read; // of this read alone
    c->read_bytes += fresh;
    if (fresh && !look_over(c, fresh)) {
        if (!c->is_http2) return;
        err = h2o_socket_error_closed; // so that h2o ends it at once, and reads no more
    }
    c->gone = &gone;
    c->inner(sock, err);
    if (gone) {
        if (outer) *outer = true;
        return;
    }
    c->gone = outer;
    if (c->is_http2 && c->read_bytes - c->base_bytes > c->listener->config.limits.body_bytes_max)
        answer_large(c);
    hook(c);
}

// Where h2o has put its own reader back.
static void hook(struct conn *c) {
    h2o_socket_cb reader = c->sock->_cb.read;
    if (reader && reader != on_read) {
        c->inner = reader;
        c->sock->_cb.read = on_read;
    }
    if (!reader || (c->refused && !c->scan.head_refused)) put_aside(c);
}

static void refuse(struct conn *c, enum apierr_code code, const char *why);

// Before the loop sleeps: no byte is read in between.
void conn_hook(struct listener *l) {
    struct conn *c, *next;
    for (c = TAILQ_FIRST(&l->unhooked); c; c = next) {
        next = TAILQ_NEXT(c, unhooked_link);
        if (c->busy == 0 && !c->sock->_cb.read)
            continue; // between a reply's end and the next request, or 100-continue
        TAILQ_REMOVE(&l->unhooked, c, unhooked_link);
        c->unhooked = false;
        if (c->busy) continue; // conn_call_end puts it back
        hook(c);
        if (c->unhooked) { // refused within a body
            TAILQ_REMOVE(&l->unhooked, c, unhooked_link);
            c->unhooked = false;
            refuse(c, c->refused->code, c->refused->message);
        }
    }
}

const struct apierr *conn_refusal(const struct conn *conn, const struct http_call *call) {
    static const char method[] = CONN_REFUSED_METHOD;
    const h2o_buffer_t *in = conn->sock->input;
    const h2o_req_t *req = call->req;
    if (!conn->refused) return NULL;
    if (!conn->scan.body_refused)
        return h2o_memis(req->input.method.base, req->input.method.len, method, sizeof method - 1)
                   ? conn->refused
                   : NULL;
    // It is the last that h2o gets: in front of it there may be others, whose bytes are there until they are answered.
    size_t blank = 0;
    while (blank < in->size && (in->bytes[blank] == '\r' || in->bytes[blank] == '\n')) blank++;
    return in->size - blank == conn->scan.seen ? conn->refused : NULL;
}

/* ---- beginning ---- */

static void begin(struct conn *c, bool http2) {
    bool gone = false;
    c->gone = &gone;
    if (http2)
        h2o_http2_accept(&c->listener->accept_ctx, c->sock, c->connected_at);
    else
        h2o_http1_accept(&c->listener->accept_ctx, c->sock, c->connected_at);
    if (gone) return;
    c->gone = NULL;
    hook(c);
}

static void on_handshake(h2o_socket_t *sock, const char *err) {
    struct conn *c = sock->on_close.data;
    c->shaking = false;
    if (err) {
        h2o_socket_close(sock);
        return;
    }
    h2o_iovec_t protocol = h2o_socket_ssl_get_selected_protocol(sock);
    bool http2 = h2o_memis(protocol.base, protocol.len, H2O_STRLIT("h2"));
    c->idle_since_ms = mono_ms();
    c->read_bytes += sock->input->size;
    if (http2) note_http2(c);
    // What came with the end of the handshake.
    if (sock->input->size && !look_over(c, sock->input->size)) {
        h2o_socket_close(sock);
        return;
    }
    begin(c, http2);
}

void conn_take(struct listener *l, uv_stream_t *stream) {
    struct conn *c = mem_calloc(1, sizeof *c);
    c->listener = l;
    c->stream = stream;
    c->idle_since_ms = c->resets_since_ms = mono_ms();
    name_remote(c, stream);
    TAILQ_INSERT_TAIL(&l->conns, c, link);
    l->conn_count++;
    metrics_connections(l->config.metrics, false, 1);
    c->sock = h2o_uv_socket_create(stream, (uv_close_cb)free);
    c->sock->on_close.cb = on_conn_closed;
    c->sock->on_close.data = c;
    gettimeofday(&c->connected_at, NULL);
    c->shaking = l->tls != NULL;
    if (c->shaking)
        h2o_socket_ssl_handshake(c->sock, l->tls, NULL, on_handshake);
    else
        begin(c, false);
}

struct conn *conn_of(struct http_call *c) {
    return c->req->conn->callbacks->get_socket(c->req->conn)->on_close.data;
}

const char *conn_remote(const struct conn *conn) {
    return conn->remote;
}

bool conn_is_proxy(const struct conn *conn) {
    return conn->is_proxy;
}

static void note_version(struct conn *conn, const h2o_req_t *req) {
    if (req->version >= 0x200) note_http2(conn);
}

void conn_call_begin(struct conn *conn, struct http_call *c) {
    conn->busy++;
    note_version(conn, c->req);
    if (conn->is_http2) conn->base_bytes += c->req->entity.len;
}

static void count_reset(struct conn *conn, uint64_t now) {
    if (mono_since(conn->resets_since_ms, now) > RESETS_WINDOW_MS) {
        conn->resets_since_ms = now;
        conn->resets = 0;
    }
    // At once, and not at the next sweep: two thousand resets come in one read.
    if (++conn->resets > conn->listener->config.h2_resets_max && !conn->was_cut) {
        log_warn("resets", "remote=%s count=%u", conn->remote, conn->resets);
        conn_cut(conn);
    }
}

void conn_call_end(struct conn *conn, struct http_call *c) {
    struct listener *l = conn->listener;
    uint64_t now = mono_ms();
    if (--conn->busy == 0) {
        conn->idle_since_ms = now;
        put_aside(conn); // h2o will read again
    }
    if (c->req->version >= 0x200 && c->status == 499) count_reset(conn, now);
    if (l->config.on_call_over) l->config.on_call_over(l->config.app, c);
}

/* ---- answers behind h2o's back ---- */

void conn_answer_fd(int fd, enum apierr_code code, const char *why, struct metrics *m) {
    char drop[16 << 10], id[37] = "req_";
    struct apierr e;
    struct strbuf body = {0}, text = {0};
    nonce_hex(id + 4, 32);
    apierr_set(&e, code, NULL, "%s", why);
    apierr_body(&e, id, &body);
    int status = apierr_status(code);
    strbuf_printf(&text,
                  "HTTP/1.1 %d %s\r\nContent-Type: application/json\r\nContent-Length: %zu\r\n"
                  "X-Request-Id: %s\r\n%sConnection: close\r\n\r\n",
                  status, send_reason(status), body.len, id,
                  status == 503 ? "Retry-After: 1\r\nretry-after-ms: 1000\r\n" : "");
    strbuf_add(&text, body.p, body.len);
    // A close with bytes unread would be a reset, and the answer might never be seen.
    for (int i = 0; i < DROPS_MAX && recv(fd, drop, sizeof drop, MSG_DONTWAIT) > 0;) i++;
    ssize_t n = send(fd, text.p, text.len, MSG_DONTWAIT | MSG_NOSIGNAL);
    (void)n; // it is gone anyway
    if (m) metrics_error(m, code);
    strbuf_fini(&body);
    strbuf_fini(&text);
}

// Nothing of ours is under way on it: an HTTP/1 client can still be told.
static void refuse(struct conn *c, enum apierr_code code, const char *why) {
    bool plain = !c->sock->ssl && !c->is_http2 && c->busy == 0;
    if (c->was_cut) return;
    if (plain) conn_answer_fd(h2o_socket_get_fd(c->sock), code, why, c->listener->config.metrics);
    conn_cut(c);
}

/* ---- the sweep ---- */

// Once a read has failed (a reset), libuv takes no more writes, and h2o's binding does not look whether it did: the
// goodbye that TLS says to a connection which was reset would be waited for for ever, and the connection with it.
static void end_lost_write(struct conn *c) {
    h2o_socket_cb cb = c->sock->_cb.write;
    bool lost = cb && !uv_is_writable(c->stream) && !uv_stream_get_write_queue_size(c->stream);
    c->lost_writes = lost ? c->lost_writes + 1 : 0;
    if (c->lost_writes < LOST_SWEEPS) return;
    c->lost_writes = 0;
    c->sock->_cb.write = NULL;
    cb(c->sock, "the connection was reset"); // c may be gone
}

struct look {
    const struct listener *l;
    const struct timeval *now;
};

static double seconds_since(const struct timeval *then, const struct timeval *now) {
    return (double)(now->tv_sec - then->tv_sec) + (double)(now->tv_usec - then->tv_usec) / 1e6;
}

// A request whose handler has not been reached.
static int look_at(h2o_req_t *req, void *arg) {
    const struct look *k = arg;
    struct conn *c = req->conn->callbacks->get_socket(req->conn)->on_close.data;
    if (req->processed_at.at.tv_sec || !req->timestamps.request_begin_at.tv_sec) return 0;
    bool in_body = req->timestamps.request_body_begin_at.tv_sec != 0;
    double age = seconds_since(in_body ? &req->timestamps.request_body_begin_at
                                       : &req->timestamps.request_begin_at,
                               k->now);
    note_version(c, req);
    c->heads += !in_body;
    c->bodies += in_body;
    if (c->is_http2) {
        size_t announced;
        c->body_bytes += h2early_bytes(req, &announced);
        c->held_bytes += h2early_held(req);
    }
    c->is_large |= c->is_http2 && in_body && is_large(req, k->l->config.limits.body_bytes_max);
    c->is_late |= age > (in_body ? k->l->config.body_s : k->l->config.header_s);
    return 0;
}

// Bytes that requests still coming hold.
static size_t held_bytes(const struct conn *c) {
    if (c->is_http2) return (size_t)c->held_bytes;
    return c->bodies ? c->sock->input->size : 0;
}

static bool crawls(struct conn *c, uint64_t now) {
    const struct listener_config *config = &c->listener->config;
    uint64_t after_ms = (uint64_t)(config->body_rate_after_s * 1000);
    if (!c->bodies || !c->rate_since_ms) {
        c->rate_since_ms = c->bodies ? now : 0;
        c->rate_bytes = c->read_bytes;
        return false;
    }
    uint64_t ms = now - c->rate_since_ms;
    if (ms < after_ms) return false;
    double bytes = (double)(c->read_bytes - c->rate_bytes);
    c->rate_since_ms = now;
    c->rate_bytes = c->read_bytes;
    return bytes * 1000 < (double)config->body_rate_min * (double)ms;
}

static void sweep_one(struct conn *c, uint64_t now) {
    const struct listener_config *config = &c->listener->config;
    uint64_t keepalive_ms = (uint64_t)(config->keepalive_s * 1000);
    uint64_t idle_ms = mono_since(c->idle_since_ms, now);
    bool receiving = c->heads || c->bodies;
    bool slow = crawls(c, now) || c->is_late;
    c->base_bytes = c->read_bytes - min_u64(c->read_bytes, c->body_bytes);
    if (!c->bodies)
        c->bodies_since_ms = 0;
    else if (!c->bodies_since_ms)
        c->bodies_since_ms = now;
    if (c->shaking) {
        if ((double)idle_ms > config->header_s * 1000) conn_cut(c);
        return;
    }
    // Of HTTP/2: its other streams are not to suffer; bodies_bytes_max bounds what it holds.
    if (c->busy) return;
    if (slow && c->bodies && !c->heads)
        refuse(c, APIERR_BODY_TIMEOUT, "the body did not arrive in time");
    else if (slow)
        conn_cut(c);
    else if (receiving)
        return;
    else if (c->is_http2 && idle_ms > keepalive_ms + H2_IDLE_GRACE_MS)
        conn_cut(c); // h2o's timer begins again with every frame
    else if (!c->is_http2 && c->sock->input->size == 0 && idle_ms > keepalive_ms)
        conn_cut(c);
}

void conn_cut_idle(struct listener *l) {
    struct conn *c;
    TAILQ_FOREACH(c, &l->conns, link)
    if (c->busy == 0 && !c->is_http2 && c->sock->input->size == 0) conn_cut(c);
}

// The connection that began last of those with bodies; quiet: only such as answer nothing now.
static struct conn *newest_body(struct listener *l, bool quiet) {
    struct conn *c, *found = NULL;
    TAILQ_FOREACH(c, &l->conns, link) {
        if (c->was_cut || !held_bytes(c) || (quiet && c->busy)) continue;
        if (!found || c->bodies_since_ms >= found->bodies_since_ms) found = c;
    }
    return found;
}

static void bound_bodies(struct listener *l) {
    size_t total = 0, max = l->config.bodies_bytes_max;
    struct conn *c;
    TAILQ_FOREACH(c, &l->conns, link) if (!c->was_cut) total += held_bytes(c);
    while (total > max) {
        c = newest_body(l, true);
        if (!c) c = newest_body(l, false);
        if (!c) break;
        total -= held_bytes(c);
        refuse(c, APIERR_OVERLOADED, "too many bodies are being received");
    }
    uint64_t every = total > max / 8 ? BUSY_SWEEP_MS : CONN_SWEEP_MS;
    if (uv_timer_get_repeat(&l->sweep) != every) {
        uv_timer_set_repeat(&l->sweep, every);
        uv_timer_again(&l->sweep);
    }
}

void conn_sweep(uv_timer_t *t) {
    struct listener *l = t->data;
    uint64_t now = mono_ms();
    struct look k = {l, h2o_get_timestamp(&l->ctx, NULL, NULL)};
    struct conn *c, *next;
    for (c = TAILQ_FIRST(&l->conns); c; c = next) {
        next = TAILQ_NEXT(c, link);
        end_lost_write(c);
    }
    TAILQ_FOREACH(c, &l->conns, link) {
        c->heads = c->bodies = 0;
        c->is_late = c->is_large = false;
        c->body_bytes = c->held_bytes = 0;
    }
    l->global.http1.callbacks.foreach_request(&l->ctx, look_at, &k);
    l->global.http2.callbacks.foreach_request(&l->ctx, look_at, &k);
    TAILQ_FOREACH(c, &l->conns, link) if (c->is_large) answer_large(c);
    TAILQ_FOREACH(c, &l->conns, link) if (!c->was_cut) sweep_one(c, now);
    if (l->stopped) conn_cut_idle(l);
    bound_bodies(l);
    send_set_sweep(&l->sends, now, (uint64_t)(l->config.write_stall_s * 1000));
    listener_room(l, now);
}
