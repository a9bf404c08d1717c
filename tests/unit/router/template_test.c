/* template: golden prompts of the published templates, their refusals, plain spans, detection. */
#include "common/err.h"
#include "common/sha256.h"
#include "common/strbuf.h"
#include "router/text/template.h"
#include "tests/lib/test.h"

#include <jansson.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#define XHIGH                                                                                      \
    "Reasoning effort is set to xhigh. Please think carefully through the task, validate key "     \
    "assumptions, consider plausible alternatives, and prioritize correctness, consistency, and "  \
    "clarity in the final answer."
#define A "<|im_start|>"
#define Z "<|im_end|>"
#define GEN A "assistant\n<think>\n"

// Rows of the tables say only what differs from an empty request.
#pragma GCC diagnostic ignored "-Wmissing-field-initializers"
#define R35 TEMPLATE_3_5
#define SMALL TEMPLATE_3_5_SMALL
#define R36 TEMPLATE_3_6
#define R38 TEMPLATE_3_8
#define LARGE TEMPLATE_3_8_LARGE

struct request { // one row: what is asked of which rules
    enum template_rules rules;
    const char *messages, *tools;
    bool no_generation, continue_final, add_vision_id;
    enum template_tri thinking, preserve;
    const char *effort;
};

static json_t *parsed(const char *text) {
    json_error_t je;
    json_t *v = json_loads(text, JSON_DECODE_ANY, &je);
    if (!v) test_fail(__FILE__, __LINE__, "test data: %s in %s", je.text, text);
    return v;
}

static int rendered(const struct request *q, struct template_prompt *ret, struct err *e) {
    json_t *messages = parsed(q->messages), *tools = q->tools ? parsed(q->tools) : NULL;
    struct template_input in = {.messages = messages,
                                .tools = tools,
                                .add_generation_prompt = !q->no_generation && !q->continue_final,
                                .continue_final = q->continue_final,
                                .enable_thinking = q->thinking,
                                .preserve_thinking = q->preserve,
                                .reasoning_effort = q->effort,
                                .add_vision_id = q->add_vision_id};
    *ret = (struct template_prompt){0};
    int st = template_render(q->rules, &in, ret, e);
    json_decref(messages);
    json_decref(tools);
    return st;
}

static void check_prompt(const struct request *q, const char *wanted, bool in_thought) {
    struct template_prompt p;
    struct err e = {0};
    CHECK_OK(rendered(q, &p, &e), e);
    CHECK_STR(strbuf_str(&p.text), wanted);
    CHECK_EQ(p.text.len, strlen(wanted));
    CHECK_EQ(p.in_thought, in_thought);
    template_prompt_fini(&p);
}

#define BRIEF                                                                                      \
    "[{\"role\":\"system\",\"content\":\" Be brief. "                                              \
    "\"},{\"role\":\"user\",\"content\":\"Hi\\n\"}]"
#define HI "[{\"role\":\"user\",\"content\":\"Hi\"}]"
#define ABC                                                                                        \
    "[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"assistant\",\"content\":\"b\","            \
    "\"reasoning_content\":\"r1\\n\"},{\"role\":\"user\",\"content\":\"c\"}]"
#define INLINE                                                                                     \
    "[{\"role\":\"user\",\"content\":\"q\"},{\"role\":\"assistant\",\"content\":"                  \
    "\"<think>A</think>\\nB<think>C</think>\\n\\nD\"}]"
#define CALL                                                                                       \
    "[{\"role\":\"user\",\"content\":\"w?\"},{\"role\":\"assistant\",\"content\":null,"            \
    "\"tool_calls\":[{\"function\":{\"name\":\"f\",\"arguments\":{\"a\":\"x\\n\"}}}]},"            \
    "{\"role\":\"tool\",\"content\":\"r\"},{\"role\":\"assistant\",\"content\":\"done\"},"         \
    "{\"role\":\"user\",\"content\":\"n\"}]"
