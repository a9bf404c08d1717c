/* backend_bed: see backend_bed.h. */
#include "tests/lib/backend_bed.h"
#include "common/log.h"
#include "common/mono.h"
#include "tests/lib/test.h"

#include <dirent.h>
#include <signal.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

struct bed bed;

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

static void keep_logprobs(struct bed_stream *s, const struct frame_logprobs *l) {
    s->logprob = l->logprob;
    if (l->top_count == 0) return;
    s->top_id = l->top[l->top_count - 1].id;
    s->top_logprob = l->top[l->top_count - 1].logprob;
}

static void on_tokens(const struct frame_tokens *t) {
    bed.token_frames++;
    if (t->count > bed.most_entries) bed.most_entries = t->count;
    for (uint32_t i = 0; i < t->count; i++) {
        const struct frame_tokens_entry *x = &t->entries[i];
        struct bed_stream *s = &bed.streams[x->stream.id];
        s->filled = x->filled;
        s->fills += x->ids.count == 0;
        if (x->logprobs && x->ids.count) keep_logprobs(s, x->logprobs);
        for (uint32_t k = 0; k < x->ids.count; k++, s->count++)
            if (x->first + k < 64) s->ids[x->first + k] = frame_id_at(&x->ids, k);
    }
}

static void on_frame(void *arg, struct backend *b, const struct frame *f) {
    if (f->type == FRAME_TOKENS) on_tokens(&f->tokens);
    if (f->type == FRAME_DONE) {
        struct bed_stream *s = &bed.streams[f->done.stream.id];
        s->done++;
        s->end = f->done;
        s->cancelled += f->done.finish == FRAME_FINISH_CANCELLED;
    }
    if (f->type == FRAME_FAIL) {
        struct bed_stream *s = &bed.streams[f->fail.stream.id];
        s->failed++;
        s->code = f->fail.code;
        snprintf(s->message, sizeof s->message, "%s", f->fail.message);
    }
}

static void on_state(void *arg, struct backend *b, enum backend_state old) {
    bed.states[backend_rank(b)]++;
}

static void on_room(void *arg, struct backend *b) {
    struct backend_info i;
    backend_info(b, &i);
    bed.rooms[backend_rank(b)]++;
    if (i.status.load_fraction < 1 && i.status.load_fraction > bed.load_seen)
        bed.load_seen = i.status.load_fraction;
}

static void on_lost(void *arg, struct backend *b, const char *reason, bool planned) {
    uint32_t r = backend_rank(b);
    bed.lost[r]++;
    bed.at_lost[r] = backend_state(b);
    snprintf(bed.why[r], sizeof bed.why[r], "%s", reason);
    // Its streams are gone and it takes none: what a router does next goes elsewhere.
    struct frame_submit s = {.stream = {1, 1}, .request_id = "", .trace = "", .max_tokens = 1};
    if (backend_submit(b, &s, NULL) != ST_CLOSED || backend_room(b))
        snprintf(bed.why[r], 8, "ROOM");
}

static void on_failed(void *arg, struct backend *b, enum backend_failure why) {
    bed.failed[backend_rank(b)]++;
    bed.failure[backend_rank(b)] = why;
}

/* The bed itself. */

static void on_limit(uv_timer_t *t) {
    bed.limit_over = true;
}

void bed_limit_start(void) {
    bed.limit_over = false;
    uv_timer_start(&bed.limit, on_limit, BED_LIMIT_MS, 0);
}

static bool live; // between bed_set_up and bed_close_loop

struct backends_config bed_config(void) {
    return (struct backends_config){
        .loop = &bed.loop,
        .run_dir = bed.dir,
        .ranks = 1,
        .progress_s = 30,
        .hello_s = 30,
        .events = {NULL, on_frame, on_state, on_room, on_lost, on_failed},
        .vocab = &vocab};
}

