/* relay: see relay.h. */
#include "router/relay.h"
#include "common/arena.h"
#include "common/err.h"
#include "common/log.h"
#include "common/mem.h"
#include "common/mono.h"
#include "common/num.h"
#include "router/apierr.h"
#include "router/backend.h"
#include "router/fingerprint.h"
#include "router/metrics.h"
#include "router/model.h"
#include "router/request.h"
#include "router/server.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

enum {
    LOOP_SHIFT = 24, // a stream's id: the index of its loop above, its slot below
    LOOP_INDEX = 0,  // one request loop
    SLOT_FIRST = 1,  // id 0 is no stream
    SLOTS_AT_FIRST = 64,
};

struct slot {
    struct choice *choice; // NULL: free
    uint32_t epoch;        // of its present or last user
    uint32_t next_free;
};

struct relay {
    struct server *server;
    struct slot *slots;
    uint32_t slot_count;
    uint32_t free_slot; // 0: none
    uint32_t in_use;
    uint64_t unfilled[64]; // per rank
    struct arena arena;    // of one SUBMIT
};

struct relay *relay_new(struct server *s) {
    struct relay *r = mem_calloc(1, sizeof *r);
    r->server = s;
    r->slot_count = SLOT_FIRST;
    r->slots = mem_calloc(SLOT_FIRST, sizeof *r->slots);
    return r;
}

void relay_free(struct relay *r) {
    if (!r) return;
    assert(r->in_use == 0);
    arena_fini(&r->arena);
    free(r->slots);
    free(r);
}

/* ---- slots ---- */

static void grow(struct relay *r) {
    uint32_t old = r->slot_count;
    r->slot_count = old == SLOT_FIRST ? SLOTS_AT_FIRST : old * 2;
    r->slots = mem_realloc_array(r->slots, r->slot_count, sizeof *r->slots);
    for (uint32_t i = r->slot_count; i-- > old;) {
        r->slots[i] = (struct slot){.next_free = r->free_slot};
        r->free_slot = i;
    }
}

static void take_slot(struct relay *r, struct choice *q) {
    if (!r->free_slot) grow(r);
    uint32_t i = r->free_slot;
    assert(i < 1u << LOOP_SHIFT);
    struct slot *s = &r->slots[i];
    r->free_slot = s->next_free;
    s->choice = q;
    s->epoch++;
    r->in_use++;
    q->stream = (struct frame_stream){(uint32_t)LOOP_INDEX << LOOP_SHIFT | i, s->epoch};
}

static uint64_t *unfilled_of(struct relay *r, const struct choice *q) {
    return &r->unfilled[q->rank];
}

static void give_slot(struct relay *r, struct choice *q) {
    uint32_t i = q->stream.id & ((1u << LOOP_SHIFT) - 1);
    r->slots[i].choice = NULL;
    r->slots[i].next_free = r->free_slot;
    r->free_slot = i;
    r->in_use--;
    *unfilled_of(r, q) -= q->to_fill - q->filled;
    q->stream = (struct frame_stream){0};
    q->backend = NULL;
}

// NULL: a frame for a stream that is over, or one that this worker was never given.
static struct choice *find(const struct relay *r, const struct backend *b, struct frame_stream s) {
    uint32_t i = s.id & ((1u << LOOP_SHIFT) - 1);
    if (s.id >> LOOP_SHIFT != LOOP_INDEX || i < SLOT_FIRST || i >= r->slot_count) return NULL;
    struct choice *q = r->slots[i].choice;
    return q && q->backend == b && r->slots[i].epoch == s.epoch ? q : NULL;
}

uint32_t relay_streams(const struct relay *r) {
    return r->in_use;
}

uint64_t relay_unfilled(const struct relay *r, uint32_t rank) {
    return r->unfilled[rank];
}

/* ---- to the worker ---- */

// top_p 0 keeps one token: said as top_k 1, so that the worker needs no such case.
static struct frame_sampling sampling_of(const struct params *p, uint64_t seed) {
    bool one = p->top_p == 0;
    return (struct frame_sampling){
        .temperature = p->temperature,
        .top_k = one ? 1 : (uint32_t)p->top_k,
        .top_p = one ? 1 : p->top_p,
        .min_p = p->min_p,
        .presence = p->presence,
        .frequency = p->frequency,
        .repetition = p->repetition,
        .seed = seed,
        .bias_ids = p->bias_ids,
        .bias = p->bias,
        .bias_count = p->bias_count,
    };
}

