/* costs: tables that are read and refused by name; draft_width: how many drafts follow from one. */
#include "common/err.h"
#include "tests/lib/test.h"
#include "worker/engine/costs.h"
#include "worker/engine/costs_tables.h"
#include "worker/engine/draft_width.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char *path_of(void) {
    static char path[64];
    snprintf(path, sizeof path, "/tmp/costs_test.%ld.json", (long)getpid());
    return path;
}

static int read_text(const char *text, struct costs *ret, struct err *e) {
    FILE *f = fopen(path_of(), "we");
    CHECK(f != NULL);
    fputs(text, f);
    fclose(f);
    int st = costs_read(ret, path_of(), "cpu", "qwen3_5 8x256x4096", 4, e);
    unlink(path_of());
    return st;
}

#define HEAD "{\"railyard_costs\":1,\"device\":\"cpu\",\"shape\":\"qwen3_5 8x256x4096\""

TEST(a_table_is_read_and_what_it_lacks_is_built_in) {
    struct costs c, built;
    struct err e = {0};
    costs_builtin(&built);
    CHECK_OK(read_text(HEAD ",\"rows_ms\":[2,3,3,5],\"draft_ms\":{\"dflash2\":[1.5,2]}}", &c, &e),
             e);
    CHECK_EQ(c.rows_ms[1], 2);
    CHECK_EQ(c.rows_ms[4], 5);
    CHECK_EQ(c.rows_ms[ENGINE_WINDOW_ROWS_MAX], 5);
    CHECK_EQ(costs_round(&c, ENGINE_DRAFT_DFLASH2, 2), 3 + 2);
    CHECK_EQ(costs_round(&c, ENGINE_DRAFT_DFLASH2, 3), 5 + 2);
    CHECK_EQ(c.draft_ms[ENGINE_DRAFT_MTP][3], 2 * built.draft_ms[ENGINE_DRAFT_MTP][3]);
    CHECK_EQ(costs_round(&c, ENGINE_DRAFT_COPY, 3), 5);
}

TEST(a_broken_table_is_refused_by_name) {
    static const struct {
        const char *text, *has;
        int st;
    } cases[] = {
        {"{", "line 1", ST_CORRUPT},
        {"[]", "an object", ST_CORRUPT},
        {HEAD "}", "rows_ms", ST_CORRUPT},
        {HEAD ",\"rows_ms\":[1,2,3]}", "4 numbers", ST_CORRUPT},
        {HEAD ",\"rows_ms\":[1,2,\"x\",4]}", "rows_ms", ST_CORRUPT},
        {HEAD ",\"rows_ms\":[1,3,2,4]}", "never fall", ST_CORRUPT},
        {HEAD ",\"rows_ms\":[0,3,3,4]}", "above 0", ST_CORRUPT},
        {HEAD ",\"rows_ms\":[1,2,3,4],\"extra\":1}", "\"extra\"", ST_CORRUPT},
        {HEAD ",\"rows_ms\":[1,2,3,4],\"draft_ms\":[]}", "draft_ms", ST_CORRUPT},
        {HEAD ",\"rows_ms\":[1,2,3,4],\"about\":7}", "about", ST_CORRUPT},
        {HEAD ",\"rows_ms\":[1,2,3,4],\"draft_ms\":{\"eagle\":[1]}}", "\"eagle\"", ST_CORRUPT},
        {HEAD ",\"rows_ms\":[1,2,3,4],\"draft_ms\":{\"mtp\":[]}}", "mtp", ST_CORRUPT},
        {"{\"railyard_costs\":2,\"device\":\"cpu\",\"shape\":\"qwen3_5 8x256x4096\",\"rows_ms\":[1,"
         "2,3,4]}",
         "railyard_costs", ST_CORRUPT},
        {"{\"railyard_costs\":1,\"device\":\"H200\",\"shape\":\"qwen3_5 8x256x4096\",\"rows_ms\":["
         "1,2,3,4]}",
         "device: wanted \"cpu\"", ST_INVAL},
        {"{\"railyard_costs\":1,\"device\":\"cpu\",\"shape\":\"qwen3_5 "
         "64x5120x4096\",\"rows_ms\":[1,2,3,4]}",
         "shape: wanted", ST_INVAL},
    };
    for (uint32_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct costs c;
        struct err e = {0};
        CHECK_EQ(read_text(cases[i].text, &c, &e), cases[i].st);
        CHECK_HAS(e.msg, cases[i].has);
        CHECK_HAS(e.msg, path_of());
    }
    struct costs c;
    struct err e = {0};
    CHECK_EQ(costs_read(&c, "/nonexistent/costs", "cpu", "x", 4, &e), ST_NOT_FOUND);
}

// Every table that the program carries is whole, says where it is from, and is found by its device and shape alone.
TEST(the_tables_that_the_program_carries_are_found) {
    uint32_t n = 0;
    for (const struct costs_table *t = costs_tables; t->name; t++, n++) {
        struct costs c = {0};
        json_t *root = json_loads(t->text, 0, NULL);
        const char *device = json_string_value(json_object_get(root, "device")),
                   *shape = json_string_value(json_object_get(root, "shape"));
        CHECK(json_is_string(json_object_get(root, "about")));
        CHECK_STR(costs_find(&c, device, shape, ENGINE_WINDOW_ROWS_MAX), t->name);
        CHECK(c.rows_ms[1] > 0 && c.rows_ms[ENGINE_WINDOW_ROWS_MAX] >= c.rows_ms[1]);
        CHECK(costs_find(&c, device, "another shape", 4) == NULL);
        CHECK(costs_find(&c, "another device", shape, 4) == NULL);
        json_decref(root);
    }
    CHECK(n >= 3);
}

