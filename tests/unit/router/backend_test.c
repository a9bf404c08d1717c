/* backend: workers come, work, die, lie and hang, and only their own rank notices. Workers are tests/tools/fake_worker.c. */
#include "common/err.h"
#include "common/mem.h"
#include "router/backend.h"
#include "tests/lib/backend_bed.h"
#include "tests/lib/test.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

TEST(a_worker_of_ours_joins_gets_work_and_answers_it_whole) {
    bed_set_up(&(struct bed_setup){.ranks = 1, .spawn = true, .model = "demo"});
    CHECK_EQ(bed_submit(0, 1, 1, 4), ST_CLOSED); // not ready yet
    BED_UNTIL(backend_state(bed_rank(0)) == BACKEND_READY);
    CHECK_EQ(backend_room(bed_rank(0)), 8);
    CHECK_OK(bed_submit(0, 1, 1, 40), bed.submit_err);
    CHECK_EQ(backend_room(bed_rank(0)), 7);
    BED_UNTIL(bed.streams[1].done);
    CHECK_EQ(bed.streams[1].count, 40);
    CHECK_EQ(bed.streams[1].filled, 3);
    CHECK_EQ(bed.streams[1].end.finish, FRAME_FINISH_LENGTH);
    CHECK_EQ(bed.streams[1].end.completion_tokens, 40);
    for (uint32_t i = 0; i < 40; i++) CHECK(bed.streams[1].ids[i] < 200);
    BED_UNTIL(backend_room(bed_rank(0)) == 8);
    struct backend_info i = bed_info(0);
    CHECK_EQ(i.generation, 1);
    CHECK(i.supervised && i.pid > 0);
    CHECK_STR(i.model, "demo");
    CHECK_EQ(i.status.vocab_size, 256);
    CHECK_EQ(i.tokens, 40);
    CHECK_EQ(i.streams_sent, 0);
    bed_tear_down();
    CHECK_EQ(bed.lost[0], 1); // by the stop
}

TEST(a_reply_that_draws_a_stop_id_ends_with_it) {
    bed_set_up(&(struct bed_setup){.ranks = 1, .spawn = true, .flags = {"--reply=7 8 205 9"}});
    BED_UNTIL(backend_state(bed_rank(0)) == BACKEND_READY);
    CHECK_OK(bed_submit(0, 1, 1, 40), bed.submit_err);
    BED_UNTIL(bed.streams[1].done);
    CHECK_EQ(bed.streams[1].count, 3);
    CHECK_EQ(bed.streams[1].end.finish, FRAME_FINISH_STOP);
    CHECK_EQ(bed.streams[1].end.stop_id, 205);
    bed_tear_down();
}

TEST(a_killed_worker_is_told_at_once_and_is_back_as_the_next_generation) {
    bed_set_up(&(struct bed_setup){.ranks = 1, .spawn = true, .flags = {"--rate=100"}});
    BED_UNTIL(backend_state(bed_rank(0)) == BACKEND_READY);
    CHECK_OK(bed_submit(0, 1, 1, 100000), bed.submit_err);
    BED_UNTIL(bed.streams[1].count > 3);
    kill((pid_t)bed_info(0).pid, SIGKILL);
    BED_UNTIL(bed.lost[0] == 1);
    CHECK_EQ(bed.at_lost[0], BACKEND_READY); // on_lost comes before on_state
    CHECK_EQ(bed_info(0).streams_sent, 0);
    BED_UNTIL(backend_state(bed_rank(0)) == BACKEND_BACKOFF && !bed_info(0).pid);
    CHECK_HAS(bed_info(0).reason, "signal 9");
    CHECK_EQ(bed.failed[0], 1); // once, though both its connection and its process ended
    CHECK_EQ(bed.failure[0], BACKEND_FAILURE_SIGNAL);
    BED_UNTIL(backend_state(bed_rank(0)) == BACKEND_READY);
    CHECK_EQ(bed_info(0).generation, 2);
    CHECK_EQ(bed_info(0).restarts, 1);
    CHECK_STR(bed_info(0).reason, "");
    CHECK_OK(bed_submit(0, 2, 1, 3),
             bed.submit_err); // and serves; nothing stale comes for stream 1
    uint32_t before = bed.streams[1].count;
    BED_UNTIL(bed.streams[2].done);
    CHECK_EQ(bed.streams[1].count, before);
    bed_tear_down();
}

