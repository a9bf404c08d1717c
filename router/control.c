/* control: see control.h. */
#include "router/control.h"
#include "common/err.h"
#include "common/log.h"
#include "common/mem.h"
#include "common/mono.h"
#include "common/num.h"
#include "router/apierr.h"
#include "router/backend.h"
#include "router/config.h"
#include "router/relay.h"
#include "router/server.h"
#include "router/snapshot.h"

#include <stdio.h>
#include <stdlib.h>

enum {
    LEAVING_MS = 1000, // a worker that drains for so long without our asking does so by itself
    EXIT_MS = 10000,   // a worker without streams that was asked to end gets that long
};

// LEAVING: the worker drains by itself, since it got a SIGTERM.
enum goal { GOAL_RUN, GOAL_LEAVING, GOAL_DRAIN, GOAL_STOP, GOAL_RESTART };

struct rank_goal {
    enum goal goal;
    struct control_how how;
    uint64_t since_ms;
    uint64_t exit_ms; // asked to end; 0: not yet
    uint32_t exit_generation;
    // Of a RESTART that a restart of all asked for:
    bool of_operation;
    bool drained; // an operator had drained it: it is drained again when it is back
    struct control_how drain_how;
};

struct operation {
    struct control_operation o; // id 0: there has been none
    struct control_how how;
    uint32_t ranks[SNAPSHOT_WORKERS_MAX];
    bool asked;          // the present rank has been told
    uint32_t generation; // it had then
    uint64_t since_ms;
};

struct control {
    struct server *server;
    struct rank_goal ranks[SNAPSHOT_WORKERS_MAX];
    struct operation op;                                    // the last one
    struct control_operation over[CONTROL_OPERATIONS_KEPT]; // those before it, at id % KEPT
};

struct control *control_new(struct server *s) {
    struct control *c = mem_calloc(1, sizeof *c);
    c->server = s;
    return c;
}

void control_free(struct control *c) {
    free(c);
}

const char *control_verb_name(enum control_verb v) {
    static const char *const names[CONTROL_VERB_COUNT] = {"drain", "resume", "restart", "stop",
                                                          "start"};
    return names[v];
}

const char *control_streams_name(enum control_streams s) {
    static const char *const names[CONTROL_STREAMS_COUNT] = {"finish", "move", "cancel"};
    return names[s];
}

/* ---- goals ---- */

static void set_goal(struct control *c, uint32_t rank, enum goal goal,
                     const struct control_how *how) {
    c->ranks[rank] = (struct rank_goal){.goal = goal, .how = *how, .since_ms = mono_ms()};
}

static void ask_to_drain(struct backend *b, enum frame_drain_mode mode) {
    struct frame_drain d = {.mode = mode};
    struct err e = {0};
    if (backend_drain(b, &d, &e))
        log_warn("drain", "rank=%u reason=\"%s\"", backend_rank(b), e.msg);
}

// Streams that must not stay any longer.
static void clear_streams(struct control *c, struct rank_goal *g, struct backend *b, uint64_t now) {
    bool over = (double)mono_since(g->since_ms, now) >= g->how.timeout_s * 1000;
    if (g->how.streams == CONTROL_CANCEL && over)
        relay_cancel_all(c->server->relay, b, "an operator cancelled this request");
    else if (g->how.streams == CONTROL_MOVE || over)
        relay_move_all(c->server->relay, b);
}

// Towards STOPPED, from wherever it is.
static void end_worker(struct rank_goal *g, struct backend *b, const struct backend_info *info,
                       uint64_t now) {
    if (g->exit_ms && g->exit_generation == info->generation) {
        if (now - g->exit_ms < EXIT_MS) return;
        g->exit_ms = now;
        backend_drop(b, "did not end when it was asked to");
        return;
    }
    if (info->state == BACKEND_DRAINING && info->streams_sent) return;
    g->exit_ms = now;
    g->exit_generation = info->generation;
    backend_stop(b);
}

static void pursue_end(struct control *c, struct rank_goal *g, struct backend *b,
                       const struct backend_info *info, uint64_t now) {
    bool guest_gone = !info->supervised && info->state == BACKEND_FAILED;
    if (info->state != BACKEND_STOPPED && !guest_gone) {
        end_worker(g, b, info, now);
        return;
    }
    if (g->goal == GOAL_STOP && info->supervised) return; // stays so until START
    bool restart = g->goal == GOAL_RESTART && info->supervised;
    if (g->drained)
        set_goal(c, info->rank, GOAL_DRAIN, &g->drain_how);
    else
        *g = (struct rank_goal){.goal = GOAL_RUN};
    if (restart) backend_start(b); // of a guest, whoever supervises it does the rest
}

