/* The queue: order, fairness, bounds, and what a refused client is told. */
#include "common/err.h"
#include "router/queue.h"
#include "tests/lib/test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct queue_who nobody = {"", 1};

// An item that is a request of its own.
struct one {
    struct queue_item i;
    struct queue_ticket ticket;
};

static int add_in(struct queue *q, struct one *o, uint8_t lane, const struct queue_who *who,
                  int32_t priority, uint32_t tokens) {
    *o = (struct one){
        .i = {.ticket = &o->ticket, .lane = lane, .priority = priority, .tokens = tokens}};
    return queue_add(q, &o->i, who, 1);
}

static int add(struct queue *q, struct one *o, const struct queue_who *who, int32_t priority,
               uint32_t tokens) {
    return add_in(q, o, QUEUE_ANY, who, priority, tokens);
}

static void end(struct queue *q, struct one *o, size_t n) {
    for (size_t k = 0; k < n; k++) queue_forget(q, &o[k].i);
    CHECK_EQ(q->requests, 0);
    CHECK_EQ(q->items, 0);
    CHECK_EQ(q->tokens, 0);
    queue_fini(q);
}

TEST(lower_priority_numbers_go_first_and_equals_in_order) {
    struct queue q;
    queue_init(&q, 10, 1000);
    static const int32_t priorities[] = {0, 5, 0, -3, 5};
    static const int wanted[] = {3, 0, 2, 1, 4};
    struct one o[5];
    for (int k = 0; k < 5; k++) CHECK_EQ(add(&q, &o[k], &nobody, priorities[k], 1), ST_OK);
    for (int k = 0; k < 5; k++) {
        CHECK(queue_first(&q) == &o[wanted[k]].i);
        queue_remove(&q, queue_first(&q));
    }
    CHECK(queue_first(&q) == NULL);
    end(&q, o, 5);
}

TEST(over_a_bound_nothing_is_queued) {
    struct queue q;
    queue_init(&q, 2, 100);
    struct one a, b, c, d;
    CHECK_EQ(add(&q, &a, &nobody, 0, 60), ST_OK);
    CHECK_EQ(add(&q, &b, &nobody, 0, 41), ST_FULL); // tokens
    CHECK(!b.i.queued);
    CHECK_EQ(add(&q, &c, &nobody, 0, 40), ST_OK);
    CHECK_EQ(add(&q, &d, &nobody, 0, 0), ST_FULL); // requests
    queue_remove(&q, &a.i);
    queue_remove(&q, &a.i); // twice is fine
    CHECK_EQ(add(&q, &d, &nobody, 0, 0), ST_OK);
    CHECK_EQ(q.tokens, 40);
    queue_forget(&q, &a.i);
    queue_forget(&q, &c.i);
    end(&q, &d, 1);
}

TEST(a_request_of_many_choices_is_one_request) {
    struct queue q;
    queue_init(&q, 2, 100);
    struct queue_ticket many = {0};
    struct queue_item items[5];
    for (int k = 0; k < 5; k++)
        items[k] = (struct queue_item){.ticket = &many, .tokens = k ? 0 : 9};
    CHECK_EQ(queue_add(&q, &items[0], &nobody, 1), ST_OK);
    for (int k = 1; k < 5; k++) queue_follow(&q, &items[k], &nobody, 1);
    CHECK_EQ(q.requests, 1);
    CHECK_EQ(q.items, 5);
    struct one other;
    CHECK_EQ(add(&q, &other, &nobody, 0, 1), ST_OK);
    for (int k = 0; k < 4; k++) queue_left(&q, &items[k], 2);
    CHECK_EQ(q.requests, 2); // its last choice still waits
    queue_left(&q, &items[4], 2);
    CHECK_EQ(q.requests, 1);
    for (int k = 0; k < 5; k++) queue_forget(&q, &items[k]);
    end(&q, &other, 1);
}

// Else a prompt longer than the bound could never be served, however idle the server.
TEST(a_prompt_over_the_token_bound_gets_in_when_nothing_waits) {
    struct queue q;
    queue_init(&q, 2, 100);
    struct one a, b;
    CHECK_EQ(add(&q, &a, &nobody, 0, 500), ST_OK);
    CHECK_EQ(add(&q, &b, &nobody, 0, 1), ST_FULL);
    end(&q, &a, 1);
}