TEST(a_worker_that_ends_in_good_order_is_started_again_without_a_failure) {
    bed_set_up(&(struct bed_setup){.ranks = 1, .spawn = true, .flags = {"--rate=200"}});
    BED_UNTIL(backend_state(bed_rank(0)) == BACKEND_READY);
    CHECK_OK(bed_submit(0, 1, 1, 50), bed.submit_err);
    BED_UNTIL(bed.streams[1].count > 0);
    kill((pid_t)bed_info(0).pid, SIGTERM);
    BED_UNTIL(bed.lost[0] == 1);
    CHECK_EQ(bed.streams[1].done, 1); // its stream was finished first
    CHECK_EQ(bed.streams[1].count, 50);
    BED_UNTIL(backend_state(bed_rank(0)) == BACKEND_READY);
    CHECK_EQ(bed_info(0).generation, 2);
    CHECK_EQ(bed.failed[0], 0);
    bed_tear_down();
}

TEST(a_worker_drained_to_its_exit_stays_down) {
    bed_set_up(&(struct bed_setup){.ranks = 1, .spawn = true});
    BED_UNTIL(backend_state(bed_rank(0)) == BACKEND_READY);
    struct frame_drain d = {FRAME_DRAIN_FINISH, 10};
    CHECK_OK(backend_drain(bed_rank(0), &d, &bed.submit_err), bed.submit_err);
    BED_UNTIL(backend_state(bed_rank(0)) == BACKEND_DRAINED);
    CHECK_EQ(bed_submit(0, 1, 1, 4), ST_CLOSED);
    d.mode = FRAME_DRAIN_RESUME;
    CHECK_OK(backend_drain(bed_rank(0), &d, &bed.submit_err), bed.submit_err);
    BED_UNTIL(backend_state(bed_rank(0)) == BACKEND_READY);
    d.mode = FRAME_DRAIN_EXIT;
    CHECK_OK(backend_drain(bed_rank(0), &d, &bed.submit_err), bed.submit_err);
    BED_UNTIL(backend_state(bed_rank(0)) == BACKEND_STOPPED);
    CHECK_EQ(bed.failed[0], 0);
    bed_tear_down();
}

// What one worker sends must not touch another's stream.
TEST(a_worker_that_sends_garbage_is_dropped_and_no_other) {
    static const struct {
        const char *flag, *reason;
        enum backend_failure failure;
    } cases[] = {
        {"--garbage=bytes", "bad_frame: ", BACKEND_FAILURE_BAD_FRAME},
        {"--garbage=lie", "bad_frame: frame claims 268435455 objects", BACKEND_FAILURE_BAD_FRAME},
        {"--garbage=huge", "a message of 8388609 bytes, at most 8388608", BACKEND_FAILURE_LOST},
        {"--garbage=router", "bad_frame: a worker does not send CANCEL", BACKEND_FAILURE_BAD_FRAME},
    };
    bed_set_up(&(struct bed_setup){.ranks = 2});
    bed_guest("--rank=1", "--rate=50", NULL);
    BED_UNTIL(backend_state(bed_rank(1)) == BACKEND_READY);
    CHECK_OK(bed_submit(1, 9, 1, 1000000), bed.submit_err);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        int code, g = bed_guest("--rank=0", cases[i].flag, "--once", NULL);
        BED_UNTIL(bed.lost[0] == i + 1);
        CHECK_EQ(backend_state(bed_rank(0)), BACKEND_FAILED);
        CHECK_HAS(bed.why[0], cases[i].reason);
        CHECK_EQ(bed.failed[0], i + 1);
        CHECK_EQ(bed.failure[0], cases[i].failure);
        bed_wait_end(g, &code);
    }
    uint32_t before = bed.streams[9].count;
    BED_UNTIL(bed.streams[9].count > before + 10);
    CHECK_EQ(bed.lost[1], 0);
    bed_tear_down();
}

