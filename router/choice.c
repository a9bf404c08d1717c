/* choice: see choice.h. */
#include "router/choice.h"
#include "common/log.h"
#include "common/mem.h"
#include "common/mono.h"
#include "common/num.h"
#include "router/apierr.h"
#include "router/config.h"
#include "router/metrics.h"
#include "router/model.h"
#include "router/relay.h"
#include "router/request.h"
#include "router/send.h"
#include "router/server.h"

#include <stdlib.h>
#include <string.h>

enum { PUMP_IDS = 64 }; // turned into text between two looks at the client's buffer

static void make_reply(struct choice *c) {
    const struct request *r = c->request;
    const struct params *p = &r->params;
    c->reply = reply_new(&(struct reply_options){
        .tokenizer = r->server->model->tokenizer,
        .in_thought = r->in_thought,
        .split_thought = r->kind->is_chat,
        .parse_calls = p->tools && p->tool_choice != TOOL_CHOICE_NONE,
        .one_call = !p->parallel_calls,
        .content_ids = p->logprobs,
        .tools = p->tools,
        .skip_special = p->skip_special,
        .include_stop = p->include_stop,
        .stops = p->stops,
        .stop_lens = p->stop_lens,
        .stop_count = p->stop_count,
        .min_tokens = (uint32_t)min_u64((uint64_t)p->min_tokens, UINT32_MAX),
    });
}

void choice_init(struct choice *c, struct request *r, uint32_t index, uint32_t prompt_idx) {
    *c = (struct choice){.request = r,
                         .index = index,
                         .prompt_idx = prompt_idx,
                         .max_tokens = r->prompts[prompt_idx].max_tokens,
                         .seed = r->params.seed + index % (uint32_t)r->params.n,
                         .rank = -1,
                         .stop_id = -1};
    make_reply(c);
}

void choice_fini(struct choice *c) {
    queue_forget(&c->request->server->queue, &c->queue_item);
    ids_fini(&c->ids);
    free(c->logprobs);
    free(c->tops);
    reply_free(c->reply);
    reply_delta_fini(&c->delta);
    strbuf_fini(&c->reasoning);
    strbuf_fini(&c->content);
    strbuf_fini(&c->calls);
    free(c->content_ids);
}

const struct ids *choice_prompt(const struct choice *c) {
    return &c->request->prompts[c->prompt_idx].ids;
}

struct choice *choice_of_item(struct queue_item *i) {
    return (struct choice *)((char *)i - offsetof(struct choice, queue_item));
}

/* ---- ids ---- */

static void keep_logprobs(struct choice *c, size_t count, const struct frame_logprobs *from) {
    size_t best = (size_t)c->request->params.top_logprobs;
    if (c->ids.len + count > c->logprob_cap) {
        c->logprob_cap = max_size(2 * c->logprob_cap, c->ids.len + count);
        c->logprobs = mem_realloc_array(c->logprobs, c->logprob_cap, sizeof *c->logprobs);
        c->tops = mem_realloc_array(c->tops, c->logprob_cap * (best ? best : 1), sizeof *c->tops);
    }
    for (size_t i = 0; i < count; i++) {
        struct frame_logprob *to = c->tops + (c->ids.len + i) * best;
        c->logprobs[c->ids.len + i] = from[i].logprob;
        for (size_t k = 0; k < best && k < from[i].top_count; k++) to[k] = from[i].top[k];
    }
}

void choice_add_ids(struct choice *c, const struct frame_ids *ids,
                    const struct frame_logprobs *logprobs) {
    if (logprobs) keep_logprobs(c, ids->count, logprobs);
    ids_reserve(&c->ids, ids->count);
    for (uint32_t i = 0; i < ids->count; i++) ids_add(&c->ids, frame_id_at(ids, i));
}

/* ---- ids to text ---- */

