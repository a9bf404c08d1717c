/* Conversations: one form for the template rules, and each refusal with its path. */
#include "common/err.h"
#include "common/strbuf.h"
#include "router/apierr.h"
#include "router/body.h"
#include "router/messages.h"
#include "router/text/template.h"
#include "tests/lib/test.h"

#include <stdlib.h>
#include <string.h>

static uint32_t surrogates;

static int read(const char *text, bool late_as_user, json_t **ret, struct apierr *e) {
    json_t *v = NULL;
    struct body_stats stats;
    struct strbuf body = {0};
    *ret = NULL;
    strbuf_printf(&body, "{\"messages\":%s}", text);
    if (body_parse(body.p, body.len, &v, &stats, e))
        test_fail(__FILE__, __LINE__, "%s: %s", text, e->message);
    struct messages_options o = {late_as_user, &surrogates};
    int st = messages_read(json_object_get(v, "messages"), &o, ret, e);
    json_decref(v);
    strbuf_fini(&body);
    return st;
}

static void check_becomes(const char *text, const char *wanted) {
    json_t *out, *want = json_loads(wanted, 0, NULL);
    struct apierr e;
    if (read(text, false, &out, &e)) test_fail(__FILE__, __LINE__, "%s: %s", text, e.message);
    if (!json_equal(out, want)) {
        char *found = json_dumps(out, 0);
        test_fail(__FILE__, __LINE__, "%s\n  found  %s\n  wanted %s", text, found, wanted);
    }
    json_decref(out);
    json_decref(want);
}

TEST(strings_and_parts_become_the_same_text) {
    check_becomes("[{\"role\":\"user\",\"content\":\"ab\"}]",
                  "[{\"role\":\"user\",\"content\":\"ab\"}]");
    check_becomes("[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"a\"},"
                  "{\"type\":\"input_text\",\"text\":\"b\"}],\"name\":\"n\"}]",
                  "[{\"role\":\"user\",\"content\":\"ab\"}]");
    check_becomes("[{\"role\":\"user\",\"content\":[]}]", "[{\"role\":\"user\",\"content\":\"\"}]");
    check_becomes(
        "[{\"role\":\"assistant\",\"content\":[{\"type\":\"refusal\",\"refusal\":\"no\"}]}]",
        "[{\"role\":\"assistant\",\"content\":\"no\"}]");
    check_becomes("[{\"role\":\"assistant\"}]", "[{\"role\":\"assistant\",\"content\":\"\"}]");
    check_becomes("[{\"role\":\"tool\",\"content\":\"r\",\"tool_call_id\":\"c\"}]",
                  "[{\"role\":\"tool\",\"content\":\"r\"}]");
}

TEST(system_and_developer_messages_at_the_head_are_joined) {
    check_becomes(
        "[{\"role\":\"system\",\"content\":\"a\"},{\"role\":\"developer\",\"content\":\"b\"},"
        "{\"role\":\"user\",\"content\":\"c\"}]",
        "[{\"role\":\"system\",\"content\":\"a\\n\\nb\"},{\"role\":\"user\",\"content\":\"c\"}]");
    check_becomes("[{\"role\":\"developer\",\"content\":\"b\"}]",
                  "[{\"role\":\"system\",\"content\":\"b\"}]");
}

TEST(a_late_system_message_is_refused_or_becomes_a_user_turn) {
    static const char text[] =
        "[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"system\",\"content\":\"b\"}]";
    json_t *out;
    struct apierr e;
    CHECK_EQ(read(text, false, &out, &e), ST_INVAL);
    CHECK_STR(apierr_name(e.code), "template_error");
    CHECK_STR(e.param, "messages[1].role");
    CHECK_EQ(read(text, true, &out, &e), ST_OK);
    CHECK_STR(json_string_value(json_object_get(json_array_get(out, 1), "role")), "user");
    json_decref(out);
}