TEST(frames_of_another_generation_and_of_unknown_types_are_dropped_and_counted) {
    bed_set_up(&(struct bed_setup){.ranks = 2});
    bed_guest("--rank=0", "--garbage=stale", NULL); // a GOODBYE that would end it
    bed_guest("--rank=1", "--garbage=type", NULL);
    BED_UNTIL(bed_info(0).frames_dropped == 1 && bed_info(1).frames_dropped == 1);
    CHECK_OK(bed_submit(0, 1, 1, 5), bed.submit_err);
    CHECK_OK(bed_submit(1, 2, 1, 5), bed.submit_err);
    BED_UNTIL(bed.streams[1].done && bed.streams[2].done);
    CHECK_EQ(bed.lost[0] + bed.lost[1], 0);
    bed_tear_down();
}

TEST(a_flood_of_frames_is_taken_whole) {
    bed_set_up(&(struct bed_setup){.ranks = 1});
    bed_guest("--garbage=flood", NULL);
    BED_UNTIL(bed.rooms[0] > 10000);
    CHECK_EQ(bed.lost[0], 0);
    bed_tear_down();
}

TEST(a_worker_that_speaks_no_version_of_ours_is_refused) {
    int code = 0;
    bed_set_up(&(struct bed_setup){.ranks = 1});
    bed_wait_end(bed_guest("--versions=3-9", NULL), &code);
    CHECK_EQ(code, 4);
    // Of the time when an incarnation's connection was another one: it would be welcomed and never be heard.
    bed_wait_end(bed_guest("--versions=1-1", NULL), &code);
    CHECK_EQ(code, 4);
    CHECK_EQ(bed_info(0).generation, 0);
    bed_wait_end(bed_guest("--versions=1-9", "--exit=7", NULL), &code);
    CHECK_EQ(code, 7); // welcome
    bed_tear_down();
}

TEST(of_two_workers_that_want_one_rank_the_second_waits_for_it) {
    int code = 0;
    bed_set_up(&(struct bed_setup){.ranks = 2});
    bed_guest("--rank=1", NULL);
    BED_UNTIL(backend_state(bed_rank(1)) == BACKEND_READY);
    bed_wait_end(bed_guest("--rank=2", NULL), &code); // no such rank, ever
    CHECK_EQ(code, 4);
    bed_guest(NULL); // the lowest free one
    BED_UNTIL(backend_state(bed_rank(0)) == BACKEND_READY);
    bed_guest("--rank=1", NULL); // taken
    bed_guest(NULL);             // none is free
    for (uint32_t r = 0; r < 2; r++) {
        uint32_t pid = bed_info(r).pid, generation = bed_info(r).generation;
        CHECK_EQ(generation, 1);
        kill((pid_t)pid, SIGKILL);
        BED_UNTIL(bed_info(r).generation == 2 && bed_info(r).state == BACKEND_READY);
        CHECK(bed_info(r).pid != pid);
    }
    bed_tear_down();
}

TEST(a_worker_of_another_model_or_with_a_foreign_token_is_refused) {
    int code = 0;
    bed_set_up(&(struct bed_setup){.ranks = 1, .model = "demo"});
    bed_wait_end(bed_guest("--model=other", NULL), &code);
    CHECK_EQ(code, 4);
    bed_wait_end(bed_guest("--token=0123456789abcdef0123456789abcdef", NULL), &code);
    CHECK_EQ(code, 4);
    CHECK_EQ(bed_info(0).generation, 0);
    bed_tear_down();
}

TEST(a_guest_takes_a_guest_rank_beside_workers_of_ours) {
    bed_set_up(&(struct bed_setup){.ranks = 1, .guest_ranks = 1, .spawn = true});
    BED_UNTIL(backend_state(bed_rank(0)) == BACKEND_READY);
    CHECK_EQ(backend_state(bed_rank(1)), BACKEND_STOPPED);
    int code, g = bed_guest(NULL);
    BED_UNTIL(backend_state(bed_rank(1)) == BACKEND_READY);
    CHECK(!bed_info(1).supervised);
    kill(bed.guests[g], SIGTERM);
    BED_UNTIL(backend_state(bed_rank(1)) == BACKEND_STOPPED);
    CHECK_STR(bed.why[1], "sigterm");
    bed_wait_end(g, &code);
    CHECK_EQ(code, 0);
    bed_tear_down();
}

