/* drafts: see drafts.h. */
#include "worker/engine/drafts.h"
#include "common/err.h"
#include "common/mem.h"
#include "common/num.h"
#include "worker/engine/carve.h"
#include "worker/engine/checkpoint.h"
#include "worker/engine/model_config.h"
#include "worker/engine/model_qwen3_5.h"
#include "worker/engine/stream.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BRANCH_ROWS_MIN = 4 }; // of a window and a branch: each the anchor and one id

static bool is(const char *setting, const char *value) {
    return setting && !strcmp(setting, value);
}

static bool no_drafts(const struct engine_config *c) {
    return !c->drafter || is(c->drafter, "none");
}

static bool all_kinds(const struct engine_config *c) {
    return !c->draft_kinds || !*c->draft_kinds || is(c->draft_kinds, "all");
}

// Whether the list names the kind. "all" names none: nobody insists on it.
static bool lists(const struct engine_config *c, enum engine_draft kind) {
    const char *name = costs_kind(kind);
    size_t len = strlen(name);
    if (all_kinds(c)) return false;
    for (const char *at = c->draft_kinds; at; at = strchr(at, ',')) {
        at += *at == ',';
        if (!strncmp(at, name, len) && (at[len] == ',' || !at[len])) return true;
    }
    return false;
}

static bool may(const struct engine_config *c, enum engine_draft kind) {
    return all_kinds(c) || lists(c, kind);
}

static int check_kinds(const struct engine_config *c, struct err *e) {
    if (all_kinds(c)) return ST_OK;
    for (const char *at = c->draft_kinds;; at++) {
        size_t len = strcspn(at, ",");
        uint32_t k = 0;
        while (k < ENGINE_DRAFT_TREE &&
               (strlen(costs_kind(k)) != len || strncmp(costs_kind(k), at, len)))
            k++;
        if (k == ENGINE_DRAFT_TREE)
            return err_set(e, ST_INVAL,
                           "draft-kinds: wanted all, or some of copy,mtp,dflash,dflash2, found "
                           "'%.*s'",
                           (int)min_size(len, 40), at);
        at += len;
        if (!*at) return ST_OK;
    }
}

static void carve_more(void *arg, struct carve *c) {
    struct drafts *d = arg;
    d->lim.slots = d->target->lim.slots;
    d->lim.rows_max = d->target->lim.rows_max;
    d->lim.context_max = d->target->lim.pages_per_slot * KV_PAGE_TOKENS;
    uint64_t before = carve_bytes(c);
    d->model.carve(d->model.self, c);
    d->model_bytes = carve_bytes(c) - before;
}

static void plan_more(void *arg) {
    struct drafts *d = arg;
    if (d->model.plan) d->model.plan(d->model.self);
}

static int record_more(void *arg, bool early, struct err *e) {
    struct drafts *d = arg;
    return d->model.record(d->model.self, early, e);
}

static void take_model(struct drafts *d) {
    d->has_model = true;
    d->target->record_more = d->model.record ? record_more : NULL;
    d->target->taps = d->model.taps;
    d->target->carve_more = carve_more;
    d->target->plan_more = plan_more;
    d->target->carve_more_arg = d;
}

// The checkpoint's own head, where there is one; a list that names it insists.
static int open_mtp(struct drafts *d, const struct engine_config *c, struct err *e) {
    struct err why = {0};
    if (!may(c, ENGINE_DRAFT_MTP)) return ST_OK;
    int st = mtp_open(&d->model, d->target, &d->lim, &why);
    if (!st) take_model(d);
    if (!st) return ST_OK;
    if (st != ST_UNSUPPORTED || lists(c, ENGINE_DRAFT_MTP)) return err_set(e, st, "%s", why.msg);
    snprintf(d->rule, sizeof d->rule, "; no MTP: %.150s", why.msg);
    return ST_OK;
}

