/* request: see request.h. */
#include "router/request.h"
#include "common/err.h"
#include "common/log.h"
#include "common/mem.h"
#include "common/mono.h"
#include "common/num.h"
#include "router/apierr.h"
#include "router/config.h"
#include "router/http.h"
#include "router/keys.h"
#include "router/listen.h"
#include "router/metrics.h"
#include "router/model.h"
#include "router/nonce.h"
#include "router/prepare.h"
#include "router/relay.h"
#include "router/send.h"
#include "router/server.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum {
    INLINE_BODY_BYTES = 16 << 10, // a larger body is parsed and tokenised on the pool
    REQUEST_TRACE_BYTES_MAX = 128,
};

struct prepare_job { // of a body that a pool thread prepares
    uv_work_t work;
    struct request *request;
    struct prepare prepare;
    char *body; // a copy: h2o frees its own when an HTTP/2 stream is reset
    int st;
    struct apierr e;
};

/* ---- the end ---- */

static void fill_facts(const struct request *r) {
    static const char *const finishes[] = {"stop", "length", "tool_calls"};
    if (!r->send) return;
    struct request_usage u = request_usage(r);
    struct request_figures g = request_figures(r);
    struct access_facts *f = &r->call->facts;
    f->generated = true;
    f->stream = r->params.stream;
    f->n = (uint32_t)r->params.n;
    f->worker = g.rank;
    f->prompt_tokens = u.prompt;
    f->cached_tokens = u.cached;
    f->completion_tokens = u.completion;
    f->reasoning_tokens = u.reasoning;
    f->queue_ms = g.queue_ms;
    f->prefill_ms = g.prefill_ms;
    f->first_token_ms = g.first_token_ms;
    f->rounds = g.rounds;
    f->drafted = g.drafted;
    f->accepted = g.accepted;
    f->resumed = g.resumed;
    snprintf(f->id, sizeof f->id, "%s", r->id);
    if (r->choice_count == 0 || !r->choices[0].ended) return;
    f->finish_reason = finishes[r->choices[0].finish];
    reply_token_sha256(r->choices[0].reply, f->token_sha256);
}

static void free_request(struct request *r) {
    if (r->params.stream && r->accepted) metrics_streams_open(r->server->metrics, -1);
    TAILQ_REMOVE(&r->server->requests, r, link);
    for (uint32_t i = 0; i < r->choice_count; i++) choice_fini(&r->choices[i]);
    for (uint32_t i = 0; i < r->prompt_count; i++) ids_fini(&r->prompts[i].ids);
    free(r->choices);
    params_fini(&r->params);
    strbuf_fini(&r->chunk_head);
    arena_fini(&r->arena);
    free(r);
}

static int32_t rank_of(const struct request *r) {
    return r->choice_count ? r->choices[0].rank : -1;
}

// Every way out. The send has been ended, or is gone.
static void over(struct request *r, enum metric how, enum metric_reason reason) {
    struct server *s = r->server;
    bool had_room = false;
    r->send = NULL;
    for (uint32_t i = 0; i < r->choice_count; i++) {
        struct choice *c = &r->choices[i];
        queue_remove(&s->queue, &c->queue_item);
        had_room |= c->stream.id != 0;
        relay_cancel(s->relay, c);
    }
    if (r->accepted) {
        metrics_add(s->metrics, how, 1);
        metrics_success(s->metrics, rank_of(r), reason);
        metrics_in_flight(s->metrics, -1);
    }
    // A pool thread still has it: after_prepare frees it.
    if (!r->preparing_on_pool) free_request(r);
    if (had_room) server_want_place(s);
}

void request_fail(struct request *r, const struct apierr *e) {
    if (r->send) {
        // send_error counts the plain answers.
        if (send_begun(r->send)) metrics_error(r->server->metrics, e->code);
        fill_facts(r);
        r->call->facts.code = apierr_name(e->code);
        r->kind->format->error(r, e);
    }
    over(r, METRIC_FAILED, METRIC_REASON_ERROR);
}

// How far the furthest of its choices is.
static enum metric_phase phase_of(const struct request *r) {
    enum metric_phase phase = METRIC_PHASE_QUEUE;
    for (uint32_t i = 0; i < r->choice_count; i++) {
        if (r->choices[i].state >= CHOICE_DECODE) return METRIC_PHASE_DECODE;
        if (r->choices[i].state == CHOICE_PREFILL)
            phase = METRIC_PHASE_PREFILL;
        else if (phase == METRIC_PHASE_QUEUE && resume_waits(&r->choices[i].resume))
            phase = METRIC_PHASE_RESUME;
    }
    return phase;
}