// Each incarnation has its own socket; what one leaves open would add up.
TEST(a_worker_started_by_hand_comes_and_goes_500_times_without_a_trace) {
    int code, before = 0;
    bed_set_up(&(struct bed_setup){.ranks = 1});
    for (uint32_t i = 1; i <= 500; i++) {
        int g = bed_guest(NULL);
        BED_UNTIL(backend_state(bed_rank(0)) == BACKEND_READY);
        CHECK_OK(bed_submit(0, 1, i, 1000000), bed.submit_err);
        BED_UNTIL(bed.streams[1].count > 0);
        kill(bed.guests[g], i % 2 ? SIGKILL : SIGSTOP); // half of them go without closing anything
        if (i % 2 == 0) kill(bed.guests[g], SIGKILL);
        BED_UNTIL(bed.lost[0] == i);
        bed_wait_end(g, &code);
        uint32_t count = bed.streams[1].count;
        uv_run(&bed.loop, UV_RUN_NOWAIT);
        CHECK_EQ(bed.streams[1].count, count); // no stale token
        bed.streams[1].count = 0;
        if (i == 20) before = bed_open_fds(0);
    }
    CHECK_EQ(bed_info(0).generation, 500);
    BED_UNTIL(bed_open_fds(0) <= before + 2); // the last socket may still be closing
    bed_tear_down();
}

TEST(a_stopped_process_is_hung_and_ours_is_killed_and_replaced) {
    bed_set_up(&(struct bed_setup){.ranks = 1, .spawn = true, .progress_s = 1.5});
    BED_UNTIL(backend_state(bed_rank(0)) == BACKEND_READY);
    kill((pid_t)bed_info(0).pid, SIGSTOP);
    BED_UNTIL(bed.lost[0] == 1);
    CHECK_HAS(bed.why[0], "hung: no answer to PING");
    BED_UNTIL(backend_state(bed_rank(0)) == BACKEND_READY);
    CHECK_EQ(bed.failed[0], 1);
    CHECK_EQ(bed.failure[0], BACKEND_FAILURE_HUNG); // not "signal": that was ours
    CHECK_EQ(bed_info(0).generation, 2);
    bed_tear_down();
}

TEST(late_frames_of_a_stopped_guest_do_no_harm_when_it_wakes) {
    bed_set_up(&(struct bed_setup){.ranks = 1, .progress_s = 1.5});
    int g = bed_guest(NULL);
    BED_UNTIL(backend_state(bed_rank(0)) == BACKEND_READY);
    CHECK_OK(bed_submit(0, 1, 1, 100000000), bed.submit_err);
    BED_UNTIL(bed.streams[1].count > 0);
    kill(bed.guests[g], SIGSTOP);
    BED_UNTIL(bed.lost[0] == 1);
    uint32_t before = bed.streams[1].count;
    kill(bed.guests[g], SIGCONT); // it finds its router gone and joins anew
    BED_UNTIL(backend_state(bed_rank(0)) == BACKEND_READY);
    CHECK_EQ(bed_info(0).generation, 2);
    CHECK_EQ(bed.streams[1].count, before);
    bed_tear_down();
}

// nng can lose the end of a connection that goes while a message is half written, and then never closes its socket: whoever
// waits for that is lost too. Large frames and a router that goes at any moment find it within some hundred turns.
TEST(a_stopped_guest_comes_back_whatever_it_was_doing) {
    enum { TURNS = 400 };
    bed_set_up(&(struct bed_setup){.ranks = 1});
    int g = bed_guest("--per-round=4096", NULL);
    for (uint32_t i = 1; i <= TURNS; i++) {
        BED_UNTIL(backend_state(bed_rank(0)) == BACKEND_READY);
        CHECK_EQ(bed_info(0).generation, i);
        for (uint32_t k = 1; k <= 4; k++) CHECK_OK(bed_submit(0, k, i, 100000000), bed.submit_err);
        BED_UNTIL(bed.streams[1].count > 0);
        kill(bed.guests[g], SIGSTOP);
        backend_drop(bed_rank(0), "the test drops it");
        kill(bed.guests[g], SIGCONT);
        bed.streams[1].count = 0;
    }
    BED_UNTIL(backend_state(bed_rank(0)) == BACKEND_READY);
    bed_tear_down();
}

