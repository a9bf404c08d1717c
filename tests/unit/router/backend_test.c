/* backend: workers come, work, die, lie and hang, and only their own rank notices. A loop in this process, fake
 * workers (tests/tools/fake_worker.c) as real processes over real sockets. */
#include "common/err.h"
#include "common/log.h"
#include "common/mem.h"
#include "common/mono.h"
#include "router/backend.h"
#include "tests/lib/test.h"

#include <dirent.h>
#include <fcntl.h>
#include <nng/nng.h>
#include <nng/protocol/reqrep0/req.h>
#include <signal.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

enum { RANKS_MAX = 4, IDS_MAX = 4096, STREAMS_MAX = 2100, LIMIT_MS = 60000, GUESTS_MAX = 8 };

struct seen { // of one stream, named by its id
    uint32_t ids[64];
    uint32_t count; // all, also beyond the array
    uint32_t filled;
    int done, failed, cancelled;
    struct frame_done end;
    enum frame_fail_code code;
};

static struct bed {
    uv_loop_t loop;
    struct backends *set;
    char dir[90], lobby[160];
    bool stopped;
    struct seen streams[STREAMS_MAX];
    uint32_t lost[RANKS_MAX], states[RANKS_MAX], rooms[RANKS_MAX];
    char why[RANKS_MAX][256];              // of the last on_lost
    enum backend_state at_lost[RANKS_MAX]; // the state when on_lost was called
    struct err submit_err;
    pid_t guests[GUESTS_MAX]; // started by hand and not yet waited for
    uv_timer_t limit;
} bed;

static char worker_path[512];
static struct frame_range used[] = {{0, 200}, {210, 20}};
static uint32_t stop_ids[] = {205, 215};
static struct frame_vocab vocab = {.size = 256,
                                   .used = used,
                                   .used_count = 2,
                                   .stop = {(uint8_t *)stop_ids, 2},
                                   .think_open = -1,
                                   .think_close = -1,
                                   .tool_open = -1};

/* What the backends say. */

static void on_tokens(const struct frame_tokens *t) {
    for (uint32_t i = 0; i < t->count; i++) {
        const struct frame_tokens_entry *x = &t->entries[i];
        struct seen *s = &bed.streams[x->stream.id];
        s->filled = x->filled;
        for (uint32_t k = 0; k < x->ids.count; k++, s->count++)
            if (x->first + k < 64) s->ids[x->first + k] = frame_id_at(&x->ids, k);
    }
}

static void on_frame(void *arg, struct backend *b, const struct frame *f) {
    if (f->type == FRAME_TOKENS) on_tokens(&f->tokens);
    if (f->type == FRAME_DONE) {
        struct seen *s = &bed.streams[f->done.stream.id];
        s->done++;
        s->end = f->done;
        s->cancelled += f->done.finish == FRAME_FINISH_CANCELLED;
    }
    if (f->type == FRAME_FAIL) {
        bed.streams[f->fail.stream.id].failed++;
        bed.streams[f->fail.stream.id].code = f->fail.code;
    }
}

static void on_state(void *arg, struct backend *b, enum backend_state old) {
    bed.states[backend_rank(b)]++;
}

static void on_room(void *arg, struct backend *b) {
    bed.rooms[backend_rank(b)]++;
}

static void on_lost(void *arg, struct backend *b, const char *reason) {
    uint32_t r = backend_rank(b);
    bed.lost[r]++;
    bed.at_lost[r] = backend_state(b);
    snprintf(bed.why[r], sizeof bed.why[r], "%s", reason);
    // Its streams are gone and it takes none: what a router does next goes elsewhere.
    struct frame_submit s = {.stream = {1, 1}, .request_id = "", .trace = "", .max_tokens = 1};
    if (backend_submit(b, &s, NULL) != ST_CLOSED || backend_room(b))
        snprintf(bed.why[r], 8, "ROOM");
}

/* The bed. */

static bool limit_over;
static void on_limit(uv_timer_t *t) {
    limit_over = true;
}