#define NOSYS "[{\"role\":\"system\",\"content\":\"\"},{\"role\":\"user\",\"content\":\"Hi\"}]"
#define IMAGE                                                                                      \
    "[{\"role\":\"user\",\"content\":[{\"type\":\"image_url\",\"image_url\":\"data:x\"},"          \
    "{\"type\":\"text\",\"text\":\"what?\"}]}]"
#define SYS38 A "system\n" XHIGH Z "\n"
#define NOTHINK "<think>\n\n</think>\n\n"

TEST(the_golden_prompts_of_each_rule_set) {
    static const char brief[] = A "system\nBe brief." Z "\n" A "user\nHi" Z "\n" GEN;
    static const char brief8[] = A "system\n" XHIGH "\n\nBe brief." Z "\n" A "user\nHi" Z "\n" GEN;
    static const char abc[] = A "user\na" Z "\n" A "assistant\nb" Z "\n" A "user\nc" Z "\n" GEN;
    static const char abc_kept[] =
        A "user\na" Z "\n" A "assistant\n<think>\nr1\n</think>\n\nb" Z "\n" A "user\nc" Z "\n" GEN;
    static const char abc8[] = SYS38 A "user\na" Z "\n" A "assistant\n<think>\nr1\n</think>\n\nb" Z
                                       "\n" A "user\nc" Z "\n" GEN;
    static const char abc8_dropped[] =
        SYS38 A "user\na" Z "\n" A "assistant\nb" Z "\n" A "user\nc" Z "\n" GEN;
#define CALL_TEXT                                                                                  \
    "<tool_call>\n<function=f>\n<parameter=a>\nx\n\n</parameter>\n</function>\n</tool_call>"
#define RESULT A "user\n<tool_response>\nr\n</tool_response>" Z "\n"
    static const char call[] = A "user\nw?" Z "\n" A "assistant\n" CALL_TEXT Z "\n" RESULT A
                                 "assistant\ndone" Z "\n" A "user\nn" Z "\n" GEN;
    static const char call8[] =
        SYS38 A "user\nw?" Z "\n" A "assistant\n" NOTHINK CALL_TEXT Z "\n" RESULT A
                "assistant\n" NOTHINK "done" Z "\n" A "user\nn" Z "\n" GEN;
    static const char off[] = A "user\nHi" Z "\n" A "assistant\n" NOTHINK;
    static const char hi[] = A "user\nHi" Z "\n" GEN;
    static const char image[] =
        A "user\n<|vision_start|><|image_pad|><|vision_end|>what?" Z "\n" GEN;
    static const struct {
        struct request q;
        const char *wanted;
        bool closed; // the thought
    } rows[] = {
        {{R35, BRIEF}, brief},
        {{R36, BRIEF}, brief},
        {{R38, BRIEF}, brief8},
        {{LARGE, BRIEF}, brief8},
        {{SMALL, BRIEF, .thinking = TEMPLATE_TRUE}, brief},
        {{R35, HI, .thinking = TEMPLATE_FALSE}, off, true},
        {{R36, HI, .thinking = TEMPLATE_FALSE}, off, true},
        {{R38, HI, .thinking = TEMPLATE_FALSE}, off, true},
        {{R38, HI, .thinking = TEMPLATE_FALSE, .effort = "high"}, off, true}, // not even looked at
        {{SMALL, HI}, off, true},
        {{SMALL, HI, .thinking = TEMPLATE_OTHER}, off, true},
        {{R35, HI, .thinking = TEMPLATE_OTHER}, hi},
        {{R38, HI, .thinking = TEMPLATE_OTHER}, hi},
        {{R35, HI, .effort = "medium"}, hi},
        {{R38, HI, .effort = "medium"}, hi},
        {{LARGE, HI, .effort = "medium"}, hi},
        {{R35, ABC}, abc},
        {{R36, ABC}, abc},
        {{R38, ABC}, abc8},
        {{R36, ABC, .preserve = TEMPLATE_TRUE}, abc_kept},
        {{R35, ABC, .preserve = TEMPLATE_TRUE}, abc},
        {{R38, ABC, .preserve = TEMPLATE_TRUE}, abc8},
        {{R38, ABC, .preserve = TEMPLATE_FALSE}, abc8_dropped},
        {{R38, ABC, .preserve = TEMPLATE_OTHER}, abc8_dropped},
        {{R35, INLINE, .no_generation = true},
         A "user\nq" Z "\n" A "assistant\n<think>\nA\n</think>\n\nD" Z "\n",
         true},
        {{R36, INLINE, .no_generation = true},
         A "user\nq" Z "\n" A "assistant\n<think>\nA\n</think>\n\nD" Z "\n",
         true},
        {{R38, INLINE, .no_generation = true},
         SYS38 A "user\nq" Z "\n" A "assistant\n" NOTHINK
                 "<think>A</think>\nB<think>C</think>\n\nD" Z "\n",
         true},
        {{R35, CALL}, call},
        {{R36, CALL}, call},
        {{R38, CALL}, call8},
        {{R35, NOSYS}, A "system\n" Z "\n" A "user\nHi" Z "\n" GEN},
        {{R36, NOSYS}, A "system\n" Z "\n" A "user\nHi" Z "\n" GEN},
        {{R38, NOSYS}, SYS38 A "user\nHi" Z "\n" GEN},
        {{R36, IMAGE}, image},
        {{R36, IMAGE, .add_vision_id = true},
         A "user\nPicture 1: <|vision_start|><|image_pad|><|vision_end|>what?" Z "\n" GEN},
        {{R36, "[{\"role\":\"user\",\"content\":[{\"text\":\"a \"},{\"text\":\"b\\u3000\"}]}]"},
         A "user\na b" Z "\n" GEN},
        {{R36, "[{\"role\":\"user\",\"content\":[]}]"}, A "user\n" Z "\n" GEN},
        {{R36, "[{\"role\":\"tool\",\"content\":\"t\"},{\"role\":\"user\",\"content\":\"u\"}]"},
         "\n<tool_response>\nt\n</tool_response>" Z "\n" A "user\nu" Z "\n" GEN},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        check_prompt(&rows[i].q, rows[i].wanted, !rows[i].closed);
}

#define TOOL                                                                                       \
    "[{\"type\":\"function\",\"function\":{\"name\":\"get_weather\",\"description\":\"Get "        \
    "weather\",\"parameters\":{\"type\":\"object\",\"properties\":{\"city\":{\"type\":"            \
    "\"string\"},\"n\":{\"type\":\"integer\"}},\"required\":[\"city\"]}}}]"
#define LONG_CASE                                                                                  \
    "[{\"role\":\"system\",\"content\":\"SYS\"},{\"role\":\"user\",\"content\":\"w?\"},"           \
    "{\"role\":\"assistant\",\"content\":\"ok\",\"reasoning_content\":\"need\",\"tool_calls\":["   \
    "{\"function\":{\"name\":\"get_weather\",\"arguments\":{\"city\":\"Paris\",\"n\":3,\"f\":"     \
    "true,\"z\":null,\"l\":[1,2],\"o\":{\"a\":1}}}},{\"function\":{\"name\":\"get_weather\","      \
    "\"arguments\":{}}}]},{\"role\":\"tool\",\"content\":\"sunny\\n\"},"                           \
    "{\"role\":\"tool\",\"content\":\"rain\"}]"

// The published templates' own output, by hash.
TEST(the_long_case_has_the_bytes_of_the_published_templates) {
    static const struct {
        struct request q;
        size_t len;
        const char *sha256;
    } rows[] = {
        {{R35, LONG_CASE, TOOL},
         1678,
         "6ae8b8681d54ea693de2085dca9e3448446d26f714689c0c7603828a7229d69e"},
        {{R36, LONG_CASE, TOOL},
         1678,
         "55e73ff1d78ad468a1a9e153dce80712454413b647566f5d2e474d8c4829bb9d"},
        {{R38, LONG_CASE, TOOL},
         1887,
         "7a679ad03b388cbdf74cfec560db5afb300c707a8ac7af69d6d8c0015f31bacc"},
        {{R36, BRIEF}, 99, "7af1302f02f3df31b3efd94a7f08d2ac8fd4adaf2568e034b6cdcff0076a296a"},
        {{R38, BRIEF}, 308, "2fb9d80f17896ef1943a492f0735df723b25781ee6fc09281806f2665996b251"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct template_prompt p;
        struct err e = {0};
        CHECK_OK(rendered(&rows[i].q, &p, &e), e);
        struct sha256 *h = sha256_new();
        uint8_t digest[SHA256_BYTES];
        char hex[SHA256_HEX_BYTES];
        sha256_add(h, p.text.p, p.text.len);
        sha256_digest(h, digest);
        sha256_hex(digest, hex);
        CHECK_EQ(p.text.len, rows[i].len);
        CHECK_STR(hex, rows[i].sha256);
        sha256_free(h);
        template_prompt_fini(&p);
    }
}

TEST(what_a_template_refuses_is_refused_in_its_words) {
    static const struct {
        struct request q;
        const char *message;
    } rows[] = {
        {{R36, "[]"}, "No messages provided."},
        {{R36, "[{\"role\":\"assistant\",\"content\":\"a\"}]"}, "No user query found in messages."},
        {{R36, "[{\"role\":\"user\",\"content\":\" <tool_response>x</tool_response>\\n\"}]"},
         "No user query found in messages."},
        {{R36, "[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"system\",\"content\":\"s\"}]"},
         "System message must be at the beginning."},
        {{R36,
          "[{\"role\":\"developer\",\"content\":\"d\"},{\"role\":\"user\",\"content\":\"a\"}]"},
         "Unexpected message role."},
        {{R36, "[{\"content\":\"d\"},{\"role\":\"user\",\"content\":\"a\"}]"},
         "Unexpected message role."},
        {{R36, "[{\"role\":\"user\",\"content\":7}]"}, "Unexpected content type."},
        {{R36, "[{\"role\":\"user\",\"content\":{}}]"}, "Unexpected content type."},
        {{R36, "[{\"role\":\"user\",\"content\":[{}]}]"}, "Unexpected item type in content."},
        {{R36, "[{\"role\":\"user\",\"content\":[\"text\"]}]"}, "Unexpected item type in content."},
        {{R36, "[{\"role\":\"user\",\"content\":[{\"text\":1}]}]"},
         "Unexpected item type in content."},
        {{LARGE, IMAGE}, "Unexpected item type in content."},
        {{R36, "[{\"role\":\"system\",\"content\":[{\"type\":\"image\"}]},{\"role\":\"user\"}]"},
         "System message cannot contain images."},
        {{R36, "[{\"role\":\"system\",\"content\":[{\"video\":1}]},{\"role\":\"user\"}]"},
         "System message cannot contain videos."},
        {{R38, HI, .effort = "high"},
         "Unexpected reasoning effort high. Supported types are xhigh (default), medium, and low."},
        {{LARGE, HI, .thinking = TEMPLATE_FALSE}, "Disabling thinking is not supported."},
        {{R36, "[{\"role\":\"user\"},{\"role\":\"assistant\",\"tool_calls\":[{\"name\":\"f\","
               "\"arguments\":\"\"}]}]"},
         "Can only get item pairs from a mapping."},
        {{R36, "[{\"role\":\"user\"},{\"role\":\"assistant\",\"tool_calls\":[{\"name\":\"f\","
               "\"arguments\":null}]}]"},
         "Can only get item pairs from a mapping."},
        {{R36, "[{\"role\":\"user\"},{\"role\":\"assistant\",\"tool_calls\":[{}]}]"}, "no name"},
        {{R36, HI, .continue_final = true}, "wanted a last message of role assistant"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct template_prompt p;
        struct err e = {0};
        CHECK_EQ(rendered(&rows[i].q, &p, &e), ST_INVAL);
        CHECK_HAS(e.msg, rows[i].message);
        CHECK(p.text.p == NULL && p.plain == NULL);
    }
}

TEST(an_empty_argument_text_is_no_parameters_in_3_8_alone) {
    static const struct request q = {
        R38,
        "[{\"role\":\"user\",\"content\":\"u\"},{\"role\":\"assistant\",\"content\":\"c\","
        "\"tool_calls\":[{\"name\":\"f\",\"arguments\":\"\"}]}]",
        .no_generation = true, .effort = "medium"};
    check_prompt(&q,
                 A "user\nu" Z "\n" A "assistant\n" NOTHINK
                   "c\n\n<tool_call>\n<function=f>\n</function>\n</tool_call>" Z "\n",
                 false);
}

TEST(a_last_message_to_be_continued_stays_open) {
    static const struct {
        struct request q;
        const char *wanted;
        bool in_thought;
    } rows[] = {
        {{R36,
          "[{\"role\":\"user\",\"content\":\"u\"},{\"role\":\"assistant\",\"content\":\"One, "
          "two \"}]",
          .continue_final = true},
         A "user\nu" Z "\n" A "assistant\n" NOTHINK "One, two",
         false},
        {{R36,
          "[{\"role\":\"user\",\"content\":\"u\"},{\"role\":\"assistant\",\"content\":\"b\","
          "\"reasoning_content\":\"r\"}]",
          .continue_final = true},
         A "user\nu" Z "\n" A "assistant\n<think>\nr\n</think>\n\nb",
         false},
        {{R36,
          "[{\"role\":\"user\",\"content\":\"u\"},{\"role\":\"assistant\","
          "\"reasoning_content\":\"so\"}]",
          .continue_final = true},
         A "user\nu" Z "\n" A "assistant\n<think>\nso",
         true},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        check_prompt(&rows[i].q, rows[i].wanted, rows[i].in_thought);
}

// A control token that a client spells must be inside a plain span, the template's own outside of all.
TEST(client_bytes_and_only_these_are_plain) {
    static const struct request q = {
        R36,
        "[{\"role\":\"system\",\"content\":\"@s@ \"},{\"role\":\"user\",\"content\":[{\"type\":"
        "\"image\"},{\"text\":\"@u@\"}]},{\"role\":\"assistant\",\"content\":\"<think>@t@</think>"
        "@a@\",\"tool_calls\":[{\"name\":\"@n@\",\"arguments\":{\"@k@\":\"@v@\",\"x\":[\"@j@\"]}}]}"
        ","
        "{\"role\":\"tool\",\"content\":\"@r@\"}]",
        "[{\"name\":\"@d@\"}]"};
    struct template_prompt p;
    struct err e = {0};
    CHECK_OK(rendered(&q, &p, &e), e);
    size_t client = 0, at = 0;
    for (size_t i = 0; i < p.plain_count; i++) {
        CHECK(p.plain[i].first >= at && p.plain[i].len > 0);
        at = p.plain[i].first + p.plain[i].len;
        CHECK(memmem(p.text.p + p.plain[i].first, p.plain[i].len, "<", 1) == NULL);
        for (size_t k = p.plain[i].first; k < at; k++) client += p.text.p[k] == '@';
    }
    CHECK(at <= p.text.len);
    CHECK_EQ(client, 20); // s u t a n k v j r d, twice each: all in spans
    size_t all = 0;
    for (size_t k = 0; k < p.text.len; k++) all += p.text.p[k] == '@';
    CHECK_EQ(all, 20);
    template_prompt_fini(&p);
}

static const char *folder_with(const char *file, const char *text) {
    static char dir[600];
    static int n;
    char path[700];
    snprintf(dir, sizeof dir, "%s/model%d", test_temp_dir(), n++);
    CHECK_EQ(mkdir(dir, 0700), 0);
    if (!file) return dir;
    snprintf(path, sizeof path, "%s/%s", dir, file);
    FILE *f = fopen(path, "w");
    CHECK(f != NULL);
    fputs(text, f);
    fclose(f);
    return dir;
}

#define BASE "<|im_start|><think><function=<tool_response>"
#define OPEN35                                                                                     \
    BASE "{%- if enable_thinking is defined and enable_thinking is false %}</think>{%- else "      \
         "%}<think>{%- endif %}"
#define SMALL35                                                                                    \
    BASE "{%- if enable_thinking is defined and enable_thinking is true %}<think>{%- else "        \
         "%}</think>{%- endif %}"

TEST(rules_are_picked_by_features_of_the_template) {
    static const struct {
        const char *file, *text;
        enum template_rules rules;
        const char *why;
    } rows[] = {
        {"chat_template.jinja", OPEN35, R35, "features of chat_template.jinja"},
        {"chat_template.jinja", SMALL35, SMALL, "features of chat_template.jinja"},
        {"chat_template.jinja", OPEN35 "preserve_thinking", R36, "features"},
        {"chat_template.jinja", OPEN35 "preserve_thinking is undefined", R38, "features"},
        {"chat_template.jinja",
         OPEN35 "preserve_thinking is undefined Disabling thinking is not supported", LARGE,
         "features"},
        {"tokenizer_config.json",
         "{\"chat_template\": \"<|im_start|><think><function=<tool_response>enable_thinking\"}",
         R35, "features of tokenizer_config.json"},
        {"tokenizer_config.json",
         "{\"chat_template\": [{\"name\": \"x\", \"template\": \"y\"}, {\"name\": \"default\", "
         "\"template\": \"<|im_start|><think><function=<tool_response>preserve_thinking\"}]}",
         R36, "features of tokenizer_config.json"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        enum template_rules rules = 0;
        const char *why = NULL;
        struct err e = {0};
        CHECK_OK(template_detect(folder_with(rows[i].file, rows[i].text), &rules, &why, &e), e);
        CHECK_EQ(rules, rows[i].rules);
        CHECK_HAS(why, rows[i].why);
    }
}

TEST(a_template_without_rules_is_refused_with_the_way_out) {
    static const struct {
        const char *file, *text;
        int st;
        const char *message;
    } rows[] = {
        {"chat_template.jinja", "{{ messages }}", ST_UNSUPPORTED, "--template.rules=3.5"},
        {"chat_template.jinja", "", ST_UNSUPPORTED, "--template.rules=3.5"},
        {"tokenizer_config.json", "{\"chat_template\": \"x\"}", ST_UNSUPPORTED,
         "tokenizer_config.json"},
        {"tokenizer_config.json", "{", ST_CORRUPT, "wanted JSON"},
        {"tokenizer_config.json", "{}", ST_NOT_FOUND, "found neither"},
        {NULL, NULL, ST_NOT_FOUND, "chat_template.jinja"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        enum template_rules rules = 0;
        const char *why = NULL;
        struct err e = {0};
        CHECK_EQ(template_detect(folder_with(rows[i].file, rows[i].text), &rules, &why, &e),
                 rows[i].st);
        CHECK_HAS(e.msg, rows[i].message);
        CHECK_EQ(rules, 0);
    }
}

TEST(every_rule_set_has_a_name_that_reads_back) {
    for (int r = R35; r <= LARGE; r++) {
        enum template_rules back = 0;
        CHECK_EQ(template_rules_parse(template_rules_name((enum template_rules)r), &back), ST_OK);
        CHECK_EQ(back, r);
    }
    enum template_rules untouched = R36;
    CHECK_EQ(template_rules_parse("auto", &untouched), ST_INVAL);
    CHECK_EQ(untouched, R36);
}
