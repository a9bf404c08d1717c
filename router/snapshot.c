/* snapshot: see snapshot.h. */
#include "router/snapshot.h"
#include "common/mem.h"
#include "common/num.h"
#include "common/strbuf.h"
#include "router/backend.h"
#include "router/fingerprint.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { FRESH = 4 }; // the middle buffer holds news

struct snapshots {
    struct snapshot buffers[3];
    unsigned back;           // writer's
    unsigned published;      // writer's: the buffer last given away; read-only until it comes back
    unsigned front;          // reader's
    _Atomic unsigned middle; // index, with FRESH
    _Atomic uint64_t beat_ms;
};

struct snapshots *snapshots_new(void) {
    struct snapshots *s = mem_calloc(1, sizeof *s);
    s->back = 0;
    s->front = 2;
    s->published = 2;
    atomic_init(&s->middle, 1);
    return s;
}

void snapshots_free(struct snapshots *s) {
    free(s);
}

struct snapshot *snapshots_begin(struct snapshots *s) {
    memset(&s->buffers[s->back], 0, sizeof s->buffers[s->back]);
    return &s->buffers[s->back];
}

void snapshots_publish(struct snapshots *s) {
    s->published = s->back;
    s->back = atomic_exchange_explicit(&s->middle, s->back | FRESH, memory_order_acq_rel) & ~FRESH;
}

const struct snapshot *snapshots_own(const struct snapshots *s) {
    return &s->buffers[s->published];
}

const struct snapshot *snapshots_read(struct snapshots *s) {
    if (atomic_load_explicit(&s->middle, memory_order_relaxed) & FRESH)
        s->front = atomic_exchange_explicit(&s->middle, s->front, memory_order_acq_rel) & ~FRESH;
    return &s->buffers[s->front];
}

void snapshots_beat(struct snapshots *s, uint64_t now_ms) {
    atomic_store_explicit(&s->beat_ms, now_ms, memory_order_relaxed);
}

uint64_t snapshots_last_beat_ms(const struct snapshots *s) {
    return atomic_load_explicit(&s->beat_ms, memory_order_relaxed);
}

#define COPY(to, from) snprintf(to, sizeof(to), "%s", (from) ? (from) : "")

static void fill_status(struct snapshot_worker *w, const struct frame_status *st) {
    w->context_max = st->context_max;
    w->streams_running = st->streams_running;
    w->streams_max = st->streams_max;
    w->room = st->room;
    w->queue_requests = st->queue_requests;
    w->queue_tokens = st->queue_tokens;
    w->kv_blocks_used = st->kv_blocks_used;
    w->kv_blocks_total = st->kv_blocks_total;
    w->kv_block_tokens = st->kv_block_tokens;
    w->kept_prefix_tokens = st->kept_prefix_tokens;
    w->fill_tokens_per_s = st->fill_tokens_per_s;
    w->round_ms = st->round_ms;
    w->rounds = st->rounds;
    w->tokens = st->tokens;
    w->prompt_tokens = st->prompt_tokens;
    COPY(w->embedding, st->embedding);
    w->memory_count = min_u32(st->memory_count, SNAPSHOT_PARTS_MAX);
    for (uint32_t i = 0; i < w->memory_count; i++) {
        COPY(w->memory[i].name, st->memory[i].name);
        w->memory[i].bytes = st->memory[i].bytes;
    }
}

static void fill_worker(struct snapshot_worker *w, const struct backend *b) {
    struct backend_info i;
    backend_info(b, &i);
    w->rank = i.rank;
    w->generation = i.generation;
    w->state = (int)i.state;
    w->pid = i.pid;
    w->supervised = i.supervised;
    COPY(w->fault, i.fault);
    COPY(w->name, i.name);
    COPY(w->model, i.model);
    COPY(w->reason, i.reason);
    COPY(w->version, i.version);
    COPY(w->gpu_name, i.gpu_name);
    COPY(w->gpu_uuid, i.gpu_uuid);
    COPY(w->gpu_pci, i.gpu_pci);
    fingerprint_hex(&i.fingerprint, w->fingerprint);
    COPY(w->checkpoint, i.fingerprint.checkpoint);
    COPY(w->device, i.fingerprint.device);
    fill_status(w, &i.status);
    w->streams_sent = i.streams_sent;
    w->restarts = i.restarts;
    w->since_ms = i.since_ms;
    w->last_progress_ms = i.last_progress_ms;
    w->up_ms = i.up_ms;
}

// A rank that no worker has taken yet is none.
static bool is_taken(const struct snapshot_worker *w) {
    return w->state != BACKEND_STOPPED || w->generation > 0;
}

void snapshot_fill_workers(struct snapshot *s, struct backends *backends) {
    uint32_t ranks = min_u32(backends_count(backends), SNAPSHOT_WORKERS_MAX);
    for (uint32_t rank = 0; rank < ranks; rank++) {
        struct snapshot_worker *w = &s->workers[s->worker_count];
        fill_worker(w, backends_at(backends, rank));
        s->worker_count += is_taken(w);
        bool there = w->state != BACKEND_STOPPED && w->state != BACKEND_FAILED;
        s->total += is_taken(w) && (w->supervised || there);
        s->ready += w->state == BACKEND_READY;
        s->loading += w->state == BACKEND_STARTING || w->state == BACKEND_LOADING;
    }
}

static bool is_away(const struct snapshot_worker *w) {
    return *w->fault && (w->state == BACKEND_FAILED || w->state == BACKEND_BACKOFF);
}

static const char *why_away(const struct snapshot_worker *w, enum snapshot_reader reader) {
    return reader == SNAPSHOT_OPERATOR && *w->reason ? w->reason : w->fault;
}

// Every worker with this one's fault; nothing where an earlier one has told of it.
static void add_fault(const struct snapshot *s, uint32_t first, enum snapshot_reader reader,
                      struct strbuf *out) {
    const char *why = why_away(&s->workers[first], reader);
    struct strbuf ranks = {0};
    uint32_t n = 0;
    bool told = false;
    for (uint32_t i = 0; i < s->worker_count; i++) {
        const struct snapshot_worker *o = &s->workers[i];
        if (!is_away(o) || strcmp(why_away(o, reader), why)) continue;
        told |= i < first;
        strbuf_printf(&ranks, "%s%u", n++ ? ", " : " ", o->rank);
    }
    if (!told)
        strbuf_printf(out, "%sworker%s%s: %s", out->len ? "; " : "", n > 1 ? "s" : "",
                      strbuf_str(&ranks), why);
    strbuf_fini(&ranks);
}

void snapshot_fault(const struct snapshot *s, enum snapshot_reader reader, char *ret,
                    size_t ret_bytes) {
    struct strbuf out = {0};
    for (uint32_t i = 0; i < s->worker_count; i++)
        if (is_away(&s->workers[i])) add_fault(s, i, reader, &out);
    snprintf(ret, ret_bytes, "%s", strbuf_str(&out));
    strbuf_fini(&out);
}
