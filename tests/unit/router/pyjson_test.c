/* pyjson: text as Python prints it; the wanted column is Python's own output. */
#include "common/strbuf.h"
#include "router/text/pyjson.h"
#include "tests/lib/test.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

TEST(reals_print_as_python_prints_them) {
    static const struct {
        double v;
        const char *text;
    } rows[] = {
        {0.0, "0.0"},
        {-0.0, "-0.0"},
        {1.0, "1.0"},
        {-1.5, "-1.5"},
        {0.1, "0.1"},
        {1e5, "100000.0"},
        {1e15, "1000000000000000.0"},
        {1e16, "1e+16"},
        {1e22, "1e+22"},
        {9999999999999998.0, "9999999999999998.0"},
        {1.2345e16, "1.2345e+16"},
        {0.0001, "0.0001"},
        {0.00001, "1e-05"},
        {0.00012345, "0.00012345"},
        {1.5e-7, "1.5e-07"},
        {1e100, "1e+100"},
        {123456.789, "123456.789"},
        {0.3333333333333333, "0.3333333333333333"},
        {5e-324, "5e-324"},
        {2.2250738585072014e-308, "2.2250738585072014e-308"},
        {1.7976931348623157e308, "1.7976931348623157e+308"},
        {0x1p-44, "5.684341886080802e-14"}, // the closest 16 digits do not read back, the next do
        {0x1p-1022, "2.2250738585072014e-308"},
        {0x1p53, "9007199254740992.0"},
        {0x1p54, "1.8014398509481984e+16"},
        {9007199254740993.0, "9007199254740992.0"},
        {100.0, "100.0"},
        {1234567890123456.0, "1234567890123456.0"},
        {0.1 + 0.2, "0.30000000000000004"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct strbuf b = {0};
        pyjson_add_real(&b, rows[i].v);
        CHECK_STR(b.p, rows[i].text);
        CHECK(strtod(b.p, NULL) == rows[i].v);
        strbuf_fini(&b);
    }
}

TEST(numbers_that_json_has_not_print_as_python_prints_them) {
    struct strbuf b = {0};
    pyjson_add_real(&b, NAN);
    pyjson_add_real(&b, INFINITY);
    pyjson_add_real(&b, -INFINITY);
    CHECK_STR(b.p, "NaNInfinity-Infinity");
    strbuf_fini(&b);
}

TEST(values_print_as_python_prints_them) {
    static const struct {
        const char *json, *text;
    } rows[] = {
        {"{\"b\":1,\"a\":[true,false,null],\"b\":{\"c\":{}}}",
         "{\"b\": {\"c\": {}}, \"a\": [true, false, null]}"},
        {"[]", "[]"},
        {"[-0, -7, 9223372036854775807, -9223372036854775808]",
         "[0, -7, 9223372036854775807, -9223372036854775808]"},
        {"\"\\u0001\\u001f\\b\\f\\n\\r\\t\\\"\\\\\\/<>&'\\u007f\\u2028\\u00e9\\ud83d\\ude00\"",
         "\"\\u0001\\u001f\\b\\f\\n\\r\\t\\\"\\\\/<>&'\x7f\xE2\x80\xA8\xC3\xA9\xF0\x9F\x98\x80\""},
        {"[1e5, 1.0, 1E400e]", NULL},
        {"{\"\\u0009\":\"\"}", "{\"\\t\": \"\"}"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        json_t *v = json_loads(rows[i].json, JSON_DECODE_ANY, NULL);
        CHECK_EQ(v != NULL, rows[i].text != NULL);
        if (!v) continue;
        struct strbuf b = {0};
        pyjson_add(&b, v);
        CHECK_STR(b.p, rows[i].text);
        strbuf_fini(&b);
        json_decref(v);
    }
}

TEST(a_nul_in_a_string_prints_escaped) {
    json_t *v = json_loads("\"a\\u0000b\"", JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL);
    struct strbuf b = {0};
    pyjson_add(&b, v);
    CHECK_STR(b.p, "\"a\\u0000b\"");
    strbuf_fini(&b);
    json_decref(v);
}
