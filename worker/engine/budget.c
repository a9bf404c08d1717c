/* budget: see budget.h. */
#include "worker/engine/budget.h"
#include "common/err.h"
#include "common/num.h"
#include "kernels/ops.h"
#include "worker/engine/carve.h"
#include "worker/engine/engine.h"
#include "worker/engine/model_config.h"
#include "worker/engine/model_qwen3_5.h"
#include "worker/engine/round.h"

#include <stdlib.h>
#include <string.h>

enum {
    CHUNK_DEFAULT = 64,       // rows of one stream: the products are compute-bound from about 16
    ROUND_ROWS_DEFAULT = 128, // what two filling streams need
    STREAMS_DEFAULT = 16,
    HEAD_ROWS_MAX = 32,
};
static const double memory_fraction_default = 0.5; // the CPU's memory is others' too

static int check_config(const struct engine_config *c, uint32_t max_position, struct err *e) {
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

static int kv_dtype(enum dtype *ret, const char *kv, struct err *e) {
    if (!kv || !strcmp(kv, "auto") || !strcmp(kv, "f32"))
        *ret = DTYPE_F32;
    else if (!strcmp(kv, "bf16"))
        *ret = DTYPE_BF16;
    else
        return err_set(e, strcmp(kv, "fp8") ? ST_INVAL : ST_UNSUPPORTED,
                       "kv: wanted auto, f32 or bf16 on this backend, found '%s'", kv);
    return ST_OK;
}

static void set_limits(struct budget *b, struct model *m, struct round *r, uint32_t streams,
                       uint32_t context, uint32_t pages) {
    b->streams_max = streams;
    b->context_max = context;
    b->pages = pages;
    m->lim.slots = streams;
    m->lim.pages = pages;
    m->lim.pages_per_slot = ceil_div_u32(context, KV_PAGE_TOKENS);
    // A round must hold a row of every stream and one more of a prompt.
    m->lim.rows_max = max_u32(max_u32(b->round_rows_max, streams + 1), ENGINE_WINDOW_ROWS_MAX);
    m->lim.head_rows_max = min_u32(m->lim.rows_max, HEAD_ROWS_MAX);
    m->lim.record_rows_max = ENGINE_WINDOW_ROWS_MAX;
    r->rows_max = m->lim.rows_max;
    r->picks_max = m->lim.rows_max;
    r->runs_max = streams;
}

static uint64_t measure(struct budget *b, struct model *m, struct round *r, uint32_t streams,
                        uint32_t context, uint32_t pages) {
    struct carve c = {0};
    set_limits(b, m, r, streams, context, pages);
    model_carve(m, &c, r);
    return carve_bytes(&c);
}

static int too_small(const struct model *m, uint64_t need, uint64_t room, uint64_t fixed,
                     struct err *e) {
    uint64_t page = model_kv_page_bytes(m);
    uint64_t pages = room > fixed && page ? (room - fixed) / page : 0;
    return err_set(e, ST_NOMEM,
                   "memory: one stream of this context needs %.3f GiB beside the weights, %.3f GiB "
                   "may be used; the largest context that would fit is %llu",
                   (double)need / (1 << 30), (double)room / (1 << 30),
                   (unsigned long long)pages * KV_PAGE_TOKENS);
}

// Streams: as asked, or as many as have room for their states beside one whole context.
static uint32_t fit_streams(struct budget *b, struct model *m, struct round *r, uint32_t wanted,
                            uint32_t context, uint64_t room) {
    if (wanted) return wanted;
    uint32_t streams = STREAMS_DEFAULT, one = ceil_div_u32(context, KV_PAGE_TOKENS);
    while (streams > 1 && measure(b, m, r, streams, context, one) > room) streams /= 2;
    return streams;
}

static int fit(struct budget *b, struct model *m, struct round *r, const struct engine_config *c,
               uint64_t room, struct err *e) {
    uint32_t context = c->context_max ? c->context_max : m->cfg->max_position;
    uint32_t streams = fit_streams(b, m, r, c->streams_max, context, room);
    uint64_t page = model_kv_page_bytes(m), fixed = measure(b, m, r, streams, context, 0);
    uint32_t one = ceil_div_u32(context, KV_PAGE_TOKENS);
    uint64_t pages = (uint64_t)one * streams;
    if (page) pages = min_u64(pages, room > fixed ? (room - fixed) / page : 0);
    if (pages < one && !c->context_max) {
        one = (uint32_t)pages;
        context = min_u32(context, one * KV_PAGE_TOKENS);
    }
    if (pages < one || one == 0 || fixed > room)
        return too_small(m, fixed + (one ? one : 1) * page, room, fixed, e);
    set_limits(b, m, r, streams, context, (uint32_t)min_u64(pages, UINT32_MAX / 2));
    return ST_OK;
}

int budget_make(struct budget *ret, struct model *m, struct round *r,
                const struct engine_config *config, struct err *e) {
    struct budget b = {.chunk_tokens = config->chunk_tokens ? config->chunk_tokens : CHUNK_DEFAULT};
    b.round_rows_max = config->round_rows_max ? config->round_rows_max
                                              : max_u32(ROUND_ROWS_DEFAULT, b.chunk_tokens);
    int st = check_config(config, m->cfg->max_position, e);
    if (!st) st = kv_dtype(&m->lim.kv_dtype, config->kv, e);
    if (st) return st;
    measure(&b, m, r, 1, KV_PAGE_TOKENS, 1); // for the weights' bytes
    double fraction =
        config->memory_fraction > 0 ? config->memory_fraction : memory_fraction_default;
    uint64_t left = m->ops->free_bytes(m->ops->ctx);
    left = left > m->w.bytes ? left - m->w.bytes : 0;
    st = fit(&b, m, r, config, (uint64_t)((double)left * fraction), e);
    if (st) return st;
    b.round_rows_max = m->lim.rows_max;
    *ret = b;
    return ST_OK;
}
