/* request: see request.h. */
#include "router/request.h"
#include "common/err.h"
#include "common/log.h"
#include "common/mem.h"
#include "common/mono.h"
#include "router/apierr.h"
#include "router/config.h"
#include "router/http.h"
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

enum {
    INLINE_BODY_BYTES = 16 << 10, // a larger body is parsed and tokenised on the pool
    PUMP_IDS = 64,                // turned into text between two looks at the client's buffer
};

struct prepare_job { // of a body that a pool thread prepares
    uv_work_t work;
    struct request *request;
    struct prepare prepare;
    char *body; // a copy: h2o frees its own when an HTTP/2 stream is reset
    int st;
    struct apierr e;
};

static bool is_accepted(const struct request *r) {
    return r->state != REQUEST_PREPARING;
}

/* ---- the end ---- */

static void fill_facts(const struct request *r) {
    static const char *const finishes[] = {"stop", "length"};
    if (!r->send) return;
    struct request_usage u = request_usage(r);
    struct access_facts *f = &r->call->facts;
    f->generated = true;
    f->stream = r->params.stream;
    f->worker = r->rank;
    f->prompt_tokens = u.prompt;
    f->cached_tokens = u.cached;
    f->completion_tokens = u.completion;
    f->reasoning_tokens = u.reasoning;
    f->queue_ms = request_queue_ms(r);
    f->prefill_ms = request_prefill_ms(r);
    f->first_token_ms = request_first_token_ms(r);
    f->rounds = r->rounds;
    f->drafted = r->drafted;
    f->accepted = r->accepted;
    snprintf(f->id, sizeof f->id, "%s", r->id);
    if (!r->ended) return;
    f->finish_reason = finishes[r->finish];
    reply_token_sha256(r->reply, f->token_sha256);
}

static void free_request(struct request *r) {
    if (r->params.stream && is_accepted(r)) metrics_streams_open(r->server->metrics, -1);
    TAILQ_REMOVE(&r->server->requests, r, link);
    params_fini(&r->params);
    ids_fini(&r->prompt);
    ids_fini(&r->ids);
    reply_free(r->reply);
    reply_delta_fini(&r->delta);
    strbuf_fini(&r->reasoning);
    strbuf_fini(&r->content);
    strbuf_fini(&r->chunk_head);
    arena_fini(&r->arena);
    free(r);
}

// Every way out. The send has been ended, or is gone.
static void over(struct request *r, enum metric how, enum metric_reason reason) {
    struct server *s = r->server;
    r->send = NULL;
    queue_remove(&s->queue, &r->queue_item);
    bool had_room = r->stream.id != 0;
    relay_cancel(s->relay, r);
    if (is_accepted(r)) {
        metrics_add(s->metrics, how, 1);
        metrics_success(s->metrics, reason);
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
        r->format->error(r, e);
    }
    over(r, METRIC_FAILED, METRIC_REASON_ERROR);
}

static enum metric_phase phase_of(const struct request *r) {
    switch (r->state) {
    case REQUEST_PREPARING:
    case REQUEST_QUEUED: return METRIC_PHASE_QUEUE;
    case REQUEST_PREFILL: return METRIC_PHASE_PREFILL;
    default: return METRIC_PHASE_DECODE;
    }
}

static void on_gone(void *arg) {
    struct request *r = arg;
    metrics_client_closed(r->server->metrics, phase_of(r));
    fill_facts(r);
    r->call->facts.code = apierr_name(APIERR_CLIENT_CLOSED);
    over(r, METRIC_CANCELLED, METRIC_REASON_ABORT);
}

static void observe_end(const struct request *r) {
    struct metrics *m = r->server->metrics;
    double decode_s = request_decode_ms(r) / 1e3;
    double now_s = (double)(mono_us() - r->received_us) / 1e6;
    metrics_observe(m, METRIC_E2E_S, now_s, 1);
    metrics_observe(m, METRIC_QUEUE_S, request_queue_ms(r) / 1e3, 1);
    metrics_observe(m, METRIC_PREFILL_S, request_prefill_ms(r) / 1e3, 1);
    metrics_observe(m, METRIC_DECODE_S, decode_s, 1);
    metrics_observe(m, METRIC_INFERENCE_S, (request_prefill_ms(r) + request_decode_ms(r)) / 1e3, 1);
    if (r->taken > 1)
        metrics_observe(m, METRIC_PER_OUTPUT_TOKEN_S, decode_s / (double)(r->taken - 1), 1);
    metrics_observe(m, METRIC_REQUEST_PROMPT_TOKENS, (double)r->prompt.len, 1);
    metrics_observe(m, METRIC_REQUEST_GENERATION_TOKENS, (double)r->taken, 1);
    metrics_observe(m, METRIC_REQUEST_MAX_TOKENS, r->max_tokens, 1);
    metrics_observe(m, METRIC_REQUEST_N, (double)r->params.n, 1);
    metrics_add(m, METRIC_PREFIX_QUERIES, r->prompt.len);
    metrics_add(m, METRIC_PREFIX_HITS, r->cached_tokens);
    metrics_add(m, METRIC_DRAFTED, r->drafted);
    metrics_add(m, METRIC_DRAFTS_ACCEPTED, r->accepted);
}

