/* backend: the set, and what is asked of it. See backend.h and backend_int.h. */
#include "common/err.h"
#include "common/log.h"
#include "common/mem.h"
#include "common/mono.h"
#include "router/backend_int.h"
#include "router/lobby.h"
#include "router/peer.h"

#include <assert.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

const char *backend_state_name(enum backend_state s) {
    static const char *const names[BACKEND_STATE_COUNT] = {
        "starting", "loading", "ready", "draining", "drained", "stopped", "failed", "backoff",
    };
    return (unsigned)s < BACKEND_STATE_COUNT ? names[s] : "unknown";
}

const char *backend_failure_name(enum backend_failure f) {
    static const char *const names[BACKEND_FAILURE_COUNT] = {
        "exit", "signal", "hung", "gpu_lost", "bad_frame", "start", "lost",
    };
    return (unsigned)f < BACKEND_FAILURE_COUNT ? names[f] : "unknown";
}

bool backend_state_is_name(const char *name, size_t len) {
    for (int s = 0; s < BACKEND_STATE_COUNT; s++) {
        const char *n = backend_state_name((enum backend_state)s);
        if (strlen(n) == len && !memcmp(n, name, len)) return true;
    }
    return false;
}

void backend_set_state(struct backend *b, enum backend_state state) {
    enum backend_state old = b->state;
    if (old == state) return;
    b->state = state;
    b->since_ms = mono_ms();
    log_info("worker_state", "rank=%u generation=%u from=%s to=%s", b->rank, b->generation,
             backend_state_name(old), backend_state_name(state));
    b->set->c.events.on_state(b->set->c.events.arg, b, old);
}

void backend_set_reason(struct backend *b, const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(b->reason, sizeof b->reason, fmt, ap);
    va_end(ap);
}

/* The set. */

static int open_loop_side(struct backends *s, struct err *e) {
    int rv = uv_timer_init(s->c.loop, &s->tick);
    assert(rv == 0); // never fails
    s->tick.data = s;
    snprintf(s->lobby_url, sizeof s->lobby_url, "ipc://%s/lobby.sock", s->c.run_dir);
    return lobby_open(&s->lobby, s->c.loop, s->lobby_url, backend_on_hello, s, e);
}

static void on_async_closed(void *arg) {
    struct backends *s = arg;
    free(s);
}

static void on_abandoned_tick(uv_handle_t *h) {
    struct backends *s = h->data;
    inbox_close(&s->inbox, on_async_closed, s);
}

// A set that never came to life: its two handles still have to leave through the loop, one after the other, since
// libuv ends handles that close in one turn in the reverse order and the last one takes the set's memory with it.
static void abandon(struct backends *s) {
    uv_close((uv_handle_t *)&s->tick, on_abandoned_tick);
}

int backends_new(struct backends **ret, const struct backends_config *c, struct err *e) {
    uint32_t count = c->ranks + c->guest_ranks;
    size_t dir_len = strlen(c->run_dir);
    // "/w4294967295.4294967295.sock" goes behind the folder; a socket path holds 107 bytes.
    if (dir_len + 29 > 107)
        return err_set(e, ST_INVAL, "run.dir '%s': wanted at most 78 bytes, found %zu", c->run_dir,
                       dir_len);
    assert(count > 0 && c->vocab && (!c->spawn || c->worker_argv));
    struct backends *s = mem_calloc(1, sizeof *s + count * sizeof s->b[0]);
    s->c = *c;
    s->count = count;
    for (uint32_t i = 0; i < count; i++)
        s->b[i] = (struct backend){.set = s,
                                   .rank = i,
                                   .own = c->spawn && i < c->ranks,
                                   .state = BACKEND_STOPPED,
                                   .failure = BACKEND_FAILURE_COUNT,
                                   .since_ms = mono_ms()};
    if (getrandom(&s->router_epoch, sizeof s->router_epoch, 0) != sizeof s->router_epoch)
        s->router_epoch = mono_ns();
    int rv = inbox_open(&s->inbox, s->c.loop);
    if (rv) {
        free(s);
        return err_set(e, ST_IO, "async handle: %s", uv_strerror(rv));
    }
    int st = open_loop_side(s, e);
    if (st) return abandon(s), st;
    s->last_tick_ms = mono_ms();
    for (uint32_t i = 0; i < count; i++)
        if (s->b[i].own) s->b[i].start_at_ms = 1; // long due: the first tick, at once, starts it
    uv_timer_start(&s->tick, backend_on_tick, 0, BACKEND_TICK_MS);
    *ret = s;
    return ST_OK;
}

