/* queue: see queue.h. */
#include "router/queue.h"
#include "common/err.h"

#include <assert.h>

void queue_init(struct queue *q, uint32_t requests_max, uint64_t tokens_max) {
    *q = (struct queue){.requests_max = requests_max, .tokens_max = tokens_max};
    TAILQ_INIT(&q->items);
}

static void count_in(struct queue *q, struct queue_item *i) {
    i->queued = true;
    q->requests++;
    q->tokens += i->tokens;
}

int queue_add(struct queue *q, struct queue_item *i, uint64_t now_ms) {
    assert(!i->queued);
    if (q->requests >= q->requests_max) return ST_FULL;
    if (q->requests && q->tokens + i->tokens > q->tokens_max) return ST_FULL;
    queue_follow(q, i, now_ms);
    return ST_OK;
}

void queue_follow(struct queue *q, struct queue_item *i, uint64_t now_ms) {
    assert(!i->queued);
    i->since_ms = now_ms;
    struct queue_item *before = TAILQ_LAST(&q->items, queue_list);
    while (before && before->priority > i->priority) before = TAILQ_PREV(before, queue_list, link);
    if (before)
        TAILQ_INSERT_AFTER(&q->items, before, i, link);
    else
        TAILQ_INSERT_HEAD(&q->items, i, link);
    count_in(q, i);
}

void queue_add_front(struct queue *q, struct queue_item *i) {
    assert(!i->queued);
    struct queue_item *behind = TAILQ_FIRST(&q->items);
    while (behind && behind->priority < i->priority) behind = TAILQ_NEXT(behind, link);
    if (behind)
        TAILQ_INSERT_BEFORE(behind, i, link);
    else
        TAILQ_INSERT_TAIL(&q->items, i, link);
    count_in(q, i);
}

struct queue_item *queue_first(const struct queue *q) {
    return TAILQ_FIRST(&q->items);
}

struct queue_item *queue_next(const struct queue_item *i) {
    return TAILQ_NEXT(i, link);
}

void queue_remove(struct queue *q, struct queue_item *i) {
    if (!i->queued) return;
    i->queued = false;
    TAILQ_REMOVE(&q->items, i, link);
    q->requests--;
    q->tokens -= i->tokens;
}

void queue_left(struct queue *q, uint64_t now_ms) {
    double gap_s = (double)(now_ms - q->last_departure_ms) / 1000;
    if (q->last_departure_ms) {
        double rate = 1 / (gap_s > 0.001 ? gap_s : 0.001);
        // A burst's tiny gaps must not make the forecast rosy: one step moves a tenth of the way.
        q->departures_per_s =
            q->departures_per_s > 0 ? q->departures_per_s * 0.9 + rate * 0.1 : rate;
    }
    q->last_departure_ms = now_ms;
}

double queue_wait_s(const struct queue *q) {
    if (q->requests == 0) return 0;
    if (q->departures_per_s <= 0) return 1;
    return q->requests / q->departures_per_s;
}

uint32_t queue_retry_ms(const struct queue *q, uint64_t random) {
    double jitter = 0.8 + 0.4 * ((double)(random >> 11) * 0x1p-53);
    double s = queue_wait_s(q) * jitter;
    return (uint32_t)((s < 1 ? 1 : s > 60 ? 60 : s) * 1000);
}