TEST(a_worker_without_progress_is_hung_only_while_it_has_work) {
    char script[200], flag[256];
    bed_set_up(&(struct bed_setup){.ranks = 1, .progress_s = 1});
    bed_write_file("hang", "hang\n", script, sizeof script);
    snprintf(flag, sizeof flag, "--script=%s", script);
    bed_guest(flag, NULL);
    BED_UNTIL(backend_state(bed_rank(0)) == BACKEND_READY);
    uint64_t rooms = bed.rooms[0];
    BED_UNTIL(bed.rooms[0] >=
              rooms + 3); // three STATUS without a change, over two seconds: idle, not hung
    CHECK_EQ(bed.lost[0], 0);
    CHECK_OK(bed_submit(0, 1, 1, 10), bed.submit_err);
    BED_UNTIL(bed.lost[0] == 1);
    CHECK_HAS(bed.why[0], "hung: 1 streams and no progress");
    CHECK_EQ(bed.failed[0], 1);
    CHECK_EQ(bed.failure[0], BACKEND_FAILURE_HUNG);
    bed_tear_down();
}

TEST(a_worker_that_joins_and_stays_silent_is_hung) {
    bed_set_up(&(struct bed_setup){.ranks = 1, .progress_s = 1});
    bed_guest("--silent", NULL);
    BED_UNTIL(bed.lost[0] == 1);
    CHECK_HAS(bed.why[0], "no answer to PING");
    bed_tear_down();
}

// A start takes some milliseconds, which the clock of the tick that made it does not know of.
TEST(many_processes_started_in_one_tick_all_come_up_at_the_first_try) {
    bed_set_up(&(struct bed_setup){.ranks = 4, .spawn = true});
    for (uint32_t r = 0; r < 4; r++) BED_UNTIL(backend_state(bed_rank(r)) == BACKEND_READY);
    for (uint32_t r = 0; r < 4; r++) {
        CHECK_EQ(bed_info(r).restarts, 0);
        CHECK_EQ(bed_info(r).generation, 1);
    }
    bed_tear_down();
}

TEST(a_process_that_never_says_hello_is_killed) {
    bed_set_up(&(struct bed_setup){.ranks = 1, .spawn = true, .hello_s = 0.5, .flags = {"--mute"}});
    BED_UNTIL(backend_state(bed_rank(0)) == BACKEND_BACKOFF);
    CHECK_HAS(bed_info(0).reason, "no HELLO within 0.5 s");
    CHECK_EQ(bed.failure[0], BACKEND_FAILURE_START);
    bed_tear_down();
}

TEST(a_worker_that_exits_at_once_backs_off_with_its_reason) {
    bed_set_up(&(struct bed_setup){.ranks = 1, .spawn = true, .flags = {"--exit=7"}});
    BED_UNTIL(backend_state(bed_rank(0)) == BACKEND_BACKOFF && !bed_info(0).pid);
    CHECK_HAS(bed_info(0).reason, "exit code 7");
    CHECK_EQ(bed.failed[0], 1);
    CHECK_EQ(bed.failure[0], BACKEND_FAILURE_EXIT);
    CHECK_STR(bed_info(0).fault, "the model does not fit into memory");
    CHECK(backends_given_up(bed.set) == NULL); // it is started again
    BED_UNTIL(bed_info(0).restarts == 1);
    bed_tear_down();
}

