/* Which worker: one that can, the soonest, the lowest rank. */
#include "router/pick.h"
#include "tests/lib/test.h"

static const struct pick_worker idle = {
    .ready = true, .room = 4, .fill_tokens_per_s = 1000, .round_ms = 10};

static int pick_for(const struct pick_worker *w, uint32_t count, uint32_t tokens) {
    bool by_affinity;
    int rank = pick(w, count, &(struct pick_request){.prompt_tokens = tokens}, &by_affinity);
    CHECK(!by_affinity);
    return rank;
}

TEST(only_ready_workers_with_room_are_picked) {
    struct pick_worker w[3] = {idle, idle, idle};
    w[0].ready = false;
    w[1].room = 0;
    CHECK_EQ(pick_for(w, 3, 100), 2);
    w[2].ready = false;
    CHECK_EQ(pick_for(w, 3, 100), -1);
    CHECK_EQ(pick_for(w, 0, 100), -1);
}

TEST(ties_go_to_the_lowest_rank) {
    struct pick_worker w[3] = {idle, idle, idle};
    CHECK_EQ(pick_for(w, 3, 100), 0);
}

TEST(unfilled_prompts_and_running_streams_count_as_work) {
    struct pick_worker w[2] = {idle, idle};
    w[0].streams = 1;
    CHECK_EQ(pick_for(w, 2, 10), 1);
    w[1].unfilled_tokens = 5000; // 5 s against one round
    CHECK_EQ(pick_for(w, 2, 10), 0);
    w[0].streams = 1000; // 10 s
    CHECK_EQ(pick_for(w, 2, 10), 1);
}

TEST(a_faster_worker_wins_a_long_prompt) {
    struct pick_worker w[2] = {idle, idle};
    w[1].fill_tokens_per_s = 8000;
    w[1].streams = 3;
    CHECK_EQ(pick_for(w, 2, 8000), 1);
    CHECK_EQ(pick_for(w, 2, 10), 0);
}

TEST(a_worker_that_has_not_measured_itself_can_be_picked) {
    struct pick_worker w[1] = {{.ready = true, .room = 1}};
    CHECK_EQ(pick_for(w, 1, 1000), 0);
}

/* A worker that has just joined would look slow by a fixed guess, and everything would pile up on the old one. */
TEST(a_new_worker_is_taken_to_be_as_fast_as_the_others) {
    struct pick_worker w[2] = {idle, {.ready = true, .room = 4}};
    w[0].fill_tokens_per_s = 100000;
    w[0].round_ms = 0.1;
    w[0].streams = 1;
    CHECK_EQ(pick_for(w, 2, 50), 1);
    w[1].streams = 2;
    CHECK_EQ(pick_for(w, 2, 50), 0);
}

/* Equal keys should meet where their prefix is kept, and one worker less should not move the others' keys. */
TEST(of_equals_the_affinity_decides_and_stays_when_another_goes) {
    struct pick_worker w[4] = {idle, idle, idle, idle};
    int count[4] = {0};
    bool by;
    for (uint64_t key = 1; key <= 400; key++) {
        struct pick_request r = {.prompt_tokens = 100, .affinity = key * 0x9e3779b97f4a7c15u};
        int first = pick(w, 4, &r, &by);
        CHECK(by);
        CHECK_EQ(pick(w, 4, &r, &by), first);
        count[first]++;
        int gone = (first + 1) % 4;
        w[gone].ready = false;
        CHECK_EQ(pick(w, 4, &r, &by), first);
        w[gone].ready = true;
        w[first].streams = 1; // no tie any more: the load decides
        CHECK(pick(w, 4, &r, &by) != first);
        w[first].streams = 0;
    }
    for (int i = 0; i < 4; i++) CHECK(count[i] > 60); // of 100
    struct pick_request r = {.prompt_tokens = 100, .affinity = 7};
    w[2].room = w[1].room = w[0].room = 0;
    CHECK_EQ(pick(w, 4, &r, &by), 3);
    CHECK(!by);
}
