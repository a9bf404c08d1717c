/* metrics: see metrics.h. Counting here, the page's text in metrics_page.c. */
#include "router/metrics.h"
#include "common/mem.h"
#include "router/metrics_priv.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#define BUCKETS(...)                                                                               \
    (const double[]){__VA_ARGS__}, sizeof((const double[]){__VA_ARGS__}) / sizeof(double)

#define FIRST_TOKEN                                                                                \
    BUCKETS(.001, .005, .01, .02, .04, .06, .08, .1, .25, .5, .75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, \
            160, 640, 2560)
#define BETWEEN_TOKENS                                                                             \
    BUCKETS(.01, .025, .05, .075, .1, .15, .2, .3, .4, .5, .75, 1, 2.5, 5, 7.5, 10, 20, 40, 80)
#define REQUEST_TIMES                                                                              \
    BUCKETS(.3, .5, .8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920,   \
            7680)
#define TOKEN_COUNTS                                                                               \
    BUCKETS(1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 20000, 50000, 100000,     \
            200000)
#define SHORT_TIMES BUCKETS(.0001, .0003, .001, .003, .01, .03, .1, .3, 1, 3)

#define S 1e-9 // sums of seconds are kept in whole nanoseconds

const struct histogram_form histogram_forms[METRIC_HISTOGRAM_COUNT] = {
    [METRIC_FIRST_TOKEN_S] = {"vllm:time_to_first_token_seconds",
                              "From the whole request to its first token", S, FIRST_TOKEN},
    [METRIC_INTER_TOKEN_S] = {"vllm:inter_token_latency_seconds", "Between two tokens of a stream",
                              S, BETWEEN_TOKENS},
    [METRIC_PER_OUTPUT_TOKEN_S] = {"vllm:request_time_per_output_token_seconds",
                                   "Decode time of a request by its tokens", S, BETWEEN_TOKENS},
    [METRIC_E2E_S] = {"vllm:e2e_request_latency_seconds", "From the whole request to its end", S,
                      REQUEST_TIMES},
    [METRIC_QUEUE_S] = {"vllm:request_queue_time_seconds", "Time in the queue", S, REQUEST_TIMES},
    [METRIC_PREFILL_S] = {"vllm:request_prefill_time_seconds", "Time in the fill of the prompt", S,
                          REQUEST_TIMES},
    [METRIC_DECODE_S] = {"vllm:request_decode_time_seconds",
                         "Time from the first token to the last", S, REQUEST_TIMES},
    [METRIC_INFERENCE_S] = {"vllm:request_inference_time_seconds", "Time at the worker", S,
                            REQUEST_TIMES},
    [METRIC_REQUEST_PROMPT_TOKENS] = {"vllm:request_prompt_tokens", "Prompt tokens of a request", 1,
                                      TOKEN_COUNTS},
    [METRIC_REQUEST_GENERATION_TOKENS] = {"vllm:request_generation_tokens",
                                          "Generated tokens of a request", 1, TOKEN_COUNTS},
    [METRIC_REQUEST_MAX_TOKENS] = {"vllm:request_params_max_tokens", "Token limit of a request", 1,
                                   TOKEN_COUNTS},
    [METRIC_REQUEST_N] = {"vllm:request_params_n", "Choices asked for", 1, BUCKETS(1, 2, 5, 10)},
    [METRIC_TOKENS_PER_ROUND] = {"railyard_tokens_per_round", "Tokens a stream got in a round", 1,
                                 BUCKETS(1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 24, 32)},
    [METRIC_LOOP_LAG_S] = {"railyard_loop_lag_seconds", "Lateness of the request loop's tick", S,
                           SHORT_TIMES},
    [METRIC_RESUME_PAUSE_S] = {"railyard_resume_pause_seconds",
                               "From the loss of a worker to the next token of its streams", S,
                               REQUEST_TIMES},
    [METRIC_TOKENIZE_S] = {"railyard_tokenize_seconds", "Rendering and tokenising a prompt", S,
                           SHORT_TIMES},
    [METRIC_JSON_PARSE_S] = {"railyard_json_parse_seconds", "Parsing a body", S, SHORT_TIMES},
};

