/* restart: the waits between starts, and when to give up. */
#include "router/restart.h"
#include "tests/lib/test.h"

enum { SECOND = 1000, MINUTE = 60 * SECOND };

TEST(the_wait_doubles_and_the_fifth_failure_in_ten_minutes_is_the_last) {
    struct restart r = {0};
    uint64_t now = 5 * MINUTE, delay = 0;
    for (uint64_t want = 1; want <= 8; want *= 2) {
        CHECK(restart_after_failure(&r, now, now - 100, &delay));
        CHECK_EQ(delay, want * SECOND);
        now += delay + 100;
    }
    CHECK(!restart_after_failure(&r, now, now - 100, &delay));
    CHECK(!restart_after_failure(&r, now + 1, now, &delay)); // and stays so while they are recent
}

TEST(slow_failures_wait_up_to_a_minute_and_never_end) {
    struct restart r = {0};
    uint64_t now = 0, delay = 0;
    uint64_t wants[] = {1, 2, 4, 8, 16, 32, 60, 60, 60};
    for (size_t i = 0; i < sizeof wants / sizeof wants[0]; i++) {
        now += 3 * MINUTE; // four of them in ten minutes
        CHECK(restart_after_failure(&r, now, now - 2 * MINUTE, &delay));
        CHECK_EQ(delay, wants[i] * SECOND);
    }
}

TEST(a_long_healthy_run_forgets_what_was) {
    struct restart r = {0};
    uint64_t delay = 0;
    for (uint64_t i = 0; i < 4; i++) CHECK(restart_after_failure(&r, i * SECOND, 0, &delay));
    CHECK_EQ(delay, 8 * SECOND);
    CHECK(restart_after_failure(&r, 60 * MINUTE, 1 * MINUTE, &delay));
    CHECK_EQ(delay, 1 * SECOND);
}

TEST(a_reset_by_the_operator_forgets_what_was) {
    struct restart r = {0};
    uint64_t delay = 0;
    for (uint64_t i = 0; i < 5; i++) restart_after_failure(&r, i, 0, &delay);
    CHECK(!restart_after_failure(&r, 6, 0, &delay));
    restart_reset(&r);
    CHECK(restart_after_failure(&r, 7, 0, &delay));
    CHECK_EQ(delay, 1 * SECOND);
}
