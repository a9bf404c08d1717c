/* health: hung workers are found, healthy ones are left alone, by a clock that the test moves. */
#include "router/health.h"
#include "tests/lib/test.h"

enum { TICK = 200, SECOND = 1000, MINUTE = 60 * SECOND, PROGRESS = 10 * SECOND };

static char reason[128];

static bool hung(const struct health *h, uint32_t streams, uint64_t limit, uint64_t now) {
    reason[0] = '\0';
    return health_hung(h, streams, limit, now, reason, sizeof reason);
}

TEST(a_worker_that_answers_and_moves_within_the_limit_is_never_hung) {
    struct health h;
    uint64_t limit = health_limit_ms(PROGRESS / SECOND, 0), asked = 0;
    health_reset(&h, 0);
    // Ten minutes: the slowest answers and rounds that are still in time, PINGs one behind the other.
    for (uint64_t now = TICK; now <= 10 * MINUTE; now += TICK) {
        if (now - h.last_ping_ms >= SECOND && h.ping_seq == h.pong_seq)
            health_pinged(&h, asked = now);
        if (now - asked == limit) health_ponged(&h, h.ping_seq);
        if (now - h.progress_ms == limit) h.progress_ms = now;
        CHECK(!hung(&h, 3, limit, now));
    }
    CHECK(h.pong_seq > 50);
}

TEST(work_that_stands_still_a_moment_longer_is_hung) {
    struct health h;
    health_reset(&h, 5 * MINUTE);
    CHECK(!hung(&h, 2, PROGRESS, 5 * MINUTE + PROGRESS));
    CHECK(hung(&h, 2, PROGRESS, 5 * MINUTE + PROGRESS + 1));
    CHECK_STR(reason, "hung: 2 streams and no progress for 10001 ms");
    CHECK(!hung(&h, 0, PROGRESS, 60 * MINUTE)); // nothing to work on
}

TEST(the_oldest_unanswered_ping_counts_and_late_or_invented_answers_do_not) {
    struct health h;
    health_reset(&h, 0);
    for (uint64_t now = SECOND; now <= 8 * SECOND; now += SECOND) health_pinged(&h, now);
    health_ponged(&h, 9); // never sent
    CHECK_EQ_U64(h.pong_seq, 0);
    CHECK(!hung(&h, 0, PROGRESS, SECOND + PROGRESS));
    CHECK(hung(&h, 0, PROGRESS, SECOND + PROGRESS + 1));
    CHECK_STR(reason, "hung: no answer to PING for 10001 ms");
    health_ponged(&h, 8);
    health_ponged(&h, 3); // an old one, late
    CHECK(!hung(&h, 0, PROGRESS, 60 * MINUTE));
    health_pinged(&h, 60 * MINUTE);
    CHECK(!hung(&h, 0, PROGRESS, 60 * MINUTE + PROGRESS));
    CHECK(hung(&h, 0, PROGRESS, 60 * MINUTE + PROGRESS + 1));
}

TEST(the_limit_grows_with_the_rounds_that_a_worker_reports) {
    CHECK_EQ_U64(health_limit_ms(10, 0), 10000);
    CHECK_EQ_U64(health_limit_ms(10, 250), 10500);
    CHECK_EQ_U64(health_limit_ms(10, 20000), 50000); // a chunk of a long prompt
    CHECK_EQ_U64(health_limit_ms(10, 1e300), 2010000);
    struct health h;
    health_reset(&h, 0);
    CHECK(hung(&h, 1, health_limit_ms(10, 250), 45 * SECOND));
    CHECK(!hung(&h, 1, health_limit_ms(10, 20000), 45 * SECOND));
}

TEST(time_in_which_the_loop_stood_still_blames_nobody) {
    struct health h;
    uint64_t clock = 0, machine = 7 * MINUTE;
    health_reset(&h, clock);
    health_pinged(&h, clock);
    for (uint32_t i = 0; i < 20; i++) { // twenty stalls of half a minute
        clock = health_clock(clock, machine, machine + MINUTE / 2, TICK);
        machine += MINUTE / 2;
        CHECK(!hung(&h, 1, PROGRESS, clock));
    }
    CHECK_EQ_U64(clock, 20 * 2 * TICK);
    for (uint32_t i = 0; i < 11 * SECOND / TICK;
         i++) { // then it turns, and the worker is still silent
        clock = health_clock(clock, machine, machine + TICK, TICK);
        machine += TICK;
    }
    CHECK(hung(&h, 1, PROGRESS, clock));
}
