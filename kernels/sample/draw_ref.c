/* draw_ref: the twin of draw.cu: every score, in the order of ids. */
#include "kernels/cuda/refs.h"
#include "kernels/sample/draw.h"
#include "kernels/sample/draw_order.h"
#include "kernels/sample/noise.h"

#include <stdbool.h>

static bool in_use(const uint32_t *used, uint32_t i) {
    return !used || used[i / 32] >> i % 32 & 1;
}

static bool drawable(const uint32_t *used, const float *logits, uint32_t i) {
    return in_use(used, i) && noise_tame(logits[i]) != -HUGE_VALF;
}

// The smallest id in use, for rows of which nothing may be drawn.
static uint32_t first_used(const uint32_t *used, uint32_t vocab) {
    for (uint32_t i = 0; i < vocab; i++)
        if (in_use(used, i)) return i;
    return 0;
}

static uint32_t draw_row(const float *logits, const uint32_t *used, uint32_t vocab,
                         const struct draw_row *r) {
    uint64_t best = UINT64_MAX, base = noise_base(r->seed, r->position);
    for (uint32_t i = 0; i < vocab; i++)
        if (drawable(used, logits, i) && noise_cand(noise_tame(logits[i]), i) < best)
            best = noise_cand(noise_tame(logits[i]), i);
    if (best == UINT64_MAX) return first_used(used, vocab);
    if (r->temperature < DRAW_TEMPERATURE_MIN) return (uint32_t)best;
    double floor = noise_floor(noise_cand_logit(best) / r->temperature, r->min_p);
    double best_score = -HUGE_VAL;
    best = UINT64_MAX;
    for (uint32_t i = 0; i < vocab; i++) {
        if (!drawable(used, logits, i)) continue;
        float x = noise_tame(logits[i]);
        double z = x / r->temperature, score = z + noise_gumbel(noise_u(base, i));
        if (!(z >= floor) || score < best_score) continue;
        if (score == best_score && noise_cand(x, i) > best) continue;
        best_score = score;
        best = noise_cand(x, i);
    }
    return (uint32_t)best;
}

void draw_ref(const struct draw_args *a) {
    const struct draw_row *rows = refs_ptr(a->rows);
    for (uint32_t t = 0; t < a->rows_count; t++)
        ((uint32_t *)refs_ptr(a->ids))[t] =
            draw_row((const float *)refs_ptr(a->logits) + (uint64_t)t * a->vocab,
                     refs_ptr(a->used_bits), a->vocab, &rows[t]);
}
