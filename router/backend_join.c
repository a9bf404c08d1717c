/* backend_join: from HELLO to the last frame of an incarnation. See backend_int.h. */
#include "common/err.h"
#include "common/log.h"
#include "common/mono.h"
#include "router/backend_int.h"
#include "router/peer.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* The end of an incarnation. */

void backend_lose(struct backend *b, const char *reason, enum backend_state next) {
    if (!b->peer) return;
    struct backends *s = b->set;
    char why[BACKEND_REASON_BYTES]; // reason may be b's own, which changes
    snprintf(why, sizeof why, "%s", reason);
    bool asked = s->stopping || b->exit_asked, wanted = asked || next == BACKEND_STOPPED;
    // Of a process of ours that never got ready its exit tells all.
    bool unready = b->child.running && next != BACKEND_STOPPED &&
                   (b->state == BACKEND_STARTING || b->state == BACKEND_LOADING);
    log_line(unready  ? LOG_LEVEL_DEBUG
             : wanted ? LOG_LEVEL_INFO
                      : LOG_LEVEL_WARN,
             "worker_lost", "rank=%u generation=%u pid=%u streams=%u reason=\"%s\"", b->rank,
             b->generation, b->hello.pid, b->live_count, why);
    s->closing++;
    peer_close(b->peer, backend_after_close, s);
    b->peer = NULL;
    b->up = false;
    b->live_count = 0;
    b->status.room = b->status.streams_running = b->status.queue_requests = 0;
    if (b->child.running) b->lost_ms = mono_ms();
    backend_set_reason(b, "%s", why);
    s->c.events.on_lost(s->c.events.arg, b, why, next == BACKEND_STOPPED);
    if (!wanted && !b->own) // of a process of ours its exit tells more
        backend_failed(b, b->failure < BACKEND_FAILURE_COUNT ? b->failure : BACKEND_FAILURE_LOST);
    // Its exit says more. One that was asked to end goes from draining or drained to stopped, and by no other state.
    enum backend_state ending = b->state == BACKEND_READY ? BACKEND_DRAINING : b->state;
    if (b->child.running) next = asked ? ending : BACKEND_BACKOFF;
    backend_set_state(b, next);
}

static void on_down(void *arg, const char *why) {
    backend_lose(arg, why, BACKEND_FAILED);
}

/* Frames. */

static void moved(struct backend *b) {
    b->health.progress_ms = b->set->turned_ms;
    b->last_progress_ms = mono_ms();
}

static enum backend_state state_of(enum frame_state s) {
    switch (s) {
    case FRAME_STATE_READY: return BACKEND_READY;
    case FRAME_STATE_DRAINING: return BACKEND_DRAINING;
    case FRAME_STATE_DRAINED: return BACKEND_DRAINED;
    case FRAME_STATE_FAILED: return BACKEND_FAILED;
    default: return BACKEND_LOADING;
    }
}

// The frame lives in the set's scratch; the STATUS stays for later, so the two arenas change places.
static void on_status(struct backend *b, const struct frame_status *st) {
    struct backends *s = b->set;
    bool news = st->progress != b->status.progress || st->state != b->status.state ||
                st->load_fraction != b->status.load_fraction;
    b->status = *st;
    struct arena old = b->status_arena;
    b->status_arena = s->scratch;
    s->scratch = old;
    if (news) moved(b);
    if (st->state == FRAME_STATE_FAILED) {
        snprintf(b->fault, sizeof b->fault, "its engine has failed");
        return backend_lose(b, st->reason, BACKEND_FAILED);
    }
    bool ready = st->state == FRAME_STATE_READY;
    if (ready) {
        b->reason[0] = '\0';
        b->fault[0] = '\0';
    }
    // Sent before our DRAIN was read.
    backend_set_state(b, ready && b->drain_asked ? BACKEND_DRAINING : state_of(st->state));
    if (b->peer) s->c.events.on_room(s->c.events.arg, b);
}

static void on_stream_frame(struct backend *b, const struct frame *f) {
    struct backends *s = b->set;
    if (f->type == FRAME_DONE) backend_forget_stream(b, f->done.stream);
    if (f->type == FRAME_FAIL && f->fail.stream.id) backend_forget_stream(b, f->fail.stream);
    moved(b);
    s->c.events.on_frame(s->c.events.arg, b, f);
}

