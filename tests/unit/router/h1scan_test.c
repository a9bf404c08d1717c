/* The framing of HTTP/1: patterns of request smuggling and what RFC 9112 forbids are refused, wherever in the bytes of a
 * connection they stand and however the bytes are cut. */
#include "common/err.h"
#include "router/apierr.h"
#include "router/h1scan.h"
#include "router/listen.h"
#include "tests/lib/test.h"

#include <stdio.h>
#include <string.h>

static const struct {
    const char *head;
    bool is_1_1;
    const char *says; // NULL: fine
} heads[] = {
    {"GET / HTTP/1.1\r\nhost: a", true, NULL},
    {"GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhost: b", true, NULL},
    {"GET / HTTP/1.0", false, NULL},
    {"GET / HTTP/1.0\r\nHost: a", false, NULL},
    {"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked", true, NULL},
    {"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding:\tCHUNKED ", true, NULL},
    {"POST / HTTP/1.1\nHost: a\nContent-Length: 5", true, NULL},
    {"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nContent-Length: 5", true, NULL},
    {"POST / HTTP/1.1\r\nHost: a\r\nx-content-length: 6\r\nContent-Length: 5", true, NULL},
    {"GET / HTTP/1.1", true, "Host is required"},
    {"GET / HTTP/1.1\r\nx-host: a", true, "Host is required"},
    {"GET / HTTP/1.1\r\nHost: a\r\nHost: a", true, "Host must be given once"},
    {"GET / HTTP/1.0\r\nHost: a\r\nhost: b", false, "Host must be given once"},
    {"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\ncontent-length: 6", true,
     "Content-Length"},
    {"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nTransfer-Encoding: chunked", true,
     "exclude"},
    {"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip, chunked", true, "chunked"},
    {"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: identity", true, "chunked"},
    {"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked", true,
     "chunked"},
    {"GET / HTTP/1.1\r\nHost: a\r\nX: b\r\n folded: c", true, "folded"},
    {"POST / HTTP/1.0\r\nHost: a\r\nTransfer-Encoding: chunked", false, "of HTTP/1.1"},
    {"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: +5", true, "whole number"},
    {"POST / HTTP/1.1\r\nHost: a\r\nContent-Length:", true, "whole number"},
    {"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5, 5", true, "whole number"},
    {"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 9999999999999999999", true, "whole number"},
};

TEST(heads_are_taken_or_refused_by_name) {
    for (size_t i = 0; i < sizeof heads / sizeof *heads; i++) {
        struct apierr e = {0};
        struct h1scan_framing f;
        int st = h1scan_head(heads[i].head, strlen(heads[i].head), heads[i].is_1_1, &f, &e);
        if (!heads[i].says != !st)
            test_fail(__FILE__, __LINE__, "%s: %d %s", heads[i].head, st, e.message);
        if (heads[i].says) CHECK_HAS(e.message, heads[i].says);
        if (st) CHECK_EQ(apierr_status(e.code), 400);
    }
}

static const struct http_limits limits = {200, 100, 100, 1000};
#define GET "GET / HTTP/1.1\r\nHost: a\r\n\r\n"
#define CHUNKED "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"

