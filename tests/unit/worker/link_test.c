/* link: a worker's life at a router, around an engine that computes nothing (tests/tools/worker_double.c). The router's
 * side is the real one; processes and sockets are real. */
#include "common/err.h"
#include "common/mem.h"
#include "proto/exit_code.h"
#include "router/backend_int.h"
#include "tests/lib/backend_bed.h"
#include "tests/lib/test.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void set_up(struct bed_setup u) {
    u.program = "worker_double";
    if (!u.ranks) u.ranks = 1;
    bed_set_up(&u);
}

static void wait_ready(void) {
    BED_UNTIL(backend_state(bed_rank(0)) == BACKEND_READY);
}

static uint32_t id_of(uint32_t i) {
    return (6 + 7 * i) % 200; // the double's, for the bed's prompt
}

TEST(a_worker_says_hello_before_it_has_loaded_and_tells_how_far_it_is) {
    set_up((struct bed_setup){
        .spawn = true, .flags = {"x/demo,load_ms=2500"}, .model = "demo,load_ms=2500"});
    BED_UNTIL(backend_state(bed_rank(0)) == BACKEND_LOADING && bed.load_seen > 0);
    wait_ready();
    struct backend_info i = bed_info(0);
    CHECK(i.supervised);
    CHECK(i.status.load_fraction == 1);
    CHECK_EQ(i.status.streams_max, 8);
    CHECK_EQ(i.status.context_max, 1024);
    CHECK_EQ(i.status.vocab_size, 256);
    CHECK_STR(i.fingerprint.device, "none");
    CHECK_HAS(i.fingerprint.checkpoint, "0123456789abcdef");
    CHECK_STR(i.fingerprint.kv, "kv=none");
    CHECK_EQ(backend_room(bed_rank(0)), 8);
    bed_tear_down();
}

TEST(streams_fill_and_draw_together_in_one_frame_a_round) {
    set_up((struct bed_setup){.spawn = true, .flags = {"x,round_ms=20,chunk=1"}});
    wait_ready();
    for (uint32_t i = 1; i <= 3; i++) CHECK_OK(bed_submit(0, i, i, 20), bed.submit_err);
    BED_UNTIL(bed.streams[1].done && bed.streams[2].done && bed.streams[3].done);
    CHECK_EQ(bed.most_entries, 3);
    CHECK(bed.token_frames < 3 * 23); // as many as rounds, not as many as tokens
    for (uint32_t i = 1; i <= 3; i++) {
        struct bed_stream *s = &bed.streams[i];
        CHECK_EQ(s->fills, 3);
        CHECK_EQ(s->filled, 3);
        CHECK_EQ(s->count, 20);
        for (uint32_t k = 0; k < 20; k++) CHECK_EQ(s->ids[k], id_of(k));
        CHECK_EQ(s->end.finish, FRAME_FINISH_LENGTH);
        CHECK_EQ(s->end.prompt_tokens, 3);
        CHECK_EQ(s->end.completion_tokens, 20);
    }
    BED_UNTIL(backend_room(bed_rank(0)) == 8);
    struct backend_info i = bed_info(0);
    CHECK_EQ(i.tokens, 60);
    CHECK_EQ(i.status.prompt_tokens, 9);
    CHECK(i.status.round_ms > 10);
    bed_tear_down();
}

TEST(a_replayed_stream_goes_on_behind_the_given_ids) {
    set_up((struct bed_setup){.spawn = true, .flags = {"x"}});
    wait_ready();
    uint32_t given[5];
    for (uint32_t i = 0; i < 5; i++) given[i] = id_of(i);
    struct frame_submit s = bed_request(1, 1, 20);
    s.given = (struct frame_ids){(uint8_t *)given, 5};
    CHECK_OK(backend_submit(bed_rank(0), &s, &bed.submit_err), bed.submit_err);
    BED_UNTIL(bed.streams[1].done);
    CHECK_EQ(bed.streams[1].count, 15);
    CHECK_EQ(bed.streams[1].filled, 8);
    for (uint32_t k = 5; k < 20; k++) CHECK_EQ(bed.streams[1].ids[k], id_of(k));
    CHECK_EQ(bed.streams[1].end.completion_tokens, 20);
    bed_tear_down();
}

