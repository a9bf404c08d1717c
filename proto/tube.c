/* tube: see tube.h. */
#include "proto/tube.h"
#include "common/err.h"
#include "common/mem.h"
#include "common/num.h"
#include "proto/frame.h"

#include <nng/nng.h>
#include <nng/transport/ipc/ipc.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LENGTH_BYTES = 4, BUFFER_BYTES = 64 << 10, DIAL_MS = 5000, WHY_BYTES = 96 };

struct tube {
    struct tube_events events;
    nng_stream_listener *listener;
    nng_aio *open_aio, *recv_aio, *send_aio;

    pthread_mutex_t lock; // guards down to resume_wanted
    nng_stream *stream;   // NULL: nobody there yet; then it stays
    nng_msg *sending;
    bool closing, down;
    // RUNNING: the callback has what was read in its hands.
    enum { RECV_NONE, RECV_POSTED, RECV_RUNNING, RECV_PAUSED } recv;
    bool resume_wanted; // while RUNNING

    // Of the send that is under way.
    uint8_t send_head[LENGTH_BYTES];
    size_t sent_bytes; // of head and body
    // Of the receive that is under way.
    nng_msg *partial; // a message of which partial_bytes are there
    size_t partial_bytes;
    size_t have; // bytes in buffer: less than a head
    uint8_t buffer[BUFFER_BYTES];
    char why[WHY_BYTES];
};

static void go_down(struct tube *t, const char *why) {
    pthread_mutex_lock(&t->lock);
    bool first = !t->down && !t->closing;
    t->down = true;
    if (first) snprintf(t->why, sizeof t->why, "%s", why);
    pthread_mutex_unlock(&t->lock);
    if (first) t->events.on_down(t->events.arg, t->why);
}

/* Receiving. */

static void post_recv(struct tube *t) {
    nng_iov iov[2];
    unsigned n = 0;
    if (t->partial)
        iov[n++] = (nng_iov){(uint8_t *)nng_msg_body(t->partial) + t->partial_bytes,
                             nng_msg_len(t->partial) - t->partial_bytes};
    iov[n++] = (nng_iov){t->buffer + t->have, BUFFER_BYTES - t->have};
    nng_aio_set_iov(t->recv_aio, n, iov);
    nng_stream_recv(t->stream, t->recv_aio);
}

// The next message in the buffer from *at on. False: it is not whole; what is there of it is in partial or too short
// to tell.
static bool next_message(struct tube *t, size_t *at, nng_msg **ret) {
    size_t left = t->have - *at, len = 0;
    if (left < LENGTH_BYTES) return false;
    for (int i = 0; i < LENGTH_BYTES; i++) len |= (size_t)t->buffer[*at + i] << 8 * i;
    if (len > FRAME_BYTES_MAX) {
        char why[WHY_BYTES];
        snprintf(why, sizeof why, "a message of %zu bytes, at most %d allowed", len,
                 FRAME_BYTES_MAX);
        return go_down(t, why), false;
    }
    nng_msg *m;
    if (nng_msg_alloc(&m, len)) return go_down(t, "out of memory"), false;
    size_t here = min_size(len, left - LENGTH_BYTES);
    memcpy(nng_msg_body(m), t->buffer + *at + LENGTH_BYTES, here);
    *at += LENGTH_BYTES + here;
    if (here == len) return *ret = m, true;
    t->partial = m;
    t->partial_bytes = here;
    return false;
}

// Hands out what n more bytes have completed. True: more is wanted.
static bool take_bytes(struct tube *t, size_t n) {
    bool more = true;
    size_t at = 0;
    nng_msg *m;
    if (t->partial) {
        size_t here = min_size(n, nng_msg_len(t->partial) - t->partial_bytes);
        t->partial_bytes += here;
        n -= here;
        if (t->partial_bytes == nng_msg_len(t->partial)) {
            m = t->partial;
            t->partial = NULL;
            more = t->events.on_message(t->events.arg, m);
        }
    }
    t->have += n;
    while (next_message(t, &at, &m)) more = t->events.on_message(t->events.arg, m);
    t->have -= at;
    memmove(t->buffer, t->buffer + at, t->have);
    return more;
}

static void on_recv(void *arg) {
    struct tube *t = arg;
    int rv = nng_aio_result(t->recv_aio);
    if (rv) return go_down(t, rv == NNG_ECONNSHUT ? "its connection closed" : nng_strerror(rv));
    pthread_mutex_lock(&t->lock);
    t->recv = RECV_RUNNING;
    pthread_mutex_unlock(&t->lock);
    bool more = take_bytes(t, nng_aio_count(t->recv_aio));
    pthread_mutex_lock(&t->lock);
    more = (more || t->resume_wanted) && !t->down && !t->closing;
    t->resume_wanted = false;
    t->recv = more ? RECV_POSTED : RECV_PAUSED;
    pthread_mutex_unlock(&t->lock);
    if (more) post_recv(t);
}

void tube_resume(struct tube *t) {
    pthread_mutex_lock(&t->lock);
    bool post = t->recv == RECV_PAUSED && !t->down && !t->closing;
    t->resume_wanted |= t->recv == RECV_RUNNING;
    if (post) t->recv = RECV_POSTED;
    pthread_mutex_unlock(&t->lock);
    if (post) post_recv(t);
}

/* Sending. */

