/* round_frames: see round_frames.h. */
#include "worker/round_frames.h"
#include "common/err.h"
#include "common/mem.h"
#include "worker/engine/engine.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct round_stream {
    bool used;
    struct frame_stream name;
    uint64_t handle;
    uint32_t prompt_count, generated, filled;
    uint32_t top_count;
};

void round_frames_init(struct round_frames *f, struct engine *eng) {
    *f = (struct round_frames){.eng = eng, .slots = engine_info(eng)->streams_max, .progress = 1};
    f->streams = mem_calloc(f->slots, sizeof *f->streams);
}

void round_frames_fini(struct round_frames *f) {
    free(f->streams);
    strbuf_fini(&f->out);
    strbuf_fini(&f->bytes);
    arena_fini(&f->arena);
}

static void put(struct round_frames *f, struct frame *x) {
    struct err e = {0};
    x->generation = f->generation;
    strbuf_reset(&f->bytes);
    int st = frame_encode(&f->bytes, x, &e);
    assert(st == ST_OK); // a round's ids and logprobs are far from a frame's limits
    uint32_t len = (uint32_t)f->bytes.len;
    strbuf_add(&f->out, &len, sizeof len);
    strbuf_add(&f->out, f->bytes.p, f->bytes.len);
}

/* Requests. */

static const uint32_t *ids_of(struct round_frames *f, struct frame_ids l) {
    uint32_t *v = arena_alloc(&f->arena, 4 * (size_t)l.count);
    for (uint32_t i = 0; i < l.count; i++) v[i] = frame_id_at(&l, i);
    return v;
}

int round_frames_vocab(struct round_frames *f, const struct frame_vocab *v, struct err *e) {
    arena_reset(&f->arena);
    struct engine_range *used = arena_alloc(&f->arena, v->used_count * sizeof *used);
    for (uint32_t i = 0; i < v->used_count; i++)
        used[i] = (struct engine_range){v->used[i].first, v->used[i].count};
    int st = engine_set_vocab(f->eng, used, v->used_count, ids_of(f, v->stop), v->stop.count, e);
    // No setting's fault: the tokeniser of the model's folder does not fit its head.
    if (st == ST_INVAL) st = e->st = ST_CORRUPT;
    if (st) return err_prefix(e, "the router's vocabulary"), st;
    f->think_close = v->think_close;
    f->tool_open = v->tool_open;
    f->has_vocab = true;
    return ST_OK;
}

static struct sample_params sampling_of(const struct frame_sampling *s) {
    return (struct sample_params){.temperature = s->temperature,
                                  .top_k = s->top_k,
                                  .top_p = s->top_p,
                                  .min_p = s->min_p,
                                  .presence = s->presence,
                                  .frequency = s->frequency,
                                  .repetition = s->repetition,
                                  .seed = s->seed,
                                  .bias_ids = s->bias_ids,
                                  .bias = s->bias,
                                  .bias_count = s->bias_count};
}

static struct engine_request request_of(struct round_frames *f, const struct frame_submit *s,
                                        uint32_t slot) {
    return (struct engine_request){
        .prompt = ids_of(f, s->prompt),
        .prompt_count = s->prompt.count,
        .given = ids_of(f, s->given),
        .given_count = s->given.count,
        .sampling = sampling_of(&s->sampling),
        .max_tokens = s->max_tokens,
        .min_tokens = s->min_tokens,
        .stop_ids = ids_of(f, s->stop),
        .stop_count = s->stop.count,
        .ignore_eos = s->ignore_eos,
        .logits_hash = s->logits_hash,
        .draft = s->draft,
        .top_logprobs = s->top_logprobs,
        .tag = slot,
    };
}

static void put_fail(struct round_frames *f, struct frame_stream name, enum frame_fail_code code,
                     const char *message) {
    struct frame x = {.type = FRAME_FAIL, .fail = {name, code, message}};
    put(f, &x);
}

static enum frame_fail_code fail_code(const struct round_frames *f, const struct frame_submit *s,
                                      int st) {
    uint64_t ids = (uint64_t)s->prompt.count + s->given.count;
    switch (st) {
    case ST_FULL: return FRAME_FAIL_FULL;
    case ST_INVAL:
        return ids >= engine_info(f->eng)->context_max ? FRAME_FAIL_TOO_LONG : FRAME_FAIL_INVALID;
    case ST_UNSUPPORTED: return FRAME_FAIL_UNSUPPORTED;
    case ST_DEVICE: return FRAME_FAIL_DEVICE;
    default: return FRAME_FAIL_INTERNAL;
    }
}

