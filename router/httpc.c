/* httpc: see httpc.h. */
#include "router/httpc.h"
#include "common/err.h"
#include "common/mem.h"
#include "common/mono.h"
#include "common/strbuf.h"
#include "router/httpresp.h"

#include <assert.h>
#include <ctype.h>
#include <netdb.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/un.h>

enum { READ_BYTES = 64 << 10 };

/* ---- addresses ---- */

static int resolve(struct httpc_address *a, const char *host, const char *port, struct err *e) {
    struct addrinfo *list = NULL, hints = {.ai_socktype = SOCK_STREAM};
    int rc = getaddrinfo(*host ? host : "127.0.0.1", port, &hints, &list);
    if (rc) return err_set(e, ST_INVAL, "address '%.100s': %s", a->text, gai_strerror(rc));
    for (struct addrinfo *i = list; i && a->count < HTTPC_ADDRESSES_MAX; i = i->ai_next)
        memcpy(&a->at[a->count++], i->ai_addr, i->ai_addrlen);
    freeaddrinfo(list);
    return ST_OK;
}

static int bad_address(const struct httpc_address *a, struct err *e) {
    return err_set(e, ST_INVAL, "wanted [http://]HOST:PORT or unix:/path, found '%.100s'", a->text);
}

static int parse_unix(struct httpc_address *a, const char *path, struct err *e) {
    size_t max = sizeof((struct sockaddr_un *)0)->sun_path - 1;
    if (!*path) return bad_address(a, e);
    if (strlen(path) > max)
        return err_set(e, ST_INVAL, "address '%.100s': a socket's path has at most %zu bytes",
                       a->text, max);
    a->unix_path = mem_strdup(path);
    a->host = mem_strdup("localhost");
    a->prefix = mem_strdup("");
    return ST_OK;
}

// host becomes "HOST" or "HOST:PORT" of the authority; *ret_port points into it or to the default.
static bool split_port(char *host, bool has_scheme, const char **ret_port) {
    char *bracket = strrchr(host, ']');
    char *colon = strrchr(bracket ? bracket : host, ':');
    if (!colon) {
        *ret_port = "80";
        return has_scheme;
    }
    *colon = '\0';
    *ret_port = colon + 1;
    size_t digits = strspn(*ret_port, "0123456789");
    return digits && digits < 6 && !(*ret_port)[digits] && atoi(*ret_port) <= UINT16_MAX;
}

static void set_prefix(struct httpc_address *a, const char *path) {
    a->prefix = mem_strdup(path);
    size_t n = strlen(a->prefix);
    while (n && a->prefix[n - 1] == '/') n--;
    if (n >= 3 && !strncmp(a->prefix + n - 3, "/v1", 3)) n -= 3;
    a->prefix[n] = '\0';
}

static int parse_tcp(struct httpc_address *a, const char *rest, bool has_scheme, struct err *e) {
    size_t n = strcspn(rest, "/");
    a->host = mem_strndup(rest, n);
    set_prefix(a, rest + n);
    char *host = mem_strdup(a->host), *name = host;
    const char *port;
    bool ok = n && !strpbrk(rest, "?#@ \t\r\n") && split_port(host, has_scheme, &port);
    size_t len = strlen(host);
    if (ok && *host == '[' && len >= 2 && host[len - 1] == ']') {
        host[len - 1] = '\0';
        name = host + 1;
    }
    int st = ok ? resolve(a, name, port, e) : bad_address(a, e);
    free(host);
    return st;
}

int httpc_address_parse(struct httpc_address *ret, const char *text, struct err *e) {
    struct httpc_address a = {.text = mem_strdup(text)};
    int st;
    if (!strncasecmp(text, "https://", 8))
        st = err_set(e, ST_UNSUPPORTED,
                     "'%.100s': https is not spoken here; give the plain listener", text);
    else if (!strncmp(text, "unix:", 5))
        st = parse_unix(&a, text + 5, e);
    else if (!strncasecmp(text, "http://", 7))
        st = parse_tcp(&a, text + 7, true, e);
    else
        st = parse_tcp(&a, text, false, e);
    if (st)
        httpc_address_fini(&a);
    else
        *ret = a;
    return st;
}