static void post_send(struct tube *t) {
    nng_iov iov[2];
    unsigned n = 0;
    size_t head = min_size(t->sent_bytes, LENGTH_BYTES), body = t->sent_bytes - head;
    if (head < LENGTH_BYTES) iov[n++] = (nng_iov){t->send_head + head, LENGTH_BYTES - head};
    if (body < nng_msg_len(t->sending))
        iov[n++] =
            (nng_iov){(uint8_t *)nng_msg_body(t->sending) + body, nng_msg_len(t->sending) - body};
    nng_aio_set_iov(t->send_aio, n, iov);
    nng_stream_send(t->stream, t->send_aio);
}

static void on_sent(void *arg) {
    struct tube *t = arg;
    int rv = nng_aio_result(t->send_aio);
    if (rv) return go_down(t, rv == NNG_ECONNSHUT ? "its connection closed" : nng_strerror(rv));
    t->sent_bytes += nng_aio_count(t->send_aio);
    if (t->sent_bytes < LENGTH_BYTES + nng_msg_len(t->sending)) return post_send(t);
    pthread_mutex_lock(&t->lock);
    nng_msg *m = t->sending;
    t->sending = NULL;
    pthread_mutex_unlock(&t->lock);
    nng_msg_free(m);
    t->events.on_sent(t->events.arg);
}

void tube_send(struct tube *t, nng_msg *m) {
    size_t len = nng_msg_len(m);
    pthread_mutex_lock(&t->lock);
    for (int i = 0; i < LENGTH_BYTES; i++) t->send_head[i] = (uint8_t)(len >> 8 * i);
    t->sent_bytes = 0;
    t->sending = m;
    bool post = t->stream && !t->down && !t->closing;
    pthread_mutex_unlock(&t->lock);
    if (post) post_send(t);
}

/* Life. */

// Takes the stream. False: nobody wants it any more.
static bool begin(struct tube *t, nng_stream *s) {
    pthread_mutex_lock(&t->lock);
    bool wanted = !t->closing;
    bool send = wanted && t->sending;
    if (wanted) t->stream = s;
    t->recv = RECV_POSTED;
    pthread_mutex_unlock(&t->lock);
    if (!wanted) return false;
    if (t->events.on_up) t->events.on_up(t->events.arg);
    if (send) post_send(t);
    post_recv(t);
    return true;
}

static void on_accepted(void *arg) {
    struct tube *t = arg;
    int rv = nng_aio_result(t->open_aio);
    if (rv == NNG_ECLOSED || rv == NNG_ECANCELED) return; // tube_close
    if (rv == NNG_ECONNABORTED || rv == NNG_ECONNRESET)   // whoever it was went
        return nng_stream_listener_accept(t->listener, t->open_aio);
    if (rv) return go_down(t, nng_strerror(rv));
    nng_stream *s = nng_aio_get_output(t->open_aio, 0);
    if (!begin(t, s)) nng_stream_free(s);
}

static int tube_new(struct tube **ret, const struct tube_events *events, void (*opened)(void *)) {
    struct tube *t = mem_calloc(1, sizeof *t);
    t->events = *events;
    pthread_mutex_init(&t->lock, NULL);
    *ret = t;
    int rv = nng_aio_alloc(&t->open_aio, opened, t);
    if (!rv) rv = nng_aio_alloc(&t->recv_aio, on_recv, t);
    if (!rv) rv = nng_aio_alloc(&t->send_aio, on_sent, t);
    return rv;
}

int tube_listen(struct tube **ret, const char *url, const struct tube_events *events,
                struct err *e) {
    struct tube *t;
    int rv = tube_new(&t, events, on_accepted);
    if (!rv) rv = nng_stream_listener_alloc(&t->listener, url);
    if (!rv) rv = nng_stream_listener_set_int(t->listener, NNG_OPT_IPC_PERMISSIONS, 0600);
    if (!rv) rv = nng_stream_listener_listen(t->listener);
    if (rv) {
        tube_close(t);
        return err_set(e, ST_IO, "listen on '%s': %s", url, nng_strerror(rv));
    }
    *ret = t;
    nng_stream_listener_accept(t->listener, t->open_aio);
    return ST_OK;
}

int tube_dial(struct tube **ret, const char *url, const struct tube_events *events, struct err *e) {
    struct tube *t;
    nng_stream_dialer *dialer = NULL;
    int rv = tube_new(&t, events, NULL);
    if (!rv) rv = nng_stream_dialer_alloc(&dialer, url);
    if (!rv) {
        nng_aio_set_timeout(t->open_aio, DIAL_MS);
        nng_stream_dialer_dial(dialer, t->open_aio);
        nng_aio_wait(t->open_aio);
        rv = nng_aio_result(t->open_aio);
    }
    if (dialer) nng_stream_dialer_free(dialer); // the stream outlives it
    if (rv) {
        tube_close(t);
        return err_set(e, ST_CLOSED, "dial '%s': %s", url, nng_strerror(rv));
    }
    *ret = t;
    begin(t, nng_aio_get_output(t->open_aio, 0));
    return ST_OK;
}

static void end_aio(nng_aio *a) {
    if (!a) return;
    nng_aio_stop(a); // waits for its callback
    nng_aio_free(a);
}

void tube_close(struct tube *t) {
    if (!t) return;
    pthread_mutex_lock(&t->lock);
    t->closing = true;
    nng_stream *s = t->stream;
    pthread_mutex_unlock(&t->lock);
    if (t->listener) nng_stream_listener_close(t->listener);
    if (s) nng_stream_close(s);
    end_aio(t->open_aio);
    end_aio(t->recv_aio);
    end_aio(t->send_aio);
    if (s) nng_stream_free(s);
    if (t->listener) nng_stream_listener_free(t->listener);
    if (t->sending) nng_msg_free(t->sending);
    if (t->partial) nng_msg_free(t->partial);
    pthread_mutex_destroy(&t->lock);
    free(t);
}
