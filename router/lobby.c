/* lobby: see lobby.h. */
#include "router/lobby.h"
#include "common/arena.h"
#include "common/err.h"
#include "common/log.h"
#include "common/mem.h"
#include "common/strbuf.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

enum { LENGTH_BYTES = 4, BACKLOG = 128 };

struct client {
    struct client *next;
    struct lobby *lobby;
    uv_pipe_t pipe;
    uint64_t since_ms; // of the loop's clock
    uint8_t bytes[LENGTH_BYTES + FRAME_LOBBY_BYTES_MAX];
    size_t have;
    struct strbuf answer;
    uv_write_t write;
    bool closing;
};

struct lobby {
    uv_loop_t *loop;
    uv_pipe_t listener;
    uv_timer_t sweep;
    struct client *clients;
    uint32_t count;
    lobby_on_hello *on_hello;
    void *arg;
    struct arena arena; // of the HELLO being answered
    uint32_t handles;   // of the lobby's own, still open
    bool closing;
    void (*on_closed)(void *arg);
    void *on_closed_arg;
};

/* The end. */

static void try_finish(struct lobby *l) {
    if (!l->closing || l->count > 0 || l->handles > 0) return;
    void (*closed)(void *) = l->on_closed;
    void *arg = l->on_closed_arg;
    arena_fini(&l->arena);
    free(l);
    closed(arg);
}

static void on_client_closed(uv_handle_t *h) {
    struct client *c = h->data;
    struct lobby *l = c->lobby;
    struct client **at = &l->clients;
    while (*at != c) at = &(*at)->next;
    *at = c->next;
    l->count--;
    strbuf_fini(&c->answer);
    free(c);
    try_finish(l);
}

static void close_client(struct client *c) {
    if (c->closing) return;
    c->closing = true;
    uv_close((uv_handle_t *)&c->pipe, on_client_closed);
}

/* One client. */

static void fill_answer(struct lobby *l, const uint8_t *bytes, size_t len, struct frame *answer) {
    struct frame f;
    struct err e = {0};
    int st = frame_decode(&f, bytes, len, &l->arena, &e);
    if (!st && f.type != FRAME_HELLO)
        st = err_set(&e, ST_CORRUPT, "wanted HELLO, found %s", frame_type_name(f.type));
    if (!st) {
        l->on_hello(l->arg, &f.hello, answer);
        return;
    }
    log_warn("lobby_refused", "reason=\"%s\"", e.msg);
    *answer = (struct frame){
        .type = FRAME_FAIL,
        .fail = {.code = FRAME_FAIL_INVALID, .message = arena_strdup(&l->arena, e.msg)}};
}

static void on_written(uv_write_t *w, int status) {
    close_client(w->data);
}

static void answer_to(struct client *c, size_t len) {
    struct lobby *l = c->lobby;
    struct frame answer = {0};
    uint8_t head[LENGTH_BYTES];
    arena_reset(&l->arena);
    fill_answer(l, c->bytes + LENGTH_BYTES, len, &answer);
    strbuf_add(&c->answer, head, sizeof head);
    int st = frame_encode(&c->answer, &answer, NULL);
    assert(st == ST_OK); // a few short texts
    size_t n = c->answer.len - sizeof head;
    for (int i = 0; i < LENGTH_BYTES; i++) c->answer.p[i] = (char)(n >> 8 * i);
    uv_buf_t buf = uv_buf_init(c->answer.p, (unsigned)c->answer.len);
    c->write.data = c;
    uv_read_stop((uv_stream_t *)&c->pipe);
    if (uv_write(&c->write, (uv_stream_t *)&c->pipe, &buf, 1, on_written)) close_client(c);
}

static void on_alloc(uv_handle_t *h, size_t suggested, uv_buf_t *ret) {
    struct client *c = h->data;
    *ret = uv_buf_init((char *)c->bytes + c->have, (unsigned)(sizeof c->bytes - c->have));
}