TEST(one_that_comes_back_is_first_of_its_priority_and_never_refused) {
    struct queue q;
    queue_init(&q, 3, 100);
    struct one o[4];
    for (int k = 0; k < 3; k++) CHECK_EQ(add(&q, &o[k], &nobody, k == 2 ? -1 : 0, 1), ST_OK);
    queue_left(&q, &o[2].i, 1); // the urgent one
    queue_left(&q, &o[0].i, 1);
    CHECK_EQ(add(&q, &o[3], &nobody, 0, 1), ST_OK);
    o[0].i.since_ms = 7;
    queue_add_front(&q, &o[0].i);
    CHECK(queue_first(&q) == &o[0].i);
    CHECK_EQ(o[0].i.since_ms, 7);
    queue_add_front(&q, &o[2].i);
    CHECK(queue_first(&q) == &o[2].i);
    CHECK_EQ(q.requests, 4);
    queue_remove(&q, &o[2].i);
    CHECK(queue_first(&q) == &o[0].i);
    queue_remove(&q, &o[0].i);
    CHECK(queue_first(&q) == &o[1].i);
    end(&q, o, 4);
}

// One that waits for a worker of its kind must not hold up those behind it.
TEST(those_passed_over_are_asked_again_in_the_next_pass_only) {
    struct queue q;
    queue_init(&q, 9, 100);
    struct one o[4];
    for (int k = 0; k < 4; k++) CHECK_EQ(add(&q, &o[k], &nobody, 0, 1), ST_OK);
    for (int k = 2; k >= 1; k--) {
        queue_left(&q, &o[k].i, 1);
        o[k].i.lane = QUEUE_LOOSE;
        queue_add_front(&q, &o[k].i);
    }
    for (int pass = 0; pass < 2; pass++) {
        static const int wanted[] = {1, 2, 0};
        queue_begin(&q);
        for (int k = 0; k < 3; k++) {
            CHECK(queue_first(&q) == &o[wanted[k]].i);
            queue_pass(&q, &o[wanted[k]].i);
        }
        CHECK(queue_first(&q) == NULL); // o[3] shares its lane with o[0]
    }
    queue_remove(&q, &o[1].i); // passed over, and then gone
    queue_begin(&q);
    CHECK(queue_first(&q) == &o[2].i);
    end(&q, o, 4);
}

TEST(a_worker_that_is_full_holds_up_those_that_wait_for_it_alone) {
    struct queue q;
    queue_init(&q, 9, 100);
    struct one o[5];
    static const uint8_t lanes[] = {QUEUE_WORKER + 1, QUEUE_WORKER + 1, QUEUE_WORKER, QUEUE_ANY,
                                    QUEUE_WORKER + 1};
    for (int k = 0; k < 5; k++) CHECK_EQ(add_in(&q, &o[k], lanes[k], &nobody, 0, 1), ST_OK);
    CHECK(queue_first(&q) == &o[0].i);
    queue_pass(&q, &o[0].i);
    CHECK(queue_first(&q) == &o[2].i);
    queue_left(&q, &o[2].i, 1);
    CHECK(queue_first(&q) == &o[3].i);
    queue_left(&q, &o[3].i, 1);
    CHECK(queue_first(&q) == NULL);
    queue_begin(&q);
    static const int wanted[] = {0, 1, 4};
    for (int k = 0; k < 3; k++) {
        CHECK(queue_first(&q) == &o[wanted[k]].i);
        queue_left(&q, &o[wanted[k]].i, 1);
    }
    end(&q, o, 5);
}

/* ---- what it costs ---- */

