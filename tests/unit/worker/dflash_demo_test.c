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
    FEW =
        8, // prompts 8 to 10: 26 to 39 ids; to 12; 15 and 16: 385 and 493 ids, more than the window
    FEW_END = 11,
    SOME_END = 13,
    LONG = 15,
    LONG_END = 17,
    ANSWER = 48,
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

struct asked {
    const char *drafter;
    size_t first, end;     // of the prompts that are answered
    uint64_t quantize_min; // 0: none
    struct sample_params sampling;
    void (*fault)(void *self);
};

static double tokens_a_round(const struct asked *a, const char *what) {
    char dir[600], path[600];
    struct model_bed b;
    struct bed_drafted sum = {0};
    uint32_t ids[IDS_MAX];
    snprintf(dir, sizeof dir, "%s/tests/models/%s", test_source_dir(), a->drafter);
    snprintf(path, sizeof path, "%s/tests/golden/demo/prompts.json", test_source_dir());
    json_t *list = json_load_file(path, 0, NULL);
    CHECK(list != NULL);
    model_bed_open(&b,
                   &(struct model_bed_config){
                       .dir = demo_model(),
                       .drafter = dir,
                       .context = CONTEXT,
                       .slots = 1,
                       .stop_id = END_OF_TURN,
                       .sampling = a->sampling,
                       .change = a->fault,
                       .limits = {.quantize_min = a->quantize_min ? a->quantize_min : UINT64_MAX}});
    for (size_t i = a->first; i < a->end; i++) {
        uint32_t n = prompt_of(list, i, ids);
        struct bed_drafted d = model_bed_answer(&b, ids, n, ANSWER);
        sum.rounds += d.rounds;
        sum.tokens += d.tokens;
        sum.drafted += d.drafted;
        sum.kept += d.kept;
    }
    test_note("%s, %s: %.2f tokens a round (%u tokens, %u of %u drafts kept)", a->drafter, what,
              (double)sum.tokens / sum.rounds, sum.tokens, sum.kept, sum.drafted);
    CHECK_EQ(sum.tokens, sum.kept + sum.rounds);
    model_bed_close(&b);
    json_decref(list);
    return (double)sum.tokens / sum.rounds;
}

static void check_between(double figure, double least, double most) {
    if (figure < least || figure > most)
        test_fail(__FILE__, __LINE__, "wanted %.2f to %.2f tokens a round, found %.2f", least, most,
                  figure);
}

TEST(greedy_blocks_are_kept_as_often_as_the_reference_says) {
    struct asked a = {.drafter = "demo-dflash2", .first = FEW, .end = SOME_END};
    if (!demo_model()) return;
    check_between(tokens_a_round(&a, "greedy"), 6, 8);
    a.drafter = "demo-dflash";
    check_between(tokens_a_round(&a, "greedy"), 4, 10);
    a.drafter = "demo-dflash2-weak";
    a.end = FEW_END;
    check_between(tokens_a_round(&a, "greedy"), 1.2, 3.5);
}

TEST(blocks_are_kept_behind_prompts_that_are_longer_than_the_window) {
    struct asked a = {.drafter = "demo-dflash2", .first = LONG, .end = LONG_END};
    if (demo_model()) check_between(tokens_a_round(&a, "long prompts"), 4, 8);
}

TEST(four_bits_are_kept_as_often) {
    struct asked a = {.drafter = "demo-dflash2", .first = FEW, .end = SOME_END, .quantize_min = 1};
    if (demo_model()) check_between(tokens_a_round(&a, "4 bits"), 6, 8);
}

// The drafts are drawn with the noise of the target's own draws: without it few would be kept at this temperature.
TEST(sampled_blocks_are_kept_nearly_as_often_as_greedy_ones) {
    struct asked a = {.drafter = "demo-dflash2",
                      .first = FEW,
                      .end = SOME_END,
                      .sampling = {.temperature = 1, .top_p = 1, .seed = 7}};
    if (!demo_model()) return;
    check_between(tokens_a_round(&a, "temperature 1"), 5, 8);
    a.drafter = "demo-dflash";
    check_between(tokens_a_round(&a, "temperature 1"), 2.5, 10);
}

// Planted faults: what a drafter would be if one thing were read wrongly. They cost so much that the figures above would fall. (Taps a layer
// early and blocks that are causal cost next to nothing here.)
static struct dflash_config *config_of(void *self) {
    return &((struct dflash *)self)->cfg;
}

static void taps_swapped(void *self) {
    uint32_t *taps = config_of(self)->taps, tap = taps[0];
    taps[0] = taps[1];
    taps[1] = tap;
}

static void other_theta(void *self) {
    config_of(self)->rope_theta = 1e4;
}

static void narrow_window(void *self) {
    config_of(self)->window = 17;
}

static void other_mask(void *self) {
    config_of(self)->mask_id = 4000;
}

static void swapped_codebooks(void *self) {
    struct dflash *d = self;
    const struct safetensors_tensor *t = d->w.predecessor;
    d->w.predecessor = d->w.successor;
    d->w.successor = t;
}

TEST(drafters_that_are_read_wrongly_are_seen) {
    static const struct {
        const char *name;
        void (*fault)(void *self);
        size_t first, end;
        double most;
    } faults[] = {{"taps swapped", taps_swapped, FEW, FEW_END, 3},
                  {"theta 1e4", other_theta, FEW, FEW_END, 4},
                  {"another mask", other_mask, FEW, FEW_END, 3},
                  {"codebooks swapped", swapped_codebooks, FEW, SOME_END, 5.5},
                  {"a window of 17", narrow_window, LONG, LONG_END, 3.5}};
    if (!demo_model()) return;
    for (uint32_t i = 0; i < sizeof faults / sizeof *faults; i++) {
        struct asked a = {.drafter = "demo-dflash2",
                          .first = faults[i].first,
                          .end = faults[i].end,
                          .fault = faults[i].fault};
        check_between(tokens_a_round(&a, faults[i].name), 1, faults[i].most);
    }
}