const struct histogram_form worker_round_form = {"railyard_worker_round_seconds",
                                                 "Time of a worker's round", S, BETWEEN_TOKENS};
const struct histogram_form http_seconds_form = {"railyard_http_request_seconds",
                                                 "From the whole request to the end of its reply",
                                                 S, REQUEST_TIMES};

const char *const metric_endpoints[METRIC_ENDPOINTS] = {
    "chat_completions", "completions", "render",  "models", "tokenize",
    "detokenize",       "health",      "livez",   "readyz", "metrics",
    "version",          "admin",       "openapi", "none"};
const int metric_statuses[METRIC_STATUSES] = {200, 204, 400, 401, 403, 404, 405, 408, 413, 414,
                                              415, 429, 431, 499, 500, 503, 504, 529, 0};

struct metrics *metrics_new(const char *model_name) {
    struct metrics *m = mem_calloc(1, sizeof *m);
    m->model_name = mem_strdup(model_name);
    pthread_mutex_init(&m->names_lock, NULL);
    return m;
}

void metrics_free(struct metrics *m) {
    if (!m) return;
    for (size_t i = 0; i < m->unknown_count; i++) free(m->unknown[i].name);
    for (size_t i = 0; i < m->key_count; i++) free(m->keys[i].name);
    pthread_mutex_destroy(&m->names_lock);
    free(m->model_name);
    free(m);
}

static void add(counter *c, uint64_t n) {
    atomic_fetch_add_explicit(c, n, memory_order_relaxed);
}

void metrics_add(struct metrics *m, enum metric which, uint64_t n) {
    add(&m->all.counters[which], n);
}

void metrics_add_at(struct metrics *m, int32_t rank, enum metric which, uint64_t n) {
    add(&m->all.counters[which], n);
    if (rank >= 0 && rank < METRIC_RANKS) add(&m->ranks[rank].counters[which], n);
}

uint64_t metrics_get(const struct metrics *m, enum metric which) {
    return counter_get(&m->all.counters[which]);
}

static void observe(struct histogram *h, const struct histogram_form *form, double x,
                    uint64_t times) {
    size_t i = 0;
    while (i < form->bound_count && x > form->bounds[i]) i++;
    add(&h->buckets[i], times);
    add(&h->sum, (uint64_t)(x / form->unit + 0.5) * times);
}

void metrics_observe(struct metrics *m, enum metric_histogram which, double x, uint64_t times) {
    observe(&m->all.histograms[which], &histogram_forms[which], x, times);
}

void metrics_observe_at(struct metrics *m, int32_t rank, enum metric_histogram which, double x,
                        uint64_t times) {
    const struct histogram_form *form = &histogram_forms[which];
    observe(&m->all.histograms[which], form, x, times);
    if (rank >= 0 && rank < METRIC_RANKS)
        observe(&m->ranks[rank].histograms[which], form, x, times);
}

static void set(gauge *g, uint64_t n) {
    atomic_store_explicit(g, (int64_t)n, memory_order_relaxed);
}

void metrics_set_live(struct metrics *m, const struct metrics_live *l) {
    set(&m->live_streams, l->streams);
    set(&m->queued_choices, l->queued_choices);
    set(&m->queued_requests, l->queued_requests);
    set(&m->queued_tokens, l->queued_tokens);
}

void metrics_get_queue(const struct metrics *m, uint64_t *ret_requests, uint64_t *ret_tokens) {
    *ret_requests = (uint64_t)gauge_get(&m->queued_requests);
    *ret_tokens = (uint64_t)gauge_get(&m->queued_tokens);
}

void metrics_in_flight(struct metrics *m, int change) {
    atomic_fetch_add_explicit(&m->in_flight, change, memory_order_relaxed);
}

uint64_t metrics_get_in_flight(const struct metrics *m) {
    return (uint64_t)gauge_get(&m->in_flight);
}

void metrics_connections(struct metrics *m, bool is_http2, int change) {
    if (m) atomic_fetch_add_explicit(&m->connections[is_http2], change, memory_order_relaxed);
}

void metrics_streams_open(struct metrics *m, int change) {
    atomic_fetch_add_explicit(&m->streams_open, change, memory_order_relaxed);
}