void httpc_address_fini(struct httpc_address *a) {
    free(a->text);
    free(a->host);
    free(a->prefix);
    free(a->unix_path);
    memset(a, 0, sizeof *a);
}

/* ---- one request ---- */

struct httpc {
    uv_loop_t *loop;
    const struct httpc_address *to;
    struct httpc_events events;
    union {
        uv_stream_t stream;
        uv_tcp_t tcp;
        uv_pipe_t pipe;
    } io;
    uv_timer_t timer;
    uv_connect_t connect;
    uv_write_t write;
    struct strbuf out;
    struct httpresp reply;
    unsigned next_address;
    bool io_open, ended; // io_open: finish() has to close it
    int handles;         // not yet closed
    uint64_t stall_ms, sent_ns, read_ns;
    int st; // what on_end will say
    struct err err;
    char buffer[READ_BYTES];
};

static void connect_next(struct httpc *c);

static void on_closed(uv_handle_t *h) {
    struct httpc *c = h->data;
    if (--c->handles) return;
    c->events.on_end(c->events.arg, c->st, &c->err);
    httpresp_fini(&c->reply);
    strbuf_fini(&c->out);
    free(c);
}

// The outcome stands in c->st and c->err; it is told when the handles are closed. Once.
static void finish(struct httpc *c) {
    if (c->ended) return;
    c->ended = true;
    if (c->io_open) uv_close((uv_handle_t *)&c->io.stream, on_closed);
    uv_close((uv_handle_t *)&c->timer, on_closed);
}

static void fail_uv(struct httpc *c, const char *what, int rc) {
    if (c->ended) return;
    c->st = err_set(&c->err, rc == UV_ETIMEDOUT ? ST_TIMEOUT : ST_IO, "%s %.100s: %s", what,
                    c->to->text, uv_strerror(rc));
    finish(c);
}

static void on_stall(uv_timer_t *t) {
    struct httpc *c = t->data;
    c->st = err_set(&c->err, ST_TIMEOUT, "nothing came from %.100s for %.1f s", c->to->text,
                    (double)c->stall_ms / 1000);
    finish(c);
}

static void on_alloc(uv_handle_t *h, size_t suggested, uv_buf_t *ret) {
    struct httpc *c = h->data;
    *ret = uv_buf_init(c->buffer, sizeof c->buffer);
}

static void on_read(uv_stream_t *s, ssize_t n, const uv_buf_t *buf) {
    struct httpc *c = s->data;
    if (n == 0 || c->ended) return;
    c->read_ns = mono_ns();
    if (n < 0 && n != UV_EOF) {
        fail_uv(c, "read from", (int)n);
        return;
    }
    int st = n == UV_EOF ? httpresp_close(&c->reply, &c->err)
                         : httpresp_feed(&c->reply, buf->base, (size_t)n, &c->err);
    if (c->ended) return; // cancelled by a callback
    if (st || c->reply.state == HTTPRESP_DONE) {
        c->st = st;
        finish(c);
        return;
    }
    uv_timer_again(&c->timer);
}

// A server may refuse a body and close before it has read it all: what it said comes by reading, so does its end.
static void on_written(uv_write_t *w, int rc) {
    (void)w, (void)rc;
}

static void send_request(struct httpc *c) {
    if (!c->to->unix_path) uv_tcp_nodelay(&c->io.tcp, 1);
    c->sent_ns = mono_ns();
    c->write.data = c;
    uv_buf_t buf = uv_buf_init(c->out.p, (unsigned)c->out.len);
    int rc = uv_write(&c->write, &c->io.stream, &buf, 1, on_written);
    if (!rc) rc = uv_read_start(&c->io.stream, on_alloc, on_read);
    if (rc) fail_uv(c, "write to", rc);
}

// Of an address that did not answer: its handle is no longer c's, so finish() leaves it alone.
static void on_try_closed(uv_handle_t *h) {
    struct httpc *c = h->data;
    if (c->ended) {
        on_closed(h);
        return;
    }
    c->handles--;
    connect_next(c);
}

static void on_connect(uv_connect_t *k, int rc) {
    struct httpc *c = k->data;
    if (c->ended) return;
    if (!rc) {
        send_request(c);
    } else if (!c->to->unix_path && c->next_address < c->to->count) {
        c->io_open = false;
        uv_close((uv_handle_t *)&c->io.stream, on_try_closed);
    } else {
        fail_uv(c, "connect to", rc);
    }
}

