/* budget: see budget.h. */
#include "worker/engine/budget.h"
#include "common/err.h"
#include "common/num.h"
#include "common/strbuf.h"
#include "kernels/ops.h"
#include "worker/engine/carve.h"
#include "worker/engine/engine.h"
#include "worker/engine/model_config.h"
#include "worker/engine/model_qwen3_5.h"
#include "worker/engine/round.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

enum {
    CHUNK_DEFAULT = 64,       // rows of one stream: the products are compute-bound from about 16
    ROUND_ROWS_DEFAULT = 128, // what two filling streams need
    STREAMS_DEFAULT = 16,
    // A GPU reads or decodes the weights once for all rows: twice the speed of 256, on an H200.
    CHUNK_GPU = 2048,
    CHUNK_GPU_MIN = 512,
    CHUNK_ROOM = 32,    // the part of the room that longer chunks than that may take
    ROWS_BESIDE = 512,  // of prompts, beside streams that decode
    HEAD_ROWS = 32,     // at once
    HEAD_ROWS_GPU = 64, // as many streams as have graphs (graphs.h)
    CONTEXT_UNASKED =
        8192, // what must fit with the embedding on the card when no context was asked for
};
static const double memory_fraction_default = 0.5; // the CPU's memory is others' too

int budget_check(const struct engine_config *c, uint32_t max_position, struct err *e) {
    if (c->context_max > max_position)
        return err_set(e, ST_INVAL, "context: wanted at most the checkpoint's %u, found %u",
                       max_position, c->context_max);
    if (c->context_max == 1) return err_set(e, ST_INVAL, "context: wanted at least 2, found 1");
    if (c->streams_max > ENGINE_STREAMS_MAX)
        return err_set(e, ST_INVAL, "streams: wanted at most %d, found %u", ENGINE_STREAMS_MAX,
                       c->streams_max);
    if (c->chunk_tokens > ENGINE_ROUND_ROWS_MAX || c->round_rows_max > ENGINE_ROUND_ROWS_MAX)
        return err_set(e, ST_INVAL, "rows of a round or a chunk: wanted at most %d, found %u",
                       ENGINE_ROUND_ROWS_MAX, max_u32(c->chunk_tokens, c->round_rows_max));
    if (!(c->memory_fraction >= 0 && c->memory_fraction <= 1))
        return err_set(e, ST_INVAL, "memory-fraction: wanted 0 to 1, found %g", c->memory_fraction);
    return ST_OK;
}

// Memory of its own, that is: the weights are moved there, and nobody else uses it.
static bool own_memory(const struct model *m) {
    return m->ops->host_alloc != NULL;
}

static int kv_dtype(enum dtype *ret, const struct model *m, const char *kv, struct err *e) {
    if (!kv || !strcmp(kv, "auto"))
        *ret = own_memory(m) ? DTYPE_BF16 : DTYPE_F32;
    else if (!strcmp(kv, "f32"))
        *ret = DTYPE_F32;
    else if (!strcmp(kv, "bf16"))
        *ret = DTYPE_BF16;
    else if (!strcmp(kv, "fp8"))
        *ret = DTYPE_E4M3;
    else
        return err_set(e, ST_INVAL, "kv: wanted auto, f32, bf16 or fp8, found '%s'", kv);
    return ST_OK;
}

static void set_limits(struct budget *b, struct model *m, struct round *r, uint32_t streams,
                       uint32_t context, uint32_t pages) {
    b->streams_max = streams;
    b->context_max = context;
    b->pages = pages;
    m->lim.slots = streams;
    m->lim.branch_pages = m->branches ? streams * MODEL_BRANCH_PAGES : 0;
    m->lim.pages = pages + m->lim.branch_pages;
    m->lim.pages_per_slot = ceil_div_u32(context, KV_PAGE_TOKENS);
    // A round must hold the window of every stream, so that nobody's depends on a neighbour's, and one row more of a prompt.
    uint32_t windows = streams * m->window_rows;
    m->lim.rows_max =
        max_u32(max_u32(b->round_rows_max, max_u32(streams, windows) + 1), ENGINE_WINDOW_ROWS_MAX);
    m->lim.head_rows_max = min_u32(m->lim.rows_max, own_memory(m) ? HEAD_ROWS_GPU : HEAD_ROWS);
    m->lim.record_rows_max = max_u32(ENGINE_WINDOW_ROWS_MAX, windows);
    r->rows_max = m->lim.rows_max;
    r->picks_max = m->lim.rows_max;
    r->runs_max = model_runs_max(m);
}

static uint64_t carved(struct model *m, struct round *r) {
    struct carve c = {0};
    model_carve(m, &c, r);
    return carve_bytes(&c);
}

