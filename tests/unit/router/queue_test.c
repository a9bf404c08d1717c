/* The queue: order, bounds, and what a refused client is told. */
#include "common/err.h"
#include "router/queue.h"
#include "tests/lib/test.h"

static struct queue_item item(int32_t priority, uint32_t tokens) {
    return (struct queue_item){.priority = priority, .tokens = tokens};
}

TEST(lower_priority_numbers_go_first_and_equals_in_order) {
    struct queue q;
    queue_init(&q, 10, 1000);
    struct queue_item i[] = {item(0, 1), item(5, 1), item(0, 1), item(-3, 1), item(5, 1)};
    static const int wanted[] = {3, 0, 2, 1, 4};
    for (int k = 0; k < 5; k++) CHECK_EQ(queue_add(&q, &i[k], 100), ST_OK);
    for (int k = 0; k < 5; k++) {
        CHECK(queue_first(&q) == &i[wanted[k]]);
        queue_remove(&q, queue_first(&q));
    }
    CHECK(queue_first(&q) == NULL);
    CHECK_EQ(q.requests, 0);
    CHECK_EQ(q.tokens, 0);
}

TEST(over_a_bound_nothing_is_queued) {
    struct queue q;
    queue_init(&q, 2, 100);
    struct queue_item a = item(0, 60), b = item(0, 41), c = item(0, 40), d = item(0, 0);
    CHECK_EQ(queue_add(&q, &a, 1), ST_OK);
    CHECK_EQ(queue_add(&q, &b, 1), ST_FULL); // tokens
    CHECK(!b.queued);
    CHECK_EQ(queue_add(&q, &c, 1), ST_OK);
    CHECK_EQ(queue_add(&q, &d, 1), ST_FULL); // requests
    queue_remove(&q, &a);
    queue_remove(&q, &a); // twice is fine
    CHECK_EQ(queue_add(&q, &d, 1), ST_OK);
    CHECK_EQ(q.tokens, 40);
}

// Else a prompt longer than the bound could never be served, however idle the server.
TEST(a_prompt_over_the_token_bound_gets_in_when_nothing_waits) {
    struct queue q;
    queue_init(&q, 2, 100);
    struct queue_item a = item(0, 500), b = item(0, 1);
    CHECK_EQ(queue_add(&q, &a, 1), ST_OK);
    CHECK_EQ(queue_add(&q, &b, 1), ST_FULL);
}

TEST(one_that_comes_back_is_first_of_its_priority_and_never_refused) {
    struct queue q;
    queue_init(&q, 2, 100);
    struct queue_item a = item(0, 1), b = item(0, 1), back = item(0, 1), urgent = item(-1, 1);
    CHECK_EQ(queue_add(&q, &a, 1), ST_OK);
    CHECK_EQ(queue_add(&q, &b, 1), ST_OK);
    back.since_ms = 7;
    queue_add_front(&q, &back);
    CHECK(queue_first(&q) == &back);
    CHECK_EQ(back.since_ms, 7);
    queue_add_front(&q, &urgent);
    CHECK(queue_first(&q) == &urgent);
    queue_remove(&q, &urgent);
    CHECK(queue_first(&q) == &back);
    CHECK_EQ(q.requests, 3);
}

TEST(the_retry_time_follows_the_measured_rate_within_1_and_60_s) {
    struct queue q;
    queue_init(&q, 100, 1000);
    struct queue_item i[40];
    CHECK_EQ(queue_wait_s(&q), 0);
    for (int k = 0; k < 40; k++) {
        i[k] = item(0, 1);
        CHECK_EQ(queue_add(&q, &i[k], 1), ST_OK);
    }
    for (uint64_t t = 1000; t <= 20000; t += 500) queue_left(&q, t); // two a second
    CHECK_NEAR(queue_wait_s(&q), 20, 0.01);
    uint32_t low = queue_retry_ms(&q, 0), high = queue_retry_ms(&q, UINT64_MAX);
    CHECK_NEAR(low, 16000, 20);
    CHECK_NEAR(high, 24000, 20);
    for (uint64_t t = 30000; t <= 3000000; t += 10000) queue_left(&q, t);
    CHECK_EQ(queue_retry_ms(&q, 0), 60000);
    struct queue empty;
    queue_init(&empty, 1, 1);
    CHECK_EQ(queue_retry_ms(&empty, 0), 1000);
}
