/* device_draw: draws for which the row of logits stays on the device (engine_impl.h).
 *
 * A row that needs no filter is drawn from there; of one with a small top_k the best ids come back, and the draw is made of those.
 * Either way the id is the one that the whole row would have given on the host. All of a piece comes back in one copy.
 * Of a row without a finite number the device gives the first id in use, or best ids of no value: that much is looked at. */
#include "common/num.h"
#include "kernels/draft/draft_top.h"
#include "kernels/ops.h"
#include "kernels/sample/draw.h"
#include "worker/engine/engine_impl.h"

#include <math.h>

// Runs of ids in use, as parts of a row; with more of them than an operation takes, there are none, and the host draws.
void engine_find_used(struct engine *eng) {
    struct draft_top_part *parts = eng->used_parts;
    uint32_t n = 0, vocab = eng->vocab.size;
    eng->used_count = 0;
    for (uint32_t id = 0; id < vocab; id++) {
        const uint32_t *bits = eng->used_bits;
        if (bits && !(bits[id / 32] >> id % 32 & 1)) continue;
        bool next = n && parts[n - 1].id + parts[n - 1].count == id;
        if (!next && n == DRAFT_PARTS_MAX) {
            eng->used_count = 0;
            return;
        }
        if (!next) parts[n++] = (struct draft_top_part){.stride = vocab, .col = id, .id = id};
        parts[n - 1].count++;
        eng->used_count++;
    }
    eng->used_parts_count = n;
    for (uint32_t i = 0; i < n; i++) parts[i].logits = eng->model.logits;
}

static struct stream *pick_stream(struct engine *eng, uint32_t pick) {
    return &eng->streams[round_run(&eng->round, eng->round.picks[pick])->slot];
}

struct piece { // picks whose logits are on the device
    uint32_t first, count;
    uint32_t best;   // ids of each row that come back; 0: none do
    bool some_drawn; // by the device alone
};

static bool plan(struct engine *eng, struct piece *p) {
    if (!eng->ops.draw || eng->fault) return false;
    for (uint32_t i = 0; i < p->count; i++) {
        const struct stream *s = pick_stream(eng, p->first + i);
        uint32_t best = stream_best(s);
        if (best ? best > eng->used_count : !stream_plain(s)) return false;
        p->best = max_u32(p->best, best);
        p->some_drawn |= !best;
    }
    return true;
}

// Drawn ids, then the best ids of all rows, then their logits: on the device and, read, in eng->drawn.
static void issue(struct engine *eng, const struct piece *p) {
    const struct ops *o = &eng->ops;
    const struct model *m = &eng->model;
    devptr ids = m->draw_ids + p->count * sizeof(uint32_t);
    uint64_t bytes = p->count * (1 + 2 * (uint64_t)p->best) * sizeof(uint32_t);
    for (uint64_t i = 0; i < bytes / sizeof(uint32_t); i++)
        eng->drawn[i] = 0; // what a device that has failed leaves
    if (p->some_drawn)
        o->draw(o->ctx, &(struct draw_args){.logits = m->logits,
                                            .rows = eng->round.dev_draws +
                                                    p->first * sizeof(struct draw_row),
                                            .used_bits = eng->used_bits ? m->draw_used : 0,
                                            .ids = m->draw_ids,
                                            .rows_count = p->count,
                                            .vocab = eng->vocab.size});
    if (p->best) {
        struct draft_top_args a = {.parts_count = eng->used_parts_count,
                                   .rows = p->count,
                                   .k = p->best,
                                   .ids = ids,
                                   .values = ids + (uint64_t)p->count * p->best * sizeof(uint32_t)};
        for (uint32_t i = 0; i < a.parts_count; i++) a.parts[i] = eng->used_parts[i];
        o->draft_top(o->ctx, &a);
    }
    ops_mark(o, ENGINE_PART_HOST);
    o->read(o->ctx, eng->drawn, m->draw_ids, bytes);
}

// The first id in use is drawn now and then, and of a row of NaN each time: only then is the row read.
static bool row_finite(struct engine *eng, uint32_t i) {
    uint64_t bytes = (uint64_t)eng->vocab.size * sizeof(float);
    if (eng->drawn[i] != eng->used_parts[0].id) return true;
    eng->ops.read(eng->ops.ctx, eng->host_logits, eng->model.logits + i * bytes, bytes);
    return sample_finite(eng->host_logits, eng->vocab.size, eng->used_bits);
}

static void take_row(struct engine *eng, const struct piece *p, uint32_t i, uint32_t pos) {
    struct stream *s = pick_stream(eng, p->first + i);
    const uint32_t *ids = eng->drawn + p->count + (size_t)i * p->best;
    const float *logits = (const float *)(ids + (size_t)p->count * p->best);
    uint32_t id = eng->drawn[i], best = stream_best(s);
    if (best ? !isfinite(logits[0]) || !isfinite(logits[best - 1]) : !row_finite(eng, i)) {
        stream_broken(s, pos);
        return;
    }
    if (best) id = sample_draw_best(eng->samplers[0], ids, logits, p->best, &s->sampling, pos + 1);
    stream_drawn(s, pos, id);
}

bool engine_draw_on_device(struct engine *eng, uint32_t first, uint32_t count) {
    struct piece p = {.first = first, .count = count};
    if (!plan(eng, &p)) return false;
    issue(eng, &p);
    for (uint32_t i = 0; i < count; i++) {
        uint32_t row = eng->round.picks[first + i];
        if (engine_row_stands(eng, row)) take_row(eng, &p, i, eng->round.pos[row]);
    }
    return true;
}
