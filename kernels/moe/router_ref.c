/* router_ref: the twin of router.cu. */
#include "kernels/cuda/refs.h"
#include "kernels/cuda/sums_ref.h"
#include "kernels/moe/router.h"

static const float taken = -1.0f;

static float maximum(const float *p, uint32_t n) {
    float m = p[0];
    for (uint32_t e = 1; e < n; e++) m = p[e] > m ? p[e] : m;
    return m;
}

static void softmax(float *p, uint32_t n) {
    float v[SUMS_WARP] = {0}, max = maximum(p, n);
    for (uint32_t e = 0; e < n; e++) {
        p[e] = arith_exp(p[e] - max);
        v[e % SUMS_WARP] = v[e % SUMS_WARP] + p[e];
    }
    float sum = sums_warp(v);
    for (uint32_t e = 0; e < n; e++) p[e] = p[e] / sum;
}

static float rank(float p) {
    return p == taken ? -2.0f : p != p ? -0.5f : p;
}

void router_ref(const struct router_args *a) {
    for (uint32_t t = 0; t < a->rows; t++) {
        float *p = (float *)refs_ptr(a->logits) + (uint64_t)t * a->count, chosen = 0;
        uint32_t *experts = (uint32_t *)refs_ptr(a->experts) + (uint64_t)t * a->per_token;
        float *weights = (float *)refs_ptr(a->weights) + (uint64_t)t * a->per_token;
        softmax(p, a->count);
        for (uint32_t i = 0; i < a->per_token; i++) {
            uint32_t best = 0;
            for (uint32_t e = 1; e < a->count; e++)
                if (rank(p[e]) > rank(p[best])) best = e;
            experts[i] = best;
            weights[i] = p[best];
            chosen = chosen + p[best];
            p[best] = taken;
        }
        for (uint32_t i = 0; i < a->per_token; i++) weights[i] = weights[i] / chosen;
    }
}
