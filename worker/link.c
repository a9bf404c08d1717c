/* link: see link.h. */
#include "worker/link.h"
#include "common/arena.h"
#include "common/err.h"
#include "common/log.h"
#include "common/mono.h"
#include "common/notify.h"
#include "common/num.h"
#include "worker/engine/engine.h"
#include "worker/runner.h"
#include "worker/service.h"
#include "worker/wire.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/signalfd.h>
#include <unistd.h>

enum {
    STATUS_MS = 1000,
    DIAL_MS_MIN = 100, // between two attempts to join
    DIAL_MS_MAX = 3000,
    GOODBYE_MS = 1000, // for the router to take it
    PROGRESS_S = 10,   // before a router has said how long work may stand still
};

struct link {
    struct link_config c;
    struct wire *wire;
    bool supervised;
    bool draining;        // takes no more; a router's RESUME undoes it
    bool exiting;         // draining for good
    const char *why;      // it ends, for GOODBYE
    bool reported;        // on_loaded was called
    uint64_t drain_by_ms; // then it ends whatever runs; 0: never
    uint64_t router_epoch;
    uint64_t status_ms; // when the last STATUS was sent
    uint64_t changes;   // as of the last STATUS
    bool status_due;
    struct arena arena; // of the frame being handled
    struct strbuf made; // frames taken from the runner
    struct service service;
    double progress_s; // as the last router said
};

// How an incarnation or the wait for one ended.
enum outcome { GOES_ON, ROUTER_GONE, DRAINED, HURRIED, FAILED };

/* STATUS. */

static enum frame_state state_of(const struct link *l, const struct runner_status *s) {
    if (s->state == RUNNER_FAILED) return FRAME_STATE_FAILED;
    if (!s->ready) return FRAME_STATE_LOADING;
    if (!l->draining) return FRAME_STATE_READY;
    return s->streams_running ? FRAME_STATE_DRAINING : FRAME_STATE_DRAINED;
}

static struct frame_fingerprint fingerprint_of(const struct link *l) {
    struct frame_fingerprint f = l->c.hello->fingerprint;
    const struct engine_info *info = runner_info(l->c.runner);
    if (!info) return f;
    f.checkpoint = info->checkpoint_digest;
    f.device = info->device;
    f.kv = info->kv_rule;
    f.rope = info->rope_rule;
    return f;
}

// The arena's regions, then what is not in it.
static uint32_t memory_of(const struct engine_info *info,
                          struct frame_memory ret[FRAME_MEMORY_MAX]) {
    uint32_t n = 0;
    if (!info) return 0;
    for (; n < info->regions_count && n < FRAME_MEMORY_MAX - 2; n++)
        ret[n] = (struct frame_memory){info->regions[n].name, info->regions[n].bytes};
    if (!info->pinned_bytes) return n;
    ret[n++] = (struct frame_memory){"pinned host memory", info->pinned_bytes};
    ret[n++] = (struct frame_memory){"left on the card", info->device_free_bytes};
    return n;
}

static int send_status(struct link *l, const struct runner_status *s) {
    const struct engine_info *info = runner_info(l->c.runner);
    struct frame_memory memory[FRAME_MEMORY_MAX];
    uint32_t memory_count = memory_of(info, memory);
    struct err e = {0};
    struct frame f = {
        .type = FRAME_STATUS,
        .status = {.state = state_of(l, s),
                   .reason = s->reason,
                   .load_fraction = s->load_fraction,
                   .progress = s->progress,
                   .streams_running = s->streams_running,
                   .streams_max = s->streams_max,
                   .room = l->draining ? 0 : s->room,
                   .context_max = s->context_max,
                   .vocab_size = s->vocab_size,
                   .kv_blocks_used = s->kv_blocks_used,
                   .kv_blocks_total = s->kv_blocks_total,
                   .kv_block_tokens = s->kv_block_tokens,
                   .fill_tokens_per_s = s->fill_tokens_per_s,
                   .round_ms = s->round_ms,
                   .rounds = s->rounds,
                   .tokens = s->tokens,
                   .prompt_tokens = s->prompt_tokens,
                   .fingerprint = fingerprint_of(l),
                   .embedding = info && info->embedding_rule ? info->embedding_rule : "",
                   .memory = memory,
                   .memory_count = memory_count}};
    l->status_ms = mono_ms();
    l->changes = s->changes;
    l->status_due = false;
    return wire_send(l->wire, &f, &e);
}

