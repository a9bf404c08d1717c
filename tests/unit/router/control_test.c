/* control: what becomes of workers under an operator's verbs, restarts of all and crashes, in any order. The workers are
 * made up here, behind the functions of router/backend.h, and so is the time. */
#include "common/err.h"
#include "common/log.h"
#include "common/mono.h"
#include "router/apierr.h"
#include "router/backend.h"
#include "router/config.h"
#include "router/control.h"
#include "router/relay.h"
#include "router/server.h"
#include "tests/lib/test.h"

#include <stdlib.h>
#include <string.h>

enum {
    RANKS = 4,
    GUEST = 3,
    TICK_MS = 100
}; // the last one is a guest: whoever started it starts it again

struct backend {
    uint32_t rank, generation, streams;
    enum backend_state state;
    bool own, process, joined, drain_asked, exit_asked, leaving, start_due;
    bool deaf; // told to end, it does not
    uint64_t since_ms;
};

static struct {
    uint64_t ms;
    struct backend b[RANKS];
    struct control *control;
    struct server server;
    struct config config;
    uint32_t moved, cancelled; // streams
} world;

/* ---- what control.c calls ---- */

uint64_t mono_ns(void) {
    return world.ms * 1000000;
}

int64_t wall_s(void) {
    return 0;
}

static void set_state(struct backend *b, enum backend_state state) {
    if (b->state == state) return;
    b->state = state;
    b->since_ms = world.ms;
    if (world.control) control_on_state(world.control, b);
}

uint32_t backends_count(const struct backends *s) {
    (void)s;
    return RANKS;
}

struct backend *backends_at(struct backends *s, uint32_t rank) {
    (void)s;
    return rank < RANKS ? &world.b[rank] : NULL;
}

void backend_info(const struct backend *b, struct backend_info *ret) {
    *ret = (struct backend_info){.rank = b->rank,
                                 .generation = b->generation,
                                 .state = b->state,
                                 .reason = "",
                                 .pid = b->process ? 1 : 0,
                                 .supervised = b->own,
                                 .since_ms = b->since_ms,
                                 .streams_sent = b->streams};
}

const char *backend_state_name(enum backend_state s) {
    static const char *const names[] = {"starting", "loading", "ready",  "draining",
                                        "drained",  "stopped", "failed", "backoff"};
    return names[s];
}

uint32_t backend_rank(const struct backend *b) {
    return b->rank;
}

enum backend_state backend_state(const struct backend *b) {
    return b->state;
}

int backend_drain(struct backend *b, const struct frame_drain *d, struct err *e) {
    if (!b->joined) return err_set(e, ST_CLOSED, "not there");
    b->drain_asked = d->mode != FRAME_DRAIN_RESUME;
    if (d->mode == FRAME_DRAIN_EXIT) b->exit_asked = true;
    if (b->drain_asked && b->state == BACKEND_READY) set_state(b, BACKEND_DRAINING);
    return ST_OK;
}

void backend_stop(struct backend *b) {
    b->exit_asked = true;
    b->start_due = false;
    struct frame_drain d = {.mode = FRAME_DRAIN_EXIT};
    if (b->joined && !backend_drain(b, &d, NULL)) return;
    if (!b->process && !b->joined) set_state(b, BACKEND_STOPPED);
}

void backend_start(struct backend *b) {
    if (!b->own || b->process) return;
    b->exit_asked = false;
    b->start_due = true;
    set_state(b, BACKEND_STARTING);
}

static void die(struct backend *b, bool planned) {
    bool stays = b->exit_asked, was_own = b->own;
    b->process = b->joined = b->leaving = false;
    b->streams = 0;
    if (was_own && !stays) b->start_due = true;
    set_state(b, !was_own ? planned ? BACKEND_STOPPED : BACKEND_FAILED
                 : stays  ? BACKEND_STOPPED
                          : BACKEND_BACKOFF);
}

void backend_drop(struct backend *b, const char *reason) {
    (void)reason;
    die(b, false);
}

void relay_move_all(struct relay *r, struct backend *b) {
    (void)r;
    world.moved += b->streams;
    b->streams = 0;
}

void relay_cancel_all(struct relay *r, struct backend *b, const char *reason) {
    (void)r, (void)reason;
    world.cancelled += b->streams;
    b->streams = 0;
}

