/* listen: see listen.h. */
#include "router/listen.h"
#include "common/err.h"
#include "common/mem.h"
#include "common/mono.h"
#include "router/http.h"
#include "router/metrics.h"
#include "router/send.h"

#include <arpa/inet.h>
#include <assert.h>
#include <errno.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

enum {
    SWEEP_MS = 250,
    SEND_BUFFER_BYTES = 64 << 10, // so that a client that does not read is felt at once
    BACKLOG = 4096,
    BODY_SLACK_BYTES = 64 << 10,
    BODY_RATE_MIN = 1024, // bytes a second, measured after
    BODY_RATE_AFTER_S = 10,
    RESETS_MAX = 200, // of HTTP/2 streams on one connection within
    RESETS_WINDOW_MS = 10000,
    URL_BYTES = 160,
    REMOTE_BYTES = 72,
};

struct conn {
    struct listener *listener;
    h2o_socket_t *sock;
    TAILQ_ENTRY(conn) link;
    uint32_t busy; // requests in handlers
    uint64_t idle_since_ms;
    bool is_http2;
    uint32_t resets; // since resets_since_ms
    uint64_t resets_since_ms;
    char remote[REMOTE_BYTES];
};
TAILQ_HEAD(conn_list, conn);

struct listener {
    struct listener_config config;
    h2o_globalconf_t global;
    h2o_context_t ctx;
    h2o_accept_ctx_t accept_ctx;
    union {
        uv_handle_t handle;
        uv_stream_t stream;
        uv_tcp_t tcp;
        uv_pipe_t pipe;
    } socket;
    uv_timer_t sweep;
    uv_prepare_t prepare;
    struct conn_list conns;
    uint32_t conn_count;
    bool accept_paused; // at connections_max: one connection waits to be accepted
    bool draining, stopped;
    struct send_set sends;
    char url[URL_BYTES];
    char *unix_path;  // NULL: TCP
    unsigned closing; // handles not closed yet
    void (*closed)(void *arg);
    void *closed_arg;
};

/* ---- connections ---- */

static void cut(struct conn *c) {
    shutdown(h2o_socket_get_fd(c->sock), SHUT_RDWR);
}

static void on_conn_closed(void *data) {
    struct conn *c = data;
    struct listener *l = c->listener;
    TAILQ_REMOVE(&l->conns, c, link);
    l->conn_count--;
    metrics_connections(l->config.metrics, c->is_http2, -1);
    free(c);
}

static void name_remote(struct conn *c, const uv_stream_t *stream) {
    struct sockaddr_storage sa;
    int len = sizeof sa;
    char ip[INET6_ADDRSTRLEN];
    strcpy(c->remote, "unix");
    if (stream->type != UV_TCP) return;
    strcpy(c->remote, "unknown");
    if (uv_tcp_getpeername((const uv_tcp_t *)stream, (struct sockaddr *)&sa, &len)) return;
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

static void take_conn(struct listener *l, uv_stream_t *stream) {
    struct conn *c = mem_calloc(1, sizeof *c);
    c->listener = l;
    c->idle_since_ms = c->resets_since_ms = mono_ms();
    name_remote(c, stream);
    TAILQ_INSERT_TAIL(&l->conns, c, link);
    l->conn_count++;
    metrics_connections(l->config.metrics, false, 1);
    c->sock = h2o_uv_socket_create(stream, (uv_close_cb)free);
    c->sock->on_close.cb = on_conn_closed;
    c->sock->on_close.data = c;
    h2o_accept(&l->accept_ctx, c->sock);
}

// A network that died without a word is found by its unanswered bytes, in the time a stalled client has.
static void tune_tcp(const struct listener *l, uv_tcp_t *t) {
    unsigned ms = (unsigned)(l->config.write_stall_s * 1000);
    int fd;
    uv_tcp_nodelay(t, 1);
    if (!uv_fileno((uv_handle_t *)t, &fd))
        setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &ms, sizeof ms);
}

static void accept_one(struct listener *l) {
    uv_stream_t *stream;
    bool tcp = !l->unix_path;
    if (tcp) {
        uv_tcp_t *t = mem_calloc(1, sizeof *t);
        uv_tcp_init(l->config.loop, t);
        stream = (uv_stream_t *)t;
    } else {
        uv_pipe_t *p = mem_calloc(1, sizeof *p);
        uv_pipe_init(l->config.loop, p, 0);
        stream = (uv_stream_t *)p;
    }
    if (uv_accept(&l->socket.stream, stream)) {
        uv_close((uv_handle_t *)stream, (uv_close_cb)free);
        return;
    }
    int bytes = SEND_BUFFER_BYTES;
    uv_send_buffer_size((uv_handle_t *)stream, &bytes);
    if (tcp) tune_tcp(l, (uv_tcp_t *)stream);
    take_conn(l, stream);
}

