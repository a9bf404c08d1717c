/* backend_watch: health, the processes and their restarts, the end. See backend_int.h. */
#include "common/err.h"
#include "common/log.h"
#include "common/mono.h"
#include "common/num.h"
#include "proto/exit_code.h"
#include "router/backend_int.h"
#include "router/peer.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>

/* Processes. */

static void try_complete_stop(struct backends *s);

// Whether the next run could end otherwise.
static bool may_help(int64_t code) {
    return code != EXIT_CODE_USAGE && code != EXIT_CODE_MODEL && code != EXIT_CODE_REFUSED;
}

static const char *meaning_of(int64_t code) {
    switch (code) {
    case EXIT_CODE_USAGE: return "its settings are refused";
    case EXIT_CODE_MODEL: return "the checkpoint cannot be loaded";
    case EXIT_CODE_REFUSED: return "it does not belong to this router";
    case EXIT_CODE_DEVICE: return "its device has failed";
    case EXIT_CODE_MEMORY: return "the model does not fit into memory";
    default: return NULL;
    }
}

// The words for an exit, for clients as for whoever looks after the workers. Of one that we killed: why.
static void set_fault(struct backend *b, int64_t code, int signal) {
    const char *meaning = b->failure == BACKEND_FAILURE_HUNG        ? "it stood still"
                          : b->failure == BACKEND_FAILURE_BAD_FRAME ? "what it sent made no sense"
                          : b->failure == BACKEND_FAILURE_START     ? "it did not come up"
                          : signal                                  ? NULL
                                                                    : meaning_of(code);
    if (meaning)
        snprintf(b->fault, sizeof b->fault, "%s", meaning);
    else if (signal)
        snprintf(b->fault, sizeof b->fault, "killed by signal %d", signal);
    else
        snprintf(b->fault, sizeof b->fault, "exit code %lld", (long long)code);
}

static void give_up(struct backend *b, const char *after) {
    log_error("worker_failed",
              "rank=%u reason=\"%s\": not started again after %s (railyard ctl start %u does it)",
              b->rank, b->reason, after, b->rank);
    backend_set_state(b, BACKEND_FAILED);
}

void backend_failed(struct backend *b, enum backend_failure why) {
    const struct backend_events *events = &b->set->c.events;
    b->failure = BACKEND_FAILURE_COUNT;
    if (events->on_failed) events->on_failed(events->arg, b, why);
}

// A run of b's process is over, and not because anybody wished it. code -1: it could not be started, or was killed.
static void after_failure(struct backend *b, int64_t code) {
    uint64_t delay_ms = 0, now = mono_ms();
    char after[48];
    snprintf(after, sizeof after, "exit code %lld", (long long)code);
    if (!may_help(code)) return give_up(b, after);
    snprintf(after, sizeof after, "%d failures in ten minutes", RESTART_FAILURES_MAX);
    if (!restart_after_failure(&b->restart, now, b->started_ms, &delay_ms)) {
        size_t n = strlen(b->reason);
        snprintf(b->reason + n, sizeof b->reason - n, "; %s", after);
        return give_up(b, after);
    }
    b->start_at_ms = now + delay_ms;
    log_info("worker_restart", "rank=%u in_ms=%llu", b->rank, (unsigned long long)delay_ms);
    backend_set_state(b, BACKEND_BACKOFF);
}

static void describe_exit(struct backend *b, int64_t code, int signal) {
    char how[96];
    bool clean = code == 0 && signal == 0;
    const char *meaning = signal ? NULL : meaning_of(code);
    if (signal)
        snprintf(how, sizeof how, "killed by signal %d", signal);
    else if (meaning)
        snprintf(how, sizeof how, "%s (exit code %lld)", meaning, (long long)code);
    else
        snprintf(how, sizeof how, "exit code %lld", (long long)code);
    // If another run cannot help, worker_failed says all of it.
    log_line(clean || b->set->stopping                   ? LOG_LEVEL_INFO
             : may_help(code) || signal || b->exit_asked ? LOG_LEVEL_WARN
                                                         : LOG_LEVEL_DEBUG,
             "worker_exit", "rank=%u generation=%u pid=%d how=\"%s\" reason=\"%s\"", b->rank,
             b->generation, b->child.process.pid, how, b->reason);
    size_t n = strlen(b->reason);
    snprintf(b->reason + n, sizeof b->reason - n, "%s%s", n ? "; " : "", how);
}

static enum backend_failure failure_of(const struct backend *b, int64_t code, int signal) {
    if (b->failure < BACKEND_FAILURE_COUNT) return b->failure; // the signal was ours
    if (signal) return BACKEND_FAILURE_SIGNAL;
    return code == EXIT_CODE_DEVICE ? BACKEND_FAILURE_GPU_LOST : BACKEND_FAILURE_EXIT;
}

static void on_exit_of(void *arg, int64_t code, int signal) {
    struct backend *b = arg;
    bool clean = code == 0 && signal == 0;
    describe_exit(b, code, signal);
    backend_lose(b, b->reason, BACKEND_BACKOFF);
    b->lost_ms = 0;
    if (b->set->stopping || b->exit_asked) {
        backend_set_state(b, BACKEND_STOPPED);
    } else if (clean) { // somebody ended it in good order: a restart
        b->start_at_ms = mono_ms();
        backend_set_state(b, BACKEND_BACKOFF);
    } else {
        set_fault(b, code, signal);
        backend_failed(b, failure_of(b, code, signal));
        after_failure(b, signal ? -1 : code);
    }
}

static void on_child_closed(void *arg) {
    struct backend *b = arg;
    try_complete_stop(b->set);
}

