/* http: see http.h. */
#include "router/http.h"
#include "common/err.h"
#include "common/mono.h"
#include "common/strbuf.h"
#include "router/apierr.h"
#include "router/cors.h"
#include "router/h1scan.h"
#include "router/h2early.h"
#include "router/keys.h"
#include "router/listen.h"
#include "router/metrics.h"
#include "router/nonce.h"
#include "router/proxies.h"
#include "router/send.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

h2o_iovec_t http_header(const h2o_req_t *req, const char *name) {
    ssize_t i = h2o_find_header_by_str(&req->headers, name, strlen(name), -1);
    return i < 0 ? h2o_iovec_init(NULL, 0) : req->headers.entries[i].value;
}

static h2o_iovec_t path_of(const struct http_call *c) {
    const char *query = c->target.len ? memchr(c->target.base, '?', c->target.len) : NULL;
    size_t len = query ? (size_t)(query - c->target.base) : c->target.len;
    return h2o_iovec_init(c->target.base, len);
}

// RFC 9112, 3.2.2: "GET http://host/path" is "GET /path", and no path is "/", of OPTIONS "*".
static h2o_iovec_t target_of(h2o_req_t *req) {
    h2o_iovec_t path = req->input.path;
    size_t scheme = path.len > 7 && !strncasecmp(path.base, "http://", 7)    ? 7
                    : path.len > 8 && !strncasecmp(path.base, "https://", 8) ? 8
                                                                             : 0;
    if (req->version >= 0x200 || !scheme) return path;
    size_t at = scheme;
    while (at < path.len && path.base[at] != '/' && path.base[at] != '?') at++;
    if (at == scheme) return path; // no authority: no such form
    if (at < path.len && path.base[at] == '/') return h2o_iovec_init(path.base + at, path.len - at);
    if (at == path.len && h2o_memis(req->input.method.base, req->input.method.len, "OPTIONS", 7))
        return h2o_iovec_init(H2O_STRLIT("*"));
    return h2o_concat(&req->pool, h2o_iovec_init(H2O_STRLIT("/")),
                      h2o_iovec_init(path.base + at, path.len - at));
}

// "/models" is "/v1/models"; the table holds the long form where a path has both.
static bool matches(const struct http_endpoint *ep, h2o_iovec_t path) {
    const char *want = ep->path;
    for (int pass = 0; pass < 2; pass++) {
        size_t n = strlen(want);
        if (path.len >= n && !memcmp(path.base, want, n) && (path.len > n) == ep->prefix)
            return true;
        if (strncmp(want, "/v1/", 4)) return false;
        want += 3;
    }
    return false;
}

h2o_iovec_t http_path_rest(const struct http_call *c) {
    h2o_iovec_t path = path_of(c);
    const char *want = c->endpoint->path;
    size_t n = strlen(want);
    if (path.len < n || memcmp(path.base, want, n)) n -= 3; // the short form
    return h2o_iovec_init(path.base + n, path.len - n);
}

h2o_iovec_t http_query(const struct http_call *c, const char *key) {
    size_t n = strlen(key);
    size_t at = path_of(c).len;
    while (at < c->target.len) { // at the '?' or '&' before a pair
        const char *pair = c->target.base + at + 1;
        size_t left = c->target.len - at - 1;
        const char *amp = memchr(pair, '&', left);
        size_t len = amp ? (size_t)(amp - pair) : left;
        if (len >= n && !memcmp(pair, key, n) && (len == n || pair[n] == '='))
            return h2o_iovec_init(pair + n + (len > n), len - n - (len > n));
        at += 1 + len;
    }
    return h2o_iovec_init(NULL, 0);
}

/* ---- the head ---- */

// The raw head stands at the start of the connection's input as long as the request is being handled. conn.c has looked
// at it before; this is the second lock of that door.
static int check_raw_head(const h2o_req_t *req, const struct http_limits *limits,
                          struct apierr *e) {
    if (req->version >= 0x200) {
        // After "Upgrade: h2c" the head as it came is gone, and with it the framing of a body.
        if (req->entity.base && http_header(req, "http2-settings").base)
            return apierr_set(e, APIERR_BAD_REQUEST, NULL,
                              "an upgrade to HTTP/2 must come without a body");
        // h2o holds it against a body alone, and resets the stream.
        size_t announced = h2early_announced(req);
        if (announced != SIZE_MAX && announced != req->entity.len)
            return apierr_set(e, APIERR_BAD_REQUEST, NULL,
                              "content-length says %zu, and the body had %zu bytes", announced,
                              req->entity.len);
        return ST_OK;
    }
    const h2o_buffer_t *in = req->conn->callbacks->get_socket(req->conn)->input;
    const char *head = in->bytes, *after = in->bytes + in->size;
    while (head < after && (*head == '\r' || *head == '\n')) head++; // RFC 9112, 2.2
    size_t left = (size_t)(after - head);
    const char *end = memmem(head, left, "\r\n\r\n", 4);
    // Behind the head there may be megabytes of a body or of a pipeline: they are not looked at.
    const char *bare = memmem(head, end ? (size_t)(end - head) : left, "\n\n", 2);
    if (bare) end = bare;
    size_t len = end ? (size_t)(end - head) : left;
    if (len > limits->head_bytes_max)
        return apierr_set(e, APIERR_HEADERS_TOO_LARGE, NULL,
                          "the request's head must have at most %zu bytes, got %zu",
                          limits->head_bytes_max, len);
    struct h1scan_framing framing;
    return h1scan_head(head, len, req->version >= 0x101, &framing, e);
}