/* Frames of the router. */

static void on_submit(struct link *l, const struct frame_submit *s) {
    struct err e = {0};
    if (!l->draining) {
        log_debug("submit", "request=%s prompt=%u given=%u", s->request_id, s->prompt.count,
                  s->given.count);
        runner_submit(l->c.runner, s);
        l->status_due = true;
        return;
    }
    struct frame f = {.type = FRAME_FAIL,
                      .fail = {s->stream, FRAME_FAIL_FULL, "the worker drains"}};
    wire_send(l->wire, &f, &e); // a failure shows as the wire's end
}

static void begin_drain(struct link *l, const char *why, double timeout_s) {
    log_info("drain", "reason=\"%s\" exit=%d", why, l->exiting);
    if (l->exiting) notify_send("STOPPING=1\nSTATUS=draining");
    l->draining = true;
    l->why = why;
    l->drain_by_ms = timeout_s > 0 ? mono_ms() + (uint64_t)(timeout_s * 1000) : 0;
    l->status_due = true;
}

static void on_drain(struct link *l, const struct frame_drain *d) {
    if (d->mode == FRAME_DRAIN_RESUME) {
        l->draining = l->exiting; // a signal's drain is for good
        l->status_due = true;
        return;
    }
    l->exiting |= d->mode == FRAME_DRAIN_EXIT;
    begin_drain(l, "drained by the router", l->exiting ? d->timeout_s : 0);
}

static void on_ping(struct link *l, const struct frame *f) {
    struct err e = {0};
    struct frame pong = {.type = FRAME_PONG, .ping = f->ping};
    wire_send(l->wire, &pong, &e); // a failure shows as the wire's end
}

static enum outcome on_frame(struct link *l, const struct frame *f) {
    switch (f->type) {
    case FRAME_VOCAB: runner_set_vocab(l->c.runner, &f->vocab); break;
    case FRAME_SUBMIT: on_submit(l, &f->submit); break;
    case FRAME_CANCEL: runner_cancel(l->c.runner, &f->cancel); break;
    case FRAME_DRAIN: on_drain(l, &f->drain); break;
    case FRAME_PING: on_ping(l, f); break;
    case FRAME_GOODBYE:
        log_info("router_goodbye", "reason=\"%s\"", f->goodbye.reason);
        return ROUTER_GONE;
    default: break; // a PONG, or what only workers send
    }
    return GOES_ON;
}

static enum outcome take_frames(struct link *l) {
    for (;;) {
        struct frame f;
        struct err e = {0};
        arena_reset(&l->arena);
        int st = wire_take(l->wire, &f, &l->arena, &e);
        if (st == ST_NOT_FOUND) return GOES_ON;
        enum outcome o = st ? ROUTER_GONE : on_frame(l, &f);
        if (st) log_warn("router_lost", "reason=\"%s\"", e.msg);
        if (o != GOES_ON) return o;
    }
}

/* What the engine made. */

static enum outcome send_made(struct link *l) {
    const void *p;
    size_t len, at = 0;
    struct err e = {0};
    strbuf_reset(&l->made);
    runner_take(l->c.runner, &l->made);
    while (runner_next_frame(&l->made, &at, &p, &len)) {
        if (!wire_send_bytes(l->wire, p, len, &e)) continue;
        log_warn("router_lost", "reason=\"%s\"", e.msg);
        return ROUTER_GONE;
    }
    return GOES_ON;
}

static void report_once(struct link *l, const struct runner_status *s) {
    if (l->reported || s->state != RUNNER_LOADED) return;
    l->reported = true;
    l->c.on_loaded(l->c.arg);
}

