/* bench_run: see bench_run.h. */
#include "router/bench_run.h"
#include "common/err.h"
#include "common/mem.h"
#include "common/mono.h"
#include "common/num.h"
#include "router/bench_progress.h"

#include <assert.h>
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- the plan ---- */

static bool has_level(const struct bench_plan *p, uint32_t level) {
    for (uint32_t i = 0; i < p->level_count; i++)
        if (p->levels[i] == level) return true;
    return false;
}

int bench_plan_levels(struct bench_plan *ret, const char *text, struct err *e) {
    ret->level_count = 0;
    for (const char *p = text; p;) {
        char *end;
        long n = isdigit((unsigned char)*p) ? strtol(p, &end, 10) : 0;
        if (n < 1 || n > BENCH_STREAMS_MAX || (*end && *end != ',') ||
            has_level(ret, (uint32_t)n) || ret->level_count == BENCH_LEVELS_MAX)
            return err_set(e, ST_INVAL,
                           "--levels: wanted up to %d different numbers from 1 to %d like 1,2,4,8, "
                           "found '%.100s'",
                           BENCH_LEVELS_MAX, BENCH_STREAMS_MAX, text);
        ret->levels[ret->level_count++] = (uint32_t)n;
        p = *end ? end + 1 : NULL;
    }
    return ST_OK;
}

static uint32_t streams_of(const struct bench_plan *p) {
    uint32_t most = 1;
    for (uint32_t i = 0; i < p->level_count; i++) most = max_u32(most, p->levels[i]);
    return most;
}

uint32_t bench_plan_waves(const struct bench_plan *p) {
    uint32_t classes = 0;
    for (int c = 0; c < BENCH_CLASS_COUNT; c++)
        classes += bench_prompts_at(p->prompts, (enum bench_class)c, 0) != NULL;
    uint32_t each =
        p->level_count * p->reps + ((uint32_t)p->alone + (uint32_t)p->serial) * streams_of(p);
    return classes * BENCH_DRAW_COUNT * each + (p->cold ? (uint32_t)p->cold->count * p->reps : 0);
}

/* ---- one reply ---- */

// Which earlier reply is held up as which, by the kind of the cell that it came in.
static enum bench_check remembered_as(enum bench_kind k) {
    if (k == BENCH_SERIAL) return BENCH_CHECK_SERIAL;
    return k == BENCH_ALONE ? BENCH_CHECK_ALONE : BENCH_CHECK_REPEAT;
}

static void compare(struct bench_cell *c, struct bench_reply *r, enum bench_check check,
                    const struct bench_digest *known) {
    enum bench_equality q = bench_digest_compare(&r->digest, known);
    if (q == BENCH_EQUAL_TOKENS) r->by_logits = false;
    if (bench_is_equal(q)) {
        c->check_equal[check]++;
        return;
    }
    c->check_unequal[check]++;
    if (r->unequal) return;
    r->unequal = true;
    snprintf(r->why, sizeof r->why, "other %s than %s",
             q == BENCH_UNEQUAL_TOKENS ? "tokens" : "logits",
             check == BENCH_CHECK_SERIAL  ? "undrafted"
             : check == BENCH_CHECK_ALONE ? "alone"
                                          : "at first");
}

void bench_run_judge(struct bench_cell *c, struct bench_known *known) {
    struct bench_reply *r = &c->replies[c->reply_count - 1];
    if (r->failed) {
        c->failed++;
        return;
    }
    bool any = false;
    r->by_logits = true;
    for (int i = 0; i < BENCH_CHECK_COUNT; i++) {
        if (!known->has[i]) continue;
        any = true;
        compare(c, r, (enum bench_check)i, &known->digest[i]);
    }
    r->by_logits &= any;
    if (!any)
        c->first++;
    else if (r->unequal)
        c->unequal++;
    else
        c->equal++;
    enum bench_check as = remembered_as(c->kind);
    if (known->has[as]) return;
    known->has[as] = true;
    known->digest[as] = r->digest;
}

/* ---- one cell ---- */

