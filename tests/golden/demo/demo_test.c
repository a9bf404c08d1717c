/* The engine on the CPU against transformers in fp32, on the trained demo model: 20 prompts. README.md says how the
 * answers were made. */
#include "common/err.h"
#include "common/mem.h"
#include "tests/golden/golden.h"
#include "tests/lib/test.h"
#include "worker/engine/engine.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const double TOLERANCE = 1e-4; // of the range of the logits
enum { PROMPTS = 20, GREEDY_MAX = 64 };

static struct {
    struct engine *eng;
    uint32_t vocab;
    json_t *prompts;
    struct golden_array logits, argmax, margin, greedy, greedy_margin;
} demo;

static void read_array(struct golden_array *ret, const char *name, char kind) {
    char path[600];
    snprintf(path, sizeof path, "%s/tests/golden/demo/%s.npy", test_source_dir(), name);
    golden_read_npy(ret, path);
    CHECK_EQ(ret->kind, kind);
}

// Once for all tests of this program.
static void demo_open(void) {
    char path[600];
    if (demo.eng) return;
    snprintf(path, sizeof path, "%s/tests/golden/demo/prompts.json", test_source_dir());
    demo.prompts = golden_read_json(path);
    CHECK_EQ(json_array_size(demo.prompts), PROMPTS);
    read_array(&demo.logits, "logits", 'f');
    read_array(&demo.argmax, "argmax", 'i');
    read_array(&demo.margin, "margin", 'f');
    read_array(&demo.greedy, "greedy", 'i');
    read_array(&demo.greedy_margin, "greedy_margin", 'f');
    CHECK_EQ(demo.greedy.rows, PROMPTS);
    CHECK(demo.greedy.columns <= GREEDY_MAX);
    snprintf(path, sizeof path, "%s/tests/models/demo", test_source_dir());
    demo.eng = golden_engine(path);
    demo.vocab = engine_info(demo.eng)->vocab_size;
    CHECK_EQ(demo.logits.columns, demo.vocab);
}

__attribute__((destructor)) static void demo_close(void) {
    engine_free(demo.eng);
    json_decref(demo.prompts);
    free(demo.logits.file);
    free(demo.argmax.file);
    free(demo.margin.file);
    free(demo.greedy.file);
    free(demo.greedy_margin.file);
}

struct prompt {
    const char *name;
    struct golden_case c;
    uint32_t *ids, *positions;
    size_t offset; // of its first position in argmax and margin
};

static size_t number(const json_t *v, const char *key) {
    return (size_t)json_integer_value(json_object_get(v, key));
}

static void prompt_read(struct prompt *p, size_t idx) {
    const json_t *v = json_array_get(demo.prompts, idx);
    p->name = json_string_value(json_object_get(v, "name"));
    p->ids = golden_ids(json_object_get(v, "ids"), &p->c.ids_count);
    p->positions = golden_ids(json_object_get(v, "positions"), &p->c.rows_count);
    p->c.ids = p->ids, p->c.rows = p->positions;
    p->offset = number(v, "offset");
    CHECK(p->c.rows_count > 0 && p->offset + p->c.ids_count <= demo.argmax.rows);
    CHECK(number(v, "first_row") + p->c.rows_count <= demo.logits.rows);
    p->c.want = (const float *)demo.logits.data + number(v, "first_row") * demo.vocab;
    float low = p->c.want[0], high = low;
    for (size_t i = 0; i < (size_t)p->c.rows_count * demo.vocab; i++) {
        low = fminf(low, p->c.want[i]);
        high = fmaxf(high, p->c.want[i]);
    }
    p->c.range = (double)high - low;
    CHECK(p->c.range > 1);
}

static void prompt_free(struct prompt *p) {
    free(p->ids);
    free(p->positions);
}

TEST(logits_are_those_of_transformers_at_every_stored_position) {
    double worst = 0;
    demo_open();
    for (size_t i = 0; i < PROMPTS; i++) {
        struct prompt p;
        prompt_read(&p, i);
        double d = golden_worst(demo.eng, &p.c, 0);
        if (!(d <= TOLERANCE))
            test_fail(__FILE__, __LINE__, "%s: off by %g of the range, wanted %g", p.name, d,
                      TOLERANCE);
        if (d > worst) worst = d;
        prompt_free(&p);
    }
    test_note("20 prompts, %zu rows: worst %.2g of the range", demo.logits.rows, worst);
}

static uint32_t arg_max(const float *row) {
    uint32_t at = 0;
    for (uint32_t i = 1; i < demo.vocab; i++)
        if (row[i] > row[at]) at = i;
    return at;
}

// Positions of a prompt whose arg max is not the stored one though its margin is clear. Counts the clear ones.
static uint32_t wrong_arg_max(const struct prompt *p, uint32_t *ret_clear) {
    struct err e = {0};
    uint32_t n = p->c.ids_count, wrong = 0;
    uint32_t *all = mem_calloc(n, sizeof *all);
    float *logits = mem_calloc((size_t)n * demo.vocab, sizeof *logits);
    for (uint32_t i = 0; i < n; i++) all[i] = i;
    int st = engine_logits(demo.eng, p->ids, n, 0, all, n, logits, &e);
    for (uint32_t i = 0; i < n && !st; i++) {
        double margin = ((const float *)demo.margin.data)[p->offset + i];
        if (margin <= 2 * TOLERANCE * p->c.range) continue;
        ++*ret_clear;
        wrong += arg_max(logits + (size_t)i * demo.vocab) !=
                 ((const uint32_t *)demo.argmax.data)[p->offset + i];
    }
    free(all);
    free(logits);
    CHECK_OK(st, e);
    return wrong;
}

TEST(the_arg_max_is_that_of_transformers_wherever_its_margin_is_clear) {
    uint32_t clear = 0, positions = 0;
    demo_open();
    for (size_t i = 0; i < PROMPTS; i++) {
        struct prompt p;
        prompt_read(&p, i);
        uint32_t wrong = wrong_arg_max(&p, &clear);
        positions += p.c.ids_count;
        if (wrong)
            test_fail(__FILE__, __LINE__, "%s: %u of %u positions have another arg max", p.name,
                      wrong, p.c.ids_count);
        prompt_free(&p);
    }
    test_note("%u of %u positions have a clear margin", clear, positions);
    CHECK(clear > positions * 9 / 10);
}

/* Past a draw without a clear margin either id is right, and what follows hangs on it. */
TEST(greedy_ids_are_those_of_transformers_up_to_the_first_unclear_draw) {
    uint32_t compared = 0;
    demo_open();
    uint32_t count = (uint32_t)demo.greedy.columns;
    for (size_t i = 0; i < PROMPTS; i++) {
        struct prompt p;
        uint32_t got[GREEDY_MAX];
        prompt_read(&p, i);
        golden_greedy(demo.eng, &p.c, count, got);
        for (uint32_t t = 0; t < count; t++) {
            size_t at = i * count + t;
            if (((const float *)demo.greedy_margin.data)[at] <= 2 * TOLERANCE * p.c.range) break;
            uint32_t want = ((const uint32_t *)demo.greedy.data)[at];
            if (got[t] != want)
                test_fail(__FILE__, __LINE__, "%s: id %u: found %u, wanted %u", p.name, t, got[t],
                          want);
            compared++;
        }
        prompt_free(&p);
    }
    test_note("%u of %u greedy ids compared", compared, PROMPTS * count);
    CHECK(compared > PROMPTS * count * 9 / 10);
}