// Comparisons of a pass that takes 10 for any worker out of a queue where `pinned` wait for a full one, each of a key of
// its own or all of one, and for each of the 10 charges its key for output.
static uint64_t cost(int pinned, bool own_keys) {
    static struct one o[4000];
    struct queue q;
    queue_init(&q, 5000, 1000000);
    for (int k = 0; k < pinned + 10; k++) {
        bool is_pinned = k < pinned;
        char name[QUEUE_GROUP_NAME_BYTES];
        snprintf(name, sizeof name, "key%d", own_keys && is_pinned ? k : 0);
        struct queue_who who = {name, 1};
        uint8_t lane = is_pinned ? QUEUE_WORKER : QUEUE_ANY;
        CHECK_EQ(add_in(&q, &o[k], lane, &who, 0, 10), ST_OK);
    }
    queue_begin(&q);
    queue_pass(&q, queue_first(&q));
    queue_charge(&q, &o[0].i, 1); // settles what the heaps have put off
    uint64_t before = q.compared;
    for (int k = 0; k < 10; k++) {
        struct queue_item *i = queue_first(&q);
        CHECK(i == &o[pinned + k].i);
        queue_left(&q, i, 1);
        queue_charge(&q, i, 1);
    }
    CHECK(queue_first(&q) == NULL);
    uint64_t ret = q.compared - before;
    end(&q, o, (size_t)pinned + 10);
    return ret;
}

// Each would be looked at for each of the others, were it looked at in the pass at all.
TEST(those_that_wait_for_a_full_worker_cost_the_others_nothing) {
    for (int own_keys = 0; own_keys < 2; own_keys++) {
        uint64_t few = cost(10, own_keys), many = cost(3900, own_keys);
        CHECK(many <= few + 10 * 20 * 12); // 12: log2 of 3,900, as a heap may cost; not 3,900
    }
}

/* ---- the order, held against the plainest way of finding it ---- */

enum { CROWD = 60, KEYS = 5 };

struct model { // what this test knows of an item and its key
    bool waits, back, charged;
    bool passed; // of QUEUE_LOOSE
    int32_t priority;
    uint8_t lane;
    int key;
    uint64_t came;
};

struct crowd {
    struct queue q;
    struct one o[CROWD];
    struct model m[CROWD];
    bool lane_passed[QUEUE_LANES];
    double account[KEYS], served_at;
    uint64_t came;
};

static bool sooner(const struct crowd *c, int a, int b) {
    const struct model *x = &c->m[a], *y = &c->m[b];
    if (x->priority != y->priority) return x->priority < y->priority;
    if (x->back != y->back) return x->back;
    if (x->back) return x->came > y->came;
    if (x->key == y->key) return x->came < y->came;
    double i = c->account[x->key], k = c->account[y->key];
    return i < k || (!(i > k) && x->key < y->key);
}

static int expected(const struct crowd *c) {
    int best = -1;
    for (int k = 0; k < CROWD; k++)
        if (c->m[k].waits && !c->m[k].passed && !c->lane_passed[c->m[k].lane] &&
            (best < 0 || sooner(c, k, best)))
            best = k;
    return best;
}

static const uint32_t key_weights[KEYS] = {1, 3, 1, 2, 7};

static void crowd_add(struct crowd *c, int k) {
    struct model *m = &c->m[k];
    bool alone = true;
    *m = (struct model){
        .waits = true, .key = rand() % KEYS, .priority = rand() % 3, .came = c->came++};
    m->lane = (uint8_t[]){QUEUE_ANY, QUEUE_WORKER, QUEUE_WORKER + 7}[rand() % 3];
    for (int i = 0; i < CROWD; i++)
        alone &= i == k || !c->m[i].waits || c->m[i].back || c->m[i].key != m->key;
    if (alone && c->account[m->key] < c->served_at) c->account[m->key] = c->served_at;
    struct queue_who who = {(char[]){(char)('a' + m->key), '\0'}, key_weights[m->key]};
    CHECK_EQ(add_in(&c->q, &c->o[k], m->lane, &who, m->priority, 10), ST_OK);
}

static void crowd_charge(struct crowd *c, int k, uint64_t tokens) {
    c->account[c->m[k].key] += (double)tokens / key_weights[c->m[k].key];
}

static void crowd_leave(struct crowd *c, int k) {
    struct model *m = &c->m[k];
    m->waits = false;
    if (!m->charged) {
        if (c->account[m->key] > c->served_at) c->served_at = c->account[m->key];
        crowd_charge(c, k, 10);
    }
    m->charged = true;
    queue_left(&c->q, &c->o[k].i, 1);
}