// libuv stops to listen until a waiting connection is accepted: that is how accepting pauses.
static void on_connection(uv_stream_t *server, int status) {
    struct listener *l = server->data;
    if (status < 0 || l->stopped) return;
    if (l->conn_count >= l->config.connections_max)
        l->accept_paused = true;
    else
        accept_one(l);
}

struct conn *conn_of(struct http_call *c) {
    return c->req->conn->callbacks->get_socket(c->req->conn)->on_close.data;
}

const char *conn_remote(const struct conn *conn) {
    return conn->remote;
}

void conn_call_begin(struct conn *conn) {
    conn->busy++;
}

void conn_call_end(struct conn *conn, struct http_call *c) {
    struct listener *l = conn->listener;
    uint64_t now = mono_ms();
    bool is_http2 = c->req->version >= 0x200;
    if (is_http2 && !conn->is_http2) {
        conn->is_http2 = true;
        metrics_connections(l->config.metrics, false, -1);
        metrics_connections(l->config.metrics, true, 1);
    }
    if (--conn->busy == 0) conn->idle_since_ms = now;
    if (is_http2 && c->status == 499) {
        if (now - conn->resets_since_ms > RESETS_WINDOW_MS) {
            conn->resets_since_ms = now;
            conn->resets = 0;
        }
        conn->resets++;
    }
    if (l->config.on_call_over) l->config.on_call_over(l->config.app, c);
}

/* ---- the sweep: what h2o has no timer for ---- */

struct slow {
    const struct listener *l;
    const struct timeval *now;
};

static double seconds_since(const struct timeval *then, const struct timeval *now) {
    return (double)(now->tv_sec - then->tv_sec) + (double)(now->tv_usec - then->tv_usec) / 1e6;
}

// A request whose handler has not been reached: is it late?
static int cut_if_slow(h2o_req_t *req, void *arg) {
    const struct slow *s = arg;
    if (req->processed_at.at.tv_sec || !req->timestamps.request_begin_at.tv_sec) return 0;
    h2o_socket_t *sock = req->conn->callbacks->get_socket(req->conn);
    bool in_body = req->timestamps.request_body_begin_at.tv_sec != 0;
    const struct timeval *since =
        in_body ? &req->timestamps.request_body_begin_at : &req->timestamps.request_begin_at;
    double age = seconds_since(since, s->now);
    bool late = age > (in_body ? s->l->config.body_s : s->l->config.header_s);
    bool crawls = in_body && req->version < 0x200 && age > BODY_RATE_AFTER_S &&
                  (double)sock->input->size < age * BODY_RATE_MIN;
    if (late || crawls) shutdown(h2o_socket_get_fd(sock), SHUT_RDWR);
    return 0;
}

static void sweep_conns(struct listener *l, uint64_t now) {
    uint64_t keepalive_ms = (uint64_t)(l->config.keepalive_s * 1000);
    struct conn *c;
    TAILQ_FOREACH(c, &l->conns, link) {
        bool idle = c->busy == 0 && c->sock->input->size == 0;
        if (idle && !c->is_http2 && (l->stopped || now - c->idle_since_ms > keepalive_ms)) cut(c);
        if (c->resets > RESETS_MAX) cut(c);
    }
}

static void on_sweep(uv_timer_t *t) {
    struct listener *l = t->data;
    uint64_t now = mono_ms();
    struct slow s = {l, h2o_get_timestamp(&l->ctx, NULL, NULL)};
    l->global.http1.callbacks.foreach_request(&l->ctx, cut_if_slow, &s);
    l->global.http2.callbacks.foreach_request(&l->ctx, cut_if_slow, &s);
    sweep_conns(l, now);
    send_set_sweep(&l->sends, now, (uint64_t)(l->config.write_stall_s * 1000));
    if (l->accept_paused && !l->stopped && l->conn_count < l->config.connections_max) {
        l->accept_paused = false;
        accept_one(l);
    }
}

static void on_prepare(uv_prepare_t *p) {
    struct listener *l = p->data;
    send_set_flush(&l->sends);
}

/* ---- opening ---- */

// A socket file that nobody answers on was left by a run that was killed.
static void unlink_stale(const struct sockaddr_un *sa) {
    struct stat sb;
    if (lstat(sa->sun_path, &sb) || !S_ISSOCK(sb.st_mode)) return;
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0) return;
    if (connect(fd, (const struct sockaddr *)sa, sizeof *sa) && errno == ECONNREFUSED)
        unlink(sa->sun_path);
    close(fd);
}