void metrics_client_closed(struct metrics *m, enum metric_phase phase) {
    add(&m->client_closed[phase], 1);
}

void metrics_resume(struct metrics *m, enum metric_resume result, enum metric_cause cause) {
    add(&m->resumes[result][cause], 1);
}

void metrics_success(struct metrics *m, int32_t rank, enum metric_reason reason) {
    add(&m->all.success[reason], 1);
    if (rank >= 0 && rank < METRIC_RANKS) add(&m->ranks[rank].success[reason], 1);
}

void metrics_error(struct metrics *m, enum apierr_code code) {
    add(&m->errors[code], 1);
}

void metrics_worker_failed(struct metrics *m, uint32_t rank, enum backend_failure why) {
    if (rank < SNAPSHOT_WORKERS_MAX) add(&m->worker_failures[rank][why], 1);
}

void metrics_worker_round(struct metrics *m, uint32_t rank, double seconds, uint64_t tokens) {
    if (rank >= SNAPSHOT_WORKERS_MAX) return;
    observe(&m->worker_rounds[rank], &worker_round_form, seconds, 1);
    add(&m->worker_counts[rank].rounds, 1);
    add(&m->worker_counts[rank].tokens, tokens);
}

void metrics_worker_filled(struct metrics *m, uint32_t rank, uint64_t prompt_tokens) {
    if (rank < SNAPSHOT_WORKERS_MAX) add(&m->worker_counts[rank].prompt_tokens, prompt_tokens);
}

void metrics_worker_drafted(struct metrics *m, uint32_t rank,
                            const uint64_t drafted[FRAME_DRAFT_KINDS],
                            const uint64_t accepted[FRAME_DRAFT_KINDS]) {
    for (uint32_t k = 0; rank < SNAPSHOT_WORKERS_MAX && k < FRAME_DRAFT_KINDS; k++) {
        add(&m->worker_counts[rank].drafted[k], drafted[k]);
        add(&m->worker_counts[rank].accepted[k], accepted[k]);
    }
}

void metrics_key_tokens(struct metrics *m, const char *key, uint64_t prompt, uint64_t generated) {
    pthread_mutex_lock(&m->names_lock);
    size_t i = 0;
    while (i < m->key_count && strcmp(m->keys[i].name, key)) i++;
    if (i == METRIC_KEYS) i--;
    if (i == m->key_count) {
        m->keys[i].name = mem_strdup(i == METRIC_KEYS - 1 ? "other" : key);
        m->key_count++;
    }
    m->keys[i].prompt += prompt;
    m->keys[i].generated += generated;
    pthread_mutex_unlock(&m->names_lock);
}

// A name that could be a field's, else "other": it becomes a label.
static bool is_plain_name(const char *s) {
    size_t n = strlen(s);
    if (n == 0 || n > UNKNOWN_NAME_MAX) return false;
    for (size_t i = 0; i < n; i++)
        if (!isalnum((unsigned char)s[i]) && s[i] != '_' && s[i] != '-' && s[i] != '.')
            return false;
    return true;
}

void metrics_unknown_field(struct metrics *m, const char *name) {
    pthread_mutex_lock(&m->names_lock);
    size_t i = 0;
    while (i < m->unknown_count && strcmp(m->unknown[i].name, name)) i++;
    if (i < m->unknown_count) {
        m->unknown[i].count++;
    } else if (i < UNKNOWN_NAMES && is_plain_name(name)) {
        m->unknown[i].name = mem_strdup(name);
        m->unknown[i].count = 1;
        m->unknown_count++;
    } else {
        m->unknown_other++;
    }
    pthread_mutex_unlock(&m->names_lock);
}

void metrics_http(struct metrics *m, const char *endpoint, int status, double seconds) {
    size_t e = 0, s = 0;
    while (e < METRIC_ENDPOINTS - 1 && (!endpoint || strcmp(metric_endpoints[e], endpoint))) e++;
    while (s < METRIC_STATUSES - 1 && metric_statuses[s] != status) s++;
    add(&m->http[e][s], 1);
    observe(&m->http_seconds[e], &http_seconds_form, seconds, 1);
}