TEST(case_41_a_worker_whose_device_fails_says_so_and_others_go_on) {
    bed_set_up(
        &(struct bed_setup){.ranks = 1, .guest_ranks = 1, .spawn = true, .flags = {"--exit=6"}});
    bed_guest("--rank=1", "--rate=50", NULL);
    BED_UNTIL(backend_state(bed_rank(1)) == BACKEND_READY);
    CHECK_OK(bed_submit(1, 1, 1, 1000000), bed.submit_err);
    BED_UNTIL(bed.failed[0] > 0);
    CHECK_STR(backend_failure_name(bed.failure[0]), "gpu_lost");
    CHECK_STR(bed_info(0).fault, "its device has failed");
    uint32_t before = bed.streams[1].count;
    BED_UNTIL(bed.streams[1].count > before);
    CHECK_EQ(bed.failed[1], 0);
    bed_tear_down();
}

// Another run of the same program would end the same way: it is not tried, and the router may give up.
TEST(an_exit_code_that_no_restart_can_mend_is_for_good) {
    static const struct {
        char *flag;
        const char *reason, *fault;
        uint32_t lost;
    } cases[] = {
        {"--exit=3", "the checkpoint cannot be loaded (exit code 3)",
         "the checkpoint cannot be loaded", 1},
        {"--exit=4", "it does not belong to this router (exit code 4)",
         "it does not belong to this router", 1},
        {"--no-such-flag", "its settings are refused (exit code 2)", "its settings are refused",
         0}, // no incarnation
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        bed_set_up(&(struct bed_setup){
            .ranks = 1, .guest_ranks = 1, .spawn = true, .flags = {cases[i].flag}});
        BED_UNTIL(backends_given_up(bed.set));
        CHECK_EQ(backend_state(bed_rank(0)), BACKEND_FAILED);
        CHECK_HAS(backends_given_up(bed.set), cases[i].reason);
        CHECK_STR(bed_info(0).fault, cases[i].fault);
        CHECK_EQ(bed_info(0).restarts, 0);
        CHECK_EQ(bed.lost[0], cases[i].lost);
        bed_guest("--rank=1", NULL); // somebody is there after all
        BED_UNTIL(backend_state(bed_rank(1)) == BACKEND_READY);
        CHECK(backends_given_up(bed.set) == NULL);
        bed_tear_down();
    }
}

TEST(room_is_what_status_said_less_what_it_did_not_know) {
    bed_set_up(&(struct bed_setup){.ranks = 1});
    bed_guest("--streams=2", "--rate=20", NULL);
    BED_UNTIL(backend_state(bed_rank(0)) == BACKEND_READY);
    CHECK_OK(bed_submit(0, 1, 1, 4), bed.submit_err);
    CHECK_OK(bed_submit(0, 2, 1, 4), bed.submit_err);
    CHECK_EQ(backend_room(bed_rank(0)), 0);
    CHECK_EQ(bed_submit(0, 3, 1, 4), ST_FULL);
    BED_UNTIL(bed.streams[1].done && bed.streams[2].done);
    BED_UNTIL(backend_room(bed_rank(0)) == 2);
    bed_tear_down();
}

TEST(a_failed_stream_gives_its_room_back) {
    char script[200], flag[256];
    bed_set_up(&(struct bed_setup){.ranks = 1});
    bed_write_file("fail", "fail full come later\nfail invalid top_k: no\nreply 1 2\n", script,
                   sizeof script);
    snprintf(flag, sizeof flag, "--script=%s", script);
    bed_guest(flag, NULL);
    BED_UNTIL(backend_state(bed_rank(0)) == BACKEND_READY);
    for (uint32_t i = 1; i <= 3; i++) CHECK_OK(bed_submit(0, i, 1, 10), bed.submit_err);
    BED_UNTIL(bed.streams[1].failed && bed.streams[2].failed && bed.streams[3].done);
    CHECK_EQ(bed.streams[1].code, FRAME_FAIL_FULL);
    CHECK_EQ(bed.streams[2].code, FRAME_FAIL_INVALID);
    CHECK_EQ(bed.streams[3].count, 2);
    CHECK_EQ(bed_info(0).streams_sent, 0);
    bed_tear_down();
}

