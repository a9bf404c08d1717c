/* listen: see listen.h. Sockets and the h2o context; connections and the sweep are conn.c's. */
#include "router/listen.h"
#include "common/err.h"
#include "common/log.h"
#include "common/mem.h"
#include "common/mono.h"
#include "router/http.h"
#include "router/listen_int.h"
#include "router/tls.h"

#include <arpa/inet.h>
#include <assert.h>
#include <errno.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <openssl/ssl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

enum {
    SEND_BUFFER_BYTES = 64 << 10, // so that a client that does not read is felt at once
    BACKLOG = 4096,
    FULL_GRACE_MS = 1000,   // a connection over the limit waits so long before it is turned away
    FDS_KEPT = 256,         // for workers, files and the other listener
    SPILL_BYTES = 32 << 20, // a buffer of this size is an unlinked file, mapped
};

// A network that died without a word is found by its unanswered bytes, in the time a stalled client has.
static void tune_tcp(const struct listener *l, uv_tcp_t *t) {
    unsigned ms = (unsigned)(l->config.write_stall_s * 1000);
    int fd;
    uv_tcp_nodelay(t, 1);
    if (!uv_fileno((uv_handle_t *)t, &fd))
        setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &ms, sizeof ms);
}

static uv_stream_t *accept_stream(struct listener *l) {
    uv_stream_t *stream;
    if (!l->is_unix) {
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
        return NULL;
    }
    return stream;
}

static void accept_one(struct listener *l) {
    uv_stream_t *stream = accept_stream(l);
    if (!stream) return;
    int bytes = SEND_BUFFER_BYTES;
    uv_send_buffer_size((uv_handle_t *)stream, &bytes);
    if (!l->is_unix) tune_tcp(l, (uv_tcp_t *)stream);
    conn_take(l, stream);
}

// All places are taken: an answer without a look at the request, and the end.
static void turn_away(struct listener *l) {
    uv_stream_t *stream = accept_stream(l);
    int fd;
    if (!stream) return;
    if (!l->tls && !uv_fileno((uv_handle_t *)stream, &fd))
        conn_answer_fd(fd, APIERR_OVERLOADED, "all connections are taken", l->config.metrics);
    uv_close((uv_handle_t *)stream, (uv_close_cb)free);
}

// libuv stops to listen until a waiting connection is accepted: that is how accepting pauses.
static void on_connection(uv_stream_t *server, int status) {
    struct listener *l = server->data;
    if (status < 0 || l->stopped) return;
    if (l->conn_count < l->config.connections_max) {
        accept_one(l);
    } else if (l->full_since_ms && mono_ms() - l->full_since_ms >= FULL_GRACE_MS) {
        turn_away(l);
    } else {
        l->accept_paused = true;
        if (!l->full_since_ms) l->full_since_ms = mono_ms();
    }
}

void listener_room(struct listener *l, uint64_t now_ms) {
    bool room = l->conn_count < l->config.connections_max;
    if (room) l->full_since_ms = 0;
    if (!l->accept_paused || l->stopped) return;
    if (!room && mono_since(l->full_since_ms, now_ms) < FULL_GRACE_MS) return;
    l->accept_paused = false;
    if (room)
        accept_one(l);
    else
        turn_away(l);
}

static void on_prepare(uv_prepare_t *p) {
    struct listener *l = p->data;
    send_set_flush(&l->sends);
    conn_hook(l);
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
        return err_set(e, ST_INVAL, "wanted HOST:PORT or unix:/path, found 'unix:%s'", path);
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
    l->is_unix = true;
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
        return err_set(e, ST_INVAL, "wanted HOST:PORT or unix:/path, found '%.100s'", address);
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
    if (rc) return err_set(e, ST_IO, "listen on '%.100s': %s", address, gai_strerror(rc));
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
    snprintf(l->url, sizeof l->url, v6 ? "%s://[%s]:%d" : "%s://%s:%d", l->tls ? "https" : "http",
             ip, port);
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

// A socket that a service manager has bound and listens on.
static int adopt(struct listener *l, int fd, struct err *e) {
    struct sockaddr_storage sa = {0};
    socklen_t len = sizeof sa;
    int type = 0;
    socklen_t type_len = sizeof type;
    if (getsockname(fd, (struct sockaddr *)&sa, &len) ||
        getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &type_len) || type != SOCK_STREAM ||
        (sa.ss_family != AF_UNIX && sa.ss_family != AF_INET && sa.ss_family != AF_INET6)) {
        uv_tcp_init(l->config.loop, &l->socket.tcp);
        close(fd);
        return err_set(e, ST_INVAL, "the inherited descriptor %d: wanted a stream socket", fd);
    }
    l->is_unix = sa.ss_family == AF_UNIX;
    if (l->is_unix) {
        const struct sockaddr_un *un = (const struct sockaddr_un *)(const void *)&sa;
        bool abstract = !un->sun_path[0];
        uv_pipe_init(l->config.loop, &l->socket.pipe, 0);
        uv_pipe_open(&l->socket.pipe, fd);
        snprintf(l->url, sizeof l->url, "unix:%s%s", abstract ? "@" : "", un->sun_path + abstract);
        return ST_OK;
    }
    uv_tcp_init(l->config.loop, &l->socket.tcp);
    uv_tcp_open(&l->socket.tcp, fd);
    name_url(l);
    return ST_OK;
}

static int bind_address(struct listener *l, const char *address, struct err *e) {
    if (l->config.inherited) return adopt(l, l->config.fd, e);
    if (!strncmp(address, "unix:", 5)) return bind_unix(l, address + 5, e);
    return bind_tcp(l, address, e);
}

