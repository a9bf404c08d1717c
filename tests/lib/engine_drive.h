/* engine_drive: runs requests through an engine and gathers what it says, for tests of the engine.
 *
 * A request's tag is its index into the replies. Every event is checked against the contract of engine.h on its way. */
#pragma once
#include <stdbool.h>
#include <stdint.h>

#include "worker/engine/engine.h"

enum { REPLY_IDS_MAX = 512 };

struct reply {
    uint32_t ids[REPLY_IDS_MAX]; // as told: from the first one not given
    uint32_t count;
    bool started, ended;
    uint32_t filled, events;
    enum engine_finish finish;
    int64_t stop_id;
    uint32_t prompt_count, cached_count, completion_count;
    uint64_t hash, rounds;
    uint64_t drafted[ENGINE_DRAFT_KINDS], accepted[ENGINE_DRAFT_KINDS];
    uint32_t token_rounds; // that brought ids
    uint32_t tops;         // log-probabilities asked for of each id, the drawn one's counted
    uint64_t logprobs_hash;
};

struct drive {
    struct engine *eng;
    struct reply *replies;
    uint32_t replies_count;
    uint64_t rows, shared_rounds; // fed in all; rounds that more than one stream shared
};

// Greedy, no stop ids, hash on; prompt ids from a generator that depends on `salt` alone.
struct engine_request drive_request(uint32_t *ids, uint32_t count, uint32_t salt, uint32_t vocab,
                                    uint32_t max_tokens);
void drive_sampled(struct engine_request *r,
                   uint64_t seed); // temperature, top-k, top-p and all penalties

struct engine *drive_open(const struct engine_config *config); // fails the test with its message
uint64_t drive_submit(struct drive *d, const struct engine_request *r);
uint32_t drive_step(struct drive *d); // one round; its rows
void drive_all(struct drive *d);      // until idle
// One request from start to end in an idle engine.
void drive_alone(struct engine *eng, const struct engine_request *r, struct reply *ret);
void check_same_reply(const struct reply *a, const struct reply *b); // ids, finish and hash