static int open_folder(struct drafts *d, const struct engine_config *c, struct err *e) {
    int st = dflash_open(&d->model, c->drafter, d->target, &d->lim, e);
    if (st) return st;
    take_model(d);
    if (may(c, d->model.kind)) return ST_OK;
    return err_set(e, ST_INVAL, "draft-kinds: wanted %s, which drafter '%.200s' is, found '%s'",
                   costs_kind(d->model.kind), c->drafter, c->draft_kinds);
}

static int open_model(struct drafts *d, const struct engine_config *c, struct err *e) {
    if (c->own_drafter) {
        d->model = *c->own_drafter;
        take_model(d);
        return ST_OK;
    }
    int st = draft_vocab_make(&d->vocab, c->draft_vocab, c->model_dir, d->target->cfg->vocab, e);
    if (st) return st;
    d->lim.spans = d->vocab.spans;
    d->lim.spans_count = d->vocab.count;
    d->lim.spans_yield = !d->vocab.given;
    return is(c->drafter, "auto") ? open_mtp(d, c, e) : open_folder(d, c, e);
}

// Short copies push nothing away: a chain of the head's costs more than they do.
static bool has_block(const struct drafts *d) {
    return d->has_model && d->model.kind != ENGINE_DRAFT_MTP;
}

// How many rows of a window each stream may have in a round.
static void set_rows(struct drafts *d, const struct engine_config *c) {
    bool any = d->copies || d->has_model;
    d->rows_max = any ? c->draft_rows ? c->draft_rows : DRAFT_ROWS_DEFAULT : 1;
    d->target->window_rows = any ? d->rows_max : 0;
    d->branches = d->copies && has_block(d) && d->rows_max >= BRANCH_ROWS_MIN;
    d->target->branches = d->branches;
}

// The kind beside copies that the drafter has, though it may not be among those asked for; NULL: none.
static const char *other_kind(const struct drafts *d, const struct engine_config *c) {
    struct err why = {0};
    if (d->has_model) return costs_kind(d->model.kind);
    bool mtp = is(c->drafter, "auto") && !checkpoint_check_mtp(d->target->ckpt, &why);
    return mtp ? costs_kind(ENGINE_DRAFT_MTP) : NULL;
}

// Every kind that was named is there.
static int check_named(const struct drafts *d, const struct engine_config *c, struct err *e) {
    for (uint32_t k = 0; k < ENGINE_DRAFT_TREE; k++) {
        bool had = k == ENGINE_DRAFT_COPY || (d->has_model && k == d->model.kind);
        if (all_kinds(c) || !lists(c, k) || had) continue;
        const char *other = other_kind(d, c);
        return err_set(e, ST_INVAL,
                       "draft-kinds: wanted kinds that drafter '%.200s' has (copy%s%s), found '%s'",
                       c->drafter, other ? ", " : "", other ? other : "", costs_kind(k));
    }
    return ST_OK;
}

int drafts_open(struct drafts *d, struct model *m, const struct engine_config *c, struct err *e) {
    *d = (struct drafts){.target = m, .rows_max = 1};
    d->lim.quantize_min = c->drafter_quantize_min;
    costs_builtin(&d->costs);
    int st = check_kinds(c, e);
    if (!st && no_drafts(c) && !all_kinds(c))
        st = err_set(e, ST_INVAL,
                     "draft-kinds: wanted all, or a drafter, beside drafter 'none', found '%s'",
                     c->draft_kinds);
    if (st || no_drafts(c)) return st;
    if (c->draft_rows > ENGINE_WINDOW_ROWS_MAX || c->draft_rows == 1)
        return err_set(e, ST_INVAL, "draft-rows: wanted 2 to %d, found %u", ENGINE_WINDOW_ROWS_MAX,
                       c->draft_rows);
    d->copies = may(c, ENGINE_DRAFT_COPY);
    st = open_model(d, c, e);
    set_rows(d, c);
    return st ? st : check_named(d, c, e);
}