static uint64_t measure(struct budget *b, struct model *m, struct round *r, uint32_t streams,
                        uint32_t context, uint32_t pages) {
    set_limits(b, m, r, streams, context, pages);
    uint64_t bytes = carved(m, r); // lays out the weights, which the operations' needs follow from
    return model_measure_work(m) ? carved(m, r) : bytes;
}

static uint32_t pages_of(uint32_t context) {
    return ceil_div_u32(context, KV_PAGE_TOKENS);
}

// One stream of a context, or the asked count of streams that share its pages.
static uint64_t measure_one(struct budget *b, struct model *m, struct round *r, uint32_t streams,
                            uint32_t context) {
    return measure(b, m, r, streams ? streams : 1, context, pages_of(context));
}

struct ask {
    struct budget *b;
    struct model *m;
    struct round *r;
    const struct engine_config *c;
    uint64_t room;
};

// The largest context of one stream; 0: none.
static uint32_t largest_context(const struct ask *a) {
    uint32_t low = 0, high = pages_of(a->m->cfg->max_position);
    while (low < high) {
        uint32_t mid = low + (high - low + 1) / 2;
        if (measure_one(a->b, a->m, a->r, 1, mid * KV_PAGE_TOKENS) <= a->room)
            low = mid;
        else
            high = mid - 1;
    }
    return min_u32(low * KV_PAGE_TOKENS, a->m->cfg->max_position);
}

static double gib(uint64_t bytes) {
    return (double)bytes / (1 << 30);
}

// With the rows of the embedding as they are placed now.
static void add_refusal(const struct ask *a, struct strbuf *out, uint32_t context,
                        const char *where) {
    uint64_t need = measure_one(a->b, a->m, a->r, a->c->streams_max, context);
    uint32_t largest = largest_context(a);
    strbuf_printf(out, "%s%sit needs %.3f GiB, and the largest context that would fit is %u",
                  out->len ? "; " : "", where, gib(need), largest);
}

static int refuse(const struct ask *a, uint32_t context, struct err *e) {
    struct strbuf ways = {0};
    bool may_map = own_memory(a->m) && !a->m->ops->unified && !model_tied(a->m);
    enum embedding_mode mode = EMBEDDING_AUTO;
    placement_mode(&mode, a->c->embedding, NULL);
    if (mode != EMBEDDING_HOST) {
        weights_map_embedding(&a->m->w, false);
        add_refusal(a, &ways, context, own_memory(a->m) ? "with the embedding on the card " : "");
    }
    if (may_map && mode != EMBEDDING_CARD) {
        weights_map_embedding(&a->m->w, true);
        add_refusal(a, &ways, context, "with the embedding in host memory ");
    }
    err_set(e, ST_NOMEM, "memory: %.3f GiB left for %u %s of %u tokens: %s", gib(a->room),
            a->c->streams_max ? a->c->streams_max : 1,
            a->c->streams_max > 1 ? "streams, with the keys of one," : "stream", context,
            strbuf_str(&ways));
    strbuf_fini(&ways);
    return ST_NOMEM;
}

// Streams: as asked, or as many as have room for their states beside one whole context.
static uint32_t fit_streams(const struct ask *a, uint32_t context) {
    if (a->c->streams_max) return a->c->streams_max;
    uint32_t streams = STREAMS_DEFAULT;
    while (streams > 1 && measure(a->b, a->m, a->r, streams, context, pages_of(context)) > a->room)
        streams /= 2;
    return streams;
}

// The target's keys and values and a drafter's share the numbers of pages.
static uint64_t most_pages(const struct ask *a, uint32_t streams, uint32_t context, uint64_t high) {
    uint64_t low = 0;
    high = min_u64(high, UINT32_MAX / 2);
    while (low < high) {
        uint64_t mid = low + (high - low + 1) / 2;
        if (measure(a->b, a->m, a->r, streams, context, (uint32_t)mid) <= a->room)
            low = mid;
        else
            high = mid - 1;
    }
    return low;
}

// As many pages as have room, up to a whole context for every stream.
static int fit(const struct ask *a, struct err *e) {
    uint32_t context = a->c->context_max ? a->c->context_max : a->m->cfg->max_position;
    uint32_t streams = fit_streams(a, context);
    uint32_t one = pages_of(context);
    uint64_t pages = most_pages(a, streams, context, (uint64_t)one * streams);
    if (pages < one && !a->c->context_max) {
        one = (uint32_t)pages;
        context = min_u32(context, one * KV_PAGE_TOKENS);
    }
    if (pages < one || one == 0) return refuse(a, context, e);
    set_limits(a->b, a->m, a->r, streams, context, (uint32_t)min_u64(pages, UINT32_MAX / 2));
    model_measure_work(a->m);
    return ST_OK;
}

// The context that must fit where none was asked for.
static uint32_t modest_context(const struct ask *a) {
    return a->c->context_max ? a->c->context_max
                             : min_u32(a->m->cfg->max_position, CONTEXT_UNASKED);
}

