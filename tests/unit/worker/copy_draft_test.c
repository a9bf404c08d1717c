/* copy_draft: which matches make a copy, how long it is, when it keeps silent. */
#include "common/arena.h"
#include "tests/lib/test.h"
#include "worker/engine/copy_draft.h"

#include <string.h>

enum { IDS_MAX = 4096 };

struct bed {
    struct arena arena;
    struct copy_draft c;
    uint32_t ids[IDS_MAX], count, next; // next: an id that was not used yet
};

static void begin(struct bed *b) {
    *b = (struct bed){.next = 1000};
    copy_draft_init(&b->c, &b->arena, IDS_MAX);
}

static void fresh(struct bed *b, uint32_t count) {
    for (uint32_t i = 0; i < count; i++) b->ids[b->count++] = b->next++;
}

static void again(struct bed *b, uint32_t from, uint32_t count) {
    for (uint32_t i = 0; i < count; i++, b->count++) b->ids[b->count] = b->ids[from + i];
}

static uint32_t propose(struct bed *b, uint32_t match_least, uint32_t want, uint32_t *ret) {
    return copy_draft_propose(&b->c, b->ids, b->count, match_least, want, ret);
}

// So many equal ids at the end, and no more.
static void match_of(struct bed *b, uint32_t length) {
    begin(b);
    fresh(b, 100);
    again(b, 50, length);
}

TEST(nineteen_equal_ids_keep_the_block_and_twenty_replace_it) {
    static struct bed b;
    uint32_t got[64];
    match_of(&b, 19);
    CHECK_EQ(propose(&b, COPY_MATCH_BLOCK, 15, got), 0);
    CHECK_EQ(b.c.last_match, 19);
    arena_fini(&b.arena);
    match_of(&b, 20);
    CHECK_EQ(propose(&b, COPY_MATCH_BLOCK, 15, got), 15);
    CHECK_MEM(got, b.ids + 70, 15 * sizeof *got); // what stood behind the twenty
    arena_fini(&b.arena);
}

TEST(five_equal_ids_never_make_a_copy_and_eight_do_where_there_is_no_block) {
    static struct bed b;
    uint32_t got[64];
    for (uint32_t n = 1; n <= 8; n++) {
        match_of(&b, n);
        CHECK_EQ(propose(&b, COPY_MATCH_BLOCK, 15, got), 0);
        CHECK_EQ(propose(&b, COPY_MATCH_LEAST, 15, got), n < 8 ? 0 : 15);
        arena_fini(&b.arena);
    }
}

TEST(the_longest_match_wins_and_the_newest_of_equals) {
    static struct bed b;
    uint32_t got[64];
    begin(&b);
    fresh(&b, 40);     // 0: twelve of these will match
    again(&b, 10, 10); // 40: ten will
    fresh(&b, 5);
    again(&b, 10, 10); // 55: ten again
    fresh(&b, 5);
    again(&b, 8, 12); // the end: ids 8 .. 19, of which 10 .. 19 stand in all three
    CHECK_EQ(propose(&b, 8, 3, got), 3);
    CHECK_EQ(b.c.last_match, 12);
    CHECK_MEM(got, b.ids + 20, sizeof *got * 3);
    arena_fini(&b.arena);

    begin(&b);
    fresh(&b, 40);
    again(&b, 10, 10);
    fresh(&b, 5); // behind the newest
    again(&b, 10, 10);
    CHECK_EQ(propose(&b, 8, 3, got), 3);
    CHECK_EQ(b.c.last_match, 10);
    CHECK_MEM(got, b.ids + 50, sizeof *got * 3);
    arena_fini(&b.arena);
}

TEST(a_copy_goes_on_into_itself) {
    static struct bed b;
    uint32_t got[16];
    begin(&b);
    fresh(&b, 30);
    for (uint32_t i = 0; i < 14; i++) b.ids[b.count++] = 1 + i % 3; // 1 2 3 1 2 3 .. 2
    CHECK_EQ(propose(&b, 8, 12, got), 12);
    for (uint32_t i = 0; i < 12; i++) CHECK_EQ(got[i], 1 + (14 + i) % 3);
    arena_fini(&b.arena);
}

