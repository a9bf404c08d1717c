/* place: see place.h. */
#include "router/place.h"
#include "common/err.h"
#include "common/mono.h"
#include "common/num.h"
#include "router/apierr.h"
#include "router/backend.h"
#include "router/choice.h"
#include "router/config.h"
#include "router/metrics.h"
#include "router/pick.h"
#include "router/prepare.h"
#include "router/relay.h"
#include "router/request.h"
#include "router/server.h"
#include "router/snapshot.h"

// A reply that has begun goes on only where its bits would be the same, and where all of it has room.
static bool can_take(const struct choice *c, const struct backend *b,
                     const struct backend_info *info) {
    char kind[FINGERPRINT_DIGEST_BYTES];
    if (c->ids.len == 0) return true;
    backend_kind(b, kind);
    return resume_fits(&c->resume, kind) &&
           info->status.context_max >= choice_prompt(c)->len + c->max_tokens;
}

static void ask_worker(struct server *s, const struct choice *c, uint32_t rank,
                       struct pick_worker *ret) {
    struct backend *b = backends_at(s->backends, rank);
    struct backend_info info;
    backend_info(b, &info);
    *ret = (struct pick_worker){
        .ready = info.state == BACKEND_READY && request_may_run_at(c->request, c, rank) &&
                 can_take(c, b, &info),
        .room = backend_room(b),
        .streams = info.streams_sent,
        .unfilled_tokens = relay_unfilled(s->relay, rank),
        .fill_tokens_per_s = info.status.fill_tokens_per_s,
        .round_ms = info.status.round_ms,
    };
}

// A worker's window may be smaller than what was known when the request came.
static int fit_to(struct choice *c, struct backend *b, struct apierr *e) {
    struct backend_info info;
    backend_info(b, &info);
    const struct request *r = c->request;
    uint32_t context = info.status.context_max;
    if (!context || c->ids.len) return ST_OK; // its length was settled with its first id
    return prepare_limit(r, &r->prompts[c->prompt_idx], context, r->server->config->output_default,
                         &c->max_tokens, e);
}

// One try. ST_FULL: no worker takes it now; *ret_rank then names one that refused, or is -1.
static int place_on_best(struct server *s, struct choice *c, const struct pick_worker *workers,
                         uint32_t count, int *ret_rank) {
    struct err why = {0};
    struct pick_request wanted = {.prompt_tokens = (uint32_t)(choice_prompt(c)->len + c->ids.len),
                                  .affinity = c->request->affinity};
    bool by_affinity;
    *ret_rank = pick(workers, count, &wanted, &by_affinity);
    if (*ret_rank < 0) return ST_FULL;
    struct backend *b = backends_at(s->backends, (uint32_t)*ret_rank);
    struct apierr e;
    if (fit_to(c, b, &e)) {
        request_fail(c->request, &e);
        return ST_INVAL;
    }
    if (relay_submit(s->relay, c, b, &why)) return ST_FULL;
    metrics_add(s->metrics,
                c->request->pinned == *ret_rank ? METRIC_PLACED_PINNED
                : by_affinity                   ? METRIC_PLACED_AFFINITY
                                                : METRIC_PLACED_LOAD,
                1);
    return ST_OK;
}

// ST_FULL: no worker takes it now; the next STATUS, or a change of state, brings us back. ST_INVAL: its request failed.
static int place(struct server *s, struct choice *c) {
    struct pick_worker workers[SNAPSHOT_WORKERS_MAX];
    uint32_t count = min_u32(backends_count(s->backends), SNAPSHOT_WORKERS_MAX);
    for (uint32_t rank = 0; rank < count; rank++) ask_worker(s, c, rank, &workers[rank]);
    for (;;) {
        int rank;
        int st = place_on_best(s, c, workers, count, &rank);
        if (st == ST_INVAL) return st;
        if (st == ST_OK) break;
        if (rank < 0) return ST_FULL;
        workers[rank].ready = false; // its own queue is full: the next best
    }
    queue_left(&s->queue, &c->queue_item, mono_ms());
    return ST_OK;
}

void place_all(struct server *s) {
    struct queue_item *i;
    queue_begin(&s->queue);
    while ((i = queue_first(&s->queue))) {
        struct choice *c = choice_of_item(i);
        if (place(s, c) != ST_FULL) continue; // it has left: to a worker, or failed
        if (i->lane == QUEUE_ANY) return;     // no worker has room for anything
        queue_pass(&s->queue, i);
    }
}