static int bind_unix(struct listener *l, const char *path, struct err *e) {
    struct sockaddr_un sa = {.sun_family = AF_UNIX};
    uv_pipe_init(l->config.loop, &l->socket.pipe, 0);
    if (path[0] != '/')
        return err_set(e, ST_INVAL, "listen: wanted HOST:PORT or unix:/path, found 'unix:%s'",
                       path);
    if (strlen(path) >= sizeof sa.sun_path)
        return err_set(e, ST_INVAL, "listen on unix:%s: a socket's path has at most %zu bytes",
                       path, sizeof sa.sun_path - 1);
    strcpy(sa.sun_path, path);
    unlink_stale(&sa);
    int rc = uv_pipe_bind(&l->socket.pipe, path);
    // libuv says "permission denied" for a missing folder too.
    const char *why = rc == UV_EACCES ? "no permission, or no such folder"
                      : rc            ? uv_strerror(rc)
                                      : "";
    if (rc) return err_set(e, ST_IO, "listen on unix:%s: %s", path, why);
    l->unix_path = mem_strdup(path);
    chmod(path, 0660);
    snprintf(l->url, sizeof l->url, "unix:%s", path);
    return ST_OK;
}

// HOST:PORT or [HOST]:PORT into the two parts. All interfaces are asked for by name, 0.0.0.0 or [::], never by leaving it out.
static int split_address(const char *address, char host[256], char port[8], struct err *e) {
    const char *colon = strrchr(address, ':');
    size_t n = colon ? (size_t)(colon - address) : 0;
    bool bracketed = n >= 2 && address[0] == '[' && address[n - 1] == ']';
    size_t digits = colon ? strspn(colon + 1, "0123456789") : 0;
    if (!colon || n == 0 || (bracketed && n == 2) || digits == 0 || digits > 5 ||
        colon[1 + digits] || atoi(colon + 1) > 65535 || n >= 256)
        return err_set(e, ST_INVAL, "listen: wanted HOST:PORT or unix:/path, found '%.100s'",
                       address);
    snprintf(port, 8, "%s", colon + 1);
    snprintf(host, 256, "%.*s", (int)(bracketed ? n - 2 : n), address + bracketed);
    return ST_OK;
}

static int open_tcp_fd(const char *address, int *ret, struct err *e) {
    char host[256], port[8];
    int st = split_address(address, host, port, e);
    if (st) return st;
    struct addrinfo *list = NULL;
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE | AI_NUMERICSERV};
    int rc = getaddrinfo(host, port, &hints, &list);
    if (rc) return err_set(e, ST_INVAL, "listen on '%.100s': %s", address, gai_strerror(rc));
    int on = 1;
    int fd = socket(list->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd >= 0) setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (fd < 0 || bind(fd, list->ai_addr, list->ai_addrlen)) {
        st = err_errno(e, "listen on '%.100s'", address);
        if (fd >= 0) close(fd);
    } else {
        *ret = fd;
    }
    freeaddrinfo(list);
    return st;
}

static void name_url(struct listener *l) {
    struct sockaddr_storage sa;
    int len = sizeof sa;
    char ip[INET6_ADDRSTRLEN];
    uv_tcp_getsockname(&l->socket.tcp, (struct sockaddr *)&sa, &len);
    bool v6 = sa.ss_family == AF_INET6;
    int port =
        ntohs(v6 ? ((struct sockaddr_in6 *)&sa)->sin6_port : ((struct sockaddr_in *)&sa)->sin_port);
    if (v6)
        uv_ip6_name((struct sockaddr_in6 *)&sa, ip, sizeof ip);
    else
        uv_ip4_name((struct sockaddr_in *)&sa, ip, sizeof ip);
    snprintf(l->url, sizeof l->url, v6 ? "http://[%s]:%d" : "http://%s:%d", ip, port);
}

static int bind_tcp(struct listener *l, const char *address, struct err *e) {
    int fd;
    uv_tcp_init(l->config.loop, &l->socket.tcp);
    int st = open_tcp_fd(address, &fd, e);
    if (st) return st;
    int rc = uv_tcp_open(&l->socket.tcp, fd);
    assert(rc == 0); // a fresh non-blocking socket
    name_url(l);
    return ST_OK;
}

