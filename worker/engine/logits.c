/* logits: the forward without streams of the caller's: goldens, tools, windows. See engine.h. */
#include "common/err.h"
#include "common/num.h"
#include "worker/engine/engine_impl.h"

#include <string.h>

struct sink {
    float *out; // where the next row goes
};

static void sink_piece(void *arg, struct engine *eng, uint32_t first, uint32_t count) {
    struct sink *s = arg;
    size_t n = (size_t)count * eng->vocab.size;
    engine_read_logits(eng, count);
    memcpy(s->out, eng->host_logits, n * sizeof *s->out);
    s->out += n;
}

struct feed {
    const uint32_t *ids, *rows;
    uint32_t count, rows_count, chunk;
};

static int check_feed(struct engine *eng, const struct feed *f, struct err *e) {
    uint32_t last = f->count ? f->ids[f->count - 1] : 0;
    if (eng->failed) return err_set(e, ST_DEVICE, "the device has failed");
    if (f->count > eng->budget.context_max)
        return err_set(e, ST_INVAL, "ids: wanted at most %u (context), found %u",
                       eng->budget.context_max, f->count);
    if (f->count > 1 && last >= eng->vocab.size)
        return err_set(e, ST_INVAL, "ids[%u]: wanted an id below %u, found %u", f->count - 1,
                       eng->vocab.size, last);
    for (uint32_t i = 0; i < f->rows_count; i++)
        if (f->rows[i] >= f->count || (i && f->rows[i] <= f->rows[i - 1]))
            return err_set(e, ST_INVAL, "rows[%u]: wanted ascending below %u, found %u", i,
                           f->count, f->rows[i]);
    return ST_OK;
}

static int feed_all(struct engine *eng, const struct stream *s, const struct feed *f,
                    struct sink *sink, struct err *e) {
    uint32_t next = 0;
    for (uint32_t pos = 0, n; pos < f->count; pos += n) {
        n = min_u32(f->chunk, f->count - pos);
        round_reset(&eng->round);
        round_add(&eng->round, s->slot, pos, f->ids + pos, n, false);
        for (; next < f->rows_count && f->rows[next] < pos + n; next++)
            round_pick(&eng->round, f->rows[next] - pos);
        int st = engine_forward(eng, sink_piece, sink, e);
        if (st) return st;
    }
    return ST_OK;
}

int engine_logits(struct engine *eng, const uint32_t *ids, uint32_t count, uint32_t chunk,
                  const uint32_t *rows, uint32_t rows_count, float *ret, struct err *e) {
    struct feed f = {.ids = ids, .count = count, .rows = rows, .rows_count = rows_count};
    f.chunk = min_u32(chunk ? chunk : eng->budget.chunk_tokens, eng->round.rows_max);
    // Nothing is drawn: the last id may take the place in the context that a request leaves to its reply.
    struct engine_request r = {.prompt = ids,
                               .prompt_count = count > 1 ? count - 1 : count,
                               .max_tokens = 1,
                               .sampling = {.top_p = 1, .repetition = 1},
                               .top_logprobs = -1};
    struct stream *s;
    int st = check_feed(eng, &f, e);
    if (!st) st = engine_admit(eng, &r, &s, e);
    if (st) return st;
    struct sink sink = {.out = ret};
    st = feed_all(eng, s, &f, &sink, e);
    engine_release(eng, s);
    return st;
}

uint32_t engine_propose(struct engine *eng, uint64_t handle, uint32_t want, uint32_t *ret) {
    const struct stream *s = engine_find(eng, handle);
    struct drafts *d = &eng->drafts;
    if (!s || !d->has_model || !d->slots[s->slot].model || !stream_decoding(s) || s->finish)
        return 0;
    struct draft_ask *a = &d->asks[0];
    *a = (struct draft_ask){.slot = s->slot,
                            .anchor = s->ids[s->rows],
                            .pos = s->rows,
                            .want = min_u32(want, min_u32(d->model.ids_max, d->rows_max - 1)),
                            .sampling = &s->sampling};
    d->model.propose(d->model.self, a, 1);
    memcpy(ret, a->ret_ids, a->ret_count * sizeof *ret);
    return a->ret_count;
}