int backend_start_process(struct backend *b, struct err *e) {
    struct backends *s = b->set;
    bool first = b->started_ms == 0;
    b->start_at_ms = 0;
    b->started_ms = mono_ms();
    b->exit_asked = false;
    b->failure = BACKEND_FAILURE_COUNT;
    b->child.on_exit = on_exit_of;
    b->child.on_closed = on_child_closed;
    b->child.arg = b;
    int st = child_start(&b->child, s->c.loop, s->c.worker_argv, b->rank, s->lobby_url, e);
    if (st) return st;
    if (!first) b->restarts++;
    log_info("worker_started", "rank=%u pid=%d", b->rank, b->child.process.pid);
    backend_set_state(b, BACKEND_STARTING);
    return ST_OK;
}

void backend_drop(struct backend *b, const char *reason) {
    backend_drop_as(b, BACKEND_FAILURE_BAD_FRAME, reason);
}

void backend_drop_as(struct backend *b, enum backend_failure why, const char *reason) {
    b->failure = why;
    child_kill(&b->child, SIGKILL); // its exit decides what comes
    backend_set_reason(b, "%s", reason);
    backend_lose(b, reason, BACKEND_FAILED);
}

static void start_if_due(struct backend *b, uint64_t now) {
    struct err e = {0};
    bool due = b->start_at_ms && b->start_at_ms <= now && !b->child.running && !b->child.closing;
    if (!due || b->set->stopping) return;
    if (!backend_start_process(b, &e)) return;
    log_error("worker_start", "rank=%u reason=\"%s\"", b->rank, e.msg);
    backend_set_reason(b, "%s", e.msg);
    snprintf(b->fault, sizeof b->fault, "it could not be started");
    backend_failed(b, BACKEND_FAILURE_START);
    after_failure(b, -1);
}

/* Health. */

static void send_ping(struct backend *b) {
    uint64_t now = b->set->turned_ms;
    if (now - b->health.last_ping_ms < BACKEND_PING_MS) return;
    struct frame f = {.type = FRAME_PING, .ping = {b->health.ping_seq + 1, mono_us()}};
    if (peer_send(b->peer, &f, NULL)) return; // too much waits already: the age of the oldest tells
    health_pinged(&b->health, now);
}

static void check_health(struct backend *b) {
    uint64_t limit_ms = health_limit_ms(b->set->c.progress_s, b->status.round_ms);
    char reason[128];
    if (health_hung(&b->health, b->live_count, limit_ms, b->set->turned_ms, reason, sizeof reason))
        backend_drop_as(b, BACKEND_FAILURE_HUNG, reason);
}

// WELCOME was sent, or the process started, and nothing followed; or its incarnation is over and it goes on.
static void check_joining(struct backend *b, uint64_t now) {
    double hello_s = b->set->c.hello_s;
    uint64_t hello_ms = (uint64_t)(hello_s * 1000);
    char reason[96];
    if (b->peer && !b->up && mono_since(b->joined_ms, now) > BACKEND_DIAL_MS)
        snprintf(reason, sizeof reason, "did not dial its socket within %d ms", BACKEND_DIAL_MS);
    else if (b->state == BACKEND_STARTING && b->child.running &&
             mono_since(b->started_ms, now) > hello_ms)
        snprintf(reason, sizeof reason, "no HELLO within %g s", hello_s);
    else if (b->lost_ms && b->child.running && mono_since(b->lost_ms, now) > BACKEND_ORPHAN_MS)
        snprintf(reason, sizeof reason, "%.60s, and did not end", b->reason);
    else
        return;
    backend_drop_as(b, BACKEND_FAILURE_START, reason);
}

static void watch(struct backend *b, uint64_t now) {
    start_if_due(b, now);
    check_joining(b, now);
    if (b->peer && b->up) check_health(b);
    if (b->peer && b->up) send_ping(b);
}

/* The end. */

static void on_inbox_closed(void *arg) {
    struct backends *s = arg;
    s->stopped = true;
    s->done(s->done_arg);
}

static void on_tick_closed(uv_handle_t *h) {
    struct backends *s = h->data;
    inbox_close(&s->inbox, on_inbox_closed, s);
}

static void try_complete_stop(struct backends *s) {
    if (!s->stopping || s->closing > 0 || uv_is_closing((uv_handle_t *)&s->tick)) return;
    for (uint32_t i = 0; i < s->count; i++)
        if (s->b[i].child.running || s->b[i].child.closing || s->b[i].peer) return;
    uv_close((uv_handle_t *)&s->tick, on_tick_closed);
}

void backend_after_close(void *arg) {
    struct backends *s = arg;
    if (s->abandoned) return;
    s->closing--;
    try_complete_stop(s);
}

// Who has not gone in time is made to.
static void hurry_stop(struct backends *s, uint64_t now) {
    for (uint32_t i = 0; i < s->count; i++) {
        struct backend *b = &s->b[i];
        if (b->child.running && now >= s->stop_by_ms) child_kill(&b->child, SIGKILL);
        if (b->peer && !b->child.running && now >= min_u64(s->stop_by_ms, s->guests_by_ms))
            backend_lose(b, "the router ends", BACKEND_STOPPED);
    }
    if (s->closing && now >= s->stop_by_ms + BACKEND_CLOSE_MS) {
        log_error("sockets_stuck", "count=%u", s->closing);
        s->abandoned = true;
        s->closing = 0;
    }
    try_complete_stop(s);
}

void backend_on_tick(uv_timer_t *t) {
    struct backends *s = t->data;
    uint64_t now = mono_ms();
    s->turned_ms = health_clock(s->turned_ms, s->last_tick_ms, now, BACKEND_TICK_MS);
    s->last_tick_ms = now;
    if (s->stopping) return hurry_stop(s, now);
    for (uint32_t i = 0; i < s->count; i++) watch(&s->b[i], now);
}