static void on_gone(void *arg) {
    struct request *r = arg;
    metrics_client_closed(r->server->metrics, phase_of(r));
    fill_facts(r);
    r->call->facts.code = apierr_name(APIERR_CLIENT_CLOSED);
    over(r, METRIC_CANCELLED, METRIC_REASON_ABORT);
}

static void observe_choice(const struct choice *c, struct metrics *m) {
    double decode_s = c->first_us ? (double)(c->last_us - c->first_us) / 1e6 : 0;
    if (c->taken > 1)
        metrics_observe_at(m, c->rank, METRIC_PER_OUTPUT_TOKEN_S, decode_s / (double)(c->taken - 1),
                           1);
    metrics_observe_at(m, c->rank, METRIC_REQUEST_GENERATION_TOKENS, (double)c->taken, 1);
    metrics_add_at(m, c->rank, METRIC_PREFIX_QUERIES, choice_prompt(c)->len);
    metrics_add_at(m, c->rank, METRIC_PREFIX_HITS, c->cached_tokens);
    metrics_add_at(m, c->rank, METRIC_DRAFTS, c->draft_rounds);
    for (uint32_t k = 0; k < FRAME_DRAFT_KINDS; k++) {
        metrics_add_at(m, c->rank, METRIC_DRAFTED, c->drafted[k]);
        metrics_add_at(m, c->rank, METRIC_DRAFTS_ACCEPTED, c->accepted[k]);
    }
}

static void observe_end(const struct request *r) {
    struct metrics *m = r->server->metrics;
    struct request_figures g = request_figures(r);
    double now_s = (double)(mono_us() - r->received_us) / 1e6;
    metrics_observe_at(m, g.rank, METRIC_E2E_S, now_s, 1);
    metrics_observe_at(m, g.rank, METRIC_QUEUE_S, g.queue_ms / 1e3, 1);
    metrics_observe_at(m, g.rank, METRIC_PREFILL_S, g.prefill_ms / 1e3, 1);
    metrics_observe_at(m, g.rank, METRIC_DECODE_S, g.decode_ms / 1e3, 1);
    metrics_observe_at(m, g.rank, METRIC_INFERENCE_S, (g.prefill_ms + g.decode_ms) / 1e3, 1);
    for (uint32_t i = 0; i < r->prompt_count; i++)
        metrics_observe_at(m, g.rank, METRIC_REQUEST_PROMPT_TOKENS, (double)r->prompts[i].ids.len,
                           1);
    metrics_observe_at(m, g.rank, METRIC_REQUEST_MAX_TOKENS, r->prompts[0].max_tokens, 1);
    metrics_observe_at(m, g.rank, METRIC_REQUEST_N, (double)r->params.n, 1);
    for (uint32_t i = 0; i < r->choice_count; i++) observe_choice(&r->choices[i], m);
}

static void finish(struct request *r) {
    bool cut = r->choices[0].finish == CHOICE_FINISH_LENGTH;
    fill_facts(r);
    observe_end(r);
    r->kind->format->finish(r);
    over(r, METRIC_FINISHED, cut ? METRIC_REASON_LENGTH : METRIC_REASON_STOP);
}

bool request_choice_over(struct request *r, struct choice *c) {
    r->kind->format->choice_over(c);
    if (--r->choices_open) return true;
    finish(r);
    return false;
}

void request_pump(struct request *r) {
    for (uint32_t i = 0; i < r->choice_count; i++)
        if (!choice_pump(&r->choices[i])) return;
}

static void on_room(void *arg) {
    request_pump(arg);
}

/* ---- the beginning ---- */

void request_set_prompts(struct request *r, uint32_t count) {
    r->prompts = arena_calloc(&r->arena, count, sizeof *r->prompts);
    r->prompt_count = count;
}

static void make_choices(struct request *r) {
    uint32_t n = (uint32_t)r->params.n, count = r->prompt_count * n;
    r->choices = mem_calloc(count, sizeof *r->choices);
    r->choice_count = r->choices_open = count;
    for (uint32_t i = 0; i < count; i++) choice_init(&r->choices[i], r, i, i / n);
}

// In the queue clients wait beside one another by their keys.
static struct queue_who who_of(const struct request *r) {
    const struct key *key = r->call->key;
    return (struct queue_who){.group = *r->group ? r->group
                                       : key     ? key->name
                                                 : "",
                              .weight = key ? key->weight : 1};
}

