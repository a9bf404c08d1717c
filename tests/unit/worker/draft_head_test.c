/* The head for drafts: a view of some of its rows has the bits of the whole head, wherever it begins and ends, and only ids of the spans
 * are ever given. */
#include "common/err.h"
#include "common/num.h"
#include "kernels/linear/linear.h"
#include "tests/lib/model_bed.h"
#include "tests/lib/test.h"
#include "tests/lib/tiny_model.h"
#include "worker/engine/draft_head.h"
#include "worker/engine/model_config.h"

#include <stdlib.h>
#include <string.h>

enum { ROWS = 5, TOP = 8, BYTES = 4 << 20 };

struct heads { // one model, its whole logits of made-up rows, and room for a head
    struct model_bed b;
    devptr memory, x;
    uint32_t vocab, dim;
    float *whole, *part;
};

static void heads_open(struct heads *h, const char *args) {
    struct err e = {0};
    model_bed_open(&h->b, &(struct model_bed_config){.dir = tiny_model(args), .context = 64});
    struct model *m = &h->b.model;
    const struct ops *o = &h->b.ops;
    h->vocab = m->w.head.rows;
    h->dim = m->cfg->hidden;
    h->whole = malloc((size_t)ROWS * h->vocab * sizeof(float));
    h->part = malloc((size_t)ROWS * h->vocab * sizeof(float));
    CHECK_OK(o->alloc(o->ctx, BYTES, "head", &h->memory, &e), e);
    h->x = h->memory;
    for (uint32_t i = 0; i < ROWS * h->dim; i++) {
        float v = (float)(mix_u64(i + 1) >> 40) / 8388608.0f - 1;
        o->write(o->ctx, h->x + i * sizeof v, &v, sizeof v);
    }
    o->linear(o->ctx, &(struct linear_args){.x = h->x,
                                            .rows = ROWS,
                                            .parts_count = 1,
                                            .parts = {{.w = m->w.head, .y = m->logits}}});
    o->read(o->ctx, h->whole, m->logits, (uint64_t)ROWS * h->vocab * sizeof(float));
}

static void heads_close(struct heads *h) {
    h->b.ops.free(h->b.ops.ctx, h->memory, BYTES);
    free(h->whole);
    free(h->part);
    model_bed_close(&h->b);
}

static void head_make(struct heads *h, struct draft_head *ret, const struct engine_range *spans,
                      uint32_t count) {
    struct err e = {0};
    struct carve c = {.base = h->memory + align_up_u64(ROWS * h->dim * sizeof(float), CARVE_ALIGN)};
    CHECK_OK(draft_head_init(ret, &h->b.model, (struct draft_head_spans){"spans", spans, count},
                             TOP, &e),
             e);
    draft_head_carve_copies(ret, &c);
    draft_head_carve(ret, &c, ROWS);
    draft_head_load(ret);
    CHECK(c.base + carve_bytes(&c) <= h->memory + BYTES);
}

static void check_views(struct heads *h, const struct draft_head *d) {
    for (uint32_t v = 0; v < d->views_count; v++) {
        uint32_t first = d->views[v].first, count = d->views[v].count;
        h->b.ops.read(h->b.ops.ctx, h->part, d->logits[v], (uint64_t)ROWS * count * sizeof(float));
        for (uint32_t r = 0; r < ROWS; r++)
            CHECK_MEM(h->part + r * count, h->whole + r * h->vocab + first, count * sizeof(float));
    }
}

// The best by a search of its own over the whole head's logits.
static void check_best(const struct heads *h, const struct draft_head *d) {
    uint32_t ids[ROWS * TOP];
    h->b.ops.read(h->b.ops.ctx, ids, d->ids, sizeof ids);
    for (uint32_t r = 0; r < ROWS; r++) {
        const float *x = h->whole + r * h->vocab;
        for (uint32_t k = 0; k < TOP; k++) {
            uint32_t best = UINT32_MAX;
            for (uint32_t s = 0; s < d->spans_count; s++)
                for (uint32_t i = d->spans[s].first; i < d->spans[s].first + d->spans[s].count;
                     i++) {
                    bool taken = false;
                    for (uint32_t j = 0; j < k; j++) taken |= ids[r * TOP + j] == i;
                    if (!taken && (best == UINT32_MAX || x[i] > x[best])) best = i;
                }
            CHECK_EQ(ids[r * TOP + k], best);
        }
    }
}

static void run(struct heads *h, const struct engine_range *spans, uint32_t count) {
    struct draft_head d;
    head_make(h, &d, spans, count);
    draft_head_run(&d, h->x, ROWS);
    check_views(h, &d);
    check_best(h, &d);
}

// Every first and last block of 128 ids; the known trap of another engine is a narrow view at the end, planned unlike the whole.
static void every_aligned_span(const char *args) {
    struct heads h;
    uint32_t spans = 0;
    heads_open(&h, args);
    for (uint32_t first = 0; first < h.vocab; first += EXL3_BLOCK)
        for (uint32_t end = first + EXL3_BLOCK; end <= h.vocab; end += EXL3_BLOCK, spans++)
            run(&h, &(struct engine_range){first, end - first}, 1);
    test_note("%s: %u spans of a head of %u", h.b.model.w.head.exl3.half_bits ? "EXL3" : "plain",
              spans, h.vocab);
    CHECK(spans >= 10);
    heads_close(&h);
}

TEST(every_aligned_span_of_a_plain_head_has_the_whole_ones_bits) {
    every_aligned_span("--vocab 640");
}

TEST(every_aligned_span_of_an_exl3_head_has_the_whole_ones_bits) {
    every_aligned_span(TINY_EXL3 " --vocab 640");
}

TEST(spans_that_end_anywhere_give_their_own_ids_alone) {
    const struct engine_range odd[] = {{3, 10}, {14, 1}, {130, 250}, {600, 37}};
    const char *const models[] = {"--vocab 640", TINY_EXL3 " --vocab 640"};
    for (int i = 0; i < 2; i++) {
        struct heads h;
        struct draft_head d;
        heads_open(&h, models[i]);
        head_make(&h, &d, odd, 4);
        if (i) CHECK_EQ(d.views_count, 3); // the first two share a block
        run(&h, odd, 4);
        run(&h, NULL, 0);
        // Without views of EXL3 weights there are copies.
        h.b.ops.exl3_views = false;
        head_make(&h, &d, odd, 4);
        CHECK_EQ(d.copies[2] != 0, i);
        run(&h, odd, 4);
        heads_close(&h);
    }
}

TEST(spans_that_are_none_are_refused) {
    static const struct {
        struct engine_range spans[2];
        const char *part;
    } cases[] = {{{{0, 0}, {5, 9}}, "span 0: wanted ids from 0 to 640, found 0 ids from 0"},
                 {{{0, 10}, {9, 9}}, "span 1: wanted ids from 10 to 640, found 9 ids from 9"},
                 {{{0, 10}, {632, 9}}, "span 1: wanted ids from 10 to 640, found 9 ids from 632"},
                 {{{0, 3}, {5, 4}}, "wanted at least 8 ids, found 7"}};
    struct heads h;
    heads_open(&h, "--vocab 640");
    for (uint32_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct err e = {0};
        struct draft_head d;
        struct draft_head_spans given = {"what gave them", cases[i].spans, 2};
        CHECK_EQ(draft_head_init(&d, &h.b.model, given, TOP, &e), ST_INVAL);
        CHECK_HAS(e.msg, "what gave them: ");
        CHECK_HAS(e.msg, cases[i].part);
    }
    heads_close(&h);
}
