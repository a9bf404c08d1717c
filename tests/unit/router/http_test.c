/* The head of an HTTP/1 request: patterns of request smuggling and what RFC 9112 forbids are refused. */
#include "common/err.h"
#include "router/apierr.h"
#include "router/http.h"
#include "tests/lib/test.h"

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
};

TEST(heads_are_taken_or_refused_by_name) {
    for (size_t i = 0; i < sizeof heads / sizeof *heads; i++) {
        struct apierr e = {0};
        int st = http_check_head(heads[i].head, strlen(heads[i].head), heads[i].is_1_1, &e);
        if (!heads[i].says != !st)
            test_fail(__FILE__, __LINE__, "%s: %d %s", heads[i].head, st, e.message);
        if (heads[i].says) CHECK_HAS(e.message, heads[i].says);
        if (st) CHECK_EQ(apierr_status(e.code), 400);
    }
}
