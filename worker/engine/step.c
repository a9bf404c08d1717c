/* step: one round: which rows, through the model, what their logits mean, what is told. See engine.h. */
#include "common/err.h"
#include "common/mono.h"
#include "common/num.h"
#include "kernels/cpu_pool.h"
#include "kernels/sample/draw.h"
#include "worker/engine/engine_impl.h"

#include <string.h>

static float *logits_row(struct engine *eng, uint32_t idx) {
    return eng->host_logits + (size_t)idx * eng->vocab.size;
}

void engine_read_logits(struct engine *eng, uint32_t count) {
    eng->ops.read(eng->ops.ctx, eng->host_logits, eng->model.logits,
                  (uint64_t)count * eng->vocab.size * sizeof(float));
}

int engine_forward(struct engine *eng, engine_logits_fn *fn, void *arg, struct err *e) {
    struct round *r = &eng->round;
    uint32_t piece = eng->model.lim.head_rows_max;
    ops_mark(&eng->ops, ENGINE_PART_VERIFY);
    round_write(r, &eng->ops);
    const struct cuda_graph *graph = graphs_find(&eng->graphs, r);
    if (graph)
        eng->ops.graph_run(eng->ops.ctx, graph);
    else
        model_layers(&eng->model, r);
    for (uint32_t first = 0; first < r->picks_count; first += piece) {
        uint32_t count = min_u32(piece, r->picks_count - first);
        if (first) ops_mark(&eng->ops, ENGINE_PART_VERIFY);
        if (!graph) model_head(&eng->model, r, first, count); // its rows are one piece
        ops_mark(&eng->ops, ENGINE_PART_DRAW);
        fn(arg, eng, first, count);
        ops_mark(&eng->ops, ENGINE_PART_HOST);
    }
    int st = eng->ops.sync(eng->ops.ctx, e);
    eng->failed |= st != ST_OK;
    return st;
}

// Rows first .. count - 1 of the run that begins at `row`.
static void pick_rows(struct engine *eng, const struct stream *s, uint32_t row, uint32_t first,
                      uint32_t count) {
    struct round *r = &eng->round;
    for (uint32_t i = first; i < count; i++) {
        if (!stream_wants_logits(s, s->rows + i)) continue;
        round_pick(r, row + i);
        r->draws[r->picks_count - 1] = stream_draw_row(s, s->rows + i);
    }
}

// Beside the window. The logits of its first row are those of the window's.
static void add_branch(struct engine *eng, const struct stream *s, uint32_t rows) {
    const struct draft_slot *d = &eng->drafts.slots[s->slot];
    uint32_t keys = model_branch(&eng->model, s->slot, s->pages, s->rows, rows);
    uint32_t row = round_add_branch(&eng->round, s->slot, keys, s->rows, d->branch, rows);
    pick_rows(eng, s, row, 1, rows);
}

// The rows of one stream whose turn it is; with its drafts, a window.
static void add_rows(struct engine *eng, uint32_t slot) {
    const struct stream *s = &eng->streams[slot];
    const struct draft_slot *d = &eng->drafts.slots[slot];
    uint32_t branch = drafts_branch_rows(&eng->drafts, slot);
    uint32_t count = eng->items[slot].ret_rows;
    if (!count) return;
    uint32_t row = round_add(&eng->round, slot, s->rows, d->count ? d->ids : s->ids + s->rows,
                             count - branch, d->count > 0);
    pick_rows(eng, s, row, 0, count - branch);
    if (branch) add_branch(eng, s, branch);
}

// Fills eng->round with the rows whose turn it is.
static uint32_t plan_round(struct engine *eng) {
    uint32_t n = eng->budget.streams_max;
    drafts_propose(&eng->drafts, eng->streams);
    for (uint32_t i = 0; i < n; i++)
        eng->items[i] = (struct sched_item){.pending = stream_pending(&eng->streams[i]) +
                                                       eng->drafts.slots[i].count +
                                                       drafts_branch_rows(&eng->drafts, i),
                                            .decoding = stream_decoding(&eng->streams[i])};
    uint32_t rows = sched_pick(&eng->sched, eng->items, n, eng->round.rows_max,
                               eng->budget.chunk_tokens, eng->budget.rows_beside);
    round_reset(&eng->round);
    for (uint32_t i = 0; i < n; i++) add_rows(eng, i);
    return rows;
}