static struct frame_submit submit_of(struct relay *r, const struct choice *q) {
    const struct request *t = q->request;
    const struct params *p = &t->params;
    return (struct frame_submit){
        .stream = q->stream,
        .request_id = t->id,
        .trace = t->trace,
        .prompt = frame_ids_of(choice_prompt(q)->v, choice_prompt(q)->len, &r->arena),
        .given = frame_ids_of(q->ids.v, q->ids.len, &r->arena),
        .sampling = sampling_of(p, q->seed),
        .max_tokens = q->max_tokens,
        .min_tokens =
            min_u32((uint32_t)min_u64((uint64_t)p->min_tokens, UINT32_MAX), q->max_tokens),
        .stop = frame_ids_of(p->stop_ids, p->stop_id_count, &r->arena),
        .ignore_eos = p->ignore_eos,
        .draft = p->draft,
        .logits_hash = p->return_logits_hash,
        .top_logprobs = p->logprobs ? (int32_t)p->top_logprobs : -1,
        .think_budget =
            p->think_budget < 0 ? -1 : (int64_t)min_u64((uint64_t)p->think_budget, UINT32_MAX),
        .in_thought = t->in_thought,
        .prefix_salt = p->cache_salt ? hash_u64(p->cache_salt, strlen(p->cache_salt)) : 0,
        .priority = (int32_t)p->priority,
    };
}

int relay_submit(struct relay *r, struct choice *q, struct backend *b, struct err *e) {
    struct backend_info info;
    backend_info(b, &info);
    int32_t old_rank = q->rank;
    q->rank = (int32_t)info.rank;
    q->filled = 0;
    q->placed_us = mono_us();
    q->to_fill = (uint32_t)(choice_prompt(q)->len + q->ids.len);
    take_slot(r, q);
    *unfilled_of(r, q) += q->to_fill;
    struct frame_submit f = submit_of(r, q);
    uint64_t now_us =
        mono_us(); // before: on a busy machine a worker is done before the call returns
    int st = backend_submit(b, &f, e);
    arena_reset(&r->arena);
    if (st) {
        give_slot(r, q);
        q->rank = old_rank;
        return st;
    }
    q->backend = b;
    q->state = CHOICE_PREFILL;
    if (!q->submitted_us) q->submitted_us = now_us;
    fingerprint_system(&info.fingerprint, q->request->fingerprint, sizeof q->request->fingerprint);
    return ST_OK;
}

void relay_cancel(struct relay *r, struct choice *q) {
    if (!q->stream.id) return;
    backend_cancel(q->backend, q->stream);
    give_slot(r, q);
}

/* ---- from the worker ---- */

static void note_filled(struct relay *r, struct choice *q, uint32_t filled) {
    uint32_t n = min_u32(filled, q->to_fill);
    if (n <= q->filled) return;
    *unfilled_of(r, q) -= n - q->filled;
    metrics_worker_filled(r->server->metrics, (uint32_t)q->rank, n - q->filled);
    // What is filled a second time is the worker's work, and no new prompt.
    if (!resume_waits(&q->resume))
        metrics_add_at(r->server->metrics, q->rank, METRIC_PROMPT_TOKENS, n - q->filled);
    q->filled = n;
}

// What is counted once for all streams of a frame.
struct round {
    uint64_t now_us;
    uint64_t generated;
    uint32_t same, of; // so many streams, one behind the other, got `of` ids each
};

static void note_count(struct relay *r, struct round *round, uint32_t count) {
    if (round->same && count != round->of) {
        metrics_observe(r->server->metrics, METRIC_TOKENS_PER_ROUND, round->of, round->same);
        round->same = 0;
    }
    round->of = count;
    round->same += count > 0;
    round->generated += count;
}

static void end_round(struct relay *r, struct round *round, const struct backend *b) {
    note_count(r, round, 0);
    metrics_add_at(r->server->metrics, (int32_t)backend_rank(b), METRIC_GENERATION_TOKENS,
                   round->generated);
}

static void note_times(struct relay *r, struct choice *q, struct round *round, uint32_t count) {
    struct metrics *m = r->server->metrics;
    uint64_t now = round->now_us;
    note_count(r, round, count);
    queue_charge(&r->server->queue, &q->queue_item, count);
    if (!q->first_us) {
        q->first_us = now;
        metrics_observe_at(m, q->rank, METRIC_FIRST_TOKEN_S,
                           (double)(now - q->request->received_us) / 1e6, 1);
    } else {
        metrics_observe_at(m, q->rank, METRIC_INTER_TOKEN_S,
                           (double)(now - q->last_us) / 1e6 / count, count);
    }
    q->last_us = now;
}