uint32_t server_ready_workers(const struct server *s) {
    uint32_t n = 0;
    (void)s;
    for (int i = 0; i < RANKS; i++) n += world.b[i].state == BACKEND_READY;
    return n;
}

/* ---- the world goes on ---- */

static void start(struct backend *b) {
    b->process = true;
    b->start_due = b->exit_asked = b->drain_asked = b->deaf = false;
    set_state(b, BACKEND_STARTING);
}

// One thing that the worker does next.
static void work(struct backend *b) {
    bool has_goodbye = b->joined && (b->exit_asked || b->leaving) && !b->streams;
    if (!b->process) {
        if (b->start_due || !b->own) start(b);
    } else if (b->deaf && b->exit_asked) {
        return;
    } else if (has_goodbye || (b->exit_asked && !b->joined)) {
        die(b, true);
    } else if (!b->joined) {
        b->joined = true;
        b->generation++;
        b->drain_asked = false;
        if (!b->own) b->exit_asked = false;
        set_state(b, BACKEND_LOADING);
    } else if (b->leaving || b->drain_asked) {
        if (b->streams) b->streams--;
        set_state(b, b->streams ? BACKEND_DRAINING : BACKEND_DRAINED);
    } else {
        set_state(b, BACKEND_READY);
    }
}

static void tick(void) {
    world.ms += TICK_MS;
    control_tick(world.control);
}

// Nothing more happens by itself.
static void settle(void) {
    for (int i = 0; i < 400; i++) {
        for (int rank = 0; rank < RANKS; rank++) work(&world.b[rank]);
        tick();
    }
}

static void set_up(int64_t workers_min) {
    free(world.control);
    memset(&world, 0, sizeof world);
    world.ms = 1000000;
    world.config = (struct config){.ready_workers_min = workers_min, .drain_s = 10};
    world.server.config = &world.config;
    for (uint32_t i = 0; i < RANKS; i++)
        world.b[i] = (struct backend){.rank = i, .own = i != GUEST, .state = BACKEND_STOPPED};
    for (uint32_t i = 0; i < GUEST; i++) world.b[i].start_due = true;
    world.control = control_new(&world.server);
    log_set_level((enum log_level)(LOG_LEVEL_ERROR + 1)); // nothing
    settle();
    for (int i = 0; i < RANKS; i++) CHECK_EQ(world.b[i].state, BACKEND_READY);
}

static const struct control_how how = {.timeout_s = 5, .start_s = 20};

static int ask_how(uint32_t rank, enum control_verb verb, struct control_how h, bool *ret_changed) {
    struct apierr e;
    return control_worker(world.control, rank, verb, &h, ret_changed, &e);
}

static int ask(uint32_t rank, enum control_verb verb) {
    bool changed;
    struct control_how forced = how;
    forced.force = true;
    return ask_how(rank, verb, forced, &changed);
}

static uint32_t restart_all(void) {
    struct apierr e;
    uint32_t id = 0;
    CHECK_EQ(control_restart_all(world.control, &how, &id, &e), ST_OK);
    return id;
}

static struct control_operation operation(uint32_t id) {
    struct control_operation o;
    CHECK(control_operation(world.control, id, &o));
    return o;
}

TEST(a_stop_between_the_end_of_a_restarting_worker_and_its_start_holds) {
    set_up(1);
    CHECK_EQ(ask(1, CONTROL_RESTART), ST_OK);
    while (world.b[1].state != BACKEND_STOPPED) work(&world.b[1]);
    bool changed = false;
    CHECK_EQ(ask_how(1, CONTROL_STOP, how, &changed), ST_OK);
    CHECK(changed);
    settle();
    CHECK_EQ(world.b[1].state, BACKEND_STOPPED);
    CHECK_EQ(ask_how(1, CONTROL_STOP, how, &changed), ST_OK);
    CHECK(!changed);
}

TEST(a_restart_of_all_restarts_each_once_and_one_at_a_time) {
    set_up(3);
    uint32_t id = restart_all();
    for (int i = 0; i < 400; i++) {
        CHECK(server_ready_workers(&world.server) >= 3);
        for (int rank = 0; rank < RANKS; rank++) work(&world.b[rank]);
        tick();
    }
    struct control_operation o = operation(id);
    CHECK_EQ(o.state, CONTROL_DONE);
    CHECK_EQ(o.step, 4);
    CHECK_EQ(o.passed, 0);
    for (int i = 0; i < RANKS; i++) CHECK_EQ(world.b[i].generation, 2);
}

