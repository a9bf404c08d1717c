/* Every field of the endpoints that generate: what is taken, what is refused by name, what has no effect. */
#include "common/arena.h"
#include "common/err.h"
#include "router/apierr.h"
#include "router/body.h"
#include "router/fields.h"
#include "router/model.h"
#include "router/params.h"
#include "tests/lib/test.h"
#include "tests/lib/tiny_tokenizer.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { VOCAB = 1000 };

static struct model checkpoint = {
    .sampling = {.temperature = 0.6, .top_p = 0.95, .min_p = 0, .repetition = 1, .top_k = 20}};

static struct tokenizer *tiny; // of the tests with prompts of ids

struct read { // of one body
    struct arena arena;
    struct params p;
    struct apierr e;
    const char *unknown[FIELDS_UNKNOWN_MAX];
    uint32_t unknown_count, surrogates;
    json_t *body;
    int st;
};

static void read_set(struct read *r, enum fields_set set, const char *text) {
    *r = (struct read){0};
    struct body_stats stats;
    if (body_parse(text, strlen(text), &r->body, &stats, &r->e))
        test_fail(__FILE__, __LINE__, "%s: %s", text, r->e.message);
    params_init(&r->p, &checkpoint, false);
    struct field_context c = {.set = set,
                              .params = &r->p,
                              .arena = &r->arena,
                              .tokenizer = tiny,
                              .vocab_size = VOCAB,
                              .lone_surrogates = &r->surrogates,
                              .unknown = r->unknown};
    r->st = fields_read(&c, r->body, &r->e);
    if (!r->st) r->st = fields_capabilities(set, r->body, &r->p, &r->e);
    r->unknown_count = c.unknown_count;
}

static void read_body(struct read *r, const char *text) {
    read_set(r, FIELDS_CHAT, text);
}

static void read_end(struct read *r) {
    json_decref(r->body);
    params_fini(&r->p);
    arena_fini(&r->arena);
}

// A good conversation with one more field.
static void read_field(struct read *r, const char *field, const char *value) {
    char text[8192];
    snprintf(text, sizeof text, "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"%s\":%s}",
             field, value);
    read_body(r, text);
}