// Turns the loop until the condition holds; a limit so generous that only a hang meets it.
#define RUN_UNTIL(condition_)                                                                      \
    do {                                                                                           \
        limit_over = false;                                                                        \
        uv_timer_start(&bed.limit, on_limit, LIMIT_MS, 0);                                         \
        while (!(condition_) && !limit_over) uv_run(&bed.loop, UV_RUN_ONCE);                       \
        uv_timer_stop(&bed.limit);                                                                 \
        if (limit_over) test_fail(__FILE__, __LINE__, "never came true: %s", #condition_);         \
    } while (0)

struct setup {
    uint32_t ranks, guest_ranks;
    bool spawn;
    double progress_s, hello_s;
    char *flags[6]; // of spawned workers
    const char *model;
    bool same_folder; // as the test before
};

static int set_up_try(const struct setup *u, struct err *e) {
    static char *argv[8];
    memset(&bed, 0, sizeof bed);
    snprintf(worker_path, sizeof worker_path, "%s/tests/tools/fake_worker",
             getenv("RAILYARD_BUILD") ? getenv("RAILYARD_BUILD") : "build");
    // One folder for each test, so that one that fails does not stand in the way of the next.
    static int folders;
    folders += !u->same_folder;
    snprintf(bed.dir, sizeof bed.dir, "%s/run%d", test_temp_dir(), folders);
    mkdir(bed.dir, 0700);
    snprintf(bed.lobby, sizeof bed.lobby, "ipc://%s/lobby.sock", bed.dir);
    uv_loop_init(&bed.loop);
    uv_timer_init(&bed.loop, &bed.limit);
    memset(argv, 0, sizeof argv);
    argv[0] = worker_path;
    for (size_t i = 0; i < 6 && u->flags[i]; i++) argv[i + 1] = u->flags[i];
    struct backends_config c = {
        .loop = &bed.loop,
        .run_dir = bed.dir,
        .ranks = u->ranks,
        .spawn = u->spawn,
        .guest_ranks = u->guest_ranks,
        .worker_argv = argv,
        .progress_s = u->progress_s > 0 ? u->progress_s : 30,
        .hello_s = u->hello_s > 0 ? u->hello_s : 30,
        .events = {NULL, on_frame, on_state, on_room, on_lost},
        .vocab = &vocab,
        .model = u->model,
    };
    log_init("backend_test", getenv("TEST_LOG") ? LOG_LEVEL_DEBUG : LOG_LEVEL_ERROR);
    return backends_new(&bed.set, &c, e);
}

static void set_up(const struct setup *u) {
    struct err e = {0};
    CHECK_OK(set_up_try(u, &e), e);
}

static void on_stopped(void *arg) {
    bed.stopped = true;
}

static void close_loop(void) {
    uv_close((uv_handle_t *)&bed.limit, NULL);
    while (uv_run(&bed.loop, UV_RUN_DEFAULT)) continue;
    CHECK_EQ(uv_loop_close(&bed.loop), 0); // a handle left open is a leak
}

static void tear_down(void) {
    backends_stop(bed.set, 5, on_stopped, NULL);
    RUN_UNTIL(bed.stopped);
    backends_free(bed.set);
    close_loop();
    for (int i = 0; i < GUESTS_MAX; i++) {
        if (!bed.guests[i]) continue;
        kill(bed.guests[i], SIGKILL);
        waitpid(bed.guests[i], NULL, 0);
    }
}

static struct backend *rank(uint32_t r) {
    return backends_at(bed.set, r);
}

static struct backend_info info(uint32_t r) {
    struct backend_info i;
    backend_info(rank(r), &i);
    return i;
}

// Starts a fake worker by hand; the flags end with NULL. Its number among the guests is returned.
static int guest(const char *flag, ...) {
    char *argv[10] = {worker_path, "--leash"}, lobby[200];
    int n = 2, slot = 0;
    snprintf(lobby, sizeof lobby, "--lobby=%s", bed.lobby);
    argv[n++] = lobby;
    va_list ap;
    va_start(ap, flag);
    for (const char *f = flag; f && n < 9; f = va_arg(ap, const char *)) argv[n++] = (char *)f;
    va_end(ap);
    while (bed.guests[slot]) slot++;
    CHECK_EQ(posix_spawn(&bed.guests[slot], worker_path, NULL, NULL, argv, environ), 0);
    return slot;
}

// Whether the guest has ended; its exit code (or 128 + signal) then.
static bool ended(int slot, int *ret_code) {
    int status;
    if (waitpid(bed.guests[slot], &status, WNOHANG) != bed.guests[slot]) return usleep(1000), false;
    *ret_code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    bed.guests[slot] = 0;
    return true;
}

// The loop turns meanwhile; a stopped loop could not answer the guest.
static void wait_end(int slot, int *ret_code) {
    uint64_t until = mono_ms() + LIMIT_MS;
    while (!ended(slot, ret_code)) {
        uv_run(&bed.loop, UV_RUN_NOWAIT);
        CHECK(mono_ms() < until);
    }
}

static int submit(uint32_t r, uint32_t id, uint32_t epoch, uint32_t max_tokens) {
    static const uint32_t prompt[] = {1, 2, 3};
    struct frame_submit s = {.stream = {id, epoch},
                             .request_id = "t",
                             .trace = "",
                             .prompt = {(const uint8_t *)prompt, 3},
                             .sampling = {.top_p = 1, .repetition = 1},
                             .max_tokens = max_tokens,
                             .top_logprobs = -1,
                             .think_budget = -1};
    return backend_submit(rank(r), &s, &bed.submit_err);
}

static int open_fds(void) {
    int n = 0;
    DIR *d = opendir("/proc/self/fd");
    while (readdir(d)) n++;
    closedir(d);
    return n;
}

/* The tests. */

TEST(a_worker_of_ours_joins_gets_work_and_answers_it_whole) {
    set_up(&(struct setup){.ranks = 1, .spawn = true, .model = "demo"});
    CHECK_EQ(submit(0, 1, 1, 4), ST_CLOSED); // not ready yet
    RUN_UNTIL(backend_state(rank(0)) == BACKEND_READY);
    CHECK_EQ(backend_room(rank(0)), 8);
    CHECK_OK(submit(0, 1, 1, 40), bed.submit_err);
    CHECK_EQ(backend_room(rank(0)), 7);
    RUN_UNTIL(bed.streams[1].done);
    CHECK_EQ(bed.streams[1].count, 40);
    CHECK_EQ(bed.streams[1].filled, 3);
    CHECK_EQ(bed.streams[1].end.finish, FRAME_FINISH_LENGTH);
    CHECK_EQ(bed.streams[1].end.completion_tokens, 40);
    for (uint32_t i = 0; i < 40; i++) CHECK(bed.streams[1].ids[i] < 200);
    RUN_UNTIL(backend_room(rank(0)) == 8);
    struct backend_info i = info(0);
    CHECK_EQ(i.generation, 1);
    CHECK(i.supervised && i.pid > 0);
    CHECK_STR(i.model, "demo");
    CHECK_EQ(i.status.vocab_size, 256);
    CHECK_EQ(i.tokens, 40);
    CHECK_EQ(i.streams_sent, 0);
    tear_down();
    CHECK_EQ(bed.lost[0], 1); // by the stop
}

TEST(a_reply_that_draws_a_stop_id_ends_with_it) {
    set_up(&(struct setup){.ranks = 1, .spawn = true, .flags = {"--reply=7 8 205 9"}});
    RUN_UNTIL(backend_state(rank(0)) == BACKEND_READY);
    CHECK_OK(submit(0, 1, 1, 40), bed.submit_err);
    RUN_UNTIL(bed.streams[1].done);
    CHECK_EQ(bed.streams[1].count, 3);
    CHECK_EQ(bed.streams[1].end.finish, FRAME_FINISH_STOP);
    CHECK_EQ(bed.streams[1].end.stop_id, 205);
    tear_down();
}

TEST(a_killed_worker_is_told_at_once_and_is_back_as_the_next_generation) {
    set_up(&(struct setup){.ranks = 1, .spawn = true, .flags = {"--rate=100"}});
    RUN_UNTIL(backend_state(rank(0)) == BACKEND_READY);
    CHECK_OK(submit(0, 1, 1, 100000), bed.submit_err);
    RUN_UNTIL(bed.streams[1].count > 3);
    kill((pid_t)info(0).pid, SIGKILL);
    RUN_UNTIL(bed.lost[0] == 1);
    CHECK_EQ(bed.at_lost[0], BACKEND_READY); // on_lost comes before on_state
    CHECK_EQ(info(0).streams_sent, 0);
    RUN_UNTIL(backend_state(rank(0)) == BACKEND_BACKOFF && !info(0).pid);
    CHECK_HAS(info(0).reason, "signal 9");
    RUN_UNTIL(backend_state(rank(0)) == BACKEND_READY);
    CHECK_EQ(info(0).generation, 2);
    CHECK_EQ(info(0).restarts, 1);
    CHECK_STR(info(0).reason, "");
    CHECK_OK(submit(0, 2, 1, 3), bed.submit_err); // and serves; nothing stale comes for stream 1
    uint32_t before = bed.streams[1].count;
    RUN_UNTIL(bed.streams[2].done);
    CHECK_EQ(bed.streams[1].count, before);
    tear_down();
}

TEST(a_worker_that_ends_in_good_order_is_started_again_without_a_failure) {
    set_up(&(struct setup){.ranks = 1, .spawn = true, .flags = {"--rate=200"}});
    RUN_UNTIL(backend_state(rank(0)) == BACKEND_READY);
    CHECK_OK(submit(0, 1, 1, 50), bed.submit_err);
    RUN_UNTIL(bed.streams[1].count > 0);
    kill((pid_t)info(0).pid, SIGTERM);
    RUN_UNTIL(bed.lost[0] == 1);
    CHECK_EQ(bed.streams[1].done, 1); // its stream was finished first
    CHECK_EQ(bed.streams[1].count, 50);
    RUN_UNTIL(backend_state(rank(0)) == BACKEND_READY);
    CHECK_EQ(info(0).generation, 2);
    tear_down();
}

TEST(a_worker_drained_to_its_exit_stays_down) {
    set_up(&(struct setup){.ranks = 1, .spawn = true});
    RUN_UNTIL(backend_state(rank(0)) == BACKEND_READY);
    struct frame_drain d = {FRAME_DRAIN_FINISH, 10};
    CHECK_OK(backend_drain(rank(0), &d, &bed.submit_err), bed.submit_err);
    RUN_UNTIL(backend_state(rank(0)) == BACKEND_DRAINED);
    CHECK_EQ(submit(0, 1, 1, 4), ST_CLOSED);
    d.mode = FRAME_DRAIN_RESUME;
    CHECK_OK(backend_drain(rank(0), &d, &bed.submit_err), bed.submit_err);
    RUN_UNTIL(backend_state(rank(0)) == BACKEND_READY);
    d.mode = FRAME_DRAIN_EXIT;
    CHECK_OK(backend_drain(rank(0), &d, &bed.submit_err), bed.submit_err);
    RUN_UNTIL(backend_state(rank(0)) == BACKEND_STOPPED);
    tear_down();
}

// What one worker sends must not touch another's stream.
TEST(a_worker_that_sends_garbage_is_dropped_and_no_other) {
    static const struct {
        const char *flag, *reason;
    } cases[] = {
        {"--garbage=bytes", "bad_frame: "},
        {"--garbage=lie", "bad_frame: frame claims 268435455 objects"},
        {"--garbage=huge", "its connection closed"},
        {"--garbage=router", "bad_frame: a worker does not send CANCEL"},
    };
    set_up(&(struct setup){.ranks = 2});
    guest("--rank=1", "--rate=50", NULL);
    RUN_UNTIL(backend_state(rank(1)) == BACKEND_READY);
    CHECK_OK(submit(1, 9, 1, 1000000), bed.submit_err);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        int code, g = guest("--rank=0", cases[i].flag, "--once", NULL);
        RUN_UNTIL(bed.lost[0] == i + 1);
        CHECK_EQ(backend_state(rank(0)), BACKEND_FAILED);
        CHECK_HAS(bed.why[0], cases[i].reason);
        wait_end(g, &code);
    }
    uint32_t before = bed.streams[9].count;
    RUN_UNTIL(bed.streams[9].count > before + 10);
    CHECK_EQ(bed.lost[1], 0);
    tear_down();
}

