/* backend_bed: a router's backends on a loop in the test's process, with workers as real processes on real sockets.
 *
 * bed_set_up, BED_UNTIL what the test waits for, bed_tear_down. One bed at a time; the test's main thread. */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>
#include <uv.h>

#include "common/err.h"
#include "proto/frame.h"
#include "router/backend.h"

enum {
    BED_RANKS_MAX = 4,
    BED_IDS_MAX = 64, // kept of each stream
    BED_STREAMS_MAX = 2100,
    BED_GUESTS_MAX = 8,
    BED_LIMIT_MS = 60000,
};

struct bed_stream { // what came of one stream, named by its id
    uint32_t ids[BED_IDS_MAX];
    uint32_t count;         // all, also beyond the array
    uint32_t filled, fills; // fills: entries without an id
    float logprob, top_logprob;
    uint32_t top_id;
    int done, failed, cancelled;
    struct frame_done end;
    enum frame_fail_code code;
    char message[256];
};

struct bed {
    uv_loop_t loop;
    struct backends *set;
    char dir[90], lobby[160], program[512];
    bool stopped;
    struct bed_stream streams[BED_STREAMS_MAX];
    uint32_t token_frames, most_entries; // TOKENS, and the most streams in one
    uint32_t lost[BED_RANKS_MAX], states[BED_RANKS_MAX], rooms[BED_RANKS_MAX];
    char why[BED_RANKS_MAX][256];   // of the last on_lost
    unsigned failed[BED_RANKS_MAX]; // on_failed was called, last with
    enum backend_failure failure[BED_RANKS_MAX];
    enum backend_state at_lost[BED_RANKS_MAX]; // the state when on_lost was called
    double load_seen;                          // the largest load_fraction below 1
    struct err submit_err;
    pid_t guests[BED_GUESTS_MAX]; // started by hand and not yet waited for
    uv_timer_t limit;
    bool limit_over;
};
extern struct bed bed;

struct bed_setup {
    const char *program; // "fake_worker" when NULL
    uint32_t ranks, guest_ranks;
    bool spawn;
    double progress_s, hello_s; // 30 when 0
    char *flags[6];             // of spawned workers
    const char *model;
    bool same_folder; // as the bed before
};

int bed_set_up_try(const struct bed_setup *u, struct err *e);
void bed_set_up(const struct bed_setup *u);
void bed_tear_down(void);
void bed_on_stopped(void *arg);
void bed_close_loop(void);
struct backends_config bed_config(void); // of a set like the bed's own

struct backend *bed_rank(uint32_t r);
struct backend_info bed_info(uint32_t r);
// Starts a worker by hand; the flags end with NULL. Its number among the guests is returned.
int bed_guest(const char *flag, ...);
void bed_wait_end(int guest, int *ret_code); // the loop turns; exit code, or 128 + signal
struct frame_submit bed_request(uint32_t id, uint32_t epoch,
                                uint32_t max_tokens); // a prompt of 1, 2, 3
int bed_submit(uint32_t r, uint32_t id, uint32_t epoch, uint32_t max_tokens);
int bed_open_fds(pid_t pid); // 0: this process
void bed_write_file(const char *name, const char *text, char *ret_path, size_t ret_bytes);

void bed_limit_start(void);
// Turns the loop until the condition holds; the limit is so generous that only a hang meets it.
#define BED_UNTIL(condition_)                                                                      \
    do {                                                                                           \
        bed_limit_start();                                                                         \
        while (!(condition_) && !bed.limit_over) uv_run(&bed.loop, UV_RUN_ONCE);                   \
        uv_timer_stop(&bed.limit);                                                                 \
        if (bed.limit_over) test_fail(__FILE__, __LINE__, "never came true: %s", #condition_);     \
    } while (0)
