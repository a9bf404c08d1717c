/* choice: one reply of a request: a stream at a worker, its ids, and the text made of them.
 *
 *   queued -> prefill -> decode -> flushing -> over
 *      ^________|_________|   its worker was lost: resume.h
 *
 * A request has n of them for each of its prompts. What a choice has told its client follows from its ids alone, so it
 * could go on at another worker. Loop thread. */
#pragma once
#include <stdbool.h>
#include <stdint.h>

#include "common/ids.h"
#include "proto/frame.h"
#include "router/queue.h"
#include "router/resume.h"
#include "router/text/reply.h"

struct backend;
struct choice;
struct request;

enum choice_state {
    CHOICE_QUEUED,
    CHOICE_PREFILL,  // at a worker, no id has come
    CHOICE_DECODE,   // at a worker
    CHOICE_FLUSHING, // all ids are here; text waits for a slow client
    CHOICE_OVER,
};

enum choice_finish { CHOICE_FINISH_STOP, CHOICE_FINISH_LENGTH, CHOICE_FINISH_CALLS };

struct choice {
    struct request *request;
    uint32_t index;      // in the reply
    uint32_t prompt_idx; // of the request's prompts
    uint64_t seed;
    enum choice_state state;

    struct queue_item queue_item;
    struct frame_stream stream; // id 0: not at a worker
    struct backend *backend;
    uint32_t max_tokens; // as sent to the worker
    int32_t rank;        // where it was sent last; -1: nowhere yet
    uint32_t filled;     // rows of the fill whose state exists
    uint64_t placed_us;  // when it was sent to its present worker
    uint32_t to_fill;    // prompt ids and those that were there when it was sent
    struct resume resume;

    struct ids ids;  // everything generated, kept until the end so that it could be replayed
    size_t taken;    // of them given to the text side: what the reply, its hash and its usage count
    size_t sent_ids; // of those told to the client (return_token_ids)
    float *logprobs; // of ids, when asked for; then
    struct frame_logprob *tops; // [ids, top_logprobs of the request]
    size_t logprob_cap;

    struct reply *reply;
    struct reply_delta delta;         // scratch of one step
    struct strbuf reasoning, content; // of a whole reply
    struct strbuf calls;              // of a whole reply: JSON objects, the last one open
    uint32_t calls_begun;
    struct reply_content_id *content_ids; // of a whole reply, when logprobs are asked for
    size_t content_id_count, content_id_cap;
    bool role_sent;
    bool any_text;           // a first event with text has left
    uint32_t rounds_waiting; // rounds since the last event (stream_interval)

    bool ended; // no more ids will come; the next fields stand
    enum choice_finish finish;
    int64_t stop_id;  // of stop_token_ids, that ended it; else -1
    bool silent_last; // the last id ended the reply and has no text
    uint32_t cached_tokens;
    uint64_t rounds; // of the stream, as frames came
    uint64_t draft_rounds;
    uint64_t drafted[FRAME_DRAFT_KINDS], accepted[FRAME_DRAFT_KINDS];
    uint64_t logits_hash;
    bool has_logits_hash;

    uint64_t submitted_us, first_us, last_us; // monotonic; 0: not yet
};

void choice_init(struct choice *c, struct request *r, uint32_t index, uint32_t prompt_idx);
void choice_fini(struct choice *c);
const struct ids *choice_prompt(const struct choice *c);
struct choice *choice_of_item(struct queue_item *i);

// The next ids of its stream; logprobs is NULL unless the request asks for them.
void choice_add_ids(struct choice *c, const struct frame_ids *ids,
                    const struct frame_logprobs *logprobs);
// Its ids are final: called by relay with the fields above filled in. False: the request has ended.
bool choice_ids_ended(struct choice *c);
// Turns ids into text as far as the client's buffer has room. False: the request has ended.
bool choice_pump(struct choice *c);
// Back to the front of the queue: its worker had no room after all.
void choice_requeue(struct choice *c);
// Its worker is gone, and its slot given back: it waits for another. death: of METRIC_CAUSE_DEATH, as resume_met's. May
// end the request.
void choice_lost(struct choice *c, enum metric_cause cause, uint64_t death);