TEST(frames_of_another_generation_and_of_unknown_types_are_dropped_and_counted) {
    set_up(&(struct setup){.ranks = 2});
    guest("--rank=0", "--garbage=stale", NULL); // a GOODBYE that would end it
    guest("--rank=1", "--garbage=type", NULL);
    RUN_UNTIL(info(0).frames_dropped == 1 && info(1).frames_dropped == 1);
    CHECK_OK(submit(0, 1, 1, 5), bed.submit_err);
    CHECK_OK(submit(1, 2, 1, 5), bed.submit_err);
    RUN_UNTIL(bed.streams[1].done && bed.streams[2].done);
    CHECK_EQ(bed.lost[0] + bed.lost[1], 0);
    tear_down();
}

TEST(a_flood_of_frames_is_taken_whole) {
    set_up(&(struct setup){.ranks = 1});
    guest("--garbage=flood", NULL);
    RUN_UNTIL(bed.rooms[0] > 10000);
    CHECK_EQ(bed.lost[0], 0);
    tear_down();
}

TEST(a_worker_that_speaks_no_version_of_ours_is_refused) {
    int code = 0;
    set_up(&(struct setup){.ranks = 1});
    wait_end(guest("--versions=2-9", NULL), &code);
    CHECK_EQ(code, 4);
    CHECK_EQ(info(0).generation, 0);
    wait_end(guest("--versions=1-9", "--exit=7", NULL), &code);
    CHECK_EQ(code, 7); // welcome
    tear_down();
}