struct path { // of a window: the rows of which some are kept, or the others
    const uint32_t *ids;
    uint32_t count, keep;
};

static struct path kept_path(const struct engine_window *w) {
    if (w->branch_kept) return (struct path){w->branch, w->branch_count, w->keep};
    return (struct path){w->ids, w->count, w->keep};
}

static int check_path(struct engine *eng, const struct stream *s, const struct path *p,
                      uint32_t rows_left, struct err *e) {
    uint32_t room = min_u32(s->total - s->rows, rows_left);
    if (!p->count || p->count > room || p->keep > p->count || p->keep > s->total - s->count)
        return err_set(e, ST_INVAL, "window: wanted 1 to %u rows, at most %u kept, found %u, %u",
                       room, min_u32(p->count, s->total - s->count), p->count, p->keep);
    if (p->ids[0] != s->ids[s->rows])
        return err_set(e, ST_INVAL, "window: wanted the id drawn last, %u, found %u",
                       s->ids[s->rows], p->ids[0]);
    for (uint32_t i = 0; i < p->count; i++)
        if (p->ids[i] >= eng->vocab.size ||
            (i && i < p->keep && stream_ends_at(s, s->count - s->prompt_count + i - 1, p->ids[i])))
            return err_set(e, ST_INVAL, "window: ids[%u]: %u is no id, or ends the reply", i,
                           p->ids[i]);
    return ST_OK;
}

static int check_window(struct engine *eng, const struct engine_window *w, uint32_t rows_left,
                        struct err *e) {
    const struct stream *s = engine_find(eng, w->handle);
    if (!s) return err_set(e, ST_INVAL, "window: no such stream");
    if (s->top_logprobs >= 0) return err_set(e, ST_UNSUPPORTED, "window: the stream has logprobs");
    if (!stream_decoding(s) || s->finish || stream_pending(s) != 1)
        return err_set(e, ST_INVAL, "window: wanted a stream that decodes");
    if (w->branch_count && !eng->drafts.branches)
        return err_set(e, ST_UNSUPPORTED, "window: the engine has no room for branches");
    struct path window = {w->ids, w->count, w->branch_kept ? 0 : w->keep},
                branch = {w->branch, w->branch_count, w->branch_kept ? w->keep : 0};
    int st = check_path(eng, s, &window, rows_left, e);
    if (!st && (w->branch_count || w->branch_kept))
        st = check_path(eng, s, &branch, rows_left - w->count, e);
    return st;
}

static int check_windows(struct engine *eng, const struct engine_window *w, uint32_t count,
                         struct err *e) {
    uint32_t left = min_u32(ENGINE_WINDOW_ROWS_MAX, eng->round.rows_max);
    for (uint32_t i = 0; i < count; i++) {
        for (uint32_t k = 0; k < i; k++)
            if (w[k].handle == w[i].handle)
                return err_set(e, ST_INVAL, "window: wanted one of each stream, found two");
        int st = check_window(eng, &w[i], left, e);
        if (st) return st;
        left -= w[i].count + w[i].branch_count;
    }
    return ST_OK;
}

struct fed { // a run of the round
    const struct engine_window *of;
    uint32_t keep;
    float *ret;
};

struct windows {
    struct fed runs[ENGINE_WINDOW_ROWS_MAX];
};

