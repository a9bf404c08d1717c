/* The demo family with its own drafters through the engine: every drafted reply is the undrafted one, alone and among eight, greedy and
 * sampled, whatever the chunks of its prompt; and as many drafts are made and kept however it was run. The counts say how
 * often drafts came true and how often a round was wound back. Planted faults turn it red. */
#include "common/err.h"
#include "common/mem.h"
#include "tests/golden/golden.h"
#include "tests/lib/engine_drive.h"
#include "tests/lib/test.h"
#include "worker/engine/costs.h"
#include "worker/engine/engine_impl.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SPANS "0-2687,3968-4095" // the drafters' own: 32% of the ids lie outside
enum {
    CROWD = 8,
    PROMPT_MAX = 512,
    TOKENS = 120,
    ENOUGH = 1000, // kept, and wound back, of each kind
    CONTEXT = 704,
    END_OF_TURN = 4002,
    END_OF_THOUGHT = 4025,
    OUTSIDE = 3100, // of the spans
};

struct crowd {
    char dir[600];
    char costs[600];
    uint32_t prompts[CROWD][PROMPT_MAX], stops[2], bias_ids[2];
    float bias[2];
    struct engine_thought thought;
    struct engine_request requests[CROWD];
    struct reply plain[CROWD];
};

static void demo_path(char ret[600], const char *name) {
    snprintf(ret, 600, "%s/tests/models/%s", test_source_dir(), name);
}

static struct engine_config config_of(const struct crowd *c, uint32_t chunk) {
    return (struct engine_config){.model_dir = c->dir,
                                  .threads = 2,
                                  .chunk_tokens = chunk,
                                  .context_max = CONTEXT,
                                  .streams_max = CROWD};
}

// Rows and drafts at little cost: blocks stay long where most of them are wrong.
static void write_costs(struct crowd *c, struct engine *eng) {
    struct costs costs = {0};
    char shape[COSTS_SHAPE_BYTES];
    struct err e = {0};
    snprintf(c->costs, sizeof c->costs, "%s/costs.json", test_temp_dir());
    for (uint32_t i = 1; i <= ENGINE_WINDOW_ROWS_MAX; i++) costs.rows_ms[i] = 1 + 0.04 * (i - 1);
    for (uint32_t i = 1; i < ENGINE_WINDOW_ROWS_MAX; i++)
        for (uint32_t k = 0; k < ENGINE_DRAFT_KINDS; k++) costs.draft_ms[k][i] = 0.0001;
    costs_shape(shape, engine_info(eng));
    CHECK_OK(
        costs_write(&costs, c->costs, engine_info(eng)->device, shape, ENGINE_WINDOW_ROWS_MAX, &e),
        e);
}

enum mood {
    MIXED, // each request has something that a draft must not disturb
    CALM,  // answers to their end, as the drafters were trained on
    NARROW, // two ids above all others: text in which copies are found, and in which most drafts are wrong
};

static void make_mixed(struct crowd *c, uint32_t i) {
    struct engine_request *r = &c->requests[i];
    struct sample_params *p = &r->sampling;
    if (i % 2) drive_sampled(r, 500 + i); // with all penalties
    switch (i) {
    case 1: // wants an id that no drafter gives, over and over
        p->bias_ids = c->bias_ids;
        p->bias = c->bias;
        p->bias_count = 2;
        break;
    case 2: r->top_logprobs = 3; break;
    case 3: // as the target would draw by itself
        *p = (struct sample_params){.temperature = 1, .top_p = 1, .repetition = 1, .seed = 71};
        break;
    case 4:
        r->stop_ids = c->stops;
        r->stop_count = 2;
        r->min_tokens = TOKENS / 2;
        break;
    case 5:
        c->thought = (struct engine_thought){
            .budget = TOKENS / 3, .close_id = END_OF_THOUGHT, .call_id = -1};
        r->thought = &c->thought;
        break;
    case 7: p->temperature = 1.5; break;
    default: break;
    }
}