static void on_ping(struct backend *b, const struct frame *f) {
    struct frame pong = {.type = FRAME_PONG, .ping = f->ping};
    peer_send(b->peer, &pong, NULL); // over the limit it may well wait for nothing
}

static void on_frame(struct backend *b, const struct frame *f) {
    switch (f->type) {
    case FRAME_STATUS: on_status(b, &f->status); return;
    case FRAME_TOKENS:
    case FRAME_DONE:
    case FRAME_FAIL: on_stream_frame(b, f); return;
    case FRAME_GOODBYE: backend_lose(b, f->goodbye.reason, BACKEND_STOPPED); return;
    case FRAME_PING: on_ping(b, f); return;
    case FRAME_PONG: health_ponged(&b->health, f->ping.seq); return;
    default: break;
    }
    char reason[96];
    snprintf(reason, sizeof reason, "bad_frame: a worker does not send %s",
             frame_type_name(f->type));
    backend_drop(b, reason);
}

static void on_message(void *arg, const uint8_t *bytes, size_t len) {
    struct backend *b = arg;
    struct backends *s = b->set;
    struct frame f;
    struct err e = {0};
    if (!b->peer) return;
    b->heard_us = mono_us();
    arena_reset(&s->scratch);
    int st = frame_decode(&f, bytes, len, &s->scratch, &e);
    if (st == ST_UNSUPPORTED || (!st && f.generation != b->generation)) {
        b->frames_dropped++;
        log_debug("frame_dropped", "rank=%u generation=%u: %s", b->rank, b->generation,
                  st ? e.msg : "of another generation");
        return;
    }
    if (!st) return on_frame(b, &f);
    err_prefix(&e, "bad_frame");
    backend_drop(b, e.msg);
}

static void on_up(void *arg) {
    struct backend *b = arg;
    if (b->peer) b->up = true;
}

/* HELLO. */

// The answer's text is the set's.
static void refuse(struct backends *s, struct frame *answer, enum frame_fail_code code,
                   const struct frame_hello *h, const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(s->refusal, sizeof s->refusal, fmt, ap);
    va_end(ap);
    log_warn("worker_refused", "pid=%u name=\"%s\" model=\"%s\" code=%s reason=\"%s\"", h->pid,
             h->name, h->model, frame_fail_name(code), s->refusal);
    *answer = (struct frame){.type = FRAME_FAIL, .fail = {.code = code, .message = s->refusal}};
}

static bool token_is(const char *a, const char *b) {
    return a && a[0] && !strcmp(a, b);
}

// A free rank takes a worker started by hand.
static bool is_free(const struct backend *b) {
    return !b->own && !b->peer;
}

// The rank that this HELLO gets, or NULL and why not. FULL: asking again may help, since the rank's last worker may have
// died a moment ago.
static struct backend *pick_rank(struct backends *s, const struct frame_hello *h, struct err *why,
                                 enum frame_fail_code *code) {
    for (uint32_t i = 0; i < s->count; i++) {
        struct backend *b = &s->b[i];
        bool ours = b->child.running && token_is(b->child.token, h->token);
        // The same process once more: our answer to its first HELLO got lost, or its connection did.
        bool again = b->peer && token_is(b->hello.token, h->token);
        if (ours || again) return b;
    }
    *code = FRAME_FAIL_REFUSED;
    if (h->supervised) {
        err_set(why, ST_INVAL, "wanted a token of this router, found another one");
        return NULL;
    }
    if (h->rank >= 0) {
        struct backend *b = backends_at(s, (uint32_t)h->rank);
        if (b && is_free(b)) return b;
        if (b) *code = FRAME_FAIL_FULL;
        if (b)
            err_set(why, ST_FULL, "wanted a free rank, found %d, which another worker has",
                    h->rank);
        else
            err_set(why, ST_INVAL, "wanted a rank of 0 to %u, found %d", s->count - 1, h->rank);
        return NULL;
    }
    for (uint32_t i = 0; i < s->count; i++)
        if (is_free(&s->b[i])) return &s->b[i];
    *code = FRAME_FAIL_FULL;
    err_set(why, ST_FULL, "wanted a free rank, found all %u taken (--workers=N on the router)",
            s->count);
    return NULL;
}

