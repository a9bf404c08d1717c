/* What a model of the 27B's sizes would take of a GPU, from a checkpoint whose weights are a hole. */
#include "common/err.h"
#include "kernels/ops.h"
#include "tests/lib/test.h"
#include "worker/engine/plan.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *shape(void) {
    static char dir[400];
    char cmd[1200];
    if (dir[0]) return dir;
    snprintf(dir, sizeof dir, "%s/shape", test_temp_dir());
    snprintf(cmd, sizeof cmd, "/usr/bin/python3 '%s/tests/tools/make_shape.py' '%s' --sparse",
             test_source_dir(), dir);
    if (system(cmd)) test_fail(__FILE__, __LINE__, "failed: %s", cmd);
    return dir;
}

static int plan_rows_of(struct plan *ret, uint32_t rows, uint32_t context, double room_gib,
                        const char *embedding, struct err *e) {
    struct engine_config c = {.model_dir = shape(),
                              .context_max = context,
                              .round_rows_max = rows,
                              .embedding = embedding};
    return plan_make(
        ret, &(struct plan_ask){.config = &c, .room = (uint64_t)(room_gib * (1 << 30)), .sm = 90},
        e);
}

static int plan_of(struct plan *ret, uint32_t context, double room_gib, const char *embedding,
                   struct err *e) {
    return plan_rows_of(ret, 2048, context, room_gib, embedding, e);
}

static uint64_t region_of(const struct plan *p, const char *name) {
    for (uint32_t i = 0; i < p->regions_count; i++)
        if (!strcmp(p->regions[i].name, name)) return p->regions[i].bytes;
    test_fail(__FILE__, __LINE__, "no region '%s'", name);
    return 0;
}

// Rows of both mixers and the MLP at 2,048 rows: all but the widest of the three is saved.
TEST(the_union_saves_the_computed_bytes_on_the_27b_shape) {
    const uint64_t rows = 2048, attn = 24 * 256 * 3 + 2 * 4 * 256;
    const uint64_t delta = 2 * (2 * 16 * 128 + 48 * 128) + 2 * 48 * 128 + 4 * 48, mlp = 2 * 17408;
    struct plan p;
    struct err e = {0};
    CHECK_OK(plan_of(&p, 8192, 60, "auto", &e), e);
    CHECK(mlp > delta && delta > attn);
    CHECK_EQ_U64(p.union_saves, (attn + delta) * rows * sizeof(float));
    test_note("the union saves %.3f GiB of %.3f", (double)p.union_saves / (1 << 30),
              (double)(attn + delta + mlp) * rows * 4 / (1 << 30));
}

TEST(the_plan_adds_up_and_says_where_the_rows_go) {
    struct plan p;
    struct err e = {0};
    uint64_t sum = 0;
    CHECK_OK(plan_of(&p, 32768, 24, "auto", &e), e);
    for (uint32_t i = 0; i < p.regions_count; i++) sum += p.regions[i].bytes;
    CHECK_EQ_U64(sum, p.arena_bytes);
    CHECK(p.arena_bytes <= p.room && !p.embedding_on_host);
    CHECK_EQ_U64(p.embedding_bytes, (uint64_t)248320 * 5120 * 2);
    CHECK_OK(plan_of(&p, 32768, 16, "auto", &e), e);
    CHECK(p.embedding_on_host && p.streams_whole >= 1);
    CHECK(p.staging_bytes > 0);
    CHECK_EQ(plan_of(&p, 32768, 16, "card", &e), ST_NOMEM);
    CHECK_HAS(e.msg, "with the embedding on the card it needs");
    CHECK_EQ(plan_of(&p, 32768, 8, "auto", &e), ST_NOMEM);
}

static int plan_drafts(struct plan *ret, const char *drafter, const char *kinds, double room_gib,
                       struct err *e) {
    struct engine_config c = {.model_dir = shape(),
                              .context_max = 8192,
                              .streams_max = 16,
                              .embedding = "card",
                              .drafter = drafter,
                              .draft_kinds = kinds};
    return plan_make(
        ret, &(struct plan_ask){.config = &c, .room = (uint64_t)(room_gib * (1 << 30)), .sm = 90},
        e);
}

static double need_of(const char *drafter, const char *kinds) {
    struct plan p;
    struct err e = {0};
    double gib = 0;
    CHECK_EQ(plan_drafts(&p, drafter, kinds, 4, &e), ST_NOMEM);
    const char *at = strstr(e.msg, "it needs ");
    if (!at || sscanf(at, "it needs %lf", &gib) != 1) test_fail(__FILE__, __LINE__, "%s", e.msg);
    return gib;
}

// The engine would start without the drafts that nobody insists on: a plan that refuses then is wrong.
// Long chunks are for speed: they may not take the context that was asked for, nor much of a small card.
TEST(chunks_are_as_long_as_memory_allows) {
    struct plan p, q;
    struct err e;
    CHECK_OK(plan_rows_of(&p, 0, 8192, 24, "auto", &e), e);
    CHECK_OK(plan_of(&q, 8192, 24, "auto", &e), e);
    CHECK_EQ_U64(region_of(&p, "scratch"), region_of(&q, "scratch"));
    CHECK_EQ(plan_of(&q, 8192, 15.85, "card", &e), ST_NOMEM);
    CHECK_OK(plan_rows_of(&p, 0, 8192, 15.85, "card", &e), e);
    CHECK_OK(plan_rows_of(&q, 512, 8192, 15.85, "card", &e), e);
    CHECK_EQ_U64(region_of(&p, "scratch"), region_of(&q, "scratch"));
}

TEST(a_plan_does_without_drafts_where_an_engine_does) {
    struct plan p;
    struct err e = {0};
    double none = need_of("none", NULL), drafts = need_of("auto", "copy"),
           between = none + (drafts - none) * 0.75;
    CHECK(drafts > none + 0.5);
    CHECK_OK(plan_drafts(&p, "none", NULL, between, &e), e);
    CHECK_OK(plan_drafts(&p, "auto", NULL, between, &e), e);
    CHECK_EQ_U64(p.streams_max, 16);
    CHECK_EQ(plan_drafts(&p, "auto", "copy", between, &e), ST_NOMEM);
}

TEST(a_gpu_that_nobody_makes_is_refused) {
    struct ops o = {0};
    struct err e = {0};
    CHECK_EQ(ops_cuda_plan_open(&o, 91, 0, false, &e), ST_INVAL);
    CHECK_HAS(e.msg, "found 91");
}
