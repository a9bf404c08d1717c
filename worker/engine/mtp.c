/* mtp: the checkpoint's own MTP head as a drafter (drafter.h): one layer of full attention behind the target.
 *
 *   row q:  x = fc [ norm(embed(token q + 1)) | norm(hidden q) ],  o = norm(layer(x) at position q),  head(o): token q + 2
 *
 * hidden q is the target's row behind its final norm. A row whose next token is known is run once with both true: it is
 * filled. Chained rows, which take the head's own o for the hidden and a draft for the token, stand behind the filled
 * ones for the length of one propose and are overwritten before any filled row looks at them. The row of the last
 * committed token waits until the token behind it is known; a slot restored from a state runs that row again, since
 * another token may follow there.
 *
 * Its keys and values stand under the numbers of the target's pages; it works in the target's scratch. */
#include "common/err.h"
#include "common/mem.h"
#include "common/num.h"
#include "kernels/embed/embed.h"
#include "kernels/linear/linear.h"
#include "kernels/norm/rmsnorm.h"
#include "kernels/ops.h"
#include "worker/engine/carve.h"
#include "worker/engine/checkpoint.h"
#include "worker/engine/draft_choice.h"
#include "worker/engine/draft_head.h"
#include "worker/engine/drafter.h"
#include "worker/engine/model_config.h"
#include "worker/engine/round.h"

#include <assert.h>
#include <stdlib.h>

enum {
    F32 = sizeof(float),
    IDS_MAX = 7, // of a chain: published ones are 2 to 4, a well trained head lands most of these
    TOP = 16,    // candidates of a draft
};

struct slot {
    uint32_t held;   // rows of the target that were absorbed
    uint32_t filled; // rows of the head: held, or held - 1 while the next token is not known
    bool gap;        // rows came that it was not told of: nothing is proposed until it begins anew
};

struct mtp {
    struct model *m;
    struct mtp_weights w;
    uint64_t row_bytes; // of a hidden row
    struct draft_head head;
    struct round round; // of a forward of the head
    devptr in;          // [rows_max, D] hidden rows that the forward takes
    devptr *to;         // [slots] where o of each pick goes
    devptr hid;         // [slots, D] the last absorbed row of the target
    devptr out;         // [slots, D] o of the last filled row
    devptr chain;       // [slots, D] o of the last row of each ask's chain
    devptr kv;
    struct slot *slots;
    uint32_t *pages; // [pages_per_slot]
    uint32_t *live;  // [slots] asks whose chains go on
    uint32_t *ids;   // [head_rows_max, TOP] candidates of rows
    float *values;   // [head_rows_max, TOP] their logits
};

static devptr row_of(const struct mtp *t, devptr base, uint64_t idx) {
    return base + idx * t->row_bytes;
}

static void copy_rows(struct mtp *t, devptr to, devptr from, uint32_t count) {
    t->m->ops->copy(t->m->ops->ctx, to, from, count * t->row_bytes);
}

static void norm(struct mtp *t, devptr from, devptr scale, devptr pick, uint32_t rows) {
    struct model *m = t->m;
    m->ops->rmsnorm(m->ops->ctx, &(struct rmsnorm_args){.x = from,
                                                        .scale = scale,
                                                        .pick = pick,
                                                        .y = m->x,
                                                        .rows = rows,
                                                        .dim = m->cfg->hidden,
                                                        .eps = (float)m->cfg->rms_norm_eps});
}

// h = x W^T, or added to h
static void linear(struct mtp *t, const struct weight *w, bool add, uint32_t rows) {
    struct model *m = t->m;
    m->ops->linear(m->ops->ctx, &(struct linear_args){.x = m->x,
                                                      .rows = rows,
                                                      .parts_count = 1,
                                                      .parts = {{.w = *w, .y = m->h, .add = add}}});
}

