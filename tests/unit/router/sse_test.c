/* sse: events by the standard's rules, cut at every byte. */
#include "common/err.h"
#include "common/mem.h"
#include "common/strbuf.h"
#include "router/sse.h"
#include "tests/lib/test.h"

#include <stdlib.h>
#include <string.h>

// Each event's data in brackets.
static void on_event(void *arg, const char *data, size_t len) {
    CHECK_EQ(strlen(data), len);
    strbuf_printf(arg, "[%s]", data);
}

static const struct {
    const char *text, *events;
    bool inside; // an event has begun and is not whole
} cases[] = {
    {"", "", false},
    {"data: a\n\n", "[a]", false},
    {"data:a\n\ndata:  b \n\n", "[a][ b ]", false},
    {"data: a\r\n\r\ndata: b\r\rdata: c\n\n", "[a][b][c]", false},
    {"data: a\ndata: b\n\n", "[a\nb]", false},
    {"data\n\n", "[]", false},
    {"data:\ndata\n\n", "[\n]", false},
    {": keepalive\n\ndata: a\n\n: x\n\n", "[a]", false},
    {"event: error\nid: 7\nretry: 5\ndata: {\"a\":1}\n\n", "[{\"a\":1}]", false},
    {"event: nothing\n\n", "", false},
    {"\xEF\xBB\xBF"
     "data: a\n\n\xEF\xBB\xBF"
     "data: b\n\n",
     "[a]", false}, // a byte order mark at the start alone
    {"database: a\ndat: b\nDATA: c\n data: d\n\n", "", false},
    {"data: a:b: c\n\n", "[a:b: c]", false},
    {"data: a\n\ndata: b\n", "[a]", true},
    {"data: a\n\ndata: b", "[a]", true},
    {"data: a", "", true},
    {"\n\n\ndata: a\n\n\n\n", "[a]", false},
};

TEST(a_stream_has_the_same_events_however_it_is_cut) {
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        size_t len = strlen(cases[i].text);
        for (size_t cut = 0; cut <= len; cut++) {
            struct strbuf seen = {0};
            struct sse s = {.on_event = on_event, .arg = &seen};
            struct err e = {0};
            CHECK_OK(sse_feed(&s, cases[i].text, cut, &e), e);
            CHECK_OK(sse_feed(&s, cases[i].text + cut, len - cut, &e), e);
            CHECK_STR(strbuf_str(&seen), cases[i].events);
            CHECK_EQ(sse_inside(&s), cases[i].inside);
            sse_fini(&s);
            strbuf_fini(&seen);
        }
    }
}

TEST(a_stream_may_come_byte_by_byte) {
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct strbuf seen = {0};
        struct sse s = {.on_event = on_event, .arg = &seen};
        struct err e = {0};
        for (const char *p = cases[i].text; *p; p++) CHECK_OK(sse_feed(&s, p, 1, &e), e);
        CHECK_STR(strbuf_str(&seen), cases[i].events);
        sse_fini(&s);
        strbuf_fini(&seen);
    }
}

// A stream without line ends, or of one endless event, must not take our memory.
TEST(an_event_has_a_bound) {
    static const char *const pieces[] = {"x", "data: x\n"};
    for (size_t i = 0; i < 2; i++) {
        struct strbuf seen = {0};
        struct sse s = {.on_event = on_event, .arg = &seen};
        struct err e = {0};
        size_t count = 1 << 17;
        struct strbuf many = {0};
        while (count--) strbuf_add_str(&many, pieces[i]);
        int st = ST_OK;
        for (int k = 0; k < 1000 && !st; k++) st = sse_feed(&s, many.p, many.len, &e);
        CHECK_EQ(st, ST_CORRUPT);
        CHECK_HAS(e.msg, "an event is over");
        strbuf_fini(&many);
        sse_fini(&s);
        strbuf_fini(&seen);
    }
}
