/* httpresp: replies of every framing, cut at every byte; broken ones are refused, never misread. */
#include "common/err.h"
#include "common/strbuf.h"
#include "router/httpresp.h"
#include "tests/lib/test.h"

#include <string.h>

struct seen {
    int status, heads;
    struct strbuf body;
};

static void on_head(void *arg, int status) {
    struct seen *s = arg;
    s->status = status;
    s->heads++;
}

static void on_body(void *arg, const char *p, size_t len) {
    strbuf_add(&((struct seen *)arg)->body, p, len);
}

// text in pieces: up to cut, then `step` bytes at a time. Then the close.
static int read_pieces(const char *text, size_t len, size_t cut, size_t step, struct seen *s,
                       struct err *e) {
    struct httpresp r = {.on_head = on_head, .on_body = on_body, .arg = s};
    int st = httpresp_feed(&r, text, cut, e);
    for (size_t at = cut; at < len && !st; at += step)
        st = httpresp_feed(&r, text + at, step < len - at ? step : len - at, e);
    if (!st) st = httpresp_close(&r, e);
    httpresp_fini(&r);
    return st;
}

static const struct {
    const char *text;
    int status;
    const char *body;
} whole[] = {
    {"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello", 200, "hello"},
    {"HTTP/1.1 200 OK\r\ncontent-length:\t5 \r\nX: y:z\r\n\r\nhello", 200, "hello"},
    {"HTTP/1.0 404\r\nContent-Length: 0\r\n\r\n", 404, ""},
    {"HTTP/1.1 204 No Content\r\n\r\n", 204, ""},
    {"HTTP/1.1 200 OK\r\n\r\nuntil\r\n\r\nthe end", 200, "until\r\n\r\nthe end"},
    {"HTTP/1.1 200 OK\r\n\r\n", 200, ""},
    {"HTTP/1.1 200 OK\nContent-Length: 2\n\nab", 200, "ab"},
    {"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early\r\nLink: x\r\n\r\nHTTP/1.1 201 \r\n"
     "Content-Length: 1\r\n\r\nx",
     201, "x"},
    {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n1;name=value\r\n,\r\n"
     "0A \r\n 0\r\n\r\n123\r\r\n0\r\n\r\n",
     200, "hello, 0\r\n\r\n123\r"},
    {"HTTP/1.1 500 No\r\ntransfer-encoding: Chunked\r\nContent-Length: 3\r\n\r\n"
     "000\r\nTrailer: yes\r\n\r\n",
     500, ""}, // chunked wins over a length
};

TEST(a_reply_is_the_same_however_it_is_cut) {
    for (size_t i = 0; i < sizeof whole / sizeof *whole; i++) {
        size_t len = strlen(whole[i].text);
        for (size_t cut = 0; cut <= len; cut++) {
            for (size_t step = 1; step <= len; step += len - 1) {
                struct seen s = {0};
                struct err e = {0};
                CHECK_OK(read_pieces(whole[i].text, len, cut, step, &s, &e), e);
                CHECK_EQ(s.heads, 1);
                CHECK_EQ(s.status, whole[i].status);
                CHECK_STR(strbuf_str(&s.body), whole[i].body);
                strbuf_fini(&s.body);
            }
        }
    }
}

static const struct {
    const char *text;
    int st;
    const char *says;
} broken[] = {
    {"", ST_CLOSED, "before a reply came"},
    {"HTTP/1.1 200", ST_CLOSED, "within the reply"},
    {"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n", ST_CLOSED, "within the reply"},
    {"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhell", ST_CLOSED, "within the reply"},
    {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", ST_CLOSED, "within the reply"},
    {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n", ST_CLOSED, "within"},
    {"HTTP/1.1 100 Continue\r\n\r\n", ST_CLOSED, "before a reply came"},
    {"HTTP/2 200 OK\r\n\r\n", ST_CORRUPT, "status line"},
    {"HTTP/1.1 2x0 OK\r\n\r\n", ST_CORRUPT, "status line"},
    {"HTTP/1.1 2000\r\n\r\n", ST_CORRUPT, "status line"},
    {"HTTP/1.1 099 Low\r\n\r\n", ST_CORRUPT, "status line"},
    {"SSH-2.0-OpenSSH_9.2\r\n", ST_CORRUPT, "SSH-2.0-OpenSSH_9.2"},
    {"HTTP/1.1 200 OK\r\nno colon\r\n\r\n", ST_CORRUPT, "no colon"},
    {"HTTP/1.1 200 OK\r\nContent-Length: 5x\r\n\r\n", ST_CORRUPT, "5x"},
    {"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n", ST_CORRUPT, "content-length"},
    {"HTTP/1.1 200 OK\r\nContent-Length: 99999999999999999999\r\n\r\n", ST_CORRUPT, "length"},
    {"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n", ST_CORRUPT, "one whole"},
    {"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n", ST_CORRUPT, "gzip"},
    {"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nxy", ST_CORRUPT, "behind the end"},
    {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nx\r\n", ST_CORRUPT, "size of a chunk"},
    {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n\r\n", ST_CORRUPT, "size of a chunk"},
    {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1000000000000000\r\n", ST_CORRUPT,
     "size of a chunk"},
    {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nxy\r\n", ST_CORRUPT,
     "end of a chunk"},
};

TEST(a_broken_reply_is_refused_wherever_it_is_cut) {
    for (size_t i = 0; i < sizeof broken / sizeof *broken; i++) {
        size_t len = strlen(broken[i].text);
        for (size_t cut = 0; cut <= len; cut++) {
            struct seen s = {0};
            struct err e = {0};
            CHECK_EQ(read_pieces(broken[i].text, len, cut, 1, &s, &e), broken[i].st);
            CHECK_HAS(e.msg, broken[i].says);
            strbuf_fini(&s.body);
        }
    }
}

// A server that never ends its head must not take our memory.
TEST(a_head_has_a_bound) {
    struct httpresp r = {0};
    struct err e = {0};
    int st = httpresp_feed(&r, "HTTP/1.1 200 OK\r\n", 17, &e);
    for (int i = 0; i < HTTPRESP_HEAD_BYTES_MAX && !st; i++) st = httpresp_feed(&r, "x", 1, &e);
    CHECK_EQ(st, ST_CORRUPT);
    CHECK_HAS(e.msg, "head is over 65536 bytes");
    httpresp_fini(&r);
}

TEST(a_nul_in_a_head_is_refused) {
    struct httpresp r = {0};
    struct err e = {0};
    CHECK_EQ(httpresp_feed(&r, "HTTP/1.1 200 O\0\r\n", 17, &e), ST_CORRUPT);
    CHECK_HAS(e.msg, "NUL");
    httpresp_fini(&r);
}
