/* router_cpu: see router.h. A unit is one row. */
#include "kernels/cpu.h"
#include "kernels/math_f32.h"
#include "kernels/moe/router.h"

enum { WORK = 20 }; // of an expert, beside its part in P searches
static const float taken = -1.0f;

// The rest of the lanes is minus infinity: e to it is 0.
CPU_INLINE vf load_tail(const float *p, uint32_t n) {
    float t[LANES];
    for (uint32_t i = 0; i < LANES; i++) t[i] = i < n ? p[i] : -__builtin_inff();
    return vf_load(t);
}

static float maximum(const float *x, uint32_t n) {
    float m = x[0];
    for (uint32_t i = 1; i < n; i++) m = x[i] > m ? x[i] : m;
    return m;
}

static void softmax(float *x, uint32_t n) {
    vf max = vf_set(maximum(x, n)), sum = vf_set(0);
    uint32_t i = 0;
    for (; i + LANES <= n; i += LANES) {
        vf e = vf_exp(vf_load(x + i) - max);
        vf_store(x + i, e);
        sum = sum + e;
    }
    if (i < n) {
        vf e = vf_exp(load_tail(x + i, n - i) - max);
        vf_store_part(x + i, e, n - i);
        sum = sum + e;
    }
    float all = vf_sum(sum);
    for (i = 0; i < n; i++) x[i] = x[i] / all;
}

// The first of the largest that are left. Where nothing compares (not a number), the first that is left.
static uint32_t largest(const float *p, uint32_t n) {
    uint32_t best = 0;
    while (p[best] == taken) best++;
    for (uint32_t i = best + 1; i < n; i++)
        if (p[i] > p[best]) best = i;
    return best;
}

static void router_row(void *arg, uint32_t t, uint32_t thread) {
    const struct router_args *a = arg;
    uint32_t k = a->per_token;
    float *p = (float *)cpu_ptr(a->logits) + (uint64_t)t * a->count;
    uint32_t *experts = (uint32_t *)cpu_ptr(a->experts) + (uint64_t)t * k;
    float *weights = (float *)cpu_ptr(a->weights) + (uint64_t)t * k, sum = 0;
    softmax(p, a->count);
    for (uint32_t i = 0; i < k; i++) {
        experts[i] = largest(p, a->count);
        weights[i] = p[experts[i]];
        p[experts[i]] = taken;
        sum = sum + weights[i];
    }
    for (uint32_t i = 0; i < k; i++) weights[i] = weights[i] / sum;
}

void CPU_NAME(router)(void *ctx, const struct router_args *a) {
    struct router_args args = *a;
    cpu_for(ctx, (uint64_t)a->rows * a->count * (WORK + a->per_token), a->rows, router_row, &args);
}
