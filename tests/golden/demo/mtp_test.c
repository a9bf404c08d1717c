/* The MTP heads of the demo models: the dense one against model.py in fp32 (README.md), and tokens a round of a chain of three
 * for all of them. A norm of the wrong form, the halves of fc swapped, the hidden row before the final norm or a position
 * off by one cost tokens, and turn this red (docs/notes/mtp.md has what each costs). */
#include "common/err.h"
#include "common/mem.h"
#include "common/num.h"
#include "kernels/sample/sample.h"
#include "tests/golden/golden.h"
#include "tests/lib/draft_bed.h"
#include "tests/lib/draft_doubles.h"
#include "tests/lib/engine_drive.h"
#include "tests/lib/test.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#if defined(__has_feature) // clang
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define __SANITIZE_ADDRESS__ 1
#endif
#endif
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { SLOW = 1 };
#else
enum { SLOW = 0 };
#endif

static const double TOLERANCE = 1e-5; // of the range of the logits
// Of at most 4. docs/notes/demo_family.md has 3.69 to 3.86 over other prompts of the same kinds.
static const double TOKENS_A_ROUND = 3.7;
enum { PROMPTS = 20, CONTEXT = 1024, CHUNK = 16, CHAIN = 3, REPLY = SLOW ? 12 : 60 };

static json_t *read_prompts(void) {
    char path[600];
    snprintf(path, sizeof path, "%s/tests/golden/demo/prompts.json", test_source_dir());
    json_t *v = golden_read_json(path);
    CHECK_EQ(json_array_size(v), PROMPTS);
    return v;
}

static void open_model(struct draft_bed *b, const char *name) {
    char path[600];
    snprintf(path, sizeof path, "%s/tests/models/%s", test_source_dir(), name);
    draft_bed_open(b, &(struct draft_bed_config){
                          .dir = path, .slots = 1, .context = CONTEXT, .open = bed_mtp});
}

static struct golden_array read_array(const char *name) {
    char path[600];
    struct golden_array a;
    snprintf(path, sizeof path, "%s/tests/golden/demo/%s.npy", test_source_dir(), name);
    golden_read_npy(&a, path);
    return a;
}

struct stored {
    struct golden_array argmax, margin, logits, greedy;
    uint32_t compared, positions;
    double worst;
};

// The row at position pos - 1 of the head, which has taken ids[pos].
static void compare_row(struct draft_bed *b, struct stored *s, const json_t *v, const uint32_t *ids,
                        uint32_t pos, double range) {
    size_t at = (size_t)json_integer_value(json_object_get(v, "offset")) + pos - 1;
    uint32_t got, want = ((const uint32_t *)s->argmax.data)[at];
    s->positions++;
    draft_bed_propose(b, 0, ids, pos, 1, &got);
    if (((const float *)s->margin.data)[at] <= 2 * TOLERANCE * range) return;
    if (got != want)
        test_fail(__FILE__, __LINE__, "%s: row %u: found %u, wanted %u",
                  json_string_value(json_object_get(v, "name")), pos - 1, got, want);
    s->compared++;
}

static void compare_prompt(struct draft_bed *b, struct stored *s, const json_t *v, size_t idx) {
    uint32_t count, *prompt = golden_ids(json_object_get(v, "ids"), &count);
    uint32_t *ids = mem_alloc((count + 1) * sizeof *ids);
    const float *want = (const float *)s->logits.data + idx * b->vocab;
    float low = want[0], high = want[0], *got = mem_alloc(b->vocab * sizeof *got);
    memcpy(ids, prompt, count * sizeof *ids);
    ids[count] = ((const uint32_t *)s->greedy.data)[idx * s->greedy.columns];
    for (uint32_t i = 0; i < b->vocab; i++) low = fminf(low, want[i]), high = fmaxf(high, want[i]);
    double range = (double)high - low;
    for (uint32_t pos = 0, n; pos < count; pos += n) {
        n = min_u32(CHUNK, count - pos);
        draft_bed_fill(b, 0, ids, pos, pos + n, pos + n, CHUNK, NULL);
        compare_row(b, s, v, ids, pos + n, range);
    }
    b->ops.read(b->ops.ctx, got, b->model.logits, b->vocab * sizeof *got);
    for (uint32_t i = 0; i < b->vocab; i++) {
        double d = fabs((double)got[i] - want[i]) / range;
        if (!(d <= s->worst)) s->worst = d; // NaN too
    }
    free(got);
    free(ids);
    free(prompt);
}

