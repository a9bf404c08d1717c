/* The router where its formula alone does not say what happens: equal probabilities, and logits that are no numbers. */
#include "common/err.h"
#include "kernels/cpu_pool.h"
#include "kernels/moe/router.h"
#include "kernels/ops.h"
#include "tests/lib/test.h"

#include <math.h>
#include <string.h>

enum { COUNT_MAX = 40, K_MAX = 8 };

struct row {
    float logits[COUNT_MAX];
    uint32_t count, k;
    uint32_t experts[K_MAX];
    float weights[K_MAX];
};

static void route(struct row *r) {
    struct cpu_pool *p = NULL;
    struct ops o = {0};
    struct err e = {0};
    devptr at = 0;
    uint64_t ids = sizeof r->logits, weights = ids + sizeof r->experts;
    CHECK_OK(cpu_pool_new(&p, 1, &e), e);
    CHECK_OK(ops_cpu_open(&o, p, NULL, &e), e);
    CHECK_OK(o.alloc(o.ctx, sizeof *r, "row", &at, &e), e);
    o.write(o.ctx, at, r->logits, r->count * sizeof *r->logits);
    o.router(o.ctx, &(struct router_args){.logits = at,
                                          .experts = at + ids,
                                          .weights = at + weights,
                                          .rows = 1,
                                          .count = r->count,
                                          .per_token = r->k});
    o.read(o.ctx, r->experts, at + ids, r->k * sizeof *r->experts);
    o.read(o.ctx, r->weights, at + weights, r->k * sizeof *r->weights);
    o.free(o.ctx, at, sizeof *r);
    ops_close(&o);
    cpu_pool_free(p);
}

TEST(equal_logits_go_to_the_lowest_numbers_in_order) {
    struct row r = {.count = 37, .k = 5};
    for (uint32_t i = 0; i < r.count; i++) r.logits[i] = i == 30 ? 2.5f : i % 3 ? 1.5f : -1;
    route(&r);
    static const uint32_t want[] = {30, 1, 2, 4, 5};
    CHECK_MEM(r.experts, want, sizeof want);
    for (uint32_t i = 2; i < 5; i++) CHECK_EQ(memcmp(&r.weights[1], &r.weights[i], 4), 0);
    CHECK(r.weights[0] > r.weights[1]);
}

/* The choice is by probability, as the published model has it: where that is 0, however different the logits, the lowest
 * number is taken. */
TEST(probabilities_that_vanish_are_equal) {
    struct row r = {.count = 20, .k = 3};
    for (uint32_t i = 0; i < r.count; i++) r.logits[i] = -200 - (float)((i * 7) % 20);
    r.logits[11] = 0;
    route(&r);
    static const uint32_t want[] = {11, 0, 1};
    CHECK_MEM(r.experts, want, sizeof want);
    CHECK_EQ(r.weights[0] == 1 && r.weights[1] == 0 && r.weights[2] == 0, true);
}

TEST(weights_of_the_chosen_add_up_to_one) {
    for (uint32_t k = 1; k <= K_MAX; k++) {
        struct row r = {.count = 33, .k = k};
        float sum = 0;
        for (uint32_t i = 0; i < r.count; i++) r.logits[i] = (float)((i * 10) % 33) * 0.25f;
        route(&r);
        for (uint32_t i = 0; i < k; i++) sum += r.weights[i];
        CHECK(fabsf(sum - 1) < 1e-6f);
        for (uint32_t i = 1; i < k; i++) CHECK(r.weights[i] < r.weights[i - 1]);
    }
}

/* A broken checkpoint may give anything; what follows indexes by the experts, so they must be numbers of experts, and each
 * at most once a row. */
TEST(logits_that_are_no_numbers_still_choose_different_experts) {
    static const float odd[] = {NAN, INFINITY, -INFINITY, 0, -NAN};
    for (uint32_t a = 0; a < 5; a++)
        for (uint32_t b = 0; b < 5; b++) {
            struct row r = {.count = 19, .k = K_MAX};
            bool seen[COUNT_MAX] = {false};
            for (uint32_t i = 0; i < r.count; i++) r.logits[i] = i % 4 ? odd[a] : odd[b];
            route(&r);
            for (uint32_t i = 0; i < r.k; i++) {
                CHECK(r.experts[i] < r.count && !seen[r.experts[i]]);
                seen[r.experts[i]] = true;
            }
        }
}