static uint32_t group_picks(struct engine *eng, uint32_t first, uint32_t count) {
    const struct round *r = &eng->round;
    uint32_t groups = 0;
    for (uint32_t i = 0; i < count; i++) {
        uint32_t slot = round_run(r, r->picks[first + i])->slot;
        if (!groups || eng->groups[groups - 1].slot != slot)
            eng->groups[groups++] = (struct pick_group){.slot = slot, .first = i};
        eng->groups[groups - 1].count++;
    }
    return groups;
}

bool engine_row_stands(const struct engine *eng, uint32_t row) {
    const struct round *r = &eng->round;
    const struct run *run = round_run(r, row);
    const struct stream *s = &eng->streams[run->slot];
    if (!stream_stands(s, r->pos[row], r->ids[row])) return false;
    // A branch may meet the window's ids again behind its first, which was another.
    return !run->record ||
           !memcmp(s->ids + run->pos, r->ids + run->row, (row - run->row) * sizeof *r->ids);
}

struct draw_job {
    struct engine *eng;
    uint32_t first; // pick of the piece's row 0
};

static void draw_unit(void *arg, uint32_t unit, uint32_t thread) {
    const struct draw_job *j = arg;
    struct engine *eng = j->eng;
    const struct pick_group *g = &eng->groups[unit];
    struct stream *s = &eng->streams[g->slot];
    for (uint32_t i = g->first; i < g->first + g->count; i++) {
        uint32_t row = eng->round.picks[j->first + i];
        if (engine_row_stands(eng, row))
            stream_row(s, &eng->vocab, eng->round.pos[row], logits_row(eng, i),
                       eng->samplers[thread]);
    }
}

static void draw(void *arg, struct engine *eng, uint32_t first, uint32_t count) {
    if (engine_draw_on_device(eng, first, count)) return;
    engine_read_logits(eng, count);
    if (eng->fault == ENGINE_FAULT_ULP && eng->round.runs_count > 1) {
        uint32_t bits;
        memcpy(&bits, eng->host_logits, sizeof bits);
        bits ^= 1;
        memcpy(eng->host_logits, &bits, sizeof bits);
    }
    cpu_pool_run(eng->pool, group_picks(eng, first, count), draw_unit,
                 &(struct draw_job){.eng = eng, .first = first});
}

static void count_times(struct stream *s, uint64_t start_us, uint64_t now_us) {
    if (!s->rounds++) s->start_us = start_us;
    if (!s->first_us && s->count > s->prompt_count + s->given_count) s->first_us = now_us;
}

static void fill_end(struct engine_event *ev, const struct stream *s, const struct draft_slot *d,
                     uint64_t now_us) {
    uint64_t start = s->start_us ? s->start_us : now_us, first = s->first_us ? s->first_us : now_us;
    ev->prompt_count = s->prompt_count;
    ev->cached_count = s->cached;
    ev->completion_count = s->count - s->prompt_count;
    ev->queue_us = start - s->submit_us;
    ev->prefill_us = first - start;
    ev->decode_us = now_us - first;
    ev->rounds = s->rounds;
    ev->logits_hash = s->hash;
    ev->draft_rounds = d->rounds;
    memcpy(ev->drafted, d->drafted, sizeof ev->drafted);
    memcpy(ev->accepted, d->accepted, sizeof ev->accepted);
}

static void add_event(struct engine *eng, struct engine_round *ret, struct stream *s,
                      uint64_t now_us) {
    uint32_t generated = s->count - s->prompt_count;
    struct engine_event *ev = &eng->events[ret->count++];
    *ev = (struct engine_event){
        .handle = s->handle,
        .tag = s->tag,
        .first = s->emitted,
        .ids = s->ids + s->prompt_count + s->emitted,
        .ids_count = generated - s->emitted,
        .filled = min_u32(s->rows, s->prompt_count + s->given_count),
        .finish = stream_done(s) ? s->finish : ENGINE_RUNNING,
        .stop_id = stream_done(s) ? s->stop_id : -1,
    };
    if (s->top_logprobs >= 0 && ev->ids_count) {
        ev->logprobs = s->logprobs;
        ev->top = s->top;
    }
    s->emitted = generated;
    if (ev->finish) fill_end(ev, s, &eng->drafts.slots[s->slot], now_us);
}

