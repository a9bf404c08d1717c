/* profile: what rounds cost on a device, operation by operation, for the bench. See engine.h. */
#include "common/err.h"
#include "common/mem.h"
#include "common/mono.h"
#include "common/num.h"
#include "worker/engine/engine_impl.h"

#include <stdlib.h>

enum { RUNS = 8, LONG_MS = 50, COPY_BYTES_MAX = 1 << 30 };

static int check_shape(struct engine *eng, const struct engine_shape *s, struct err *e) {
    const struct model_limits *lim = &eng->model.lim;
    if (!eng->ops.profile)
        return err_set(e, ST_UNSUPPORTED, "profile: wanted a GPU, found '%s'", eng->ops.device);
    if (!engine_idle(eng)) return err_set(e, ST_INVAL, "profile: wanted while no stream lives");
    if (!s->streams || s->streams > lim->slots || s->rows % s->streams || s->rows < s->streams ||
        s->rows > eng->round.rows_max || s->context > eng->budget.context_max ||
        s->context < s->rows / s->streams)
        return err_set(e, ST_INVAL, "profile: no round has %u rows of %u streams at %u positions",
                       s->rows, s->streams, s->context);
    return ST_OK;
}

// Streams share pages where there are not enough: what stands there changes no time.
static void set_pages(struct engine *eng, const struct engine_shape *s) {
    uint32_t each = ceil_div_u32(s->context, KV_PAGE_TOKENS), next = 0;
    uint32_t *pages = mem_calloc(each, sizeof *pages);
    for (uint32_t i = 0; i < s->streams; i++) {
        for (uint32_t k = 0; k < each; k++) pages[k] = next++ % eng->budget.pages;
        model_set_pages(&eng->model, i, pages, each);
    }
    free(pages);
}

static void plan(struct engine *eng, const struct engine_shape *s, bool as_it_is) {
    struct round *r = &eng->round;
    struct model *m = &eng->model;
    const struct ops *o = &eng->ops;
    uint32_t each = s->rows / s->streams;
    uint32_t *ids = mem_alloc(each * sizeof *ids);
    round_reset(r);
    for (uint32_t i = 0; i < s->streams; i++) { // other ids go to other experts
        for (uint32_t k = 0; k < each; k++) ids[k] = (k * 37 + i * 101 + 1) % eng->vocab.size;
        round_pick(r, round_add(r, i, s->context - each, ids, each, false) + each - 1);
    }
    free(ids);
    if (!as_it_is) {
        o->fill(o->ctx, m->state, 0, m->lim.slots * m->slot_bytes);
        o->fill(o->ctx, m->kv, 0, m->lim.pages * model_kv_page_bytes(m));
    }
    set_pages(eng, s);
    round_write(r, o);
}

struct work { // what is to be timed
    void (*issue)(struct engine *eng);
    bool marked; // operation by operation
};

static void issue_round(struct engine *eng) {
    model_layers(&eng->model, &eng->round);
    model_head(&eng->model, &eng->round, 0,
               min_u32(eng->round.picks_count, eng->model.lim.head_rows_max));
}

// Milliseconds of one run, by the host's clock, of several behind one another.
static int run_work(struct engine *eng, const struct work *w, double *ret_ms,
                    struct engine_profile *ret, struct err *e) {
    const struct ops *o = &eng->ops;
    struct cuda_graph *g = NULL;
    int st = w->marked ? o->profile(o->ctx, true, e) : ST_OK;
    if (!st) st = o->graph_begin(o->ctx, false, e);
    if (st) goto out;
    w->issue(eng);
    st = o->graph_end(o->ctx, &g, e);
    if (st) goto out;
    o->graph_run(o->ctx, g); // the first takes longer
    st = o->sync(o->ctx, e);
    uint64_t before = mono_ns();
    o->graph_run(o->ctx, g);
    if (!st) st = o->sync(o->ctx, e);
    double one = (double)(mono_ns() - before) / 1e6;
    int runs = w->marked || one > LONG_MS ? 1 : RUNS;
    before = mono_ns();
    for (int i = 0; i < runs && !st; i++) o->graph_run(o->ctx, g);
    if (!st) st = o->sync(o->ctx, e);
    *ret_ms = (double)(mono_ns() - before) / 1e6 / runs;
    if (!st && w->marked) ret->count = o->profile_read(o->ctx, ret->ops, ENGINE_PROFILE_OPS_MAX);
out:
    o->graph_free(o->ctx, g);
    if (w->marked) o->profile(o->ctx, false, NULL);
    return st;
}