static void open_io(struct httpc *c) {
    if (c->to->unix_path)
        uv_pipe_init(c->loop, &c->io.pipe, 0);
    else
        uv_tcp_init(c->loop, &c->io.tcp);
    c->io.stream.data = c;
    c->io_open = true;
    c->handles++;
}

static void connect_next(struct httpc *c) {
    open_io(c);
    c->connect.data = c;
    if (c->to->unix_path) {
        uv_pipe_connect(&c->connect, &c->io.pipe, c->to->unix_path, on_connect);
        return;
    }
    const struct sockaddr *sa = (const struct sockaddr *)&c->to->at[c->next_address++];
    int rc = uv_tcp_connect(&c->connect, &c->io.tcp, sa, on_connect);
    if (rc) fail_uv(c, "connect to", rc);
}

static void build(struct strbuf *out, const struct httpc_address *to,
                  const struct httpc_request *r) {
    strbuf_printf(out, "%s %s%s HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n", r->method,
                  to->prefix, r->path, to->host);
    if (r->key && *r->key) strbuf_printf(out, "Authorization: Bearer %s\r\n", r->key);
    if (r->body)
        strbuf_printf(out, "Content-Type: application/json\r\nContent-Length: %zu\r\n",
                      r->body_len);
    strbuf_add_str(out, "\r\n");
    if (r->body) strbuf_add(out, r->body, r->body_len);
}

static void tell_head(void *arg, int status) {
    struct httpc *c = arg;
    if (c->events.on_head && !c->ended) c->events.on_head(c->events.arg, status);
}

static void tell_body(void *arg, const char *p, size_t len) {
    struct httpc *c = arg;
    if (!c->ended) c->events.on_body(c->events.arg, p, len);
}

struct httpc *httpc_start(uv_loop_t *loop, const struct httpc_address *to,
                          const struct httpc_request *r, const struct httpc_events *events) {
    struct httpc *c = mem_calloc(1, sizeof *c);
    c->loop = loop;
    c->to = to;
    c->events = *events;
    c->stall_ms = r->stall_ms;
    c->reply.on_head = tell_head;
    c->reply.on_body = tell_body;
    c->reply.arg = c;
    build(&c->out, to, r);
    uv_timer_init(loop, &c->timer);
    c->timer.data = c;
    c->handles = 1;
    uv_timer_start(&c->timer, on_stall, r->stall_ms, r->stall_ms);
    connect_next(c);
    return c;
}

void httpc_cancel(struct httpc *c) {
    if (c->ended) return;
    c->st = err_set(&c->err, ST_CANCELLED, "cancelled");
    finish(c);
}

uint64_t httpc_sent_ns(const struct httpc *c) {
    return c->sent_ns;
}

uint64_t httpc_read_ns(const struct httpc *c) {
    return c->read_ns;
}

/* ---- a request on a loop of its own ---- */

struct fetch {
    struct strbuf *body;
    int status, st;
    struct err *e;
};

static void fetch_head(void *arg, int status) {
    ((struct fetch *)arg)->status = status;
}

static void fetch_body(void *arg, const char *p, size_t len) {
    strbuf_add(((struct fetch *)arg)->body, p, len);
}

static void fetch_end(void *arg, int st, const struct err *e) {
    struct fetch *f = arg;
    f->st = st;
    if (st && f->e) *f->e = *e;
}

int httpc_fetch(const struct httpc_address *to, const struct httpc_request *r, int *ret_status,
                struct strbuf *ret_body, struct err *e) {
    uv_loop_t loop;
    struct fetch f = {.body = ret_body, .e = e};
    struct httpc_events events = {&f, fetch_head, fetch_body, fetch_end};
    int rc = uv_loop_init(&loop);
    if (rc) return err_set(e, ST_NOMEM, "event loop: %s", uv_strerror(rc));
    httpc_start(&loop, to, r, &events);
    uv_run(&loop, UV_RUN_DEFAULT);
    rc = uv_loop_close(&loop);
    assert(!rc);
    if (!f.st) *ret_status = f.status;
    return f.st;
}
