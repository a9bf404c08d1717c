/* Bodies: what a client may send, strictly, and where each mistake is. */
#include "common/err.h"
#include "common/strbuf.h"
#include "router/apierr.h"
#include "router/body.h"
#include "router/text/bigint.h"
#include "tests/lib/test.h"

#include <stdio.h>
#include <string.h>

static int parse(const char *text, size_t len, json_t **ret, struct body_stats *stats,
                 struct apierr *e) {
    *e = (struct apierr){0};
    *ret = NULL;
    return body_parse(text, len, ret, stats, e);
}

TEST(valid_bodies_are_taken_as_they_are) {
    static const char *const bodies[] = {
        "{}",
        " \t\r\n{ } \n",
        "\xef\xbb\xbf{\"a\":1}",
        "{\"a\":[],\"b\":{},\"c\":[[],{}],\"d\":null,\"e\":true,\"f\":false}",
        "{\"a\":0,\"b\":-0,\"c\":1.5,\"d\":-1e-3,\"e\":8E+2,\"f\":9223372036854775807}",
        "{\"a\":\"\\\"\\\\\\/\\b\\f\\n\\r\\t\\u00e9\\ud83d\\ude00\\u0000\"}",
        "{\"a\":\"\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80\"}",
        "{\"a\":1,\"a\":2}",
    };
    for (size_t i = 0; i < sizeof bodies / sizeof *bodies; i++) {
        json_t *v;
        struct body_stats stats;
        struct apierr e;
        int st = parse(bodies[i], strlen(bodies[i]), &v, &stats, &e);
        if (st) test_fail(__FILE__, __LINE__, "'%s': %s", bodies[i], e.message);
        CHECK(json_is_object(v));
        json_decref(v);
    }
}

static const struct {
    const char *body;
    enum apierr_code code;
    const char *says;
} invalid[] = {
    {"", APIERR_INVALID_JSON, "byte 0: wanted a JSON object, found the end of the body"},
    {"  ", APIERR_INVALID_JSON, "byte 2"},
    {"[]", APIERR_INVALID_JSON, "byte 0: wanted a JSON object, found '['"},
    {"\"x\"", APIERR_INVALID_JSON, "byte 0"},
    {"null", APIERR_INVALID_JSON, "byte 0"},
    {"\xef\xbb\xbf[]", APIERR_INVALID_JSON, "byte 3"},
    {"{", APIERR_INVALID_JSON, "byte 1: wanted a key in quotes, found the end"},
    {"{a:1}", APIERR_INVALID_JSON, "byte 1: wanted a key in quotes, found 'a'"},
    {"{\"a\" 1}", APIERR_INVALID_JSON, "byte 5: wanted ':'"},
    {"{\"a\":}", APIERR_INVALID_JSON, "byte 5: wanted a value"},
    {"{\"a\":1,}", APIERR_INVALID_JSON, "byte 7: wanted a key"},
    {"{\"a\":[1,]}", APIERR_INVALID_JSON, "byte 8: wanted a value"},
    {"{\"a\":[1 2]}", APIERR_INVALID_JSON, "byte 8: wanted ',' or ']'"},
    {"{\"a\":1 \"b\":2}", APIERR_INVALID_JSON, "byte 7: wanted ',' or '}'"},
    {"{\"a\":[1}", APIERR_INVALID_JSON, "wanted ',' or ']'"},
    {"{\"a\":1}]", APIERR_INVALID_JSON, "byte 7: wanted nothing behind the value"},
    {"{} {}", APIERR_INVALID_JSON, "byte 3"},
    {"{\"a\":01}", APIERR_INVALID_JSON, "byte 6: wanted no digit behind a leading zero"},
    {"{\"a\":1.}", APIERR_INVALID_JSON, "byte 7: wanted a digit behind the point"},
    {"{\"a\":.5}", APIERR_INVALID_JSON, "byte 5"},
    {"{\"a\":+1}", APIERR_INVALID_JSON, "byte 5"},
    {"{\"a\":-}", APIERR_INVALID_JSON, "byte 6: wanted a digit"},
    {"{\"a\":1e}", APIERR_INVALID_JSON, "wanted a digit of the exponent"},
    {"{\"a\":1e999}", APIERR_INVALID_JSON, "byte 5: wanted a number within the range of a double"},
    {"{\"a\":-1e999}", APIERR_INVALID_JSON, "range of a double"},
    {"{\"a\":NaN}", APIERR_INVALID_JSON, "byte 5"},
    {"{\"a\":Infinity}", APIERR_INVALID_JSON, "byte 5"},
    {"{\"a\":tru}", APIERR_INVALID_JSON, "byte 5"},
    {"{\"a\":'x'}", APIERR_INVALID_JSON, "byte 5"},
    {"{\"a\":\"x}", APIERR_INVALID_JSON, "byte 8: wanted '\"'"},
    {"{\"a\":\"\\x\"}", APIERR_INVALID_JSON, "wanted an escape"},
    {"{\"a\":\"\\u12g4\"}", APIERR_INVALID_JSON, "four hex digits"},
    {"{\"a\":\"\\u12\"}", APIERR_INVALID_JSON, "four hex digits"},
    {"{\"a\":\"x\ny\"}", APIERR_INVALID_JSON, "byte 7: wanted no bare control character"},
    {"{\"a\\u0000b\":1}", APIERR_INVALID_JSON, "a key without U+0000"},
    {"/* c */{}", APIERR_INVALID_JSON, "byte 0"},
    {"{\"a\":\"\xff\"}", APIERR_INVALID_UTF8, "byte 6 (0xff)"},
    {"{\"a\":\"\xc3\"}", APIERR_INVALID_UTF8, "byte 6 (0xc3)"},
    {"{\"a\":\"\xed\xa0\x80\"}", APIERR_INVALID_UTF8, "byte 6 (0xed)"},
    {"{\"a\":\"\xc0\xaf\"}", APIERR_INVALID_UTF8, "byte 6 (0xc0)"},
    {"{\"a\":\"\xf4\x90\x80\x80\"}", APIERR_INVALID_UTF8, "byte 6 (0xf4)"},
    // The whole body's UTF-8 is looked at before its syntax.
    {"{]\xff", APIERR_INVALID_UTF8, "byte 2"},
};

