/* draft_width: see draft_width.h. */
#include "worker/engine/draft_width.h"
#include "common/num.h"
#include "worker/engine/costs.h"

#include <stddef.h>

static const double learn_rate = 0.1;

// Before anything is known of a stream: what the published drafters and the demo's do on text they know.
static const double priors[ENGINE_DRAFT_KINDS][3] = {
    [ENGINE_DRAFT_COPY] = {0.95, 0.95, 0.95},  [ENGINE_DRAFT_MTP] = {0.9, 0.8, 0.7},
    [ENGINE_DRAFT_DFLASH] = {0.85, 0.8, 0.78}, [ENGINE_DRAFT_DFLASH2] = {0.85, 0.8, 0.78},
    [ENGINE_DRAFT_TREE] = {0.85, 0.8, 0.78},
};
// Of a branch: one of two that contradict each other is wrong at least, and who copied right goes on so.
static const double branch_priors[3] = {0.4, 0.9, 0.9};

static void init(struct draft_width *w, enum engine_draft kind, const double prior[3]) {
    *w = (struct draft_width){.kind = kind, .gap = DRAFT_GAP_FIRST};
    for (uint32_t j = 0; j < ENGINE_WINDOW_ROWS_MAX; j++) w->kept[j] = prior[min_u32(j, 2)];
}

void draft_width_init(struct draft_width *w, enum engine_draft kind) {
    init(w, kind, priors[kind]);
}

void draft_width_init_branch(struct draft_width *w) {
    init(w, ENGINE_DRAFT_COPY, branch_priors);
}

// Tokens of a round with n drafts: 1 + sum of the chances that the first 1 .. n are kept.
static double tokens_of(const struct draft_width *w, uint32_t n) {
    double tokens = 1, chance = 1;
    for (uint32_t j = 0; j < n; j++) {
        chance *= w->kept[j];
        tokens += chance;
    }
    return tokens;
}

// How many drafts give the most tokens for the time. b NULL: alone.
static uint32_t best_count(const struct draft_width *w, const struct costs *c,
                           const struct draft_beside *b, uint32_t max) {
    uint32_t best = 0;
    double tokens = b ? tokens_of(b->width, b->drafts) - 1 : 0, best_rate = 0;
    for (uint32_t n = 0; n <= max; n++) {
        double ms = b ? costs_branch(c, b->width->kind, b->drafts, n) : costs_round(c, w->kind, n);
        double rate = (tokens + tokens_of(w, n)) / ms;
        if (rate <= best_rate) continue;
        best_rate = rate;
        best = n;
    }
    return best;
}

static uint32_t pick(struct draft_width *w, uint32_t best, uint32_t max) {
    if (!max) return 0;
    if (best) {
        w->idle = 0;
        w->gap = DRAFT_GAP_FIRST;
        bool deeper = ++w->turns % DRAFT_DEEPER_EVERY == 0;
        return min_u32(best + deeper, max);
    }
    if (w->idle++ < w->gap) return 0;
    w->idle = 0;
    w->gap = min_u32(2 * w->gap, DRAFT_GAP_MAX);
    return 1;
}

uint32_t draft_width_pick(struct draft_width *w, const struct costs *c, uint32_t max) {
    return pick(w, best_count(w, c, NULL, max), max);
}

uint32_t draft_width_pick_beside(struct draft_width *w, const struct costs *c,
                                 const struct draft_beside *b, uint32_t max) {
    return pick(w, best_count(w, c, b, max), max);
}

void draft_width_learn(struct draft_width *w, uint32_t drafted, uint32_t kept) {
    for (uint32_t j = 0; j < drafted && j <= kept; j++)
        w->kept[j] += learn_rate * ((j < kept ? 1.0 : 0.0) - w->kept[j]);
}
