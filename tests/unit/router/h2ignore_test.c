/* h2ignore: what is cut out of an HTTP/2 connection's input, and what is told of it. */
#include "router/h2ignore.h"
#include "tests/lib/test.h"

#include <string.h>

enum { DATA = 0, HEADERS = 1, RST_STREAM = 3, END_STREAM = 1 };

struct input {
    uint8_t bytes[200000];
    size_t len;
};

static void frame(struct input *in, uint8_t type, uint8_t flags, uint32_t id, uint32_t length) {
    uint8_t head[] = {
        (uint8_t)(length >> 16), (uint8_t)(length >> 8), (uint8_t)length,    type,       flags,
        (uint8_t)(id >> 24),     (uint8_t)(id >> 16),    (uint8_t)(id >> 8), (uint8_t)id};
    memcpy(in->bytes + in->len, head, sizeof head);
    memset(in->bytes + in->len + sizeof head, (int)('a' + id % 26), length);
    in->len += sizeof head + length;
}

static size_t take(struct h2ignore *g, struct input *in) {
    size_t taken;
    in->len = h2ignore_take(g, in->bytes, in->len, &taken);
    return taken;
}

TEST(the_body_of_an_answered_stream_is_cut_out_and_nothing_else) {
    static struct input in, wanted;
    static struct h2ignore g;
    in.len = wanted.len = 0;
    h2ignore_add(&g, 3);
    h2ignore_add(&g, 7);
    for (struct input *i = &in; i; i = i == &in ? &wanted : NULL) {
        frame(i, HEADERS, 4, 9, 30);
        if (i == &in) frame(i, DATA, 0, 3, 1000);
        frame(i, DATA, 0, 5, 77);
        if (i == &in) frame(i, DATA, 8, 7, 16384); // padded: all of it counts
        if (i == &in) frame(i, DATA, 0, 3, 0);
        frame(i, HEADERS, 4, 3, 10); // trailers: the tables of the header fields need them
        if (i == &in) frame(i, DATA, 0, 3, 5);
    }
    CHECK_EQ(take(&g, &in), 1000 + 16384 + 5);
    CHECK_EQ(in.len, wanted.len);
    CHECK_MEM(in.bytes, wanted.bytes, wanted.len);
    uint32_t id, bytes;
    bool reset;
    CHECK(h2ignore_next(&g, &id, &bytes, &reset));
    CHECK(id == 3 && bytes == 1005 && !reset);
    CHECK(h2ignore_next(&g, &id, &bytes, &reset));
    CHECK(id == 7 && bytes == 16384 && !reset);
    CHECK(!h2ignore_next(&g, &id, &bytes, &reset));
}

// Reads end anywhere.
TEST(a_frame_that_is_cut_off_is_left_until_the_rest_of_it_comes) {
    static struct input all, in;
    all.len = 0;
    frame(&all, DATA, 0, 5, 20);
    frame(&all, DATA, 0, 3, 20);
    frame(&all, DATA, 0, 5, 20);
    for (size_t cut = 0; cut <= all.len; cut++) {
        static struct h2ignore g;
        g.count = 0;
        h2ignore_add(&g, 3);
        memcpy(in.bytes, all.bytes, in.len = cut);
        size_t taken = take(&g, &in);
        CHECK_EQ(taken, cut >= 58 ? 20 : 0);
        memcpy(in.bytes + in.len, all.bytes + cut, all.len - cut);
        in.len += all.len - cut;
        if (cut < 58 && cut >= 29) { // h2o has had the first frame by then
            memmove(in.bytes, in.bytes + 29, in.len -= 29);
            CHECK_EQ(take(&g, &in), 20);
            CHECK_EQ(in.len, 29);
        }
    }
}

TEST(a_stream_is_forgotten_at_its_end_or_reset) {
    static struct input in;
    static struct h2ignore g;
    in.len = 0;
    h2ignore_add(&g, 3);
    h2ignore_add(&g, 5);
    frame(&in, DATA, END_STREAM, 3, 10);
    frame(&in, RST_STREAM, 0, 5, 4);
    CHECK_EQ(take(&g, &in), 10);
    CHECK_EQ(in.len, 13); // h2o sees the reset
    CHECK_EQ(g.count, 0);
    in.len = 0;
    frame(&in, DATA, 0, 3, 10);
    CHECK_EQ(take(&g, &in), 0);
    CHECK_EQ(in.len, 19);
}

TEST(past_its_share_a_stream_is_to_be_reset_once_and_still_ignored) {
    static struct input in;
    static struct h2ignore g;
    uint32_t id, bytes, resets = 0;
    bool reset;
    h2ignore_add(&g, 3);
    for (int k = 0; k < (H2IGNORE_BYTES_MAX >> 14) + 10; k++) {
        in.len = 0;
        frame(&in, DATA, 0, 3, 16384);
        CHECK_EQ(take(&g, &in), 16384);
        CHECK_EQ(in.len, 0);
        CHECK(h2ignore_next(&g, &id, &bytes, &reset));
        resets += reset;
        CHECK_EQ(reset, k == H2IGNORE_BYTES_MAX >> 14);
    }
    CHECK_EQ(resets, 1);
}

TEST(a_frame_that_is_too_large_is_for_h2o_to_refuse_and_the_oldest_give_way) {
    static struct input in;
    static struct h2ignore g;
    h2ignore_add(&g, 3);
    frame(&in, DATA, 0, 3, H2IGNORE_FRAME_MAX + 1);
    size_t len = in.len;
    CHECK_EQ(take(&g, &in), 0);
    CHECK_EQ(in.len, len);
    for (uint32_t k = 1; k <= H2IGNORE_STREAMS_MAX; k++) h2ignore_add(&g, 3 + 2 * k);
    CHECK_EQ(g.count, H2IGNORE_STREAMS_MAX);
    CHECK_EQ(g.streams[0].id, 5);
}
