/* queue: the requests that wait for a worker: by priority, then first come first served; bounded in requests and in
 * prompt tokens. One that comes back (its worker had no room after all) goes to the front of its priority and is
 * never refused. Pure, loop thread. */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include <sys/queue.h>

struct queue_item { // embedded in what waits
    TAILQ_ENTRY(queue_item) link;
    bool queued;
    int32_t priority;  // lower first
    uint32_t tokens;   // prompt ids
    uint64_t since_ms; // the time in the queue counts from here
};
TAILQ_HEAD(queue_list, queue_item);

struct queue {
    struct queue_list items;
    uint32_t requests_max;
    uint64_t tokens_max;
    uint32_t requests;
    uint64_t tokens;
    double departures_per_s; // smoothed; 0: nothing has left yet
    uint64_t last_departure_ms;
};

void queue_init(struct queue *q, uint32_t requests_max, uint64_t tokens_max);
// ST_FULL: over a bound; the item is not queued. A request larger than tokens_max still gets in when nothing waits.
int queue_add(struct queue *q, struct queue_item *i, uint64_t now_ms);
// Of a request that has got in already: counted, never refused.
void queue_follow(struct queue *q, struct queue_item *i, uint64_t now_ms);
void queue_add_front(struct queue *q, struct queue_item *i); // keeps since_ms
struct queue_item *queue_first(const struct queue *q);       // NULL: empty
struct queue_item *queue_next(const struct queue_item *i);   // NULL: the last
void queue_remove(struct queue *q, struct queue_item *i);    // not queued is fine
void queue_left(struct queue *q, uint64_t now_ms);           // one was placed: for the prediction
// Of a request that came now.
double queue_wait_s(const struct queue *q);
// What a refused client should wait: the prediction with +-20% of jitter, 1 to 60 s. random: any 64 bits.
uint32_t queue_retry_ms(const struct queue *q, uint64_t random);
