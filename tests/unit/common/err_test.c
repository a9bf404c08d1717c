/* err: messages name what they should, whole and in bounds. */
#include "common/err.h"
#include "tests/lib/test.h"

#include <errno.h>
#include <string.h>

TEST(a_message_carries_its_status_and_text) {
    struct err e = {0};
    CHECK_EQ(err_set(&e, ST_INVAL, "rows=%d", 3), ST_INVAL);
    CHECK_EQ(e.st, ST_INVAL);
    CHECK_STR(e.msg, "rows=3");
}

TEST(a_caller_without_an_err_still_gets_the_status) {
    CHECK_EQ(err_set(NULL, ST_FULL, "x"), ST_FULL);
    errno = ENOENT;
    CHECK_EQ(err_errno(NULL, "open"), ST_NOT_FOUND);
}

TEST(errno_is_told_apart_and_spelt_out) {
    struct err e = {0};
    errno = EACCES;
    CHECK_EQ(err_errno(&e, "open '%s'", "f"), ST_IO);
    CHECK_STR(e.msg, "open 'f': Permission denied");
}

TEST(a_prefix_goes_before_the_message_and_keeps_the_status) {
    struct err e = {0};
    err_set(&e, ST_CORRUPT, "bad length");
    CHECK_EQ(err_prefix(&e, "file %s", "a"), ST_CORRUPT);
    CHECK_STR(e.msg, "file a: bad length");
}

// A file name or a key with a newline in it would forge a log line.
TEST(a_message_stays_one_line_whatever_it_quotes) {
    struct err e = {0};
    err_set(&e, ST_INVAL, "found '%s'", "a\nb\r\x1b\x7f\xC3\xA9");
    CHECK_STR(e.msg, "found 'a?b???\xC3\xA9'");
    err_prefix(&e, "file %s", "x\ny");
    CHECK_STR(e.msg, "file x?y: found 'a?b???\xC3\xA9'");
}

// A cut inside a character would put invalid UTF-8 into an HTTP error body.
TEST(a_message_that_is_too_long_is_cut_on_a_character_border) {
    struct err e = {0};
    char text[3000];
    for (size_t shift = 0; shift < 4; shift++) {
        memset(text, 'a', shift);
        for (size_t i = shift; i + 4 < sizeof text; i += 3) memcpy(text + i, "\xe2\x82\xac", 4);
        err_set(&e, ST_INVAL, "%s", text);
        size_t n = strlen(e.msg);
        CHECK(n < ERR_MSG_BYTES && n > ERR_MSG_BYTES - 8);
        CHECK_EQ((n - shift) % 3, 0);
    }
}