/* Each field that docs/api.md names: one value that is taken, one that is not and the code of its refusal. */
static const struct {
    const char *name;
    enum field_support support;
    const char *good, *bad;
    enum apierr_code code;
} all[] = {
    {"model", FIELD_SUPPORTED, "\"m\"", "3", APIERR_INVALID_TYPE},
    {"messages", FIELD_SUPPORTED, "[{\"role\":\"user\",\"content\":\"y\"}]", "[]",
     APIERR_INVALID_VALUE},
    {"stream", FIELD_SUPPORTED, "true", "1", APIERR_INVALID_TYPE},
    {"stream_options", FIELD_SUPPORTED, "null", "{\"include_usage\":true}", APIERR_INVALID_VALUE},
    {"max_completion_tokens", FIELD_SUPPORTED, "-1", "0", APIERR_INVALID_VALUE},
    {"max_tokens", FIELD_SUPPORTED, "8e0", "-5", APIERR_INVALID_VALUE},
    {"min_tokens", FIELD_SUPPORTED, "0", "-1", APIERR_INVALID_VALUE},
    {"temperature", FIELD_SUPPORTED, "2", "2.1", APIERR_INVALID_VALUE},
    {"top_p", FIELD_SUPPORTED, "0", "1.01", APIERR_INVALID_VALUE},
    {"top_k", FIELD_SUPPORTED, "-1", "1001", APIERR_INVALID_VALUE},
    {"min_p", FIELD_SUPPORTED, "1.0", "-0.1", APIERR_INVALID_VALUE},
    {"presence_penalty", FIELD_SUPPORTED, "-2", "2.5", APIERR_INVALID_VALUE},
    {"frequency_penalty", FIELD_SUPPORTED, "2", "\"1\"", APIERR_INVALID_TYPE},
    {"repetition_penalty", FIELD_SUPPORTED, "0.001", "0", APIERR_INVALID_VALUE},
    {"logit_bias", FIELD_SUPPORTED, "{\"999\":-100}", "{\"1000\":1}", APIERR_INVALID_VALUE},
    {"seed", FIELD_SUPPORTED, "18446744073709551615", "18446744073709551616", APIERR_INVALID_VALUE},
    {"n", FIELD_SUPPORTED, "8", "9", APIERR_INVALID_VALUE},
    {"stop", FIELD_SUPPORTED, "[\"a\",\"b\"]", "\"\"", APIERR_INVALID_VALUE},
    {"stop_token_ids", FIELD_SUPPORTED, "[0,999]", "[1000]", APIERR_INVALID_VALUE},
    {"include_stop_str_in_output", FIELD_SUPPORTED, "true", "\"yes\"", APIERR_INVALID_TYPE},
    {"ignore_eos", FIELD_SUPPORTED, "true", "1", APIERR_INVALID_TYPE},
    {"logprobs", FIELD_SUPPORTED, "true", "1", APIERR_INVALID_TYPE},
    {"top_logprobs", FIELD_SUPPORTED, "0", "1", APIERR_INVALID_VALUE}, // without logprobs
    {"tools", FIELD_SUPPORTED, "[{\"type\":\"function\",\"function\":{\"name\":\"f\"}}]", "[{}]",
     APIERR_MISSING_PARAMETER},
    {"tool_choice", FIELD_REFUSED, "\"auto\"", "\"required\"",
     APIERR_INVALID_VALUE}, // without tools
    {"parallel_tool_calls", FIELD_SUPPORTED, "false", "1", APIERR_INVALID_TYPE},
    {"response_format", FIELD_REFUSED, "{\"type\":\"text\"}", "{\"type\":\"json_object\"}",
     APIERR_UNSUPPORTED_PARAMETER},
    {"structured_outputs", FIELD_REFUSED, "null", "{\"regex\":\"a\"}",
     APIERR_UNSUPPORTED_PARAMETER},
    {"guided_json", FIELD_REFUSED, "null", "{}", APIERR_UNSUPPORTED_PARAMETER},
    {"guided_regex", FIELD_REFUSED, "null", "\"a\"", APIERR_UNSUPPORTED_PARAMETER},
    {"guided_choice", FIELD_REFUSED, "null", "[\"a\"]", APIERR_UNSUPPORTED_PARAMETER},
    {"guided_grammar", FIELD_REFUSED, "null", "\"a\"", APIERR_UNSUPPORTED_PARAMETER},
    {"reasoning_effort", FIELD_SUPPORTED, "\"minimal\"", "\"much\"", APIERR_INVALID_VALUE},
    {"chat_template_kwargs", FIELD_SUPPORTED, "{\"enable_thinking\":false,\"other\":[1]}",
     "{\"enable_thinking\":\"no\"}", APIERR_INVALID_TYPE},
    {"thinking_token_budget", FIELD_SUPPORTED, "10", "-2", APIERR_INVALID_VALUE},
    {"thinking_budget", FIELD_SUPPORTED, "0", "1.5", APIERR_INVALID_TYPE},
    {"include_reasoning", FIELD_SUPPORTED, "false", "0", APIERR_INVALID_TYPE},
    {"add_generation_prompt", FIELD_SUPPORTED, "false", "{}", APIERR_INVALID_TYPE},
    {"continue_final_message", FIELD_SUPPORTED, "false", "true",
     APIERR_INVALID_VALUE}, // last is user
    {"skip_special_tokens", FIELD_SUPPORTED, "false", "[]", APIERR_INVALID_TYPE},
    {"add_special_tokens", FIELD_REFUSED, "false", "true", APIERR_UNSUPPORTED_PARAMETER},
    {"documents", FIELD_REFUSED, "false", "[{}]", APIERR_UNSUPPORTED_PARAMETER},
    {"chat_template", FIELD_REFUSED, "null", "\"{{ x }}\"", APIERR_UNSUPPORTED_PARAMETER},
    {"draft", FIELD_SUPPORTED, "false", "0", APIERR_INVALID_TYPE},
    {"return_token_ids", FIELD_SUPPORTED, "true", "\"true\"", APIERR_INVALID_TYPE},
    {"return_logits_hash", FIELD_SUPPORTED, "true", "1", APIERR_INVALID_TYPE},
    {"stream_interval", FIELD_SUPPORTED, "64", "65", APIERR_INVALID_VALUE},
    {"priority", FIELD_SUPPORTED, "-100", "101", APIERR_INVALID_VALUE},
    {"cache_salt", FIELD_SUPPORTED, "\"s\"", "\"\"", APIERR_INVALID_VALUE},
    {"prompt_cache_key", FIELD_SUPPORTED, "\"\"", "7", APIERR_INVALID_TYPE},
    {"user", FIELD_SUPPORTED, "\"u\"", "[]", APIERR_INVALID_TYPE},
    {"safety_identifier", FIELD_SUPPORTED, "\"u\"", "true", APIERR_INVALID_TYPE},
    {"metadata", FIELD_IGNORED, "{\"a\":[]}", NULL, APIERR_NONE},
    {"store", FIELD_IGNORED, "\"yes\"", NULL, APIERR_NONE},
    {"service_tier", FIELD_IGNORED, "3", NULL, APIERR_NONE},
    {"verbosity", FIELD_IGNORED, "\"low\"", NULL, APIERR_NONE},
    {"prediction", FIELD_IGNORED, "{}", NULL, APIERR_NONE},
    {"prompt_cache_retention", FIELD_IGNORED, "\"24h\"", NULL, APIERR_NONE},
    {"prompt_cache_options", FIELD_IGNORED, "{}", NULL, APIERR_NONE},
    {"modalities", FIELD_SUPPORTED, "[\"text\"]", "[\"text\",\"audio\"]",
     APIERR_UNSUPPORTED_PARAMETER},
    {"audio", FIELD_REFUSED, "null", "{}", APIERR_UNSUPPORTED_PARAMETER},
    {"functions", FIELD_REFUSED, "null", "[]", APIERR_UNSUPPORTED_PARAMETER},
    {"function_call", FIELD_REFUSED, "null", "\"auto\"", APIERR_UNSUPPORTED_PARAMETER},
    {"web_search_options", FIELD_REFUSED, "null", "{}", APIERR_UNSUPPORTED_PARAMETER},
    {"moderation", FIELD_REFUSED, "null", "true", APIERR_UNSUPPORTED_PARAMETER},
};
enum { ALL = sizeof all / sizeof *all };

