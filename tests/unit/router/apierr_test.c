/* Errors as clients see them: one object, the right status, no flood of the client's own text. */
#include "common/strbuf.h"
#include "router/apierr.h"
#include "tests/lib/test.h"

#include <jansson.h>
#include <stdio.h>
#include <string.h>

static json_t *body_of(const struct apierr *e) {
    struct strbuf out = {0};
    json_error_t why;
    apierr_body(e, "req_1", &out);
    json_t *v = json_loadb(out.p, out.len, 0, &why);
    if (!v) test_fail(__FILE__, __LINE__, "%s: %s", why.text, out.p);
    strbuf_fini(&out);
    return v;
}

TEST(a_body_has_message_type_param_code_and_request_id) {
    struct apierr e;
    apierr_set(&e, APIERR_INVALID_VALUE, "max_tokens", "max_tokens must be at least 1, got %d", -5);
    json_t *v = body_of(&e);
    const json_t *error = json_object_get(v, "error");
    CHECK_EQ(json_object_size(v), 2);
    CHECK_EQ(json_object_size(error), 4);
    CHECK_STR(json_string_value(json_object_get(error, "message")),
              "max_tokens must be at least 1, got -5");
    CHECK_STR(json_string_value(json_object_get(error, "type")), "invalid_request_error");
    CHECK_STR(json_string_value(json_object_get(error, "param")), "max_tokens");
    CHECK_STR(json_string_value(json_object_get(error, "code")), "invalid_value");
    CHECK_STR(json_string_value(json_object_get(v, "request_id")), "req_1");
    json_decref(v);
}

TEST(without_a_param_it_is_null) {
    struct apierr e;
    apierr_set(&e, APIERR_QUEUE_FULL, NULL, "full");
    json_t *v = body_of(&e);
    CHECK(json_is_null(json_object_get(json_object_get(v, "error"), "param")));
    json_decref(v);
}

TEST(every_code_has_a_name_a_type_and_a_status) {
    for (int c = 1; c < APIERR_CODE_COUNT; c++) {
        CHECK(*apierr_name((enum apierr_code)c));
        CHECK(*apierr_type((enum apierr_code)c) || c == APIERR_CLIENT_CLOSED);
        CHECK(apierr_status((enum apierr_code)c) >= 400);
        CHECK(apierr_status((enum apierr_code)c) <= 504);
    }
}

// A row of the table is "| 404, 405 | `unknown_url`, ... |".
static bool is_row_of(const char *line, int status, const char *name) {
    char number[16], quoted[64];
    const char *column = strchr(line + 1, '|');
    snprintf(number, sizeof number, "%d", status);
    snprintf(quoted, sizeof quoted, "`%s`", name);
    const char *at = strstr(line, number);
    return *line == '|' && column && at && at < column && strstr(column, quoted);
}

TEST(every_code_stands_beside_its_status_where_clients_read_of_it) {
    char path[600], line[2000];
    snprintf(path, sizeof path, "%s/docs/api.md", test_source_dir());
    for (int c = 1; c < APIERR_CODE_COUNT; c++) {
        const char *name = apierr_name((enum apierr_code)c);
        bool found = false;
        FILE *f = fopen(path, "r");
        CHECK(f != NULL);
        while (fgets(line, sizeof line, f))
            found |= is_row_of(line, apierr_status((enum apierr_code)c), name);
        fclose(f);
        if (!found) test_fail(__FILE__, __LINE__, "docs/api.md has no row for %s", name);
    }
}

TEST(a_long_message_is_cut_on_a_character_border_and_stays_json) {
    struct apierr e;
    char text[4000];
    for (size_t i = 0; i + 2 < sizeof text; i += 2) memcpy(text + i, "\xc3\xa9", 2);
    text[sizeof text - 2] = '\0';
    for (int shift = 0; shift < 2; shift++) {
        apierr_set(&e, APIERR_INVALID_VALUE, text, "%s%s", shift ? "x" : "", text);
        CHECK(strlen(e.message) < APIERR_MESSAGE_BYTES);
        json_t *v = body_of(&e);
        json_decref(v);
    }
}

TEST(input_is_shown_in_at_most_64_characters) {
    char clip[APIERR_CLIP_BYTES], text[400];
    memset(text, 'a', sizeof text);
    apierr_clip(clip, text, 64);
    CHECK_EQ(strlen(clip), 64);
    apierr_clip(clip, text, 65);
    CHECK_EQ(strlen(clip), 67);
    CHECK_HAS(clip, "a...");
    CHECK_STR(apierr_clip(clip, "a\nb\x7f\0c", 6), "a?b??c");
    for (size_t i = 0; i < sizeof text; i += 4) memcpy(text + i, "\xf0\x9f\x98\x80", 4);
    apierr_clip(clip, text, sizeof text);
    CHECK_EQ(strlen(clip), 64 * 4 + 3);
    memset(text, 0x80, sizeof text); // no character begins here
    apierr_clip(clip, text, sizeof text);
    CHECK(strlen(clip) < APIERR_CLIP_BYTES);
}