void backends_free(struct backends *s) {
    if (!s || s->abandoned) return;
    assert(s->stopped);
    for (uint32_t i = 0; i < s->count; i++) {
        arena_fini(&s->b[i].hello_arena);
        arena_fini(&s->b[i].status_arena);
        free(s->b[i].live);
    }
    arena_fini(&s->scratch);
    free(s);
}

void backends_stop(struct backends *s, double grace_s, void (*done)(void *arg), void *arg) {
    assert(!s->stopping);
    s->stopping = true;
    s->done = done;
    s->done_arg = arg;
    s->stop_by_ms = mono_ms() + (uint64_t)(grace_s * 1000);
    s->guests_by_ms = mono_ms() + BACKEND_GUEST_LINGER_MS;
    for (uint32_t i = 0; i < s->count; i++) {
        struct backend *b = &s->b[i];
        struct frame f = {.type = FRAME_GOODBYE, .goodbye = {"the router ends"}};
        if (b->child.running)
            child_kill(&b->child, SIGTERM);
        else if (b->peer && peer_send(b->peer, &f, NULL))
            backend_lose(b, "the router ends", BACKEND_STOPPED);
    }
    s->closing++;
    lobby_close(s->lobby, backend_after_close, s);
    s->lobby = NULL;
}

uint32_t backends_count(const struct backends *s) {
    return s->count;
}

const char *backends_given_up(const struct backends *s) {
    const char *why = NULL;
    for (uint32_t i = 0; i < s->count; i++) {
        const struct backend *b = &s->b[i];
        if (b->peer || (b->own && b->state != BACKEND_FAILED)) return NULL;
        if (b->own && (b->child.running || b->child.closing || b->start_at_ms)) return NULL;
        if (b->own && !why) why = b->reason;
    }
    return why;
}

struct backend *backends_at(struct backends *s, uint32_t rank) {
    return rank < s->count ? &s->b[rank] : NULL;
}

/* One rank. */

uint32_t backend_rank(const struct backend *b) {
    return b->rank;
}

enum backend_state backend_state(const struct backend *b) {
    return b->state;
}

// What its last STATUS did not yet know of counts against the room that it named.
uint32_t backend_room(const struct backend *b) {
    if (b->state != BACKEND_READY || !b->peer) return 0;
    uint64_t known = (uint64_t)b->status.streams_running + b->status.queue_requests;
    uint64_t unknown = b->live_count > known ? b->live_count - known : 0;
    return b->status.room > unknown ? (uint32_t)(b->status.room - unknown) : 0;
}

static uint32_t find_stream(const struct backend *b, struct frame_stream s) {
    uint32_t i = 0;
    while (i < b->live_count && (b->live[i].id != s.id || b->live[i].epoch != s.epoch)) i++;
    return i;
}

bool backend_forget_stream(struct backend *b, struct frame_stream s) {
    uint32_t i = find_stream(b, s);
    if (i == b->live_count) return false;
    b->live[i] = b->live[--b->live_count];
    if (b->live_count == 0) b->health.progress_ms = b->set->turned_ms;
    return true;
}

static void remember_stream(struct backend *b, struct frame_stream s) {
    if (b->live_count == b->live_cap) {
        b->live_cap = b->live_cap ? 2 * b->live_cap : 16;
        b->live = mem_realloc_array(b->live, b->live_cap, sizeof *b->live);
    }
    if (b->live_count == 0) b->health.progress_ms = b->set->turned_ms; // work begins to be pending
    b->live[b->live_count++] = s;
}