TEST(a_copy_that_came_true_makes_the_next_one_longer_and_a_miss_the_shortest) {
    static struct bed b;
    uint32_t got[64];
    begin(&b);
    fresh(&b, 200);
    again(&b, 10, 20);
    static const uint32_t widths[] = {15, 31, 63, 63};
    for (uint32_t i = 0; i < 4; i++) {
        CHECK_EQ(propose(&b, 8, 64, got), widths[i]);
        copy_draft_result(&b.c, widths[i], widths[i]);
    }
    copy_draft_result(&b.c, 63, 62);
    CHECK_EQ(propose(&b, 8, 64, got), 15);
    CHECK_EQ(propose(&b, 8, 6, got), 6); // the caller's bound
    arena_fini(&b.arena);
}

TEST(four_copies_of_which_nothing_was_kept_make_sixteen_rounds_of_silence) {
    static struct bed b;
    uint32_t got[64];
    begin(&b);
    fresh(&b, 200);
    again(&b, 10, 20);
    for (uint32_t i = 0; i < 4; i++) {
        CHECK_EQ(propose(&b, 8, 15, got), 15);
        copy_draft_result(&b.c, 0, 0); // a round without drafts is no miss
        copy_draft_result(&b.c, 15, 0);
    }
    for (uint32_t i = 0; i < 16; i++) CHECK_EQ(propose(&b, 8, 15, got), 0);
    CHECK_EQ(propose(&b, 8, 15, got), 15);
    copy_draft_result(&b.c, 15, 1);
    for (uint32_t i = 0; i < 3; i++) {
        CHECK_EQ(propose(&b, 8, 15, got), 15);
        copy_draft_result(&b.c, 15, 0);
    }
    CHECK_EQ(propose(&b, 8, 15, got), 15);
    arena_fini(&b.arena);
}

TEST(branches_that_miss_make_silence_of_branches_alone_and_leave_the_width_as_it_was) {
    static struct bed b;
    uint32_t got[64];
    begin(&b);
    fresh(&b, 200);
    again(&b, 10, 12);
    CHECK_EQ(propose(&b, 8, 64, got), 15);
    copy_draft_result(&b.c, 15, 15);
    copy_draft_branch_result(&b.c, 4, 4);
    CHECK_EQ(propose(&b, 8, 64, got), 31);
    copy_draft_branch_result(&b.c, 4, 1);
    for (uint32_t i = 0; i < 4; i++) {
        CHECK_EQ(propose(&b, 8, 64, got), 31);
        copy_draft_branch_result(&b.c, 0, 0); // the block said the same: there was none
        copy_draft_branch_result(&b.c, 4, 0);
    }
    for (uint32_t i = 0; i < 16; i++) {
        CHECK_EQ(propose(&b, 8, 64, got), 31);
        CHECK(b.c.branch_quiet);
    }
    CHECK_EQ(propose(&b, 8, 64, got), 31);
    CHECK(!b.c.branch_quiet);
    arena_fini(&b.arena);
}

TEST(the_index_may_be_asked_now_and_then_or_every_time) {
    static struct bed b, other;
    uint32_t got[16], late[16];
    begin(&b);
    begin(&other);
    for (uint32_t i = 0; i < 600; i++) {
        b.ids[b.count++] = (i * i / 7) % 11;
        propose(&b, 8, 15, got);
    }
    memcpy(other.ids, b.ids, sizeof b.ids);
    other.count = b.count;
    CHECK_EQ(propose(&b, 4, 15, got), propose(&other, 4, 15, late));
    CHECK_MEM(got, late, sizeof got - sizeof *got);
    arena_fini(&b.arena);
    arena_fini(&other.arena);
}
