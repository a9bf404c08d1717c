/* pick: see pick.h. */
#include "router/pick.h"

// Before a worker has measured itself: what a slow one does. Only the comparison between workers matters.
static const double fill_default = 500, round_ms_default = 20;

double pick_start_s(const struct pick_worker *w, uint32_t prompt_tokens) {
    double fill = w->fill_tokens_per_s > 0 ? w->fill_tokens_per_s : fill_default;
    double round_s = (w->round_ms > 0 ? w->round_ms : round_ms_default) / 1000;
    // Running streams take their row of every round that fills this prompt.
    return ((double)w->unfilled_tokens + prompt_tokens) / fill + w->streams * round_s;
}

int pick(const struct pick_worker *workers, uint32_t count, uint32_t prompt_tokens) {
    int best = -1;
    double best_s = 0;
    for (uint32_t i = 0; i < count; i++) {
        if (!workers[i].ready || workers[i].room == 0) continue;
        double s = pick_start_s(&workers[i], prompt_tokens);
        if (best >= 0 && s >= best_s) continue;
        best = (int)i;
        best_s = s;
    }
    return best;
}