// 2,000 clients that leave at once must leave nothing behind in the worker.
TEST(two_thousand_cancels_in_one_turn_all_arrive) {
    enum { N = 2000 };
    bed_set_up(&(struct bed_setup){.ranks = 1});
    bed_guest("--streams=2048", "--rate=1", NULL);
    BED_UNTIL(backend_state(bed_rank(0)) == BACKEND_READY);
    for (uint32_t i = 1; i <= N; i++) CHECK_OK(bed_submit(0, i, i, 100), bed.submit_err);
    for (uint32_t i = 1; i <= N; i++) backend_cancel(bed_rank(0), (struct frame_stream){i, i});
    for (uint32_t i = 1; i <= N; i++)
        backend_cancel(bed_rank(0), (struct frame_stream){i, i + 1}); // not a stream of ours
    BED_UNTIL(bed_info(0).streams_sent == 0);
    for (uint32_t i = 1; i <= N; i++) {
        CHECK_EQ(bed.streams[i].cancelled, 1);
        CHECK_EQ(bed.streams[i].done, 1);
    }
    BED_UNTIL(bed_info(0).status.streams_running == 0);
    bed_tear_down();
}

TEST(a_submit_larger_than_a_frame_or_over_the_queue_is_refused_and_harms_nothing) {
    bed_set_up(&(struct bed_setup){.ranks = 1});
    bed_guest("--streams=64", NULL);
    BED_UNTIL(backend_state(bed_rank(0)) == BACKEND_READY);
    uint32_t count = FRAME_PROMPT_IDS_MAX;
    uint32_t *ids = mem_calloc(count, sizeof *ids);
    struct frame_submit s = bed_request(1, 1, 1);
    s.prompt = s.given = (struct frame_ids){(uint8_t *)ids, count};
    CHECK_EQ(backend_submit(bed_rank(0), &s, &bed.submit_err), ST_FULL);
    CHECK_EQ(bed_info(0).streams_sent, 0);
    s.given.count = 0;
    int st = ST_OK;
    for (uint32_t i = 2; i < 60 && !st; i++) { // 4 MiB each, faster than any worker reads
        s.stream.id = i;
        st = backend_submit(bed_rank(0), &s, &bed.submit_err);
    }
    CHECK_EQ(st, ST_FULL);
    CHECK_HAS(bed.submit_err.msg, "wait to be sent");
    free(ids);
    BED_UNTIL(bed_info(0).streams_sent == 0); // those that were taken are answered
    bed_tear_down();
}

static int dial_lobby(void) {
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    snprintf(a.sun_path, sizeof a.sun_path, "%.100s", bed.lobby + strlen("ipc://"));
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    CHECK_EQ(connect(fd, (struct sockaddr *)&a, sizeof a), 0);
    return fd;
}

// Whoever can reach the socket may write anything to it, and leave at any moment.
TEST(the_lobby_survives_strangers) {
    static const struct {
        const char *bytes;
        size_t len;
        const char *answer; // the first bytes; NULL: hung up on
    } cases[] = {
        {"GET / HTTP/1.1\r\n\r\n", 18, NULL},                        // a length of half a gigabyte
        {"\xff\xff\xff\xff", 4, NULL},                               // and of four
        {"\x00\x00\x00\x00", 4, "\x95\x08\x00"},                     // FAIL
        {"\x03\x00\x00\x00\x92\x0c\x01", 7, "\x95\x08\x00"},         // a PING without its fields
        {"\x05\x00\x00\x00\xdd\x0f\xff\xff\xff", 9, "\x95\x08\x00"}, // 8 GB when unpacked
    };
    bed_set_up(&(struct bed_setup){.ranks = 1});
    struct stat sb;
    CHECK_EQ(stat(bed.lobby + strlen("ipc://"), &sb), 0);
    CHECK_EQ(sb.st_mode & 0777, 0600);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char got[64] = {0};
        int fd = dial_lobby();
        CHECK_EQ(write(fd, cases[i].bytes, cases[i].len), (ssize_t)cases[i].len);
        ssize_t n;
        while ((n = recv(fd, got, sizeof got, MSG_DONTWAIT)) < 0) uv_run(&bed.loop, UV_RUN_NOWAIT);
        CHECK_EQ(n > 7, cases[i].answer != NULL);
        if (cases[i].answer) CHECK_MEM(got + 4, cases[i].answer, 3);
        close(fd);
    }
    int half = dial_lobby(), silent = dial_lobby();
    CHECK_EQ(write(half, "\x40\x00\x00\x00\x99", 5), 5);
    for (int i = 0; i < 300; i++) { // gone before anybody looks, and while they do
        close(dial_lobby());
        if (i % 7 == 0) uv_run(&bed.loop, UV_RUN_NOWAIT);
    }
    bed_guest(NULL);
    BED_UNTIL(backend_state(bed_rank(0)) == BACKEND_READY);
    close(half);
    close(silent);
    bed_tear_down();
}

