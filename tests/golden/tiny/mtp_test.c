/* The drafts of MTP heads on the CPU against a forward in double precision (tests/tools/reference.py): every form of the
 * head, chains behind the first positions, across pages and at the end, greedy and with the noise of the draws. */
#include "common/err.h"
#include "kernels/sample/sample.h"
#include "tests/golden/golden.h"
#include "tests/lib/draft_bed.h"
#include "tests/lib/test.h"

#include <stdio.h>
#include <stdlib.h>

static const double CLEAR = 1e-4; // margins of the stored drafts; fp32 rounds the logits at 1e-5
enum { CHAIN = 5, MODELS = 5 };

static void check_case(struct draft_bed *b, const json_t *model, const json_t *c, uint32_t slot) {
    const char *name = json_string_value(json_object_get(model, "model"));
    const json_t *seed = json_object_get(c, "seed"), *drafts = json_object_get(c, "drafts");
    uint32_t count, pos = (uint32_t)json_integer_value(json_object_get(c, "pos"));
    uint32_t *ids = golden_ids(json_object_get(model, "ids"), &count);
    struct sample_params p = {.top_p = 1, .repetition = 1};
    if (!json_is_null(seed)) {
        p.temperature = json_real_value(json_object_get(model, "temperature"));
        p.seed = (uint64_t)json_integer_value(seed);
    }
    struct draft_ask ask = {
        .slot = slot, .anchor = ids[pos], .pos = pos, .want = CHAIN, .sampling = &p};
    draft_bed_fill(b, slot, ids, 0, pos, count, 13, NULL);
    b->drafter.propose(b->drafter.self, &ask, 1);
    CHECK_EQ(ask.ret_count, CHAIN);
    for (uint32_t i = 0; i < CHAIN; i++) {
        double margin = json_real_value(json_array_get(json_object_get(c, "margins"), i));
        uint32_t want = (uint32_t)json_integer_value(json_array_get(drafts, i));
        CHECK(margin > CLEAR);
        if (ask.ret_ids[i] != want)
            test_fail(__FILE__, __LINE__,
                      "%s, behind position %u, %s: draft %u: found %u, wanted %u", name, pos,
                      p.seed ? "sampled" : "greedy", i + 1, ask.ret_ids[i], want);
    }
    free(ids);
}

TEST(drafts_are_the_reference_s) {
    char path[600];
    snprintf(path, sizeof path, "%s/tests/golden/tiny/mtp.json", test_source_dir());
    json_t *all = golden_read_json(path);
    CHECK_EQ(json_array_size(all), MODELS);
    for (size_t k = 0; k < MODELS; k++) {
        const json_t *model = json_array_get(all, k), *cases = json_object_get(model, "cases");
        struct draft_bed b;
        snprintf(path, sizeof path, "%s/%s", getenv("RAILYARD_TINY_MODELS"),
                 json_string_value(json_object_get(model, "model")));
        draft_bed_open(&b, &(struct draft_bed_config){
                               .dir = path, .slots = 2, .context = 128, .open = bed_mtp});
        CHECK_EQ(json_array_size(cases), 10);
        for (size_t i = 0; i < json_array_size(cases); i++)
            check_case(&b, model, json_array_get(cases, i), i % 2);
        draft_bed_close(&b);
    }
    json_decref(all);
}