int engine_profile(struct engine *eng, const struct engine_shape *s, struct engine_profile *ret,
                   struct err *e) {
    double marked;
    int st = check_shape(eng, s, e);
    if (st) return st;
    plan(eng, s, ret->as_it_is);
    st = run_work(eng, &(struct work){.issue = issue_round}, &ret->ms, NULL, e);
    ret->count = 0;
    if (!st && ret->apart)
        st = run_work(eng, &(struct work){.issue = issue_round, .marked = true}, &marked, ret, e);
    eng->failed |= st == ST_DEVICE;
    return st;
}

static void issue_blocks(struct engine *eng) {
    eng->drafts.model.issue(eng->drafts.model.self);
}

int engine_profile_blocks(struct engine *eng, const struct engine_shape *s,
                          struct engine_profile *ret, struct err *e) {
    const struct drafter *d = &eng->drafts.model;
    struct work w = {.issue = issue_blocks};
    double marked;
    int st = check_shape(eng, s, e);
    if (!st && (!eng->drafts.has_model || !d->issue))
        st = err_set(e, ST_UNSUPPORTED, "profile: wanted a drafter with blocks");
    if (st) return st;
    d->gather(d->self, s->streams, s->rows / s->streams, s->context);
    st = run_work(eng, &w, &ret->ms, NULL, e);
    ret->count = 0;
    w.marked = true;
    if (!st && ret->apart) st = run_work(eng, &w, &marked, ret, e);
    eng->failed |= st == ST_DEVICE;
    return st;
}

int engine_parts_begin(struct engine *eng, struct err *e) {
    const struct ops *o = &eng->ops;
    if (!o->marks) return err_set(e, ST_UNSUPPORTED, "parts of rounds: '%s' has none", o->device);
    return o->marks(o->ctx, true, e);
}

int engine_parts_end(struct engine *eng, double ret_ms[ENGINE_PARTS], struct err *e) {
    const struct ops *o = &eng->ops;
    double ms[OPS_LABELS_MAX];
    ops_mark(o, ENGINE_PART_HOST);
    int st = o->sync(o->ctx, e);
    o->marks_read(o->ctx, ms);
    o->marks(o->ctx, false, NULL);
    for (uint32_t i = 0; i < ENGINE_PARTS; i++) ret_ms[i] = ms[i];
    eng->failed |= st == ST_DEVICE;
    return st;
}

void engine_draft_always(struct engine *eng, uint32_t ids) {
    eng->drafts.always = ids;
}

// Half of the keys and values over the other half.
static uint64_t copy_bytes(const struct engine *eng) {
    uint64_t half = eng->budget.pages * model_kv_page_bytes(&eng->model) / 2;
    return min_u64(half, COPY_BYTES_MAX) / CARVE_ALIGN * CARVE_ALIGN;
}

static void issue_copy(struct engine *eng) {
    uint64_t bytes = copy_bytes(eng);
    eng->ops.copy(eng->ops.ctx, eng->model.kv + bytes, eng->model.kv, bytes);
}

int engine_copy_speed(struct engine *eng, double *ret, struct err *e) {
    double ms = 0;
    int st = check_shape(eng, &(struct engine_shape){1, 1, 1}, e);
    if (!st) st = run_work(eng, &(struct work){.issue = issue_copy}, &ms, NULL, e);
    if (!st) *ret = 2e3 * (double)copy_bytes(eng) / ms;
    return st;
}