TEST(the_table_has_every_field_and_no_other) {
    size_t count = 0;
    while (fields_at(FIELDS_CHAT, count)) count++;
    for (size_t i = 0; i < ALL; i++) {
        const struct field *f = NULL;
        for (size_t k = 0; k < count; k++)
            if (!strcmp(fields_at(FIELDS_CHAT, k)->name, all[i].name))
                f = fields_at(FIELDS_CHAT, k);
        if (!f) test_fail(__FILE__, __LINE__, "no field %s", all[i].name);
        if (f->support != all[i].support)
            test_fail(__FILE__, __LINE__, "support of %s", all[i].name);
        if (f->support == FIELD_REFUSED && !f->hint)
            test_fail(__FILE__, __LINE__, "hint of %s", f->name);
    }
    CHECK_EQ(count, ALL);
}

TEST(a_good_value_of_each_field_is_taken) {
    for (size_t i = 0; i < ALL; i++) {
        struct read r;
        read_field(&r, all[i].name, all[i].good);
        if (r.st) test_fail(__FILE__, __LINE__, "%s=%s: %s", all[i].name, all[i].good, r.e.message);
        CHECK_EQ(r.unknown_count, 0);
        read_end(&r);
    }
}

TEST(null_is_the_same_as_absent_for_each_field) {
    for (size_t i = 0; i < ALL; i++) {
        struct read r;
        read_field(&r, all[i].name, "null");
        bool required = !strcmp(all[i].name, "messages");
        if (!r.st == required)
            test_fail(__FILE__, __LINE__, "%s=null: %s", all[i].name, r.e.message);
        read_end(&r);
    }
}

TEST(a_bad_value_of_each_field_is_refused_by_its_name) {
    for (size_t i = 0; i < ALL; i++) {
        if (!all[i].bad) continue;
        struct read r;
        read_field(&r, all[i].name, all[i].bad);
        if (!r.st) test_fail(__FILE__, __LINE__, "%s=%s was taken", all[i].name, all[i].bad);
        if (r.e.code != all[i].code || strncmp(r.e.param, all[i].name, strlen(all[i].name)) ||
            !strstr(r.e.message, all[i].name))
            test_fail(__FILE__, __LINE__, "%s=%s: %s %s: %s", all[i].name, all[i].bad,
                      apierr_name(r.e.code), r.e.param, r.e.message);
        CHECK_EQ(apierr_status(r.e.code), 400);
        read_end(&r);
    }
}