struct run {
    const struct bench_plan *plan;
    const struct bench_target *target;
    struct bench_receipt *receipt;
    struct bench_progress *progress;
    struct bench_known *known; // of the streams of this class and draw
    uv_loop_t loop;
};

// What a cell's replies are summed up from.
struct sums {
    struct bench_list first_token, fill, gaps;
    struct bench_rate stream, total, wall;
    uint64_t tokens, rounds;
};

static void sums_fini(struct sums *s) {
    bench_list_fini(&s->first_token);
    bench_list_fini(&s->fill);
    bench_list_fini(&s->gaps);
}

static void sums_add(struct sums *s, const struct bench_ask *a) {
    const struct bench_reply *r = &a->reply;
    if (r->failed) return;
    bench_list_add(&s->first_token, r->first_token_ms);
    bench_list_add(&s->fill, r->fill_ms);
    bench_rate_add(&s->stream, bench_arrivals_rate(&a->arrivals, 1));
    s->tokens += r->tokens;
    s->rounds += r->rounds;
}

static void sums_close(struct sums *s, struct bench_figures *ret) {
    *ret = (struct bench_figures){.first_token_ms = bench_list_median(&s->first_token),
                                  .fill_ms = bench_list_median(&s->fill),
                                  .stream_tokens_per_s = bench_rate_per_s(s->stream),
                                  .total_tokens_per_s = bench_rate_per_s(s->total),
                                  .wall_tokens_per_s = bench_rate_per_s(s->wall),
                                  .tokens_per_round = (double)s->tokens / (double)s->rounds,
                                  .round_gap_ms = bench_list_median(&s->gaps)};
    sums_fini(s);
}

// Sends the requests at once and waits for all of them: streams first, first + 1, ... of the cell.
struct wave {
    uint32_t first_stream, count, rep;
    const struct bench_request *requests;
};

static void run_wave(struct run *run, struct bench_cell *c, const struct wave *w, struct sums *s) {
    struct bench_ask *asks = mem_calloc(w->count, sizeof *asks);
    struct bench_arrivals *arrivals = mem_calloc(w->count, sizeof *arrivals);
    bench_progress_wave(run->progress, &run->loop, c->name, asks, w->count);
    uint64_t began_ns = mono_ns();
    for (uint32_t i = 0; i < w->count; i++)
        bench_ask_start(&asks[i], &run->loop, run->target, &w->requests[i], &s->gaps);
    uv_run(&run->loop, UV_RUN_DEFAULT); // until the last connection is closed
    for (uint32_t i = 0; i < w->count; i++) {
        assert(asks[i].over);
        struct bench_reply *r = bench_cell_add(c);
        *r = asks[i].reply;
        r->stream = w->first_stream + i;
        r->rep = w->rep;
        if (!r->failed) arrivals[i] = asks[i].arrivals;
        sums_add(s, &asks[i]);
        bench_run_judge(c, &run->known[r->stream]);
    }
    bench_rate_add(&s->total, bench_arrivals_rate(arrivals, w->count));
    bench_rate_add(&s->wall, bench_arrivals_wall(arrivals, w->count, began_ns));
    bench_progress_wave_over(run->progress);
    free(arrivals);
    free(asks);
}

static void fill_request(const struct bench_plan *p, const struct bench_cell *c, uint32_t stream,
                         struct bench_request *ret) {
    *ret =
        (struct bench_request){.messages = bench_prompts_at(p->prompts, c->class, stream)->messages,
                               .draw = c->draw,
                               .draft = c->kind != BENCH_SERIAL,
                               .seed = p->seed + stream,
                               .tokens = p->tokens};
}

static void run_cell(struct run *run, struct bench_cell cell) {
    const struct bench_plan *p = run->plan;
    struct bench_cell *c = bench_receipt_add(run->receipt);
    struct bench_request *requests = mem_calloc(cell.level, sizeof *requests);
    struct sums s = {0};
    *c = cell;
    bench_cell_name(c);
    bool at_once = c->kind == BENCH_LEVEL;
    uint32_t waves = at_once ? p->reps : streams_of(p);
    for (uint32_t i = 0; i < waves; i++) {
        struct wave w = {at_once ? 0 : i, c->level, at_once ? i : 0, requests};
        for (uint32_t k = 0; k < c->level; k++)
            fill_request(p, c, w.first_stream + k, &requests[k]);
        run_wave(run, c, &w, &s);
    }
    sums_close(&s, &c->figures);
    bench_progress_cell(run->progress, c);
    free(requests);
}

