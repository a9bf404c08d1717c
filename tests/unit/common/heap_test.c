/* The heap: its first is the least, whatever is added, taken out or moved, and no order of those makes it slow. */
#include "common/heap.h"
#include "tests/lib/test.h"

#include <stddef.h>
#include <stdlib.h>

enum { NODES = 200 };

struct thing {
    struct heap_node node;
    uint32_t key, idx; // idx makes keys different
    bool in;
};

static struct thing *thing_of(struct heap_node *n) {
    return (struct thing *)((char *)n - offsetof(struct thing, node));
}

static bool before(const struct heap_node *a, const struct heap_node *b) {
    const struct thing *x = (const struct thing *)((const char *)a - offsetof(struct thing, node));
    const struct thing *y = (const struct thing *)((const char *)b - offsetof(struct thing, node));
    return x->key != y->key ? x->key < y->key : x->idx < y->idx;
}

static struct thing *least(struct thing *t) {
    struct thing *best = NULL;
    for (uint32_t i = 0; i < NODES; i++)
        if (t[i].in && (!best || before(&t[i].node, &best->node))) best = &t[i];
    return best;
}

TEST(its_first_is_the_least_whatever_was_done) {
    struct heap h;
    struct thing t[NODES];
    heap_init(&h, before, NULL);
    for (uint32_t i = 0; i < NODES; i++) t[i] = (struct thing){.idx = i};
    srand(1);
    for (int step = 0; step < 40000; step++) {
        struct thing *x = &t[rand() % NODES];
        uint32_t key = (uint32_t)rand() % 50;
        if (!x->in) {
            x->key = key;
            heap_add(&h, &x->node);
            x->in = true;
        } else if (rand() % 3) {
            heap_remove(&h, &x->node);
            x->in = false;
        } else {
            x->key = key;
            heap_moved(&h, &x->node);
        }
        struct heap_node *first = heap_first(&h);
        struct thing *wanted = least(t);
        if (first != (wanted ? &wanted->node : NULL)) {
            CHECK_EQ(first ? (int)thing_of(first)->idx : -1, wanted ? (int)wanted->idx : -1);
            return;
        }
    }
    CHECK(heap_first(&h) != NULL);
}

// Of one that grows with the square, the second figure would be a hundred times the first.
TEST(ten_times_as_many_cost_little_more_than_ten_times_as_much) {
    static struct thing t[20000];
    uint64_t cost[2];
    for (int k = 0; k < 2; k++) {
        uint32_t n = k ? 20000 : 2000;
        struct heap h;
        cost[k] = 0;
        heap_init(&h, before, &cost[k]);
        for (uint32_t i = 0; i < n; i++) {
            t[i] = (struct thing){.key = i % 2 ? i : n - i, .idx = i};
            heap_add(&h, &t[i].node);
        }
        uint32_t last = 0;
        for (uint32_t i = 0; i < n; i++) {
            struct thing *x = thing_of(heap_first(&h));
            CHECK(x->key >= last);
            last = x->key;
            heap_remove(&h, &x->node);
        }
        CHECK(heap_first(&h) == NULL);
    }
    CHECK(cost[1] < 20 * cost[0]);
}