TEST(a_refused_field_with_a_wrong_type_is_a_type_error_first) {
    static const char *const cases[][2] = {
        {"n", "\"2\""},           {"n", "1.5"},
        {"logprobs", "3"},        {"response_format", "[]"},
        {"top_logprobs", "true"}, {"tools", "{}"},
        {"tool_choice", "4"},     {"response_format", "\"json\""}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct read r;
        read_field(&r, cases[i][0], cases[i][1]);
        CHECK(r.st);
        CHECK_STR(apierr_name(r.e.code), "invalid_type");
        CHECK_STR(r.e.param, cases[i][0]);
        read_end(&r);
    }
}

// Types of a later field come before what an earlier one asks for.
TEST(types_are_checked_before_capabilities) {
    struct read r;
    read_body(&r, "{\"guided_json\":{},\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],"
                  "\"priority\":\"high\"}");
    CHECK_STR(r.e.param, "priority");
    read_end(&r);
}

TEST(unknown_fields_are_listed_and_nothing_else) {
    struct read r;
    read_body(&r,
              "{\"frobnicate\":1,\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"x\":{}}");
    CHECK_EQ(r.st, ST_OK);
    CHECK_EQ(r.unknown_count, 2);
    CHECK_STR(r.unknown[0], "frobnicate");
    CHECK_STR(r.unknown[1], "x");
    read_end(&r);
}

TEST(the_checkpoints_sampling_stands_until_a_field_says_otherwise) {
    struct read r;
    read_field(&r, "user", "\"u\"");
    CHECK(r.p.temperature == 0.6 && r.p.top_p == 0.95 && r.p.top_k == 20);
    read_end(&r);
    read_field(&r, "temperature", "0");
    CHECK(r.p.temperature == 0);
    read_end(&r);
    struct params p;
    params_init(&p, &checkpoint, true);
    CHECK(p.temperature == 1 && p.top_p == 1 && p.top_k == 0);
}

TEST(seeds_are_taken_modulo_two_to_the_64) {
    static const struct {
        const char *text;
        uint64_t seed;
    } cases[] = {{"0", 0},
                 {"8.0", 8},
                 {"-1", UINT64_MAX},
                 {"-9223372036854775808", 1ULL << 63},
                 {"9223372036854775807", (1ULL << 63) - 1},
                 {"9223372036854775808", 1ULL << 63},
                 {"18446744073709551615", UINT64_MAX},
                 {"1e19", 10000000000000000000ULL}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct read r;
        read_field(&r, "seed", cases[i].text);
        if (r.st) test_fail(__FILE__, __LINE__, "%s: %s", cases[i].text, r.e.message);
        CHECK(r.p.has_seed);
        CHECK_EQ_U64(r.p.seed, cases[i].seed);
        read_end(&r);
    }
    static const char *const bad[] = {"-9223372036854775809", "18446744073709551616", "2e19", "1.5",
                                      "\"7\""};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct read r;
        read_field(&r, "seed", bad[i]);
        if (!r.st) test_fail(__FILE__, __LINE__, "seed %s was taken", bad[i]);
        CHECK_STR(r.e.param, "seed");
        read_end(&r);
    }
}

TEST(biases_are_by_decimal_id_and_the_later_of_two_spellings_counts) {
    struct read r;
    read_field(&r, "logit_bias", "{\"7\":1.5,\"8\":-100,\"007\":2}");
    CHECK_EQ(r.st, ST_OK);
    CHECK_EQ(r.p.bias_count, 2);
    CHECK_EQ(r.p.bias_ids[0], 7);
    CHECK(r.p.bias[0] == 2 && r.p.bias[1] == -100);
    read_end(&r);
    static const char *const bad[] = {
        "{\"x\":1}",     "{\"-1\":1}",          "{\"\":1}", "{\"1.0\":1}", "{\"7\":100.5}",
        "{\"7\":\"1\"}", "{\"99999999999\":1}", "[1]"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        read_field(&r, "logit_bias", bad[i]);
        if (!r.st) test_fail(__FILE__, __LINE__, "%s was taken", bad[i]);
        read_end(&r);
    }
}

