/* wire: see wire.h. nng facts that shaped it: a pair0 socket delivers what waits for a dead peer to the next one that
 * dials, so each incarnation has its own; a peer's death shows only while a receive is posted; nng_close may block
 * and must not be called from nng's callbacks. */
#include "worker/wire.h"
#include "common/arena.h"
#include "common/err.h"
#include "common/hangup.h"
#include "common/mem.h"
#include "common/mono.h"
#include "common/strbuf.h"

#include <errno.h>
#include <nng/nng.h>
#include <nng/protocol/pair0/pair.h>
#include <nng/protocol/reqrep0/req.h>
#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

enum { HANGUP_MS = 2000 };

struct item {
    struct item *next;
    nng_msg *msg;
};

struct queue {
    struct item *first, *last;
    size_t bytes;
};

struct wire {
    nng_socket sock;
    nng_aio *recv_aio, *send_aio;
    int fd; // eventfd: something came, or the router went
    struct frame_welcome welcome;
    struct arena arena; // welcome's strings
    nng_msg *taken;     // of the last wire_take

    pthread_mutex_t lock; // guards all below
    pthread_cond_t moved; // a message has left, or the router has gone
    struct queue in, out;
    size_t sending_bytes; // of the message that nng has; 0: none
    bool paused;          // no receive is posted: too much waits
    bool gone;
};

static void queue_add(struct queue *q, nng_msg *m) {
    struct item *x = mem_alloc(sizeof *x);
    *x = (struct item){NULL, m};
    if (q->last)
        q->last->next = x;
    else
        q->first = x;
    q->last = x;
    q->bytes += nng_msg_len(m);
}

static nng_msg *queue_take(struct queue *q) {
    struct item *x = q->first;
    if (!x) return NULL;
    nng_msg *m = x->msg;
    q->first = x->next;
    if (!q->first) q->last = NULL;
    q->bytes -= nng_msg_len(m);
    free(x);
    return m;
}

static void queue_fini(struct queue *q) {
    for (nng_msg *m; (m = queue_take(q));) nng_msg_free(m);
}

static void ring(int fd) {
    uint64_t one = 1;
    ssize_t n = write(fd, &one, sizeof one);
    (void)n; // full means that it rings already
}

static void set_gone(struct wire *w) {
    pthread_mutex_lock(&w->lock);
    w->gone = true;
    pthread_cond_broadcast(&w->moved);
    pthread_mutex_unlock(&w->lock);
    ring(w->fd);
}

static void on_pipe_gone(nng_pipe p, nng_pipe_ev ev, void *arg) {
    set_gone(arg);
}

static void on_recv(void *arg) {
    struct wire *w = arg;
    if (nng_aio_result(w->recv_aio)) return set_gone(w);
    pthread_mutex_lock(&w->lock);
    queue_add(&w->in, nng_aio_get_msg(w->recv_aio));
    w->paused = w->in.bytes > WIRE_IN_BYTES_MAX;
    bool more = !w->paused;
    pthread_mutex_unlock(&w->lock);
    ring(w->fd);
    if (more) nng_recv_aio(w->sock, w->recv_aio);
}

// Hands the next message to nng, unless one is there already. Not under the lock: a callback may run inside.
static void send_next(struct wire *w) {
    pthread_mutex_lock(&w->lock);
    nng_msg *m = w->sending_bytes || w->gone ? NULL : queue_take(&w->out);
    if (m) w->sending_bytes = nng_msg_len(m);
    pthread_mutex_unlock(&w->lock);
    if (!m) return;
    nng_aio_set_msg(w->send_aio, m);
    nng_send_aio(w->sock, w->send_aio);
}

static void on_sent(void *arg) {
    struct wire *w = arg;
    bool failed = nng_aio_result(w->send_aio) != 0;
    if (failed) nng_msg_free(nng_aio_get_msg(w->send_aio));
    pthread_mutex_lock(&w->lock);
    w->sending_bytes = 0;
    pthread_cond_broadcast(&w->moved);
    pthread_mutex_unlock(&w->lock);
    if (failed)
        set_gone(w);
    else
        send_next(w);
}

// ms from now, on the clock that the condition waits by.
static struct timespec deadline_in(uint32_t ms) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    t.tv_sec += ms / 1000;
    t.tv_nsec += (long)(ms % 1000) * 1000000;
    if (t.tv_nsec >= 1000000000) t.tv_sec++, t.tv_nsec -= 1000000000;
    return t;
}