static void note_moved(struct relay *r, struct choice *q, const struct backend *b) {
    if (q->resume.kind[0] && !resume_waits(&q->resume)) return;
    char kind[FINGERPRINT_DIGEST_BYTES];
    backend_kind(b, kind);
    bool paused = resume_waits(&q->resume);
    uint64_t pause_us = resume_moved(&q->resume, kind, mono_us());
    if (!paused) return;
    metrics_observe(r->server->metrics, METRIC_RESUME_PAUSE_S, (double)pause_us / 1e6, 1);
    metrics_resume(r->server->metrics, METRIC_RESUME_OK, q->resume.cause);
}

// A worker whose ids do not follow on one another cannot be trusted with anything.
static void fail_broken(struct relay *r, struct choice *q, struct backend *b, uint32_t first) {
    log_error("bad_frame", "rank=%u request=%s wanted_first=%zu found_first=%u", backend_rank(b),
              q->request->id, q->ids.len, first);
    struct apierr e;
    apierr_set(&e, APIERR_INTERNAL, NULL, "the worker's answer did not follow on");
    request_fail(q->request, &e);
}

// False: the stream is broken and the worker with it.
static bool take_entry(struct relay *r, struct backend *b, struct round *round,
                       const struct frame_tokens_entry *t) {
    struct choice *q = find(r, b, t->stream);
    if (!q) return true;
    const struct params *p = &q->request->params;
    note_filled(r, q, t->filled);
    if (t->ids.count == 0) return true;
    bool over = q->ids.len + t->ids.count > q->max_tokens;
    bool lacks = p->logprobs && !t->logprobs;
    if (t->first != q->ids.len || over || lacks) {
        fail_broken(r, q, b, t->first);
        return false;
    }
    note_filled(r, q, q->to_fill);
    note_times(r, q, round, t->ids.count);
    note_moved(r, q, b);
    q->state = CHOICE_DECODE;
    q->rounds++;
    q->rounds_waiting++;
    choice_add_ids(q, &t->ids, p->logprobs ? t->logprobs : NULL);
    // stream_interval: the first text goes at once, later text every so many rounds.
    bool held = p->stream && q->any_text && q->rounds_waiting < p->stream_interval;
    if (!held) choice_pump(q);
    return true;
}

static void on_tokens(struct relay *r, struct backend *b, const struct frame_tokens *t) {
    struct round round = {.now_us = mono_us()};
    uint64_t tokens = 0;
    for (uint32_t i = 0; i < t->count; i++) tokens += t->entries[i].ids.count;
    metrics_worker_round(r->server->metrics, backend_rank(b), (double)t->round_us / 1e6, tokens);
    for (uint32_t i = 0; i < t->count; i++) {
        if (take_entry(r, b, &round, &t->entries[i])) continue;
        end_round(r, &round, b);
        backend_drop(b, "ids of a stream did not follow on one another");
        return; // the frame's memory may be gone
    }
    end_round(r, &round, b);
}

static void note_done(struct choice *q, const struct frame_done *d) {
    q->cached_tokens = d->cached_tokens;
    q->draft_rounds += d->draft_rounds;
    for (int k = 0; k < FRAME_DRAFT_KINDS; k++) {
        q->drafted[k] += d->drafted[k];
        q->accepted[k] += d->accepted[k];
    }
    q->logits_hash = d->logits_hash;
    q->has_logits_hash = q->request->params.return_logits_hash;
}

static bool asked_to_stop_at(const struct params *p, int64_t id) {
    for (uint32_t i = 0; i < p->stop_id_count; i++)
        if (p->stop_ids[i] == id) return true;
    return false;
}