TEST(a_guest_that_is_there_again_within_a_tick_is_not_asked_to_end_once_more) {
    set_up(1);
    CHECK_EQ(ask(GUEST, CONTROL_RESTART), ST_OK);
    while (world.b[GUEST].generation == 1) work(&world.b[GUEST]);
    settle();
    CHECK_EQ(world.b[GUEST].state, BACKEND_READY);
    CHECK_EQ(world.b[GUEST].generation, 2);
}

TEST(a_guest_that_was_stopped_when_it_was_gone_is_not_waited_for) {
    set_up(1);
    uint32_t id = restart_all();
    for (int i = 0; i < 400 && operation(id).rank != GUEST; i++) {
        for (int rank = 0; rank < GUEST; rank++) work(&world.b[rank]);
        tick();
    }
    tick();
    while (world.b[GUEST].state != BACKEND_STOPPED) work(&world.b[GUEST]);
    CHECK_EQ(ask(GUEST, CONTROL_STOP), ST_OK);
    struct control_operation o = operation(id);
    CHECK_EQ(o.state, CONTROL_DONE);
    CHECK_EQ(o.passed, 1);
}

TEST(a_worker_that_was_drained_and_has_failed_meanwhile_is_drained_behind_its_restart) {
    set_up(1);
    CHECK_EQ(ask(1, CONTROL_DRAIN), ST_OK);
    uint32_t id = restart_all();
    world.b[1].start_due = world.b[1].process = world.b[1].joined = false;
    set_state(&world.b[1], BACKEND_FAILED);
    settle();
    CHECK_EQ(operation(id).state, CONTROL_DONE);
    CHECK_EQ(world.b[1].state, BACKEND_DRAINED);
}

TEST(a_drain_of_a_worker_that_is_on_its_way_back_can_be_taken_back) {
    for (int restart = 0; restart < 2; restart++) {
        set_up(1);
        struct backend *b = &world.b[restart ? 0 : 1];
        CHECK_EQ(ask(b->rank, CONTROL_DRAIN), ST_OK);
        uint32_t id = restart ? restart_all() : 0;
        if (restart)
            tick();
        else
            die(b, false);
        CHECK_EQ(ask(b->rank, CONTROL_RESUME), ST_OK);
        settle();
        CHECK_EQ(b->state, BACKEND_READY);
        CHECK_EQ(b->generation, 2);
        if (restart) CHECK_EQ(operation(id).state, CONTROL_DONE);
    }
    set_up(1); // one that has failed for good has to be started
    CHECK_EQ(ask(1, CONTROL_DRAIN), ST_OK);
    world.b[1].start_due = world.b[1].process = world.b[1].joined = false;
    set_state(&world.b[1], BACKEND_FAILED);
    CHECK_EQ(ask(1, CONTROL_RESUME), ST_INVAL);
}

TEST(a_worker_that_does_not_end_is_dropped_and_the_next_one_is_asked_anew) {
    set_up(1);
    world.b[GUEST].deaf = true;
    CHECK_EQ(ask(GUEST, CONTROL_STOP), ST_OK);
    uint64_t since = world.ms;
    while (world.b[GUEST].joined) tick();
    CHECK(world.ms - since >= 10000 && world.ms - since < 10000 + 2 * TICK_MS);
    settle();
    CHECK_EQ(world.b[GUEST].state, BACKEND_READY);
    CHECK_EQ(ask(GUEST, CONTROL_DRAIN), ST_OK); // nothing of the stop is left
    settle();
    CHECK_EQ(ask(GUEST, CONTROL_RESUME), ST_OK);
    settle();
    CHECK_EQ(world.b[GUEST].state, BACKEND_READY);
}