static struct wire *wire_new(void) {
    struct wire *w = mem_calloc(1, sizeof *w);
    w->fd = -1;
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&w->moved, &attr);
    pthread_condattr_destroy(&attr);
    pthread_mutex_init(&w->lock, NULL);
    return w;
}

static int nng_fail(struct err *e, const char *what, const char *url, int rv) {
    return err_set(e, ST_CLOSED, "%s '%s': %s", what, url, nng_strerror(rv));
}

static nng_msg *msg_of(const struct frame *f, struct err *e) {
    struct strbuf b = {0};
    nng_msg *m = NULL;
    if (!frame_encode(&b, f, e)) {
        if (nng_msg_alloc(&m, b.len))
            err_set(e, ST_NOMEM, "message of %zu bytes", b.len);
        else
            memcpy(nng_msg_body(m), b.p, b.len);
    }
    strbuf_fini(&b);
    return m;
}

/* The lobby: one request, one reply, on a socket of its own. */

struct call {
    nng_aio *aio;
    int fd;      // eventfd: the operation on aio has ended
    int gone_fd; // eventfd: the connection has
    enum { CALL_IDLE, CALL_SENDING, CALL_RECEIVING } phase; // of aio
};

static void on_call(void *arg) {
    ring(((struct call *)arg)->fd);
}

static void on_call_gone(nng_pipe p, nng_pipe_ev ev, void *arg) {
    ring(((struct call *)arg)->gone_fd);
}

// Until the operation on c->aio has ended, the time is over or stop_fd is readable.
static int call_wait(struct call *c, int stop_fd, uint64_t until_ms, struct err *e) {
    for (;;) {
        struct pollfd fds[2] = {{c->fd, POLLIN, 0}, {stop_fd, POLLIN, 0}};
        uint64_t now = mono_ms();
        int left = now < until_ms ? (int)(until_ms - now) : 0;
        int n = poll(fds, stop_fd >= 0 ? 2 : 1, left);
        if (n < 0 && errno == EINTR) continue;
        if (fds[0].revents) {
            uint64_t count;
            ssize_t got = read(c->fd, &count, sizeof count);
            (void)got;
            nng_aio_wait(c->aio); // its callback has run or is about to return
            return ST_OK;
        }
        if (n > 0) return err_set(e, ST_CANCELLED, "told to stop");
        if (left == 0)
            return err_set(e, ST_TIMEOUT, "the lobby did not answer within %d ms", WIRE_REPLY_MS);
    }
}

static int call_step(struct call *c, int stop_fd, uint64_t until_ms, struct err *e) {
    int st = call_wait(c, stop_fd, until_ms, e);
    if (st) return st;
    int rv = nng_aio_result(c->aio);
    return rv ? (int)err_set(e, ST_CLOSED, "lobby: %s", nng_strerror(rv)) : ST_OK;
}

// Sends m, which is the call's from now on, and receives the answer.
static int exchange(nng_socket s, struct call *c, nng_msg *m, nng_msg **ret, int stop_fd,
                    struct err *e) {
    uint64_t until_ms = mono_ms() + WIRE_REPLY_MS;
    c->phase = CALL_SENDING;
    nng_aio_set_msg(c->aio, m);
    nng_send_aio(s, c->aio);
    int st = call_step(c, stop_fd, until_ms, e);
    if (st) return st;
    c->phase = CALL_RECEIVING;
    nng_recv_aio(s, c->aio);
    st = call_step(c, stop_fd, until_ms, e);
    if (st) return st;
    c->phase = CALL_IDLE;
    *ret = nng_aio_get_msg(c->aio);
    return ST_OK;
}

static int open_call(struct call *call, nng_socket *s, const char *url, struct err *e) {
    call->fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    call->gone_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (call->fd < 0 || call->gone_fd < 0) return err_errno(e, "eventfd");
    int rv = nng_req0_open(s);
    if (!rv) rv = nng_socket_set_size(*s, NNG_OPT_RECVMAXSZ, FRAME_LOBBY_BYTES_MAX);
    // A request that is lost is asked again by us, as a new one, never by nng.
    if (!rv) rv = nng_socket_set_ms(*s, NNG_OPT_REQ_RESENDTIME, NNG_DURATION_INFINITE);
    if (!rv) rv = nng_socket_set_ms(*s, NNG_OPT_RECONNMINT, 10 * WIRE_REPLY_MS);
    if (!rv) rv = nng_pipe_notify(*s, NNG_PIPE_EV_REM_POST, on_call_gone, call);
    if (!rv) rv = nng_aio_alloc(&call->aio, on_call, call);
    if (!rv) rv = nng_dial(*s, url, NULL, 0);
    return rv ? nng_fail(e, "dial the lobby", url, rv) : ST_OK;
}

