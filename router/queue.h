/* queue: the requests that wait for a worker, and who is next: by priority, within it the group (a client's key) that has
 * had least for its weight, within a group first come first served; bounded in requests and in prompt tokens.
 *
 * What a group has had is its tokens, prompt and output, divided by its weight. One that was away comes back beside the
 * others, not before them: a group's account never lies behind the group that was served last. A choice that comes back
 * (its worker had no room after all, or is gone) goes to the front of its priority and is never refused. Pure, loop thread. */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include <sys/queue.h>

enum {
    QUEUE_GROUPS_MAX = 4096,     // idle ones are forgotten past it
    QUEUE_GROUP_NAME_BYTES = 65, // with the NUL; longer names are cut
};

struct queue_group; // defined in queue.c

struct queue_ticket { // one request, embedded in it: of its items at least one waits
    uint32_t waiting;
};

struct queue_item { // embedded in what waits: one choice of a request
    TAILQ_ENTRY(queue_item) link;
    struct queue_ticket *ticket;
    struct queue_group *group; // from queue_add until queue_forget
    bool queued, returned;
    bool charged;      // its prompt is on the group's account
    uint64_t passed;   // skipped in this pass over the queue
    int32_t priority;  // lower first
    uint32_t tokens;   // prompt ids
    uint64_t since_ms; // the time in the queue counts from here
};
TAILQ_HEAD(queue_list, queue_item);
TAILQ_HEAD(queue_groups, queue_group);

struct queue {
    struct queue_list returned; // by priority; the rest is in the groups' lists
    struct queue_groups groups;
    uint32_t group_count;
    uint32_t requests_max;
    uint64_t tokens_max;
    uint32_t requests, items; // waiting
    uint64_t tokens;
    uint64_t pass;
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
void queue_charge(struct queue_item *i, uint64_t tokens);
void queue_forget(struct queue *q, struct queue_item *i); // removed and over; never added is fine

// A pass over the queue: who is next, without those that were passed over since it began.
void queue_begin(struct queue *q);
struct queue_item *queue_first(const struct queue *q); // NULL: none
void queue_pass(struct queue *q, struct queue_item *i);

// Of a request that came now.
double queue_wait_s(const struct queue *q);
// What a refused client should wait: the prediction with +-20% of jitter, 1 to 60 s. random: any 64 bits.
uint32_t queue_retry_ms(const struct queue *q, uint64_t random);