TEST(of_two_workers_that_want_one_rank_the_second_is_refused) {
    int code = 0;
    set_up(&(struct setup){.ranks = 2});
    guest("--rank=1", NULL);
    RUN_UNTIL(backend_state(rank(1)) == BACKEND_READY);
    wait_end(guest("--rank=1", NULL), &code);
    CHECK_EQ(code, 4);
    wait_end(guest("--rank=2", NULL), &code); // no such rank
    CHECK_EQ(code, 4);
    guest(NULL); // the lowest free one
    RUN_UNTIL(backend_state(rank(0)) == BACKEND_READY);
    wait_end(guest(NULL), &code); // none is free
    CHECK_EQ(code, 4);
    CHECK_EQ(bed.lost[0] + bed.lost[1], 0);
    tear_down();
}

TEST(a_worker_of_another_model_or_with_a_foreign_token_is_refused) {
    int code = 0;
    set_up(&(struct setup){.ranks = 1, .model = "demo"});
    wait_end(guest("--model=other", NULL), &code);
    CHECK_EQ(code, 4);
    wait_end(guest("--token=0123456789abcdef0123456789abcdef", NULL), &code);
    CHECK_EQ(code, 4);
    CHECK_EQ(info(0).generation, 0);
    tear_down();
}

TEST(a_guest_takes_a_guest_rank_beside_workers_of_ours) {
    set_up(&(struct setup){.ranks = 1, .guest_ranks = 1, .spawn = true});
    RUN_UNTIL(backend_state(rank(0)) == BACKEND_READY);
    CHECK_EQ(backend_state(rank(1)), BACKEND_STOPPED);
    int code, g = guest(NULL);
    RUN_UNTIL(backend_state(rank(1)) == BACKEND_READY);
    CHECK(!info(1).supervised);
    kill(bed.guests[g], SIGTERM);
    RUN_UNTIL(backend_state(rank(1)) == BACKEND_STOPPED);
    CHECK_STR(bed.why[1], "sigterm");
    wait_end(g, &code);
    CHECK_EQ(code, 0);
    tear_down();
}