TEST(the_sixteenth_stop_string_is_taken_and_the_seventeenth_is_not) {
    char text[400] = "[\"0\"";
    for (int i = 1; i < 16; i++) snprintf(text + strlen(text), 10, ",\"%d\"", i);
    struct read r;
    char list[420];
    snprintf(list, sizeof list, "%s]", text);
    read_field(&r, "stop", list);
    CHECK_EQ(r.st, ST_OK);
    CHECK_EQ(r.p.stop_count, 16);
    CHECK_STR(r.p.stops[15], "15");
    read_end(&r);
    snprintf(list, sizeof list, "%s,\"16\"]", text);
    read_field(&r, "stop", list);
    CHECK_HAS(r.e.message, "at most 16");
    read_end(&r);
    read_field(&r, "stop", "[\"a\",3]");
    CHECK_STR(r.e.param, "stop[1]");
    read_end(&r);
}

static const struct {
    const char *body, *param;
} combinations[] = {
    {"{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"stream_options\":{}}",
     "stream_options"},
    {"{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"min_tokens\":5,\"max_tokens\":4}",
     "min_tokens"},
    {"{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"min_tokens\":5,\"max_tokens\":9,"
     "\"max_completion_tokens\":4}",
     "min_tokens"},
    {"{\"messages\":[{\"role\":\"assistant\",\"content\":\"x\"}],\"continue_final_message\":true,"
     "\"add_generation_prompt\":true}",
     "continue_final_message"},
    {"{\"model\":\"m\"}", "messages"},
};

TEST(combinations_that_contradict_are_refused) {
    for (size_t i = 0; i < sizeof combinations / sizeof *combinations; i++) {
        struct read r;
        read_body(&r, combinations[i].body);
        if (!r.st) test_fail(__FILE__, __LINE__, "taken: %s", combinations[i].body);
        CHECK_STR(r.e.param, combinations[i].param);
        read_end(&r);
    }
    struct read r;
    read_body(&r, "{\"messages\":[{\"role\":\"assistant\",\"content\":\"x\"}],\"continue_final_"
                  "message\":true}");
    CHECK_EQ(r.st, ST_OK);
    CHECK(!r.p.add_generation_prompt);
    read_end(&r);
}

TEST(the_completion_limit_wins_over_the_older_name) {
    struct read r;
    read_body(&r, "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"max_tokens\":9,"
                  "\"max_completion_tokens\":4}");
    CHECK_EQ(r.p.max_completion_tokens, 4);
    CHECK_EQ(r.p.max_tokens, 9);
    read_end(&r);
}

/* ---- completions ---- */

// vLLM 9336: what a field of completions asks for, and where a refusal points.
static const struct {
    const char *body, *param, *code; // param NULL: taken
} completions[] = {
    {"{\"prompt\":\"x\"}", NULL, NULL},
    {"{\"prompt\":[\"x\",\"y\"],\"n\":8}", NULL, NULL},
    {"{\"prompt\":[1,2,3]}", NULL, NULL},
    {"{\"prompt\":[[1],[2,3]]}", NULL, NULL},
    {"{\"prompt\":\"x\",\"max_tokens\":0,\"echo\":true}", NULL, NULL},
    {"{\"prompt\":\"x\",\"max_tokens\":-1,\"suffix\":\"\",\"best_of\":1,\"logprobs\":20}", NULL,
     NULL},
    {"{\"prompt\":\"x\",\"n\":2,\"best_of\":2,\"add_special_tokens\":true}", NULL, NULL},
    {"{\"prompt\":\"x\",\"logprobs\":null,\"suffix\":null}", NULL, NULL},
    {"{}", "prompt", "missing_required_parameter"},
    {"{\"prompt\":3}", "prompt", "invalid_type"},
    {"{\"prompt\":[\"x\",3]}", "prompt[1]", "invalid_type"},
    {"{\"prompt\":[1,\"x\"]}", "prompt[1]", "invalid_type"},
    {"{\"prompt\":[[1],\"x\"]}", "prompt[1]", "invalid_type"},
    {"{\"prompt\":[[1],[2,1.5]]}", "prompt[1][1]", "invalid_type"},
    {"{\"prompt\":[1,1000]}", "prompt[1]", "invalid_value"},
    {"{\"prompt\":[1,299]}", "prompt[1]", "invalid_value"}, // below, and no token
    {"{\"prompt\":\"x\",\"max_tokens\":0}", "max_tokens", "invalid_value"},
    {"{\"prompt\":\"x\",\"max_tokens\":-2,\"echo\":true}", "max_tokens", "invalid_value"},
    {"{\"prompt\":[\"a\",\"b\",\"c\",\"d\",\"e\"],\"n\":7}", "n", "invalid_value"},
    {"{\"prompt\":\"x\",\"suffix\":\"y\"}", "suffix", "unsupported_parameter"},
    {"{\"prompt\":\"x\",\"best_of\":2}", "best_of", "unsupported_parameter"},
    {"{\"prompt\":\"x\",\"logprobs\":21}", "logprobs", "invalid_value"},
    {"{\"prompt\":\"x\",\"logprobs\":true}", "logprobs", "invalid_type"},
    {"{\"prompt\":\"x\",\"logprobs\":1,\"echo\":true}", "logprobs", "unsupported_parameter"},
    {"{\"prompt\":\"x\",\"response_format\":{\"type\":\"json_object\"}}", "response_format",
     "unsupported_parameter"},
    {"{\"prompt\":\"x\",\"echo\":1}", "echo", "invalid_type"},
};