static void drop_model(struct drafts *d) {
    if (d->has_model && d->model.close) d->model.close(d->model.self);
    d->has_model = false;
    d->model_bytes = 0;
    d->target->taps = (struct model_taps){0};
    d->target->carve_more = NULL;
    d->target->plan_more = NULL;
    d->target->record_more = NULL;
}

bool drafts_shrink(struct drafts *d, const struct engine_config *c) {
    if (d->has_model && is(c->drafter, "auto") && !lists(c, d->model.kind)) {
        drop_model(d);
        snprintf(d->rule, sizeof d->rule, "; no %s: memory is short", costs_kind(d->model.kind));
    } else if (d->copies && !d->has_model && !lists(c, ENGINE_DRAFT_COPY)) {
        d->copies = false;
        snprintf(d->rule, sizeof d->rule, "; none: memory is short");
    } else {
        return false;
    }
    set_rows(d, c);
    return true;
}

void drafts_off(struct drafts *d) {
    drop_model(d);
    d->copies = d->branches = d->target->branches = false;
    d->rows_max = 1;
    d->target->window_rows = 0;
}

// The file is what the setting says: one that is missing or broken is a wrong setting.
static int read_named_costs(struct costs *ret, const struct drafts *d,
                            const struct engine_config *c, const char *device, const char *shape,
                            struct err *e) {
    struct err why = {0};
    int st = costs_read(ret, c->costs, device, shape, d->rows_max, &why);
    return st ? (int)err_set(e, st == ST_NOMEM ? ST_NOMEM : ST_INVAL, "%s", why.msg) : ST_OK;
}

int drafts_check_costs(const struct drafts *d, const struct engine_config *c, struct err *e) {
    struct costs any;
    return c->costs && *c->costs ? read_named_costs(&any, d, c, NULL, NULL, e) : ST_OK;
}

int drafts_read_costs(struct drafts *d, const struct engine_config *c, const char *device,
                      const char *shape, struct err *e) {
    const char *name;
    if (c->costs && *c->costs) {
        snprintf(d->costs_rule, sizeof d->costs_rule, "'%.200s'", c->costs);
        return read_named_costs(&d->costs, d, c, device, shape, e);
    }
    name = costs_find(&d->costs, device, shape, d->rows_max);
    if (name)
        snprintf(d->costs_rule, sizeof d->costs_rule, "built in, as measured: %.200s", name);
    else
        snprintf(d->costs_rule, sizeof d->costs_rule,
                 "a rule of thumb: there is no table for %.60s, %.100s", device, shape);
    return ST_OK;
}

static void fill_rule(struct drafts *d) {
    char why[DRAFT_RULE_BYTES - 110];
    snprintf(why, sizeof why, "%.*s", (int)sizeof why - 1, d->rule);
    char ids[48] = "";
    if (d->has_model && d->model.vocab < d->target->cfg->vocab)
        snprintf(ids, sizeof ids, " of %u of %u ids", d->model.vocab, d->target->cfg->vocab);
    if (d->rows_max == 1)
        snprintf(d->rule, sizeof d->rule, "none%s", why);
    else
        snprintf(d->rule, sizeof d->rule, "%s%s%s%s, up to %u a round and stream%s",
                 d->has_model ? costs_kind(d->model.kind) : "", ids,
                 d->has_model && d->copies ? " and " : "", d->copies ? "copies" : "",
                 d->rows_max - 1, why);
}

void drafts_make(struct drafts *d, uint32_t slots) {
    d->slots_count = slots;
    d->slots = mem_calloc(slots, sizeof *d->slots);
    d->asks = mem_calloc(slots, sizeof *d->asks);
    d->told = mem_calloc(slots, sizeof *d->told);
    fill_rule(d);
}

void drafts_close(struct drafts *d) {
    if (d->target) drop_model(d);
    free(d->slots);
    free(d->asks);
    free(d->told);
    *d = (struct drafts){0};
}

