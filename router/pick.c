/* pick: see pick.h. */
#include "router/pick.h"
#include "common/num.h"

// Before any worker has measured itself: what a slow one does. Only the comparison between workers matters.
static const double fill_default = 500, round_ms_default = 20;

double pick_start_s(const struct pick_worker *w, uint32_t prompt_tokens) {
    double fill = w->fill_tokens_per_s > 0 ? w->fill_tokens_per_s : fill_default;
    double round_s = (w->round_ms > 0 ? w->round_ms : round_ms_default) / 1000;
    // Running streams take their row of every round that fills this prompt.
    return ((double)w->unfilled_tokens + prompt_tokens) / fill + w->streams * round_s;
}

// One that has not measured itself is taken to be as fast as the fastest that has: it must not look slow for being new.
static struct pick_worker with_figures(const struct pick_worker *workers, uint32_t count,
                                       uint32_t idx) {
    struct pick_worker w = workers[idx];
    bool no_fill = w.fill_tokens_per_s <= 0, no_round = w.round_ms <= 0;
    for (uint32_t i = 0; i < count; i++) {
        const struct pick_worker *o = &workers[i];
        if (no_fill && o->fill_tokens_per_s > w.fill_tokens_per_s)
            w.fill_tokens_per_s = o->fill_tokens_per_s;
        if (no_round && o->round_ms > 0 && (w.round_ms <= 0 || o->round_ms < w.round_ms))
            w.round_ms = o->round_ms;
    }
    return w;
}

// Of each key and worker another number: the highest wins, and a worker that goes or comes moves
// only the keys that were or will be its own.
static uint64_t score(uint64_t affinity, uint32_t idx) {
    return mix_u64(affinity + (idx + 1) * 0x9e3779b97f4a7c15u);
}

int pick(const struct pick_worker *workers, uint32_t count, const struct pick_request *r,
         bool *ret_by_affinity) {
    int best = -1;
    double best_s = 0;
    bool tie = false;
    for (uint32_t i = 0; i < count; i++) {
        if (!workers[i].ready || workers[i].room == 0) continue;
        struct pick_worker w = with_figures(workers, count, i);
        double s = pick_start_s(&w, r->prompt_tokens);
        bool equal = best >= 0 && s <= best_s && s >= best_s;
        bool closer =
            equal && r->affinity && score(r->affinity, i) > score(r->affinity, (uint32_t)best);
        tie = best < 0 || s < best_s ? false : tie || equal;
        if (best >= 0 && s >= best_s && !closer) continue;
        best = (int)i;
        best_s = s;
    }
    *ret_by_affinity = tie && r->affinity;
    return best;
}