// All choices or none: the first is held to the bounds with the tokens of all.
static int enqueue(struct request *r) {
    struct queue *q = &r->server->queue;
    struct queue_who who = who_of(r);
    uint64_t now = mono_ms(), tokens = 0;
    for (uint32_t i = 0; i < r->choice_count; i++) tokens += choice_prompt(&r->choices[i])->len;
    for (uint32_t i = 0; i < r->choice_count; i++) {
        struct queue_item *item = &r->choices[i].queue_item;
        item->ticket = &r->ticket;
        item->priority = (int32_t)r->params.priority;
        item->lane = request_lane(r, &r->choices[i]);
        item->tokens = i ? 0 : (uint32_t)min_u64(tokens, UINT32_MAX);
        int st = i ? (queue_follow(q, item, &who, now), ST_OK) : queue_add(q, item, &who, now);
        if (st) return st;
    }
    return ST_OK;
}

static void count_accepted(struct request *r) {
    struct server *s = r->server;
    r->accepted = true;
    metrics_add(s->metrics, METRIC_ACCEPTED, 1);
    metrics_in_flight(s->metrics, 1);
    if (r->params.stream) metrics_streams_open(s->metrics, 1);
}

// What the client's key allows. True: r has ended.
static bool refuse_by_key(struct request *r) {
    const struct key *key = r->call->key;
    const struct model *m = r->server->model;
    if (!key) return false;
    if (r->params.priority < key->priority_min) r->params.priority = key->priority_min;
    if (key_allows_model(key, r->params.model ? r->params.model : m->names[0])) return false;
    struct apierr e;
    apierr_set(&e, APIERR_FORBIDDEN, "model", "this key is not for the model '%s'",
               r->params.model ? r->params.model : m->names[0]);
    request_fail(r, &e);
    return true;
}

// "critical", "standard", "sheddable", or a priority as such. Others say nothing.
static void read_objective(struct request *r, h2o_iovec_t v) {
    static const struct {
        const char *name;
        int64_t priority;
    } names[] = {{"critical", -10}, {"standard", 0}, {"sheddable", 10}};
    char text[16];
    if (v.len == 0 || v.len >= sizeof text) return;
    snprintf(text, sizeof text, "%.*s", (int)v.len, v.base);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (!strcasecmp(text, names[i].name)) r->params.priority = names[i].priority;
    char *end;
    long n = strtol(text, &end, 10);
    if (end != text && !*end && n >= -100 && n <= 100) r->params.priority = n;
}

// What a gateway in front says about who asks and how urgent it is.
static void hear_gateway(struct request *r) {
    h2o_req_t *req = r->call->req;
    if (!conn_is_proxy(r->call->conn)) return;
    h2o_iovec_t id = http_header(req, "x-gateway-inference-fairness-id");
    if (id.len) snprintf(r->group, sizeof r->group, "%.*s", (int)min_size(id.len, 1024), id.base);
    read_objective(r, http_header(req, "x-gateway-inference-objective"));
}

static void note_affinity(struct request *r) {
    h2o_iovec_t session = http_header(r->call->req, "x-session-id");
    const struct params *p = &r->params;
    if (p->prompt_cache_key && *p->prompt_cache_key)
        r->affinity = hash_u64(p->prompt_cache_key, strlen(p->prompt_cache_key));
    else if (session.len && session.len <= REQUEST_SESSION_BYTES_MAX)
        r->affinity = hash_u64(session.base, session.len);
    else if (p->user && *p->user)
        r->affinity = hash_u64(p->user, strlen(p->user));
}

// What the head says beside the body. h2o may free the head with the stream.
static void read_head(struct request *r) {
    h2o_iovec_t trace = http_header(r->call->req, "traceparent");
    if (trace.len && trace.len <= REQUEST_TRACE_BYTES_MAX) {
        char *copy = arena_alloc(&r->arena, trace.len + 1);
        snprintf(copy, trace.len + 1, "%.*s", (int)trace.len, trace.base);
        r->trace = copy;
    }
    hear_gateway(r);
    note_affinity(r);
}