TEST(logprobs_arrive_and_those_of_impossible_ids_are_finite) {
    set_up((struct bed_setup){.spawn = true, .flags = {"x"}});
    wait_ready();
    struct frame_submit s = bed_request(1, 1, 2);
    s.top_logprobs = 3;
    CHECK_OK(backend_submit(bed_rank(0), &s, &bed.submit_err), bed.submit_err);
    BED_UNTIL(bed.streams[1].done);
    CHECK(bed.streams[1].logprob == -0.5f);
    CHECK(bed.streams[1].top_logprob == -9999.0f);
    CHECK_EQ(bed.streams[1].top_id, bed.streams[1].ids[1] + 2);
    bed_tear_down();
}

TEST(a_cancel_ends_a_stream_in_its_fill_and_in_its_decode_and_frees_its_room) {
    set_up((struct bed_setup){.spawn = true, .flags = {"x,round_ms=5,chunk=1"}});
    wait_ready();
    uint32_t prompt[500] = {0};
    struct frame_submit s = bed_request(1, 1, 100);
    s.prompt = (struct frame_ids){(uint8_t *)prompt, 500};
    CHECK_OK(backend_submit(bed_rank(0), &s, &bed.submit_err), bed.submit_err);
    CHECK_OK(bed_submit(0, 2, 1, 900), bed.submit_err);
    CHECK_OK(bed_submit(0, 3, 1, 30), bed.submit_err);
    BED_UNTIL(bed.streams[1].fills > 2 && bed.streams[2].count > 2);
    backend_cancel(bed_rank(0), (struct frame_stream){1, 1});
    backend_cancel(bed_rank(0), (struct frame_stream){2, 1});
    BED_UNTIL(bed.streams[1].done && bed.streams[2].done);
    CHECK_EQ(bed.streams[1].cancelled + bed.streams[2].cancelled, 2);
    CHECK_EQ(bed.streams[1].count, 0);
    BED_UNTIL(bed.streams[3].done); // the other one runs to its end
    CHECK_EQ(bed.streams[3].count, 30);
    BED_UNTIL(bed_info(0).status.streams_running == 0 && bed_info(0).status.kv_blocks_used == 0);
    bed_tear_down();
}

// A prompt's chunk on a slow device must not look like a dead process.
TEST(a_ping_is_answered_while_a_round_is_still_running) {
    set_up((struct bed_setup){.spawn = true, .flags = {"x,round_ms=3500"}});
    wait_ready();
    CHECK_OK(bed_submit(0, 1, 1, 2), bed.submit_err);
    uint64_t seq = bed_rank(0)->health.pong_seq;
    BED_UNTIL(bed_rank(0)->health.pong_seq >= seq + 2);
    CHECK_EQ(bed.streams[1].filled, 0); // the first round has not ended
    bed_tear_down();
}

TEST(what_the_engine_refuses_comes_back_as_a_fail_that_says_why) {
    set_up((struct bed_setup){.spawn = true, .flags = {"x,context=100,kv=150"}});
    wait_ready();
    uint32_t prompt[120] = {0};
    struct frame_submit s = bed_request(1, 1, 10);
    s.prompt = (struct frame_ids){(uint8_t *)prompt, 120};
    CHECK_OK(backend_submit(bed_rank(0), &s, &bed.submit_err), bed.submit_err);
    s = bed_request(2, 1, 10);
    s.sampling.top_k = 77;
    CHECK_OK(backend_submit(bed_rank(0), &s, &bed.submit_err), bed.submit_err);
    s = bed_request(3, 1, 10);
    s.think_budget = 5;
    s.in_thought = true; // and the bed's vocabulary has no id that ends one
    CHECK_OK(backend_submit(bed_rank(0), &s, &bed.submit_err), bed.submit_err);
    BED_UNTIL(bed.streams[1].failed && bed.streams[2].failed && bed.streams[3].failed);
    CHECK_EQ(bed.streams[1].code, FRAME_FAIL_TOO_LONG);
    CHECK_EQ(bed.streams[2].code, FRAME_FAIL_INVALID);
    CHECK_STR(bed.streams[2].message, "top_k: not 77");
    CHECK_EQ(bed.streams[3].code, FRAME_FAIL_UNSUPPORTED);
    CHECK_HAS(bed.streams[3].message, "think_budget");
    CHECK_EQ(bed_info(0).streams_sent, 0);
    bed_tear_down();
}