TEST(a_stranger_who_says_nothing_is_hung_up_on) {
    bed_set_up(&(struct bed_setup){.ranks = 1});
    int fd = dial_lobby();
    char c;
    ssize_t n = -1;
    BED_UNTIL((n = recv(fd, &c, 1, MSG_DONTWAIT)) == 0);
    close(fd);
    bed_tear_down();
}

TEST(the_socket_file_of_a_crashed_router_is_replaced) {
    char path[120];
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    bed_set_up(&(struct bed_setup){.ranks = 1});
    snprintf(path, sizeof path, "%.100s", bed.lobby + strlen("ipc://"));
    bed_tear_down();
    snprintf(a.sun_path, sizeof a.sun_path, "%.100s", path);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    CHECK_EQ(bind(fd, (struct sockaddr *)&a, sizeof a), 0);
    close(fd); // the file stays, as after a kill -9
    bed_set_up(&(struct bed_setup){.ranks = 1, .same_folder = true});
    bed_guest(NULL);
    BED_UNTIL(backend_state(bed_rank(0)) == BACKEND_READY);
    bed_tear_down();
}

TEST(a_second_router_in_the_same_folder_is_refused) {
    bed_set_up(&(struct bed_setup){.ranks = 1});
    struct backends *second = NULL;
    struct err e = {0};
    struct backends_config c = bed_config();
    CHECK_EQ(backends_new(&second, &c, &e), ST_IO);
    CHECK_HAS(e.msg, "lobby.sock");
    CHECK(second == NULL);
    bed_guest(NULL); // the first goes on
    BED_UNTIL(backend_state(bed_rank(0)) == BACKEND_READY);
    bed_tear_down();
}

TEST(a_folder_too_long_for_a_socket_path_is_refused_by_name) {
    struct err e = {0};
    char dir[120];
    memset(dir, 'd', sizeof dir - 1);
    dir[sizeof dir - 1] = '\0';
    struct backends *s = NULL;
    struct backends_config c = {.run_dir = dir, .ranks = 1};
    CHECK_EQ(backends_new(&s, &c, &e), ST_INVAL);
    CHECK_HAS(e.msg, "run.dir");
}

TEST(at_the_end_a_stubborn_process_is_killed_and_a_guest_dials_again) {
    bed_set_up(&(struct bed_setup){
        .ranks = 1, .guest_ranks = 1, .spawn = true, .flags = {"--mute"}, .hello_s = 60});
    int g = bed_guest(NULL);
    BED_UNTIL(backend_state(bed_rank(1)) == BACKEND_READY && bed_info(0).pid > 0);
    pid_t pid = (pid_t)bed_info(0).pid;
    backends_stop(bed.set, 0.3, bed_on_stopped, NULL);
    BED_UNTIL(bed.stopped);
    CHECK_EQ(kill(pid, 0), -1); // gone and reaped
    backends_free(bed.set);
    bed_close_loop();
    CHECK_EQ(kill(bed.guests[g], 0), 0); // still there
    pid_t waiting = bed.guests[g];
    bed_set_up(&(struct bed_setup){.ranks = 1, .same_folder = true}); // the next router
    bed.guests[0] = waiting;
    BED_UNTIL(backend_state(bed_rank(0)) == BACKEND_READY);
    bed_tear_down();
}
