/* h2heads: what of an HTTP/2 connection counts as a head, however its bytes are cut. */
#include "common/err.h"
#include "router/h2heads.h"
#include "router/listen.h"
#include "tests/lib/test.h"

#include <string.h>

enum { DATA, HEADERS, SETTINGS = 4, CONTINUATION = 9 };
enum { END_STREAM = 1, END_HEADERS = 4, PADDED = 8, PRIORITY = 32 };

static const struct http_limits limits = {
    .head_bytes_max = 1000, .fields_max = 10, .uri_bytes_max = 100, .body_bytes_max = 100};

struct input {
    uint8_t bytes[100000];
    size_t len;
};

static void begin(struct input *in) {
    in->len = 0;
    memcpy(in->bytes, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", H2HEADS_PREFACE_BYTES);
    in->len = H2HEADS_PREFACE_BYTES;
}

static void frame(struct input *in, uint8_t type, uint8_t flags, const void *payload, size_t n) {
    uint8_t head[] = {(uint8_t)(n >> 16), (uint8_t)(n >> 8), (uint8_t)n, type, flags, 0, 0, 0, 1};
    memcpy(in->bytes + in->len, head, sizeof head);
    memcpy(in->bytes + in->len + sizeof head, payload, n);
    in->len += sizeof head + n;
}

// The same whatever the pieces; *ret as it is then.
static int take(struct h2heads *ret, const struct input *in) {
    int st = ST_OK;
    for (size_t piece = 1; piece <= in->len; piece += piece < 40 ? 1 : in->len - piece + 1) {
        struct h2heads h = {0};
        int found = ST_OK;
        for (size_t at = 0; at < in->len && !found; at += piece)
            found = h2heads_take(&h, in->bytes + at, in->len - at < piece ? in->len - at : piece,
                                 &limits);
        if (piece > 1) CHECK_EQ(found, st);
        if (piece > 1 && !st)
            CHECK(h.fields == ret->fields && h.bytes == ret->bytes && h.open == ret->open);
        st = found;
        *ret = h;
    }
    return st;
}

// Each way to write a field, RFC 7541 (6), and what is none.
TEST(every_field_counts_once) {
    static const struct {
        const char *what, *bytes;
        size_t len;
        uint32_t fields;
    } cases[] = {
        {"an index", "\x82", 1, 1},
        {"a long index", "\xff\x80\x01", 3, 1},
        {"a size of the tables", "\x3f\xe1\x1f", 3, 0},
        {"a name by its index, kept", "\x41\x03www", 5, 1},
        {"a name by a long index, kept", "\x7f\x00\x01y", 4, 1},
        {"two strings, kept", "\x40\x01x\x02yz", 6, 1},
        {"two strings, not kept", "\x00\x01x\x02yz", 6, 1},
        {"two strings, never kept", "\x10\x01x\x02yz", 6, 1},
        {"a name by its index, not kept", "\x04\x02/x", 4, 1},
        {"a name by a long index, not kept", "\x0f\x01\x02/x", 5, 1},
        {"packed letters", "\x41\x83\xff\xff\xff", 5, 1},
        {"empty strings", "\x00\x00\x00\x00\x00\x00", 6, 2},
        {"several", "\x82\x84\x41\x01x\x00\x01y\x00\x87", 10, 5},
    };
    static struct input in;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct h2heads h;
        begin(&in);
        frame(&in, SETTINGS, 0, "\x82\x82\x82\x82\x82\x82", 6);
        frame(&in, HEADERS, END_HEADERS, cases[i].bytes, cases[i].len);
        CHECK_EQ(take(&h, &in), ST_OK);
        CHECK_EQ(h.fields, cases[i].fields);
        CHECK_EQ(h.bytes, cases[i].len);
        CHECK(!h.open);
        if (h.fields != cases[i].fields) test_note("%s", cases[i].what);
    }
}

// A string of 300 bytes that are all fields by themselves: its length has three bytes.
TEST(what_stands_in_strings_is_no_field) {
    static struct input in;
    uint8_t block[400] = "\x40\x7f\xad\x01";
    memset(block + 4, 0x82, 300);
    memcpy(block + 304, "\x01x\x82", 3);
    struct h2heads h;
    begin(&in);
    frame(&in, HEADERS, END_HEADERS, block, 307);
    CHECK_EQ(take(&h, &in), ST_OK);
    CHECK_EQ(h.fields, 2);
}

TEST(padding_and_priority_are_no_fields_and_continuations_go_on) {
    static struct input in;
    struct h2heads h;
    begin(&in);
    frame(&in, HEADERS, PADDED | PRIORITY, "\x03\x82\x82\x82\x82\x82\x82\x40\x01\x82\x82\x82", 12);
    frame(&in, CONTINUATION, 0, "x", 1);
    frame(&in, CONTINUATION, 0, "", 0);
    frame(&in, CONTINUATION, 0, "\x02\x82", 2);
    CHECK_EQ(take(&h, &in), ST_OK);
    CHECK(h.open);
    frame(&in, CONTINUATION, END_HEADERS, "\x82\x82", 2);
    CHECK_EQ(take(&h, &in), ST_OK);
    CHECK(!h.open);
    CHECK_EQ(h.fields, 3); // an index, two strings, an index
    CHECK_EQ(h.bytes, 3 + 1 + 2 + 2);
    frame(&in, DATA, PADDED | END_STREAM, "\x82\x82\x82\x82", 4);
    CHECK_EQ(take(&h, &in), ST_OK);
    CHECK_EQ(h.fields, 3);
    frame(&in, HEADERS, END_HEADERS, "\x82", 1);
    CHECK_EQ(take(&h, &in), ST_OK);
    CHECK_EQ(h.fields, 1); // each has its own count
    // More padding than there is payload: h2o's to refuse.
    frame(&in, HEADERS, END_HEADERS | PADDED, "\xff\x82", 2);
    frame(&in, HEADERS, END_HEADERS, "\x82", 1);
    CHECK_EQ(take(&h, &in), ST_OK);
    CHECK_EQ(h.fields, 1);
}

TEST(a_head_far_beyond_the_limits_is_refused_in_one_frame_and_in_many) {
    static struct input in;
    static uint8_t block[8000];
    struct h2heads h;
    memset(block, 0x82, sizeof block);
    for (uint32_t more = 0; more < 2; more++) {
        begin(&in);
        frame(&in, HEADERS, END_HEADERS, block, H2HEADS_FACTOR * 10 + more);
        CHECK_EQ(take(&h, &in), more ? ST_INVAL : ST_OK);
        begin(&in);
        frame(&in, HEADERS, 0, block, 20);
        for (uint32_t i = 0; i < 20 + more; i++) frame(&in, CONTINUATION, 0, block, 1);
        CHECK_EQ(take(&h, &in), more ? ST_INVAL : ST_OK);
        // One field of many bytes.
        uint32_t text = H2HEADS_FACTOR * 1000 - 4 + more;
        uint8_t long_one[4 + 8000] = {0x01, 0x7f, (uint8_t)((text - 127) | 0x80),
                                      (uint8_t)((text - 127) >> 7)};
        begin(&in);
        frame(&in, HEADERS, END_HEADERS, long_one, 4 + text);
        CHECK_EQ(take(&h, &in), more ? ST_INVAL : ST_OK);
    }
}