// Ids that may become text now. The last one waits while it could be the stop id that ends the reply without text.
static size_t usable_ids(const struct choice *c) {
    const struct params *p = &c->request->params;
    size_t n = c->ids.len - c->taken;
    if (c->ended) return n - (c->silent_last && n > 0);
    if (n == 0) return 0;
    uint32_t last = c->ids.v[c->ids.len - 1];
    bool stops = !p->ignore_eos && model_is_stop_id(c->request->server->model, last);
    for (uint32_t i = 0; i < p->stop_id_count; i++) stops |= p->stop_ids[i] == last;
    return n - stops;
}

static bool has_room(const struct request *r) {
    return !r->params.stream || !send_begun(r->send) ||
           send_waiting_bytes(r->send) < (size_t)r->server->config->stream_buffer_bytes_max;
}

static void deliver(struct choice *c) {
    c->request->kind->format->delta(c, &c->delta);
    c->rounds_waiting = 0;
    reply_delta_reset(&c->delta);
}

// True: the reply is over and nothing behind it counts.
static bool push_step(struct choice *c, size_t usable) {
    size_t n = usable < PUMP_IDS ? usable : PUMP_IDS;
    c->taken += reply_push(c->reply, c->ids.v + c->taken, n, &c->delta);
    bool over = reply_state(c->reply) != REPLY_OPEN;
    deliver(c);
    return over;
}

// The text side has ended it: a stop string, or the one call that was wanted.
static void end_early(struct choice *c) {
    struct server *s = c->request->server;
    queue_remove(&s->queue, &c->queue_item); // it may have been waiting for another worker
    relay_cancel(s->relay, c);
    c->ended = true;
    c->finish = CHOICE_FINISH_STOP;
    c->stop_id = -1;
    c->silent_last = false;
    c->has_logits_hash = false; // the worker's covers rows behind the end too
    c->ids.len = c->taken;
}

bool choice_pump(struct choice *c) {
    struct request *r = c->request;
    size_t usable;
    if (c->state == CHOICE_OVER || (c->taken == c->ids.len && !c->ended)) return true;
    while ((usable = usable_ids(c)) > 0 && has_room(r)) {
        if (!push_step(c, usable)) continue;
        end_early(c);
        break;
    }
    if (!c->ended || usable_ids(c) > 0) return true;
    if (c->silent_last && c->taken < c->ids.len) reply_push_stop_id(c->reply, c->ids.v[c->taken++]);
    reply_finish(c->reply, c->finish == CHOICE_FINISH_LENGTH, &c->delta);
    if (c->finish == CHOICE_FINISH_STOP && reply_calls(c->reply)) c->finish = CHOICE_FINISH_CALLS;
    if (c->delta.piece_count) deliver(c);
    c->state = CHOICE_OVER;
    return request_choice_over(r, c);
}

bool choice_ids_ended(struct choice *c) {
    c->ended = true;
    c->state = CHOICE_FLUSHING;
    server_want_place(c->request->server); // its room is free
    return choice_pump(c);
}

void choice_requeue(struct choice *c) {
    c->state = CHOICE_QUEUED;
    if (!c->first_us) c->submitted_us = 0;
    c->queue_item.lane = request_lane(c->request, c);
    queue_add_front(&c->request->server->queue, &c->queue_item);
}

static void give_up(struct choice *c) {
    struct request *r = c->request;
    struct apierr e;
    apierr_set(&e, APIERR_FAILED_REPEATEDLY, NULL,
               "%u workers died while they ran this request; it is not tried again",
               r->deaths.count);
    metrics_resume(r->server->metrics, METRIC_RESUME_POISONED, METRIC_CAUSE_DEATH);
    request_fail(r, &e);
}

void choice_lost(struct choice *c, enum metric_cause cause, uint64_t death) {
    struct server *s = c->request->server;
    log_info("stream_lost", "request=%s rank=%d ids=%zu filled=%u of=%u planned=%d",
             c->request->request_id, c->rank, c->ids.len, c->filled, c->to_fill,
             cause == METRIC_CAUSE_MOVE);
    resume_lost(&c->resume, cause, mono_us());
    if (cause == METRIC_CAUSE_DEATH && !resume_met(&c->request->deaths, death)) {
        give_up(c);
        return;
    }
    choice_requeue(c);
    server_want_place(s);
}