static void finish(struct request *r) {
    fill_facts(r);
    observe_end(r);
    r->format->finish(r);
    over(r, METRIC_FINISHED,
         r->finish == REQUEST_FINISH_STOP ? METRIC_REASON_STOP : METRIC_REASON_LENGTH);
}

/* ---- ids to text ---- */

// Ids that may become text now. The last one waits while it could be the stop id that ends the reply without text.
static size_t usable_ids(const struct request *r) {
    size_t n = r->ids.len - r->taken;
    if (r->ended) return n - (r->silent_last && n > 0);
    if (n == 0) return 0;
    uint32_t last = r->ids.v[r->ids.len - 1];
    bool stops = !r->params.ignore_eos && model_is_stop_id(r->server->model, last);
    for (uint32_t i = 0; i < r->params.stop_id_count; i++) stops |= r->params.stop_ids[i] == last;
    return n - stops;
}

static bool has_room(const struct request *r) {
    return !r->params.stream || !send_begun(r->send) ||
           send_waiting_bytes(r->send) < (size_t)r->server->config->stream_buffer_bytes_max;
}

static void deliver(struct request *r) {
    r->format->delta(r, &r->delta);
    r->rounds_waiting = 0;
    reply_delta_reset(&r->delta);
}

// True: a stop string is complete and nothing behind it counts.
static bool push_step(struct request *r, size_t usable) {
    size_t n = usable < PUMP_IDS ? usable : PUMP_IDS;
    r->taken += reply_push(r->reply, r->ids.v + r->taken, n, &r->delta);
    bool stopped = reply_state(r->reply) != REPLY_OPEN;
    deliver(r);
    return stopped;
}

static void end_at_stop_string(struct request *r) {
    relay_cancel(r->server->relay, r);
    r->ended = true;
    r->finish = REQUEST_FINISH_STOP;
    r->stop_id = -1;
    r->silent_last = false;
    r->has_logits_hash = false; // the worker's covers rows behind the stop too
    r->ids.len = r->taken;
}

void request_pump(struct request *r) {
    size_t usable;
    while ((usable = usable_ids(r)) > 0 && has_room(r)) {
        if (!push_step(r, usable)) continue;
        end_at_stop_string(r);
        break;
    }
    if (!r->ended || usable_ids(r) > 0) return;
    if (r->silent_last && r->taken < r->ids.len) reply_push_stop_id(r->reply, r->ids.v[r->taken++]);
    reply_finish(r->reply, r->finish == REQUEST_FINISH_LENGTH, &r->delta);
    if (r->delta.reasoning.len || r->delta.content.len) deliver(r);
    finish(r);
}

static void on_room(void *arg) {
    struct request *r = arg;
    if (r->state >= REQUEST_DECODE) request_pump(r);
}

void request_ids_ended(struct request *r) {
    r->ended = true;
    r->state = REQUEST_FLUSHING;
    server_want_place(r->server); // its room is free
    request_pump(r);
}

void request_requeue(struct request *r) {
    r->state = REQUEST_QUEUED;
    r->submitted_us = 0;
    queue_add_front(&r->server->queue, &r->queue_item);
}

/* ---- the beginning ---- */

static void make_reply(struct request *r) {
    const struct params *p = &r->params;
    r->reply = reply_new(&(struct reply_options){
        .tokenizer = r->server->model->tokenizer,
        .in_thought = r->in_thought,
        .split_thought = true,
        .skip_special = p->skip_special,
        .include_stop = p->include_stop,
        .stops = p->stops,
        .stop_lens = p->stop_lens,
        .stop_count = p->stop_count,
        .min_tokens = (uint32_t)(p->min_tokens < UINT32_MAX ? p->min_tokens : UINT32_MAX),
    });
}