static uint32_t free_slot(const struct round_frames *f) {
    uint32_t i = 0;
    while (i < f->slots && f->streams[i].used) i++;
    return i;
}

static int submit(struct round_frames *f, const struct frame_submit *s, struct err *e) {
    uint32_t slot = free_slot(f);
    if (!f->has_vocab) return err_set(e, ST_FULL, "the vocabulary has not come yet");
    if (slot == f->slots) return err_set(e, ST_FULL, "all %u streams are in use", f->slots);
    bool bounded = s->think_budget >= 0 && s->in_thought;
    if (bounded && f->think_close < 0)
        return err_set(e, ST_UNSUPPORTED, "think_budget: the vocabulary has no end of thought");
    struct engine_request r = request_of(f, s, slot);
    struct engine_thought thought = {(uint32_t)s->think_budget, (uint32_t)f->think_close,
                                     f->tool_open};
    if (bounded) r.thought = &thought;
    uint64_t handle;
    int st = engine_submit(f->eng, &r, &handle, e);
    if (st) return st;
    f->streams[slot] = (struct round_stream){
        .used = true,
        .name = s->stream,
        .handle = handle,
        .prompt_count = s->prompt.count,
        .generated = s->given.count,
        .top_count = s->top_logprobs > 0 ? (uint32_t)s->top_logprobs : 0,
    };
    f->count++;
    return ST_OK;
}

void round_frames_submit(struct round_frames *f, const struct frame_submit *s) {
    struct err e = {0};
    arena_reset(&f->arena);
    int st = submit(f, s, &e);
    if (!st) return;
    f->full |= st == ST_FULL && f->count > 0; // a stream's end changes that
    put_fail(f, s->stream, fail_code(f, s, st), e.msg);
}

static void release(struct round_frames *f, struct round_stream *s) {
    s->used = false;
    f->count--;
    f->full = false;
}

static void cancel(struct round_frames *f, struct round_stream *s) {
    struct frame x = {.type = FRAME_DONE,
                      .done = {.stream = s->name,
                               .finish = FRAME_FINISH_CANCELLED,
                               .stop_id = -1,
                               .prompt_tokens = s->prompt_count,
                               .completion_tokens = s->generated}};
    x.done.draft_rounds = engine_drafts(f->eng, s->handle, x.done.drafted, x.done.accepted);
    engine_cancel(f->eng, s->handle);
    put(f, &x);
    release(f, s);
}

static struct round_stream *find(struct round_frames *f, struct frame_stream name) {
    for (uint32_t i = 0; i < f->slots; i++) {
        struct round_stream *s = &f->streams[i];
        if (s->used && s->name.id == name.id && s->name.epoch == name.epoch) return s;
    }
    return NULL;
}

void round_frames_cancel(struct round_frames *f, const struct frame_cancel *c) {
    for (uint32_t i = 0; i < c->count; i++) {
        struct round_stream *s = find(f, c->streams[i]);
        if (s) cancel(f, s); // else its DONE is on the way
    }
}

void round_frames_drop_all(struct round_frames *f) {
    for (uint32_t i = 0; i < f->slots; i++) {
        if (!f->streams[i].used) continue;
        engine_cancel(f->eng, f->streams[i].handle);
        release(f, &f->streams[i]);
    }
    f->has_vocab = false; // the next router sends its own
    strbuf_reset(&f->out);
}

/* Rounds. */

// A probability of zero has no finite logarithm; the wire and JSON have finite numbers only.
static float to_finite(float x) {
    return isfinite(x) ? x : -9999.0f;
}

static const struct frame_logprobs *
logprobs_of(struct round_frames *f, const struct round_stream *s, const struct engine_event *ev) {
    if (!ev->logprobs || ev->ids_count == 0) return NULL;
    uint32_t best = s->top_count;
    struct frame_logprobs *ret = arena_calloc(&f->arena, ev->ids_count, sizeof *ret);
    for (uint32_t i = 0; i < ev->ids_count; i++) {
        struct frame_logprob *top = arena_calloc(&f->arena, best, sizeof *top);
        for (uint32_t k = 0; k < best; k++) {
            const struct sample_logprob *from = &ev->top[(size_t)i * best + k];
            top[k] = (struct frame_logprob){from->id, to_finite(from->logprob)};
        }
        ret[i] = (struct frame_logprobs){to_finite(ev->logprobs[i]), top, best};
    }
    return ret;
}

