/* The engine on the CPU against a forward in double precision, on the demo's EXL3 packs. README.md says how the answers were
 * made. */
#include "tests/golden/golden.h"
#include "tests/lib/test.h"
#include "worker/engine/engine.h"

#include <stdio.h>
#include <stdlib.h>

static const double TOLERANCE = 1e-5; // of the range of the logits; fp32 rounding gives under 1e-6
enum { GREEDY_MAX = 64, LEAST_CASES = 4 };

struct pack {
    struct engine *eng;
    json_t *cases;
    float *logits;
    size_t logits_count, used;
};

static void pack_open(struct pack *p, const char *name) {
    char path[600];
    size_t len;
    snprintf(path, sizeof path, "%s/tests/models/%s", test_source_dir(), name);
    p->eng = golden_engine(path);
    snprintf(path, sizeof path, "%s/tests/golden/packs/%s.json", test_source_dir(), name);
    p->cases = golden_read_json(path);
    CHECK(json_array_size(p->cases) >= LEAST_CASES);
    snprintf(path, sizeof path, "%s/tests/golden/packs/%s.f32", test_source_dir(), name);
    p->logits = golden_read_file(path, &len);
    p->logits_count = len / sizeof *p->logits;
    p->used = 0;
}

static void check_greedy(struct pack *p, const struct golden_case *c, const json_t *v) {
    uint32_t count, got[GREEDY_MAX], *want = golden_ids(json_object_get(v, "greedy_ids"), &count);
    CHECK(count > 0 && count <= GREEDY_MAX);
    // Past a draw without a clear margin either id is right, and what follows hangs on it.
    if (json_real_value(json_object_get(v, "greedy_margin")) > 2 * TOLERANCE * c->range) {
        golden_greedy(p->eng, c, count, got);
        CHECK_MEM(got, want, count * sizeof *got);
    } else
        test_note("%s: a greedy draw is not clear, ids not compared",
                  json_string_value(json_object_get(v, "name")));
    free(want);
}

static void check_pack(const char *name) {
    struct pack p;
    double worst = 0;
    pack_open(&p, name);
    uint32_t vocab = engine_info(p.eng)->vocab_size;
    for (size_t i = 0; i < json_array_size(p.cases); i++) {
        const json_t *v = json_array_get(p.cases, i);
        struct golden_case c = {.want = p.logits + p.used};
        uint32_t *ids = golden_ids(json_object_get(v, "ids"), &c.ids_count);
        uint32_t *rows = golden_ids(json_object_get(v, "rows"), &c.rows_count);
        c.ids = ids, c.rows = rows, c.range = json_real_value(json_object_get(v, "range"));
        p.used += (size_t)c.rows_count * vocab;
        CHECK(c.range > 1 && c.rows_count > 0 && p.used <= p.logits_count);
        double d = golden_worst(p.eng, &c, 0);
        if (!(d <= TOLERANCE))
            test_fail(__FILE__, __LINE__, "%s, %u ids: off by %g of the range, wanted %g", name,
                      c.ids_count, d, TOLERANCE);
        if (d > worst) worst = d;
        check_greedy(&p, &c, v);
        free(ids);
        free(rows);
    }
    CHECK_EQ(p.used, p.logits_count);
    test_note("%s: worst %.2g of the range", name, worst);
    engine_free(p.eng);
    json_decref(p.cases);
    free(p.logits);
}

TEST(the_dense_pack_s_logits_and_greedy_ids_are_the_reference_s) {
    check_pack("demo-exl3");
}

TEST(the_pack_with_experts_s_logits_and_greedy_ids_are_the_reference_s) {
    check_pack("demo-moe-exl3");
}