// Frames first, so that a STATUS never tells of a stream's end before its DONE does.
static enum outcome tend(struct link *l) {
    struct runner_status s;
    runner_status(l->c.runner, &s);
    report_once(l, &s);
    service_tend(&l->service, &s, l->progress_s, mono_ms());
    enum outcome o = send_made(l);
    if (o != GOES_ON) return o;
    bool due = l->status_due || s.changes != l->changes || mono_ms() - l->status_ms >= STATUS_MS;
    if (due && send_status(l, &s)) return ROUTER_GONE;
    if (s.state == RUNNER_FAILED) return FAILED;
    bool over = l->drain_by_ms && mono_ms() >= l->drain_by_ms;
    // Streams that wait in the runner count as running: see runner_status.
    return l->exiting && (s.streams_running == 0 || over) ? DRAINED : GOES_ON;
}

/* Signals. */

static enum outcome read_signal(struct link *l) {
    struct signalfd_siginfo info;
    if (read(l->c.signal_fd, &info, sizeof info) != sizeof info) return GOES_ON;
    if (info.ssi_signo == SIGINT && l->supervised)
        return GOES_ON; // the terminal's; the router decides
    if (l->exiting) return HURRIED;
    l->exiting = true;
    begin_drain(l, info.ssi_signo == SIGINT ? "sigint" : "sigterm", 0);
    return GOES_ON;
}

/* One incarnation. */

static int wait_ms(const struct link *l) {
    if (l->status_due) return 0;
    uint64_t age = mono_ms() - l->status_ms;
    return age >= STATUS_MS ? 0 : (int)(STATUS_MS - age);
}

static enum outcome serve(struct link *l) {
    enum outcome o = GOES_ON;
    while (o == GOES_ON) {
        struct pollfd fds[3] = {{wire_fd(l->wire), POLLIN, 0},
                                {runner_fd(l->c.runner), POLLIN, 0},
                                {l->c.signal_fd, POLLIN, 0}};
        if (poll(fds, 3, wait_ms(l)) < 0 && errno != EINTR) return FAILED;
        if (fds[2].revents) o = read_signal(l);
        if (o == GOES_ON && fds[0].revents) o = take_frames(l);
        if (o == GOES_ON) o = tend(l);
    }
    return o;
}

static void end_incarnation(struct link *l, enum outcome o) {
    struct err e = {0};
    struct frame f = {.type = FRAME_GOODBYE,
                      .goodbye = {o == DRAINED ? l->why : "told to end at once"}};
    bool say = o == DRAINED || o == HURRIED;
    if (say) wire_send(l->wire, &f, &e);
    // A STATUS(failed) wants to arrive as well.
    wire_close(l->wire, o == DRAINED || o == FAILED ? GOODBYE_MS : 0);
    l->wire = NULL;
    runner_begin_session(l->c.runner, 0); // of nobody: cancels what runs
}

static enum outcome live(struct link *l) {
    const struct frame_welcome *w = wire_welcome(l->wire);
    log_info("joined", "rank=%u generation=%u router_epoch=%016llx", w->rank, w->generation,
             (unsigned long long)w->router_epoch);
    l->progress_s = w->progress_s;
    runner_begin_session(l->c.runner, w->generation);
    if (!l->exiting) l->draining = false;
    l->status_due = true;
    enum outcome o = serve(l);
    end_incarnation(l, o);
    return o;
}

/* Joining. */

// Waits ms without a router, and handles what comes meanwhile.
static enum outcome pause_for(struct link *l, uint32_t ms) {
    uint64_t until = mono_ms() + ms;
    for (;;) {
        struct runner_status s;
        struct pollfd fds[2] = {{runner_fd(l->c.runner), POLLIN, 0}, {l->c.signal_fd, POLLIN, 0}};
        uint64_t now = mono_ms();
        if (now >= until) return GOES_ON;
        if (poll(fds, 2, (int)(until - now)) < 0 && errno != EINTR) return FAILED;
        runner_status(l->c.runner, &s);
        report_once(l, &s);
        service_tend(&l->service, &s, l->progress_s, mono_ms());
        if (fds[1].revents && read_signal(l) == HURRIED) return HURRIED;
        if (s.state == RUNNER_FAILED) return FAILED;
        if (l->exiting) return DRAINED; // nothing runs without a router
    }
}