static void on_read(uv_stream_t *s, ssize_t n, const uv_buf_t *buf) {
    struct client *c = s->data;
    if (n < 0) return close_client(c); // gone, or more than fits
    c->have += (size_t)n;
    if (c->have < LENGTH_BYTES) return;
    size_t len = 0;
    for (int i = 0; i < LENGTH_BYTES; i++) len |= (size_t)c->bytes[i] << 8 * i;
    if (len > FRAME_LOBBY_BYTES_MAX) {
        log_warn("lobby_refused", "reason=\"a frame of %zu bytes, at most %d allowed\"", len,
                 FRAME_LOBBY_BYTES_MAX);
        close_client(c);
    } else if (c->have >= LENGTH_BYTES + len) {
        answer_to(c, len);
    }
}

static void on_connection(uv_stream_t *s, int status) {
    struct lobby *l = s->data;
    if (status < 0 || l->closing) return;
    struct client *c = mem_calloc(1, sizeof *c);
    c->lobby = l;
    c->since_ms = uv_now(l->loop);
    c->next = l->clients;
    l->clients = c;
    l->count++;
    uv_pipe_init(l->loop, &c->pipe, 0);
    c->pipe.data = c;
    bool over = l->count > LOBBY_CLIENTS_MAX;
    if (uv_accept(s, (uv_stream_t *)&c->pipe) || over ||
        uv_read_start((uv_stream_t *)&c->pipe, on_alloc, on_read))
        close_client(c);
}

static void on_sweep(uv_timer_t *t) {
    struct lobby *l = t->data;
    for (struct client *c = l->clients; c; c = c->next)
        if (uv_now(l->loop) - c->since_ms > LOBBY_CLIENT_MS) close_client(c);
}

/* The socket. */

// Whether somebody listens on path. A file that a crash left is taken away.
static bool is_taken(const char *path) {
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    if (strlen(path) >= sizeof a.sun_path) return false; // bind says so
    strcpy(a.sun_path, path);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    bool taken = fd >= 0 && (!connect(fd, (struct sockaddr *)&a, sizeof a) || errno == EAGAIN);
    if (fd >= 0 && !taken && errno == ECONNREFUSED) unlink(path);
    if (fd >= 0) close(fd);
    return taken;
}

static int listen_on(struct lobby *l, const char *path, struct err *e) {
    if (is_taken(path)) return err_set(e, ST_IO, "listen on '%s': another router does", path);
    int rv = uv_pipe_bind(&l->listener, path);
    // Between bind and listen nobody can connect, so the mode is right before anybody can.
    if (!rv && chmod(path, 0600)) return err_errno(e, "mode of '%s'", path);
    if (!rv) rv = uv_listen((uv_stream_t *)&l->listener, BACKLOG, on_connection);
    return rv ? (int)err_set(e, ST_IO, "listen on '%s': %s", path, uv_strerror(rv)) : ST_OK;
}

static void on_own_closed(uv_handle_t *h) {
    struct lobby *l = h->data;
    l->handles--;
    try_finish(l);
}

static void ignore(void *arg) {}

int lobby_open(struct lobby **ret, uv_loop_t *loop, const char *url, lobby_on_hello *on_hello,
               void *arg, struct err *e) {
    assert(!strncmp(url, "ipc://", 6));
    struct lobby *l = mem_calloc(1, sizeof *l);
    *l = (struct lobby){.loop = loop, .on_hello = on_hello, .arg = arg, .handles = 2};
    uv_pipe_init(loop, &l->listener, 0);
    uv_timer_init(loop, &l->sweep);
    l->listener.data = l->sweep.data = l;
    int st = listen_on(l, url + 6, e);
    if (st) return lobby_close(l, ignore, NULL), st;
    uv_timer_start(&l->sweep, on_sweep, LOBBY_CLIENT_MS / 4, LOBBY_CLIENT_MS / 4);
    *ret = l;
    return ST_OK;
}

void lobby_close(struct lobby *l, void (*closed)(void *arg), void *arg) {
    assert(!l->closing);
    l->closing = true;
    l->on_closed = closed;
    l->on_closed_arg = arg;
    for (struct client *c = l->clients; c; c = c->next) close_client(c);
    uv_close((uv_handle_t *)&l->listener, on_own_closed);
    uv_close((uv_handle_t *)&l->sweep, on_own_closed);
}
