/* draft_doubles: see draft_doubles.h. */
#include "tests/lib/draft_doubles.h"
#include "common/err.h"
#include "common/num.h"
#include "tests/lib/test.h"
#include "worker/engine/carve.h"
#include "worker/engine/costs.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

const char *double_name(enum double_kind kind) {
    static const char *const names[] = {
        [DOUBLE_AGREES] = "agrees", [DOUBLE_LIES] = "lies",     [DOUBLE_HALF] = "half right",
        [DOUBLE_SHORT] = "short",   [DOUBLE_RANDOM] = "random",
    };
    return names[kind];
}

static void carve_some(void *self, struct carve *c) {
    const struct draft_double *d = self;
    carve_begin(c, "drafter");
    carve_take(c, d->room_bytes ? d->room_bytes : 1000);
}

static int load(void *self, struct err *e) {
    struct draft_double *d = self;
    (void)e;
    d->loaded = true;
    return 0;
}

static void absorb(void *self, const struct draft_rows *rows, uint32_t count) {
    struct draft_double *d = self;
    CHECK(d->loaded);
    for (uint32_t i = 0; i < count; i++) {
        const struct run *run = &rows[i].run;
        uint32_t end = run->pos + run->count;
        CHECK(run->slot < DOUBLE_SLOTS_MAX && run->count && end <= DOUBLE_IDS_MAX);
        if (!run->pos) d->slots[run->slot].rows = 0;
        CHECK_EQ(run->pos, d->slots[run->slot].rows);
        CHECK(rows[i].ids_count >= end);
        CHECK_MEM(rows[i].ids, d->slots[run->slot].ids, run->pos * sizeof *rows[i].ids);
        memcpy(d->slots[run->slot].ids, rows[i].ids, end * sizeof *rows[i].ids);
        d->slots[run->slot].rows = end;
    }
}

// What follows the first count ids, with *ret_count of them; none where nothing is known that begins so.
static const uint32_t *after(const struct draft_double *d, const uint32_t *ids, uint32_t count,
                             uint32_t *ret_count) {
    for (uint32_t i = 0; i < d->known_count; i++) {
        if (d->known[i].count < count || memcmp(d->known[i].ids, ids, count * sizeof *ids))
            continue;
        *ret_count = d->known[i].count - count;
        return d->known[i].ids + count;
    }
    *ret_count = 0;
    return NULL;
}

static bool is_right(const struct draft_double *d, const struct draft_ask *a, uint32_t i) {
    switch (d->kind) {
    case DOUBLE_AGREES: return true;
    case DOUBLE_HALF: return i < a->want / 2;
    case DOUBLE_SHORT: return i + 1 < (a->want + 1) / 2;
    case DOUBLE_RANDOM: return mix_u64((uint64_t)a->pos << 32 | i | 1u << 31) % 4;
    default: return false;
    }
}

static void propose(void *self, struct draft_ask *asks, uint32_t count) {
    struct draft_double *d = self;
    for (uint32_t k = 0; k < count; k++) {
        struct draft_ask *a = &asks[k];
        uint32_t *ids = d->slots[a->slot].ids, n = 0;
        CHECK_EQ(a->pos, d->slots[a->slot].rows);
        CHECK(a->want >= 1 && a->want <= DOUBLE_BLOCK && a->sampling);
        ids[a->pos] = a->anchor;
        const uint32_t *next = after(d, ids, a->pos + 1, &n);
        a->ret_count = d->kind == DOUBLE_SHORT ? (a->want + 1) / 2 : a->want;
        for (uint32_t i = 0; i < a->ret_count; i++)
            a->ret_ids[i] = ((i < n ? next[i] : 0) + (is_right(d, a, i) ? 0 : 1)) % d->vocab;
        d->asked++;
    }
}

static uint64_t state_bytes(void *self, uint32_t rows) {
    (void)self;
    return (1 + (uint64_t)rows) * sizeof rows;
}

static void state_read(void *self, uint32_t slot, uint32_t rows, void *ret) {
    struct draft_double *d = self;
    CHECK_EQ(rows, d->slots[slot].rows);
    memcpy(ret, &rows, sizeof rows);
    memcpy((uint32_t *)ret + 1, d->slots[slot].ids, rows * sizeof rows);
    d->saved++;
}

static void state_write(void *self, uint32_t slot, uint32_t rows, const void *p) {
    struct draft_double *d = self;
    CHECK_MEM(p, &rows, sizeof rows);
    memcpy(d->slots[slot].ids, (const uint32_t *)p + 1, rows * sizeof rows);
    d->slots[slot].rows = rows;
    d->restored++;
}

static void close_double(void *self) {
    struct draft_double *d = self;
    d->closed = true;
}

struct drafter double_drafter(struct draft_double *d, enum double_kind kind, uint32_t vocab) {
    static const uint32_t taps[] = {1, 0};
    d->kind = kind;
    d->vocab = vocab;
    d->loaded = d->closed = false;
    return (struct drafter){.self = d,
                            .kind = ENGINE_DRAFT_DFLASH2,
                            .vocab = vocab,
                            .ids_max = DOUBLE_BLOCK,
                            .taps = {.layers = taps, .count = 2, .final = true},
                            .carve = carve_some,
                            .load = load,
                            .absorb = absorb,
                            .propose = propose,
                            .state_bytes = state_bytes,
                            .state_read = state_read,
                            .state_write = state_write,
                            .close = close_double};
}

void double_learn(struct draft_double *d, const struct engine_request *r, const struct reply *got) {
    uint32_t n = d->known_count++;
    CHECK(n < DOUBLE_KNOWN_MAX && r->prompt_count + got->count <= DOUBLE_IDS_MAX);
    memcpy(d->known[n].ids, r->prompt, r->prompt_count * sizeof *r->prompt);
    memcpy(d->known[n].ids + r->prompt_count, got->ids, got->count * sizeof *got->ids);
    d->known[n].count = r->prompt_count + got->count;
}

const char *double_free_costs(const char *dir) {
    static char path[64];
    struct costs c;
    char shape[COSTS_SHAPE_BYTES];
    struct engine_config config = {
        .model_dir = dir, .threads = 1, .context_max = 64, .streams_max = 1};
    struct engine *eng = drive_open(&config);
    struct err e = {0};
    costs_builtin(&c);
    for (uint32_t i = 1; i < ENGINE_WINDOW_ROWS_MAX; i++) {
        c.rows_ms[i] = c.rows_ms[i + 1] = 1;
        for (uint32_t k = 0; k < ENGINE_DRAFT_KINDS; k++) c.draft_ms[k][i] = 0.0001;
    }
    costs_shape(shape, engine_info(eng));
    snprintf(path, sizeof path, "/tmp/draft_doubles.%ld.json", (long)getpid());
    CHECK_OK(costs_write(&c, path, engine_info(eng)->device, shape, ENGINE_WINDOW_ROWS_MAX, &e), e);
    engine_free(eng);
    return path;
}