// Without this a router would submit and be refused in a tight loop.
TEST(a_worker_out_of_kv_has_no_room_until_a_stream_ends) {
    set_up((struct bed_setup){.spawn = true, .flags = {"x,kv=150,round_ms=10"}});
    wait_ready();
    CHECK_OK(bed_submit(0, 1, 1, 100), bed.submit_err);
    CHECK_OK(bed_submit(0, 2, 1, 100), bed.submit_err);
    BED_UNTIL(bed.streams[2].failed);
    CHECK_EQ(bed.streams[2].code, FRAME_FAIL_FULL);
    BED_UNTIL(backend_room(bed_rank(0)) == 0);
    CHECK(!bed.streams[1].done);
    BED_UNTIL(backend_room(bed_rank(0)) == 8);
    CHECK_EQ(bed.streams[1].done, 1);
    bed_tear_down();
}

TEST(a_worker_told_to_end_finishes_its_streams_takes_no_more_and_says_goodbye) {
    int code;
    set_up((struct bed_setup){0});
    int g = bed_guest("x,round_ms=10", NULL);
    wait_ready();
    CHECK_OK(bed_submit(0, 1, 1, 100), bed.submit_err);
    CHECK_OK(bed_submit(0, 2, 1, 60), bed.submit_err);
    BED_UNTIL(bed.streams[1].count > 1);
    kill(bed.guests[g], SIGTERM);
    BED_UNTIL(backend_state(bed_rank(0)) == BACKEND_DRAINING);
    CHECK_EQ(bed_submit(0, 3, 1, 5), ST_CLOSED);
    BED_UNTIL(bed.lost[0] == 1);
    CHECK_EQ(bed.streams[1].done + bed.streams[2].done, 2);
    CHECK_EQ(bed.streams[1].count, 100);
    CHECK_EQ(bed.streams[2].count, 60);
    CHECK_STR(bed.why[0], "sigterm");
    CHECK_EQ(backend_state(bed_rank(0)), BACKEND_STOPPED);
    bed_wait_end(g, &code);
    CHECK_EQ(code, EXIT_CODE_OK);
    bed_tear_down();
}

TEST(a_worker_told_to_end_twice_ends_at_once) {
    int code;
    set_up((struct bed_setup){0});
    int g = bed_guest("x,round_ms=10", NULL);
    wait_ready();
    CHECK_OK(bed_submit(0, 1, 1, 100000), bed.submit_err);
    BED_UNTIL(bed.streams[1].count > 1);
    kill(bed.guests[g], SIGTERM);
    BED_UNTIL(backend_state(bed_rank(0)) == BACKEND_DRAINING);
    kill(bed.guests[g], SIGTERM);
    bed_wait_end(g, &code);
    CHECK_EQ(code, EXIT_CODE_HURRIED);
    bed_tear_down();
}

TEST(a_worker_told_to_end_while_it_loads_or_waits_for_a_router_ends) {
    int code;
    set_up((struct bed_setup){0});
    int g = bed_guest("x,load_ms=100000", NULL);
    BED_UNTIL(backend_state(bed_rank(0)) == BACKEND_LOADING);
    kill(bed.guests[g], SIGTERM);
    bed_wait_end(g, &code);
    CHECK_EQ(code, EXIT_CODE_OK);
    g = bed_guest("x", "--lobby=/no/such/lobby.sock", NULL);
    usleep(300000); // in the middle of its waits; any moment is as good
    kill(bed.guests[g], SIGTERM);
    bed_wait_end(g, &code);
    CHECK_EQ(code, EXIT_CODE_OK);
    bed_tear_down();
}