TEST(completions_have_prompts_and_limits_of_their_own) {
    tiny = tiny_tokenizer();
    for (size_t i = 0; i < sizeof completions / sizeof *completions; i++) {
        struct read r;
        read_set(&r, FIELDS_COMPLETION, completions[i].body);
        if (!r.st != !completions[i].param)
            test_fail(__FILE__, __LINE__, "%s: %s", completions[i].body, r.e.message);
        if (r.st) {
            CHECK_STR(r.e.param, completions[i].param);
            CHECK_STR(apierr_name(r.e.code), completions[i].code);
        }
        read_end(&r);
    }
    tokenizer_free(tiny);
    tiny = NULL;
}

TEST(a_prompt_is_a_list_of_prompts_whatever_its_form) {
    static const struct {
        const char *body;
        size_t count;
    } cases[] = {
        {"{\"prompt\":\"x\"}", 1}, {"{\"prompt\":[\"x\",\"y\"]}", 2}, {"{\"prompt\":[]}", 1}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct read r;
        read_set(&r, FIELDS_COMPLETION, cases[i].body);
        CHECK_EQ(r.st, ST_OK);
        CHECK_EQ(json_array_size(r.p.prompts), cases[i].count);
        read_end(&r);
    }
}

/* ---- tools ---- */

#define F(more) "[{\"type\":\"function\",\"function\":{\"name\":\"f\"" more "}}]"

