/* draft_head: see draft_head.h. */
#include "worker/engine/draft_head.h"
#include "common/err.h"
#include "common/num.h"
#include "kernels/draft/draft_top.h"
#include "kernels/linear/linear.h"
#include "kernels/ops.h"
#include "worker/engine/carve.h"
#include "worker/engine/model_config.h"
#include "worker/engine/model_qwen3_5.h"

#include <assert.h>

enum { EXL3_TILE = 16 }; // inputs of a row of the trellis

static int check_spans(const struct draft_head_spans *given, uint32_t vocab, uint32_t top,
                       struct err *e) {
    const struct engine_range *s = given->spans;
    uint64_t end = 0, ids = 0;
    if (given->count > DRAFT_PARTS_MAX)
        return err_set(e, ST_INVAL, "%s: wanted at most %d spans, found %u", given->name,
                       DRAFT_PARTS_MAX, given->count);
    for (uint32_t i = 0; i < given->count; i++) {
        if (!s[i].count || s[i].first < end || (uint64_t)s[i].first + s[i].count > vocab)
            return err_set(e, ST_INVAL,
                           "%s: span %u: wanted ids from %llu to %u, found %u ids from %u",
                           given->name, i, (unsigned long long)end, vocab, s[i].count, s[i].first);
        end = (uint64_t)s[i].first + s[i].count;
        ids += s[i].count;
    }
    if (ids < top)
        return err_set(e, ST_INVAL, "%s: wanted at least %u ids, found %llu", given->name, top,
                       (unsigned long long)ids);
    return ST_OK;
}

// Rows of the head are multiplied in steps: of its blocks where it is EXL3.
static void make_views(struct draft_head *h) {
    uint32_t step = h->m->w.head.exl3.half_bits ? EXL3_BLOCK : 1, vocab = h->m->w.head.rows;
    h->views_count = 0;
    for (uint32_t i = 0; i < h->spans_count; i++) {
        uint32_t first = h->spans[i].first / step * step;
        uint32_t end = ceil_div_u32(h->spans[i].first + h->spans[i].count, step) * step;
        struct engine_range *last = h->views_count ? &h->views[h->views_count - 1] : NULL;
        end = min_u32(end, vocab);
        if (last && first < last->first + last->count)
            last->count = end - last->first;
        else
            h->views[h->views_count++] = (struct engine_range){first, end - first};
    }
}

int draft_head_init(struct draft_head *h, const struct model *m, struct draft_head_spans given,
                    uint32_t top, struct err *e) {
    uint32_t vocab = m->cfg->vocab;
    struct engine_range all = {0, vocab};
    if (!given.count) {
        given.spans = &all;
        given.count = 1;
    }
    int st = check_spans(&given, vocab, top, e);
    if (st) return st;
    *h = (struct draft_head){.m = m, .spans_count = given.count, .top = top};
    for (uint32_t i = 0; i < given.count; i++) h->spans[i] = given.spans[i];
    return ST_OK;
}

// A tile row's bytes of a view's trellis: 16 for each half bit of 16 outputs.
static uint64_t line_bytes(const struct weight *head, uint32_t rows) {
    return (uint64_t)rows * head->exl3.half_bits;
}

static bool copied(const struct draft_head *h, uint32_t idx) {
    const struct weight *head = &h->m->w.head;
    return head->exl3.half_bits && !h->m->ops->exl3_views && h->views[idx].count != head->rows;
}

void draft_head_carve_copies(struct draft_head *h, struct carve *c) {
    const struct weight *head = &h->m->w.head;
    assert(head->rows); // laid out already
    make_views(h);
    for (uint32_t i = 0; i < h->views_count; i++)
        h->copies[i] =
            copied(h, i)
                ? carve_take(c, head->cols / EXL3_TILE * line_bytes(head, h->views[i].count))
                : 0;
}

void draft_head_load(struct draft_head *h) {
    const struct ops *o = h->m->ops;
    const struct weight *head = &h->m->w.head;
    for (uint32_t i = 0; i < h->views_count; i++) {
        if (!copied(h, i)) continue;
        uint64_t bytes = line_bytes(head, h->views[i].count);
        devptr from = head->data + line_bytes(head, h->views[i].first);
        for (uint32_t k = 0; k < head->cols / EXL3_TILE; k++)
            o->copy(o->ctx, h->copies[i] + k * bytes, from + k * line_bytes(head, head->rows),
                    bytes);
    }
}

static struct weight view_of(const struct draft_head *h, uint32_t idx) {
    const struct weight *head = &h->m->w.head;
    if (h->views[idx].count == head->rows) return *head;
    struct weight w = weight_rows(head, h->views[idx].first, h->views[idx].count);
    if (copied(h, idx)) {
        w.data = h->copies[idx];
        w.exl3.rows_whole = 0;
    }
    return w;
}

static void carve_rest(struct draft_head *h, struct carve *c, uint32_t rows_max) {
    h->rows_max = rows_max;
    h->ids = carve_take(c, (uint64_t)rows_max * h->top * sizeof(uint32_t));
    h->values = carve_take(c, (uint64_t)rows_max * h->top * sizeof(float));
}

static uint64_t view_bytes(const struct draft_head *h, uint32_t idx, uint32_t rows) {
    return (uint64_t)rows * h->views[idx].count * sizeof(float);
}

void draft_head_carve(struct draft_head *h, struct carve *c, uint32_t rows_max) {
    for (uint32_t i = 0; i < h->views_count; i++)
        h->logits[i] = carve_take(c, view_bytes(h, i, rows_max));
    carve_rest(h, c, rows_max);
}

void draft_head_carve_in(struct draft_head *h, struct carve *c, uint32_t rows_max, devptr logits) {
    for (uint32_t i = 0; i < h->views_count; i++) {
        h->logits[i] = logits;
        logits += view_bytes(h, i, rows_max);
    }
    carve_rest(h, c, rows_max);
}

uint32_t draft_head_ids(const struct draft_head *h) {
    uint32_t ids = 0;
    for (uint32_t i = 0; i < h->spans_count; i++) ids += h->spans[i].count;
    return ids;
}

static void multiply(struct draft_head *h, devptr x, uint32_t rows) {
    const struct ops *o = h->m->ops;
    for (uint32_t i = 0; i < h->views_count; i += LINEAR_PARTS_MAX) {
        struct linear_args a = {.x = x, .rows = rows};
        a.parts_count = min_u32(h->views_count - i, LINEAR_PARTS_MAX);
        for (uint32_t p = 0; p < a.parts_count; p++)
            a.parts[p] = (struct linear_part){.w = view_of(h, i + p), .y = h->logits[i + p]};
        o->linear(o->ctx, &a);
    }
}

void draft_head_run(struct draft_head *h, devptr x, uint32_t rows) {
    const struct ops *o = h->m->ops;
    struct draft_top_args a = {.parts_count = h->spans_count,
                               .rows = rows,
                               .k = h->top,
                               .ids = h->ids,
                               .values = h->values};
    assert(rows <= h->rows_max);
    multiply(h, x, rows);
    for (uint32_t i = 0, v = 0; i < h->spans_count; i++) {
        while (h->spans[i].first >= h->views[v].first + h->views[v].count) v++;
        a.parts[i] = (struct draft_top_part){.logits = h->logits[v],
                                             .stride = h->views[v].count,
                                             .col = h->spans[i].first - h->views[v].first,
                                             .id = h->spans[i].first,
                                             .count = h->spans[i].count};
    }
    o->draft_top(o->ctx, &a);
}
