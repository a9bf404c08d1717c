/* stream: see stream.h. */
#include "worker/engine/stream.h"
#include "common/err.h"
#include "common/num.h"
#include "kernels/draft/draft.h"

#include <assert.h>
#include <string.h>

static int check_ids(const char *what, const uint32_t *ids, uint32_t count, uint32_t vocab,
                     struct err *e) {
    for (uint32_t i = 0; i < count; i++)
        if (ids[i] >= vocab)
            return err_set(e, ST_INVAL, "%s[%u]: wanted an id below %u, found %u", what, i, vocab,
                           ids[i]);
    return ST_OK;
}

static int check_counts(const struct engine_request *r, uint32_t context_max, struct err *e) {
    if (!r->prompt_count) return err_set(e, ST_INVAL, "prompt: wanted at least 1 id, found none");
    if (!r->max_tokens) return err_set(e, ST_INVAL, "max_tokens: wanted at least 1, found 0");
    if (r->max_tokens < r->given_count)
        return err_set(e, ST_INVAL, "max_tokens: wanted at least the %u given ids, found %u",
                       r->given_count, r->max_tokens);
    // A reply that filled the window, and whose end was not told yet, still has its place.
    if ((uint64_t)r->prompt_count + max_u32(r->given_count, 1) > context_max)
        return err_set(e, ST_INVAL,
                       "prompt: wanted at most %u ids with those given, found %llu (context %u)",
                       r->given_count ? context_max : context_max - 1,
                       (unsigned long long)r->prompt_count + r->given_count, context_max);
    if (r->min_tokens > r->max_tokens)
        return err_set(e, ST_INVAL, "min_tokens: wanted at most max_tokens %u, found %u",
                       r->max_tokens, r->min_tokens);
    if (r->stop_count > ENGINE_STOP_IDS_MAX)
        return err_set(e, ST_INVAL, "stop_ids: wanted at most %d, found %u", ENGINE_STOP_IDS_MAX,
                       r->stop_count);
    if (r->top_logprobs < -1 || r->top_logprobs > ENGINE_TOP_LOGPROBS_MAX)
        return err_set(e, ST_INVAL, "top_logprobs: wanted -1 (none) to %d, found %d",
                       ENGINE_TOP_LOGPROBS_MAX, r->top_logprobs);
    return ST_OK;
}

int stream_check(const struct engine_request *r, const struct stream_vocab *v, uint32_t context_max,
                 struct err *e) {
    int st = check_counts(r, context_max, e);
    if (!st) st = check_ids("prompt", r->prompt, r->prompt_count, v->size, e);
    if (!st) st = check_ids("given", r->given, r->given_count, v->size, e);
    if (!st) st = check_ids("stop_ids", r->stop_ids, r->stop_count, v->size, e);
    if (!st && r->thought) st = check_ids("thought.close_id", &r->thought->close_id, 1, v->size, e);
    if (!st) st = sample_check(&r->sampling, v->size, e);
    return st;
}

uint32_t stream_total(const struct engine_request *r, uint32_t context_max) {
    return (uint32_t)min_u64((uint64_t)r->prompt_count + r->max_tokens, context_max);
}

static void copy_stops(struct stream *s, const struct engine_request *r,
                       const struct stream_vocab *v) {
    uint32_t own = r->ignore_eos ? 0 : v->stop_count;
    s->stops_count = own + r->stop_count;
    s->stops = arena_alloc(&s->arena, s->stops_count * sizeof *s->stops);
    if (own) memcpy(s->stops, v->stop_ids, own * sizeof *s->stops);
    if (r->stop_count) memcpy(s->stops + own, r->stop_ids, r->stop_count * sizeof *s->stops);
}

static void copy_ids(struct stream *s, const struct engine_request *r) {
    s->ids = arena_alloc(&s->arena, s->total * sizeof *s->ids);
    memcpy(s->ids, r->prompt, r->prompt_count * sizeof *s->ids);
    if (r->given_count) memcpy(s->ids + r->prompt_count, r->given, r->given_count * sizeof *s->ids);
    for (uint32_t i = 0; i < r->prompt_count; i++) s->prompt_seen[r->prompt[i]] = 1;
    for (uint32_t i = 0; i < r->given_count; i++) s->generated[r->given[i]]++;
    s->count = r->prompt_count + r->given_count;
}

