/* admin: see admin.h. */
#include "router/admin.h"
#include "common/mem.h"
#include "common/mono.h"
#include "router/admin_int.h"
#include "router/api_status.h"
#include "router/config.h"
#include "router/http.h"
#include "router/inbox.h"
#include "router/send.h"
#include "router/server.h"
#include "router/snapshot.h"

#include <assert.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

enum {
    POLL_MS = 50, // between two looks of a call that waits
    START_S_DEFAULT = 600,
};

TAILQ_HEAD(job_list, job);

struct admin {
    struct server *server;
    struct inbox to_loop, to_ops;
    bool ops_over; // nobody is there to answer to
    _Atomic uint64_t beat_ms;
    // The ops thread's.
    struct send_set *sends;
    struct job_list waiting;
    uv_timer_t poll;
};

/* ---- to the loop and back ---- */

void admin_job_free(struct job *j) {
    strbuf_fini(&j->out);
    free(j);
}

static void on_answer(void *owner, struct nng_msg *msg);

static void on_loop(void *owner, struct nng_msg *msg) {
    struct job *j = owner;
    struct admin *a = j->admin;
    (void)msg;
    if (a->ops_over) {
        admin_job_free(j);
        return;
    }
    j->again = false;
    j->run(a->server, j);
    inbox_post(&a->to_ops, on_answer, j, NULL);
}

static void post(struct job *j) {
    inbox_post(&j->admin->to_loop, on_loop, j, NULL);
}

static void answer(struct job *j) {
    if (!j->send) return;
    if (j->refused) {
        send_error(j->send, &j->e);
        return;
    }
    strbuf_add_char(&j->out, '\n');
    send_whole(j->send, &SEND_HEAD(.status = j->status, .content_type = "application/json"),
               j->out.p, j->out.len);
}

// What the snapshot of that moment says, on the ops thread, which may read it.
static bool add_worker_object(struct job *j) {
    struct status_source status = j->admin->server->status;
    char state[24];
    bool stays_down = false;
    status.is_writer = false; // as whoever publishes it would read it, it could change meanwhile
    bool there = api_status_add_worker(&status, j->rank, &j->out, state, &stays_down);
    if (!there) {
        j->refused = true;
        apierr_set(&j->e, APIERR_NOT_FOUND, NULL, "no worker has the rank %u", j->rank);
    }
    if (!there || !j->wait_state[0] || !strcmp(state, j->wait_state)) return true;
    return stays_down && strcmp(j->wait_state, "stopped") != 0; // a stop is on its way from there
}

static void on_answer(void *owner, struct nng_msg *msg) {
    struct job *j = owner;
    (void)msg;
    bool waits = j->again;
    if (j->worker_object && !j->refused) {
        strbuf_reset(&j->out);
        waits = !add_worker_object(j);
    }
    if (j->send && waits && mono_ms() < j->until_ms) {
        TAILQ_INSERT_TAIL(&j->admin->waiting, j, link);
        return;
    }
    answer(j);
    admin_job_free(j);
}

static void on_poll(uv_timer_t *t) {
    struct admin *a = t->data;
    struct job *j;
    atomic_store_explicit(&a->beat_ms, mono_ms(), memory_order_relaxed);
    while ((j = TAILQ_FIRST(&a->waiting))) {
        TAILQ_REMOVE(&a->waiting, j, link);
        strbuf_reset(&j->out);
        post(j);
    }
}

static void on_gone(void *arg) {
    struct job *j = arg;
    j->send = NULL;
}

/* ---- life ---- */

struct admin *admin_new(struct server *s) {
    struct admin *a = mem_calloc(1, sizeof *a);
    a->server = s;
    TAILQ_INIT(&a->waiting);
    a->beat_ms = mono_ms();
    int rc = inbox_open(&a->to_loop, &s->loop);
    assert(rc == 0); // the loop is new: a descriptor is there
    return a;
}

static void on_inbox_closed(void *arg) {
    (void)arg;
}

void admin_close(struct admin *a) {
    if (!a) return;
    a->ops_over = true;
    inbox_drain(&a->to_loop);
    inbox_close(&a->to_loop, on_inbox_closed, a);
}

void admin_free(struct admin *a) {
    free(a);
}

void admin_attach(struct admin *a, uv_loop_t *loop, struct send_set *sends) {
    a->sends = sends;
    int rc = inbox_open(&a->to_ops, loop);
    assert(rc == 0);
    uv_timer_init(loop, &a->poll);
    a->poll.data = a;
    uv_timer_start(&a->poll, on_poll, POLL_MS, POLL_MS);
}

void admin_detach(struct admin *a) {
    inbox_drain(&a->to_ops);
    for (struct job *j; (j = TAILQ_FIRST(&a->waiting));) {
        TAILQ_REMOVE(&a->waiting, j, link);
        admin_job_free(j);
    }
    inbox_close(&a->to_ops, on_inbox_closed, a);
    uv_close((uv_handle_t *)&a->poll, NULL);
}

uint64_t admin_last_beat_ms(const struct admin *a) {
    return atomic_load_explicit(&a->beat_ms, memory_order_relaxed);
}

/* ---- calls ---- */

struct job *admin_job_new(struct http_call *c, void (*run)(struct server *, struct job *)) {
    struct status_source *status = c->app;
    struct job *j = mem_calloc(1, sizeof *j);
    j->admin = status->admin;
    j->run = run;
    j->status = 200;
    j->how = (struct control_how){.timeout_s = api_status_snapshot(status)->config->drain_s,
                                  .start_s = START_S_DEFAULT};
    return j;
}

void admin_job_begin(struct job *j, struct http_call *c) {
    j->send = send_new(c, j->admin->sends, &(struct send_events){.arg = j, .on_gone = on_gone});
    post(j);
}

void admin_job_refuse(struct job *j, struct http_call *c, const struct apierr *e) {
    send_reply_error(c, e);
    admin_job_free(j);
}