// What the client says it waits for its reply or its first token. 0: nothing. In ms.
static double patience_ms(const struct request *r) {
    static const struct {
        const char *name;
        double ms;
    } hints[] = {
        {"x-stainless-read-timeout", 1000}, {"x-stainless-timeout", 1000}, {"x-slo-ttft-ms", 1}};
    double least = 0;
    for (size_t i = 0; i < sizeof hints / sizeof *hints; i++) {
        h2o_iovec_t v = http_header(r->call->req, hints[i].name);
        char text[24], *end;
        if (v.len == 0 || v.len >= sizeof text) continue;
        snprintf(text, sizeof text, "%.*s", (int)v.len, v.base);
        double ms = strtod(text, &end) * hints[i].ms;
        if (end == text || *end || !(ms > 0)) continue;
        if (least <= 0 || ms < least) least = ms;
    }
    return least;
}

// It would be gone before its turn. True: r has ended.
static bool refuse_impatient(struct request *r) {
    const struct queue *q = &r->server->queue;
    double wait_ms = queue_wait_s(q) * 1000, patience = patience_ms(r);
    if (!r->server->config->use_client_timeout || patience <= 0 || wait_ms <= patience)
        return false;
    struct apierr e;
    apierr_set(&e, APIERR_QUEUE_FULL, NULL,
               "the wait would be %.0f ms, longer than the client's %.0f ms", wait_ms, patience);
    e.retry_after_ms = queue_retry_ms(q, nonce_u64());
    request_fail(r, &e);
    return true;
}

// At its worker alone. What has begun goes on wherever it can.
static bool is_bound(const struct request *r, const struct choice *c) {
    return r->pinned >= 0 && !resume_waits(&c->resume) && !c->resume.times;
}

bool request_may_run_at(const struct request *r, const struct choice *c, uint32_t rank) {
    return !is_bound(r, c) || (uint32_t)r->pinned == rank;
}

enum queue_lane request_lane(const struct request *r, const struct choice *c) {
    static_assert((int)SERVER_WORKER_PORTS == (int)QUEUE_WORKERS_MAX, "a lane for each port");
    if (c->ids.len) return QUEUE_LOOSE;
    return is_bound(r, c) ? (enum queue_lane)(QUEUE_WORKER + r->pinned) : QUEUE_ANY;
}

// Its own worker is not there. True: r has ended.
static bool refuse_without_worker(struct request *r) {
    struct apierr e;
    if (r->pinned < 0 || server_worker_ready(r->server, (uint32_t)r->pinned)) return false;
    apierr_set(&e, APIERR_NO_READY_WORKER, NULL, "worker %d is not ready", r->pinned);
    e.retry_after_ms = 1000;
    request_fail(r, &e);
    return true;
}

static void admit(struct request *r) {
    struct server *s = r->server;
    read_head(r);
    if (s->refusing) {
        struct apierr e;
        server_draining(s, &e);
        request_fail(r, &e);
        return;
    }
    if (refuse_by_key(r) || refuse_without_worker(r) || refuse_impatient(r)) return;
    make_choices(r);
    if (r->params.echo_only) { // nothing is generated
        count_accepted(r);
        for (uint32_t i = 0; i < r->choice_count; i++) {
            r->choices[i].finish = CHOICE_FINISH_LENGTH;
            if (!choice_ids_ended(&r->choices[i])) return;
        }
        return;
    }
    if (enqueue(r)) {
        struct apierr e;
        apierr_set(&e, APIERR_QUEUE_FULL, NULL, "the queue is full: %u requests wait",
                   s->queue.requests);
        e.retry_after_ms = queue_retry_ms(&s->queue, nonce_u64());
        request_fail(r, &e);
        return;
    }
    count_accepted(r);
    server_want_place(s);
}

static void after_prepare(uv_work_t *w, int status) {
    struct prepare_job *job = w->data;
    struct request *r = job->request;
    r->preparing_on_pool = false;
    if (!r->send)
        free_request(r); // the client left meanwhile
    else if (job->st)
        request_fail(r, &job->e);
    else
        admit(r);
    free(job->body);
    free(job);
}

static void prepare_on_pool(uv_work_t *w) {
    struct prepare_job *job = w->data;
    job->st = job->request->kind->prepare(&job->prepare, job->request, &job->e);
}

static void start_job(struct request *r, const struct prepare *p) {
    struct prepare_job *job = mem_calloc(1, sizeof *job);
    job->body = mem_alloc(p->body_len);
    memcpy(job->body, p->body, p->body_len);
    job->request = r;
    job->prepare = *p;
    job->prepare.body = job->body;
    job->work.data = job;
    r->preparing_on_pool = true;
    int rc = uv_queue_work(&r->server->loop, &job->work, prepare_on_pool, after_prepare);
    assert(rc == 0);
}