void drafts_begin(struct drafts *d, struct stream *s, bool draft) {
    struct draft_slot *slot = &d->slots[s->slot];
    *slot = (struct draft_slot){.on = draft && d->rows_max > 1};
    if (!slot->on) return;
    slot->model = d->has_model;
    if (d->copies) copy_draft_init(&slot->copy, &s->arena, s->total);
    draft_width_init(&slot->copy_width, ENGINE_DRAFT_COPY);
    draft_width_init(&slot->model_width, d->model.kind);
    draft_width_init_branch(&slot->branch_width);
}

// Rows behind the anchor's whose draws could count: not past the reply's end, nor past an id that is forced.
static uint32_t room_of(const struct drafts *d, const struct stream *s) {
    uint32_t generated = s->count - s->prompt_count;
    uint32_t room = min_u32(d->rows_max - 1, s->total - s->count - 1);
    if (!s->in_thought) return room;
    return min_u32(room, s->thought.budget > generated ? s->thought.budget - generated : 0);
}

// As the stream's only drafts.
static void take_copy(struct drafts *d, struct draft_slot *slot, struct draft_width *w,
                      uint32_t max) {
    slot->kind = ENGINE_DRAFT_COPY;
    slot->count = draft_width_pick(w, &d->costs, min_u32(slot->copied_count, max));
    memcpy(slot->ids + 1, slot->copied, slot->count * sizeof *slot->copied);
    slot->copied_count = 0;
}

static void propose_copy(struct drafts *d, struct draft_slot *slot, const struct stream *s,
                         uint32_t room) {
    slot->copied_count =
        copy_draft_propose(&slot->copy, s->ids, s->count, COPY_MATCH_LEAST, room, slot->copied);
    if (slot->model && has_block(d) && slot->copy.last_match < COPY_MATCH_BLOCK) return;
    if (slot->copied_count) take_copy(d, slot, &slot->copy_width, ENGINE_WINDOW_ROWS_MAX);
}

static void ask_model(struct drafts *d, struct draft_slot *slot, const struct stream *s,
                      uint32_t room, uint32_t *asks) {
    uint32_t max = min_u32(room, d->model.ids_max);
    uint32_t want =
        d->always ? min_u32(d->always, max) : draft_width_pick(&slot->model_width, &d->costs, max);
    if (!want) return;
    d->asks[(*asks)++] = (struct draft_ask){.slot = s->slot,
                                            .anchor = s->ids[s->rows],
                                            .pos = s->rows,
                                            .want = want,
                                            .sampling = &s->sampling};
}

static void take_blocks(struct drafts *d, uint32_t asks) {
    const struct ops *o = d->target->ops;
    if (!asks) return;
    ops_mark(o, ENGINE_PART_DRAFT);
    d->model.propose(d->model.self, d->asks, asks);
    ops_mark(o, ENGINE_PART_HOST);
    for (uint32_t i = 0; i < asks; i++) {
        const struct draft_ask *a = &d->asks[i];
        struct draft_slot *slot = &d->slots[a->slot];
        assert(a->ret_count <= a->want);
        slot->kind = d->model.kind;
        slot->count = a->ret_count;
        memcpy(slot->ids + 1, a->ret_ids, a->ret_count * sizeof *a->ret_ids);
    }
}

// A match that replaces no block, when the block is known: it stands alone where there is none, and beside one that begins otherwise
// it is a branch, in the rows that the block leaves.
static void take_branch(struct drafts *d, struct draft_slot *slot) {
    uint32_t left = d->rows_max - min_u32(d->rows_max, slot->count + 2);
    if (!slot->copied_count || slot->copy.branch_quiet) return;
    slot->alone = !slot->count;
    if (slot->alone) take_copy(d, slot, &slot->branch_width, COPY_BRANCH_MAX);
    if (slot->alone || !d->branches || slot->copied[0] == slot->ids[1]) return;
    slot->branch_count = draft_width_pick_beside(
        &slot->branch_width, &d->costs, &(struct draft_beside){&slot->model_width, slot->count},
        min_u32(slot->copied_count, min_u32(left, COPY_BRANCH_MAX)));
    slot->branch[0] = slot->ids[0];
    memcpy(slot->branch + 1, slot->copied, slot->branch_count * sizeof *slot->copied);
}

