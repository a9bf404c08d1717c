/* request: one generating request from its body to its end: what it asks for, and its choices.
 *
 *   preparing -> accepted -> over
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
#include "router/choice.h"
#include "router/params.h"

struct apierr;
struct http_call;
struct prepare;
struct request;
struct send;
struct server;

enum {
    REQUEST_CHOICES_MAX = 32,
    REQUEST_SESSION_BYTES_MAX = 256, // X-Session-Id
};

struct request_format {
    // The status line has to leave now, whether or not there is text; of a whole reply with a space.
    void (*begin)(struct request *r);
    // New text, or new ids without text. Whole replies keep it, streams write events.
    void (*delta)(struct choice *c, const struct reply_delta *d);
    // A choice is complete.
    void (*choice_over)(struct choice *c);
    // Everything is here: the last bytes; ends the send.
    void (*finish)(struct request *r);
    // Something failed; ends the send. Before the first byte it is a plain HTTP error.
    void (*error)(struct request *r, const struct apierr *e);
};

struct request_kind { // an endpoint's
    const struct request_format *format;
    // Body to params, prompts and limits.
    int (*prepare)(const struct prepare *p, struct request *r, struct apierr *e);
    const char *id_prefix;
    bool is_chat; // replies have thoughts and calls
};

struct request_prompt {
    struct ids ids;
    uint32_t max_tokens;
    const char *echo; // its text, in the arena; NULL: not wanted
    size_t echo_len;
};

struct request {
    struct server *server;
    const struct request_kind *kind;
    TAILQ_ENTRY(request) link; // server's list of all
    bool accepted;
    bool preparing_on_pool; // a pool thread has the request: it cannot be freed yet
    struct send *send;      // NULL: the client has gone
    struct http_call *call; // valid while send is
    struct arena arena;
    char id[48];          // "chatcmpl-...": in the reply
    char request_id[129]; // of the headers
    int64_t created_s;
    uint64_t received_us; // monotonic
    uint64_t deadline_ms; // monotonic

    struct params params;
    struct queue_ticket ticket;
    char group[QUEUE_GROUP_NAME_BYTES]; // of the queue, as a trusted gateway says; "": it says none
    int32_t pinned;                     // its worker, by whose port it came; -1: any
    uint64_t affinity;                  // hash of the client's key for it; 0: none
    const char *trace;                  // traceparent, in the arena
    struct request_prompt *prompts;     // in the arena, their ids on the heap
    uint32_t prompt_count;
    bool in_thought; // the prompt ends inside an open thought

    struct resume_deaths deaths;
    struct choice *choices; // prompt_count * params.n
    uint32_t choice_count, choices_open;
    char fingerprint[32];     // system_fingerprint
    struct strbuf chunk_head; // what every chunk of a stream begins with
};

// Makes a request of a call whose body has been checked for type and size, and starts to prepare it.
void request_start(struct server *s, struct http_call *c, const struct request_kind *kind);
// For its prepare: room for that many prompts.
void request_set_prompts(struct request *r, uint32_t count);
// Whether rank may begin it, or go on with it.
bool request_may_run_at(const struct request *r, const struct choice *c, uint32_t rank);
// Where it waits, as it is now.
enum queue_lane request_lane(const struct request *r, const struct choice *c);
// From choice_pump: c is complete. False: r has ended.
bool request_choice_over(struct request *r, struct choice *c);
// Turns ids into text as far as the client's buffer has room. May end r.
void request_pump(struct request *r);
// Ends it. Takes it from the queue and from its workers.
void request_fail(struct request *r, const struct apierr *e);
// Deadline, first byte, keepalive. May end r.
void request_tick(struct request *r, uint64_t now_ms);

// For formats: the time and usage figures.
struct request_usage {
    uint32_t prompt, cached, completion, reasoning;
};
struct request_usage request_usage(const struct request *r);
struct request_figures { // over all choices; times that are not known yet are 0
    int32_t rank;        // of the first choice
    double queue_ms, prefill_ms, first_token_ms, decode_ms;
    uint64_t rounds, drafted, accepted;
    uint64_t drafted_by[FRAME_DRAFT_KINDS], accepted_by[FRAME_DRAFT_KINDS];
    uint32_t resumed; // times
};
struct request_figures request_figures(const struct request *r);