static void make_calm(struct crowd *c, uint32_t i) {
    struct engine_request *r = &c->requests[i];
    c->stops[0] = END_OF_TURN;
    r->stop_ids = c->stops;
    r->stop_count = 1;
    if (i % 2)
        r->sampling = (struct sample_params){
            .temperature = 0.5, .top_p = 0.95, .repetition = 1, .seed = 90 + i};
}

static void make_narrow(struct crowd *c, uint32_t i) {
    struct sample_params *p = &c->requests[i].sampling;
    if (i % 4) *p = (struct sample_params){.temperature = 1, .seed = 30 + i};
    p->top_p = p->repetition = 1;
    p->bias_ids = c->bias_ids;
    p->bias = c->bias;
    p->bias_count = 2;
    c->bias[0] = c->bias[1] = 90;
}

// Prompts of the goldens, one of them of many chunks; of the mixed ones the last is ids that mean nothing.
static void make_requests(struct crowd *c, enum mood mood) {
    static const size_t prompts[CROWD] = {8, 9, 10, 11, 13, 14, 15, 12};
    char path[600];
    demo_path(path, "../golden/demo/prompts.json");
    json_t *list = golden_read_json(path);
    c->bias_ids[0] = OUTSIDE;
    c->bias[0] = 6;
    c->bias_ids[1] = 40;
    c->bias[1] = 3;
    for (uint32_t i = 0; i < CROWD; i++) {
        uint32_t n, *ids = golden_ids(json_object_get(json_array_get(list, prompts[i]), "ids"), &n);
        bool random = mood == MIXED && i == CROWD - 1;
        if (random) n = 50;
        CHECK(n <= PROMPT_MAX);
        c->requests[i] = drive_request(c->prompts[i], n, i + 1, 2688, TOKENS);
        if (!random) memcpy(c->prompts[i], ids, n * sizeof *ids);
        c->requests[i].tag = i;
        (mood == MIXED ? make_mixed : mood == CALM ? make_calm : make_narrow)(c, i);
        free(ids);
    }
    json_decref(list);
}

static struct crowd *make_crowd(const char *model, enum mood mood) {
    struct crowd *c = mem_calloc(1, sizeof *c);
    uint32_t outside = 0;
    demo_path(c->dir, model);
    struct engine_config config = config_of(c, 64);
    struct engine *eng = drive_open(&config);
    make_requests(c, mood);
    write_costs(c, eng);
    if (mood == MIXED) { // stop ids that it really meets, one too early
        drive_alone(eng, &c->requests[4], &c->plain[4]);
        c->stops[0] = c->plain[4].ids[3];
        c->stops[1] = c->plain[4].ids[TOKENS * 3 / 4];
    }
    for (uint32_t i = 0; i < CROWD; i++) {
        drive_alone(eng, &c->requests[i], &c->plain[i]);
        c->requests[i].draft = true;
        for (uint32_t k = 0; k < c->plain[i].count; k++)
            outside += c->plain[i].ids[k] >= 2688 && c->plain[i].ids[k] < 3968;
    }
    CHECK(outside > 0 || mood == CALM); // ids that end a block
    engine_free(eng);
    return c;
}

struct source {
    const char *drafter; // "auto" or a folder of the family
    const char *kinds, *vocab;
    enum engine_draft kind; // "all": beside copies
};

struct tally {
    uint64_t drafted, accepted;
    uint64_t copied, copied_kept; // beside blocks
    uint32_t branches;            // rounds of a stream that had one
    uint32_t unequal;             // replies that are not the plain ones
    uint32_t
        otherwise; // replies that took other rounds, or drafted or kept otherwise, than the first time
    struct reply first[CROWD];
};

static struct engine *open_source(const struct crowd *c, const struct source *s, uint32_t chunk,
                                  uint32_t fault) {
    char dir[600];
    struct engine_config config = config_of(c, chunk);
    demo_path(dir, s->drafter);
    config.drafter = strcmp(s->drafter, "auto") ? dir : "auto";
    config.draft_kinds = s->kinds;
    config.draft_vocab = s->vocab;
    config.costs = c->costs;
    config.fault = fault;
    return drive_open(&config);
}

static bool same_reply(const struct reply *a, const struct reply *b) {
    return a->ended && a->count == b->count && a->finish == b->finish && a->stop_id == b->stop_id &&
           a->hash == b->hash && a->logprobs_hash == b->logprobs_hash &&
           !memcmp(a->ids, b->ids, b->count * sizeof *b->ids);
}

