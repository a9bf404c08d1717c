/* http: see http.h. */
#include "router/http.h"
#include "common/err.h"
#include "common/mono.h"
#include "common/strbuf.h"
#include "router/apierr.h"
#include "router/listen.h"
#include "router/metrics.h"
#include "router/nonce.h"
#include "router/send.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

h2o_iovec_t http_header(const h2o_req_t *req, const char *name) {
    ssize_t i = h2o_find_header_by_str(&req->headers, name, strlen(name), -1);
    return i < 0 ? h2o_iovec_init(NULL, 0) : req->headers.entries[i].value;
}

static h2o_iovec_t path_of(const h2o_req_t *req) {
    size_t len =
        req->input.query_at < req->input.path.len ? req->input.query_at : req->input.path.len;
    return h2o_iovec_init(req->input.path.base, len);
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
    h2o_iovec_t path = path_of(c->req);
    const char *want = c->endpoint->path;
    size_t n = strlen(want);
    if (path.len < n || memcmp(path.base, want, n)) n -= 3; // the short form
    return h2o_iovec_init(path.base + n, path.len - n);
}

h2o_iovec_t http_query(const struct http_call *c, const char *key) {
    const h2o_req_t *req = c->req;
    size_t n = strlen(key);
    size_t at = req->input.query_at;
    while (at < req->input.path.len) { // at the '?' or '&' before a pair
        const char *pair = req->input.path.base + at + 1;
        size_t left = req->input.path.len - at - 1;
        const char *amp = memchr(pair, '&', left);
        size_t len = amp ? (size_t)(amp - pair) : left;
        if (len >= n && !memcmp(pair, key, n) && (len == n || pair[n] == '='))
            return h2o_iovec_init(pair + n + (len > n), len - n - (len > n));
        at += 1 + len;
    }
    return h2o_iovec_init(NULL, 0);
}

/* ---- the head ---- */

struct head_facts {
    unsigned hosts, lengths, codings;
    bool folded, lengths_differ, other_coding;
    const char *length;
    size_t length_len;
};

static void note_field(struct head_facts *f, const char *line, size_t len) {
    const char *colon = memchr(line, ':', len);
    if (line[0] == ' ' || line[0] == '\t') f->folded = true;
    if (!colon) return;
    size_t name_len = (size_t)(colon - line);
    const char *v = colon + 1;
    size_t v_len = len - name_len - 1;
    while (v_len && (*v == ' ' || *v == '\t')) v++, v_len--;
    while (v_len && (v[v_len - 1] == ' ' || v[v_len - 1] == '\t')) v_len--;
    if (name_len == 4 && !strncasecmp(line, "host", 4)) f->hosts++;
    if (name_len == 17 && !strncasecmp(line, "transfer-encoding", 17)) {
        f->codings++;
        if (v_len != 7 || strncasecmp(v, "chunked", 7)) f->other_coding = true;
    }
    if (name_len == 14 && !strncasecmp(line, "content-length", 14)) {
        bool same = f->lengths && v_len == f->length_len && !memcmp(v, f->length, v_len);
        if (f->lengths++ && !same) f->lengths_differ = true;
        f->length = v;
        f->length_len = v_len;
    }
}

int http_check_head(const char *head, size_t len, bool is_http_1_1, struct apierr *e) {
    struct head_facts f = {0};
    bool first = true; // the request line
    for (size_t i = 0; i < len;) {
        const char *nl = memchr(head + i, '\n', len - i);
        size_t n = nl ? (size_t)(nl - head) - i : len - i;
        size_t text = n && head[i + n - 1] == '\r' ? n - 1 : n;
        if (text == 0) break;
        if (!first) note_field(&f, head + i, text);
        first = false;
        i += n + 1;
    }
    const char *why = f.folded                      ? "a header field must not be folded"
                      : f.hosts > 1                 ? "Host must be given once"
                      : is_http_1_1 && f.hosts == 0 ? "Host is required"
                      : f.codings && f.lengths
                          ? "Transfer-Encoding and Content-Length exclude each other"
                      : f.lengths_differ                ? "Content-Length must be given once"
                      : f.codings > 1 || f.other_coding ? "the only transfer coding is chunked"
                                                        : NULL;
    return why ? apierr_set(e, APIERR_BAD_REQUEST, NULL, "%s", why) : ST_OK;
}