int bed_set_up_try(const struct bed_setup *u, struct err *e) {
    static char *argv[8];
    static int folders;
    const char *build = getenv("RAILYARD_BUILD");
    CHECK(!live); // a test that failed has left its bed; what is in it is still in use
    memset(&bed, 0, sizeof bed);
    live = true;
    snprintf(bed.program, sizeof bed.program, "%s/tests/tools/%s", build ? build : "build",
             u->program ? u->program : "fake_worker");
    // One folder for each test, so that one that fails does not stand in the way of the next.
    folders += !u->same_folder;
    snprintf(bed.dir, sizeof bed.dir, "%s/run%d", test_temp_dir(), folders);
    mkdir(bed.dir, 0700);
    snprintf(bed.lobby, sizeof bed.lobby, "ipc://%s/lobby.sock", bed.dir);
    uv_loop_init(&bed.loop);
    uv_timer_init(&bed.loop, &bed.limit);
    memset(argv, 0, sizeof argv);
    argv[0] = bed.program;
    for (size_t i = 0; i < 6 && u->flags[i]; i++) argv[i + 1] = u->flags[i];
    struct backends_config c = bed_config();
    c.ranks = u->ranks;
    c.spawn = u->spawn;
    c.guest_ranks = u->guest_ranks;
    c.worker_argv = argv;
    c.model = u->model;
    if (u->progress_s > 0) c.progress_s = u->progress_s;
    if (u->hello_s > 0) c.hello_s = u->hello_s;
    log_init("bed", getenv("TEST_LOG") ? LOG_LEVEL_DEBUG : LOG_LEVEL_ERROR);
    return backends_new(&bed.set, &c, e);
}

void bed_set_up(const struct bed_setup *u) {
    struct err e = {0};
    CHECK_OK(bed_set_up_try(u, &e), e);
}

void bed_on_stopped(void *arg) {
    bed.stopped = true;
}

void bed_close_loop(void) {
    uv_close((uv_handle_t *)&bed.limit, NULL);
    while (uv_run(&bed.loop, UV_RUN_DEFAULT)) continue;
    CHECK_EQ(uv_loop_close(&bed.loop), 0); // a handle left open is a leak
    live = false;
}

void bed_tear_down(void) {
    backends_stop(bed.set, 5, bed_on_stopped, NULL);
    BED_UNTIL(bed.stopped);
    backends_free(bed.set);
    bed_close_loop();
    for (int i = 0; i < BED_GUESTS_MAX; i++) {
        if (!bed.guests[i]) continue;
        kill(bed.guests[i], SIGKILL);
        waitpid(bed.guests[i], NULL, 0);
    }
}

struct backend *bed_rank(uint32_t r) {
    return backends_at(bed.set, r);
}

struct backend_info bed_info(uint32_t r) {
    struct backend_info i;
    backend_info(bed_rank(r), &i);
    return i;
}

// Starts a fake worker by hand; the flags end with NULL. Its number among the guests is returned.
int bed_guest(const char *flag, ...) {
    char *argv[12] = {bed.program}, lobby[200];
    int n = 1, slot = 0;
    if (strstr(bed.program, "fake_worker")) argv[n++] = "--leash"; // the double needs no asking
    snprintf(lobby, sizeof lobby, "--lobby=%s", bed.lobby);
    argv[n++] = lobby;
    va_list ap;
    va_start(ap, flag);
    for (const char *f = flag; f && n < 11; f = va_arg(ap, const char *)) argv[n++] = (char *)f;
    va_end(ap);
    while (bed.guests[slot]) slot++;
    CHECK_EQ(posix_spawn(&bed.guests[slot], bed.program, NULL, NULL, argv, environ), 0);
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
void bed_wait_end(int guest, int *ret_code) {
    uint64_t until = mono_ms() + BED_LIMIT_MS;
    while (!ended(guest, ret_code)) {
        uv_run(&bed.loop, UV_RUN_NOWAIT);
        CHECK(mono_ms() < until);
    }
}

struct frame_submit bed_request(uint32_t id, uint32_t epoch, uint32_t max_tokens) {
    static const uint32_t prompt[] = {1, 2, 3};
    return (struct frame_submit){.stream = {id, epoch},
                                 .request_id = "t",
                                 .trace = "",
                                 .prompt = {(const uint8_t *)prompt, 3},
                                 .sampling = {.top_p = 1, .repetition = 1},
                                 .max_tokens = max_tokens,
                                 .top_logprobs = -1,
                                 .think_budget = -1};
}

int bed_submit(uint32_t r, uint32_t id, uint32_t epoch, uint32_t max_tokens) {
    struct frame_submit s = bed_request(id, epoch, max_tokens);
    return backend_submit(bed_rank(r), &s, &bed.submit_err);
}

int bed_open_fds(pid_t pid) {
    char path[64];
    int n = 0;
    snprintf(path, sizeof path, pid ? "/proc/%d/fd" : "/proc/self/fd", (int)pid);
    DIR *d = opendir(path);
    while (d && readdir(d)) n++;
    if (d) closedir(d);
    return n;
}

void bed_write_file(const char *name, const char *text, char *ret_path, size_t ret_bytes) {
    snprintf(ret_path, ret_bytes, "%s/%s", test_temp_dir(), name);
    FILE *f = fopen(ret_path, "w");
    CHECK(f && fputs(text, f) >= 0 && fclose(f) == 0);
}
