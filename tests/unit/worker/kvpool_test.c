/* kvpool: all or nothing, nothing twice, nothing lost. */
#include "common/err.h"
#include "common/num.h"
#include "tests/lib/test.h"
#include "worker/engine/kvpool.h"

#include <string.h>

enum { PAGES = 100 };

TEST(pages_are_taken_all_or_none) {
    struct kvpool *p = NULL;
    struct err e = {0};
    uint32_t pages[PAGES + 1];
    CHECK_OK(kvpool_new(&p, PAGES, &e), e);
    CHECK_EQ(kvpool_total(p), PAGES);
    CHECK_EQ(kvpool_take(p, PAGES + 1, pages), ST_FULL);
    CHECK_EQ(kvpool_used(p), 0);
    CHECK_EQ(kvpool_take(p, 60, pages), ST_OK);
    CHECK_EQ(kvpool_take(p, 41, pages + 60), ST_FULL);
    CHECK_EQ(kvpool_used(p), 60);
    CHECK_EQ(kvpool_take(p, 40, pages + 60), ST_OK);
    CHECK_EQ(kvpool_take(p, 1, pages + 100), ST_FULL);
    CHECK_EQ(kvpool_take(p, 0, pages + 100), ST_OK);
    kvpool_give(p, pages, PAGES);
    CHECK_EQ(kvpool_used(p), 0);
    kvpool_free(p);
}

TEST(no_page_is_ever_out_twice) {
    struct kvpool *p = NULL;
    struct err e = {0};
    uint32_t pages[8][PAGES], count[8] = {0};
    uint64_t random = 1;
    CHECK_OK(kvpool_new(&p, PAGES, &e), e);
    for (int i = 0; i < 20000; i++) {
        random = mix_u64(random + 0x9e3779b97f4a7c15u);
        uint32_t who = random % 8, n = (uint32_t)(random >> 32) % 40;
        if (count[who]) {
            kvpool_give(p, pages[who], count[who]);
            count[who] = 0;
        } else if (!kvpool_take(p, n, pages[who])) {
            count[who] = n;
        }
        bool out[PAGES] = {0};
        uint32_t used = 0;
        for (int w = 0; w < 8; w++)
            for (uint32_t k = 0; k < count[w]; k++, used++) {
                CHECK(pages[w][k] < PAGES && !out[pages[w][k]]);
                out[pages[w][k]] = true;
            }
        CHECK_EQ(kvpool_used(p), used);
    }
    kvpool_free(p);
    kvpool_free(NULL);
}

// Warm pages first.
TEST(pages_given_back_last_are_taken_first) {
    struct kvpool *p = NULL;
    struct err e = {0};
    uint32_t a[4], b[4];
    CHECK_OK(kvpool_new(&p, PAGES, &e), e);
    CHECK_EQ(kvpool_take(p, 4, a), ST_OK);
    kvpool_give(p, a, 4);
    CHECK_EQ(kvpool_take(p, 4, b), ST_OK);
    CHECK_MEM(a, b, sizeof a);
    kvpool_give(p, b, 4);
    kvpool_free(p);
}