// The event as an entry, and into the counts. Returns the rows it filled.
static uint32_t add_entry(struct round_frames *f, const struct engine_event *ev,
                          struct frame_tokens_entry *ret) {
    struct round_stream *s = &f->streams[ev->tag];
    assert(s->used && s->handle == ev->handle);
    uint32_t filled = ev->filled > s->filled ? ev->filled - s->filled : 0;
    *ret = (struct frame_tokens_entry){
        .stream = s->name,
        .first = ev->first,
        .ids = frame_ids_of(ev->ids, ev->ids_count, &f->arena),
        .filled = ev->filled,
        .logprobs = logprobs_of(f, s, ev),
    };
    s->filled = ev->filled;
    s->generated = ev->first + ev->ids_count;
    f->tokens += ev->ids_count;
    f->prompt_tokens += filled;
    f->progress += filled + ev->ids_count;
    return filled;
}

static void smooth(double *mean, double x, double weight) {
    *mean = *mean > 0 ? *mean + weight * (x - *mean) : x;
}

// A round that mostly fills tells how fast prompts are filled.
static void measure(struct round_frames *f, const struct engine_round *round, uint64_t filled) {
    f->rounds++;
    smooth(&f->round_ms, round->round_us / 1e3, 0.1);
    if (filled == 0 || 2 * filled < round->rows || round->round_us == 0) return;
    smooth(&f->fill_tokens_per_s, (double)filled / (round->round_us / 1e6), 0.3);
}

// NaN here is NaN for good: the client is told, and nobody else is touched.
static void put_broken(struct round_frames *f, const struct engine_event *ev) {
    struct round_stream *s = &f->streams[ev->tag];
    char why[96];
    snprintf(why, sizeof why, "the model's logits behind token %u are no finite numbers",
             ev->prompt_count + ev->completion_count);
    put_fail(f, s->name, FRAME_FAIL_INTERNAL, why);
    release(f, s);
}

static void put_done(struct round_frames *f, const struct engine_event *ev) {
    struct round_stream *s = &f->streams[ev->tag];
    if (ev->finish == ENGINE_FINISH_BROKEN) return put_broken(f, ev);
    struct frame x = {.type = FRAME_DONE,
                      .done = {.stream = s->name,
                               .finish = ev->finish == ENGINE_FINISH_STOP ? FRAME_FINISH_STOP
                                                                          : FRAME_FINISH_LENGTH,
                               .stop_id = ev->stop_id,
                               .prompt_tokens = ev->prompt_count,
                               .cached_tokens = ev->cached_count,
                               .completion_tokens = ev->completion_count,
                               .queue_us = ev->queue_us,
                               .prefill_us = ev->prefill_us,
                               .decode_us = ev->decode_us,
                               .rounds = ev->rounds,
                               .logits_hash = ev->logits_hash,
                               .draft_rounds = ev->draft_rounds}};
    static_assert((int)FRAME_DRAFT_KINDS == (int)ENGINE_DRAFT_KINDS, "the same kinds");
    memcpy(x.done.drafted, ev->drafted, sizeof ev->drafted);
    memcpy(x.done.accepted, ev->accepted, sizeof ev->accepted);
    put(f, &x);
    release(f, s);
}

int round_frames_step(struct round_frames *f, bool *changed, struct err *e) {
    struct engine_round round;
    int st = engine_step(f->eng, &round, e);
    if (st) return st;
    arena_reset(&f->arena);
    struct frame_tokens_entry *entries = arena_calloc(&f->arena, round.count, sizeof *entries);
    uint64_t filled = 0;
    for (uint32_t i = 0; i < round.count; i++)
        filled += add_entry(f, &round.events[i], &entries[i]);
    if (round.count) {
        struct frame x = {
            .type = FRAME_TOKENS,
            .tokens = {round.round, round.round_us, round.rows, entries, round.count}};
        put(f, &x);
        measure(f, &round, filled);
    }
    for (uint32_t i = 0; i < round.count; i++) {
        if (round.events[i].finish == ENGINE_RUNNING) continue;
        put_done(f, &round.events[i]);
        *changed = true;
    }
    return ST_OK;
}
