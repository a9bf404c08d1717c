/* queue: see queue.h. */
#include "router/queue.h"
#include "common/err.h"
#include "common/mem.h"

#include <assert.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct bucket {            // what a group has in one lane
    struct heap_node node; // in the lane, while there is anything
    struct queue_group *group;
    struct heap items; // by priority, then as they came
};

struct queue_group {
    TAILQ_ENTRY(queue_group) link;
    struct bucket buckets[QUEUE_LANES];
    uint32_t waiting; // in the buckets
    uint32_t refs;    // items that may still wait or be charged
    uint32_t weight;
    uint64_t made;  // numbers the groups: of equals the older goes first
    double account; // tokens for each of its weight
    char name[QUEUE_GROUP_NAME_BYTES];
};

/* ---- the orders ---- */

static struct queue_item *item_of(struct heap_node *n) {
    return n ? (struct queue_item *)((char *)n - offsetof(struct queue_item, node)) : NULL;
}

static const struct queue_item *item_at(const struct heap_node *n) {
    return (const struct queue_item *)((const char *)n - offsetof(struct queue_item, node));
}

static const struct bucket *bucket_at(const struct heap_node *n) {
    return (const struct bucket *)((const char *)n - offsetof(struct bucket, node));
}

static bool item_before(const struct heap_node *a, const struct heap_node *b) {
    const struct queue_item *i = item_at(a), *k = item_at(b);
    return i->priority != k->priority ? i->priority < k->priority : i->arrival < k->arrival;
}

static bool returned_before(const struct heap_node *a, const struct heap_node *b) {
    const struct queue_item *i = item_at(a), *k = item_at(b);
    return i->priority != k->priority ? i->priority < k->priority : i->arrival > k->arrival;
}

// Neither is empty. One group may stand on both sides, with two lanes.
static bool bucket_before(const struct heap_node *a, const struct heap_node *b) {
    const struct bucket *x = bucket_at(a), *y = bucket_at(b);
    const struct queue_group *g = x->group, *h = y->group;
    const struct heap_node *i = heap_first(&x->items), *k = heap_first(&y->items);
    if (item_at(i)->priority != item_at(k)->priority || g == h) return item_before(i, k);
    if (g->account < h->account || g->account > h->account) return g->account < h->account;
    return g->made < h->made;
}

void queue_init(struct queue *q, uint32_t requests_max, uint64_t tokens_max) {
    *q = (struct queue){.requests_max = requests_max, .tokens_max = tokens_max};
    for (int lane = 0; lane < QUEUE_LANES; lane++) {
        heap_init(&q->lanes[lane].returned, returned_before, &q->compared);
        heap_init(&q->lanes[lane].groups, bucket_before, &q->compared);
    }
    TAILQ_INIT(&q->passed);
    TAILQ_INIT(&q->groups);
    queue_begin(q);
}

void queue_set_bounds(struct queue *q, uint32_t requests_max, uint64_t tokens_max) {
    q->requests_max = requests_max;
    q->tokens_max = tokens_max;
}

/* ---- groups ---- */

static void drop_group(struct queue *q, struct queue_group *g) {
    TAILQ_REMOVE(&q->groups, g, link);
    q->group_count--;
    free(g);
}

static void drop_idle_groups(struct queue *q) {
    struct queue_group *g, *next;
    for (g = TAILQ_FIRST(&q->groups); g; g = next) {
        next = TAILQ_NEXT(g, link);
        if (g->refs == 0) drop_group(q, g);
    }
}

void queue_fini(struct queue *q) {
    assert(q->items == 0);
    drop_idle_groups(q);
    assert(TAILQ_EMPTY(&q->groups));
}

static struct queue_group *group_of(struct queue *q, const struct queue_who *who) {
    struct queue_group *g;
    assert(who->weight > 0);
    TAILQ_FOREACH(g, &q->groups, link) if (!strcmp(g->name, who->group)) break;
    if (!g) {
        if (q->group_count >= QUEUE_GROUPS_MAX) drop_idle_groups(q);
        g = mem_calloc(1, sizeof *g);
        snprintf(g->name, sizeof g->name, "%s", who->group);
        g->made = q->groups_made++;
        for (int lane = 0; lane < QUEUE_LANES; lane++) {
            g->buckets[lane].group = g;
            heap_init(&g->buckets[lane].items, item_before, &q->compared);
        }
        TAILQ_INSERT_TAIL(&q->groups, g, link);
        q->group_count++;
    }
    g->weight = who->weight; // the key file may have been read again
    if (g->waiting == 0 && g->account < q->served_at) g->account = q->served_at;
    return g;
}

static void charge(struct queue *q, struct queue_group *g, uint64_t tokens) {
    g->account += (double)tokens / g->weight;
    for (int lane = 0; g->waiting && lane < QUEUE_LANES; lane++) {
        struct bucket *b = &g->buckets[lane];
        if (heap_first(&b->items)) heap_moved(&q->lanes[lane].groups, &b->node);
    }
}

void queue_charge(struct queue *q, struct queue_item *i, uint64_t tokens) {
    if (i->group) charge(q, i->group, tokens);
}

void queue_forget(struct queue *q, struct queue_item *i) {
    queue_remove(q, i);
    if (i->group) i->group->refs--;
    i->group = NULL;
}

/* ---- in and out ---- */

static void count_in(struct queue *q, struct queue_item *i) {
    i->queued = true;
    i->passed = false;
    q->requests += i->ticket->waiting++ == 0;
    q->items++;
    q->tokens += i->tokens;
}