int backend_submit(struct backend *b, const struct frame_submit *s, struct err *e) {
    if (b->state != BACKEND_READY || !b->peer)
        return err_set(e, ST_CLOSED, "worker %u is %s", b->rank, backend_state_name(b->state));
    if (backend_room(b) == 0) return err_set(e, ST_FULL, "worker %u has no room", b->rank);
    struct frame f = {.type = FRAME_SUBMIT, .submit = *s};
    int st = peer_send(b->peer, &f, e);
    if (!st) remember_stream(b, s->stream);
    return st;
}

void backend_cancel(struct backend *b, struct frame_stream s) {
    if (b->peer && find_stream(b, s) < b->live_count) peer_cancel(b->peer, s);
}

int backend_drain(struct backend *b, const struct frame_drain *d, struct err *e) {
    if (!b->peer)
        return err_set(e, ST_CLOSED, "worker %u is %s", b->rank, backend_state_name(b->state));
    struct frame f = {.type = FRAME_DRAIN, .drain = *d};
    int st = peer_send(b->peer, &f, e);
    if (st) return st;
    b->drain_asked = d->mode != FRAME_DRAIN_RESUME;
    if (d->mode == FRAME_DRAIN_EXIT) b->exit_asked = true;
    if (b->drain_asked && b->state == BACKEND_READY) backend_set_state(b, BACKEND_DRAINING);
    return ST_OK;
}

void backend_stop(struct backend *b) {
    struct frame_drain d = {.mode = FRAME_DRAIN_EXIT};
    b->exit_asked = true;
    b->start_at_ms = 0;
    if (b->peer && !backend_drain(b, &d, NULL)) return;
    child_kill(&b->child, SIGTERM);
    if (!b->child.running && !b->peer) backend_set_state(b, BACKEND_STOPPED);
}

void backend_start(struct backend *b) {
    if (!b->own || b->child.running) return;
    restart_reset(&b->restart);
    b->exit_asked = false;
    b->start_at_ms = 1; // long due
    b->reason[0] = '\0';
    backend_set_state(b, BACKEND_STARTING);
}

static const char *text_or_empty(const char *s) {
    return s ? s : "";
}

static struct frame_fingerprint fingerprint_of(const struct backend *b) {
    const struct frame_fingerprint *f =
        b->status.fingerprint.build ? &b->status.fingerprint : &b->hello.fingerprint;
    return (struct frame_fingerprint){text_or_empty(f->build), text_or_empty(f->checkpoint),
                                      text_or_empty(f->device), text_or_empty(f->kv),
                                      text_or_empty(f->rope)};
}

void backend_kind(const struct backend *b, char ret[FINGERPRINT_DIGEST_BYTES]) {
    struct frame_fingerprint f = fingerprint_of(b);
    fingerprint_digest(&f, ret);
}

uint64_t backend_heard_us(const struct backend *b) {
    return b->heard_us;
}

void backend_info(const struct backend *b, struct backend_info *ret) {
    uint64_t now = mono_ms();
    const struct frame_hello *h = &b->hello;
    *ret = (struct backend_info){
        .rank = b->rank,
        .generation = b->generation,
        .state = b->state,
        .name = text_or_empty(h->name),
        .model = text_or_empty(h->model),
        .reason = b->reason,
        .fault = b->fault[0] ? b->fault : NULL,
        .version = text_or_empty(h->fingerprint.build),
        .pid = b->child.running ? (uint32_t)b->child.process.pid
               : b->peer        ? h->pid
                                : 0,
        .supervised = b->own,
        .gpu_name = text_or_empty(h->gpu_name),
        .gpu_uuid = text_or_empty(h->gpu_uuid),
        .gpu_pci = text_or_empty(h->gpu_pci),
        .fingerprint = fingerprint_of(b),
        .status = b->status,
        .since_ms = b->since_ms,
        .last_progress_ms = b->last_progress_ms,
        .up_ms = b->peer ? mono_since(b->joined_ms, now) : 0,
        .restarts = b->restarts,
        .rounds = b->status.rounds,
        .tokens = b->status.tokens,
        .streams_sent = b->live_count,
        .frames_dropped = b->frames_dropped,
    };
    ret->status.reason = text_or_empty(b->status.reason);
    ret->status.fingerprint = ret->fingerprint;
}
