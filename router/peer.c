/* peer: see peer.h. */
#include "router/peer.h"
#include "common/err.h"
#include "common/mem.h"
#include "common/strbuf.h"
#include "proto/tube.h"
#include "router/inbox.h"

#include <assert.h>
#include <nng/nng.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { PEER_URL_BYTES = 160, PEER_WHY_BYTES = 96 };

struct out_item { // a message, or cancels still to be put into one
    struct out_item *next;
    nng_msg *msg;
    struct frame_stream *cancels;
    uint32_t cancel_count;
};

struct peer {
    struct inbox *in;
    struct tube *tube; // NULL: closed
    uint32_t generation;
    char url[PEER_URL_BYTES];
    struct peer_events events;

    struct out_item *first, *last;
    size_t out_bytes; // of the messages in the list and the one in the tube
    size_t sending_bytes;
    struct strbuf bytes; // scratch of the encoder

    // Written by nng's threads too.
    _Atomic size_t in_bytes; // posted and not yet run
    atomic_bool paused;      // nothing is read; the loop lets it go on

    enum { PEER_OPEN, PEER_CLOSING, PEER_SHUT } state; // of the socket
    char why[PEER_WHY_BYTES];                          // it went down
    char tube_why[PEER_WHY_BYTES]; // the tube's word, set before run_down is posted
    bool closed;                   // by its owner: no event any more
    uv_work_t work;
    void (*on_closed)(void *arg);
    void *on_closed_arg;
};

/* Receiving. */

static void shut(struct peer *p);

// Lets the tube read on if it was told not to and there is room again.
static void resume(struct peer *p) {
    if (atomic_load(&p->in_bytes) > PEER_IN_BYTES_MAX / 2) return;
    if (atomic_exchange(&p->paused, false)) tube_resume(p->tube);
}

static void run_message(void *owner, nng_msg *m) {
    struct peer *p = owner;
    atomic_fetch_sub(&p->in_bytes, nng_msg_len(m));
    if (!p->closed) p->events.on_message(p->events.arg, nng_msg_body(m), nng_msg_len(m));
    nng_msg_free(m);
    if (p->state == PEER_OPEN) resume(p);
}

// What nng's threads have received is still to be posted: on_down waits for the socket's close, which waits for them.
static void go_down(struct peer *p, const char *why) {
    if (p->closed || p->state != PEER_OPEN) return;
    snprintf(p->why, sizeof p->why, "%s", why);
    shut(p);
}

static void run_up(void *owner, nng_msg *m) {
    struct peer *p = owner;
    if (!p->closed) p->events.on_up(p->events.arg);
}

static void run_down(void *owner, nng_msg *m) {
    struct peer *p = owner;
    go_down(p, p->tube_why);
}

// The tube's events, on nng's threads.

static bool on_message(void *arg, nng_msg *m) {
    struct peer *p = arg;
    size_t len = nng_msg_len(m);
    bool full = atomic_fetch_add(&p->in_bytes, len) + len > PEER_IN_BYTES_MAX;
    inbox_post(p->in, run_message, p, m);
    if (!full) return true;
    atomic_store(&p->paused, true);
    // The loop may have run it all before it could see the mark.
    return atomic_load(&p->in_bytes) <= PEER_IN_BYTES_MAX / 2 && atomic_exchange(&p->paused, false);
}

static void on_up(void *arg) {
    struct peer *p = arg;
    inbox_post(p->in, run_up, p, NULL);
}

static void on_down(void *arg, const char *why) {
    struct peer *p = arg;
    snprintf(p->tube_why, sizeof p->tube_why, "%s", why);
    inbox_post(p->in, run_down, p, NULL);
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
    tube_send(p->tube, m);
}

static void run_sent(void *owner, nng_msg *m) {
    struct peer *p = owner;
    p->out_bytes -= p->sending_bytes;
    p->sending_bytes = 0;
    send_next(p);
}

static void on_sent(void *arg) { // nng's thread
    struct peer *p = arg;
    inbox_post(p->in, run_sent, p, NULL);
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

/* Life. */

static void peer_free(struct peer *p) {
    for (struct out_item *x = p->first, *next; x; x = next) {
        next = x->next;
        if (x->msg) nng_msg_free(x->msg);
        free(x->cancels);
        free(x);
    }
    strbuf_fini(&p->bytes);
    free(p);
}

int peer_new(struct peer **ret, struct inbox *in, const char *url, uint32_t generation,
             const struct peer_events *events, struct err *e) {
    struct peer *p = mem_calloc(1, sizeof *p);
    struct tube_events of_tube = {p, on_up, on_message, on_sent, on_down};
    p->in = in;
    p->generation = generation;
    p->events = *events;
    snprintf(p->url, sizeof p->url, "%s", url);
    int st = tube_listen(&p->tube, url, &of_tube, e);
    if (st) return peer_free(p), st;
    *ret = p;
    return ST_OK;
}

static void close_on_pool(uv_work_t *w) {
    struct peer *p = w->data;
    tube_close(p->tube);
    p->tube = NULL;
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
    // The path goes first, so that a worker that dials again at once cannot.
    if (p->state == PEER_OPEN) unlink(p->url + strlen("ipc://"));
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