TEST(each_mistake_is_named_with_its_byte) {
    for (size_t i = 0; i < sizeof invalid / sizeof *invalid; i++) {
        json_t *v;
        struct body_stats stats;
        struct apierr e;
        int st = parse(invalid[i].body, strlen(invalid[i].body), &v, &stats, &e);
        if (!st) test_fail(__FILE__, __LINE__, "taken: %s", invalid[i].body);
        if (e.code != invalid[i].code || !strstr(e.message, invalid[i].says))
            test_fail(__FILE__, __LINE__, "'%s': %d '%s', wanted '%s'", invalid[i].body, e.code,
                      e.message, invalid[i].says);
        CHECK(v == NULL);
    }
}

// A NUL is an ordinary wrong byte, not the end.
TEST(bytes_behind_a_nul_are_seen) {
    json_t *v;
    struct body_stats stats;
    struct apierr e;
    CHECK_EQ(parse("{}\0{}", 5, &v, &stats, &e), ST_INVAL);
    CHECK_HAS(e.message, "byte 2");
}

static void nested(struct strbuf *out, int levels, char open, char close) {
    strbuf_add_str(out, "{\"a\":");
    for (int i = 1; i < levels; i++) strbuf_add_char(out, open);
    for (int i = 1; i < levels; i++) strbuf_add_char(out, close);
    strbuf_add_str(out, levels > 1 ? "}" : "1}");
}

TEST(sixty_four_levels_are_taken_and_one_more_is_refused) {
    for (int levels = BODY_DEPTH_MAX; levels <= BODY_DEPTH_MAX + 1; levels++) {
        struct strbuf text = {0};
        json_t *v;
        struct body_stats stats;
        struct apierr e;
        nested(&text, levels, '[', ']');
        CHECK_EQ(parse(text.p, text.len, &v, &stats, &e),
                 levels > BODY_DEPTH_MAX ? ST_INVAL : ST_OK);
        if (levels > BODY_DEPTH_MAX) CHECK_HAS(e.message, "deeper than 64");
        json_decref(v);
        strbuf_fini(&text);
    }
}

