/* queue: the requests that wait for a worker, and who is next: by priority, within it the group (a client's key) that has
 * had least for its weight, within a group first come first served; bounded in requests and in prompt tokens.
 *
 * What a group has had is its tokens, prompt and output, divided by its weight. One that was away comes back beside the
 * others, not before them: a group's account never lies behind the group that was served last. A choice that comes back
 * (its worker had no room after all, or is gone) goes to the front of its priority and is never refused.
 *
 * Those that can only be placed together or not at all share a lane: what waits for any worker is one, what waits for
 * worker k alone another. A pass leaves out a whole lane at once, so that a thousand that wait for a full worker cost what
 * one does. In each lane two heaps are kept: of what came back, and of the groups with something in it, each with a heap of
 * its own; who is next is the best of their tops. Pure, loop thread. */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include <sys/queue.h>

#include "common/heap.h"

enum {
    QUEUE_GROUPS_MAX = 4096,     // idle ones are forgotten past it
    QUEUE_GROUP_NAME_BYTES = 65, // with the NUL; longer names are cut
    QUEUE_WORKERS_MAX = 8,       // that something may wait for alone
};

enum queue_lane {
    QUEUE_ANY,    // any worker will do
    QUEUE_LOOSE,  // each for its own reasons: passed over one by one. For what comes back only
    QUEUE_WORKER, // + rank: that one alone
    QUEUE_LANES = QUEUE_WORKER + QUEUE_WORKERS_MAX,
};

struct queue_group; // defined in queue.c

struct queue_ticket { // one request, embedded in it: of its items at least one waits
    uint32_t waiting;
};

struct queue_item {               // embedded in what waits: one choice of a request
    struct heap_node node;        // in its group's heap, or among the returned
    TAILQ_ENTRY(queue_item) link; // among the passed
    struct queue_ticket *ticket;
    struct queue_group *group; // from queue_add until queue_forget
    uint64_t arrival;          // numbers what comes in
    bool queued, returned;
    bool passed;       // in this pass, of QUEUE_LOOSE
    bool charged;      // its prompt is on the group's account
    uint8_t lane;      // enum queue_lane; set before it comes in
    int32_t priority;  // lower first
    uint32_t tokens;   // prompt ids
    uint64_t since_ms; // the time in the queue counts from here
};
TAILQ_HEAD(queue_list, queue_item);
TAILQ_HEAD(queue_groups, queue_group);

struct queue_lane_heaps {
    struct heap returned; // by priority, the last first
    struct heap groups;   // those with something here that has not come back
    uint64_t passed;      // left out in that pass
};

struct queue {
    struct queue_lane_heaps lanes[QUEUE_LANES];
    struct queue_list passed; // of QUEUE_LOOSE, in this pass
    struct queue_groups groups;
    uint32_t group_count;
    uint32_t requests_max;
    uint64_t tokens_max;
    uint32_t requests, items; // waiting
    uint64_t tokens;
    uint64_t pass;
    uint64_t arrivals, groups_made;
    uint64_t
        compared; // by the heaps, since queue_init: what tests hold against the number of waiters
    double served_at;        // the account of the group that was served last, before that
    double departures_per_s; // of items, smoothed; 0: nothing has left yet
    uint64_t last_departure_ms;
};

void queue_init(struct queue *q, uint32_t requests_max, uint64_t tokens_max);
void queue_fini(struct queue *q); // nothing waits
// Of what comes from now on; what waits already goes on waiting.
void queue_set_bounds(struct queue *q, uint32_t requests_max, uint64_t tokens_max);

struct queue_who {     // whose request it is
    const char *group; // "": nobody's in particular
    uint32_t weight;   // its share beside others; at least 1
};
// ST_FULL: over a bound; the item is not queued. A request larger than tokens_max still gets in when nothing waits.
int queue_add(struct queue *q, struct queue_item *i, const struct queue_who *who, uint64_t now_ms);
// Of a request that has got in already: counted, never refused.
void queue_follow(struct queue *q, struct queue_item *i, const struct queue_who *who,
                  uint64_t now_ms);
void queue_add_front(struct queue *q, struct queue_item *i); // keeps since_ms
void queue_remove(struct queue *q, struct queue_item *i);    // not queued is fine
// It leaves for a worker: removed, its prompt charged, the prediction fed.
void queue_left(struct queue *q, struct queue_item *i, uint64_t now_ms);
// Output that was made for it.
void queue_charge(struct queue *q, struct queue_item *i, uint64_t tokens);
void queue_forget(struct queue *q, struct queue_item *i); // removed and over; never added is fine

// A pass over the queue: who is next, without those that were passed over since it began.
void queue_begin(struct queue *q);
struct queue_item *queue_first(const struct queue *q); // NULL: none
// i is queue_first's. All of its lane are passed over with it; of QUEUE_LOOSE it alone.
void queue_pass(struct queue *q, struct queue_item *i);

// Of a request that came now.
double queue_wait_s(const struct queue *q);
// What a refused client should wait: the prediction with +-20% of jitter, 1 to 60 s. random: any 64 bits.
uint32_t queue_retry_ms(const struct queue *q, uint64_t random);