static void admit(struct request *r) {
    struct server *s = r->server;
    uint64_t now = mono_ms();
    if (s->refusing) {
        struct apierr e;
        apierr_set(&e, APIERR_DRAINING, NULL, "the server is shutting down");
        e.retry_after_ms = 1000;
        request_fail(r, &e);
        return;
    }
    r->queue_item.priority = (int32_t)r->params.priority;
    r->queue_item.tokens = (uint32_t)r->prompt.len;
    if (queue_add(&s->queue, &r->queue_item, now)) {
        struct apierr e;
        apierr_set(&e, APIERR_QUEUE_FULL, NULL, "the queue is full: %u requests wait",
                   s->queue.requests);
        e.retry_after_ms = queue_retry_ms(&s->queue, nonce_u64());
        request_fail(r, &e);
        return;
    }
    r->state = REQUEST_QUEUED;
    metrics_add(s->metrics, METRIC_ACCEPTED, 1);
    metrics_in_flight(s->metrics, 1);
    if (r->params.stream) metrics_streams_open(s->metrics, 1);
    make_reply(r);
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
    job->st = prepare_chat(&job->prepare, job->request, &job->e);
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
                                   const struct request_format *format, const char *id_prefix) {
    struct request *r = mem_calloc(1, sizeof *r);
    r->server = s;
    r->format = format;
    r->call = c;
    r->rank = -1;
    r->stop_id = -1;
    r->created_s = wall_s();
    r->received_us = c->begun_us;
    r->deadline_ms = c->begun_us / 1000 + (uint64_t)(s->config->request_s * 1000);
    size_t n = (size_t)snprintf(r->id, sizeof r->id, "%s", id_prefix);
    nonce_hex(r->id + n, 32);
    memcpy(r->request_id, c->request_id, sizeof r->request_id);
    TAILQ_INSERT_TAIL(&s->requests, r, link);
    r->send = send_new(c, listener_sends(s->api),
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
    if (!fine || ms < 1 || (double)ms > max)
        return apierr_set(e, APIERR_INVALID_VALUE, "X-Request-Timeout-Ms",
                          "X-Request-Timeout-Ms must be 1 to %.0f", max);
    r->deadline_ms = r->received_us / 1000 + ms;
    return ST_OK;
}

void request_start(struct server *s, struct http_call *c, const struct request_format *format,
                   const char *id_prefix) {
    struct request *r = request_new(s, c, format, id_prefix);
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
    if (!st) st = prepare_chat(&p, r, &e);
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

static bool fail_waiting(struct request *r, uint64_t now_ms) {
    struct server *s = r->server;
    if (r->state != REQUEST_QUEUED) return false;
    struct apierr e = {0};
    uint64_t waited = now_ms - r->queue_item.since_ms;
    uint64_t without = s->no_ready_since_ms ? now_ms - s->no_ready_since_ms : 0;
    uint64_t no_worker = waited < without ? waited : without;
    if (s->no_ready_since_ms && (double)no_worker >= s->config->wait_ready_s * 1000) {
        apierr_set(&e, APIERR_NO_READY_WORKER, NULL, "no worker is ready");
        e.retry_after_ms = 2000;
    } else if ((double)waited >= s->config->queue_wait_s * 1000) {
        apierr_set(&e, APIERR_QUEUE_TIMEOUT, NULL, "no worker had room within %.15g s",
                   s->config->queue_wait_s);
        e.retry_after_ms = queue_retry_ms(&s->queue, nonce_u64());
    } else {
        return false;
    }
    request_fail(r, &e);
    return true;
}

static void tick_stream(struct request *r, uint64_t now_ms) {
    const struct config *c = r->server->config;
    if (!send_begun(r->send)) {
        uint64_t age = now_ms - r->received_us / 1000;
        if ((double)age >= c->first_byte_s * 1000) r->format->begin(r);
        return;
    }
    bool silent = (double)(now_ms - send_last_ms(r->send)) >= c->stream_keepalive_s * 1000;
    if (!silent || send_waiting_bytes(r->send)) return;
    strbuf_add_str(send_buffer(r->send), ": keepalive\n\n");
    send_touch(r->send);
}

void request_tick(struct request *r, uint64_t now_ms) {
    if (!is_accepted(r)) return;
    if (now_ms >= r->deadline_ms) {
        fail_deadline(r);
        return;
    }
    if (fail_waiting(r, now_ms)) return;
    if (r->params.stream) tick_stream(r, now_ms);
}

/* ---- figures ---- */

struct request_usage request_usage(const struct request *r) {
    return (struct request_usage){
        .prompt = (uint32_t)r->prompt.len,
        .cached = r->cached_tokens,
        .completion = (uint32_t)r->taken,
        .reasoning = r->reply ? (uint32_t)reply_reasoning_tokens(r->reply) : 0,
    };
}

static double ms_between(uint64_t from_us, uint64_t to_us) {
    return from_us && to_us > from_us ? (double)(to_us - from_us) / 1000 : 0;
}

double request_queue_ms(const struct request *r) {
    return ms_between(r->received_us, r->submitted_us);
}

double request_prefill_ms(const struct request *r) {
    return ms_between(r->submitted_us, r->first_us);
}

double request_first_token_ms(const struct request *r) {
    return ms_between(r->received_us, r->first_us);
}

double request_decode_ms(const struct request *r) {
    return ms_between(r->first_us, r->last_us);
}
