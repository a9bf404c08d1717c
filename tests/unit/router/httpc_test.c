/* httpc: addresses, and one request against servers that answer, break off, refuse and fall silent. */
#include "common/err.h"
#include "common/strbuf.h"
#include "router/httpc.h"
#include "tests/lib/fake_http.h"
#include "tests/lib/test.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

__attribute__((constructor)) static void ignore_sigpipe(void) {
    signal(SIGPIPE, SIG_IGN);
}

static const struct {
    const char *text, *host, *prefix, *path; // path: of a unix socket
    int port;
} good[] = {
    {"127.0.0.1:8000", "127.0.0.1:8000", "", NULL, 8000},
    {"http://127.0.0.1:8000", "127.0.0.1:8000", "", NULL, 8000},
    {"HTTP://127.0.0.1:8000/", "127.0.0.1:8000", "", NULL, 8000},
    {"http://127.0.0.1:8000/v1", "127.0.0.1:8000", "", NULL, 8000},
    {"http://127.0.0.1:8000/v1/", "127.0.0.1:8000", "", NULL, 8000},
    {"http://127.0.0.1:8000/models/a/v1", "127.0.0.1:8000", "/models/a", NULL, 8000},
    {"http://127.0.0.1", "127.0.0.1", "", NULL, 80},
    {"http://[::1]:81", "[::1]:81", "", NULL, 81},
    {":8000", ":8000", "", NULL, 8000},
    {"unix:/run/a.sock", "localhost", "", "/run/a.sock", 0},
};

static int port_of(const struct sockaddr_storage *s) {
    return s->ss_family == AF_INET6 ? ntohs(((const struct sockaddr_in6 *)s)->sin6_port)
                                    : ntohs(((const struct sockaddr_in *)s)->sin_port);
}

TEST(an_address_is_a_url_a_host_with_a_port_or_a_socket) {
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        struct httpc_address a;
        struct err e = {0};
        CHECK_OK(httpc_address_parse(&a, good[i].text, &e), e);
        CHECK_STR(a.text, good[i].text);
        CHECK_STR(a.host, good[i].host);
        CHECK_STR(a.prefix, good[i].prefix);
        if (good[i].path) {
            CHECK_STR(a.unix_path, good[i].path);
        } else {
            CHECK(a.count > 0);
            CHECK_EQ(port_of(&a.at[0]), good[i].port);
        }
        httpc_address_fini(&a);
    }
}