// Runs the gathered rows, whose hidden ones are in `in`, and takes o of those picked.
static void forward(struct mtp *t) {
    struct model *m = t->m;
    struct round *r = &t->round;
    if (!r->rows) return;
    struct kv_view kv = model_kv_view(m, t->kv);
    round_write(r, m->ops);
    m->ops->embed(
        m->ops->ctx,
        &(struct embed_args){.table = m->w.embed, .ids = r->dev_ids, .rows = r->rows, .x = m->h});
    norm(t, m->h, t->w.embed_scale, 0, r->rows);
    linear(t, &t->w.fc[0], false, r->rows);
    norm(t, t->in, t->w.hidden_scale, 0, r->rows);
    linear(t, &t->w.fc[1], true, r->rows);
    model_angles(m, r);
    model_attn_layer(m, &t->w.layer, &kv, r);
    norm(t, m->h, t->w.scale, r->dev_picks, r->picks_count);
    for (uint32_t i = 0; i < r->picks_count; i++) copy_rows(t, t->to[i], row_of(t, m->x, i), 1);
    round_reset(r);
}

// Rows first, first + 1, .. of the stream in slot; o of the last goes to `to`. Returns where their hidden rows go.
static devptr add(struct mtp *t, uint32_t slot, uint32_t first, const uint32_t *tokens,
                  uint32_t count, devptr to) {
    uint32_t row = round_add(&t->round, slot, first, tokens, count, false);
    t->to[t->round.picks_count] = to;
    round_pick(&t->round, row + count - 1);
    return row_of(t, t->in, row);
}

static void fill(struct mtp *t, const struct draft_rows *rows, uint32_t count) {
    const struct run *run = &rows->run;
    struct slot *s = &t->slots[run->slot];
    uint32_t first = s->filled;
    devptr hid = row_of(t, t->hid, run->slot), out = row_of(t, t->out, run->slot);
    devptr to = add(t, run->slot, first, rows->ids + first + 1, count, out);
    s->filled += count;
    if (first < run->pos) { // the one that waited
        copy_rows(t, to, hid, 1);
        to += t->row_bytes;
        first++;
        count--;
    }
    if (count) copy_rows(t, to, row_of(t, t->m->tap_final, run->row + first - run->pos), count);
}

static void absorb_run(struct mtp *t, const struct draft_rows *rows) {
    const struct run *run = &rows->run;
    struct slot *s = &t->slots[run->slot];
    if (!run->pos) *s = (struct slot){0};
    if (s->gap) return;
    assert(s->held == run->pos && s->held - s->filled <= 1);
    uint32_t end = run->pos + run->count, known = rows->ids_count > end ? end : end - 1;
    while (s->filled < known) {
        uint32_t room = t->round.rows_max - t->round.rows;
        if (room)
            fill(t, rows, min_u32(room, known - s->filled));
        else
            forward(t);
    }
    s->held = end;
    copy_rows(t, row_of(t, t->hid, run->slot),
              row_of(t, t->m->tap_final, run->row + run->count - 1), 1);
}

static void mtp_absorb(void *self, const struct draft_rows *rows, uint32_t count) {
    struct mtp *t = self;
    for (uint32_t i = 0; i < count; i++) absorb_run(t, &rows[i]);
    forward(t);
}

static void fill_waiting(struct mtp *t, const struct draft_ask *asks, uint32_t count) {
    for (uint32_t i = 0; i < count; i++) {
        const struct draft_ask *a = &asks[i];
        struct slot *s = &t->slots[a->slot];
        if (s->gap) continue;
        assert(s->held && s->held == a->pos);
        if (s->filled == s->held) continue;
        devptr to = add(t, a->slot, s->filled, &a->anchor, 1, row_of(t, t->out, a->slot));
        copy_rows(t, to, row_of(t, t->hid, a->slot), 1);
        s->filled = s->held;
    }
    forward(t);
}

// One of a row's candidates, as the target will draw there; penalties are left out.
static void choose(struct mtp *t, struct draft_ask *a, uint32_t row) {
    const uint32_t *ids = t->ids + row * TOP;
    uint32_t at = draft_choice(ids, t->values + row * TOP, TOP, a->sampling,
                               (uint64_t)a->pos + 1 + a->ret_count);
    a->ret_ids[a->ret_count++] = ids[at];
}