// The raw head stands at the start of the connection's input as long as the request is being handled.
static int check_raw_head(const h2o_req_t *req, struct apierr *e) {
    if (req->version >= 0x200) return ST_OK;
    const h2o_buffer_t *in = req->conn->callbacks->get_socket(req->conn)->input;
    const char *end = memmem(in->bytes, in->size, "\r\n\r\n", 4);
    const char *bare = memmem(in->bytes, in->size, "\n\n", 2);
    if (bare && (!end || bare < end)) end = bare;
    size_t len = end ? (size_t)(end - in->bytes) : in->size;
    if (len > HTTP_HEAD_BYTES_MAX)
        return apierr_set(e, APIERR_HEADERS_TOO_LARGE, NULL,
                          "the request's head must have at most %d bytes, got %zu",
                          HTTP_HEAD_BYTES_MAX, len);
    return http_check_head(in->bytes, len, req->version >= 0x101, e);
}

static int check_head(const struct http_call *c, struct apierr *e) {
    const h2o_req_t *req = c->req;
    if (req->input.path.len > HTTP_URI_BYTES_MAX)
        return apierr_set(e, APIERR_URI_TOO_LONG, NULL,
                          "the URI must have at most %d bytes, got %zu", HTTP_URI_BYTES_MAX,
                          req->input.path.len);
    size_t bytes = 0;
    for (size_t i = 0; i < req->headers.size; i++)
        bytes += req->headers.entries[i].name->len + req->headers.entries[i].value.len + 4;
    if (bytes > HTTP_HEAD_BYTES_MAX)
        return apierr_set(e, APIERR_HEADERS_TOO_LARGE, NULL,
                          "the header fields must have at most %d bytes, got %zu",
                          HTTP_HEAD_BYTES_MAX, bytes);
    int st = check_raw_head(req, e);
    if (st) return st;
    if (req->entity.len > listener_body_bytes_max(c->listener))
        return apierr_set(e, APIERR_BODY_TOO_LARGE, NULL,
                          "the body must have at most %zu bytes, got %zu",
                          listener_body_bytes_max(c->listener), req->entity.len);
    return ST_OK;
}

static bool has_word(h2o_iovec_t v, const char *word) {
    size_t n = strlen(word);
    for (size_t i = 0; i + n <= v.len; i++)
        if (!strncasecmp(v.base + i, word, n)) return true;
    return false;
}

int http_check_json_type(const struct http_call *c, struct apierr *e) {
    h2o_iovec_t coding = http_header(c->req, "content-encoding");
    if (coding.len && !(coding.len == 8 && !strncasecmp(coding.base, "identity", 8)))
        return apierr_set(e, APIERR_UNSUPPORTED_MEDIA_TYPE, NULL,
                          "Content-Encoding must be identity");
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
                          "Content-Type must be application/json");
    if (has_word(parameters, "charset") && !has_word(parameters, "utf-8") &&
        !has_word(parameters, "utf8"))
        return apierr_set(e, APIERR_UNSUPPORTED_MEDIA_TYPE, NULL, "the charset must be utf-8");
    return ST_OK;
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
}

static struct http_call *call_new(const struct http_handler *h, h2o_req_t *req) {
    struct http_call *c = h2o_mem_alloc_shared(&req->pool, sizeof *c, on_call_dispose);
    *c = (struct http_call){
        .req = req, .listener = h->listener, .app = h->app, .begun_us = mono_us()};
    c->conn = conn_of(c);
    take_request_id(c);
    conn_call_begin(c->conn);
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

static void answer_options(struct http_call *c) {
    char *allow = h2o_mem_alloc_pool(&c->req->pool, ALLOW_BYTES);
    list_methods(c->endpoint->methods, allow);
    send_reply(c, &SEND_HEAD(.status = 200, .allow = allow), "", 0);
}

static void dispatch(const struct http_handler *h, struct http_call *c) {
    h2o_iovec_t path = path_of(c->req);
    for (size_t i = 0; i < h->endpoint_count; i++) {
        const struct http_endpoint *ep = &h->endpoints[i];
        if (!matches(ep, path)) continue;
        c->endpoint = ep;
        if (is_method(c->req, "OPTIONS"))
            answer_options(c);
        else if (ep->methods & http_method_of(c))
            ep->handle(c);
        else
            http_wrong_method(c, ep->methods);
        return;
    }
    struct apierr e;
    char clip[APIERR_CLIP_BYTES];
    apierr_set(&e, APIERR_UNKNOWN_URL, NULL, "no such path: %s",
               apierr_clip(clip, path.base, path.len));
    send_reply_error(c, &e);
}

int http_on_req(h2o_handler_t *self, h2o_req_t *req) {
    const struct http_handler *h = (const struct http_handler *)self;
    struct http_call *c = call_new(h, req);
    struct apierr e;
    if (check_head(c, &e)) {
        req->http1_is_persistent = 0; // what follows on this connection may be no request at all
        send_reply_error(c, &e);
    } else {
        dispatch(h, c);
    }
    return 0;
}
