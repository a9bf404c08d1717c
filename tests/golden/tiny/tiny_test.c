/* The engine on the CPU against Hugging Face transformers in fp32, and with EXL3 a forward in double precision: random models
 * of every layout, prompts of 1, 37 and 200 ids. README.md says how the answers were made. */
#include "tests/golden/golden.h"
#include "tests/lib/test.h"
#include "worker/engine/engine.h"

#include <stdio.h>
#include <stdlib.h>

static const double TOLERANCE = 1e-5; // of the range of the logits; fp32 rounding gives about 2e-6
static const char *const models[] = {"dense",          "multimodal", "sharp",      "yarn",    "moe",
                                     "moe-multimodal", "exl3",       "exl3-sharp", "exl3-moe"};
enum { MODELS = sizeof models / sizeof models[0], VOCAB = 256, GREEDY_MAX = 64 };

struct model {
    struct engine *eng;
    json_t *cases;
    float *logits;
    size_t logits_count, used; // values; those of the cases already visited
};

static void model_open(struct model *m, const char *name) {
    char path[600];
    size_t len;
    const char *made = getenv("RAILYARD_TINY_MODELS");
    CHECK(made != NULL);
    snprintf(path, sizeof path, "%s/%s", made, name);
    m->eng = golden_engine(path);
    CHECK_EQ(engine_info(m->eng)->vocab_size, VOCAB);
    snprintf(path, sizeof path, "%s/tests/golden/tiny/%s.json", test_source_dir(), name);
    m->cases = golden_read_json(path);
    snprintf(path, sizeof path, "%s/tests/golden/tiny/%s.f32", test_source_dir(), name);
    m->logits = golden_read_file(path, &len);
    m->logits_count = len / sizeof *m->logits;
    m->used = 0;
}

static void model_close(struct model *m) {
    engine_free(m->eng);
    json_decref(m->cases);
    free(m->logits);
}

struct stored {
    struct golden_case c;
    uint32_t *ids, *rows, *greedy, greedy_count;
};

// The cases must be visited in order: their logits follow one another in the file.
static void stored_read(struct stored *s, struct model *m, size_t idx) {
    const json_t *v = json_array_get(m->cases, idx);
    s->ids = golden_ids(json_object_get(v, "ids"), &s->c.ids_count);
    s->rows = golden_ids(json_object_get(v, "rows"), &s->c.rows_count);
    s->greedy = golden_ids(json_object_get(v, "greedy_ids"), &s->greedy_count);
    s->c.ids = s->ids, s->c.rows = s->rows;
    s->c.range = json_real_value(json_object_get(v, "range"));
    s->c.want = m->logits + m->used;
    m->used += (size_t)s->c.rows_count * VOCAB;
    CHECK(s->c.range > 1 && s->c.rows_count > 0 && m->used <= m->logits_count);
}

static void stored_free(struct stored *s) {
    free(s->ids);
    free(s->rows);
    free(s->greedy);
}

TEST(logits_are_the_reference_s_at_every_stored_position) {
    for (int k = 0; k < MODELS; k++) {
        struct model m;
        double worst = 0;
        model_open(&m, models[k]);
        CHECK_EQ(json_array_size(m.cases), 3);
        for (size_t i = 0; i < 3; i++)
            for (uint32_t chunk = 0; chunk < 2; chunk++) {
                struct stored s;
                size_t start = m.used;
                stored_read(&s, &m, i);
                double d = golden_worst(m.eng, &s.c, chunk ? 13 : 0);
                if (!(d <= TOLERANCE))
                    test_fail(__FILE__, __LINE__, "%s, %u ids: off by %g of the range, wanted %g",
                              models[k], s.c.ids_count, d, TOLERANCE);
                if (d > worst) worst = d;
                if (!chunk) m.used = start;
                stored_free(&s);
            }
        CHECK_EQ(m.used, m.logits_count);
        test_note("%s: worst %.2g of the range", models[k], worst);
        model_close(&m);
    }
}

/* The seeds were chosen so that every draw is decided by more than forty times the tolerance. */
TEST(greedy_ids_are_the_reference_s) {
    for (int k = 0; k < MODELS; k++) {
        struct model m;
        model_open(&m, models[k]);
        for (size_t i = 0; i < json_array_size(m.cases); i++) {
            struct stored s;
            uint32_t got[GREEDY_MAX];
            stored_read(&s, &m, i);
            CHECK(s.greedy_count > 0 && s.greedy_count <= GREEDY_MAX);
            golden_greedy(m.eng, &s.c, s.greedy_count, got);
            for (uint32_t t = 0; t < s.greedy_count; t++)
                if (got[t] != s.greedy[t])
                    test_fail(__FILE__, __LINE__, "%s, %u ids: id %u: found %u, wanted %u",
                              models[k], s.c.ids_count, t, got[t], s.greedy[t]);
            stored_free(&s);
        }
        model_close(&m);
    }
}

/* A comparison that cannot fail shows nothing: one id of the prompt changed, or rows off by one, must be far outside. */
TEST(the_comparison_sees_a_wrong_id_and_a_wrong_row) {
    struct model m;
    struct stored one, s;
    model_open(&m, "sharp");
    stored_read(&one, &m, 0);
    stored_read(&s, &m, 1);
    s.ids[0] ^= 1;
    CHECK(golden_worst(m.eng, &s.c, 0) > 100 * TOLERANCE);
    s.ids[0] ^= 1;
    CHECK(golden_worst(m.eng, &s.c, 0) <= TOLERANCE);
    s.c.rows_count--;
    s.c.want += VOCAB;
    CHECK(golden_worst(m.eng, &s.c, 0) > 100 * TOLERANCE);
    stored_free(&one);
    stored_free(&s);
    model_close(&m);
}
