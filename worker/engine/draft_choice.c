/* draft_choice: see draft_choice.h. */
#include "worker/engine/draft_choice.h"
#include "kernels/math_f64.h"
#include "kernels/sample/sample.h"

#include <assert.h>
#include <math.h>

struct candidate {
    uint32_t at;
    double z, weight; // logit / temperature; exp(z - the greatest)
};

// Greatest first; of equals the earlier one.
static void sort(struct candidate *c, uint32_t count) {
    for (uint32_t i = 1; i < count; i++) {
        struct candidate x = c[i];
        uint32_t at = i;
        for (; at && c[at - 1].z < x.z; at--) c[at] = c[at - 1];
        c[at] = x;
    }
}

// How many of the sorted candidates the filters of a draw leave.
static uint32_t keep(struct candidate *c, uint32_t count, const struct sample_params *p) {
    double sum = 0, below = 0;
    uint32_t kept = 1;
    if (p->top_k && count > p->top_k) count = p->top_k;
    for (uint32_t i = 0; i < count; i++) sum += c[i].weight = math_f64_exp(c[i].z - c[0].z);
    for (; kept < count; kept++) {
        below += c[kept - 1].weight;
        if (p->top_p < 1 && below >= p->top_p * sum) break;
        if (p->min_p > 0 && c[kept].weight < p->min_p) break;
    }
    return kept;
}

uint32_t draft_choice(const uint32_t *ids, const float *scores, uint32_t count,
                      const struct sample_params *p, uint64_t position) {
    struct candidate c[DRAFT_CHOICE_MAX];
    uint32_t best = 0;
    double best_value = -HUGE_VAL;
    assert(count && count <= DRAFT_CHOICE_MAX);
    bool greedy = p->temperature < SAMPLE_TEMPERATURE_MIN || p->top_k == 1;
    for (uint32_t i = 0; i < count; i++) {
        double z = scores[i] == scores[i] ? scores[i] : -HUGE_VAL;
        c[i] = (struct candidate){.at = i, .z = greedy ? z : z / p->temperature};
    }
    sort(c, count);
    if (greedy || !(c[0].z > -HUGE_VAL && c[0].z < HUGE_VAL)) return c[0].at;
    count = keep(c, count, p);
    for (uint32_t i = 0; i < count; i++) {
        double value = c[i].z + sample_gumbel(p->seed, position, ids[c[i].at]);
        if (i && value <= best_value) continue;
        best = c[i].at;
        best_value = value;
    }
    return best;
}