// Process-wide, the same for every listener: h2o's input buffers beyond SPILL_BYTES live in files. A disk that is full
// ends the connection, not the process: h2o allocates the file's blocks before it maps them.
static void setup_spill(void) {
    const char *dir = getenv("TMPDIR");
    char *path = h2o_socket_buffer_mmap_settings.fn_template;
    size_t room = sizeof h2o_socket_buffer_mmap_settings.fn_template;
    h2o_socket_buffer_mmap_settings.threshold = SPILL_BYTES;
    int n = snprintf(path, room, "%s/railyard-body.XXXXXX", dir && *dir ? dir : "/tmp");
    if (n < 0 || (size_t)n >= room) strcpy(path, "/tmp/railyard-body.XXXXXX");
}

static void setup_h2o(struct listener *l) {
    const struct listener_config *c = &l->config;
    h2o_config_init(&l->global);
    setup_spill();
    l->global.server_name = h2o_iovec_init(H2O_STRLIT("railyard"));
    // h2o's one timer covers head, body and idling together and never restarts; the sweep has the finer limits.
    l->global.http1.req_timeout = (uint64_t)((c->keepalive_s + c->header_s + c->body_s) * 1000);
    l->global.http2.idle_timeout = (uint64_t)(c->keepalive_s * 1000);
    l->global.http2.graceful_shutdown_timeout = 0;
    l->global.http2.max_concurrent_requests_per_connection = c->h2_streams_max;
    // Past its own limit h2o answers in plain text, before the handler. http.c has the exact limit and the proper
    // answer, conn.c what is announced beyond the slack; h2o's is only what stops a body that goes on and on.
    l->global.max_request_entity_size = c->limits.body_bytes_max + HTTP_BODY_SLACK_BYTES;
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
    SSL_CTX_free(l->tls);
    free(l->unix_path);
    free(l);
}

// Some descriptors are for the rest: workers, files, the other listener, and the second one by which send.c watches an
// HTTP/1 client while it is being answered (without it a hang-up shows at the next write).
static uint32_t fd_bound(uint32_t connections_max) {
    struct rlimit r;
    if (getrlimit(RLIMIT_NOFILE, &r) || r.rlim_cur == RLIM_INFINITY) return connections_max;
    uint64_t fds = r.rlim_cur > 2 * FDS_KEPT ? r.rlim_cur - FDS_KEPT : r.rlim_cur / 2;
    if (connections_max <= fds) return connections_max;
    log_warn("connections", "wanted=%u possible=%llu reason=\"descriptors: %llu\"", connections_max,
             (unsigned long long)fds, (unsigned long long)r.rlim_cur);
    return (uint32_t)fds;
}

int listener_new(struct listener **ret, const struct listener_config *c, struct err *e) {
    struct listener *l = mem_calloc(1, sizeof *l);
    l->config = *c;
    TAILQ_INIT(&l->conns);
    TAILQ_INIT(&l->unhooked);
    l->config.connections_max = fd_bound(c->connections_max);
    int st = bind_address(l, c->address, e);
    l->socket.handle.data = l;
    if (!st && c->tls_cert && *c->tls_cert) st = tls_open(&l->tls, c->tls_cert, c->tls_key, e);
    if (l->tls && !l->is_unix) name_url(l);
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
    uv_timer_start(&l->sweep, conn_sweep, CONN_SWEEP_MS, CONN_SWEEP_MS);
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

const struct http_limits *listener_limits(const struct listener *l) {
    return &l->config.limits;
}

struct keys *listener_keys(const struct listener *l) {
    return l->config.keys;
}

const struct cors *listener_cors(const struct listener *l) {
    return &l->config.cors;
}

bool listener_metrics_auth(const struct listener *l) {
    return l->config.metrics_auth;
}

int listener_reload_tls(struct listener *l, struct err *e) {
    SSL_CTX *fresh;
    if (!l->tls) return ST_OK;
    int st = tls_open(&fresh, l->config.tls_cert, l->config.tls_key, e);
    if (st) return st;
    SSL_CTX_free(l->tls); // connections hold their own
    l->tls = fresh;
    return ST_OK;
}

void listener_share_tls(struct listener *l, const struct listener *from) {
    if (!l->tls || !from->tls) return;
    SSL_CTX_up_ref(from->tls);
    SSL_CTX_free(l->tls);
    l->tls = from->tls;
}

struct metrics *listener_metrics(const struct listener *l) {
    return l->config.metrics;
}

bool listener_is_local(const struct listener *l) {
    static const char *const local[] = {"unix:", "http://127.", "https://127.", "http://[::1]",
                                        "https://[::1]"};
    for (size_t i = 0; i < sizeof local / sizeof *local; i++)
        if (!strncmp(l->url, local[i], strlen(local[i]))) return true;
    return false;
}

const struct proxies *listener_proxies(const struct listener *l) {
    return l->config.proxies;
}

int32_t listener_rank(const struct listener *l) {
    return l->config.rank;
}

int listener_overload_status(const struct listener *l) {
    return l->config.overload_status;
}

void listener_set_closing(struct listener *l, bool on) {
    l->closing_replies = on;
}

bool listener_is_closing(const struct listener *l) {
    return l->draining || l->closing_replies;
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
    SSL_CTX_free(l->tls);
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
    conn_cut_idle(l);
}

void listener_cut(struct listener *l) {
    struct conn *c;
    TAILQ_FOREACH(c, &l->conns, link) conn_cut(c);
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
