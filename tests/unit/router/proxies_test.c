/* Whose word counts about who asks: networks, and the client's address out of what proxies add. */
#include "common/err.h"
#include "router/proxies.h"
#include "tests/lib/test.h"

#include <arpa/inet.h>
#include <string.h>
#include <sys/socket.h>

static bool trusts(const struct proxies *p, const char *address) {
    struct sockaddr_in v4 = {.sin_family = AF_INET};
    struct sockaddr_in6 v6 = {.sin6_family = AF_INET6};
    if (inet_pton(AF_INET, address, &v4.sin_addr) == 1)
        return proxies_trust(p, (struct sockaddr *)&v4);
    CHECK_EQ(inet_pton(AF_INET6, address, &v6.sin6_addr), 1);
    return proxies_trust(p, (struct sockaddr *)&v6);
}

TEST(networks_are_told_from_their_neighbours) {
    struct proxies *p;
    struct err e = {0};
    CHECK_OK(proxies_open(&p, "127.0.0.1, 10.0.0.0/8,192.168.4.0/22,fd00::/8,2001:db8::7", &e), e);
    static const char *const in[] = {"127.0.0.1",   "10.0.0.0",       "10.255.255.255",
                                     "192.168.4.0", "192.168.7.9",    "fd12:3::4",
                                     "2001:db8::7", "::ffff:10.1.1.1"};
    static const char *const out[] = {"127.0.0.2",   "11.0.0.0", "9.255.255.255", "192.168.8.0",
                                      "192.168.3.9", "fc00::1",  "2001:db8::8",   "::1"};
    for (size_t i = 0; i < sizeof in / sizeof *in; i++)
        if (!trusts(p, in[i])) test_fail(__FILE__, __LINE__, "%s is not trusted", in[i]);
    for (size_t i = 0; i < sizeof out / sizeof *out; i++)
        if (trusts(p, out[i])) test_fail(__FILE__, __LINE__, "%s is trusted", out[i]);
    CHECK(!proxies_trust(p, NULL));
    proxies_close(p);
    CHECK_OK(proxies_open(&p, "unix", &e), e);
    CHECK(proxies_trust(p, NULL));
    CHECK(!trusts(p, "127.0.0.1"));
    proxies_close(p);
    CHECK_OK(proxies_open(&p, "", &e), e);
    CHECK(!trusts(p, "127.0.0.1") && !proxies_trust(p, NULL));
    proxies_close(p);
    CHECK_OK(proxies_open(&p, "0.0.0.0/0", &e), e);
    CHECK(trusts(p, "203.0.113.9") && !trusts(p, "::1"));
    proxies_close(p);
}

TEST(a_bad_list_is_refused_by_the_item) {
    static const char *const bad[] = {
        "10.0.0.0/33", "10.0.0/8",    "example.org", "::1/129",   "10.0.0.1,", ",",
        "10.0.0.1/",   "10.0.0.1/-1", "10.0.0.1/8x", "unix:/run", " "};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct proxies *p = NULL;
        struct err e = {0};
        if (proxies_open(&p, bad[i], &e) != ST_INVAL)
            test_fail(__FILE__, __LINE__, "'%s' is taken", bad[i]);
        CHECK_HAS(e.msg, "api.trusted_proxies: wanted");
        CHECK(p == NULL);
    }
}

/* A client may write anything in front of what the proxies add: only what stands right of it counts. */
TEST(the_client_is_the_first_from_the_right_that_is_no_proxy) {
    static const struct {
        const char *field;
        bool forwarded;
        const char *client; // NULL: none
    } cases[] = {
        {"203.0.113.9", false, "203.0.113.9"},
        {"198.51.100.1, 203.0.113.9", false, "203.0.113.9"}, // the left one is its own claim
        {"198.51.100.1, 203.0.113.9, 10.0.0.2,10.0.0.3", false, "203.0.113.9"},
        {"10.0.0.9, 10.0.0.2", false, "10.0.0.9"}, // all are ours: the furthest
        {"203.0.113.9:4711", false, "203.0.113.9"},
        {"[2001:db8::1]:4711", false, "2001:db8::1"},
        {"2001:db8::1", false, "2001:db8::1"},
        {"::ffff:203.0.113.9", false, "203.0.113.9"},
        {"garbage, 10.0.0.2", false, "10.0.0.2"},
        {"203.0.113.9, unknown", false, NULL},
        {"", false, NULL},
        {",", false, NULL},
        {"\"}\n", false, NULL},
        {"for=203.0.113.9", true, "203.0.113.9"},
        {"proto=https;For=\"[2001:db8::1]:4711\";by=10.0.0.1", true, "2001:db8::1"},
        {"for=1.2.3.4, for=203.0.113.9;proto=http, for=10.0.0.2", true, "203.0.113.9"},
        {"for=_hidden, for=10.0.0.2", true, "10.0.0.2"},
        {"for=unknown", true, NULL},
        {"for=", true, NULL},
        {"203.0.113.9", true, NULL},
    };
    struct proxies *p;
    struct err e = {0};
    CHECK_OK(proxies_open(&p, "10.0.0.0/8", &e), e);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char found[PROXIES_ADDRESS_BYTES] = "none";
        bool any =
            proxies_client(p, cases[i].field, strlen(cases[i].field), cases[i].forwarded, found);
        if (any != (cases[i].client != NULL) || (any && strcmp(found, cases[i].client)))
            test_fail(__FILE__, __LINE__, "'%s': found %s, wanted %s", cases[i].field, found,
                      cases[i].client ? cases[i].client : "none");
    }
    proxies_close(p);
}