// Each incarnation has its own socket; what one leaves open would add up.
TEST(a_worker_started_by_hand_comes_and_goes_500_times_without_a_trace) {
    int code, before = 0;
    set_up(&(struct setup){.ranks = 1});
    for (uint32_t i = 1; i <= 500; i++) {
        int g = guest(NULL);
        RUN_UNTIL(backend_state(rank(0)) == BACKEND_READY);
        CHECK_OK(submit(0, 1, i, 1000000), bed.submit_err);
        RUN_UNTIL(bed.streams[1].count > 0);
        kill(bed.guests[g], i % 2 ? SIGKILL : SIGSTOP); // half of them go without closing anything
        if (i % 2 == 0) kill(bed.guests[g], SIGKILL);
        RUN_UNTIL(bed.lost[0] == i);
        wait_end(g, &code);
        uint32_t count = bed.streams[1].count;
        uv_run(&bed.loop, UV_RUN_NOWAIT);
        CHECK_EQ(bed.streams[1].count, count); // no stale token
        bed.streams[1].count = 0;
        if (i == 20) before = open_fds();
    }
    CHECK_EQ(info(0).generation, 500);
    RUN_UNTIL(open_fds() <= before + 2); // the last socket may still be closing
    tear_down();
}

TEST(a_stopped_process_is_hung_and_ours_is_killed_and_replaced) {
    set_up(&(struct setup){.ranks = 1, .spawn = true, .progress_s = 1.5});
    RUN_UNTIL(backend_state(rank(0)) == BACKEND_READY);
    kill((pid_t)info(0).pid, SIGSTOP);
    RUN_UNTIL(bed.lost[0] == 1);
    CHECK_HAS(bed.why[0], "hung: no answer to PING");
    RUN_UNTIL(backend_state(rank(0)) == BACKEND_READY);
    CHECK_EQ(info(0).generation, 2);
    tear_down();
}

