/* state: one stream's state at a row, on the host, and streams that start from it. See engine.h. */
#include "common/err.h"
#include "common/mem.h"
#include "worker/engine/engine_impl.h"

#include <stdlib.h>
#include <string.h>

struct engine_state {
    const struct engine *eng;
    uint32_t *ids; // [rows]
    uint32_t rows;
    uint32_t prompt_count; // of the stream it was taken from
    bool logits_hash;
    uint64_t hash; // over the rows of logits up to here
    void *bytes;   // model_state_bytes
    void *drafter; // the drafter's; NULL: it did not follow this stream
};

static void save_drafter(struct engine *eng, const struct stream *s, struct engine_state *state) {
    const struct drafter *d = &eng->drafts.model;
    if (!eng->drafts.slots[s->slot].model) return;
    state->drafter = mem_alloc(d->state_bytes(d->self, s->rows));
    d->state_read(d->self, s->slot, s->rows, state->drafter);
}

int engine_state_save(struct engine *eng, uint64_t handle, struct engine_state **ret,
                      struct err *e) {
    struct stream *s = engine_find(eng, handle);
    if (!s) return err_set(e, ST_INVAL, "state: no such stream");
    if (!s->rows) return err_set(e, ST_INVAL, "state: the stream has no rows yet");
    uint64_t bytes = model_state_bytes(&eng->model, s->rows);
    void *p = malloc(bytes);
    if (!p)
        return err_set(e, ST_NOMEM, "state of %u rows: no memory for %llu bytes", s->rows,
                       (unsigned long long)bytes);
    struct engine_state *state = mem_alloc(sizeof *state);
    *state = (struct engine_state){.eng = eng,
                                   .ids = mem_alloc(s->rows * sizeof *s->ids),
                                   .rows = s->rows,
                                   .prompt_count = s->prompt_count,
                                   .logits_hash = s->logits_hash,
                                   .hash = s->hash,
                                   .bytes = p};
    memcpy(state->ids, s->ids, s->rows * sizeof *s->ids);
    save_drafter(eng, s, state);
    model_state_read(&eng->model, s->slot, s->pages, s->rows, p);
    int st = eng->ops.sync(eng->ops.ctx, e);
    if (st) {
        engine_state_free(state);
        return st;
    }
    *ret = state;
    return ST_OK;
}

void engine_state_free(struct engine_state *s) {
    if (!s) return;
    free(s->ids);
    free(s->bytes);
    free(s->drafter);
    free(s);
}

uint32_t engine_state_rows(const struct engine_state *s) {
    return s->rows;
}

static int check_state(const struct engine *eng, const struct engine_state *s,
                       const struct engine_request *r, struct err *e) {
    uint64_t count = (uint64_t)r->prompt_count + r->given_count;
    if (s->eng != eng) return err_set(e, ST_INVAL, "state: wanted one of this engine");
    if (s->rows >= count)
        return err_set(e, ST_INVAL,
                       "state: wanted fewer rows than the request's %llu ids, found %u",
                       (unsigned long long)count, s->rows);
    for (uint32_t i = 0; i < s->rows; i++) {
        uint32_t id = i < r->prompt_count ? r->prompt[i] : r->given[i - r->prompt_count];
        if (id != s->ids[i])
            return err_set(e, ST_INVAL, "state: row %u was made from id %u, the request has %u", i,
                           s->ids[i], id);
    }
    if (r->logits_hash && s->rows >= r->prompt_count &&
        !(s->logits_hash && s->prompt_count == r->prompt_count))
        return err_set(e, ST_INVAL,
                       "state: reaches past the prompt without the hash of its logits");
    return ST_OK;
}

int engine_submit_from(struct engine *eng, const struct engine_state *s,
                       const struct engine_request *r, uint64_t *ret_handle, struct err *e) {
    struct stream *stream;
    int st = stream_check(r, &eng->vocab, eng->budget.context_max, e);
    if (!st) st = check_state(eng, s, r, e);
    if (!st) st = engine_admit(eng, r, &stream, e);
    if (st) return st;
    model_state_write(&eng->model, stream->slot, stream->pages, s->rows, s->bytes);
    stream->rows = stream->cached = s->rows;
    // Without what the drafter keeps of these rows it cannot follow the stream; copies can.
    bool *follows = &eng->drafts.slots[stream->slot].model;
    *follows &= s->drafter != NULL;
    if (*follows)
        eng->drafts.model.state_write(eng->drafts.model.self, stream->slot, s->rows, s->drafter);
    if (s->rows >= r->prompt_count) stream->hash = s->hash;
    *ret_handle = stream->handle;
    return ST_OK;
}
