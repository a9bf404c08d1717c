/* JSON strings and numbers written by hand must read back as what went in. */
#include "common/strbuf.h"
#include "router/jsontext.h"
#include "tests/lib/test.h"

#include <jansson.h>
#include <math.h>
#include <string.h>

TEST(strings_read_back_byte_for_byte) {
    char all[128 + 16];
    for (int i = 0; i < 128; i++) all[i] = (char)i;
    memcpy(all + 128,
           "\xc3\xa9\xe2\x80\xa8\xf0\x9f\x98\x80"
           "end!xyz",
           16);
    struct strbuf out = {0};
    jsontext_string(&out, all, sizeof all);
    json_t *v = json_loadb(out.p, out.len, JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL);
    CHECK(v != NULL);
    CHECK_EQ(json_string_length(v), sizeof all);
    CHECK_MEM(json_string_value(v), all, sizeof all);
    CHECK(memchr(out.p, '\n', out.len) == NULL);
    json_decref(v);
    strbuf_fini(&out);
}

TEST(bytes_that_are_no_utf8_become_replacement_characters) {
    static const struct {
        const char *in, *out;
    } cases[] = {{"a\xff"
                  "b",
                  "\"a\xef\xbf\xbd"
                  "b\""},
                 {"\xc3", "\"\xef\xbf\xbd\""},
                 {"\xe2\x82", "\"\xef\xbf\xbd\""},
                 {"\xed\xa0\x80", "\"\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\""},
                 {"", "\"\""}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct strbuf out = {0};
        jsontext_string(&out, cases[i].in, strlen(cases[i].in));
        CHECK_STR(out.p, cases[i].out);
        strbuf_fini(&out);
    }
}

TEST(whole_numbers_are_written_as_printf_does) {
    static const uint64_t xs[] = {0, 7, 10, 99, 100, 248319, 4294967295, UINT64_MAX};
    for (size_t i = 0; i < sizeof xs / sizeof *xs; i++) {
        struct strbuf out = {0}, wanted = {0};
        jsontext_uint(&out, xs[i]);
        strbuf_printf(&wanted, "%llu", (unsigned long long)xs[i]);
        CHECK_STR(out.p, wanted.p);
        strbuf_fini(&out);
        strbuf_fini(&wanted);
    }
}

TEST(numbers_read_back_as_the_same_double) {
    static const double xs[] = {0, 1, -1.5, 0.1, 1.0 / 3, 1e300, 5e-324, 100000};
    for (size_t i = 0; i < sizeof xs / sizeof *xs; i++) {
        struct strbuf out = {0};
        jsontext_real(&out, xs[i]);
        CHECK(strtod(out.p, NULL) == xs[i]);
        strbuf_fini(&out);
    }
    struct strbuf out = {0};
    jsontext_real(&out, NAN);
    jsontext_real(&out, INFINITY);
    CHECK_STR(out.p, "nullnull");
    strbuf_fini(&out);
}