// How many rows of a run stand: in a window, or else in its branch, those that an id was drawn from, or that broke.
static uint32_t rows_kept(const struct stream *s, const struct run *run) {
    if (!run->record) return run->count;
    return s->count - run->pos - 1 + (s->finish == ENGINE_FINISH_BROKEN ? 1 : 0);
}

// The branch behind a window, if it was the branch's id that was drawn first.
static const struct run *taken_branch(const struct engine *eng, uint32_t window, uint32_t kept) {
    const struct round *r = &eng->round;
    const struct run *branch = &r->runs[window + 1];
    if (window + 1 == r->runs_count || branch->slot != r->runs[window].slot || kept < 2)
        return NULL;
    return eng->streams[branch->slot].ids[branch->pos + 1] == r->ids[branch->row + 1] ? branch
                                                                                      : NULL;
}

// Rows that stand become the streams'; the states of windows follow, and the drafter is told.
static void commit_rows(struct engine *eng) {
    const struct round *r = &eng->round;
    uint32_t windows = 0, all = 0;
    for (uint32_t i = 0; i < r->runs_count; i++) {
        struct run run = r->runs[i];
        struct stream *s = &eng->streams[run.slot];
        if (i && r->runs[i - 1].slot == run.slot) continue; // came with its window
        uint32_t kept = rows_kept(s, &run);
        const struct run *branch = taken_branch(eng, i, kept);
        if (run.record) drafts_settle(&eng->drafts, s, kept, branch != NULL);
        if (branch) run = *branch;
        run.count = kept;
        if (branch) model_keep_branch(&eng->model, run.slot, s->pages, run.pos, kept);
        s->rows += run.count;
        if (!stream_done(s)) eng->kept[all++] = run; // else nobody reads its state any more
    }
    ops_mark(&eng->ops, ENGINE_PART_TAPS);
    drafts_absorb(&eng->drafts, eng->kept, all, eng->streams);
    ops_mark(&eng->ops, ENGINE_PART_COMMIT);
    for (uint32_t i = 0; i < all; i++)
        if (eng->kept[i].record) eng->kept[windows++] = eng->kept[i];
    if (windows) model_commit(&eng->model, eng->kept, windows);
    ops_mark(&eng->ops, ENGINE_PART_HOST);
}

// Events made, ended streams released (their ids stay readable until the next call).
static void finish_round(struct engine *eng, struct engine_round *ret, uint64_t start_us) {
    uint64_t now_us = mono_us();
    for (uint32_t i = 0; i < eng->budget.streams_max; i++) {
        struct stream *s = &eng->streams[i];
        uint32_t fed = eng->items[i].ret_rows;
        if (fed) count_times(s, start_us, now_us);
        if (!fed && !stream_done(s)) continue;
        add_event(eng, ret, s, now_us);
        if (stream_done(s)) engine_release(eng, s);
    }
    ret->round_us = (uint32_t)(now_us - start_us);
}

static void wipe_ended(struct engine *eng) {
    for (uint32_t i = 0; i < eng->budget.streams_max; i++)
        if (!eng->streams[i].live) stream_wipe(&eng->streams[i]);
}

int engine_step(struct engine *eng, struct engine_round *ret, struct err *e) {
    if (eng->failed) return err_set(e, ST_DEVICE, "the device has failed");
    uint64_t start_us = mono_us();
    wipe_ended(eng);
    struct engine_round round = {.rows = plan_round(eng), .events = eng->events};
    if (round.rows) {
        int st = engine_forward(eng, draw, NULL, e);
        if (st) return st;
        commit_rows(eng);
        eng->rounds++;
    }
    round.round = eng->rounds;
    finish_round(eng, &round, start_us);
    *ret = round;
    return ST_OK;
}