static void on_done(struct relay *r, struct backend *b, const struct frame_done *d) {
    metrics_worker_drafted(r->server->metrics, backend_rank(b), d->drafted, d->accepted);
    struct choice *q = find(r, b, d->stream);
    if (!q) return;
    bool counts = d->finish == FRAME_FINISH_CANCELLED || d->completion_tokens == q->ids.len;
    bool stop_is_last = d->stop_id < 0 || (q->ids.len && q->ids.v[q->ids.len - 1] == d->stop_id);
    if (!counts || !stop_is_last || d->finish == FRAME_FINISH_CANCELLED) {
        // Nobody asked for a cancel, or the worker's count is not ours: ids were lost on the way.
        fail_broken(r, q, b, d->completion_tokens);
        backend_drop(b, "a stream's end does not fit its ids");
        return;
    }
    note_moved(r, q, b); // its ids may have been whole when its worker was lost
    note_done(q, d);
    q->finish = d->finish == FRAME_FINISH_STOP ? CHOICE_FINISH_STOP : CHOICE_FINISH_LENGTH;
    q->stop_id = asked_to_stop_at(&q->request->params, d->stop_id) ? d->stop_id : -1;
    q->silent_last = d->stop_id >= 0 && !q->request->params.include_stop;
    give_slot(r, q);
    choice_ids_ended(q);
}

// Names the end of the present incarnation.
static uint64_t death_of(const struct backend *b) {
    struct backend_info i;
    backend_info(b, &i);
    return (uint64_t)i.generation << 32 | i.rank;
}

static void on_fail(struct relay *r, struct backend *b, const struct frame_fail *f) {
    if (!f->stream.id) return; // about the exchange: backend.c has dealt with it
    struct choice *q = find(r, b, f->stream);
    if (!q) return;
    give_slot(r, q);
    if (f->code == FRAME_FAIL_FULL) {
        choice_requeue(q);
        return;
    }
    if (f->code == FRAME_FAIL_DEVICE) { // the worker is about to end
        choice_lost(q, METRIC_CAUSE_DEATH, death_of(b));
        return;
    }
    struct apierr e;
    if (f->code == FRAME_FAIL_UNSUPPORTED)
        apierr_set(&e, APIERR_UNSUPPORTED_PARAMETER, NULL, "%s", f->message);
    else if (f->code == FRAME_FAIL_TOO_LONG)
        apierr_set(&e, APIERR_CONTEXT_LENGTH, "messages", "%s", f->message);
    else
        apierr_set(&e, APIERR_INTERNAL, NULL, "the worker could not go on: %s", f->message);
    log_warn("stream_failed", "rank=%u request=%s code=%s message=\"%s\"", backend_rank(b),
             q->request->id, frame_fail_name(f->code), f->message);
    request_fail(q->request, &e);
}

void relay_on_frame(struct relay *r, struct backend *b, const struct frame *f) {
    switch (f->type) {
    case FRAME_TOKENS: on_tokens(r, b, &f->tokens); return;
    case FRAME_DONE: on_done(r, b, &f->done); return;
    case FRAME_FAIL: on_fail(r, b, &f->fail); return;
    default: return;
    }
}

// The next choice at b, from the end: each goes to the front of the queue, so that the first comes out first.
static struct choice *last_at(const struct relay *r, const struct backend *b, uint32_t *io_slot) {
    while (--*io_slot >= SLOT_FIRST) {
        struct choice *q = r->slots[*io_slot].choice;
        if (q && q->backend == b) return q;
    }
    return NULL;
}

void relay_on_lost(struct relay *r, struct backend *b, const char *reason, bool planned) {
    uint32_t lost = 0, slot = r->slot_count;
    for (struct choice *q; (q = last_at(r, b, &slot)); lost++) {
        give_slot(r, q);
        // One that a worker got when it was dead already, without a word since, has nothing to do with that death.
        bool met = backend_heard_us(b) > q->placed_us;
        choice_lost(q, planned || !met ? METRIC_CAUSE_MOVE : METRIC_CAUSE_DEATH, death_of(b));
    }
    if (lost)
        log_warn("streams_lost", "rank=%u streams=%u planned=%d reason=\"%s\"", backend_rank(b),
                 lost, planned, reason);
}

void relay_move_all(struct relay *r, struct backend *b) {
    uint32_t slot = r->slot_count;
    for (struct choice *q; (q = last_at(r, b, &slot));) {
        relay_cancel(r, q);
        choice_lost(q, METRIC_CAUSE_MOVE, 0);
    }
}

void relay_cancel_all(struct relay *r, struct backend *b, const char *why) {
    uint32_t slot = r->slot_count;
    for (struct choice *q; (q = last_at(r, b, &slot));) {
        struct apierr e;
        apierr_set(&e, APIERR_CANCELLED_BY_OPERATOR, NULL, "%s", why);
        request_fail(q->request, &e);
    }
}