static int check_head(const struct http_call *c, struct apierr *e) {
    const h2o_req_t *req = c->req;
    const struct http_limits *limits = listener_limits(c->listener);
    if (req->input.path.len > limits->uri_bytes_max)
        return apierr_set(e, APIERR_URI_TOO_LONG, NULL,
                          "the URI must have at most %zu bytes, got %zu", limits->uri_bytes_max,
                          req->input.path.len);
    if (req->headers.size > limits->fields_max)
        return apierr_set(e, APIERR_HEADERS_TOO_LARGE, NULL,
                          "the head must have at most %zu fields, got %zu", limits->fields_max,
                          req->headers.size);
    size_t bytes = 0;
    for (size_t i = 0; i < req->headers.size; i++)
        bytes += req->headers.entries[i].name->len + req->headers.entries[i].value.len + 4;
    if (bytes > limits->head_bytes_max)
        return apierr_set(e, APIERR_HEADERS_TOO_LARGE, NULL,
                          "the header fields must have at most %zu bytes, got %zu",
                          limits->head_bytes_max, bytes);
    int st = check_raw_head(req, limits, e);
    if (st) return st;
    if (req->entity.len > limits->body_bytes_max)
        return apierr_set(e, APIERR_BODY_TOO_LARGE, NULL,
                          "the body must have at most %zu bytes, got %zu", limits->body_bytes_max,
                          req->entity.len);
    return ST_OK;
}

static bool has_word(h2o_iovec_t v, const char *word) {
    size_t n = strlen(word);
    for (size_t i = 0; i + n <= v.len; i++)
        if (!strncasecmp(v.base + i, word, n)) return true;
    return false;
}

int http_check_json_type(const struct http_call *c, struct apierr *e) {
    char clip[APIERR_CLIP_BYTES];
    h2o_iovec_t coding = http_header(c->req, "content-encoding");
    if (coding.len && !(coding.len == 8 && !strncasecmp(coding.base, "identity", 8)))
        return apierr_set(e, APIERR_UNSUPPORTED_MEDIA_TYPE, NULL,
                          "Content-Encoding must be identity, got %s",
                          apierr_clip(clip, coding.base, coding.len));
    h2o_iovec_t type = http_header(c->req, "content-type");
    if (!type.len) return ST_OK;
    size_t n = 0;
    while (n < type.len && type.base[n] != ';') n++;
    h2o_iovec_t parameters = h2o_iovec_init(type.base + n, type.len - n);
    while (n && type.base[n - 1] == ' ') n--;
    bool json = n == 16 && !strncasecmp(type.base, "application/json", 16);
    bool suffix = n > 17 && !strncasecmp(type.base, "application/", 12) &&
                  !strncasecmp(type.base + n - 5, "+json", 5);
    if (!json && !suffix)
        return apierr_set(e, APIERR_UNSUPPORTED_MEDIA_TYPE, NULL,
                          "Content-Type must be application/json, got %s",
                          apierr_clip(clip, type.base, type.len));
    if (has_word(parameters, "charset") && !has_word(parameters, "utf-8") &&
        !has_word(parameters, "utf8"))
        return apierr_set(e, APIERR_UNSUPPORTED_MEDIA_TYPE, NULL,
                          "the charset of Content-Type must be utf-8, got %s",
                          apierr_clip(clip, type.base, type.len));
    return ST_OK;
}

/* ---- keys ---- */

static bool same(h2o_iovec_t a, h2o_iovec_t b) {
    return a.len == b.len && !memcmp(a.base, b.base, a.len);
}