// The answer may be arriving: the connection ends first, see common/hangup.h.
static void close_call(struct call *call, nng_socket s, const char *url) {
    struct pollfd gone = {call->gone_fd, POLLIN, 0};
    if (call->aio && hangup_url(url)) poll(&gone, 1, HANGUP_MS);
    nng_close(s);
    if (call->aio) {
        nng_aio_stop(call->aio);
        bool failed = nng_aio_result(call->aio) != 0;
        bool ours = call->phase == (failed ? CALL_SENDING : CALL_RECEIVING); // unsent, or just come
        if (ours) nng_msg_free(nng_aio_get_msg(call->aio));
        nng_aio_free(call->aio);
    }
    if (call->fd >= 0) close(call->fd);
    if (call->gone_fd >= 0) close(call->gone_fd);
}

// HELLO to the lobby; *ret is its answer.
static int ask_lobby(nng_msg **ret, const struct wire_config *c, struct err *e) {
    struct frame f = {.type = FRAME_HELLO, .hello = *c->hello};
    struct call call = {.fd = -1, .gone_fd = -1};
    nng_socket s = NNG_SOCKET_INITIALIZER;
    nng_msg *m = msg_of(&f, e);
    if (!m) return e->st;
    int st = open_call(&call, &s, c->lobby, e);
    if (st)
        nng_msg_free(m);
    else
        st = exchange(s, &call, m, ret, c->stop_fd, e);
    close_call(&call, s, c->lobby);
    return st;
}

static int read_answer(struct wire *w, nng_msg *m, struct err *e) {
    struct frame f;
    int st = frame_decode(&f, nng_msg_body(m), nng_msg_len(m), &w->arena, e);
    if (st) return err_prefix(e, "the lobby's answer"), ST_CORRUPT;
    if (f.type == FRAME_FAIL)
        return err_set(e, f.fail.code == FRAME_FAIL_VERSION ? ST_VERSION : ST_UNSUPPORTED,
                       "the router refused this worker (%s): %s", frame_fail_name(f.fail.code),
                       f.fail.message);
    if (f.type != FRAME_WELCOME)
        return err_set(e, ST_CORRUPT, "the lobby's answer: wanted WELCOME, found %s",
                       frame_type_name(f.type));
    w->welcome = f.welcome;
    return ST_OK;
}

// Dials the socket of this incarnation and posts the first receive.
static int connect_pair(struct wire *w, struct err *e) {
    const char *url = w->welcome.path;
    w->fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (w->fd < 0) return err_errno(e, "eventfd");
    int rv = nng_pair0_open(&w->sock);
    if (!rv) rv = nng_socket_set_size(w->sock, NNG_OPT_RECVMAXSZ, FRAME_BYTES_MAX);
    if (!rv) rv = nng_socket_set_ms(w->sock, NNG_OPT_RECONNMINT, 10 * WIRE_STALL_MS); // never
    if (!rv) rv = nng_aio_alloc(&w->recv_aio, on_recv, w);
    if (!rv) rv = nng_aio_alloc(&w->send_aio, on_sent, w);
    if (!rv) rv = nng_pipe_notify(w->sock, NNG_PIPE_EV_REM_POST, on_pipe_gone, w);
    if (!rv) rv = nng_dial(w->sock, url, NULL, 0);
    if (rv) return nng_fail(e, "dial the router's socket", url, rv);
    nng_recv_aio(w->sock, w->recv_aio);
    return ST_OK;
}

int wire_join(struct wire **ret, const struct wire_config *c, struct err *e) {
    nng_msg *m = NULL;
    int st = ask_lobby(&m, c, e);
    if (st) return st;
    struct wire *w = wire_new();
    st = read_answer(w, m, e);
    nng_msg_free(m);
    if (!st) st = connect_pair(w, e);
    if (st)
        wire_close(w, 0);
    else
        *ret = w;
    return st;
}

const struct frame_welcome *wire_welcome(const struct wire *w) {
    return &w->welcome;
}