static void crowd_return(struct crowd *c, int k) {
    struct model *m = &c->m[k];
    if (rand() % 2) m->lane = QUEUE_LOOSE;
    m->waits = m->back = true;
    m->came = c->came++;
    m->passed = false;
    c->o[k].i.lane = m->lane;
    queue_add_front(&c->q, &c->o[k].i);
}

static void crowd_pass(struct crowd *c, int k) {
    struct model *m = &c->m[k];
    *(m->lane == QUEUE_LOOSE ? &m->passed : &c->lane_passed[m->lane]) = true;
    queue_pass(&c->q, &c->o[k].i);
}

static void crowd_begin(struct crowd *c) {
    for (int i = 0; i < CROWD; i++) c->m[i].passed = false;
    memset(c->lane_passed, 0, sizeof c->lane_passed);
    queue_begin(&c->q);
}

static void crowd_step(struct crowd *c) {
    int k = rand() % CROWD, first = expected(c);
    if (rand() % 5 == 0) {
        crowd_begin(c);
    } else if (rand() % 2 && first >= 0) {
        if (rand() % 2)
            crowd_pass(c, first);
        else
            crowd_leave(c, first);
    } else if (c->m[k].waits) {
        if (rand() % 4) return;
        c->m[k].waits = false;
        queue_forget(&c->q, &c->o[k].i);
    } else if (c->o[k].i.group && rand() % 2) {
        if (rand() % 2) crowd_return(c, k);
        crowd_charge(c, k, 3);
        queue_charge(&c->q, &c->o[k].i, 3);
    } else {
        queue_forget(&c->q, &c->o[k].i);
        crowd_add(c, k);
    }
}

// By priority, what came back first, then the key that has had least, then order: in 40,000 steps of all that can happen.
TEST(whatever_happens_the_next_is_the_one_that_a_look_at_all_of_them_finds) {
    static struct crowd c;
    queue_init(&c.q, CROWD, 100000);
    srand(7);
    for (int key = 0; key < KEYS; key++) { // in the order of their letters, as `sooner` has it
        struct one o;
        struct queue_who who = {(char[]){(char)('a' + key), '\0'}, 1};
        CHECK_EQ(add(&c.q, &o, &who, 0, 1), ST_OK);
        queue_forget(&c.q, &o.i);
    }
    crowd_begin(&c);
    for (int step = 0; step < 40000; step++) {
        crowd_step(&c);
        int wanted = expected(&c);
        struct queue_item *found = queue_first(&c.q);
        if (found == (wanted < 0 ? NULL : &c.o[wanted].i)) continue;
        CHECK_EQ(found ? (int)((struct one *)found - c.o) : -1, wanted);
        break;
    }
    end(&c.q, c.o, CROWD);
}

/* ---- beside one another ---- */

// Serves all that waits; each makes `output` tokens. The groups' initials, in order.
static void serve(struct queue *q, struct one *o, const char *initials, uint64_t output,
                  char *ret) {
    struct queue_item *i;
    while ((i = queue_first(q))) {
        *ret++ = initials[(struct one *)i - o];
        queue_left(q, i, 1);
        queue_charge(q, i, output);
    }
    *ret = '\0';
}

TEST(a_key_with_many_requests_does_not_hold_up_another) {
    struct queue q;
    queue_init(&q, 100, 100000);
    struct queue_who a = {"a", 1}, b = {"b", 1};
    struct one o[8];
    char order[9];
    for (int k = 0; k < 6; k++) CHECK_EQ(add(&q, &o[k], &a, 0, 10), ST_OK);
    for (int k = 6; k < 8; k++) CHECK_EQ(add(&q, &o[k], &b, 0, 10), ST_OK);
    serve(&q, o, "aaaaaabb", 5, order);
    CHECK_STR(order, "ababaaaa");
    end(&q, o, 8);
}

TEST(weights_share_tokens_and_output_counts) {
    struct queue q;
    queue_init(&q, 100, 100000);
    struct queue_who a = {"a", 3}, b = {"b", 1};
    struct one o[12];
    char order[13];
    for (int k = 0; k < 12; k++) CHECK_EQ(add(&q, &o[k], k < 8 ? &a : &b, 0, 10), ST_OK);
    serve(&q, o, "aaaaaaaabbbb", 20, order);
    CHECK_STR(order, "abaaabaaabab"); // three of a for one of b
    end(&q, o, 12);
    queue_init(&q, 100, 100000);
    struct one p[6];
    a.weight = 1;
    for (int k = 0; k < 6; k++)
        CHECK_EQ(add(&q, &p[k], k < 4 ? &a : &b, 0, k < 4 ? 10 : 40), ST_OK);
    serve(&q, p, "aaaabb", 0, order);
    CHECK_STR(order, "abaaab"); // b's prompts are four times as long
    end(&q, p, 6);
}

