/* wire: see wire.h. The router's death shows only while a receive is posted, or at the next send. */
#include "worker/wire.h"
#include "common/arena.h"
#include "common/err.h"
#include "common/mem.h"
#include "common/strbuf.h"
#include "proto/tube.h"
#include "worker/lobby_call.h"

#include <errno.h>
#include <nng/nng.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

struct item {
    struct item *next;
    nng_msg *msg;
};

struct queue {
    struct item *first, *last;
    size_t bytes;
};

struct wire {
    struct tube *tube;
    int fd; // eventfd: something came, or the router went
    struct frame_welcome welcome;
    struct arena arena; // welcome's strings
    nng_msg *taken;     // of the last wire_take

    pthread_mutex_t lock; // guards all below
    pthread_cond_t moved; // a message has left, or the router has gone
    struct queue in, out;
    size_t sending_bytes; // of the message that the tube has; 0: none
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

static void on_down(void *arg, const char *why) {
    set_gone(arg);
}

static bool on_message(void *arg, nng_msg *m) {
    struct wire *w = arg;
    pthread_mutex_lock(&w->lock);
    queue_add(&w->in, m);
    w->paused = w->in.bytes > WIRE_IN_BYTES_MAX;
    bool more = !w->paused;
    pthread_mutex_unlock(&w->lock);
    ring(w->fd);
    return more;
}

// Hands the next message to the tube, unless one is there already.
static void send_next(struct wire *w) {
    pthread_mutex_lock(&w->lock);
    nng_msg *m = w->sending_bytes || w->gone ? NULL : queue_take(&w->out);
    if (m) w->sending_bytes = nng_msg_len(m);
    pthread_mutex_unlock(&w->lock);
    if (m) tube_send(w->tube, m);
}

static void on_sent(void *arg) {
    struct wire *w = arg;
    pthread_mutex_lock(&w->lock);
    w->sending_bytes = 0;
    pthread_cond_broadcast(&w->moved);
    pthread_mutex_unlock(&w->lock);
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

static int read_answer(struct wire *w, const struct strbuf *b, struct err *e) {
    struct frame f;
    int st = frame_decode(&f, (const uint8_t *)b->p, b->len, &w->arena, e);
    if (st) return err_prefix(e, "the lobby's answer"), ST_CORRUPT;
    if (f.type == FRAME_FAIL)
        return err_set(e,
                       f.fail.code == FRAME_FAIL_VERSION ? ST_VERSION
                       : f.fail.code == FRAME_FAIL_FULL  ? ST_CLOSED
                                                         : ST_UNSUPPORTED,
                       "the router refused this worker (%s): %s", frame_fail_name(f.fail.code),
                       f.fail.message);
    if (f.type != FRAME_WELCOME)
        return err_set(e, ST_CORRUPT, "the lobby's answer: wanted WELCOME, found %s",
                       frame_type_name(f.type));
    // A router that speaks none of our versions says FAIL(version): this is damage, and no refusal.
    if (f.welcome.version < FRAME_VERSION_MIN || f.welcome.version > FRAME_VERSION_MAX)
        return err_set(e, ST_CORRUPT,
                       "the lobby's answer: wanted frames of version %d to %d, found %u",
                       FRAME_VERSION_MIN, FRAME_VERSION_MAX, f.welcome.version);
    w->welcome = f.welcome;
    return ST_OK;
}

// Dials the socket of this incarnation.
static int connect_tube(struct wire *w, struct err *e) {
    struct tube_events events = {
        .arg = w, .on_message = on_message, .on_sent = on_sent, .on_down = on_down};
    w->fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (w->fd < 0) return err_errno(e, "eventfd");
    int st = tube_dial(&w->tube, w->welcome.path, &events, e);
    return st ? (int)err_prefix(e, "the router's socket") : ST_OK;
}

int wire_join(struct wire **ret, const struct wire_config *c, struct err *e) {
    struct frame hello = {.type = FRAME_HELLO, .hello = *c->hello};
    struct strbuf answer = {0};
    struct wire *w = wire_new();
    int st = lobby_call(c->lobby, &hello, c->stop_fd, &answer, e);
    if (!st) st = read_answer(w, &answer, e);
    if (!st) st = connect_tube(w, e);
    strbuf_fini(&answer);
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
    if (again) tube_resume(w->tube);
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
    tube_close(w->tube);
    queue_fini(&w->in);
    queue_fini(&w->out);
    if (w->taken) nng_msg_free(w->taken);
    if (w->fd >= 0) close(w->fd);
    arena_fini(&w->arena);
    pthread_cond_destroy(&w->moved);
    pthread_mutex_destroy(&w->lock);
    free(w);
}