TEST(thoughts_and_calls_of_the_history_are_kept) {
    check_becomes(
        "[{\"role\":\"assistant\",\"content\":null,\"reasoning\":\"r\",\"tool_calls\":["
        "{\"id\":\"c\",\"type\":\"function\",\"function\":{\"name\":\"f\",\"arguments\":\"{"
        "\\\"a\\\":1}\"}},"
        "{\"function\":{\"name\":\"g\",\"arguments\":{\"b\":[2]}}},"
        "{\"function\":{\"name\":\"h\",\"arguments\":\"\"}}]}]",
        "[{\"role\":\"assistant\",\"content\":\"\",\"reasoning_content\":\"r\",\"tool_calls\":["
        "{\"type\":\"function\",\"function\":{\"name\":\"f\",\"arguments\":{\"a\":1}}},"
        "{\"type\":\"function\",\"function\":{\"name\":\"g\",\"arguments\":{\"b\":[2]}}},"
        "{\"type\":\"function\",\"function\":{\"name\":\"h\",\"arguments\":{}}}]}]");
    check_becomes("[{\"role\":\"assistant\",\"content\":\"x\",\"reasoning_content\":\"p\","
                  "\"reasoning\":\"q\","
                  "\"tool_calls\":[]}]",
                  "[{\"role\":\"assistant\",\"content\":\"x\",\"reasoning_content\":\"p\"}]");
}

// Numbers of any size go into the prompt as they came.
TEST(arguments_beyond_64_bits_reach_the_prompt_digit_by_digit) {
    json_t *out;
    struct apierr e;
    CHECK_EQ(read("[{\"role\":\"user\",\"content\":\"x\"},{\"role\":\"assistant\",\"tool_calls\":[{"
                  "\"function\":{"
                  "\"name\":\"f\",\"arguments\":\"{\\\"a\\\":123456789012345678901,\\\"b\\\":"
                  "[-98765432109876543210]}\"}}]}]",
                  false, &out, &e),
             ST_OK);
    static const enum template_rules rules[] = {TEMPLATE_3_5, TEMPLATE_3_8};
    for (size_t i = 0; i < 2; i++) {
        struct template_prompt p = {0};
        struct err why = {0};
        struct template_input in = {.messages = out};
        CHECK_OK(template_render(rules[i], &in, &p, &why), why);
        CHECK_HAS(p.text.p, "<parameter=a>\n123456789012345678901\n</parameter>");
        CHECK_HAS(p.text.p, "<parameter=b>\n[-98765432109876543210]\n</parameter>");
        CHECK_EQ(strlen(p.text.p), p.text.len); // and not the mark they carry inside
        template_prompt_fini(&p);
    }
    json_decref(out);
}

static const char call_begin[] = "{\"function\":{\"name\":\"f\",\"arguments\":\"{\\\"a\\\":[",
                  call_end[] = "]}\"}}";

// One message whose calls have `each` empty objects in the text of their arguments.
static void add_calls(struct strbuf *out, uint32_t calls, uint32_t each) {
    strbuf_add_str(out, "[{\"role\":\"assistant\",\"tool_calls\":[");
    for (uint32_t i = 0; i < calls; i++) {
        strbuf_add_str(out, i ? "," : "");
        strbuf_add_str(out, call_begin);
        for (uint32_t n = 0; n < each; n++) strbuf_add_str(out, n ? ",{}" : "{}");
        strbuf_add_str(out, call_end);
    }
    strbuf_add_str(out, "]}]");
}

// A text is one value of the body, and a tree of its own: a hundred of them must not be a hundred times what one may be.
TEST(the_texts_of_all_arguments_together_have_the_bounds_of_a_body) {
    const uint32_t calls = 8, each = BODY_CONTAINERS_MAX / calls - 2; // beside its own two
    for (uint32_t more = 0; more < 2; more++) {
        struct strbuf text = {0};
        json_t *out;
        struct apierr e;
        add_calls(&text, calls, each + more);
        CHECK_EQ(read(text.p, false, &out, &e), more ? ST_INVAL : ST_OK);
        if (more) CHECK_STR(e.param, "messages[0].tool_calls[7].function.arguments");
        if (more) CHECK_HAS(e.message, "more than 131072 objects and arrays");
        json_decref(out);
        strbuf_fini(&text);
    }
}