TEST(late_frames_of_a_stopped_guest_do_no_harm_when_it_wakes) {
    set_up(&(struct setup){.ranks = 1, .progress_s = 1.5});
    int g = guest(NULL);
    RUN_UNTIL(backend_state(rank(0)) == BACKEND_READY);
    CHECK_OK(submit(0, 1, 1, 100000000), bed.submit_err);
    RUN_UNTIL(bed.streams[1].count > 0);
    kill(bed.guests[g], SIGSTOP);
    RUN_UNTIL(bed.lost[0] == 1);
    uint32_t before = bed.streams[1].count;
    kill(bed.guests[g], SIGCONT); // it finds its router gone and joins anew
    RUN_UNTIL(backend_state(rank(0)) == BACKEND_READY);
    CHECK_EQ(info(0).generation, 2);
    CHECK_EQ(bed.streams[1].count, before);
    tear_down();
}

TEST(a_worker_without_progress_is_hung_only_while_it_has_work) {
    char script[200];
    set_up(&(struct setup){.ranks = 1, .progress_s = 1});
    snprintf(script, sizeof script, "%s/hang", test_temp_dir());
    FILE *f = fopen(script, "w");
    fputs("hang\n", f);
    fclose(f);
    char flag[256];
    snprintf(flag, sizeof flag, "--script=%s", script);
    guest(flag, NULL);
    RUN_UNTIL(backend_state(rank(0)) == BACKEND_READY);
    uint64_t rooms = bed.rooms[0];
    RUN_UNTIL(bed.rooms[0] >=
              rooms + 3); // three STATUS without a change, over two seconds: idle, not hung
    CHECK_EQ(bed.lost[0], 0);
    CHECK_OK(submit(0, 1, 1, 10), bed.submit_err);
    RUN_UNTIL(bed.lost[0] == 1);
    CHECK_HAS(bed.why[0], "hung: 1 streams and no progress");
    tear_down();
}

TEST(a_worker_that_joins_and_stays_silent_is_hung) {
    set_up(&(struct setup){.ranks = 1, .progress_s = 1});
    guest("--silent", NULL);
    RUN_UNTIL(bed.lost[0] == 1);
    CHECK_HAS(bed.why[0], "no answer to PING");
    tear_down();
}

TEST(a_process_that_never_says_hello_is_killed) {
    set_up(&(struct setup){.ranks = 1, .spawn = true, .hello_s = 0.5, .flags = {"--mute"}});
    RUN_UNTIL(backend_state(rank(0)) == BACKEND_BACKOFF);
    CHECK_HAS(info(0).reason, "no HELLO within 0.5 s");
    tear_down();
}

TEST(a_worker_that_cannot_be_started_or_exits_at_once_backs_off_with_its_reason) {
    set_up(&(struct setup){.ranks = 1, .spawn = true, .flags = {"--exit=3"}});
    RUN_UNTIL(backend_state(rank(0)) == BACKEND_BACKOFF && !info(0).pid);
    CHECK_HAS(info(0).reason, "exit code 3");
    tear_down();
    set_up(&(struct setup){.ranks = 1, .spawn = true, .flags = {"--no-such-flag"}});
    RUN_UNTIL(backend_state(rank(0)) == BACKEND_BACKOFF && !info(0).pid);
    CHECK_HAS(info(0).reason, "exit code 2");
    CHECK_EQ(bed.lost[0], 0); // there was no incarnation
    tear_down();
}