TEST(a_table_that_was_written_is_read_as_it_was) {
    struct costs c, back;
    struct err e = {0};
    costs_builtin(&c);
    CHECK_OK(costs_write(&c, path_of(), "cpu", "s", ENGINE_WINDOW_ROWS_MAX, &e), e);
    CHECK_OK(costs_read(&back, path_of(), "cpu", "s", ENGINE_WINDOW_ROWS_MAX, &e), e);
    unlink(path_of());
    for (uint32_t n = 0; n < ENGINE_WINDOW_ROWS_MAX; n++)
        for (uint32_t k = 0; k < ENGINE_DRAFT_KINDS; k++) {
            double d = costs_round(&c, k, n) - costs_round(&back, k, n);
            CHECK(d < 1e-3 && d > -1e-3);
        }
}

static struct costs flat(double row, double draft) {
    struct costs c = {0};
    for (uint32_t r = 1; r <= ENGINE_WINDOW_ROWS_MAX; r++) c.rows_ms[r] = 1 + row * (r - 1);
    for (uint32_t n = 1; n < ENGINE_WINDOW_ROWS_MAX; n++)
        for (uint32_t k = 0; k < ENGINE_DRAFT_KINDS; k++) c.draft_ms[k][n] = draft;
    return c;
}

TEST(cheap_rows_and_kept_drafts_make_wide_windows_dear_ones_narrow) {
    struct draft_width w;
    struct costs cheap = flat(0.01, 0), dear = flat(0.5, 0.1), wasted = flat(2, 0);
    draft_width_init(&w, ENGINE_DRAFT_DFLASH2);
    CHECK_EQ(draft_width_pick(&w, &cheap, 0), 0);
    uint32_t many = draft_width_pick(&w, &cheap, 15);
    CHECK(many > 8);
    CHECK(draft_width_pick(&w, &dear, 15) < many);
    CHECK_EQ(draft_width_pick(&w, &wasted, 15), 0);
    for (uint32_t i = 0; i < 100; i++) draft_width_learn(&w, 15, 15);
    CHECK_EQ(draft_width_pick(&w, &cheap, 15), 15);
}

TEST(drafts_that_are_never_kept_are_tried_less_and_less_often) {
    struct draft_width w;
    struct costs c = flat(0.3, 0.1);
    uint32_t tried = 0, first = 0, drafted = 0;
    draft_width_init(&w, ENGINE_DRAFT_MTP);
    for (uint32_t i = 0; i < 4000; i++) {
        uint32_t n = draft_width_pick(&w, &c, 15);
        drafted += n;
        tried += n > 0;
        if (i < 100) first = tried;
        if (n) draft_width_learn(&w, n, 0);
        if (i > 100) CHECK(n <= 1);
    }
    test_note("tried in %u of 4000 rounds, %u of them in the first hundred, %u drafts", tried,
              first, drafted);
    CHECK(tried - first < 12 && tried > first);
    // And they come back when they are kept.
    for (uint32_t i = 0; i < 20000; i++) {
        uint32_t n = draft_width_pick(&w, &c, 15);
        draft_width_learn(&w, n, n);
    }
    CHECK(draft_width_pick(&w, &c, 15) > 8);
}

// A branch costs a row more than it has ids, and comes beside drafts that may land themselves.
TEST(a_branch_is_made_where_its_rows_are_cheap_and_not_where_it_misses) {
    struct draft_width block, branch;
    struct costs cheap = flat(0.01, 0.1), dear = flat(0.5, 0.1);
    CHECK_EQ(costs_branch(&cheap, ENGINE_DRAFT_DFLASH2, 7, 0),
             costs_round(&cheap, ENGINE_DRAFT_DFLASH2, 7));
    CHECK_EQ(costs_branch(&cheap, ENGINE_DRAFT_DFLASH2, 7, 4), cheap.rows_ms[13] + 0.1);
    draft_width_init(&block, ENGINE_DRAFT_DFLASH2);
    draft_width_init_branch(&branch);
    struct draft_beside beside = {&block, 7};
    CHECK_EQ(draft_width_pick_beside(&branch, &cheap, &beside, 0), 0);
    CHECK_EQ(draft_width_pick_beside(&branch, &cheap, &beside, 4), 4);
    CHECK_EQ(draft_width_pick_beside(&branch, &dear, &beside, 4), 0);
    for (uint32_t i = 0; i < 40; i++) draft_width_learn(&branch, 4, 0);
    uint32_t tried = 0;
    for (uint32_t i = 0; i < 40; i++) {
        uint32_t n = draft_width_pick_beside(&branch, &cheap, &beside, 4);
        tried += n > 0;
        if (n) draft_width_learn(&branch, n, 0);
    }
    CHECK(tried >= 1 && tried < 6);
}

TEST(now_and_then_one_more_than_the_best_is_tried) {
    struct draft_width w;
    struct costs c = flat(0.2, 0.1);
    uint32_t seen[16] = {0};
    draft_width_init(&w, ENGINE_DRAFT_MTP);
    for (uint32_t i = 0; i < 64; i++) seen[draft_width_pick(&w, &c, 15)]++;
    uint32_t best = 0;
    for (uint32_t n = 1; n < 16; n++)
        if (seen[n] > seen[best]) best = n;
    CHECK_EQ(seen[best], 56);
    CHECK_EQ(seen[best + 1], 8);
}
