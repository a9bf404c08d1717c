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

static const double TOLERANCE = 1e-5; // of the range of the logits; fp32 rounding gives under 1e-6
enum { PROMPTS = 20, GREEDY_MAX = 64 };

static struct {
    struct engine *eng;
    uint32_t vocab;
    json_t *prompts;
    struct golden_array logits, argmax, margin, greedy, greedy_margin;
    float *got[PROMPTS]; // of the engine
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
    for (int i = 0; i < PROMPTS; i++) free(demo.got[i]);
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

// Logits of every position of a prompt, [ids_count, vocab]; made once.
static const float *prompt_logits(const struct prompt *p, size_t idx) {
    if (demo.got[idx]) return demo.got[idx];
    struct err e = {0};
    uint32_t n = p->c.ids_count, *all = mem_calloc(n, sizeof *all);
    demo.got[idx] = mem_calloc((size_t)n * demo.vocab, sizeof(float));
    for (uint32_t i = 0; i < n; i++) all[i] = i;
    int st = engine_logits(demo.eng, p->ids, n, 0, all, n, demo.got[idx], &e);
    free(all);
    CHECK_OK(st, e);
    return demo.got[idx];
}

// The worst difference over the stored positions, in parts of the range.
static double worst_of(const struct prompt *p, const float *got) {
    double worst = 0;
    for (uint32_t r = 0; r < p->c.rows_count; r++)
        for (uint32_t i = 0; i < demo.vocab; i++) {
            double have = got[(size_t)p->positions[r] * demo.vocab + i];
            double d = fabs(have - p->c.want[(size_t)r * demo.vocab + i]) / p->c.range;
            if (!(d <= worst)) worst = d; // NaN too
        }
    return worst;
}

TEST(logits_are_those_of_transformers_at_every_stored_position) {
    double worst = 0;
    demo_open();
    for (size_t i = 0; i < PROMPTS; i++) {
        struct prompt p;
        prompt_read(&p, i);
        double d = worst_of(&p, prompt_logits(&p, i));
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

TEST(the_arg_max_is_that_of_transformers_wherever_its_margin_is_clear) {
    uint32_t clear = 0, positions = 0;
    demo_open();
    for (size_t i = 0; i < PROMPTS; i++) {
        struct prompt p;
        prompt_read(&p, i);
        const float *got = prompt_logits(&p, i);
        for (uint32_t t = 0; t < p.c.ids_count; t++) {
            double margin = ((const float *)demo.margin.data)[p.offset + t];
            if (margin <= 2 * TOLERANCE * p.c.range) continue;
            uint32_t have = arg_max(got + (size_t)t * demo.vocab);
            uint32_t want = ((const uint32_t *)demo.argmax.data)[p.offset + t];
            if (have != want)
                test_fail(__FILE__, __LINE__, "%s: position %u: found %u, wanted %u", p.name, t,
                          have, want);
            clear++;
        }
        positions += p.c.ids_count;
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