TEST(a_drained_worker_refuses_until_it_is_told_to_resume) {
    set_up((struct bed_setup){.spawn = true, .flags = {"x,round_ms=10"}});
    wait_ready();
    CHECK_OK(bed_submit(0, 1, 1, 30), bed.submit_err);
    struct frame_drain d = {FRAME_DRAIN_FINISH, 0};
    CHECK_OK(backend_drain(bed_rank(0), &d, &bed.submit_err), bed.submit_err);
    CHECK_EQ(backend_state(bed_rank(0)),
             BACKEND_DRAINING); // a STATUS(ready) may still be under way
    CHECK_EQ(bed_submit(0, 2, 1, 5), ST_CLOSED);
    BED_UNTIL(backend_state(bed_rank(0)) == BACKEND_DRAINED);
    CHECK_EQ(bed.streams[1].count, 30);
    d.mode = FRAME_DRAIN_RESUME;
    CHECK_OK(backend_drain(bed_rank(0), &d, &bed.submit_err), bed.submit_err);
    wait_ready();
    CHECK_OK(bed_submit(0, 3, 1, 5), bed.submit_err);
    BED_UNTIL(bed.streams[3].done);
    bed_tear_down();
}

// Nobody told the router: the SUBMIT crosses the STATUS(draining).
TEST(a_worker_that_was_told_to_end_refuses_what_still_comes) {
    set_up((struct bed_setup){.spawn = true, .flags = {"x,round_ms=10"}});
    wait_ready();
    CHECK_OK(bed_submit(0, 1, 1, 30), bed.submit_err);
    BED_UNTIL(bed.streams[1].count > 0);
    kill((pid_t)bed_info(0).pid, SIGTERM);
    usleep(50000); // the link thread has read the signal before it reads the SUBMIT
    CHECK_OK(bed_submit(0, 2, 1, 5), bed.submit_err);
    BED_UNTIL(bed.streams[1].done && bed.streams[2].failed);
    CHECK_EQ(bed.streams[2].code, FRAME_FAIL_FULL);
    bed_tear_down();
}

TEST(what_is_wrong_with_the_checkpoint_reaches_the_router_and_the_exit_code) {
    int code;
    static const struct {
        const char *what, *says;
        int code;
    } cases[] = {{"x,fail=load", "tensor w: wanted [2], found [3]", EXIT_CODE_MODEL},
                 {"x,fail=room", "the largest context is 12", EXIT_CODE_MEMORY}};
    set_up((struct bed_setup){0});
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        int g = bed_guest(cases[i].what, NULL);
        bed_wait_end(g, &code);
        CHECK_EQ(code, cases[i].code);
        BED_UNTIL(bed.lost[0] == i + 1);
        CHECK_HAS(bed.why[0], cases[i].says);
    }
    // Without a router it ends as well, instead of waiting for one.
    bed_wait_end(bed_guest("x,fail=load", "--lobby=/no/such/lobby.sock", NULL), &code);
    CHECK_EQ(code, EXIT_CODE_MODEL);
    bed_tear_down();
}

TEST(a_device_that_fails_in_a_round_ends_the_worker_with_its_own_code) {
    int code;
    set_up((struct bed_setup){0});
    int g = bed_guest("x,device=10,round_ms=1", NULL);
    wait_ready();
    CHECK_OK(bed_submit(0, 1, 1, 100), bed.submit_err);
    BED_UNTIL(bed.lost[0] == 1);
    CHECK_HAS(bed.why[0], "the device fell off");
    bed_wait_end(g, &code);
    CHECK_EQ(code, EXIT_CODE_DEVICE);
    bed_tear_down();
}

TEST(a_worker_that_no_router_wants_ends_with_its_own_code) {
    int code;
    set_up((struct bed_setup){.model = "other"});
    bed_wait_end(bed_guest("x", NULL), &code);
    CHECK_EQ(code, EXIT_CODE_REFUSED);
    bed_tear_down();
    set_up((struct bed_setup){0});
    bed_wait_end(bed_guest("x", "--rank=7", NULL), &code);
    CHECK_EQ(code, EXIT_CODE_REFUSED);
    bed_tear_down();
}