int wire_fd(const struct wire *w) {
    return w->fd;
}

// The next message, and whether the router has gone. What came before it went is still handed out.
static nng_msg *take_msg(struct wire *w, bool *ret_gone) {
    pthread_mutex_lock(&w->lock);
    nng_msg *m = queue_take(&w->in);
    *ret_gone = w->gone;
    bool again = w->paused && w->in.bytes <= WIRE_IN_BYTES_MAX / 2;
    if (again) w->paused = false;
    if (m) ring(w->fd); // there may be more: the caller's poll must see it
    pthread_mutex_unlock(&w->lock);
    if (again) nng_recv_aio(w->sock, w->recv_aio);
    return m;
}

static void clear_fd(struct wire *w) {
    uint64_t count;
    ssize_t n = read(w->fd, &count, sizeof count);
    (void)n;
}

int wire_take(struct wire *w, struct frame *ret, struct arena *a, struct err *e) {
    for (;;) {
        bool gone;
        if (w->taken) nng_msg_free(w->taken);
        clear_fd(w);
        w->taken = take_msg(w, &gone);
        if (!w->taken && gone) return err_set(e, ST_CLOSED, "the router has gone");
        if (!w->taken) return ST_NOT_FOUND;
        struct frame f;
        int st = frame_decode(&f, nng_msg_body(w->taken), nng_msg_len(w->taken), a, e);
        if (st == ST_UNSUPPORTED) continue;
        if (st) return st;
        if (f.generation != w->welcome.generation) continue;
        *ret = f;
        return ST_OK;
    }
}

// Under the lock. True: there is room for more.
static bool wait_for_room(struct wire *w) {
    struct timespec until = deadline_in(WIRE_STALL_MS);
    while (!w->gone && w->out.bytes > WIRE_OUT_BYTES_MAX)
        if (pthread_cond_timedwait(&w->moved, &w->lock, &until) == ETIMEDOUT) return false;
    return true;
}

static int enqueue(struct wire *w, nng_msg *m, struct err *e) {
    int st = ST_OK;
    pthread_mutex_lock(&w->lock);
    bool room = wait_for_room(w);
    if (w->gone || !room)
        st = w->gone ? ST_CLOSED : ST_TIMEOUT;
    else
        queue_add(&w->out, m);
    pthread_mutex_unlock(&w->lock);
    if (!st) return send_next(w), ST_OK;
    nng_msg_free(m);
    if (st == ST_TIMEOUT) set_gone(w);
    return err_set(e, st, st == ST_CLOSED ? "the router has gone" : "the router does not read");
}

int wire_send(struct wire *w, struct frame *f, struct err *e) {
    f->generation = w->welcome.generation;
    nng_msg *m = msg_of(f, e);
    return m ? enqueue(w, m, e) : (int)e->st;
}

int wire_send_bytes(struct wire *w, const void *p, size_t len, struct err *e) {
    nng_msg *m;
    if (nng_msg_alloc(&m, len)) return err_set(e, ST_NOMEM, "message of %zu bytes", len);
    memcpy(nng_msg_body(m), p, len);
    return enqueue(w, m, e);
}

// Until the router closes its side, or the time is over.
static void linger(struct wire *w, uint32_t ms) {
    struct timespec until = deadline_in(ms);
    pthread_mutex_lock(&w->lock);
    while (!w->gone && pthread_cond_timedwait(&w->moved, &w->lock, &until) != ETIMEDOUT) continue;
    pthread_mutex_unlock(&w->lock);
}

void wire_close(struct wire *w, uint32_t linger_ms) {
    if (!w) return;
    if (linger_ms) linger(w, linger_ms);
    if (w->recv_aio && hangup_url(w->welcome.path)) linger(w, HANGUP_MS); // see common/hangup.h
    nng_close(w->sock);
    if (w->recv_aio) nng_aio_stop(w->recv_aio), nng_aio_free(w->recv_aio);
    if (w->send_aio) nng_aio_stop(w->send_aio), nng_aio_free(w->send_aio);
    queue_fini(&w->in);
    queue_fini(&w->out);
    if (w->taken) nng_msg_free(w->taken);
    if (w->fd >= 0) close(w->fd);
    arena_fini(&w->arena);
    pthread_cond_destroy(&w->moved);
    pthread_mutex_destroy(&w->lock);
    free(w);
}