static void into_group(struct queue *q, struct queue_item *i) {
    struct bucket *b = &i->group->buckets[i->lane];
    struct heap *lane = &q->lanes[i->lane].groups;
    bool was_empty = !heap_first(&b->items);
    heap_add(&b->items, &i->node);
    i->group->waiting++;
    if (was_empty)
        heap_add(lane, &b->node);
    else if (heap_first(&b->items) == &i->node)
        heap_moved(lane, &b->node);
}

static void out_of_group(struct queue *q, struct queue_item *i) {
    struct bucket *b = &i->group->buckets[i->lane];
    struct heap *lane = &q->lanes[i->lane].groups;
    bool was_first = heap_first(&b->items) == &i->node;
    heap_remove(&b->items, &i->node);
    i->group->waiting--;
    if (!heap_first(&b->items))
        heap_remove(lane, &b->node);
    else if (was_first)
        heap_moved(lane, &b->node);
}

int queue_add(struct queue *q, struct queue_item *i, const struct queue_who *who, uint64_t now_ms) {
    assert(!i->queued);
    if (q->requests >= q->requests_max) return ST_FULL;
    if (q->items && q->tokens + i->tokens > q->tokens_max) return ST_FULL;
    queue_follow(q, i, who, now_ms);
    return ST_OK;
}

void queue_follow(struct queue *q, struct queue_item *i, const struct queue_who *who,
                  uint64_t now_ms) {
    assert(!i->queued && !i->group && i->lane < QUEUE_LANES && i->lane != QUEUE_LOOSE);
    struct queue_group *g = i->group = group_of(q, who);
    g->refs++;
    i->since_ms = now_ms;
    i->returned = false;
    i->arrival = q->arrivals++;
    into_group(q, i);
    count_in(q, i);
}

void queue_add_front(struct queue *q, struct queue_item *i) {
    assert(!i->queued && i->lane < QUEUE_LANES);
    i->returned = true;
    i->arrival = q->arrivals++;
    heap_add(&q->lanes[i->lane].returned, &i->node);
    count_in(q, i);
}

void queue_remove(struct queue *q, struct queue_item *i) {
    if (!i->queued) return;
    i->queued = false;
    if (i->passed)
        TAILQ_REMOVE(&q->passed, i, link);
    else if (i->returned)
        heap_remove(&q->lanes[i->lane].returned, &i->node);
    else
        out_of_group(q, i);
    q->requests -= --i->ticket->waiting == 0;
    q->items--;
    q->tokens -= i->tokens;
}

static void note_departure(struct queue *q, uint64_t now_ms) {
    double gap_s = (double)(now_ms - q->last_departure_ms) / 1000;
    if (q->last_departure_ms) {
        double rate = 1 / (gap_s > 0.001 ? gap_s : 0.001);
        // A burst's tiny gaps must not make the forecast rosy: one step moves a tenth of the way.
        q->departures_per_s =
            q->departures_per_s > 0 ? q->departures_per_s * 0.9 + rate * 0.1 : rate;
    }
    q->last_departure_ms = now_ms;
}

void queue_left(struct queue *q, struct queue_item *i, uint64_t now_ms) {
    struct queue_group *g = i->group;
    queue_remove(q, i);
    if (g && !i->charged) {
        i->charged = true;
        if (g->account > q->served_at) q->served_at = g->account;
        charge(q, g, i->tokens ? i->tokens : 1);
    }
    note_departure(q, now_ms);
}

/* ---- who is next ---- */

void queue_begin(struct queue *q) {
    struct queue_item *i;
    q->pass++;
    while ((i = TAILQ_FIRST(&q->passed))) {
        TAILQ_REMOVE(&q->passed, i, link);
        i->passed = false;
        heap_add(&q->lanes[i->lane].returned, &i->node);
    }
}

void queue_pass(struct queue *q, struct queue_item *i) {
    if (i->lane != QUEUE_LOOSE) {
        q->lanes[i->lane].passed = q->pass;
        return;
    }
    heap_remove(&q->lanes[i->lane].returned, &i->node);
    i->passed = true;
    TAILQ_INSERT_TAIL(&q->passed, i, link);
}

static struct heap_node *better(struct heap_node *best, const struct heap *h) {
    struct heap_node *n = heap_first(h);
    return !best || (n && h->before(n, best)) ? n : best;
}

struct queue_item *queue_first(const struct queue *q) {
    struct heap_node *returned = NULL, *group = NULL;
    for (int lane = 0; lane < QUEUE_LANES; lane++) {
        const struct queue_lane_heaps *l = &q->lanes[lane];
        if (l->passed == q->pass) continue;
        returned = better(returned, &l->returned);
        group = better(group, &l->groups);
    }
    struct queue_item *back = item_of(returned);
    struct queue_item *first = group ? item_of(heap_first(&bucket_at(group)->items)) : NULL;
    return !back || (first && first->priority < back->priority) ? first : back;
}

double queue_wait_s(const struct queue *q) {
    if (q->items == 0) return 0;
    if (q->departures_per_s <= 0) return 1;
    return q->items / q->departures_per_s;
}

uint32_t queue_retry_ms(const struct queue *q, uint64_t random) {
    double jitter = 0.8 + 0.4 * ((double)(random >> 11) * 0x1p-53);
    double s = queue_wait_s(q) * jitter;
    return (uint32_t)((s < 1 ? 1 : s > 60 ? 60 : s) * 1000);
}