TEST(the_dense_head_s_drafts_and_logits_are_those_of_model_py) {
    struct draft_bed b;
    struct stored s = {.argmax = read_array("mtp_argmax"),
                       .margin = read_array("mtp_margin"),
                       .logits = read_array("mtp_logits"),
                       .greedy = read_array("greedy")};
    json_t *prompts = read_prompts();
    open_model(&b, "demo");
    for (size_t i = 0; i < PROMPTS; i++)
        if (i < (SLOW ? 8 : 16)) compare_prompt(&b, &s, json_array_get(prompts, i), i);
    draft_bed_close(&b);
    test_note("%u of %u rows compared; logits: worst %.2g of the range", s.compared, s.positions,
              s.worst);
    CHECK(s.compared > s.positions * 9 / 10);
    CHECK(s.worst <= TOLERANCE);
    json_decref(prompts);
    free(s.argmax.file);
    free(s.margin.file);
    free(s.logits.file);
    free(s.greedy.file);
}

struct run_of { // a reply in rounds of drafts
    struct draft_bed *b;
    struct sample *sample;
    struct sample_params p;
    uint32_t ids[CONTEXT], count, prompt;
    float *logits; // [CHAIN + 1, V]
    uint32_t rounds, drafted, accepted;
};

static bool ends(uint32_t id) {
    return id == 4000 || id == 4002; // generation_config.json
}

static bool over(const struct run_of *r) {
    return r->count - r->prompt >= REPLY || ends(r->ids[r->count - 1]);
}

static uint32_t draw(struct run_of *r, uint32_t row) {
    return sample_draw(r->sample, r->logits + (size_t)row * r->b->vocab, &r->p, NULL, NULL,
                       r->count);
}

// The last id known has not been fed. Keeps the drafts that are the draws, and the draw behind them.
static void run_round(struct run_of *r) {
    uint32_t pos = r->count - 1, row = 0;
    struct draft_ask ask = {
        .slot = 0, .anchor = r->ids[pos], .pos = pos, .want = CHAIN, .sampling = &r->p};
    r->b->drafter.propose(r->b->drafter.self, &ask, 1);
    memcpy(r->ids + r->count, ask.ret_ids, ask.ret_count * sizeof *r->ids);
    struct bed_feed f = {.pos = pos, .count = ask.ret_count + 1, .ids = r->ids, .ret = r->logits};
    draft_bed_forward(r->b, &f, 1);
    for (;;) {
        uint32_t drafted = r->ids[r->count], id = draw(r, row++);
        r->ids[r->count++] = id;
        if (row > ask.ret_count || id != drafted || over(r)) break;
    }
    f.keep = row;
    f.known = r->count;
    draft_bed_keep(r->b, &f, 1);
    r->rounds++;
    r->drafted += ask.ret_count;
    r->accepted += row - 1;
}

static void run_reply(struct run_of *r, const json_t *v) {
    uint32_t n, *prompt = golden_ids(json_object_get(v, "ids"), &n);
    memcpy(r->ids, prompt, n * sizeof *prompt);
    free(prompt);
    r->count = r->prompt = n;
    draft_bed_fill(r->b, 0, r->ids, 0, n, n, CHUNK, r->logits);
    r->ids[r->count++] = draw(r, 0);
    while (!over(r)) run_round(r);
}

// Answers at one temperature. The first id of each comes with the prompt.
static void run_all(const char *name, double temperature) {
    struct draft_bed b;
    struct run_of r = {.b = &b, .p = {.temperature = temperature, .top_p = 1, .repetition = 1}};
    json_t *prompts = read_prompts();
    uint32_t tokens = 0;
    open_model(&b, name);
    r.logits = mem_alloc((CHUNK + 1) * (size_t)b.vocab * sizeof *r.logits);
    r.sample = sample_new(b.vocab);
    for (size_t i = 8; i < 16;
         i++) { // those that end where an answer begins; the longer ones take their time
        if (SLOW && i > 11) break;
        r.p.seed = i;
        run_reply(&r, json_array_get(prompts, i));
        tokens += r.count - r.prompt - 1;
    }
    double a_round = (double)tokens / r.rounds;
    test_note("%s, temperature %g: %.2f tokens a round (%u in %u), %u of %u drafts kept", name,
              temperature, a_round, tokens, r.rounds, r.accepted, r.drafted);
    CHECK(SLOW || a_round >= TOKENS_A_ROUND);
    CHECK(r.accepted * 2 > r.drafted);
    sample_free(r.sample);
    free(r.logits);
    json_decref(prompts);
    draft_bed_close(&b);
}

