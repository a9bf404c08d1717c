/* sched: who gets rows of a round. */
#include "common/num.h"
#include "tests/lib/test.h"
#include "worker/engine/sched.h"

enum { SLOTS = 6 };

static uint32_t sum(const struct sched_item *items) {
    uint32_t rows = 0;
    for (int i = 0; i < SLOTS; i++) rows += items[i].ret_rows;
    return rows;
}

TEST(decoding_streams_get_their_row_and_prompts_share_the_rest) {
    static const struct {
        struct sched_item in[SLOTS];
        uint32_t rows_max, chunk, beside, want[SLOTS];
    } cases[] = {
        {{{0}}, 16, 8, 16, {0}},
        {{{.pending = 1, .decoding = true}, {.pending = 100}}, 16, 8, 16, {1, 8}},
        {{{.pending = 1, .decoding = true}, {.pending = 100}}, 5, 8, 16, {1, 4}},
        {{{.pending = 1, .decoding = true}, {.pending = 100}}, 16, 8, 3, {1, 3}},
        {{{.pending = 2, .decoding = true}, {.pending = 2}, {.pending = 9}}, 16, 8, 4, {2, 2, 2}},
        {{{.pending = 100}, {.pending = 3}, {.pending = 100}}, 64, 16, 8, {16, 3, 16}},
        {{{.pending = 100}, {.pending = 3}, {.pending = 100}}, 18, 16, 8, {16, 2, 0}},
        {{{.pending = 1}, {.pending = 0, .decoding = true}},
         16,
         8,
         16,
         {1, 0}}, // a prompt of one row; an ended one
        {{{.pending = 5}}, 16, 1, 16, {1}},
    };
    for (uint32_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        struct sched s = {0};
        struct sched_item items[SLOTS];
        for (int i = 0; i < SLOTS; i++) items[i] = cases[c].in[i];
        uint32_t rows =
            sched_pick(&s, items, SLOTS, cases[c].rows_max, cases[c].chunk, cases[c].beside);
        for (int i = 0; i < SLOTS; i++) CHECK_EQ(items[i].ret_rows, cases[c].want[i]);
        CHECK_EQ(rows, sum(items));
    }
}

// Six prompts of equal length through rounds that hold one and a half chunks: none may run ahead by more than a chunk or two.
TEST(prompts_that_do_not_fit_a_round_take_turns) {
    struct sched s = {0};
    uint32_t left[SLOTS], chunk = 16;
    for (int i = 0; i < SLOTS; i++) left[i] = 1000;
    for (int round = 0; round < 200; round++) {
        struct sched_item items[SLOTS] = {0};
        for (int i = 0; i < SLOTS; i++) items[i].pending = left[i];
        uint32_t rows = sched_pick(&s, items, SLOTS, 24, chunk, 8), least = UINT32_MAX, most = 0;
        CHECK_EQ(rows, 24);
        for (int i = 0; i < SLOTS; i++) {
            left[i] -= items[i].ret_rows;
            least = min_u32(least, left[i]);
            most = max_u32(most, left[i]);
        }
        CHECK(most - least <= 3 * chunk);
    }
}

TEST(a_prompt_beside_many_decoding_streams_still_moves) {
    struct sched s = {0};
    for (int round = 0; round < 50; round++) {
        struct sched_item items[SLOTS];
        for (int i = 0; i < SLOTS; i++)
            items[i] = (struct sched_item){.pending = 1, .decoding = true};
        items[round % SLOTS] = (struct sched_item){.pending = 40};
        CHECK_EQ(sched_pick(&s, items, SLOTS, SLOTS + 1, 64, 64), SLOTS + 1);
        CHECK_EQ(items[round % SLOTS].ret_rows, 2);
    }
}
