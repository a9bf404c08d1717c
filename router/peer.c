/* peer: see peer.h. */
#include "router/peer.h"
#include "common/err.h"
#include "common/hangup.h"
#include "common/mem.h"
#include "common/strbuf.h"
#include "router/inbox.h"

#include <assert.h>
#include <nng/nng.h>
#include <nng/protocol/pair0/pair.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { PEER_URL_BYTES = 160, PEER_HANGUP_MS = 2000 };

struct out_item { // a message, or cancels still to be put into one
    struct out_item *next;
    nng_msg *msg;
    struct frame_stream *cancels;
    uint32_t cancel_count;
};

struct peer {
    struct inbox *in;
    nng_socket sock;
    nng_aio *recv_aio, *send_aio;
    uint32_t generation;
    char url[PEER_URL_BYTES];
    struct peer_events events;

    struct out_item *first, *last;
    size_t out_bytes; // of the messages in the list and the one at nng
    size_t sending_bytes;
    struct strbuf bytes; // scratch of the encoder

    // Written by nng's threads too.
    _Atomic size_t in_bytes;      // posted and not yet run
    atomic_bool paused;           // no receive is posted; the loop posts it again
    _Atomic uint32_t active_pipe; // the worker's; 0: none yet. Others that dial are refused by nng
    uv_mutex_t lock;              // guards pipe_gone
    uv_cond_t pipe_went;
    bool pipe_gone;

    enum { PEER_OPEN, PEER_CLOSING, PEER_SHUT } state; // of the socket
    const char *why;                                   // it went down
    bool closed;                                       // by its owner: no event any more
    uv_work_t work;
    void (*on_closed)(void *arg);
    void *on_closed_arg;
};

/* Receiving. */

static void shut(struct peer *p);

// Posts the next receive if there was none for lack of room and there is room again.
static void resume(struct peer *p) {
    if (atomic_load(&p->in_bytes) > PEER_IN_BYTES_MAX / 2) return;
    if (atomic_exchange(&p->paused, false)) nng_recv_aio(p->sock, p->recv_aio);
}

static void run_message(void *owner, nng_msg *m, int result) {
    struct peer *p = owner;
    atomic_fetch_sub(&p->in_bytes, nng_msg_len(m));
    if (!p->closed) p->events.on_message(p->events.arg, nng_msg_body(m), nng_msg_len(m));
    nng_msg_free(m);
    if (p->state == PEER_OPEN) resume(p);
}

// What nng's threads have received is still to be posted: on_down waits for the socket's close, which waits for them.
static void go_down(struct peer *p, const char *why) {
    if (p->closed || p->state != PEER_OPEN) return;
    p->why = why;
    shut(p);
}

static void run_up(void *owner, nng_msg *m, int result) {
    struct peer *p = owner;
    if (!p->closed) p->events.on_up(p->events.arg);
}

static void run_down(void *owner, nng_msg *m, int result) {
    go_down(owner, "its connection closed");
}

static void on_recv(void *arg) { // nng's thread
    struct peer *p = arg;
    if (nng_aio_result(p->recv_aio)) return; // closed
    nng_msg *m = nng_aio_get_msg(p->recv_aio);
    size_t len = nng_msg_len(m);
    bool full = atomic_fetch_add(&p->in_bytes, len) + len > PEER_IN_BYTES_MAX;
    inbox_post(p->in, run_message, p, m, 0);
    if (!full) {
        nng_recv_aio(p->sock, p->recv_aio);
        return;
    }
    atomic_store(&p->paused, true);
    resume(p); // the loop may have run it all before it could see the mark
}

static void on_pipe(nng_pipe pipe, nng_pipe_ev ev, void *arg) { // nng's thread
    struct peer *p = arg;
    uint32_t id = (uint32_t)nng_pipe_id(pipe);
    if (ev == NNG_PIPE_EV_ADD_POST) {
        uint32_t none = 0;
        if (atomic_compare_exchange_strong(&p->active_pipe, &none, id))
            inbox_post(p->in, run_up, p, NULL, 0);
    } else if (atomic_load(&p->active_pipe) == id) {
        uv_mutex_lock(&p->lock);
        p->pipe_gone = true;
        uv_cond_signal(&p->pipe_went);
        uv_mutex_unlock(&p->lock);
        inbox_post(p->in, run_down, p, NULL, 0);
    }
}