// Its streams move when the drain's time is over, as with an operator's drain.
static void look_for_leaving(struct control *c, struct rank_goal *g,
                             const struct backend_info *info, uint64_t now) {
    bool draining = info->state == BACKEND_DRAINING;
    if (g->goal == GOAL_LEAVING && !draining) g->goal = GOAL_RUN;
    // One that was told to resume a moment ago still says that it drains.
    if (g->goal != GOAL_RUN || !draining || now < info->since_ms + LEAVING_MS) return;
    struct control_how how = {.timeout_s = c->server->config->drain_s};
    set_goal(c, info->rank, GOAL_LEAVING, &how);
}

static void pursue(struct control *c, uint32_t rank, uint64_t now) {
    struct rank_goal *g = &c->ranks[rank];
    struct backend *b = backends_at(c->server->backends, rank);
    struct backend_info info;
    backend_info(b, &info);
    look_for_leaving(c, g, &info, now);
    if (g->goal == GOAL_RUN) return;
    if (info.state == BACKEND_READY) ask_to_drain(b, FRAME_DRAIN_FINISH);
    if (backend_state(b) == BACKEND_DRAINING) clear_streams(c, g, b, now);
    backend_info(b, &info);
    if (g->goal > GOAL_DRAIN) pursue_end(c, g, b, &info, now);
}

void control_on_state(struct control *c, struct backend *b) {
    struct backend_info info;
    backend_info(b, &info);
    if (info.rank >= SNAPSHOT_WORKERS_MAX) return;
    struct rank_goal *g = &c->ranks[info.rank];
    if (g->goal > GOAL_LEAVING && info.state == BACKEND_READY) ask_to_drain(b, FRAME_DRAIN_FINISH);
    // Its successor may be there before the next tick, and is not what was to end.
    bool guest_gone = !info.supervised && info.state == BACKEND_STOPPED;
    if (g->goal > GOAL_DRAIN && guest_gone) pursue_end(c, g, b, &info, mono_ms());
}

/* ---- verbs ---- */

static int conflict(struct apierr *e, enum control_verb verb, const struct backend_info *i) {
    return apierr_set(e, APIERR_CONFLICT, NULL, "worker %u cannot %s: it is %s%s", i->rank,
                      control_verb_name(verb), backend_state_name(i->state),
                      i->supervised ? "" : ", and not this router's to start");
}

static int too_few(struct apierr *e, uint32_t ready, uint32_t wanted) {
    return apierr_set(e, APIERR_CONFLICT, NULL,
                      "%u ready workers would be left, and ready.workers_min is %u (force does "
                      "it all the same)",
                      ready, wanted);
}

// Too few ready ones would be left without this one.
static int check_left(const struct control *c, const struct backend_info *i,
                      const struct control_how *how, struct apierr *e) {
    uint32_t ready = server_ready_workers(c->server) - (i->state == BACKEND_READY);
    uint32_t wanted = (uint32_t)c->server->config->ready_workers_min;
    if (how->force || i->state != BACKEND_READY || ready >= wanted) return ST_OK;
    return too_few(e, ready, wanted);
}

static bool is_live(enum backend_state s) {
    return s == BACKEND_READY || s == BACKEND_DRAINING || s == BACKEND_DRAINED;
}

static int drain(struct control *c, const struct backend_info *i, const struct control_how *how,
                 bool *ret_changed, struct apierr *e) {
    struct rank_goal *g = &c->ranks[i->rank];
    if (!is_live(i->state)) return conflict(e, CONTROL_DRAIN, i);
    if (g->goal == GOAL_STOP || g->goal == GOAL_RESTART)
        return apierr_set(e, APIERR_CONFLICT, NULL, "worker %u is being %s", i->rank,
                          g->goal == GOAL_STOP ? "stopped" : "restarted");
    int st = check_left(c, i, how, e);
    if (st) return st;
    *ret_changed = g->goal != GOAL_DRAIN || i->state != BACKEND_DRAINED;
    set_goal(c, i->rank, GOAL_DRAIN, how);
    return ST_OK;
}