// The next id of each live chain, from the o that it ends in.
static void draw(struct mtp *t, struct draft_ask *asks, uint32_t live_count) {
    struct model *m = t->m;
    for (uint32_t first = 0, n; first < live_count; first += n) {
        const uint32_t *live = t->live + first;
        n = min_u32(m->lim.head_rows_max, live_count - first);
        for (uint32_t i = 0; i < n; i++)
            copy_rows(t, row_of(t, m->head_x, i), row_of(t, t->chain, live[i]), 1);
        draft_head_run(&t->head, m->head_x, n);
        struct ops_piece back[] = {{t->ids, t->head.ids, n * TOP * sizeof *t->ids},
                                   {t->values, t->head.values, n * TOP * sizeof *t->values}};
        m->ops->read_pieces(m->ops->ctx, back, 2);
        for (uint32_t i = 0; i < n; i++) choose(t, &asks[live[i]], i);
    }
}

static uint32_t find_live(struct mtp *t, const struct draft_ask *asks, uint32_t count) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < count; i++)
        if (!t->slots[asks[i].slot].gap && asks[i].ret_count < min_u32(asks[i].want, IDS_MAX))
            t->live[n++] = i;
    return n;
}

// A row more of each live chain: its last draft, and the o that gave it.
static void extend(struct mtp *t, const struct draft_ask *asks, uint32_t live_count) {
    for (uint32_t i = 0; i < live_count; i++) {
        const struct draft_ask *a = &asks[t->live[i]];
        uint32_t last = a->ret_count - 1;
        devptr o = row_of(t, t->chain, t->live[i]);
        copy_rows(t, add(t, a->slot, a->pos + last, &a->ret_ids[last], 1, o), o, 1);
    }
    forward(t);
}

static void mtp_propose(void *self, struct draft_ask *asks, uint32_t count) {
    struct mtp *t = self;
    fill_waiting(t, asks, count);
    for (uint32_t i = 0; i < count; i++) {
        asks[i].ret_count = 0;
        copy_rows(t, row_of(t, t->chain, i), row_of(t, t->out, asks[i].slot), 1);
    }
    uint32_t live = find_live(t, asks, count);
    while (live) {
        draw(t, asks, live);
        live = find_live(t, asks, count);
        extend(t, asks, live);
    }
}

static void mtp_carve(void *self, struct carve *c) {
    struct mtp *t = self;
    const struct model *m = t->m;
    carve_begin(c, "mtp head");
    weights_mtp_carve(&t->w, m->ckpt, m->ops, c);
    draft_head_carve_copies(&t->head, c);
    t->round.rows_max = t->round.picks_max = m->lim.rows_max;
    t->round.runs_max = m->lim.slots;
    round_carve(&t->round, c);
    t->in = carve_take(c, m->lim.rows_max * t->row_bytes);
    t->hid = carve_take(c, m->lim.slots * t->row_bytes);
    t->out = carve_take(c, m->lim.slots * t->row_bytes);
    t->chain = carve_take(c, m->lim.slots * t->row_bytes);
    draft_head_carve_in(&t->head, c, m->lim.head_rows_max, m->logits);
    carve_begin(c, "mtp kv blocks");
    t->kv = carve_take(c, m->lim.pages * model_kv_layer_page_bytes(m));
}

// Forwards of one stream's rows, and heads of as many.
static void mtp_plan(void *self) {
    struct mtp *t = self;
    struct round carved = t->round;
    uint32_t heads_max = t->m->lim.head_rows_max, end = t->m->lim.pages_per_slot * KV_PAGE_TOKENS;
    uint32_t *ids = mem_calloc(carved.rows_max, sizeof *ids);
    round_init(&t->round, carved.rows_max, carved.runs_max);
    for (uint32_t n = 1; n <= carved.rows_max; n = drafter_next_rows(n, carved.rows_max)) {
        round_add(&t->round, 0, end > n ? end - n : 0, ids, n, false);
        forward(t);
        draft_head_run(&t->head, t->m->head_x, min_u32(n, heads_max));
    }
    round_fini(&t->round);
    t->round = carved;
    free(ids);
}

// The host's tables of the sizes that were carved.
static void make_tables(struct mtp *t) {
    const struct model *m = t->m;
    struct round carved = t->round, *r = &t->round;
    round_init(r, carved.rows_max, carved.runs_max);
    r->dev = carved.dev;
    t->to = mem_calloc(m->lim.slots, sizeof *t->to);
    t->slots = mem_calloc(m->lim.slots, sizeof *t->slots);
    t->live = mem_calloc(m->lim.slots, sizeof *t->live);
    t->pages = mem_calloc(m->lim.pages_per_slot, sizeof *t->pages);
    t->ids = mem_calloc((size_t)m->lim.head_rows_max * TOP, sizeof *t->ids);
    t->values = mem_calloc((size_t)m->lim.head_rows_max * TOP, sizeof *t->values);
}

