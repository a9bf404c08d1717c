/* request: one generating request from its body to its end: what it asks for, where it is, what has come back.
 *
 *   preparing -> queued -> prefill -> decode -> flushing -> over
 *                  ^________|_________|   its worker was lost: resume.h
 *
 * Preparing may run on the pool; all else is on the loop thread. An endpoint's shape of replies is a request_format;
 * it writes, and never decides. Whatever ends a request (its last text, a failure, the client's going) ends it once and
 * frees it: after a call that says "may end r", r must not be touched. */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include <sys/queue.h>

#include "common/arena.h"
#include "common/ids.h"
#include "proto/frame.h"
#include "router/params.h"
#include "router/queue.h"
#include "router/resume.h"
#include "router/text/reply.h"

struct apierr;
struct backend;
struct http_call;
struct request;
struct send;
struct server;

enum request_state {
    REQUEST_PREPARING,
    REQUEST_QUEUED,
    REQUEST_PREFILL,  // at a worker, no id has come
    REQUEST_DECODE,   // at a worker
    REQUEST_FLUSHING, // all ids are here; text waits for a slow client
};

enum request_finish { REQUEST_FINISH_STOP, REQUEST_FINISH_LENGTH };

struct request_format {
    // The status line has to leave now, whether or not there is text. Streams only.
    void (*begin)(struct request *r);
    // New text, or new ids without text. Whole replies keep it, streams write events.
    void (*delta)(struct request *r, const struct reply_delta *d);
    // Everything is here: the last bytes; ends the send.
    void (*finish)(struct request *r);
    // Something failed; ends the send. Before the first byte it is a plain HTTP error.
    void (*error)(struct request *r, const struct apierr *e);
};

struct request {
    struct server *server;
    const struct request_format *format;
    TAILQ_ENTRY(request) link; // server's list of all
    enum request_state state;
    bool preparing_on_pool; // a pool thread has the request: it cannot be freed yet
    struct send *send;      // NULL: the client has gone
    struct http_call *call; // valid while send is
    struct arena arena;
    char id[48];          // "chatcmpl-...": in the reply
    char request_id[129]; // of the headers
    int64_t created_s;
    uint64_t deadline_ms; // monotonic

    struct params params;
    struct ids prompt;
    bool in_thought;     // the prompt ends inside an open thought
    uint32_t max_tokens; // as sent to the worker

    struct queue_item queue_item;
    struct frame_stream stream; // id 0: not at a worker
    struct backend *backend;
    int32_t rank;     // where it was sent last; -1: nowhere yet
    uint32_t filled;  // rows of the fill whose state exists
    uint32_t to_fill; // prompt ids and those that were there when it was sent
    struct resume resume;
    char fingerprint[32]; // system_fingerprint

    struct ids ids;  // everything generated, kept until the end so that it could be replayed
    size_t taken;    // of them given to the text side: what the reply, its hash and its usage count
    size_t sent_ids; // of those told to the client (return_token_ids)
    struct reply *reply;
    struct reply_delta delta;         // scratch of one step
    struct strbuf reasoning, content; // of a whole reply
    struct strbuf chunk_head;         // what every chunk of a stream begins with
    bool role_sent;
    bool any_text;           // a first event with text has left
    uint32_t rounds_waiting; // rounds since the last event (stream_interval)

    bool ended; // no more ids will come; the next fields stand
    enum request_finish finish;
    int64_t stop_id;  // of stop_token_ids, that ended it; else -1
    bool silent_last; // the last id ended the reply and has no text
    uint32_t cached_tokens;
    uint64_t rounds; // of the stream, as frames came
    uint64_t drafted, accepted;
    uint64_t logits_hash;
    bool has_logits_hash;

    uint64_t received_us, submitted_us, first_us, last_us; // monotonic; 0: not yet
};

// Makes a request of a call whose body has been checked for type and size, and starts to prepare it.
void request_start(struct server *s, struct http_call *c, const struct request_format *format,
                   const char *id_prefix);
// Its ids are final: called by relay with the fields above filled in. May end r.
void request_ids_ended(struct request *r);
// Turns ids into text as far as the client's buffer has room. May end r.
void request_pump(struct request *r);
// Ends it. Takes it from the queue and from its worker.
void request_fail(struct request *r, const struct apierr *e);
// Back to the front of the queue: its worker had no room after all.
void request_requeue(struct request *r);
// Its worker is gone, and its slot given back: it waits for another. May end r.
void request_lost(struct request *r, enum metric_cause cause);
// Deadline, first byte, keepalive. May end r.
void request_tick(struct request *r, uint64_t now_ms);

// For formats: the time and usage figures.
struct request_usage {
    uint32_t prompt, cached, completion, reasoning;
};
struct request_usage request_usage(const struct request *r);
double request_queue_ms(const struct request *r);
double request_prefill_ms(const struct request *r);
double request_first_token_ms(const struct request *r);
double request_decode_ms(const struct request *r);