// A drain of a worker that is on its way back, or will be: nothing has to be told to anyone.
static bool forget_drain(struct rank_goal *g, const struct backend_info *i) {
    bool down = i->supervised && i->state == BACKEND_FAILED; // until it is started
    if (g->goal == GOAL_DRAIN && !is_live(i->state) && !down) {
        *g = (struct rank_goal){.goal = GOAL_RUN};
        return true;
    }
    bool ends = g->goal == GOAL_RESTART && g->drained && (g->exit_ms || !is_live(i->state));
    if (ends) g->drained = false;
    return ends;
}

static int resume(struct control *c, const struct backend_info *i, bool *ret_changed,
                  struct apierr *e) {
    struct rank_goal *g = &c->ranks[i->rank];
    if (g->goal == GOAL_RUN && is_live(i->state)) return ST_OK; // or it is about to be
    *ret_changed = forget_drain(g, i);
    if (*ret_changed) return ST_OK;
    if (!is_live(i->state)) return conflict(e, CONTROL_RESUME, i);
    if (g->goal == GOAL_LEAVING || g->exit_ms)
        return apierr_set(e, APIERR_CONFLICT, NULL, "worker %u cannot resume: it ends already",
                          i->rank);
    *ret_changed = true;
    *g = (struct rank_goal){.goal = GOAL_RUN};
    ask_to_drain(backends_at(c->server->backends, i->rank), FRAME_DRAIN_RESUME);
    return ST_OK;
}

static int start(struct control *c, const struct backend_info *i, bool *ret_changed,
                 struct apierr *e) {
    struct rank_goal *g = &c->ranks[i->rank];
    bool down = i->state == BACKEND_STOPPED || i->state == BACKEND_FAILED ||
                (i->state == BACKEND_BACKOFF && !i->pid);
    if (!down && g->goal != GOAL_RUN) return conflict(e, CONTROL_START, i);
    if (!down) return ST_OK;
    if (!i->supervised) return conflict(e, CONTROL_START, i);
    *ret_changed = true;
    *g = (struct rank_goal){.goal = GOAL_RUN};
    backend_start(backends_at(c->server->backends, i->rank));
    return ST_OK;
}

static int end(struct control *c, const struct backend_info *i, enum control_verb verb,
               const struct control_how *how, bool *ret_changed, struct apierr *e) {
    bool down = i->state == BACKEND_STOPPED || (i->state == BACKEND_FAILED && !i->pid);
    if (down && verb == CONTROL_RESTART) return start(c, i, ret_changed, e);
    // One whose restart has just ended it is about to start anew.
    bool stays = c->ranks[i->rank].goal != GOAL_RESTART;
    if (i->state == BACKEND_STOPPED && stays) return ST_OK;
    int st = check_left(c, i, how, e);
    if (st) return st;
    *ret_changed = true;
    set_goal(c, i->rank, verb == CONTROL_STOP ? GOAL_STOP : GOAL_RESTART, how);
    return ST_OK;
}

static void pass_by(struct control *c, uint32_t stopped, uint64_t now);

// A rank that no worker has or had is none.
static int look_up(const struct control *c, uint32_t rank, struct backend_info *ret,
                   struct apierr *e) {
    struct backends *set = c->server->backends;
    struct backend *b = rank < SNAPSHOT_WORKERS_MAX ? backends_at(set, rank) : NULL;
    if (b) backend_info(b, ret);
    if (b && (ret->state != BACKEND_STOPPED || ret->generation || ret->supervised)) return ST_OK;
    return apierr_set(e, APIERR_NOT_FOUND, NULL, "no worker has the rank %u", rank);
}

int control_worker(struct control *c, uint32_t rank, enum control_verb verb,
                   const struct control_how *how, bool *ret_changed, struct apierr *e) {
    struct backend_info i;
    *ret_changed = false;
    int st = look_up(c, rank, &i, e);
    if (st) return st;
    switch (verb) {
    case CONTROL_DRAIN: st = drain(c, &i, how, ret_changed, e); break;
    case CONTROL_RESUME: st = resume(c, &i, ret_changed, e); break;
    case CONTROL_START: st = start(c, &i, ret_changed, e); break;
    default: st = end(c, &i, verb, how, ret_changed, e);
    }
    if (st) return st;
    log_info("control", "rank=%u verb=%s state=%s changed=%d streams=%u timeout_s=%.15g then=%s",
             rank, control_verb_name(verb), backend_state_name(i.state), *ret_changed,
             i.streams_sent, how->timeout_s, control_streams_name(how->streams));
    if (verb == CONTROL_STOP) pass_by(c, rank, mono_ms());
    pursue(c, rank, mono_ms());
    return ST_OK;
}