static void window_piece(void *arg, struct engine *eng, uint32_t first, uint32_t count) {
    const struct windows *ws = arg;
    const struct round *r = &eng->round;
    uint32_t vocab = eng->vocab.size;
    bool wanted = false;
    for (uint32_t i = 0; i < r->runs_count; i++) wanted |= ws->runs[i].ret || ws->runs[i].keep;
    if (!wanted) return;
    engine_read_logits(eng, count);
    for (uint32_t i = 0; i < count; i++) {
        uint32_t row = r->picks[first + i], idx = row - round_run(r, row)->row;
        const float *logits = eng->host_logits + (size_t)i * vocab;
        const struct fed *f = &ws->runs[r->run[row]];
        if (f->ret) memcpy(f->ret + (size_t)idx * vocab, logits, vocab * sizeof *logits);
        if (idx < f->keep)
            stream_row(engine_find(eng, f->of->handle), &eng->vocab, r->pos[row], logits,
                       eng->samplers[0]);
    }
}

// From the row `first` of the run on.
static void pick_fed(struct engine *eng, struct windows *ws, struct fed f, uint32_t row,
                     uint32_t first) {
    uint32_t all = round_run(&eng->round, row)->count;
    ws->runs[eng->round.run[row]] = f;
    for (uint32_t k = first; k < (f.ret || f.of->logits ? all : f.keep); k++)
        round_pick(&eng->round, row + k);
}

static void plan_window(struct engine *eng, struct windows *ws, const struct engine_window *w) {
    struct stream *s = engine_find(eng, w->handle);
    struct round *r = &eng->round;
    uint32_t row = round_add(r, s->slot, s->rows, w->ids, w->count, true);
    pick_fed(eng, ws, (struct fed){w, w->branch_kept ? 0 : w->keep, w->ret}, row, 0);
    if (!w->branch_count) return;
    uint32_t keys = model_branch(&eng->model, s->slot, s->pages, s->rows, w->branch_count);
    row = round_add_branch(r, s->slot, keys, s->rows, w->branch, w->branch_count);
    // The logits of its first row are the window's: a round of drafts does without.
    pick_fed(eng, ws, (struct fed){w, w->branch_kept ? w->keep : 0, w->branch_ret}, row,
             w->logits && !w->keep && !w->branch_ret);
}

static void plan_windows(struct engine *eng, struct windows *ws, const struct engine_window *w,
                         uint32_t count) {
    round_reset(&eng->round);
    for (uint32_t i = 0; i < count; i++) plan_window(eng, ws, &w[i]);
    for (uint32_t i = 0; i < count; i++) {
        struct path p = kept_path(&w[i]);
        for (uint32_t k = 1; k < p.keep; k++)
            stream_append(engine_find(eng, w[i].handle), p.ids[k]);
    }
}

// Of each window the run whose rows are kept, in kept.
static void take_kept(struct engine *eng, const struct windows *ws) {
    const struct round *r = &eng->round;
    uint32_t n = 0;
    for (uint32_t i = 0; i < r->runs_count; i++) {
        const struct engine_window *w = ws->runs[i].of;
        bool branch = i && ws->runs[i - 1].of == w;
        if (branch != w->branch_kept) continue;
        struct stream *s = engine_find(eng, w->handle);
        eng->kept[n] = r->runs[i];
        eng->kept[n++].count = w->keep;
        if (branch && w->keep) model_keep_branch(&eng->model, s->slot, s->pages, s->rows, w->keep);
        s->rows += w->keep;
    }
    drafts_absorb(&eng->drafts, eng->kept, n, eng->streams);
    model_commit(&eng->model, eng->kept, n);
}

int engine_windows(struct engine *eng, const struct engine_window *w, uint32_t count,
                   struct err *e) {
    struct windows ws;
    if (eng->failed) return err_set(e, ST_DEVICE, "the device has failed");
    int st = check_windows(eng, w, count, e);
    if (st) return st;
    plan_windows(eng, &ws, w, count);
    st = engine_forward(eng, window_piece, &ws, e);
    if (st) return st;
    take_kept(eng, &ws);
    return eng->ops.sync(eng->ops.ctx, e);
}