static const struct {
    const char *tools, *choice, *param, *code; // param NULL: taken
} tool_cases[] = {
    {F(""), "null", NULL, NULL},
    {"[]", "\"auto\"", NULL, NULL},
    {"null", "\"none\"", NULL, NULL},
    {F(",\"description\":\"d\",\"strict\":false,\"parameters\":{\"type\":\"object\"}"), "\"none\"",
     NULL, NULL},
    {F(",\"parameters\":{},\"other\":1"), "\"auto\"", NULL, NULL},
    {"{}", "null", "tools", "invalid_type"},
    {"[3]", "null", "tools[0]", "invalid_type"},
    {"[{\"type\":\"web_search\"}]", "null", "tools[0].type", "invalid_value"},
    {"[{\"type\":\"function\"}]", "null", "tools[0].function", "missing_required_parameter"},
    {"[{\"type\":\"function\",\"function\":{}}]", "null", "tools[0].function.name",
     "missing_required_parameter"},
    {"[{\"type\":\"function\",\"function\":{\"name\":\"a b\"}}]", "null", "tools[0].function.name",
     "invalid_value"},
    {"[{\"type\":\"function\",\"function\":{\"name\":\"\"}}]", "null", "tools[0].function.name",
     "invalid_value"},
    {F(",\"description\":3"), "null", "tools[0].function.description", "invalid_type"},
    {F(",\"strict\":\"yes\""), "null", "tools[0].function.strict", "invalid_type"},
    {F(",\"strict\":true"), "null", "tools[0].function.strict", "unsupported_parameter"},
    {F(",\"parameters\":[]"), "null", "tools[0].function.parameters", "invalid_type"},
    {F(",\"parameters\":{\"type\":\"array\"}"), "null", "tools[0].function.parameters",
     "invalid_value"},
    {"[{\"type\":\"function\",\"function\":{\"name\":\"f\"}},"
     "{\"type\":\"function\",\"function\":{\"name\":\"f\"}}]",
     "null", "tools[1].function.name", "invalid_value"},
    {F(""), "\"required\"", "tool_choice", "unsupported_parameter"},
    {F(""), "\"any\"", "tool_choice", "invalid_value"},
    {F(""), "{\"type\":\"function\",\"function\":{\"name\":\"f\"}}", "tool_choice",
     "unsupported_parameter"},
    {F(""), "{\"type\":\"function\",\"function\":{\"name\":\"g\"}}", "tool_choice.function.name",
     "invalid_value"},
    {F(""), "{\"type\":\"function\"}", "tool_choice.function", "missing_required_parameter"},
    {F(""), "{\"type\":\"x\"}", "tool_choice.type", "invalid_value"},
    {F(""),
     "{\"type\":\"allowed_tools\",\"allowed_tools\":{\"mode\":\"auto\",\"tools\":[{\"type\":"
     "\"function\",\"function\":{\"name\":\"f\"}}]}}",
     "tool_choice", "unsupported_parameter"},
    {F(""),
     "{\"type\":\"allowed_tools\",\"allowed_tools\":{\"mode\":\"auto\",\"tools\":[{\"type\":"
     "\"function\",\"function\":{\"name\":\"h\"}}]}}",
     "tool_choice.allowed_tools.tools[0].function.name", "invalid_value"},
    {"null", "\"required\"", "tool_choice", "invalid_value"},
};

TEST(tools_are_checked_member_by_member) {
    for (size_t i = 0; i < sizeof tool_cases / sizeof *tool_cases; i++) {
        char text[1024];
        snprintf(text, sizeof text,
                 "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"tools\":%s,\"tool_"
                 "choice\":%s}",
                 tool_cases[i].tools, tool_cases[i].choice);
        struct read r;
        read_body(&r, text);
        if (!r.st != !tool_cases[i].param)
            test_fail(__FILE__, __LINE__, "%s: %s", text, r.e.message);
        if (r.st) {
            CHECK_STR(r.e.param, tool_cases[i].param);
            CHECK_STR(apierr_name(r.e.code), tool_cases[i].code);
        }
        read_end(&r);
    }
}

TEST(tools_have_bounds) {
    struct strbuf text = {0};
    for (int n = 128; n <= 129; n++) {
        strbuf_reset(&text);
        strbuf_add_str(&text, "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"tools\":[");
        for (int i = 0; i < n; i++)
            strbuf_printf(&text, "%s{\"type\":\"function\",\"function\":{\"name\":\"f%d\"}}",
                          i ? "," : "", i);
        strbuf_add_str(&text, "]}");
        struct read r;
        read_body(&r, text.p);
        CHECK_EQ(r.st == ST_OK, n == 128);
        if (r.st) CHECK_HAS(r.e.message, "at most 128");
        read_end(&r);
    }
    strbuf_reset(&text);
    strbuf_add_str(&text,
                   "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"tools\":[{\"type\":"
                   "\"function\",\"function\":{\"name\":\"f\",\"description\":\"");
    for (int i = 0; i < 512 << 10; i++) strbuf_add_char(&text, 'a');
    strbuf_add_str(&text, "\"}}]}");
    struct read r;
    read_body(&r, text.p);
    CHECK_HAS(r.e.message, "at most 524288 bytes");
    read_end(&r);
    strbuf_fini(&text);
}

// A number that is not taken must not be named as one that is.
TEST(the_range_of_the_repetition_penalty_is_said_as_it_is) {
    static const char *const bad[] = {"0", "-1", "2.1"};
    for (size_t i = 0; i < 3; i++) {
        struct read r;
        read_field(&r, "repetition_penalty", bad[i]);
        CHECK_HAS(r.e.message, "repetition_penalty must be above 0 and at most 2, got ");
        CHECK_HAS(r.e.message, bad[i]);
        read_end(&r);
    }
}
