/* metrics: what /metrics shows: counters and histograms as relaxed atomics, gauges from the snapshot (docs/api.md).
 *
 * Counting is for any thread; so is writing the page, which touches no worker and takes no lock that a request
 * holds (the names of unknown fields have one of their own). No label takes a value from a client, but those names.
 * Conserved at every moment of the loop: accepted = finished + failed + cancelled + in flight. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "proto/frame.h"
#include "router/apierr.h"
#include "router/backend.h"

struct metrics; // defined in metrics.c
struct snapshot;
struct strbuf;

enum metric {
    METRIC_ACCEPTED, // requests that entered the queue; each leaves by exactly one of the next three
    METRIC_FINISHED,
    METRIC_FAILED,
    METRIC_CANCELLED,
    METRIC_PROMPT_TOKENS,
    METRIC_GENERATION_TOKENS,
    METRIC_PREFIX_QUERIES,
    METRIC_PREFIX_HITS,
    METRIC_DRAFTS,
    METRIC_DRAFTED,
    METRIC_DRAFTS_ACCEPTED,
    METRIC_LONE_SURROGATES,
    METRIC_INVALID_UTF8,
    METRIC_PLACED_LOAD,     // by the predicted start alone
    METRIC_PLACED_AFFINITY, // of equals, by the client's affinity key
    METRIC_PLACED_PINNED,   // it came by its worker's port
    METRIC_COUNT,
};

enum metric_phase {
    METRIC_PHASE_QUEUE,
    METRIC_PHASE_PREFILL,
    METRIC_PHASE_DECODE,
    METRIC_PHASE_RESUME,
    METRIC_PHASE_COUNT
};
enum metric_resume { // how a request that lost its worker went on
    METRIC_RESUME_OK,
    METRIC_RESUME_NO_WORKER, // none of its kind within route.resume_s
    METRIC_RESUME_POISONED,  // live at too many deaths
    METRIC_RESUME_COUNT
};
enum metric_cause { // why its worker was lost
    METRIC_CAUSE_DEATH,
    METRIC_CAUSE_MOVE, // drained or ended in good order
    METRIC_CAUSE_COUNT
};
enum metric_reason {
    METRIC_REASON_STOP,
    METRIC_REASON_LENGTH,
    METRIC_REASON_ABORT,
    METRIC_REASON_ERROR,
    METRIC_REASON_COUNT
};

enum metric_histogram {
    METRIC_FIRST_TOKEN_S,
    METRIC_INTER_TOKEN_S,
    METRIC_PER_OUTPUT_TOKEN_S,
    METRIC_E2E_S,
    METRIC_QUEUE_S,
    METRIC_PREFILL_S,
    METRIC_DECODE_S,
    METRIC_INFERENCE_S,
    METRIC_REQUEST_PROMPT_TOKENS,
    METRIC_REQUEST_GENERATION_TOKENS,
    METRIC_REQUEST_MAX_TOKENS,
    METRIC_REQUEST_N,
    METRIC_TOKENS_PER_ROUND,
    METRIC_LOOP_LAG_S,
    METRIC_RESUME_PAUSE_S,
    METRIC_TOKENIZE_S,
    METRIC_JSON_PARSE_S,
    METRIC_HISTOGRAM_COUNT,
};

struct metrics *metrics_new(const char *model_name); // kept
void metrics_free(struct metrics *m);

void metrics_add(struct metrics *m, enum metric which, uint64_t n);
// Of a request that rank runs or ran (-1: none does): the page of a worker's port has it too.
void metrics_add_at(struct metrics *m, int32_t rank, enum metric which, uint64_t n);
void metrics_observe_at(struct metrics *m, int32_t rank, enum metric_histogram which, double x,
                        uint64_t times);
uint64_t metrics_get(const struct metrics *m, enum metric which);
void metrics_observe(struct metrics *m, enum metric_histogram which, double x, uint64_t times);
struct metrics_live { // gauges that the loop keeps as they change
    uint64_t streams; // at workers
    uint64_t queued_choices, queued_requests, queued_tokens;
};
void metrics_set_live(struct metrics *m, const struct metrics_live *l);
void metrics_get_queue(const struct metrics *m, uint64_t *ret_requests, uint64_t *ret_tokens);
void metrics_in_flight(struct metrics *m, int change); // accepted and not over
uint64_t metrics_get_in_flight(const struct metrics *m);
void metrics_connections(struct metrics *m, bool is_http2, int change);
void metrics_streams_open(struct metrics *m, int change);
void metrics_client_closed(struct metrics *m, enum metric_phase phase);
void metrics_resume(struct metrics *m, enum metric_resume result, enum metric_cause cause);
void metrics_success(struct metrics *m, int32_t rank, enum metric_reason reason);
void metrics_error(struct metrics *m, enum apierr_code code); // also counts rejections
void metrics_key_tokens(struct metrics *m, const char *key, uint64_t prompt, uint64_t generated);
void metrics_unknown_field(struct metrics *m, const char *name);
// endpoint: one of the fixed set (http_endpoint.name), NULL for none.
void metrics_http(struct metrics *m, const char *endpoint, int status, double seconds);
void metrics_worker_failed(struct metrics *m, uint32_t rank, enum backend_failure why);
// One TOKENS frame: what it carried, for whichever streams. Counted here, not by the worker, so that the sums go on
// over its restarts.
void metrics_worker_round(struct metrics *m, uint32_t rank, double seconds, uint64_t tokens);
// By kind, as DONE has them.
void metrics_worker_drafted(struct metrics *m, uint32_t rank,
                            const uint64_t drafted[FRAME_DRAFT_KINDS],
                            const uint64_t accepted[FRAME_DRAFT_KINDS]);
void metrics_worker_filled(struct metrics *m, uint32_t rank, uint64_t prompt_tokens);

// The whole page, text format 0.0.4; rank at least 0: what is known of that worker alone.
void metrics_write(struct metrics *m, const struct snapshot *s, int32_t rank, uint64_t now_ms,
                   struct strbuf *out);