// A thought ends at the id that closes it, or at a call's.
static void note_thought(struct stream *s, uint32_t id) {
    if (id == s->thought.close_id || id == s->thought.call_id) s->in_thought = false;
}

static void copy_thought(struct stream *s, const struct engine_request *r) {
    if (!r->thought) return;
    s->thought = *r->thought;
    s->in_thought = true;
    for (uint32_t i = 0; i < r->given_count; i++) note_thought(s, r->given[i]);
}

static void copy_sampling(struct stream *s, const struct sample_params *p) {
    s->sampling = *p;
    s->sampling.bias_ids = arena_copy(&s->arena, p->bias_ids, p->bias_count * sizeof *p->bias_ids);
    s->sampling.bias = arena_copy(&s->arena, p->bias, p->bias_count * sizeof *p->bias);
}

// The last given id may be the one that ended the reply, by itself or by being the last there is room for, when it is
// replayed before its end was told.
static int check_given_end(struct stream *s, struct err *e) {
    for (uint32_t i = 0; i < s->given_count; i++) {
        uint32_t id = s->ids[s->prompt_count + i];
        if (!stream_ends_at(s, i, id)) continue;
        if (i + 1 < s->given_count)
            return err_set(e, ST_INVAL, "given[%u]: id %u ends the reply, found %u more behind it",
                           i, id, s->given_count - i - 1);
        s->finish = ENGINE_FINISH_STOP;
        s->stop_id = id;
    }
    if (!s->finish && s->count == s->total) s->finish = ENGINE_FINISH_LENGTH;
    return ST_OK;
}

int stream_open(struct stream *s, const struct engine_request *r, const struct stream_vocab *v,
                uint32_t context_max, struct err *e) {
    stream_wipe(s);
    uint8_t *seen = s->prompt_seen;
    uint32_t *generated = s->generated;
    float *logprobs = s->logprobs;
    struct sample_logprob *top = s->top;
    *s = (struct stream){.live = true,
                         .tag = r->tag,
                         .slot = s->slot,
                         .prompt_count = r->prompt_count,
                         .given_count = r->given_count,
                         .emitted = r->given_count,
                         .total = stream_total(r, context_max),
                         .min_tokens = r->min_tokens,
                         .logits_hash = r->logits_hash,
                         .top_logprobs = r->top_logprobs,
                         .stop_id = -1,
                         .prompt_seen = seen,
                         .generated = generated,
                         .logprobs = logprobs,
                         .top = top};
    copy_stops(s, r, v);
    copy_ids(s, r);
    copy_sampling(s, &r->sampling);
    copy_thought(s, r);
    int st = check_given_end(s, e);
    if (st) stream_close(s);
    return st;
}

void stream_close(struct stream *s) {
    for (uint32_t i = 0; i < s->prompt_count; i++) s->prompt_seen[s->ids[i]] = 0;
    for (uint32_t i = s->prompt_count; i < s->count; i++) s->generated[s->ids[i]] = 0;
    s->live = false;
}

void stream_wipe(struct stream *s) {
    assert(!s->live);
    arena_fini(&s->arena);
}

uint32_t stream_pending(const struct stream *s) {
    if (!s->live) return 0;
    // The last id of a reply is never fed; a broken row has drawn none.
    bool drawn_out = s->finish && s->finish != ENGINE_FINISH_BROKEN;
    return s->count - s->rows - (drawn_out ? 1 : 0);
}

bool stream_decoding(const struct stream *s) {
    return s->live && s->rows >= s->prompt_count + s->given_count;
}

bool stream_wants_logits(const struct stream *s, uint32_t pos) {
    if (pos + 1 < s->prompt_count) return false;
    return pos + 1 < s->count ? s->logits_hash : true;
}

