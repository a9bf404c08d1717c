/* engine_drive: see engine_drive.h. */
#include "tests/lib/engine_drive.h"
#include "common/err.h"
#include "common/num.h"
#include "tests/lib/backend_env.h"
#include "tests/lib/test.h"

#include <string.h>

struct engine_request drive_request(uint32_t *ids, uint32_t count, uint32_t salt, uint32_t vocab,
                                    uint32_t max_tokens) {
    for (uint32_t i = 0; i < count; i++)
        ids[i] = (uint32_t)(mix_u64((uint64_t)salt << 32 | i) % vocab);
    return (struct engine_request){.prompt = ids,
                                   .prompt_count = count,
                                   .sampling = {.top_p = 1, .repetition = 1},
                                   .max_tokens = max_tokens,
                                   .logits_hash = true,
                                   .top_logprobs = -1};
}

void drive_sampled(struct engine_request *r, uint64_t seed) {
    r->sampling = (struct sample_params){.temperature = 0.9,
                                         .top_k = 40,
                                         .top_p = 0.95,
                                         .presence = 0.5,
                                         .frequency = 0.3,
                                         .repetition = 1.1,
                                         .seed = seed};
}

struct engine *drive_open(const struct engine_config *config) {
    struct engine *eng = NULL;
    struct err e = {0};
    struct engine_config c = *config;
    backend_env(&c);
    CHECK_OK(engine_new(&eng, &c, &e), e);
    return eng;
}

uint64_t drive_submit(struct drive *d, const struct engine_request *r) {
    struct err e = {0};
    uint64_t handle = 0;
    CHECK(r->tag < d->replies_count);
    memset(&d->replies[r->tag], 0, sizeof *d->replies);
    d->replies[r->tag].tops = (uint32_t)(r->top_logprobs + 1);
    CHECK_OK(engine_submit(d->eng, r, &handle, &e), e);
    return handle;
}

static void hash_logprob(struct reply *r, const struct engine_event *ev, uint32_t i) {
    uint32_t top = r->tops - 1;
    CHECK(ev->logprobs != NULL);
    r->logprobs_hash = sample_hash_row(r->logprobs_hash, &ev->logprobs[i], 1);
    for (uint32_t k = i * top; k < (i + 1) * top; k++) {
        r->logprobs_hash = sample_hash_row(r->logprobs_hash, &ev->top[k].logprob, 1);
        r->logprobs_hash = mix_u64(r->logprobs_hash + ev->top[k].id);
    }
}

static void take_event(struct drive *d, const struct engine_event *ev) {
    CHECK(ev->tag < d->replies_count);
    struct reply *r = &d->replies[ev->tag];
    CHECK(!r->ended);
    CHECK(ev->filled >= r->filled);
    if (r->count) CHECK_EQ(ev->first, r->completion_count);
    CHECK(r->count + ev->ids_count <= REPLY_IDS_MAX);
    if (ev->ids_count) memcpy(r->ids + r->count, ev->ids, ev->ids_count * sizeof *ev->ids);
    r->count += ev->ids_count;
    r->completion_count = ev->first + ev->ids_count;
    r->filled = ev->filled;
    r->started = true;
    r->events++;
    r->token_rounds += ev->ids_count > 0;
    for (uint32_t i = 0; i < ev->ids_count && r->tops; i++) hash_logprob(r, ev, i);
    if (!ev->finish) return;
    CHECK_EQ(ev->completion_count, r->completion_count);
    r->ended = true;
    r->finish = ev->finish;
    r->stop_id = ev->stop_id;
    r->prompt_count = ev->prompt_count;
    r->cached_count = ev->cached_count;
    r->hash = ev->logits_hash;
    r->rounds = ev->rounds;
    memcpy(r->drafted, ev->drafted, sizeof r->drafted);
    memcpy(r->accepted, ev->accepted, sizeof r->accepted);
}

uint32_t drive_step(struct drive *d) {
    struct engine_round round;
    struct err e = {0};
    CHECK_OK(engine_step(d->eng, &round, &e), e);
    for (uint32_t i = 0; i < round.count; i++) take_event(d, &round.events[i]);
    d->rows += round.rows;
    d->shared_rounds += round.count > 1;
    return round.rows;
}

void drive_all(struct drive *d) {
    while (!engine_idle(d->eng)) drive_step(d);
}

void drive_alone(struct engine *eng, const struct engine_request *r, struct reply *ret) {
    struct engine_request copy = *r;
    copy.tag = 0;
    struct drive d = {.eng = eng, .replies = ret, .replies_count = 1};
    CHECK(engine_idle(eng));
    drive_submit(&d, &copy);
    drive_all(&d);
    CHECK(ret->ended);
}

void check_same_reply(const struct reply *a, const struct reply *b) {
    CHECK(a->ended && b->ended);
    CHECK_EQ(a->count, b->count);
    for (uint32_t i = 0; i < a->count; i++) CHECK_EQ(a->ids[i], b->ids[i]);
    CHECK_EQ(a->finish, b->finish);
    CHECK_EQ_U64(a->hash, b->hash);
}