static void keep_hello(struct backend *b, const struct frame_hello *h) {
    struct arena *a = &b->hello_arena;
    arena_reset(a);
    b->hello = *h;
    const char **texts[] = {&b->hello.token,
                            &b->hello.name,
                            &b->hello.model,
                            &b->hello.gpu_name,
                            &b->hello.gpu_uuid,
                            &b->hello.gpu_pci,
                            &b->hello.fingerprint.build,
                            &b->hello.fingerprint.checkpoint,
                            &b->hello.fingerprint.device,
                            &b->hello.fingerprint.kv,
                            &b->hello.fingerprint.rope};
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++)
        *texts[i] = arena_strdup(a, *texts[i]);
}

static int open_incarnation(struct backend *b, struct err *e) {
    struct backends *s = b->set;
    struct peer_events events = {b, on_up, on_message, on_down};
    struct frame vocab = {.type = FRAME_VOCAB, .vocab = *s->c.vocab};
    snprintf(b->url, sizeof b->url, "ipc://%s/w%u.%u.sock", s->c.run_dir, b->rank,
             b->generation + 1);
    int st = peer_new(&b->peer, &s->inbox, b->url, b->generation + 1, &events, e);
    if (st) return st;
    b->generation++;
    return peer_send(b->peer, &vocab, e); // waits there until the worker dials
}

static void begin_incarnation(struct backend *b) {
    b->joined_ms = mono_ms();
    b->up = b->drain_asked = false;
    if (!b->own) b->exit_asked = false; // of a process of ours it stands until that is started anew
    b->lost_ms = 0;
    b->failure = BACKEND_FAILURE_COUNT;
    b->status = (struct frame_status){0};
    b->reason[0] = '\0';
    health_reset(&b->health, b->set->turned_ms);
    b->last_progress_ms = b->joined_ms;
}

static void welcome(struct backend *b, uint32_t version, const struct frame_hello *h,
                    struct frame *answer) {
    struct err e = {0};
    backend_lose(b, "its process said HELLO again", BACKEND_FAILED);
    keep_hello(b, h);
    if (open_incarnation(b, &e)) {
        log_error("worker_socket", "rank=%u reason=\"%s\"", b->rank, e.msg);
        backend_lose(b, "its socket could not be made", BACKEND_FAILED);
        return refuse(b->set, answer, FRAME_FAIL_INTERNAL, h, "the router cannot make a socket");
    }
    begin_incarnation(b);
    log_info("worker_joined", "rank=%u generation=%u pid=%u supervised=%d name=\"%s\" model=\"%s\"",
             b->rank, b->generation, h->pid, b->own, h->name, h->model);
    *answer = (struct frame){.type = FRAME_WELCOME,
                             .welcome = {.version = version,
                                         .rank = b->rank,
                                         .generation = b->generation,
                                         .router_epoch = b->set->router_epoch,
                                         .path = b->url,
                                         .progress_s = b->set->c.progress_s}};
    backend_set_state(b, BACKEND_LOADING);
}

void backend_on_hello(void *arg, const struct frame_hello *h, struct frame *answer) {
    struct backends *s = arg;
    struct err why = {0};
    uint32_t version = frame_version_pick(h->version_min, h->version_max);
    enum frame_fail_code code;
    if (s->stopping) return refuse(s, answer, FRAME_FAIL_FULL, h, "the router is ending");
    struct backend *b = pick_rank(s, h, &why, &code);
    if (!version) {
        if (b)
            backend_set_reason(b, "version: speaks frames %u to %u", h->version_min,
                               h->version_max);
        return refuse(s, answer, FRAME_FAIL_VERSION, h,
                      "wanted a worker that speaks frames of version %d to %d, found one of %u to "
                      "%u: router and worker must be of one release",
                      FRAME_VERSION_MIN, FRAME_VERSION_MAX, h->version_min, h->version_max);
    }
    if (!b) return refuse(s, answer, code, h, "%s", why.msg);
    if (s->c.model && s->c.model[0] && strcmp(s->c.model, h->model))
        return refuse(
            s, answer, FRAME_FAIL_REFUSED, h,
            "wanted a worker whose MODEL folder is named '%.100s' as this router's, found "
            "'%.100s'",
            s->c.model, h->model);
    welcome(b, version, h, answer);
}