// A worker whose predecessor has just died may be quicker than the news of that death.
TEST(a_worker_for_whom_no_rank_is_free_waits_for_one) {
    set_up((struct bed_setup){0});
    int first = bed_guest("x", NULL), code;
    wait_ready();
    uint32_t pid = bed_info(0).pid;
    int second = bed_guest("x", NULL), third = bed_guest("x", "--rank=0", NULL);
    usleep(300000); // both are refused meanwhile
    kill((pid_t)pid, SIGKILL);
    bed_wait_end(first, &code);
    BED_UNTIL(bed_info(0).state == BACKEND_READY && bed_info(0).pid != pid);
    pid = bed_info(0).pid;
    kill((pid_t)pid, SIGTERM);
    BED_UNTIL(bed_info(0).state == BACKEND_READY && bed_info(0).pid != pid);
    kill((pid_t)bed_info(0).pid, SIGTERM);
    bed_wait_end(second, &code);
    CHECK_EQ(code, 0);
    bed_wait_end(third, &code);
    CHECK_EQ(code, 0);
    bed_tear_down();
}

static void next_router(void) { // in the same folder; the guest goes over to it
    pid_t guest = bed.guests[0];
    bed.guests[0] = 0;
    bed_tear_down();
    CHECK_EQ(kill(guest, 0), 0);
    set_up((struct bed_setup){.same_folder = true});
    bed.guests[0] = guest;
}

TEST(a_worker_started_by_hand_keeps_its_model_over_a_router_s_restart) {
    set_up((struct bed_setup){0});
    bed_guest("x,load_ms=1000,round_ms=5", NULL);
    wait_ready();
    CHECK_OK(bed_submit(0, 1, 1, 1000000), bed.submit_err);
    BED_UNTIL(bed.streams[1].count > 3);
    pid_t guest = bed.guests[0];
    next_router();
    wait_ready();
    CHECK_EQ(bed_info(0).pid, guest);
    CHECK(bed.load_seen == 0);                      // not loaded again
    CHECK_EQ(bed_info(0).status.kv_blocks_used, 0); // its streams are cancelled
    CHECK_EQ(bed_info(0).status.streams_running, 0);
    CHECK_OK(bed_submit(0, 2, 1, 5), bed.submit_err);
    BED_UNTIL(bed.streams[2].done);
    CHECK_EQ(bed.streams[1].count, 0); // nothing stale
    bed_tear_down();
}

TEST(a_worker_whose_incarnation_ends_again_and_again_joins_again_without_a_trace) {
    // RAILYARD_LONG=1: 500 times, at 100 ms and more each.
    uint32_t times = getenv("RAILYARD_LONG") ? 500 : 40;
    int before = 0;
    set_up((struct bed_setup){0});
    bed_guest("x,round_ms=1", NULL);
    for (uint32_t i = 1; i <= times; i++) {
        wait_ready();
        CHECK_EQ(bed_info(0).generation, i);
        CHECK_OK(bed_submit(0, 1, i, 1000000), bed.submit_err);
        BED_UNTIL(bed.streams[1].count > 0);
        if (i == 10) before = bed_open_fds(bed.guests[0]);
        backend_drop(bed_rank(0), "the test drops it");
        bed.streams[1].count = 0;
    }
    wait_ready();
    CHECK_EQ(bed.streams[1].count, 0);
    BED_UNTIL(bed_open_fds(bed.guests[0]) <= before + 3); // one each time would be many more
    bed_tear_down();
}

TEST(a_vocabulary_that_does_not_fit_the_head_is_named) {
    static struct frame_range used[] = {{0, 5000}};
    static struct frame_vocab vocab = {.size = 5000,
                                       .used = used,
                                       .used_count = 1,
                                       .think_open = -1,
                                       .think_close = -1,
                                       .tool_open = -1};
    set_up((struct bed_setup){0});
    bed.set->c.vocab = &vocab;
    int code, g = bed_guest("x", NULL);
    BED_UNTIL(bed.lost[0] == 1);
    CHECK_HAS(bed.why[0], "the router's vocabulary: used: wanted ids below 256");
    bed_wait_end(g, &code);
    CHECK_EQ(code, EXIT_CODE_MODEL);
    bed_tear_down();
}