// A small body must not become a large tree.
TEST(more_of_anything_than_a_request_can_mean_is_refused) {
    static const struct {
        const char *what, *first, *more;
        uint32_t max;
    } cases[] = {
        {"objects and arrays", "{\"a\":[", "{}", BODY_CONTAINERS_MAX - 2},
        {"objects and arrays", "{\"a\":[", "[]", BODY_CONTAINERS_MAX - 2},
        {"keys", "{\"a\":[{", "\"b\":0", BODY_KEYS_MAX - 1},
        {"values", "{\"a\":[", "0", BODY_VALUES_MAX - 2},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (uint32_t more = 0; more < 2; more++) {
            struct strbuf text = {0};
            json_t *v;
            struct body_stats stats;
            struct apierr e;
            bool in_object = cases[i].first[strlen(cases[i].first) - 1] == '{';
            strbuf_add_str(&text, cases[i].first);
            for (uint32_t n = 0; n < cases[i].max + more; n++) {
                if (n) strbuf_add_char(&text, ',');
                strbuf_add_str(&text, cases[i].more);
            }
            strbuf_add_str(&text, in_object ? "}]}" : "]}");
            CHECK_EQ(parse(text.p, text.len, &v, &stats, &e), more ? ST_INVAL : ST_OK);
            if (more) CHECK_EQ(e.code, APIERR_INVALID_JSON);
            if (more) CHECK_HAS(e.message, cases[i].what);
            json_decref(v);
            strbuf_fini(&text);
        }
}

static json_t *take(const char *text, struct body_stats *stats) {
    json_t *v;
    struct apierr e;
    if (parse(text, strlen(text), &v, stats, &e))
        test_fail(__FILE__, __LINE__, "%s: %s", text, e.message);
    return v;
}

TEST(lone_surrogates_become_replacement_characters_and_are_counted) {
    struct body_stats stats;
    json_t *v = take("{\"a\":\"x\\ud83dy\\udc00\\ud800\\ud800\\ude00z\",\"\\udfff\":1}", &stats);
    CHECK_STR(json_string_value(json_object_get(v, "a")),
              "x\xef\xbf\xbdy\xef\xbf\xbd\xef\xbf\xbd\xf0\x90\x88\x80z");
    CHECK_EQ(stats.lone_surrogates, 4);
    CHECK(json_object_get(v, "\xef\xbf\xbd") != NULL);
    json_decref(v);
    v = take("{\"a\":\"\\ud83d\\ude00\"}", &stats);
    CHECK_EQ(stats.lone_surrogates, 0);
    json_decref(v);
}

TEST(whole_numbers_beyond_64_bits_keep_their_digits) {
    static const char *const digits[] = {"9223372036854775808", "18446744073709551615",
                                         "-9223372036854775809", "123456789012345678901234567890"};
    for (size_t i = 0; i < sizeof digits / sizeof *digits; i++) {
        char text[128];
        struct body_stats stats;
        snprintf(text, sizeof text, "{\"s\":\"\\ud800\",\"n\":%s,\"m\":7}", digits[i]);
        json_t *v = take(text, &stats);
        const json_t *n = json_object_get(v, "n");
        CHECK_STR(bigint_digits(n), digits[i]);
        CHECK(!body_is_text(n));
        CHECK_STR(body_type_name(n), "an integer");
        CHECK_EQ(json_integer_value(json_object_get(v, "m")), 7);
        json_decref(v);
    }
    struct body_stats stats;
    json_t *v = take("{\"n\":-9223372036854775808}", &stats);
    CHECK(bigint_digits(json_object_get(v, "n")) == NULL);
    json_decref(v);
}

// A client cannot spell a big integer as a string: what is compared is 128 random bits of this process.
TEST(no_string_passes_for_a_big_integer) {
    struct body_stats stats;
    json_t *v = take("{\"a\":\"\\u000000000000000000000000000000000000:7\",\"b\":\"\"}", &stats);
    CHECK(bigint_digits(json_object_get(v, "a")) == NULL);
    CHECK(body_is_text(json_object_get(v, "a")));
    CHECK(body_is_text(json_object_get(v, "b")));
    json_decref(v);
}

TEST(a_number_of_a_thousand_digits_is_refused) {
    struct strbuf text = {0};
    json_t *v;
    struct body_stats stats;
    struct apierr e;
    strbuf_add_str(&text, "{\"n\":");
    for (int i = 0; i < 1000; i++) strbuf_add_char(&text, '9');
    strbuf_add_char(&text, '}');
    CHECK_EQ(parse(text.p, text.len, &v, &stats, &e), ST_INVAL);
    CHECK_HAS(e.message, "range of a double");
    strbuf_fini(&text);
}