TEST(room_is_what_status_said_less_what_it_did_not_know) {
    set_up(&(struct setup){.ranks = 1});
    guest("--streams=2", "--rate=20", NULL);
    RUN_UNTIL(backend_state(rank(0)) == BACKEND_READY);
    CHECK_OK(submit(0, 1, 1, 4), bed.submit_err);
    CHECK_OK(submit(0, 2, 1, 4), bed.submit_err);
    CHECK_EQ(backend_room(rank(0)), 0);
    CHECK_EQ(submit(0, 3, 1, 4), ST_FULL);
    RUN_UNTIL(bed.streams[1].done && bed.streams[2].done);
    RUN_UNTIL(backend_room(rank(0)) == 2);
    tear_down();
}

TEST(a_failed_stream_gives_its_room_back) {
    char script[200], flag[256];
    set_up(&(struct setup){.ranks = 1});
    snprintf(script, sizeof script, "%s/fail", test_temp_dir());
    FILE *f = fopen(script, "w");
    fputs("fail full come later\nfail invalid top_k: no\nreply 1 2\n", f);
    fclose(f);
    snprintf(flag, sizeof flag, "--script=%s", script);
    guest(flag, NULL);
    RUN_UNTIL(backend_state(rank(0)) == BACKEND_READY);
    for (uint32_t i = 1; i <= 3; i++) CHECK_OK(submit(0, i, 1, 10), bed.submit_err);
    RUN_UNTIL(bed.streams[1].failed && bed.streams[2].failed && bed.streams[3].done);
    CHECK_EQ(bed.streams[1].code, FRAME_FAIL_FULL);
    CHECK_EQ(bed.streams[2].code, FRAME_FAIL_INVALID);
    CHECK_EQ(bed.streams[3].count, 2);
    CHECK_EQ(info(0).streams_sent, 0);
    tear_down();
}

// 2,000 clients that leave at once must leave nothing behind in the worker.
TEST(two_thousand_cancels_in_one_turn_all_arrive) {
    enum { N = 2000 };
    set_up(&(struct setup){.ranks = 1});
    guest("--streams=2048", "--rate=1", NULL);
    RUN_UNTIL(backend_state(rank(0)) == BACKEND_READY);
    for (uint32_t i = 1; i <= N; i++) CHECK_OK(submit(0, i, i, 100), bed.submit_err);
    for (uint32_t i = 1; i <= N; i++) backend_cancel(rank(0), (struct frame_stream){i, i});
    for (uint32_t i = 1; i <= N; i++)
        backend_cancel(rank(0), (struct frame_stream){i, i + 1}); // not a stream of ours
    RUN_UNTIL(info(0).streams_sent == 0);
    for (uint32_t i = 1; i <= N; i++) {
        CHECK_EQ(bed.streams[i].cancelled, 1);
        CHECK_EQ(bed.streams[i].done, 1);
    }
    RUN_UNTIL(info(0).status.streams_running == 0);
    tear_down();
}

TEST(a_submit_larger_than_a_frame_or_over_the_queue_is_refused_and_harms_nothing) {
    set_up(&(struct setup){.ranks = 1});
    guest("--streams=64", NULL);
    RUN_UNTIL(backend_state(rank(0)) == BACKEND_READY);
    uint32_t count = FRAME_PROMPT_IDS_MAX;
    uint32_t *ids = mem_calloc(count, sizeof *ids);
    struct frame_submit s = {.stream = {1, 1},
                             .request_id = "",
                             .trace = "",
                             .prompt = {(uint8_t *)ids, count},
                             .given = {(uint8_t *)ids, count},
                             .max_tokens = 1,
                             .top_logprobs = -1,
                             .think_budget = -1};
    CHECK_EQ(backend_submit(rank(0), &s, &bed.submit_err), ST_FULL);
    CHECK_EQ(info(0).streams_sent, 0);
    s.given.count = 0;
    int st = ST_OK;
    for (uint32_t i = 2; i < 60 && !st; i++) { // 4 MiB each, faster than any worker reads
        s.stream.id = i;
        st = backend_submit(rank(0), &s, &bed.submit_err);
    }
    CHECK_EQ(st, ST_FULL);
    CHECK_HAS(bed.submit_err.msg, "wait to be sent");
    free(ids);
    RUN_UNTIL(info(0).streams_sent == 0); // those that were taken are answered
    tear_down();
}

static atomic_bool answered;
static void on_answered(void *arg) {
    atomic_store(&answered, true);
}

