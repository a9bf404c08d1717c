/* Where the embedding's rows go, and how a start is refused, on cards of every size around the borders. */
#include "common/err.h"
#include "tests/lib/engine_drive.h"
#include "tests/lib/mock_engine.h"
#include "tests/lib/test.h"

#include <string.h>

// 12 MiB of embedding rows.
#define TIED "--vocab 24000 --hidden 256"
#define UNTIED TIED " --untied"
enum { MIB = 1 << 20, FROM_MIB = 8, TO_MIB = 36 };

enum outcome { REFUSED, MAPPED, ON_CARD };

static enum outcome start_on(const struct cuda_mock_config *card, const char *tiny,
                             const char *embedding, struct err *e) {
    struct engine_config c = mock_engine(card, tiny);
    struct engine *eng = NULL;
    c.embedding = embedding;
    c.streams_max = 0;
    *e = (struct err){0};
    int st = engine_new(&eng, &c, e);
    struct cuda_mock_counts now = cuda_mock_counts();
    CHECK_STR(now.wrong, "");
    if (st) {
        CHECK_EQ(st, ST_NOMEM);
        CHECK_EQ_U64(now.device_bytes + now.pinned_bytes + now.handles, 0);
        CHECK_EQ_U64(now.copies, 0); // before a row was copied
        CHECK_HAS(e->msg, "largest context that would fit");
        return REFUSED;
    }
    const struct engine_info *info = engine_info(eng);
    bool mapped = info->pinned_bytes > info->embedding_bytes &&
                  strstr(info->embedding_rule, "host memory") != NULL;
    CHECK_EQ_U64(now.pinned_bytes, (info->pinned_bytes + 4095) / 4096 * 4096);
    CHECK_EQ(info->context_max, 512);
    CHECK(info->streams_whole >= 1);
    engine_free(eng);
    now = cuda_mock_counts();
    CHECK_EQ_U64(now.device_bytes + now.pinned_bytes + now.handles, 0);
    return mapped ? MAPPED : ON_CARD;
}

struct borders { // in MiB: the smallest card that holds it so
    uint32_t card, host;
};

// Every size in steps of 1 MiB, from the smallest on: refused, then mapped, then on the card, and never back.
static struct borders sweep(bool unified, const char *tiny, const char *embedding) {
    struct borders b = {0};
    enum outcome before = REFUSED;
    for (uint32_t mib = FROM_MIB; mib <= TO_MIB; mib++) {
        struct err e;
        struct cuda_mock_config card = {.memory_bytes = (uint64_t)mib * MIB, .unified = unified};
        enum outcome o = start_on(&card, tiny, embedding, &e);
        if (o < before)
            test_fail(__FILE__, __LINE__, "%u MiB: outcome %d after %d: %s", mib, o, before, e.msg);
        if (o == MAPPED && before != MAPPED) b.host = mib;
        if (o == ON_CARD && before != ON_CARD) b.card = mib;
        before = o;
    }
    CHECK_EQ(before, ON_CARD);
    return b;
}

TEST(a_discrete_card_maps_the_rows_only_where_they_do_not_fit_and_the_borders_touch) {
    struct borders by_itself = sweep(false, UNTIED, "auto"), card = sweep(false, UNTIED, "card");
    test_note("on the card from %u MiB, mapped from %u MiB", by_itself.card, by_itself.host);
    CHECK_EQ(by_itself.card, card.card); // auto maps if and only if card refuses
    CHECK_EQ(card.host, 0);
    CHECK(by_itself.host && by_itself.host < by_itself.card);
    CHECK(by_itself.card - by_itself.host >= 11 && by_itself.card - by_itself.host <= 14);
}

TEST(unified_memory_and_tied_rows_are_never_mapped) {
    uint32_t untied = sweep(false, UNTIED, "auto").card;
    struct borders unified = sweep(true, UNTIED, "auto"), tied = sweep(false, TIED, "auto");
    CHECK_EQ(unified.host, 0);
    CHECK_EQ(unified.card, untied);
    CHECK_EQ(tied.host, 0);
    CHECK(tied.card < untied); // one matrix less
}

TEST(host_is_refused_where_it_is_never_right) {
    const struct {
        bool unified;
        const char *tiny, *part;
    } cases[] = {{true, UNTIED, "one memory"}, {false, TIED, "tied"}};
    for (int i = 0; i < 2; i++) {
        struct cuda_mock_config card = {.unified = cases[i].unified};
        struct engine_config c = mock_engine(&card, cases[i].tiny);
        struct engine *eng = NULL;
        struct err e = {0};
        c.embedding = "host";
        CHECK_EQ(engine_new(&eng, &c, &e), ST_INVAL);
        CHECK_HAS(e.msg, cases[i].part);
        CHECK_EQ_U64(cuda_mock_counts().device_bytes, 0);
    }
}

TEST(a_refusal_says_what_is_needed_left_and_possible_both_ways) {
    struct err e;
    CHECK_EQ(start_on(&(struct cuda_mock_config){.memory_bytes = 6 * MIB}, UNTIED, "auto", &e),
             REFUSED);
    CHECK_HAS(e.msg, "0.006 GiB left for 1 stream of 512 tokens");
    CHECK_HAS(e.msg, "with the embedding on the card it needs");
    CHECK_HAS(e.msg, "with the embedding in host memory it needs");
    CHECK_EQ(start_on(&(struct cuda_mock_config){.memory_bytes = 6 * MIB}, UNTIED, "card", &e),
             REFUSED);
    CHECK(!strstr(e.msg, "in host memory"));
}

// What the card says is free and does not give must not push the rows off it while they fit.
TEST(a_card_that_gives_less_than_it_says_is_asked_for_less) {
    uint32_t card = sweep(false, UNTIED, "auto").card;
    struct err e;
    for (uint32_t hidden = 1; hidden <= 40; hidden += 3) {
        struct cuda_mock_config c = {.memory_bytes = (uint64_t)(card + hidden) * MIB,
                                     .hidden_bytes = (uint64_t)hidden * MIB};
        CHECK_EQ(start_on(&c, UNTIED, "auto", &e), ON_CARD);
        c.memory_bytes -= 2 * MIB;
        CHECK_EQ(start_on(&c, UNTIED, "auto", &e), MAPPED);
    }
}

TEST(pinned_memory_that_is_not_to_be_had_is_named) {
    struct borders b = sweep(false, UNTIED, "auto");
    struct cuda_mock_config card = {.memory_bytes = (uint64_t)b.host * MIB, .pinned_max = 24 * MIB};
    struct engine_config c = mock_engine(&card, UNTIED);
    struct engine *eng = NULL;
    struct err e = {0};
    CHECK_EQ(engine_new(&eng, &c, &e), ST_NOMEM);
    CHECK_HAS(e.msg, "pinned memory of the embedding");
    CHECK_EQ_U64(cuda_mock_counts().device_bytes + cuda_mock_counts().pinned_bytes, 0);
}