static const struct {
    const char *text, *param, *code;
} refusals[] = {
    {"{}", "messages", "invalid_type"},
    {"[]", "messages", "invalid_value"},
    {"[3]", "messages[0]", "invalid_type"},
    {"[{\"content\":\"x\"}]", "messages[0].role", "missing_required_parameter"},
    {"[{\"role\":1,\"content\":\"x\"}]", "messages[0].role", "invalid_type"},
    {"[{\"role\":\"function\",\"content\":\"x\"}]", "messages[0].role", "invalid_value"},
    {"[{\"role\":\"user\"}]", "messages[0].content", "missing_required_parameter"},
    {"[{\"role\":\"user\",\"content\":null}]", "messages[0].content", "invalid_type"},
    {"[{\"role\":\"tool\",\"content\":3}]", "messages[0].content", "invalid_type"},
    {"[{\"role\":\"user\",\"content\":99999999999999999999}]", "messages[0].content",
     "invalid_type"},
    {"[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"user\",\"content\":[\"b\"]}]",
     "messages[1].content[0]", "invalid_type"},
    {"[{\"role\":\"user\",\"content\":[{\"text\":\"b\"}]}]", "messages[0].content[0].type",
     "missing_required_parameter"},
    {"[{\"role\":\"user\",\"content\":[{\"type\":\"text\"}]}]", "messages[0].content[0].text",
     "missing_required_parameter"},
    {"[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":1}]}]",
     "messages[0].content[0].text", "invalid_type"},
    {"[{\"role\":\"user\",\"content\":[{\"type\":\"image_url\",\"image_url\":\"data:,\"}]}]",
     "messages[0].content[0].type", "unsupported_parameter"},
    {"[{\"role\":\"user\",\"content\":[{\"type\":\"input_audio\"}]}]",
     "messages[0].content[0].type", "unsupported_parameter"},
    {"[{\"role\":\"user\",\"content\":[{\"type\":\"poem\"}]}]", "messages[0].content[0].type",
     "invalid_value"},
    {"[{\"role\":\"assistant\",\"reasoning\":3}]", "messages[0].reasoning", "invalid_type"},
    {"[{\"role\":\"assistant\",\"tool_calls\":{}}]", "messages[0].tool_calls", "invalid_type"},
    {"[{\"role\":\"assistant\",\"tool_calls\":[1]}]", "messages[0].tool_calls[0]", "invalid_type"},
    {"[{\"role\":\"assistant\",\"tool_calls\":[{}]}]", "messages[0].tool_calls[0].function",
     "missing_required_parameter"},
    {"[{\"role\":\"assistant\",\"tool_calls\":[{\"function\":{}}]}]",
     "messages[0].tool_calls[0].function.name", "missing_required_parameter"},
    {"[{\"role\":\"assistant\",\"tool_calls\":[{\"function\":{\"name\":\"f\",\"arguments\":\"{\"}}]"
     "}]",
     "messages[0].tool_calls[0].function.arguments", "invalid_value"},
    {"[{\"role\":\"assistant\",\"tool_calls\":[{\"function\":{\"name\":\"f\",\"arguments\":\"[1]\"}"
     "}]}]",
     "messages[0].tool_calls[0].function.arguments", "invalid_value"},
    {"[{\"role\":\"assistant\",\"tool_calls\":[{\"function\":{\"name\":\"f\",\"arguments\":3}}]}]",
     "messages[0].tool_calls[0].function.arguments", "invalid_value"},
};

TEST(each_refusal_names_its_path) {
    for (size_t i = 0; i < sizeof refusals / sizeof *refusals; i++) {
        json_t *out;
        struct apierr e = {0};
        if (!read(refusals[i].text, false, &out, &e))
            test_fail(__FILE__, __LINE__, "taken: %s", refusals[i].text);
        if (strcmp(e.param, refusals[i].param) || strcmp(apierr_name(e.code), refusals[i].code))
            test_fail(__FILE__, __LINE__, "%s: %s at %s, wanted %s at %s", refusals[i].text,
                      apierr_name(e.code), e.param, refusals[i].code, refusals[i].param);
        CHECK_HAS(e.message, refusals[i].param);
        CHECK(out == NULL);
    }
}