TEST(chains_of_three_land_as_often_as_they_were_trained_to) {
    static const char *const names[] = {"demo", "demo-exl3", "demo-moe-exl3"};
    for (int i = 0; i < 3; i++) run_all(names[i], 0);
    run_all("demo", 1);
}

enum { CROWD = 6, TOKENS = SLOW ? 16 : 48, CROWD_IDS = 64 };

struct crowd {
    uint32_t prompts[CROWD][CROWD_IDS];
    struct engine_request requests[CROWD];
    struct reply plain[CROWD], drafted[CROWD];
};

// Greedy, sampled, and so warm that most drafts are wrong.
static void make_requests(struct crowd *c) {
    json_t *prompts = read_prompts();
    for (uint32_t i = 0; i < CROWD; i++) {
        struct engine_request *r = &c->requests[i];
        uint32_t n, *ids = golden_ids(json_object_get(json_array_get(prompts, 8 + i), "ids"), &n);
        CHECK(n <= CROWD_IDS);
        *r = drive_request(c->prompts[i], n, 0, 1, TOKENS);
        memcpy(c->prompts[i], ids, n * sizeof *ids);
        if (i % 3 == 1) drive_sampled(r, 70 + i);
        if (i % 3 == 2)
            r->sampling = (struct sample_params){
                .temperature = 1.6, .top_p = 1, .repetition = 1, .seed = 70 + i};
        r->tag = i;
        free(ids);
    }
    json_decref(prompts);
}

static void check_model(const char *name, struct crowd *c) {
    char path[600];
    uint64_t drafted = 0, accepted = 0;
    snprintf(path, sizeof path, "%s/tests/models/%s", test_source_dir(), name);
    struct engine_config config = {.model_dir = path,
                                   .threads = 2,
                                   .context_max = 256,
                                   .streams_max = 4,
                                   .drafter = "auto",
                                   .draft_kinds = "mtp",
                                   .costs = double_free_costs(path),
                                   .spoil_dead = true};
    struct engine *eng = drive_open(&config);
    struct drive d = {.eng = eng, .replies = c->drafted, .replies_count = CROWD};
    CHECK_HAS(engine_info(eng)->draft_rule, "mtp");
    for (uint32_t i = 0; i < CROWD; i++) drive_alone(eng, &c->requests[i], &c->plain[i]);
    for (uint32_t i = 0; i < CROWD; i++) { // the fourth leaves its slot to the fifth
        struct engine_request r = c->requests[i];
        r.draft = true;
        if (i == 4) drive_all(&d);
        drive_submit(&d, &r);
    }
    drive_all(&d);
    for (uint32_t i = 0; i < CROWD; i++) {
        check_same_reply(&c->drafted[i], &c->plain[i]);
        drafted += c->drafted[i].drafted[ENGINE_DRAFT_MTP];
        accepted += c->drafted[i].accepted[ENGINE_DRAFT_MTP];
        CHECK_EQ_U64(c->plain[i].drafted[ENGINE_DRAFT_MTP], 0);
        if (i % 3 == 0) CHECK(c->drafted[i].rounds * 2 < c->plain[i].rounds);
    }
    test_note("%s: accepted %llu, rejected %llu, unequal 0", name, (unsigned long long)accepted,
              (unsigned long long)(drafted - accepted));
    const uint64_t least = SLOW ? 15 : 40;
    CHECK(accepted > least && drafted - accepted > least);
    engine_free(eng);
    unlink(config.costs);
}

TEST(replies_with_the_head_s_drafts_are_those_without) {
    static const char *const models[] = {"demo", "demo-exl3", "demo-moe-exl3"};
    struct crowd *c = mem_calloc(1, sizeof *c);
    make_requests(c);
    for (int i = 0; i < 3; i++) check_model(models[i], c);
    free(c);
}