// Whoever can reach the socket may write anything to it.
TEST(the_lobby_survives_strangers) {
    set_up(&(struct setup){.ranks = 1});
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    snprintf(a.sun_path, sizeof a.sun_path, "%s/lobby.sock", bed.dir);
    struct stat sb;
    CHECK_EQ(stat(a.sun_path, &sb), 0);
    CHECK_EQ(sb.st_mode & 0777, 0600);
    static const char *const texts[] = {"", "GET / HTTP/1.1\r\n\r\n",
                                        "\0SP\0\0\x30\0\0\1\xff\xff\xff\xff\xff\xff\xff\xff"};
    static const size_t lens[] = {0, 18, 17};
    int fds[3];
    for (int i = 0; i < 3; i++) {
        fds[i] = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
        CHECK_EQ(connect(fds[i], (struct sockaddr *)&a, sizeof a), 0);
        if (lens[i]) CHECK_EQ(write(fds[i], texts[i], lens[i]), (ssize_t)lens[i]);
    }
    nng_socket s;
    CHECK_EQ(nng_req0_open(&s), 0);
    CHECK_EQ(nng_dial(s, bed.lobby, NULL, 0), 0);
    nng_aio *aio;
    CHECK_EQ(nng_aio_alloc(&aio, on_answered, NULL), 0);
    nng_msg *m;
    nng_msg_alloc(&m, 0);
    nng_msg_append(m, "\x92\x0c\x01", 3); // a PING without its fields
    nng_aio_set_msg(aio, m);
    nng_send_aio(s, aio);
    nng_aio_wait(aio);
    atomic_store(&answered, false);
    nng_recv_aio(s, aio);
    while (!atomic_load(&answered)) uv_run(&bed.loop, UV_RUN_NOWAIT);
    CHECK_EQ(nng_aio_result(aio), 0);
    m = nng_aio_get_msg(aio);
    CHECK_MEM(nng_msg_body(m), "\x95\x08\x00", 3); // FAIL
    nng_msg_free(m);
    nng_aio_free(aio);
    nng_close(s);
    guest(NULL);
    RUN_UNTIL(backend_state(rank(0)) == BACKEND_READY);
    for (int i = 0; i < 3; i++) close(fds[i]);
    tear_down();
}

TEST(a_second_router_in_the_same_folder_is_refused) {
    set_up(&(struct setup){.ranks = 1});
    struct backends *second = NULL;
    struct err e = {0};
    struct backends_config c = {.loop = &bed.loop,
                                .run_dir = bed.dir,
                                .ranks = 1,
                                .vocab = &vocab,
                                .events = {NULL, on_frame, on_state, on_room, on_lost}};
    CHECK_EQ(backends_new(&second, &c, &e), ST_IO);
    CHECK_HAS(e.msg, "lobby.sock");
    CHECK(second == NULL);
    guest(NULL); // the first goes on
    RUN_UNTIL(backend_state(rank(0)) == BACKEND_READY);
    tear_down();
}

TEST(a_folder_too_long_for_a_socket_path_is_refused_by_name) {
    struct err e = {0};
    char dir[120];
    memset(dir, 'd', sizeof dir - 1);
    dir[sizeof dir - 1] = '\0';
    struct backends *s = NULL;
    struct backends_config c = {.run_dir = dir, .ranks = 1, .vocab = &vocab};
    CHECK_EQ(backends_new(&s, &c, &e), ST_INVAL);
    CHECK_HAS(e.msg, "run.dir");
}

TEST(at_the_end_a_stubborn_process_is_killed_and_a_guest_dials_again) {
    set_up(&(struct setup){
        .ranks = 1, .guest_ranks = 1, .spawn = true, .flags = {"--mute"}, .hello_s = 60});
    int g = guest(NULL);
    RUN_UNTIL(backend_state(rank(1)) == BACKEND_READY && info(0).pid > 0);
    pid_t pid = (pid_t)info(0).pid;
    backends_stop(bed.set, 0.3, on_stopped, NULL);
    RUN_UNTIL(bed.stopped);
    CHECK_EQ(kill(pid, 0), -1); // gone and reaped
    backends_free(bed.set);
    close_loop();
    CHECK_EQ(kill(bed.guests[g], 0), 0); // still there
    pid_t waiting = bed.guests[g];
    set_up(&(struct setup){.ranks = 1, .same_folder = true}); // the next router
    bed.guests[0] = waiting;
    RUN_UNTIL(backend_state(rank(0)) == BACKEND_READY);
    tear_down();
}