static void setup_h2o(struct listener *l) {
    const struct listener_config *c = &l->config;
    h2o_config_init(&l->global);
    l->global.server_name = h2o_iovec_init(H2O_STRLIT("railyard"));
    // h2o's one timer covers head, body and idling together and never restarts; the sweep has the finer limits.
    l->global.http1.req_timeout = (uint64_t)((c->keepalive_s + c->header_s + c->body_s) * 1000);
    l->global.http2.idle_timeout = (uint64_t)(c->keepalive_s * 1000);
    l->global.http2.graceful_shutdown_timeout = 0;
    // Past its own limit h2o answers in plain text, before the handler. http.c has the exact limit and the proper
    // answer; h2o's is only what stops a body that goes on and on.
    l->global.max_request_entity_size = c->body_bytes_max + BODY_SLACK_BYTES;
    h2o_hostconf_t *host =
        h2o_config_register_host(&l->global, h2o_iovec_init(H2O_STRLIT("default")), 65535);
    h2o_pathconf_t *paths[] = {h2o_config_register_path(host, "/", 0), &host->fallback_path};
    for (size_t i = 0; i < 2; i++) {
        struct http_handler *h =
            (struct http_handler *)h2o_create_handler(paths[i], sizeof(struct http_handler));
        h->super.on_req = http_on_req;
        h->listener = l;
        h->app = c->app;
        h->endpoints = c->endpoints;
        h->endpoint_count = c->endpoint_count;
    }
    h2o_context_init(&l->ctx, c->loop, &l->global);
    l->accept_ctx = (h2o_accept_ctx_t){.ctx = &l->ctx, .hosts = l->global.hosts};
}

static void on_failed_closed(uv_handle_t *h) {
    struct listener *l = h->data;
    free(l->unix_path);
    free(l);
}

int listener_new(struct listener **ret, const struct listener_config *c, struct err *e) {
    struct listener *l = mem_calloc(1, sizeof *l);
    l->config = *c;
    TAILQ_INIT(&l->conns);
    bool is_unix = !strncmp(c->address, "unix:", 5);
    int st = is_unix ? bind_unix(l, c->address + 5, e) : bind_tcp(l, c->address, e);
    l->socket.handle.data = l;
    int rc = st ? 0 : uv_listen(&l->socket.stream, BACKLOG, on_connection);
    if (rc) st = err_set(e, ST_IO, "listen on '%.100s': %s", c->address, uv_strerror(rc));
    if (st) {
        uv_close(&l->socket.handle, on_failed_closed);
        return st;
    }
    send_set_init(&l->sends, c->loop, c->half_close);
    setup_h2o(l);
    uv_timer_init(c->loop, &l->sweep);
    uv_prepare_init(c->loop, &l->prepare);
    l->sweep.data = l->prepare.data = l;
    uv_timer_start(&l->sweep, on_sweep, SWEEP_MS, SWEEP_MS);
    uv_prepare_start(&l->prepare, on_prepare);
    *ret = l;
    return ST_OK;
}

const char *listener_url(const struct listener *l) {
    return l->url;
}

struct send_set *listener_sends(struct listener *l) {
    return &l->sends;
}

size_t listener_body_bytes_max(const struct listener *l) {
    return l->config.body_bytes_max;
}

struct metrics *listener_metrics(const struct listener *l) {
    return l->config.metrics;
}

bool listener_is_local(const struct listener *l) {
    static const char *const local[] = {"unix:", "http://127.", "http://[::1]"};
    for (size_t i = 0; i < sizeof local / sizeof *local; i++)
        if (!strncmp(l->url, local[i], strlen(local[i]))) return true;
    return false;
}

int listener_overload_status(const struct listener *l) {
    return l->config.overload_status;
}

bool listener_is_draining(const struct listener *l) {
    return l->draining;
}

uint32_t listener_connections(const struct listener *l) {
    return l->conn_count;
}

/* ---- winding down ---- */

void listener_drain(struct listener *l) {
    if (l->draining) return;
    l->draining = true;
    h2o_context_request_shutdown(&l->ctx);
}

// Both the listening socket, which may close long before the rest, and the rest.
static void on_handle_closed(uv_handle_t *h) {
    struct listener *l = h->data;
    l->closing--;
    if (l->closing || !l->closed) return;
    void (*closed)(void *) = l->closed;
    void *arg = l->closed_arg;
    h2o_config_dispose(&l->global);
    free(l->unix_path);
    free(l);
    closed(arg);
}

void listener_stop(struct listener *l) {
    listener_drain(l);
    if (l->stopped) return;
    l->stopped = true;
    l->closing++;
    uv_close(&l->socket.handle, on_handle_closed);
    if (l->unix_path) unlink(l->unix_path);
    sweep_conns(l, mono_ms());
}

void listener_cut(struct listener *l) {
    struct conn *c;
    TAILQ_FOREACH(c, &l->conns, link) cut(c);
}

void listener_close(struct listener *l, void (*closed)(void *arg), void *arg) {
    assert(l->conn_count == 0);
    listener_stop(l);
    l->closed = closed;
    l->closed_arg = arg;
    l->closing += 2;
    uv_close((uv_handle_t *)&l->sweep, on_handle_closed);
    uv_close((uv_handle_t *)&l->prepare, on_handle_closed);
    // The second GOAWAY may still be due; there is nobody left to get it, and h2o asserts that no timer is pending.
    h2o_timeout_unlink(&l->ctx.http2._graceful_shutdown_timeout);
    h2o_context_dispose(&l->ctx);
}