// Says why no router was reached, once for each reason and not at every attempt.
static void say_waiting(const struct link *l, const struct err *e, char *said, size_t said_bytes) {
    if (!strcmp(said, e->msg)) return;
    snprintf(said, said_bytes, "%s", e->msg);
    log_warn("waiting_for_router", "lobby=\"%s\" reason=\"%s\": tried again until there is one",
             l->c.lobby, e->msg);
}

// Dials until there is a router. An engine that has failed is a reason to end only when no router is there: one that is
// wants to know why.
static enum outcome join(struct link *l, enum exit_code *ret_code) {
    struct frame_hello hello = *l->c.hello;
    char said[ERR_MSG_BYTES] = "";
    uint32_t wait = 0;
    for (;;) {
        struct err e = {0};
        hello.fingerprint = fingerprint_of(l);
        struct wire_config c = {l->c.lobby, &hello, l->c.signal_fd};
        int st = wire_join(&l->wire, &c, &e);
        if (!st) return GOES_ON;
        if (st == ST_VERSION || st == ST_UNSUPPORTED || (l->supervised && st != ST_CANCELLED)) {
            log_error("join", "reason=\"%s\"", e.msg);
            *ret_code = st == ST_VERSION || st == ST_UNSUPPORTED ? EXIT_CODE_REFUSED
                                                                 : EXIT_CODE_ROUTER_GONE;
            return ROUTER_GONE;
        }
        if (st != ST_CANCELLED) say_waiting(l, &e, said, sizeof said);
        wait = min_u32(max_u32(2 * wait, DIAL_MS_MIN), DIAL_MS_MAX);
        enum outcome o = pause_for(l, wait);
        if (o != GOES_ON) return o;
    }
}

// told: the router knows why. Of its own workers it says so itself.
static enum exit_code failed_code(struct link *l, bool told) {
    struct runner_status s;
    runner_status(l->c.runner, &s);
    log_line(told && l->supervised ? LOG_LEVEL_DEBUG : LOG_LEVEL_ERROR, "engine_failed",
             "reason=\"%s\"", s.reason);
    return s.st == ST_DEVICE  ? EXIT_CODE_DEVICE
           : s.st == ST_NOMEM ? EXIT_CODE_MEMORY
           : s.st == ST_INVAL ? EXIT_CODE_USAGE
                              : EXIT_CODE_MODEL;
}

static enum exit_code run(struct link *l) {
    for (;;) {
        enum exit_code code = EXIT_CODE_ROUTER_GONE;
        enum outcome o = join(l, &code);
        bool joined = o == GOES_ON;
        if (joined) o = live(l);
        if (o == DRAINED) return EXIT_CODE_OK;
        if (o == HURRIED) return EXIT_CODE_HURRIED;
        if (o == FAILED) return failed_code(l, joined);
        if (!joined || l->supervised) return code;
        if (l->exiting) return EXIT_CODE_OK;
        // A router that takes us and goes, again and again, is not asked in a tight loop.
        o = pause_for(l, DIAL_MS_MIN);
        if (o == FAILED) return failed_code(l, false);
        if (o != GOES_ON) return o == HURRIED ? EXIT_CODE_HURRIED : EXIT_CODE_OK;
    }
}

enum exit_code link_run(const struct link_config *c) {
    struct link l = {.c = *c,
                     .supervised = c->hello->supervised,
                     .progress_s = PROGRESS_S,
                     .service.alive = c->alive};
    enum exit_code code = run(&l);
    arena_fini(&l.arena);
    strbuf_fini(&l.made);
    return code;
}
