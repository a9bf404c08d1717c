/* lobby: see lobby.h. */
#include "router/lobby.h"
#include "common/arena.h"
#include "common/err.h"
#include "common/hangup.h"
#include "common/log.h"
#include "common/mem.h"
#include "common/strbuf.h"
#include "router/inbox.h"

#include <assert.h>
#include <nng/nng.h>
#include <nng/protocol/reqrep0/rep.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ANSWER_MS = 1000 };

struct lobby {
    struct inbox *in;
    nng_socket sock;
    char url[160];
    nng_aio *aio; // one operation at a time: receive, then send, then receive
    lobby_on_hello *on_hello;
    void *arg;
    struct arena arena;  // of the HELLO being answered
    struct strbuf bytes; // its answer
    bool sending;        // written by the loop while no operation runs
    bool closed;
    uv_work_t work;
    void (*on_closed)(void *arg);
    void *on_closed_arg;
};

static void receive(struct lobby *l) {
    l->sending = false;
    nng_aio_set_timeout(l->aio, NNG_DURATION_INFINITE);
    nng_recv_aio(l->sock, l->aio);
}

static void fill_answer(struct lobby *l, nng_msg *m, struct frame *answer) {
    struct frame f;
    struct err e = {0};
    int st = frame_decode(&f, nng_msg_body(m), nng_msg_len(m), &l->arena, &e);
    if (!st && f.type != FRAME_HELLO)
        st = err_set(&e, ST_CORRUPT, "wanted HELLO, found %s", frame_type_name(f.type));
    if (!st) {
        l->on_hello(l->arg, &f.hello, answer);
        return;
    }
    log_warn("lobby_refused", "reason=\"%s\"", e.msg);
    const char *text = arena_strdup(&l->arena, e.msg);
    *answer =
        (struct frame){.type = FRAME_FAIL, .fail = {.code = FRAME_FAIL_INVALID, .message = text}};
}

// Turns m into the answer and sends it.
static void answer_to(struct lobby *l, nng_msg *m) {
    struct frame answer = {0};
    arena_reset(&l->arena);
    strbuf_reset(&l->bytes);
    fill_answer(l, m, &answer);
    int st = frame_encode(&l->bytes, &answer, NULL);
    assert(st == ST_OK); // a few short texts
    nng_msg_clear(m);
    if (nng_msg_append(m, l->bytes.p, l->bytes.len)) {
        nng_msg_free(m);
        return receive(l);
    }
    l->sending = true;
    nng_aio_set_timeout(l->aio, ANSWER_MS);
    nng_aio_set_msg(l->aio, m);
    nng_send_aio(l->sock, l->aio);
}

static void run_done(void *owner, nng_msg *m, int result) {
    struct lobby *l = owner;
    if (l->closed || (m && result)) {
        if (m) nng_msg_free(m);
        m = NULL;
    }
    if (l->closed) return;
    if (l->sending || !m) return receive(l);
    answer_to(l, m);
}

static void on_done(void *arg) { // nng's thread
    struct lobby *l = arg;
    int result = nng_aio_result(l->aio);
    if (result == NNG_ECLOSED) { // our own close
        nng_msg *unsent = l->sending ? nng_aio_get_msg(l->aio) : NULL;
        if (unsent) nng_msg_free(unsent);
        return;
    }
    // A message: received, or one that could not be sent.
    nng_msg *m = l->sending == (result != 0) ? nng_aio_get_msg(l->aio) : NULL;
    inbox_post(l->in, run_done, l, m, result);
}

static void close_socket(struct lobby *l) {
    nng_close(l->sock);
    if (l->aio) nng_aio_stop(l->aio), nng_aio_free(l->aio);
}

static void lobby_free(struct lobby *l) {
    arena_fini(&l->arena);
    strbuf_fini(&l->bytes);
    free(l);
}

int lobby_open(struct lobby **ret, struct inbox *in, const char *url, lobby_on_hello *on_hello,
               void *arg, struct err *e) {
    struct lobby *l = mem_calloc(1, sizeof *l);
    nng_listener listener;
    l->in = in;
    l->on_hello = on_hello;
    l->arg = arg;
    snprintf(l->url, sizeof l->url, "%s", url);
    int rv = nng_rep0_open(&l->sock);
    if (!rv) rv = nng_socket_set_size(l->sock, NNG_OPT_RECVMAXSZ, FRAME_LOBBY_BYTES_MAX);
    if (!rv) rv = nng_aio_alloc(&l->aio, on_done, l);
    if (!rv) rv = nng_listener_create(&listener, l->sock, url);
    if (!rv) rv = nng_listener_set_int(listener, NNG_OPT_IPC_PERMISSIONS, 0600);
    if (!rv) rv = nng_listener_start(listener, 0);
    if (rv) {
        err_set(e, ST_IO, "listen on '%s': %s", url, nng_strerror(rv));
        close_socket(l);
        lobby_free(l);
        return ST_IO;
    }
    receive(l);
    *ret = l;
    return ST_OK;
}

// Who waits for an answer is hung up on first: see common/hangup.h.
static void close_on_pool(uv_work_t *w) {
    struct lobby *l = w->data;
    hangup_url(l->url);
    close_socket(l);
}

static void after_close(uv_work_t *w, int status) {
    struct lobby *l = w->data;
    inbox_drain(l->in); // what nng's thread still posted names l
    void (*closed)(void *) = l->on_closed;
    void *arg = l->on_closed_arg;
    lobby_free(l);
    closed(arg);
}

void lobby_close(struct lobby *l, void (*closed)(void *arg), void *arg) {
    assert(!l->closed);
    l->closed = true;
    l->on_closed = closed;
    l->on_closed_arg = arg;
    l->work.data = l;
    int rv = uv_queue_work(l->in->wake.loop, &l->work, close_on_pool, after_close);
    assert(rv == 0); // refuses only a missing callback
}