TEST(priority_goes_before_fairness_and_no_key_overtakes_itself) {
    struct queue q;
    queue_init(&q, 100, 100000);
    struct queue_who a = {"a", 1}, b = {"b", 1};
    struct one o[5];
    char order[6];
    CHECK_EQ(add(&q, &o[0], &b, 0, 10), ST_OK);
    for (int k = 1; k < 4; k++) CHECK_EQ(add(&q, &o[k], &a, -1, 10), ST_OK);
    CHECK_EQ(add(&q, &o[4], &a, 0, 10), ST_OK);
    serve(&q, o, "B123a", 0, order);
    CHECK_STR(order, "123Ba");
    end(&q, o, 5);
}

// Who was away has not saved up: it comes in beside the others.
TEST(a_key_that_was_idle_gets_its_share_and_no_more) {
    struct queue q;
    queue_init(&q, 100, 100000);
    struct queue_who a = {"a", 1}, b = {"b", 1};
    struct one o[20];
    char order[21];
    CHECK_EQ(add(&q, &o[0], &b, 0, 10), ST_OK); // known, then away
    for (int k = 1; k < 10; k++) CHECK_EQ(add(&q, &o[k], &a, 0, 10), ST_OK);
    serve(&q, o, "baaaaaaaaa", 90, order);
    for (int k = 10; k < 14; k++) CHECK_EQ(add(&q, &o[k], &a, 0, 10), ST_OK);
    for (int k = 14; k < 18; k++) CHECK_EQ(add(&q, &o[k], &b, 0, 10), ST_OK);
    serve(&q, o, "----------aaaabbbb", 90, order);
    CHECK_STR(order, "bbababaa"); // one for what the last of a made since it was placed
    end(&q, o, 18);
}

TEST(idle_groups_are_forgotten_past_a_bound) {
    struct queue q;
    queue_init(&q, 100, 100000);
    for (int k = 0; k < 3 * QUEUE_GROUPS_MAX; k++) {
        char name[QUEUE_GROUP_NAME_BYTES];
        snprintf(name, sizeof name, "key%d", k);
        struct queue_who who = {name, 1};
        struct one o;
        CHECK_EQ(add(&q, &o, &who, 0, 1), ST_OK);
        queue_left(&q, &o.i, 1);
        queue_forget(&q, &o.i);
        CHECK(q.group_count <= QUEUE_GROUPS_MAX);
    }
    queue_fini(&q);
}

TEST(the_retry_time_follows_the_measured_rate_within_1_and_60_s) {
    struct queue q;
    queue_init(&q, 100, 1000);
    struct one o[40], gone;
    CHECK_EQ(queue_wait_s(&q), 0);
    for (int k = 0; k < 40; k++) CHECK_EQ(add(&q, &o[k], &nobody, 0, 1), ST_OK);
    CHECK_EQ(add(&q, &gone, &nobody, 0, 1), ST_OK);
    queue_remove(&q, &gone.i);
    for (uint64_t t = 1000; t <= 20000; t += 500) queue_left(&q, &gone.i, t); // two a second
    CHECK_NEAR(queue_wait_s(&q), 20, 0.01);
    uint32_t low = queue_retry_ms(&q, 0), high = queue_retry_ms(&q, UINT64_MAX);
    CHECK_NEAR(low, 16000, 20);
    CHECK_NEAR(high, 24000, 20);
    for (uint64_t t = 30000; t <= 3000000; t += 10000) queue_left(&q, &gone.i, t);
    CHECK_EQ(queue_retry_ms(&q, 0), 60000);
    queue_forget(&q, &gone.i);
    end(&q, o, 40);
    struct queue empty;
    queue_init(&empty, 1, 1);
    CHECK_EQ(queue_retry_ms(&empty, 0), 1000);
}
