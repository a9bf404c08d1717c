/* The trained drafters beside the demo model: how many tokens a round their blocks give, verified as the engine would. The figures say
 * whether taps, window, positions, selector and quantising are right: each of these faults costs a third or more (docs/dflash.md has
 * the list). tests/models/accept.py has the reference's. */
#include "tests/lib/model_bed.h"
#include "tests/lib/test.h"
#include "tests/lib/tiny_model.h"
#include "worker/engine/dflash_impl.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>

enum {
    PROMPTS_FIRST = 8,
    PROMPTS_END = 20,
    ANSWER = 64,
    IDS_MAX = 1024,
    CONTEXT = 640,
    END_OF_TURN = 4002
};

static uint32_t prompt_of(const json_t *list, size_t i, uint32_t *ids) {
    const json_t *from = json_object_get(json_array_get(list, i), "ids");
    uint32_t n = (uint32_t)json_array_size(from);
    CHECK(n && n <= IDS_MAX);
    for (uint32_t k = 0; k < n; k++) ids[k] = (uint32_t)json_integer_value(json_array_get(from, k));
    return n;
}

struct figure {
    const char *drafter;
    uint64_t quantize_min;
    size_t end;         // of the prompts that are answered
    double least, most; // tokens a round
};

static void measure(const struct figure *f) {
    char dir[600], path[600];
    struct model_bed b;
    struct bed_drafted sum = {0};
    uint32_t ids[IDS_MAX];
    if (!demo_model()) return;
    snprintf(dir, sizeof dir, "%s/tests/models/%s", test_source_dir(), f->drafter);
    snprintf(path, sizeof path, "%s/tests/golden/demo/prompts.json", test_source_dir());
    json_t *list = json_load_file(path, 0, NULL);
    CHECK(list != NULL);
    model_bed_open(&b, &(struct model_bed_config){.dir = demo_model(),
                                                  .drafter = dir,
                                                  .context = CONTEXT,
                                                  .slots = 1,
                                                  .stop_id = END_OF_TURN,
                                                  .limits = {.quantize_min = f->quantize_min}});
    for (size_t i = PROMPTS_FIRST; i < f->end; i++) {
        uint32_t n = prompt_of(list, i, ids);
        struct bed_drafted d = model_bed_answer(&b, ids, n, ANSWER);
        sum.rounds += d.rounds;
        sum.tokens += d.tokens;
        sum.drafted += d.drafted;
        sum.kept += d.kept;
    }
    double figure = (double)sum.tokens / sum.rounds;
    test_note("%s, %s: %.2f tokens a round (%u tokens, %u of %u drafts kept)", f->drafter,
              f->quantize_min ? "4 bits" : "bf16", figure, sum.tokens, sum.kept, sum.drafted);
    CHECK(figure >= f->least && figure <= f->most);
    CHECK_EQ(sum.tokens, sum.kept + sum.rounds);
    model_bed_close(&b);
    json_decref(list);
}

TEST(dflash2_of_the_demo_drafts_as_the_reference_does) {
    measure(&(struct figure){"demo-dflash2", 0, 18, 6, 7.5});
}

TEST(dflash2_in_4_bits_drafts_as_well) {
    measure(&(struct figure){"demo-dflash2", 1, 15, 6, 8});
}

TEST(dflash_of_the_demo_drafts_as_the_reference_does) {
    measure(&(struct figure){"demo-dflash", 0, 18, 4, 6});
}

TEST(the_weak_drafter_is_weak) {
    measure(&(struct figure){"demo-dflash2-weak", 0, 15, 1.2, 3});
}