static struct request *request_new(struct server *s, struct http_call *c,
                                   const struct request_kind *kind) {
    struct request *r = mem_calloc(1, sizeof *r);
    r->server = s;
    r->kind = kind;
    r->call = c;
    r->created_s = wall_s();
    r->received_us = c->begun_us;
    r->deadline_ms = c->begun_us / 1000 + (uint64_t)(s->config->request_s * 1000);
    size_t n = (size_t)snprintf(r->id, sizeof r->id, "%s", kind->id_prefix);
    nonce_hex(r->id + n, 32);
    memcpy(r->request_id, c->request_id, sizeof r->request_id);
    r->pinned = listener_rank(c->listener);
    r->trace = "";
    TAILQ_INSERT_TAIL(&s->requests, r, link);
    r->send = send_new(c, listener_sends(c->listener),
                       &(struct send_events){.arg = r, .on_gone = on_gone, .on_room = on_room});
    return r;
}

// X-Request-Timeout-Ms: a whole number of 1 .. limits.request_s * 1000.
static int read_timeout(struct request *r, struct apierr *e) {
    h2o_iovec_t v = http_header(r->call->req, "x-request-timeout-ms");
    if (!v.base) return ST_OK;
    double max = r->server->config->request_s * 1000;
    uint64_t ms = 0;
    bool fine = v.len > 0 && v.len <= 12;
    for (size_t i = 0; fine && i < v.len; i++) {
        fine = v.base[i] >= '0' && v.base[i] <= '9';
        ms = ms * 10 + (uint64_t)(v.base[i] - '0');
    }
    char clip[APIERR_CLIP_BYTES];
    if (!fine || ms < 1 || (double)ms > max)
        return apierr_set(e, APIERR_INVALID_VALUE, "X-Request-Timeout-Ms",
                          "X-Request-Timeout-Ms must be 1 to %.0f, got %s", max,
                          apierr_clip(clip, v.base, v.len));
    r->deadline_ms = r->received_us / 1000 + ms;
    return ST_OK;
}

void request_start(struct server *s, struct http_call *c, const struct request_kind *kind) {
    struct request *r = request_new(s, c, kind);
    struct prepare p = {.config = s->config,
                        .model = s->model,
                        .metrics = s->metrics,
                        .context_max = server_context_max(s),
                        .body = c->req->entity.base ? c->req->entity.base : "",
                        .body_len = c->req->entity.len};
    struct apierr e;
    int st = read_timeout(r, &e);
    if (!st && p.body_len > INLINE_BODY_BYTES) {
        start_job(r, &p);
        return;
    }
    if (!st) st = kind->prepare(&p, r, &e);
    if (st)
        request_fail(r, &e);
    else
        admit(r);
}

/* ---- time ---- */

static void fail_deadline(struct request *r) {
    struct apierr e;
    apierr_set(&e, APIERR_DEADLINE, NULL, "the request's deadline has passed");
    request_fail(r, &e);
}

// A reply that lost its worker waits for one that can go on with it.
static bool fail_resuming(struct choice *c, uint64_t now_ms) {
    struct server *s = c->request->server;
    double wait_ms = s->config->resume_s * 1000;
    if (now_ms < c->resume.since_ms || (double)(now_ms - c->resume.since_ms) < wait_ms)
        return false;
    struct apierr e;
    apierr_set(&e, APIERR_WORKER_LOST, NULL,
               "the worker that ran this request was lost, and within %.15g s no worker like it "
               "had room",
               s->config->resume_s);
    e.retry_after_ms = 1000;
    metrics_resume(s->metrics, METRIC_RESUME_NO_WORKER, c->resume.cause);
    request_fail(c->request, &e);
    return true;
}

static bool fail_waiting(struct choice *c, uint64_t now_ms) {
    struct request *r = c->request;
    struct server *s = r->server;
    if (c->state != CHOICE_QUEUED) return false;
    if (resume_waits(&c->resume)) return fail_resuming(c, now_ms);
    struct apierr e = {0};
    uint64_t waited = mono_since(c->queue_item.since_ms, now_ms);
    uint64_t without = s->no_ready_since_ms ? mono_since(s->no_ready_since_ms, now_ms) : 0;
    uint64_t no_worker = waited < without ? waited : without;
    bool away = r->pinned >= 0 && !server_worker_ready(s, (uint32_t)r->pinned);
    if (away && (double)waited >= s->config->wait_ready_s * 1000) {
        refuse_without_worker(r);
        return true;
    }
    if (s->no_ready_since_ms && (double)no_worker >= s->config->wait_ready_s * 1000) {
        server_no_worker(s, &e);
    } else if ((double)waited >= s->config->queue_wait_s * 1000) {
        apierr_set(&e, APIERR_QUEUE_TIMEOUT, NULL, "no worker had room within %.15g s",
                   s->config->queue_wait_s);
        e.retry_after_ms = queue_retry_ms(&s->queue, nonce_u64());
    } else {
        return false;
    }
    request_fail(c->request, &e);
    return true;
}