uint32_t drafts_branch_rows(const struct drafts *d, uint32_t slot) {
    uint32_t n = d->slots[slot].branch_count;
    return n ? n + 1 : 0;
}

void drafts_propose(struct drafts *d, struct stream *streams) {
    uint32_t asks = 0;
    if (d->rows_max == 1) return;
    for (uint32_t i = 0; i < d->slots_count; i++) {
        const struct stream *s = &streams[i];
        struct draft_slot *slot = &d->slots[i];
        slot->count = slot->branch_count = slot->copied_count = 0;
        slot->alone = false;
        if (!slot->on || !stream_decoding(s) || s->finish || stream_pending(s) != 1) continue;
        uint32_t room = room_of(d, s);
        slot->ids[0] = s->ids[s->rows];
        if (!room) continue;
        if (d->copies && !d->always) propose_copy(d, slot, s, room);
        if (!slot->count && slot->model) ask_model(d, slot, s, room, &asks);
    }
    take_blocks(d, asks);
    for (uint32_t i = 0; i < d->slots_count; i++) take_branch(d, &d->slots[i]);
}

static void learn_branch(struct draft_slot *slot, uint32_t n, uint32_t kept) {
    draft_width_learn(&slot->branch_width, n, kept);
    copy_draft_branch_result(&slot->copy, n, kept);
}

static void settle_branch(struct draft_slot *slot, uint32_t kept) {
    uint32_t n = slot->branch_count;
    if (!n) return;
    slot->drafted[ENGINE_DRAFT_COPY] += n;
    slot->accepted[ENGINE_DRAFT_COPY] += kept;
    slot->branch_count = 0;
    learn_branch(slot, n, kept);
}

void drafts_settle(struct drafts *d, const struct stream *s, uint32_t kept_rows, bool branch) {
    struct draft_slot *slot = &d->slots[s->slot];
    uint32_t n = slot->count, kept = branch ? 0 : kept_rows - 1;
    if (!n) return;
    settle_branch(slot, branch ? kept_rows - 1 : 0);
    slot->rounds++;
    slot->drafted[slot->kind] += n;
    slot->accepted[slot->kind] += kept;
    slot->count = 0;
    if (slot->kind != ENGINE_DRAFT_COPY) {
        draft_width_learn(&slot->model_width, n, kept);
    } else if (slot->alone) {
        learn_branch(slot, n, kept);
    } else {
        draft_width_learn(&slot->copy_width, n, kept);
        copy_draft_result(&slot->copy, n, kept);
    }
}

// Planted.
static void lose_tap(const struct drafts *d, const struct run *run, const struct stream *s) {
    const struct model *m = d->target;
    uint64_t row = run->row + run->count - 1, bytes = (uint64_t)m->cfg->hidden * sizeof(float);
    if (run->record || run->pos + run->count >= s->prompt_count) return;
    for (uint32_t i = 0; i < m->taps.count; i++)
        m->ops->fill(m->ops->ctx, m->tap_rows + (i * m->lim.rows_max + row) * bytes, 0, bytes);
    if (m->taps.final) m->ops->fill(m->ops->ctx, m->tap_final + row * bytes, 0, bytes);
}

void drafts_absorb(struct drafts *d, const struct run *runs, uint32_t count,
                   const struct stream *streams) {
    uint32_t n = 0;
    if (!d->has_model) return;
    for (uint32_t i = 0; i < count; i++) {
        const struct stream *s = &streams[runs[i].slot];
        if (!runs[i].count || !d->slots[s->slot].model) continue;
        if (d->lost_tap) lose_tap(d, &runs[i], s);
        d->told[n++] = (struct draft_rows){.run = runs[i], .ids = s->ids, .ids_count = s->count};
    }
    if (n) d->model.absorb(d->model.self, d->told, n);
}