static const struct {
    const char *bytes;
    int good;         // of them; -1: all
    const char *says; // NULL: all are
} streams[] = {
    {GET GET, -1, NULL},
    {"\r\n" GET "\r\n" GET, -1, NULL},
    {"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\n\r\n\r" GET, -1, NULL},
    {CHUNKED "5\r\nhello\r\n00a;x=\"y\"\r\n0123456789\r\n0\r\n\r\n" GET, -1, NULL},
    {CHUNKED "5 ;x\r\nhello\r\n0\r\nX: y\r\nZ: 0\r\n\r\n" GET, -1, NULL},
    {"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0anything at all\r\rX", -1, NULL},
    {GET "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n", 92,
     "once"},
    {GET "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 44, "begin with the connection"},
    {CHUNKED "0x5\r\n", 57, "hex digits"},
    {CHUNKED "5\nhello", 57, "hex digits"},
    {CHUNKED "5;x\nhello", 59, "extension"},
    {CHUNKED "5\rhello", 58, "CR without LF"},
    {CHUNKED "-5\r\n", 56, "begin with its size"},
    {CHUNKED "\r\n", 56, "begin with its size"},
    {CHUNKED "5 5\r\n", 58, "hex digits"},
    {CHUNKED "1000000000000000\r\n", 71, "too large"},
    {CHUNKED "2\r\nhello", 61, "end in CR LF"},
    {CHUNKED "2\r\nhe\n", 61, "end in CR LF"},
    {CHUNKED "2\r\nhe\r\r", 62, "end in CR LF"},
    {CHUNKED "0\r\nX: y\n", 63, "trailers"},
    {CHUNKED "0\r\n\rX", 60, "trailers"},
    {"GET / HTTP/1.1\rHost: a\r\n\r\n", 15, "CR without LF"},
};

// Taken in pieces of the given size, as a connection's input grows and is used up.
static int take(const char *bytes, size_t len, size_t piece, size_t *ret_good, struct apierr *e) {
    struct h1scan s = {0};
    size_t done = 0;
    *ret_good = 0;
    while (done < len) {
        size_t n = len - done < piece ? len - done : piece, good;
        int st = h1scan_take(&s, bytes, done + n, n, &limits, &good, e);
        *ret_good += good;
        if (st) return st;
        done += n;
    }
    return ST_OK;
}

TEST(streams_of_bytes_are_taken_or_refused_at_the_same_byte_however_they_are_cut) {
    for (size_t i = 0; i < sizeof streams / sizeof *streams; i++) {
        size_t len = strlen(streams[i].bytes);
        for (size_t piece = 1; piece <= len; piece++) {
            struct apierr e = {0};
            size_t good;
            int st = take(streams[i].bytes, len, piece, &good, &e);
            size_t wanted = streams[i].good < 0 ? len : (size_t)streams[i].good;
            if (!st != !streams[i].says || good != wanted)
                test_fail(__FILE__, __LINE__, "%s in pieces of %zu: %d after %zu, wanted %zu: %s",
                          streams[i].bytes, piece, st, good, wanted, e.message);
            if (st) CHECK_HAS(e.message, streams[i].says);
        }
    }
}

// h2o would answer it in plain text. What is announced within the slack is read, and refused by http.c.
TEST(a_length_far_over_the_limit_is_413_with_its_digits_named) {
    static const char first[] = GET;
    static const struct {
        const char *fields, *digits; // NULL: fine
        bool named;
    } cases[] = {{"Content-Length: 263144", NULL, false},
                 {"Content-Length: 263145", "263145", true},
                 {"Content-Length:\t999999999999999999 \r\nX: 5", "999999999999999999", true},
                 {"Content-Length: 263145\r\nContent-Length: 263145", "263145", false}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char bytes[300];
        struct h1scan s = {0};
        struct apierr e = {0};
        size_t good;
        int len = snprintf(bytes, sizeof bytes, "%sPOST / HTTP/1.1\r\nHost: a\r\n%s\r\n\r\n{}",
                           first, cases[i].fields);
        int st = h1scan_take(&s, bytes, (size_t)len, (size_t)len, &limits, &good, &e);
        CHECK_EQ(!st, !cases[i].digits);
        if (!st) continue;
        CHECK_EQ(apierr_status(e.code), 413);
        CHECK_HAS(e.message, "at most 1000 bytes, got ");
        CHECK_HAS(e.message, cases[i].digits);
        CHECK_EQ(s.head_refused, true);
        CHECK_EQ(s.body_refused, cases[i].named);
        CHECK_EQ(good, len - 3); // all but the head's last byte and the body
        CHECK_EQ(s.seen, len - 2 - strlen(first));
        if (!cases[i].named) continue;
        CHECK_EQ(s.length_len, strlen(cases[i].digits));
        CHECK_MEM(bytes + strlen(first) + s.length_at, cases[i].digits, s.length_len);
    }
}

TEST(a_head_over_its_limit_is_431_while_it_comes) {
    char head[400] = "GET / HTTP/1.1\r\nHost: a\r\nX: ";
    memset(head + strlen(head), 'x', 300);
    struct apierr e = {0};
    size_t good;
    CHECK_EQ(take(head, 330, 7, &good, &e), ST_INVAL);
    CHECK_EQ(good, 200);
    CHECK_EQ(apierr_status(e.code), 431);
}