static void count_reply(struct tally *t, const struct crowd *c, uint32_t i, const struct reply *r,
                        const struct source *s) {
    enum engine_draft kind = s->kind;
    bool both = !strcmp(s->kinds, "all");
    for (uint32_t k = 0; k < ENGINE_DRAFT_KINDS; k++)
        if (k != kind && !(both && k == ENGINE_DRAFT_COPY)) CHECK_EQ_U64(r->drafted[k], 0);
    t->copied += both ? r->drafted[ENGINE_DRAFT_COPY] : 0;
    t->copied_kept += both ? r->accepted[ENGINE_DRAFT_COPY] : 0;
    t->drafted += r->drafted[kind];
    t->accepted += r->accepted[kind];
    t->unequal += !same_reply(r, &c->plain[i]);
    if (!t->first[i].ended) t->first[i] = *r;
    t->otherwise += r->token_rounds != t->first[i].token_rounds ||
                    memcmp(r->drafted, t->first[i].drafted, sizeof r->drafted) ||
                    memcmp(r->accepted, t->first[i].accepted, sizeof r->accepted);
}

static void run_alone(struct tally *t, const struct crowd *c, const struct source *s,
                      uint32_t chunk) {
    static struct reply got;
    struct engine *eng = open_source(c, s, chunk, 0);
    for (uint32_t i = 0; i < CROWD; i++) {
        drive_alone(eng, &c->requests[i], &got);
        count_reply(t, c, i, &got, s);
    }
    engine_free(eng);
}

static void run_together(struct tally *t, const struct crowd *c, const struct source *s,
                         uint32_t chunk, uint32_t fault) {
    static struct reply got[CROWD];
    struct engine *eng = open_source(c, s, chunk, fault);
    struct drive d = {.eng = eng, .replies = got, .replies_count = CROWD};
    for (uint32_t i = 0; i < CROWD; i++) {
        drive_submit(&d, &c->requests[i]);
        drive_step(&d);
    }
    while (!engine_idle(eng)) {
        drive_step(&d);
        for (uint32_t i = 1; i < eng->round.runs_count; i++)
            t->branches += eng->round.runs[i].slot == eng->round.runs[i - 1].slot;
    }
    for (uint32_t i = 0; i < CROWD; i++) count_reply(t, c, i, &got[i], s);
    engine_free(eng);
}

static void check_source(const struct crowd *c, const char *model, const struct source *s,
                         struct tally *sum) {
    static struct tally t;
    memset(&t, 0, sizeof t);
    run_alone(&t, c, s, 64);
    run_together(&t, c, s, 17, 0);
    test_note("%s, %s of %s: accepted %llu, rejected %llu, unequal %u, drafted otherwise %u", model,
              costs_kind(s->kind), s->drafter, (unsigned long long)t.accepted,
              (unsigned long long)(t.drafted - t.accepted), t.unequal, t.otherwise);
    CHECK_EQ(t.unequal, 0);
    CHECK_EQ(t.otherwise, 0);
    CHECK(t.drafted > t.accepted);
    sum->accepted += t.accepted;
    sum->drafted += t.drafted;
}

static const struct source mtp = {"auto", "mtp", SPANS, ENGINE_DRAFT_MTP},
                           copies = {"auto", "copy", NULL, ENGINE_DRAFT_COPY},
                           dflash = {"demo-dflash", "dflash", NULL, ENGINE_DRAFT_DFLASH},
                           dflash2 = {"demo-dflash2", "dflash2", NULL, ENGINE_DRAFT_DFLASH2},
                           weak = {"demo-dflash2-weak", "dflash2", NULL, ENGINE_DRAFT_DFLASH2},
                           beside = {"demo-dflash2", "all", NULL, ENGINE_DRAFT_DFLASH2},
                           weak_beside = {"demo-dflash2-weak", "all", NULL, ENGINE_DRAFT_DFLASH2};

