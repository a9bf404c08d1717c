/* queue: see queue.h. */
#include "router/queue.h"
#include "common/err.h"
#include "common/mem.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct queue_group {
    TAILQ_ENTRY(queue_group) link;
    struct queue_list items; // by priority, then as they came
    uint32_t refs;           // items that may still wait or be charged
    uint32_t weight;
    double account; // tokens for each of its weight
    char name[QUEUE_GROUP_NAME_BYTES];
};

void queue_init(struct queue *q, uint32_t requests_max, uint64_t tokens_max) {
    *q = (struct queue){.requests_max = requests_max, .tokens_max = tokens_max};
    TAILQ_INIT(&q->returned);
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
        TAILQ_INIT(&g->items);
        TAILQ_INSERT_TAIL(&q->groups, g, link);
        q->group_count++;
    }
    g->weight = who->weight; // the key file may have been read again
    if (TAILQ_EMPTY(&g->items) && g->account < q->served_at) g->account = q->served_at;
    return g;
}

static void charge(struct queue_group *g, uint64_t tokens) {
    g->account += (double)tokens / g->weight;
}

void queue_charge(struct queue_item *i, uint64_t tokens) {
    if (i->group) charge(i->group, tokens);
}

void queue_forget(struct queue *q, struct queue_item *i) {
    queue_remove(q, i);
    if (i->group) i->group->refs--;
    i->group = NULL;
}

/* ---- in and out ---- */

static void count_in(struct queue *q, struct queue_item *i) {
    i->queued = true;
    i->passed = 0;
    q->requests += i->ticket->waiting++ == 0;
    q->items++;
    q->tokens += i->tokens;
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
    assert(!i->queued && !i->group);
    struct queue_group *g = i->group = group_of(q, who);
    g->refs++;
    i->since_ms = now_ms;
    i->returned = false;
    struct queue_item *before = TAILQ_LAST(&g->items, queue_list);
    while (before && before->priority > i->priority) before = TAILQ_PREV(before, queue_list, link);
    if (before)
        TAILQ_INSERT_AFTER(&g->items, before, i, link);
    else
        TAILQ_INSERT_HEAD(&g->items, i, link);
    count_in(q, i);
}

void queue_add_front(struct queue *q, struct queue_item *i) {
    assert(!i->queued);
    struct queue_item *behind = TAILQ_FIRST(&q->returned);
    while (behind && behind->priority < i->priority) behind = TAILQ_NEXT(behind, link);
    if (behind)
        TAILQ_INSERT_BEFORE(behind, i, link);
    else
        TAILQ_INSERT_TAIL(&q->returned, i, link);
    i->returned = true;
    count_in(q, i);
}

void queue_remove(struct queue *q, struct queue_item *i) {
    if (!i->queued) return;
    i->queued = false;
    TAILQ_REMOVE(i->returned ? &q->returned : &i->group->items, i, link);
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
        charge(g, i->tokens ? i->tokens : 1);
    }
    note_departure(q, now_ms);
}

/* ---- who is next ---- */

void queue_begin(struct queue *q) {
    q->pass++;
}

void queue_pass(struct queue *q, struct queue_item *i) {
    i->passed = q->pass;
}

static struct queue_item *first_of(const struct queue *q, const struct queue_list *l) {
    struct queue_item *i = TAILQ_FIRST(l);
    while (i && i->passed == q->pass) i = TAILQ_NEXT(i, link);
    return i;
}

struct queue_item *queue_first(const struct queue *q) {
    struct queue_item *best = first_of(q, &q->returned);
    const struct queue_group *g, *of = NULL; // best's, unless it came back
    TAILQ_FOREACH(g, &q->groups, link) {
        struct queue_item *i = first_of(q, &g->items);
        if (!i || (best && i->priority > best->priority)) continue;
        bool sooner = !best || i->priority < best->priority || (of && g->account < of->account);
        if (!sooner) continue;
        best = i;
        of = g;
    }
    return best;
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