static int mtp_load(void *self, struct err *e) {
    struct mtp *t = self;
    make_tables(t);
    draft_head_load(&t->head);
    return weights_mtp_fill(&t->w, t->m->ckpt, t->m->ops, e);
}

/* State: the last absorbed row of the target, then keys and values page after page. The last row of the head in it was
 * filled with a token that may not follow again. */
static uint64_t mtp_state_bytes(void *self, uint32_t rows) {
    struct mtp *t = self;
    return t->row_bytes + ceil_div_u32(rows, KV_PAGE_TOKENS) * model_kv_layer_page_bytes(t->m);
}

struct move {
    const struct ops *ops;
    char *host;
    bool to_host;
};

static void move(struct move *v, devptr p, uint64_t bytes) {
    if (v->to_host)
        v->ops->read(v->ops->ctx, v->host, p, bytes);
    else
        v->ops->write(v->ops->ctx, p, v->host, bytes);
    v->host += bytes;
}

static void move_state(struct mtp *t, uint32_t slot, uint32_t rows, struct move *v) {
    struct kv_view kv = model_kv_view(t->m, t->kv);
    uint32_t count = ceil_div_u32(rows, KV_PAGE_TOKENS);
    uint64_t page = model_kv_layer_page_bytes(t->m) / 2;
    v->ops->read(v->ops->ctx, t->pages,
                 kv.table + (uint64_t)slot * kv.pages_per_slot * sizeof *t->pages,
                 count * sizeof *t->pages);
    move(v, row_of(t, t->hid, slot), t->row_bytes);
    for (uint32_t i = 0; i < count; i++) {
        move(v, kv.k + t->pages[i] * page, page);
        move(v, kv.v + t->pages[i] * page, page);
    }
}

static void mtp_state_read(void *self, uint32_t slot, uint32_t rows, void *ret) {
    struct mtp *t = self;
    assert(rows && t->slots[slot].held == rows);
    move_state(t, slot, rows, &(struct move){t->m->ops, ret, true});
}

static void mtp_state_write(void *self, uint32_t slot, uint32_t rows, const void *p) {
    struct mtp *t = self;
    assert(rows);
    if (!p) {
        t->slots[slot] = (struct slot){.gap = true};
        return;
    }
    move_state(t, slot, rows, &(struct move){t->m->ops, (char *)p, false});
    t->slots[slot] = (struct slot){.held = rows, .filled = rows - 1};
}

static void mtp_close(void *self) {
    struct mtp *t = self;
    weights_mtp_fini(&t->w);
    round_fini(&t->round);
    free(t->to);
    free(t->slots);
    free(t->live);
    free(t->pages);
    free(t->ids);
    free(t->values);
    free(t);
}

int mtp_open(struct drafter *ret, struct model *m, const struct drafter_limits *lim,
             struct err *e) {
    struct draft_head head;
    int st = checkpoint_check_mtp(m->ckpt, e);
    struct draft_head_spans given = {"draft-vocab", lim->spans, lim->spans_count};
    if (!st) st = draft_head_init(&head, m, given, TOP, e);
    if (st) return st;
    struct mtp *t = mem_calloc(1, sizeof *t);
    *t = (struct mtp){.m = m, .head = head, .row_bytes = (uint64_t)m->cfg->hidden * F32};
    *ret = (struct drafter){.self = t,
                            .kind = ENGINE_DRAFT_MTP,
                            .ids_max = IDS_MAX,
                            .vocab = draft_head_ids(&head),
                            .taps = {.final = true},
                            .carve = mtp_carve,
                            .plan = mtp_plan,
                            .load = mtp_load,
                            .absorb = mtp_absorb,
                            .propose = mtp_propose,
                            .state_bytes = mtp_state_bytes,
                            .state_read = mtp_state_read,
                            .state_write = mtp_state_write,
                            .close = mtp_close};
    return ST_OK;
}