/* ---- all in turn ---- */

static bool goes_along(const struct control *c, const struct backend_info *i) {
    return is_live(i->state) && c->ranks[i->rank].goal != GOAL_STOP;
}

// How many of its workers will serve when they are back.
static uint32_t serving(const struct control *c, const struct operation *op) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < op->o.steps; i++) n += c->ranks[op->ranks[i]].goal != GOAL_DRAIN;
    return n;
}

int control_restart_all(struct control *c, const struct control_how *how, uint32_t *ret_id,
                        struct apierr *e) {
    struct operation *op = &c->op;
    struct backend_info i;
    struct apierr none;
    if (op->o.id && op->o.state == CONTROL_RUNNING)
        return apierr_set(e, APIERR_CONFLICT, NULL, "operation %u, a restart of all workers, runs",
                          op->o.id);
    // What is refused is no operation: the last one stays to be asked for.
    struct operation next = {
        .o = {.id = op->o.id + 1, .rank = -1}, .how = *how, .since_ms = mono_ms()};
    for (uint32_t rank = 0; rank < SNAPSHOT_WORKERS_MAX; rank++)
        if (!look_up(c, rank, &i, &none) && goes_along(c, &i)) next.ranks[next.o.steps++] = rank;
    if (!next.o.steps)
        return apierr_set(e, APIERR_CONFLICT, NULL, "no worker is ready, draining or drained");
    // Each step waits until enough are ready; with so few none ever would be.
    uint32_t wanted = (uint32_t)c->server->config->ready_workers_min, n = serving(c, &next);
    if (!how->force && n && n <= wanted) return too_few(e, n - 1, wanted);
    next.o.rank = (int32_t)next.ranks[0];
    c->over[op->o.id % CONTROL_OPERATIONS_KEPT] = op->o;
    *op = next;
    *ret_id = op->o.id;
    log_info("restart_all", "operation=%u workers=%u", op->o.id, op->o.steps);
    return ST_OK;
}

static void end_operation(struct operation *op, const char *error) {
    op->o.state = error ? CONTROL_FAILED : CONTROL_DONE;
    op->o.rank = -1;
    snprintf(op->o.error, sizeof op->o.error, "%s", error ? error : "");
    log_line(error ? LOG_LEVEL_ERROR : LOG_LEVEL_INFO, "restart_all_over",
             "operation=%u steps=%u of=%u passed=%u error=\"%s\"", op->o.id, op->o.step,
             op->o.steps, op->o.passed, op->o.error);
}

static void next_step(struct operation *op, uint64_t now) {
    op->asked = false;
    op->since_ms = now;
    if (++op->o.step == op->o.steps)
        end_operation(op, NULL);
    else
        op->o.rank = (int32_t)op->ranks[op->o.step];
}

bool control_operation(const struct control *c, uint32_t id, struct control_operation *ret) {
    *ret = c->op.o.id == id ? c->op.o : c->over[id % CONTROL_OPERATIONS_KEPT];
    return id && ret->id == id;
}

// What the present step's worker was told is taken back, where that can be.
static void take_back(struct control *c, struct operation *op) {
    uint32_t rank = op->ranks[op->o.step];
    struct rank_goal *g = &c->ranks[rank];
    struct apierr none;
    bool resumed;
    if (!op->asked || g->goal != GOAL_RESTART || !g->of_operation) return;
    // One that has been asked to end ends, and starts again.
    if (g->drained && !g->exit_ms)
        set_goal(c, rank, GOAL_DRAIN, &g->drain_how);
    else if (!g->drained)
        control_worker(c, rank, CONTROL_RESUME, &op->how, &resumed, &none);
}

int control_cancel(struct control *c, uint32_t id, bool *ret_changed, struct apierr *e) {
    struct operation *op = &c->op;
    struct control_operation found;
    *ret_changed = false;
    if (!control_operation(c, id, &found))
        return apierr_set(e, APIERR_NOT_FOUND, NULL, "no operation has the id %u", id);
    if (found.state != CONTROL_RUNNING) return ST_OK;
    op->o.state = CONTROL_CANCELLED;
    op->o.rank = -1;
    *ret_changed = true;
    log_info("restart_all_cancelled", "operation=%u steps=%u of=%u", id, op->o.step, op->o.steps);
    take_back(c, op);
    return ST_OK;
}

