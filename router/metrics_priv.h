/* metrics_priv: what metrics.c counts and metrics_page.c writes. For these two files alone. */
#pragma once
#include <pthread.h>
#include <stdatomic.h>

#include "router/metrics.h"
#include "router/snapshot.h"

enum {
    HISTOGRAM_BUCKETS_MAX = 24,
    UNKNOWN_NAMES = 64,
    UNKNOWN_NAME_MAX = 48,
    METRIC_ENDPOINTS = 14, // the last one: none
    METRIC_STATUSES = 19,  // the last one: any other
    METRIC_KEYS = 256,     // names; the rest is counted together
    METRIC_RANKS = 8,      // as many as have ports of their own
};

typedef _Atomic uint64_t counter;
typedef _Atomic int64_t gauge;

static inline uint64_t counter_get(const counter *c) {
    return atomic_load_explicit((counter *)(uintptr_t)c, memory_order_relaxed);
}
static inline int64_t gauge_get(const gauge *g) {
    return atomic_load_explicit((gauge *)(uintptr_t)g, memory_order_relaxed);
}

struct histogram_form {
    const char *name, *help;
    double unit; // of the sum
    const double *bounds;
    size_t bound_count;
};
struct histogram {
    counter buckets[HISTOGRAM_BUCKETS_MAX + 1]; // not cumulative; the last is +Inf
    counter sum;                                // in units
};

struct tally { // of all requests, or of those of one worker
    counter counters[METRIC_COUNT];
    counter success[METRIC_REASON_COUNT];
    struct histogram histograms[METRIC_HISTOGRAM_COUNT];
};

struct metrics {
    char *model_name;
    struct tally all, ranks[METRIC_RANKS];
    gauge live_streams, queued_choices, queued_requests, queued_tokens;
    gauge in_flight, streams_open, connections[2];
    counter client_closed[METRIC_PHASE_COUNT];
    counter resumes[METRIC_RESUME_COUNT][METRIC_CAUSE_COUNT];
    counter errors[APIERR_CODE_COUNT];
    counter http[METRIC_ENDPOINTS][METRIC_STATUSES];
    struct histogram http_seconds[METRIC_ENDPOINTS];
    counter worker_failures[SNAPSHOT_WORKERS_MAX][BACKEND_FAILURE_COUNT];
    struct {
        counter rounds, tokens, prompt_tokens;
        counter drafted[FRAME_DRAFT_KINDS], accepted[FRAME_DRAFT_KINDS];
    } worker_counts[SNAPSHOT_WORKERS_MAX];
    struct histogram worker_rounds[SNAPSHOT_WORKERS_MAX];

    pthread_mutex_t names_lock; // of the rest
    struct {
        char *name;
        uint64_t count;
    } unknown[UNKNOWN_NAMES];
    size_t unknown_count;
    uint64_t unknown_other;
    struct metric_key {
        char *name;
        uint64_t prompt, generated;
    } keys[METRIC_KEYS];
    size_t key_count;
};

extern const struct histogram_form histogram_forms[METRIC_HISTOGRAM_COUNT];
extern const struct histogram_form worker_round_form, http_seconds_form;
extern const char *const metric_endpoints[METRIC_ENDPOINTS];
extern const int metric_statuses[METRIC_STATUSES];