static void tick_stream(struct request *r, uint64_t now_ms) {
    const struct config *c = r->server->config;
    if (!send_begun(r->send)) {
        uint64_t age = mono_since(r->received_us / 1000, now_ms);
        if ((double)age >= c->first_byte_s * 1000) r->kind->format->begin(r);
        return;
    }
    bool silent = (double)mono_since(send_last_ms(r->send), now_ms) >= c->stream_keepalive_s * 1000;
    if (!silent || send_waiting_bytes(r->send)) return;
    strbuf_add_str(send_buffer(r->send), ": keepalive\n\n");
    send_touch(r->send);
}

// A space now and then, so that a proxy in front sees that there is life.
static void tick_whole(struct request *r, uint64_t now_ms) {
    const struct config *c = r->server->config;
    if (!send_begun(r->send)) {
        uint64_t age = mono_since(r->received_us / 1000, now_ms);
        if ((double)age >= c->first_byte_s * 1000) r->kind->format->begin(r);
        return;
    }
    bool silent = (double)mono_since(send_last_ms(r->send), now_ms) >= c->whitespace_s * 1000;
    if (!silent || send_waiting_bytes(r->send)) return;
    strbuf_add_char(send_buffer(r->send), ' ');
    send_touch(r->send);
}

void request_tick(struct request *r, uint64_t now_ms) {
    if (!r->accepted) return;
    if (now_ms >= r->deadline_ms) {
        fail_deadline(r);
        return;
    }
    for (uint32_t i = 0; i < r->choice_count; i++)
        if (fail_waiting(&r->choices[i], now_ms)) return;
    if (r->params.stream)
        tick_stream(r, now_ms);
    else if (r->server->config->whitespace_s > 0)
        tick_whole(r, now_ms);
}

/* ---- figures ---- */

struct request_usage request_usage(const struct request *r) {
    struct request_usage u = {0};
    for (uint32_t i = 0; i < r->prompt_count; i++) u.prompt += (uint32_t)r->prompts[i].ids.len;
    for (uint32_t i = 0; i < r->choice_count; i++) {
        const struct choice *c = &r->choices[i];
        // A prompt counts once, however many choices it has.
        if (i % (uint32_t)r->params.n == 0) u.cached += c->cached_tokens;
        u.completion += (uint32_t)c->taken;
        u.reasoning += (uint32_t)reply_reasoning_tokens(c->reply);
    }
    return u;
}

static double ms_between(uint64_t from_us, uint64_t to_us) {
    return from_us && to_us > from_us ? (double)(to_us - from_us) / 1000 : 0;
}

// The earlier of two moments, of which 0 is not known.
static uint64_t earlier(uint64_t a, uint64_t b) {
    return !a || (b && b < a) ? b : a;
}

struct request_figures request_figures(const struct request *r) {
    struct request_figures f = {.rank = r->choice_count ? r->choices[0].rank : -1};
    uint64_t submitted_us = 0, first_us = 0, last_us = 0;
    for (uint32_t i = 0; i < r->choice_count; i++) {
        const struct choice *c = &r->choices[i];
        submitted_us = earlier(submitted_us, c->submitted_us);
        first_us = earlier(first_us, c->first_us);
        last_us = max_u64(last_us, c->last_us);
        f.rounds += c->rounds;
        for (uint32_t k = 0; k < FRAME_DRAFT_KINDS; k++) {
            f.drafted += c->drafted[k];
            f.accepted += c->accepted[k];
            f.drafted_by[k] += c->drafted[k];
            f.accepted_by[k] += c->accepted[k];
        }
        f.resumed += c->resume.times;
    }
    f.queue_ms = ms_between(r->received_us, submitted_us);
    f.prefill_ms = ms_between(submitted_us, first_us);
    f.first_token_ms = ms_between(r->received_us, first_us);
    f.decode_ms = ms_between(first_us, last_us);
    return f;
}