bool stream_stands(const struct stream *s, uint32_t pos, uint32_t id) {
    return pos < s->count && s->ids[pos] == id && (pos + 1 < s->count || !s->finish);
}

bool stream_done(const struct stream *s) {
    return s->live && s->finish && !stream_pending(s);
}

bool stream_ends_at(const struct stream *s, uint32_t generated_idx, uint32_t id) {
    if (generated_idx < s->min_tokens) return false;
    for (uint32_t i = 0; i < s->stops_count; i++)
        if (s->stops[i] == id) return true;
    return false;
}

void stream_append(struct stream *s, uint32_t id) {
    uint32_t idx = s->count - s->prompt_count;
    assert(s->count < s->total && !s->finish);
    s->ids[s->count++] = id;
    s->generated[id]++;
    note_thought(s, id);
    if (stream_ends_at(s, idx, id)) {
        s->finish = ENGINE_FINISH_STOP;
        s->stop_id = id;
    } else if (s->count == s->total) {
        s->finish = ENGINE_FINISH_LENGTH;
    }
}

void stream_row(struct stream *s, const struct stream_vocab *v, uint32_t pos, const float *logits,
                struct sample *sampler) {
    if (s->logits_hash) s->hash = sample_hash_row(s->hash, logits, v->size);
    if (pos + 1 < s->count) return;
    if (!sample_finite(logits, v->size, v->used_bits)) {
        s->finish = ENGINE_FINISH_BROKEN;
        return;
    }
    bool early = s->count - s->prompt_count < s->min_tokens;
    struct sample_counts counts = {.prompt_seen = s->prompt_seen, .generated = s->generated};
    struct sample_mask mask = {.used_bits = v->used_bits,
                               .suppressed = s->stops,
                               .suppressed_count = early ? s->stops_count : 0};
    bool closes = s->in_thought && s->count - s->prompt_count >= s->thought.budget;
    uint32_t id = closes ? s->thought.close_id
                         : sample_draw(sampler, logits, &s->sampling, &counts, &mask, pos + 1);
    uint32_t untold = s->count - s->prompt_count - s->emitted;
    if (s->top_logprobs >= 0)
        sample_logprobs(sampler, logits, id, (uint32_t)s->top_logprobs, &s->logprobs[untold],
                        &s->top[untold * (uint32_t)s->top_logprobs]);
    stream_append(s, id);
}

// Its logits are drawn from as they are, and nothing is told of them.
static bool unchanged(const struct stream *s) {
    const struct sample_params *p = &s->sampling;
    bool early = s->count - s->prompt_count < s->min_tokens && s->stops_count;
    bool changed = p->bias_count || p->repetition != 1 || p->presence != 0 || p->frequency != 0;
    return !s->logits_hash && !s->in_thought && s->top_logprobs < 0 && !early && !changed;
}

static bool takes_greatest(const struct sample_params *p) {
    return p->temperature < SAMPLE_TEMPERATURE_MIN || p->top_k == 1;
}

bool stream_plain(const struct stream *s) {
    const struct sample_params *p = &s->sampling;
    return unchanged(s) && (takes_greatest(p) || (p->top_k == 0 && p->top_p >= 1));
}

uint32_t stream_best(const struct stream *s) {
    const struct sample_params *p = &s->sampling;
    if (!unchanged(s) || takes_greatest(p) || p->top_k > DRAFT_TOP_MAX) return 0;
    return p->top_k;
}

struct draw_row stream_draw_row(const struct stream *s, uint32_t pos) {
    const struct sample_params *p = &s->sampling;
    return (struct draw_row){.temperature = p->top_k == 1 ? 0 : p->temperature,
                             .min_p = p->min_p,
                             .seed = p->seed,
                             .position = pos + 1};
}

void stream_drawn(struct stream *s, uint32_t pos, uint32_t id) {
    if (pos + 1 == s->count) stream_append(s, id); // else the id was given
}

void stream_broken(struct stream *s, uint32_t pos) {
    if (pos + 1 == s->count) s->finish = ENGINE_FINISH_BROKEN;
}