static void run_cold(struct run *run, uint32_t number, const char *nonce) {
    const struct bench_plan *p = run->plan;
    struct bench_cell *c = bench_receipt_add(run->receipt);
    struct sums s = {0};
    c->kind = BENCH_COLD;
    c->level = number;
    bench_cell_name(c);
    memset(run->known, 0, sizeof *run->known);
    for (uint32_t rep = 0; rep < p->reps; rep++) {
        char salt[BENCH_TEXT_BYTES]; // a prompt kept under another salt is not found
        snprintf(salt, sizeof salt, "bench-%s-%u-%u", nonce, number, rep);
        struct bench_request q = {.messages = p->cold->v[number].messages,
                                  .draw = BENCH_GREEDY,
                                  .draft = true,
                                  .seed = p->seed,
                                  .tokens = 1,
                                  .salt = salt};
        run_wave(run, c, &(struct wave){0, 1, rep, &q}, &s);
    }
    sums_close(&s, &c->figures);
    bench_progress_cell(run->progress, c);
}

/* ---- all of them ---- */

static void run_class(struct run *run, enum bench_class class, enum bench_draw draw) {
    const struct bench_plan *p = run->plan;
    struct bench_cell c = {.class = class, .draw = draw, .level = 1};
    if (!bench_prompts_at(p->prompts, class, 0)) return;
    memset(run->known, 0, streams_of(p) * sizeof *run->known);
    if (p->serial) {
        c.kind = BENCH_SERIAL;
        run_cell(run, c);
    }
    if (p->alone) {
        c.kind = BENCH_ALONE;
        run_cell(run, c);
    }
    c.kind = BENCH_LEVEL;
    for (uint32_t i = 0; i < p->level_count; i++) {
        c.level = p->levels[i];
        run_cell(run, c);
    }
}

// The first request of a server pays for what is set up late, and says at once when it cannot be asked at all.
static int warm_up(struct run *run, struct err *e) {
    struct bench_ask a;
    json_t *messages = json_pack("[{s:s,s:s}]", "role", "user", "content", "Hello.");
    struct bench_request q = {
        .messages = messages, .draft = true, .seed = run->plan->seed, .tokens = 4};
    struct bench_list gaps = {0};
    bench_ask_start(&a, &run->loop, run->target, &q, &gaps);
    uv_run(&run->loop, UV_RUN_DEFAULT);
    bench_list_fini(&gaps);
    json_decref(messages);
    return a.reply.failed ? err_set(e, ST_IO, "first request: %s", a.reply.why) : ST_OK;
}

static void run_all(struct run *run) {
    const struct bench_plan *p = run->plan;
    char nonce[32];
    snprintf(nonce, sizeof nonce, "%llx-%lx", (unsigned long long)mono_ns(), (long)getpid());
    for (int class = 0; class < BENCH_CLASS_COUNT; class ++)
        for (int draw = 0; draw < BENCH_DRAW_COUNT; draw++)
            run_class(run, (enum bench_class) class, (enum bench_draw)draw);
    for (uint32_t i = 0; p->cold && i < p->cold->count; i++) run_cold(run, i, nonce);
}

int bench_run(struct bench_receipt *r, const struct bench_plan *p, const struct bench_target *t,
              struct bench_progress *progress, struct err *e) {
    struct run run = {.plan = p, .target = t, .receipt = r, .progress = progress};
    int rc = uv_loop_init(&run.loop);
    if (rc) return err_set(e, ST_NOMEM, "event loop: %s", uv_strerror(rc));
    run.known = mem_calloc(streams_of(p), sizeof *run.known);
    int st = warm_up(&run, e);
    if (!st) run_all(&run);
    free(run.known);
    rc = uv_loop_close(&run.loop);
    assert(!rc);
    return st;
}