// The present step's worker is told to restart. One that an operator has drained is drained again behind it.
static int ask_to_restart(struct control *c, struct operation *op, uint32_t rank,
                          struct apierr *e) {
    struct rank_goal *g = &c->ranks[rank], before = *g;
    bool drained = before.goal == GOAL_DRAIN, changed;
    if (before.goal == GOAL_RESTART)
        return ST_OK; // an operator's restart of it: the same, as they wanted it
    int st = control_worker(c, rank, CONTROL_RESTART, &op->how, &changed, e);
    if (st) return st;
    g->of_operation = g->goal == GOAL_RESTART;
    g->drained = g->of_operation && drained;
    g->drain_how = before.how;
    if (drained && !g->of_operation)
        set_goal(c, rank, GOAL_DRAIN, &before.how); // it starts already
    return ST_OK;
}

static void begin_step(struct control *c, struct operation *op, const struct backend_info *i,
                       uint64_t now) {
    struct apierr e;
    // Another worker may have died meanwhile: its return is waited for.
    if (check_left(c, i, &op->how, &e)) {
        if ((double)mono_since(op->since_ms, now) >= op->how.start_s * 1000)
            end_operation(op, e.message);
        return;
    }
    op->asked = true;
    op->generation = i->generation;
    op->since_ms = now;
    if (ask_to_restart(c, op, i->rank, &e)) end_operation(op, e.message);
}

static void watch_step(struct control *c, struct operation *op, const struct backend_info *i,
                       uint64_t now) {
    char why[256];
    bool started = c->ranks[i->rank].goal != GOAL_RESTART;
    bool back = started && is_live(i->state);
    if (back && i->generation != op->generation) {
        next_step(op, now);
        return;
    }
    bool failed =
        started && i->supervised && (i->state == BACKEND_FAILED || i->state == BACKEND_BACKOFF);
    double limit_ms = (op->how.timeout_s + op->how.start_s) * 1000 + EXIT_MS;
    if (back)
        snprintf(why, sizeof why, "worker %u was told to resume before it had ended", i->rank);
    else if (failed)
        snprintf(why, sizeof why, "worker %u did not start again: %.180s", i->rank, i->reason);
    else if ((double)mono_since(op->since_ms, now) >= limit_ms)
        snprintf(why, sizeof why, "worker %u is %s and not ready after %.0f s", i->rank,
                 backend_state_name(i->state), limit_ms / 1000);
    else
        return;
    end_operation(op, why);
}

// An operator's stop is stronger than the operation, at whatever point of the step; a guest that has gone is whoever's
// that looks after it. True: the step is over.
static bool passes_by(const struct control *c, const struct backend_info *i, bool asked) {
    bool gone = i->state == BACKEND_STOPPED || i->state == BACKEND_FAILED;
    return c->ranks[i->rank].goal == GOAL_STOP || (!asked && !i->supervised && gone);
}

// stopped: the rank that has just been told to stop; SNAPSHOT_WORKERS_MAX: none.
static void pass_by(struct control *c, uint32_t stopped, uint64_t now) {
    struct operation *op = &c->op;
    struct backend_info i;
    while (op->o.id && op->o.state == CONTROL_RUNNING) {
        backend_info(backends_at(c->server->backends, op->ranks[op->o.step]), &i);
        if (i.rank != stopped && !passes_by(c, &i, op->asked)) return;
        log_info("restart_all_passed", "operation=%u rank=%u state=%s", op->o.id, i.rank,
                 backend_state_name(i.state));
        op->o.passed++;
        next_step(op, now);
    }
}

static void go_on(struct control *c, uint64_t now) {
    struct operation *op = &c->op;
    struct backend_info i;
    pass_by(c, SNAPSHOT_WORKERS_MAX, now);
    if (!op->o.id || op->o.state != CONTROL_RUNNING) return;
    backend_info(backends_at(c->server->backends, op->ranks[op->o.step]), &i);
    if (op->asked)
        watch_step(c, op, &i, now);
    else
        begin_step(c, op, &i, now);
}

void control_tick(struct control *c) {
    uint64_t now = mono_ms();
    uint32_t ranks = min_u32(backends_count(c->server->backends), SNAPSHOT_WORKERS_MAX);
    for (uint32_t rank = 0; rank < ranks; rank++) pursue(c, rank, now);
    go_on(c, now);
}