/* Sending. */

static void append(struct peer *p, struct out_item item) {
    struct out_item *x = mem_alloc(sizeof *x);
    *x = item;
    if (p->last)
        p->last->next = x;
    else
        p->first = x;
    p->last = x;
}

static nng_msg *msg_of(struct peer *p, struct frame *f, struct err *e) {
    nng_msg *m;
    f->generation = p->generation;
    strbuf_reset(&p->bytes);
    if (frame_encode(&p->bytes, f, e)) return NULL;
    if (nng_msg_alloc(&m, p->bytes.len))
        return err_set(e, ST_NOMEM, "message of %zu bytes", p->bytes.len), NULL;
    memcpy(nng_msg_body(m), p->bytes.p, p->bytes.len);
    return m;
}

// The front of the list as a message; cancels become one now, so that late ones got in.
static nng_msg *take_front(struct peer *p) {
    struct out_item *x = p->first;
    if (!x) return NULL;
    p->first = x->next;
    if (!p->first) p->last = NULL;
    nng_msg *m = x->msg;
    if (!m) {
        struct frame f = {.type = FRAME_CANCEL, .cancel = {x->cancels, x->cancel_count}};
        m = msg_of(p, &f, NULL); // never over the limits: see peer_cancel
        assert(m);
        p->out_bytes += nng_msg_len(m);
    }
    free(x->cancels);
    free(x);
    return m;
}

static void send_next(struct peer *p) {
    if (p->sending_bytes || p->closed || p->state != PEER_OPEN) return;
    nng_msg *m = take_front(p);
    if (!m) return;
    p->sending_bytes = nng_msg_len(m);
    nng_aio_set_msg(p->send_aio, m);
    nng_send_aio(p->sock, p->send_aio);
}

static void run_sent(void *owner, nng_msg *m, int result) {
    struct peer *p = owner;
    if (m) nng_msg_free(m); // it could not be sent
    p->out_bytes -= p->sending_bytes;
    p->sending_bytes = 0;
    if (result)
        go_down(p, nng_strerror(result));
    else
        send_next(p);
}

static void on_sent(void *arg) { // nng's thread
    struct peer *p = arg;
    int result = nng_aio_result(p->send_aio);
    inbox_post(p->in, run_sent, p, result ? nng_aio_get_msg(p->send_aio) : NULL, result);
}

int peer_send(struct peer *p, struct frame *f, struct err *e) {
    if (p->out_bytes > PEER_OUT_BYTES_MAX)
        return err_set(e, ST_FULL, "%zu bytes wait to be sent to the worker, at most %d may",
                       p->out_bytes, PEER_OUT_BYTES_MAX);
    struct err own = {0};
    nng_msg *m = msg_of(p, f, e ? e : &own);
    if (!m) return e ? e->st : own.st;
    p->out_bytes += nng_msg_len(m);
    append(p, (struct out_item){.msg = m});
    send_next(p);
    return ST_OK;
}

void peer_cancel(struct peer *p, struct frame_stream s) {
    struct out_item *x = p->last;
    if (!x || x->msg || x->cancel_count == FRAME_STREAMS_MAX) {
        append(p, (struct out_item){0});
        x = p->last;
    }
    x->cancels = mem_realloc_array(x->cancels, x->cancel_count + 1, sizeof *x->cancels);
    x->cancels[x->cancel_count++] = s;
    send_next(p);
}

size_t peer_unsent_bytes(const struct peer *p) {
    return p->out_bytes;
}

/* Life. */

static void peer_free(struct peer *p) {
    for (struct out_item *x = p->first, *next; x; x = next) {
        next = x->next;
        if (x->msg) nng_msg_free(x->msg);
        free(x->cancels);
        free(x);
    }
    strbuf_fini(&p->bytes);
    uv_cond_destroy(&p->pipe_went);
    uv_mutex_destroy(&p->lock);
    free(p);
}