TEST(a_bad_address_is_named) {
    static const char *const bad[][2] = {
        {"", "HOST:PORT"},
        {"127.0.0.1", "HOST:PORT"},
        {"127.0.0.1:", "HOST:PORT"},
        {"127.0.0.1:x", "127.0.0.1:x"},
        {"127.0.0.1:65536", "127.0.0.1:65536"},
        {"127.0.0.1:-1", "HOST:PORT"},
        {"http://", "HOST:PORT"},
        {"http://127.0.0.1:80?x", "HOST:PORT"},
        {"http://me@127.0.0.1:80", "HOST:PORT"},
        {"http://a b:80", "HOST:PORT"},
        {"https://127.0.0.1:8000", "https"},
        {"unix:", "unix:/path"},
        {"unix:/"
         "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
         "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
         "at most 107 bytes"},
        {"no-such-host.invalid:80", "no-such-host.invalid"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct httpc_address a;
        struct err e = {0};
        CHECK(httpc_address_parse(&a, bad[i][0], &e) != ST_OK);
        CHECK_HAS(e.msg, bad[i][1]);
    }
}

static int fetch(const char *address, const struct httpc_request *q, int *status,
                 struct strbuf *body, struct err *e) {
    struct httpc_address a;
    int st = httpc_address_parse(&a, address, e);
    if (st) return st;
    st = httpc_fetch(&a, q, status, body, e);
    httpc_address_fini(&a);
    return st;
}

static const struct httpc_request plain = {.method = "GET", .path = "/x", .stall_ms = 60000};

static const char *address_of(const struct fake_http *f) {
    static char text[64];
    snprintf(text, sizeof text, "127.0.0.1:%u", fake_http_port(f));
    return text;
}

TEST(a_request_has_host_key_and_body_and_the_reply_comes_back) {
    static const char *const replies[] = {"HTTP/1.1 418 No\r\nContent-Length: 3\r\n\r\ntea"};
    struct fake_http *f = fake_http_start(replies, 1);
    struct httpc_request q = {.method = "POST",
                              .path = "/v1/x",
                              .key = "secret",
                              .body = "{\"a\":1}",
                              .body_len = 7,
                              .stall_ms = 60000};
    struct strbuf body = {0};
    struct err e = {0};
    int status = 0;
    char wanted[256];
    CHECK_OK(fetch(address_of(f), &q, &status, &body, &e), e);
    CHECK_EQ(status, 418);
    CHECK_STR(strbuf_str(&body), "tea");
    snprintf(wanted, sizeof wanted,
             "POST /v1/x HTTP/1.1\r\nHost: %s\r\nConnection: close\r\nAuthorization: Bearer "
             "secret\r\nContent-Type: application/json\r\nContent-Length: 7\r\n\r\n{\"a\":1}",
             address_of(f));
    CHECK_STR(fake_http_join(f), wanted);
    strbuf_fini(&body);
    fake_http_free(f);
}

TEST(a_unix_socket_serves_as_well) {
    static const char *const replies[] = {"HTTP/1.1 200 OK\r\n\r\nhere"};
    char path[128], address[160];
    snprintf(path, sizeof path, "%s/s", test_temp_dir());
    snprintf(address, sizeof address, "unix:%s", path);
    struct fake_http *f = fake_http_start_unix(path, replies, 1);
    struct strbuf body = {0};
    struct err e = {0};
    int status = 0;
    CHECK_OK(fetch(address, &plain, &status, &body, &e), e);
    CHECK_STR(strbuf_str(&body), "here");
    CHECK_HAS(fake_http_join(f), "Host: localhost\r\n");
    strbuf_fini(&body);
    fake_http_free(f);
    unlink(path);
}

TEST(a_reply_that_breaks_off_or_is_none_is_an_error) {
    static const char *const replies[] = {"", "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf",
                                          "220 mail here\r\n"};
    static const struct {
        int st;
        const char *says;
    } wanted[] = {{ST_CLOSED, "before a reply came"},
                  {ST_CLOSED, "within the reply"},
                  {ST_CORRUPT, "220 mail here"}};
    struct fake_http *f = fake_http_start(replies, 3);
    for (size_t i = 0; i < 3; i++) {
        struct strbuf body = {0};
        struct err e = {0};
        int status = 0;
        CHECK_EQ(fetch(address_of(f), &plain, &status, &body, &e), wanted[i].st);
        CHECK_HAS(e.msg, wanted[i].says);
        strbuf_fini(&body);
    }
    fake_http_free(f);
}

TEST(a_server_that_falls_silent_is_given_up) {
    static const char *const replies[] = {NULL};
    struct fake_http *f = fake_http_start(replies, 1);
    struct httpc_request q = plain;
    struct strbuf body = {0};
    struct err e = {0};
    int status = 0;
    q.stall_ms = 30;
    CHECK_EQ(fetch(address_of(f), &q, &status, &body, &e), ST_TIMEOUT);
    CHECK_HAS(e.msg, "nothing came from 127.0.0.1:");
    strbuf_fini(&body);
    fake_http_free(f);
}

// A port that was just given back: nobody listens there.
static uint16_t closed_port(void) {
    struct sockaddr_in sa = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof sa;
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    CHECK_EQ(bind(fd, (struct sockaddr *)&sa, sizeof sa), 0);
    CHECK_EQ(getsockname(fd, (struct sockaddr *)&sa, &len), 0);
    close(fd);
    return ntohs(sa.sin_port);
}

TEST(a_server_that_is_not_there_is_named) {
    char address[64];
    struct strbuf body = {0};
    struct err e = {0};
    int status = 0;
    snprintf(address, sizeof address, "127.0.0.1:%u", closed_port());
    CHECK_EQ(fetch(address, &plain, &status, &body, &e), ST_IO);
    CHECK_HAS(e.msg, address);
    CHECK_HAS(e.msg, "refused");
    CHECK_EQ(fetch("unix:/nowhere/at/all", &plain, &status, &body, &e), ST_IO);
    CHECK_HAS(e.msg, "unix:/nowhere/at/all");
    strbuf_fini(&body);
}

// "localhost" is often two addresses, and a server on one of them only.
TEST(the_next_address_is_tried_when_one_refuses) {
    static const char *const replies[] = {"HTTP/1.1 200 OK\r\n\r\nsecond"};
    struct fake_http *f = fake_http_start(replies, 1);
    struct httpc_address a;
    struct strbuf body = {0};
    struct err e = {0};
    int status = 0;
    CHECK_OK(httpc_address_parse(&a, address_of(f), &e), e);
    a.count = 3;
    a.at[2] = a.at[0];
    ((struct sockaddr_in *)&a.at[0])->sin_port = htons(closed_port());
    a.at[1] = a.at[0];
    CHECK_OK(httpc_fetch(&a, &plain, &status, &body, &e), e);
    CHECK_STR(strbuf_str(&body), "second");
    httpc_address_fini(&a);
    strbuf_fini(&body);
    fake_http_free(f);
}

struct cancelled {
    struct httpc *http;
    int bodies, ends, st;
};

static void cancel_on_body(void *arg, const char *p, size_t len) {
    struct cancelled *c = arg;
    (void)p, (void)len;
    c->bodies++;
    httpc_cancel(c->http);
}

static void cancel_end(void *arg, int st, const struct err *e) {
    struct cancelled *c = arg;
    (void)e;
    c->ends++;
    c->st = st;
}

TEST(a_cancelled_request_ends_once_and_hears_nothing_more) {
    static const char *const replies[] = {
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n1\r\nb\r\n0\r\n\r\n"};
    struct fake_http *f = fake_http_start(replies, 1);
    struct httpc_address a;
    struct err e = {0};
    struct cancelled c = {0};
    struct httpc_events events = {&c, NULL, cancel_on_body, cancel_end};
    uv_loop_t loop;
    uv_loop_init(&loop);
    CHECK_OK(httpc_address_parse(&a, address_of(f), &e), e);
    c.http = httpc_start(&loop, &a, &plain, &events);
    uv_run(&loop, UV_RUN_DEFAULT);
    CHECK_EQ(c.bodies, 1);
    CHECK_EQ(c.ends, 1);
    CHECK_EQ(c.st, ST_CANCELLED);
    CHECK_EQ(uv_loop_close(&loop), 0);
    httpc_address_fini(&a);
    fake_http_free(f);
}