// The key of the three headers, which must agree; base NULL: there is none.
static int find_secret(const h2o_req_t *req, h2o_iovec_t *ret, struct apierr *e) {
    h2o_iovec_t found = {NULL, 0};
    for (size_t i = 0; i < req->headers.size; i++) {
        const h2o_header_t *h = &req->headers.entries[i];
        h2o_iovec_t v = h->value;
        if (h2o_memis(h->name->base, h->name->len, H2O_STRLIT("authorization"))) {
            if (v.len < 7 || strncasecmp(v.base, "Bearer ", 7))
                return apierr_set(e, APIERR_INVALID_KEY, NULL,
                                  "Authorization must be of the form: Bearer KEY");
            v.base += 7, v.len -= 7;
            while (v.len && *v.base == ' ') v.base++, v.len--;
        } else if (!h2o_memis(h->name->base, h->name->len, H2O_STRLIT("x-api-key")) &&
                   !h2o_memis(h->name->base, h->name->len, H2O_STRLIT("api-key"))) {
            continue;
        }
        if (found.base && !same(found, v))
            return apierr_set(e, APIERR_INVALID_KEY, NULL,
                              "the keys of Authorization, x-api-key and api-key must agree");
        found = v;
    }
    *ret = found;
    return ST_OK;
}

static int take_key(struct http_call *c, struct apierr *e) {
    h2o_iovec_t secret = {NULL, 0};
    int st = find_secret(c->req, &secret, e);
    if (st) return st;
    if (!secret.len)
        return apierr_set(e, APIERR_MISSING_KEY, NULL,
                          "a key is required: Authorization: Bearer KEY");
    c->key = keys_take(listener_keys(c->listener), secret.base, secret.len);
    return c->key ? ST_OK : apierr_set(e, APIERR_INVALID_KEY, NULL, "the key is not known here");
}

static int check_admin(struct http_call *c, struct apierr *e) {
    if (!keys_any_admin(listener_keys(c->listener))) {
        if (listener_is_local(c->listener)) return ST_OK;
        return apierr_set(e, APIERR_FORBIDDEN, NULL,
                          "without an admin key, administration answers only on a loopback or unix "
                          "listener");
    }
    int st = take_key(c, e);
    if (st || c->key->is_admin) return st;
    return apierr_set(e, APIERR_FORBIDDEN, NULL, "administration wants a key of class admin");
}

static int check_access(struct http_call *c, struct apierr *e) {
    enum http_access access = c->endpoint ? c->endpoint->access : HTTP_KEYED;
    bool asked =
        access == HTTP_KEYED || (access == HTTP_METRICS && listener_metrics_auth(c->listener));
    if (access == HTTP_ADMIN) return check_admin(c, e);
    return asked && keys_any(listener_keys(c->listener)) ? take_key(c, e) : ST_OK;
}

/* ---- dispatch ---- */

static void take_request_id(struct http_call *c) {
    h2o_iovec_t v = http_header(c->req, "x-request-id");
    bool fine = v.len >= 1 && v.len < HTTP_REQUEST_ID_BYTES;
    for (size_t i = 0; fine && i < v.len; i++)
        fine = isalnum((unsigned char)v.base[i]) || strchr("_.:-", v.base[i]);
    c->has_client_id = fine;
    if (fine) {
        memcpy(c->request_id, v.base, v.len);
        c->request_id[v.len] = '\0';
        return;
    }
    memcpy(c->request_id, "req_", 4);
    nonce_hex(c->request_id + 4, 32);
}

static void on_call_dispose(void *p) {
    struct http_call *c = p;
    conn_call_end(c->conn, c);
    keys_give(listener_keys(c->listener), c->key);
}

// All fields of one name as one list.
static h2o_iovec_t joined(h2o_req_t *req, const char *name) {
    h2o_iovec_t all = {NULL, 0};
    ssize_t i = -1;
    while ((i = h2o_find_header_by_str(&req->headers, name, strlen(name), i)) >= 0) {
        h2o_iovec_t v = req->headers.entries[i].value;
        all = all.base ? h2o_concat(&req->pool, all, h2o_iovec_init(H2O_STRLIT(",")), v) : v;
    }
    return all;
}

static const char *remote_of(struct http_call *c) {
    if (!conn_is_proxy(c->conn)) return conn_remote(c->conn);
    const struct proxies *p = listener_proxies(c->listener);
    char *ret = h2o_mem_alloc_pool(&c->req->pool, PROXIES_ADDRESS_BYTES);
    h2o_iovec_t field = joined(c->req, "x-forwarded-for");
    if (field.base && proxies_client(p, field.base, field.len, false, ret)) return ret;
    field = joined(c->req, "forwarded");
    if (field.base && proxies_client(p, field.base, field.len, true, ret)) return ret;
    return conn_remote(c->conn);
}

static struct http_call *call_new(const struct http_handler *h, h2o_req_t *req) {
    struct http_call *c = h2o_mem_alloc_shared(&req->pool, sizeof *c, on_call_dispose);
    *c = (struct http_call){.req = req,
                            .listener = h->listener,
                            .app = h->app,
                            .target = target_of(req),
                            .begun_us = mono_us()};
    c->conn = conn_of(c);
    c->remote = remote_of(c);
    take_request_id(c);
    conn_call_begin(c->conn, c);
    return c;
}

