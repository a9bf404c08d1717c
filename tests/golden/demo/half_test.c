/* The engine in the CUDA kernels' arithmetic, by their twins, against transformers in fp32 on the trained demo model: what it loses
 * by rounding to 16 bits is at most half as much again as transformers in bf16 loses (bf16.json). On a GPU the bits are the
 * same (tests/gpu/). The short prompts only: a twin takes its time. */
#include "common/err.h"
#include "common/mem.h"
#include "kernels/ops.h"
#include "tests/golden/golden.h"
#include "tests/lib/ops_ref.h"
#include "tests/lib/test.h"
#include "worker/engine/engine.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { PROMPTS = 20, IDS_MAX = 130 };
static const double FACTOR = 1.5;

struct loss { // against fp32, in parts of the prompt's range
    double worst, squares;
    uint64_t count;
};

// The CPU's table with every operation's twin in it; memory is the host's in both.
static void use_twins(void *arg, struct ops *o) {
    ops_ref_put(o);
}

static struct engine *open_engine(const char *kv) {
    char path[600];
    struct engine *eng = NULL;
    struct err e = {0};
    snprintf(path, sizeof path, "%s/tests/models/demo", test_source_dir());
    struct engine_config config = {.model_dir = path,
                                   .backend = "cpu",
                                   .on_ops = use_twins,
                                   .context_max = 1024,
                                   .streams_max = 2,
                                   .threads = 1,
                                   .kv = kv};
    CHECK_OK(engine_new(&eng, &config, &e), e);
    struct engine_range all = {0, engine_info(eng)->vocab_size};
    CHECK_OK(engine_set_vocab(eng, &all, 1, NULL, 0, &e), e);
    return eng;
}

static size_t number(const json_t *v, const char *key) {
    return (size_t)json_integer_value(json_object_get(v, key));
}

static void add_prompt(struct engine *eng, const json_t *v, const float *all, struct loss *ret) {
    struct err e = {0};
    uint32_t ids_count, rows_count, vocab = engine_info(eng)->vocab_size;
    uint32_t *ids = golden_ids(json_object_get(v, "ids"), &ids_count);
    uint32_t *rows = golden_ids(json_object_get(v, "positions"), &rows_count);
    const float *want = all + number(v, "first_row") * vocab;
    uint64_t count = (uint64_t)rows_count * vocab;
    float *got = mem_calloc(count, sizeof *got), low = want[0], high = want[0];
    int st = engine_logits(eng, ids, ids_count, 0, rows, rows_count, got, &e);
    for (uint64_t i = 0; i < count; i++) {
        low = fminf(low, want[i]);
        high = fmaxf(high, want[i]);
    }
    for (uint64_t i = 0; i < count && !st; i++) {
        double d = fabs((double)got[i] - want[i]) / ((double)high - low);
        if (!(d <= ret->worst)) ret->worst = d; // NaN too
        ret->squares += d * d;
    }
    ret->count += count;
    free(ids);
    free(rows);
    free(got);
    CHECK_OK(st, e);
}

static void check_loss(const char *kv) {
    char path[600];
    struct golden_array logits;
    struct loss ours = {0};
    double worst = 0, squares = 0;
    uint32_t used = 0;
    snprintf(path, sizeof path, "%s/tests/golden/demo/prompts.json", test_source_dir());
    json_t *prompts = golden_read_json(path);
    snprintf(path, sizeof path, "%s/tests/golden/demo/bf16.json", test_source_dir());
    json_t *bf16 = golden_read_json(path);
    snprintf(path, sizeof path, "%s/tests/golden/demo/logits.npy", test_source_dir());
    golden_read_npy(&logits, path);
    struct engine *eng = open_engine(kv);
    for (size_t i = 0; i < PROMPTS; i++) {
        const json_t *v = json_array_get(prompts, i), *b = json_array_get(bf16, i);
        if (number(v, "length") > IDS_MAX) continue;
        add_prompt(eng, v, logits.data, &ours);
        worst = fmax(worst, json_real_value(json_object_get(b, "worst")));
        squares += pow(json_real_value(json_object_get(b, "rms")), 2);
        used++;
    }
    engine_free(eng);
    free(logits.file);
    json_decref(prompts);
    json_decref(bf16);
    double rms = sqrt(ours.squares / (double)ours.count), theirs = sqrt(squares / used);
    test_note(
        "kv %s, %u prompts: worst %.3g of the range, rms %.3g; transformers in bf16: %.3g, %.3g",
        kv, used, ours.worst, rms, worst, theirs);
    CHECK(ours.worst <= FACTOR * worst);
    CHECK(rms <= FACTOR * theirs);
}

TEST(what_sixteen_bits_cost_is_what_they_cost_transformers) {
    check_loss("bf16");
}
