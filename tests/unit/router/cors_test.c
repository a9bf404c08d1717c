/* Which web origins may read replies. */
#include "common/err.h"
#include "router/cors.h"
#include "tests/lib/test.h"

#include <string.h>

static bool allows(const struct cors *c, const char *origin) {
    return cors_allows(c, origin, strlen(origin));
}

TEST(without_a_setting_every_origin_may_read_exactly_when_keys_are_asked_for) {
    struct cors c;
    struct err e = {0};
    CHECK_OK(cors_init(&c, "", false, &e), e);
    CHECK(!cors_on(&c));
    CHECK(!allows(&c, "https://a"));
    CHECK_OK(cors_init(&c, "", true, &e), e);
    CHECK(cors_on(&c) && c.any);
    CHECK(allows(&c, "https://a"));
    CHECK_OK(cors_init(&c, "none", true, &e), e);
    CHECK(!cors_on(&c));
}

TEST(of_a_list_whole_origins_match_and_nothing_else) {
    struct cors c;
    struct err e = {0};
    CHECK_OK(cors_init(&c, "https://a.example,http://localhost:3000", false, &e), e);
    CHECK(cors_on(&c) && !c.any);
    CHECK(allows(&c, "https://a.example"));
    CHECK(allows(&c, "http://localhost:3000"));
    CHECK(!allows(&c, "https://a.example.evil"));
    CHECK(!allows(&c, "https://a.exampl"));
    CHECK(!allows(&c, "http://localhost"));
    CHECK(!allows(&c, "null"));
    CHECK(!allows(&c, ""));
}

TEST(what_is_no_origin_is_refused_by_name) {
    static const char *const bad[] = {"a.example",   "https://",    "https://a/",
                                      "https://a/b", "://a",        "https://a,b",
                                      "https://u@a", "https://a b", ","};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct cors c;
        struct err e = {0};
        CHECK_EQ(cors_init(&c, bad[i], false, &e), ST_INVAL);
        CHECK_HAS(e.msg, "api.cors_origins");
    }
}