TEST(the_last_operations_are_kept) {
    set_up(1);
    uint32_t ids[CONTROL_OPERATIONS_KEPT + 3];
    uint32_t count = sizeof ids / sizeof *ids;
    struct control_operation o;
    for (uint32_t i = 0; i < count; i++) {
        bool changed;
        struct apierr e;
        ids[i] = restart_all();
        if (i % 2) CHECK_EQ(control_cancel(world.control, ids[i], &changed, &e), ST_OK);
        settle();
    }
    for (uint32_t i = 0; i < count; i++) {
        bool kept = count - 1 - i <= CONTROL_OPERATIONS_KEPT;
        CHECK_EQ(control_operation(world.control, ids[i], &o), kept);
        if (kept) CHECK_EQ(o.state, i % 2 ? CONTROL_CANCELLED : CONTROL_DONE);
    }
    CHECK(!control_operation(world.control, 0, &o));
    CHECK(!control_operation(world.control, count + 1, &o));
}

/* ---- everything in any order ---- */

static uint64_t draws;

static uint32_t draw(uint32_t n) {
    draws = draws * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(draws >> 33) % n;
}

// What the operator's last verb asked for: the state in which everything must end.
static enum backend_state wanted[RANKS];

static void some_verb(void) {
    uint32_t rank = draw(RANKS);
    enum control_verb verb = (enum control_verb)draw(CONTROL_VERB_COUNT);
    struct control_how h = {.timeout_s = draw(3), .start_s = 20, .force = draw(2) == 0};
    h.streams = (enum control_streams)draw(3);
    bool changed;
    if (ask_how(rank, verb, h, &changed)) return;
    if (verb == CONTROL_DRAIN)
        wanted[rank] = BACKEND_DRAINED;
    else if (verb == CONTROL_STOP && rank != GUEST)
        wanted[rank] = BACKEND_STOPPED;
    else if (verb != CONTROL_STOP || changed) // of a guest that has gone nothing is asked
        wanted[rank] = BACKEND_READY;
}

static void some_event(uint32_t *operation_id) {
    struct apierr e;
    struct backend *b = &world.b[draw(RANKS)];
    bool changed;
    struct control_how h = {.timeout_s = draw(3), .start_s = 20, .force = draw(2) == 0};
    switch (draw(16)) {
    case 0: control_restart_all(world.control, &h, operation_id, &e); return;
    case 1:
        if (draw(4) == 0) control_cancel(world.control, *operation_id, &changed, &e);
        return;
    case 2:
        if (b->process && draw(4) == 0) die(b, false); // killed
        return;
    case 3:
        if (b->joined && draw(4) == 0) b->leaving = true; // SIGTERM
        return;
    case 4:
        if (b->state == BACKEND_READY) b->streams += draw(4);
        return;
    case 5:
        if (draw(2) == 0) some_verb();
        return;
    case 6:
    case 7:
    case 8: tick(); return;
    default: work(b);
    }
}

TEST(whatever_happens_a_worker_ends_as_its_operator_last_asked) {
    uint32_t ends[4] = {0}, passed = 0;
    for (uint32_t run = 0; run < 1000; run++) {
        uint32_t id = 0;
        struct control_operation o;
        draws = run;
        set_up(1 + draw(2));
        for (int i = 0; i < RANKS; i++) wanted[i] = BACKEND_READY;
        for (int i = 0; i < 400; i++) {
            some_event(&id);
            for (int rank = 0; rank < RANKS; rank++)
                if (wanted[rank] != BACKEND_READY && world.b[rank].state == BACKEND_READY)
                    test_fail(__FILE__, __LINE__, "run %u: worker %d takes requests", run, rank);
        }
        settle();
        for (int rank = 0; rank < RANKS; rank++)
            if (world.b[rank].state != wanted[rank])
                test_fail(__FILE__, __LINE__, "run %u: worker %d is %s and not %s", run, rank,
                          backend_state_name(world.b[rank].state),
                          backend_state_name(wanted[rank]));
        if (!control_operation(world.control, id, &o)) continue;
        CHECK(o.state != CONTROL_RUNNING);
        ends[o.state]++;
        passed += o.passed;
    }
    test_note("restarts of all: %u done, %u failed, %u cancelled; %u workers passed by",
              ends[CONTROL_DONE], ends[CONTROL_FAILED], ends[CONTROL_CANCELLED], passed);
    CHECK(ends[CONTROL_DONE] && ends[CONTROL_FAILED] && ends[CONTROL_CANCELLED] && passed);
}