static bool is_method(const h2o_req_t *req, const char *name) {
    return h2o_memis(req->input.method.base, req->input.method.len, name, strlen(name));
}

static const struct {
    enum http_method method;
    const char *name;
} method_names[] = {{HTTP_GET, "GET"},
                    {HTTP_GET, "HEAD"},
                    {HTTP_POST, "POST"},
                    {HTTP_PUT, "PUT"},
                    {HTTP_DELETE, "DELETE"}};
enum { METHOD_NAMES = sizeof method_names / sizeof *method_names, ALLOW_BYTES = 48 };

enum http_method http_method_of(const struct http_call *c) {
    for (size_t i = 0; i < METHOD_NAMES; i++)
        if (is_method(c->req, method_names[i].name)) return method_names[i].method;
    return 0;
}

static void list_methods(unsigned methods, char ret[ALLOW_BYTES]) {
    size_t n = 0;
    for (size_t i = 0; i < METHOD_NAMES; i++)
        if (methods & method_names[i].method)
            n += (size_t)snprintf(ret + n, ALLOW_BYTES - n, "%s, ", method_names[i].name);
    snprintf(ret + n, ALLOW_BYTES - n, "OPTIONS");
}

void http_wrong_method(struct http_call *c, unsigned methods) {
    struct apierr e;
    char clip[APIERR_CLIP_BYTES], *allow = h2o_mem_alloc_pool(&c->req->pool, ALLOW_BYTES);
    list_methods(methods, allow);
    apierr_set(&e, APIERR_METHOD_NOT_ALLOWED, NULL, "the method must be one of %s, got %s", allow,
               apierr_clip(clip, c->req->input.method.base, c->req->input.method.len));
    struct strbuf body = {0};
    c->facts.code = apierr_name(e.code);
    metrics_error(listener_metrics(c->listener), e.code);
    apierr_body(&e, c->request_id, &body);
    send_reply(c, &SEND_HEAD(.status = 405, .content_type = "application/json", .allow = allow),
               body.p, body.len);
    strbuf_fini(&body);
}

static void answer_options(struct http_call *c, unsigned methods) {
    bool preflight = http_header(c->req, "origin").len &&
                     http_header(c->req, "access-control-request-method").len &&
                     cors_on(listener_cors(c->listener));
    char *allow = h2o_mem_alloc_pool(&c->req->pool, ALLOW_BYTES);
    list_methods(methods, allow);
    if (preflight)
        send_reply(c, &SEND_HEAD(.status = 204, .preflight = true), "", 0);
    else
        send_reply(c, &SEND_HEAD(.status = 200, .allow = allow), "", 0);
}

static void answer_unknown(struct http_call *c) {
    h2o_iovec_t path = path_of(c);
    struct apierr e;
    char clip[APIERR_CLIP_BYTES];
    if (is_method(c->req, "OPTIONS") && h2o_memis(path.base, path.len, H2O_STRLIT("*"))) {
        answer_options(c, HTTP_GET | HTTP_POST); // of the server as a whole
        return;
    }
    apierr_set(&e, APIERR_UNKNOWN_URL, NULL, "no such path: %s",
               apierr_clip(clip, path.base, path.len));
    send_reply_error(c, &e);
}

static void dispatch(struct http_call *c) {
    const struct http_endpoint *ep = c->endpoint;
    if (!ep)
        answer_unknown(c);
    else if (is_method(c->req, "OPTIONS"))
        answer_options(c, ep->methods);
    else if (ep->methods & http_method_of(c))
        ep->handle(c);
    else
        http_wrong_method(c, ep->methods);
}

static const struct http_endpoint *find_endpoint(const struct http_handler *h, h2o_iovec_t path) {
    for (size_t i = 0; i < h->endpoint_count; i++)
        if (matches(&h->endpoints[i], path)) return &h->endpoints[i];
    return NULL;
}

int http_on_req(h2o_handler_t *self, h2o_req_t *req) {
    const struct http_handler *h = (const struct http_handler *)self;
    struct http_call *c = call_new(h, req);
    struct apierr e;
    const struct apierr *refusal = conn_refusal(c->conn, c);
    c->endpoint = find_endpoint(h, path_of(c)); // refusals name it in the log and the metrics
    if (refusal) {
        req->http1_is_persistent = 0;
        send_reply_error(c, refusal);
        return 0;
    }
    if (conn_early(c->conn)) {
        send_reply_error(c, conn_early(c->conn));
        return 0;
    }
    if (check_head(c, &e)) {
        req->http1_is_persistent = 0; // what follows on this connection may be no request at all
        send_reply_error(c, &e);
        return 0;
    }
    if (!is_method(req, "OPTIONS") && check_access(c, &e))
        send_reply_error(c, &e);
    else
        dispatch(c);
    return 0;
}