TEST(replies_with_drafts_of_each_kind_are_those_without) {
    static struct tally sums[ENGINE_DRAFT_KINDS];
    static const struct {
        enum mood mood;
        const struct source *sources[4];
    } runs[] = {{MIXED, {&mtp, &dflash, &dflash2, &weak}},
                {CALM, {&dflash, &dflash2}},
                {NARROW, {&copies, &mtp}}};
    for (uint32_t m = 0; m < 3; m++) {
        struct crowd *c = make_crowd("demo", runs[m].mood);
        for (uint32_t i = 0; i < 4 && runs[m].sources[i]; i++)
            check_source(c, "demo", runs[m].sources[i], &sums[runs[m].sources[i]->kind]);
        free(c);
    }
    for (uint32_t k = 0; k <= ENGINE_DRAFT_DFLASH2; k++) {
        test_note("%s: accepted %llu, rejected %llu, unequal 0", costs_kind(k),
                  (unsigned long long)sums[k].accepted,
                  (unsigned long long)(sums[k].drafted - sums[k].accepted));
        CHECK(sums[k].accepted >= ENOUGH);
        CHECK(sums[k].drafted - sums[k].accepted >= ENOUGH);
    }
}

// Copies beside blocks, most of them as branches.
TEST(replies_with_branches_beside_blocks_are_those_without) {
    static const struct source *const all[] = {&beside, &weak_beside};
    static struct tally t;
    for (uint32_t m = 0; m < 2; m++) {
        struct crowd *c = make_crowd("demo", m ? MIXED : NARROW);
        uint64_t copied = 0, kept = 0;
        uint32_t branches = 0;
        for (uint32_t i = 0; i < 2; i++) {
            memset(&t, 0, sizeof t);
            run_alone(&t, c, all[i], 64);
            run_together(&t, c, all[i], 17, 0);
            CHECK_EQ(t.unequal, 0);
            CHECK_EQ(t.otherwise, 0);
            copied += t.copied;
            kept += t.copied_kept;
            branches += t.branches;
        }
        test_note("%s: %u branches in company, %llu of %llu copied ids kept, unequal 0",
                  m ? "mixed" : "narrow", branches, (unsigned long long)kept,
                  (unsigned long long)copied);
        CHECK(branches > 0 && kept > 0 && copied > kept);
        free(c);
    }
}

// The same over packs: a dense target with the drafter made for its plain sibling, and one with experts and its own head.
TEST(replies_of_exl3_packs_with_drafts_are_those_without) {
    static struct tally sum;
    struct crowd *c = make_crowd("demo-exl3", CALM);
    check_source(c, "demo-exl3", &dflash2, &sum);
    free(c);
    c = make_crowd("demo-moe-exl3", CALM);
    check_source(c, "demo-moe-exl3", &mtp, &sum);
    free(c);
}

TEST(a_planted_fault_in_windows_turns_it_red) {
    static const uint32_t faults[] = {ENGINE_FAULT_SHORT_CONV, ENGINE_FAULT_WINDOW_ROPE};
    static struct tally t;
    struct crowd *c = make_crowd("demo", CALM);
    for (uint32_t f = 0; f < 2; f++) {
        memset(&t, 0, sizeof t);
        run_together(&t, c, &dflash2, 64, faults[f]);
        test_note("fault %u: %u of %d replies unequal", faults[f], t.unequal, CROWD);
        CHECK(t.unequal > 0);
    }
    free(c);
}

// They change no reply, but what is drafted then depends on the chunks of the prompt.
TEST(rows_that_a_drafter_lost_turn_it_red) {
    static const struct source *const all[] = {&mtp, &dflash, &dflash2};
    static struct tally t;
    struct crowd *c = make_crowd("demo", CALM);
    for (uint32_t i = 0; i < 3; i++) {
        memset(&t, 0, sizeof t);
        run_together(&t, c, all[i], 64, ENGINE_FAULT_LOST_TAP);
        run_together(&t, c, all[i], 3, ENGINE_FAULT_LOST_TAP);
        test_note("%s: %u of %d replies drafted otherwise", costs_kind(all[i]->kind), t.otherwise,
                  CROWD);
        CHECK_EQ(t.unequal, 0);
        CHECK(t.otherwise > 0);
    }
    free(c);
}