static void close_socket(struct peer *p) {
    nng_close(p->sock);
    if (p->recv_aio) nng_aio_stop(p->recv_aio), nng_aio_free(p->recv_aio);
    if (p->send_aio) nng_aio_stop(p->send_aio), nng_aio_free(p->send_aio);
    p->recv_aio = p->send_aio = NULL;
}

int peer_new(struct peer **ret, struct inbox *in, const char *url, uint32_t generation,
             const struct peer_events *events, struct err *e) {
    struct peer *p = mem_calloc(1, sizeof *p);
    nng_listener l;
    p->in = in;
    p->generation = generation;
    p->events = *events;
    snprintf(p->url, sizeof p->url, "%s", url);
    uv_mutex_init(&p->lock);
    uv_cond_init(&p->pipe_went);
    int rv = nng_pair0_open(&p->sock);
    if (!rv) rv = nng_socket_set_size(p->sock, NNG_OPT_RECVMAXSZ, FRAME_BYTES_MAX);
    if (!rv) rv = nng_aio_alloc(&p->recv_aio, on_recv, p);
    if (!rv) rv = nng_aio_alloc(&p->send_aio, on_sent, p);
    if (!rv) rv = nng_pipe_notify(p->sock, NNG_PIPE_EV_ADD_POST, on_pipe, p);
    if (!rv) rv = nng_pipe_notify(p->sock, NNG_PIPE_EV_REM_POST, on_pipe, p);
    if (!rv) rv = nng_listener_create(&l, p->sock, url);
    if (!rv) rv = nng_listener_set_int(l, NNG_OPT_IPC_PERMISSIONS, 0600);
    if (!rv) rv = nng_listener_start(l, 0);
    if (rv) {
        err_set(e, ST_IO, "listen on '%s': %s", url, nng_strerror(rv));
        close_socket(p); // nothing was posted: no worker knows the path yet
        peer_free(p);
        return ST_IO;
    }
    nng_recv_aio(p->sock, p->recv_aio);
    *ret = p;
    return ST_OK;
}

// Ends the connection, because a socket at rest is what nng can close: see common/hangup.h. The path goes first, so that
// a worker that dials again at once cannot.
static void end_connection(struct peer *p) {
    unlink(p->url + strlen("ipc://"));
    uv_mutex_lock(&p->lock);
    bool up = atomic_load(&p->active_pipe) && !p->pipe_gone;
    uv_mutex_unlock(&p->lock);
    if (up) hangup_url(p->url);
}

static void await_end(struct peer *p) {
    uint64_t until = uv_hrtime() + (uint64_t)PEER_HANGUP_MS * 1000000;
    if (!atomic_load(&p->active_pipe)) return;
    uv_mutex_lock(&p->lock);
    for (uint64_t now; !p->pipe_gone && (now = uv_hrtime()) < until;)
        uv_cond_timedwait(&p->pipe_went, &p->lock, until - now);
    uv_mutex_unlock(&p->lock);
}

static void close_on_pool(uv_work_t *w) {
    struct peer *p = w->data;
    if (!p->recv_aio) return; // a second time
    await_end(p);
    close_socket(p);
}

static void after_close(uv_work_t *w, int status) {
    struct peer *p = w->data;
    inbox_drain(p->in); // what nng's threads posted names p; now they have stopped
    p->state = PEER_SHUT;
    if (!p->closed) return p->events.on_down(p->events.arg, p->why);
    void (*closed)(void *) = p->on_closed;
    void *arg = p->on_closed_arg;
    peer_free(p);
    closed(arg);
}

static void shut(struct peer *p) {
    if (p->state == PEER_OPEN) end_connection(p);
    p->state = PEER_CLOSING;
    p->work.data = p;
    int rv = uv_queue_work(p->in->wake.loop, &p->work, close_on_pool, after_close);
    assert(rv == 0); // refuses only a missing callback
}

void peer_close(struct peer *p, void (*closed)(void *arg), void *arg) {
    assert(!p->closed);
    p->closed = true;
    p->on_closed = closed;
    p->on_closed_arg = arg;
    if (p->state != PEER_CLOSING)
        shut(p); // a shut one goes round once more, to leave from the loop
}