// Where the rows of the embedding go. An unasked context gets as long as the memory allows, so the rule takes a modest one.
static int place(const struct ask *a, struct err *e) {
    enum embedding_mode mode = EMBEDDING_AUTO;
    int st = placement_mode(&mode, a->c->embedding, e);
    if (st || !own_memory(a->m)) return st;
    uint32_t context = modest_context(a);
    struct placement_ask ask = {
        .mode = mode, .unified = a->m->ops->unified, .tied = model_tied(a->m), .room = a->room};
    weights_map_embedding(&a->m->w, false);
    ask.need_card = measure_one(a->b, a->m, a->r, a->c->streams_max, context);
    if (!ask.tied) {
        weights_map_embedding(&a->m->w, true);
        ask.need_host = measure_one(a->b, a->m, a->r, a->c->streams_max, context);
    }
    st = placement_choose(&a->b->place, &ask, e);
    if (st == ST_NOMEM) return refuse(a, context, e);
    if (st) return st;
    weights_map_embedding(&a->m->w, a->b->place.host);
    a->b->need =
        align_up_u64(a->b->place.host ? ask.need_host : ask.need_card, a->m->ops->alloc_step);
    return ST_OK;
}

// What may be used of what is free. The CPU's weights stay in the checkpoint's mapping and are counted apart.
static uint64_t room_of(const struct model *m, const struct engine_config *c, uint64_t less) {
    double fraction = c->memory_fraction > 0 ? c->memory_fraction
                      : own_memory(m)        ? 1
                                             : memory_fraction_default;
    uint64_t left = m->ops->free_bytes(m->ops->ctx);
    if (!own_memory(m)) left = left > m->w.bytes ? left - m->w.bytes : 0;
    left = fraction < 1 ? (uint64_t)((double)left * fraction) : left;
    left = left > less ? left - less : 0;
    return left / m->ops->alloc_step * m->ops->alloc_step;
}

static int begin(struct budget *b, struct model *m, const struct engine_config *config,
                 struct err *e) {
    uint32_t chunk = own_memory(m) ? CHUNK_GPU : CHUNK_DEFAULT;
    uint32_t rows = own_memory(m) ? CHUNK_GPU_MIN : ROUND_ROWS_DEFAULT;
    bool asked = config->chunk_tokens || config->round_rows_max;
    *b = (struct budget){.chunk_tokens = config->chunk_tokens ? config->chunk_tokens : chunk};
    b->round_rows_max =
        config->round_rows_max ? config->round_rows_max : max_u32(rows, b->chunk_tokens);
    b->rows_beside = own_memory(m) && !asked ? ROWS_BESIDE : b->round_rows_max;
    int st = budget_check(config, m->cfg->max_position, e);
    return st ? st : kv_dtype(&m->lim.kv_dtype, m, config->kv, e);
}

// Shorter chunks where the memory of long ones would be missed.
static void choose_chunk(const struct ask *a) {
    struct budget *b = a->b;
    uint32_t streams = a->c->streams_max, context = modest_context(a);
    if (!own_memory(a->m) || a->c->chunk_tokens || a->c->round_rows_max) return;
    b->round_rows_max = CHUNK_GPU_MIN;
    uint64_t least = measure_one(b, a->m, a->r, streams, context);
    for (b->chunk_tokens = CHUNK_GPU; b->chunk_tokens > CHUNK_GPU_MIN; b->chunk_tokens /= 2) {
        b->round_rows_max = b->chunk_tokens;
        uint64_t need = measure_one(b, a->m, a->r, streams, context);
        if (need <= a->room && need - least <= a->room / CHUNK_ROOM) return;
    }
    b->round_rows_max = b->chunk_tokens;
}

int budget_lay_out(struct model *m, struct round *r, const struct engine_config *config,
                   struct err *e) {
    struct budget b;
    int st = begin(&b, m, config, e);
    if (st) return st;
    uint32_t context = config->context_max ? config->context_max : m->cfg->max_position;
    set_limits(&b, m, r, config->streams_max ? config->streams_max : STREAMS_DEFAULT, context, 1);
    carved(m, r);
    return ST_OK;
}

int budget_make(struct budget *ret, struct model *m, struct round *r,
                const struct engine_config *config, uint64_t less, struct err *e) {
    struct budget b;
    int st = begin(&b, m, config, e);
    if (st) return st;
    measure(&b, m, r, 1, KV_PAGE_TOKENS, 1); // for the weights' bytes
    b.room = room_of(m, config, less);
    if (!b.room) st = m->ops->sync(m->ops->ctx, e); // a device that has failed has no room either
    if (st) return st;
    struct ask a = {&b, m, r, config, b.room};
    choose_chunk(&a);
    st = place(&a, e);
    if (!st) st = fit(&a, e);
    if (st) return st;
    b.round_rows_max = m->lim.rows_max;
    *ret = b;
    return ST_OK;
}
