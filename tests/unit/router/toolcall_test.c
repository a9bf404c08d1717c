/* Tool calls in a reply: what a model writes comes out as content, names and JSON arguments, and however the ids are
 * cut into pushes, or the text into ids, the joined result is the same. */
#include "router/text/argument.h"
#include "router/text/reply.h"
#include "tests/lib/test.h"
#include "tests/lib/tiny_tokenizer.h"

#include "common/ids.h"

#pragma GCC diagnostic ignored "-Wmissing-field-initializers"

static const char tools_text[] =
    "[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":{\"type\":\"object\","
    "\"$defs\":{\"Point\":{\"type\":\"object\"},\"Loop\":{\"$ref\":\"#/$defs/Loop\"}},"
    "\"properties\":{"
    "\"s\":{\"type\":\"string\"},\"i\":{\"type\":\"integer\"},\"n\":{\"type\":\"number\"},"
    "\"b\":{\"type\":\"boolean\"},\"o\":{\"type\":\"object\"},\"a\":{\"type\":\"array\"},"
    "\"z\":{\"type\":\"null\"},\"is\":{\"type\":[\"integer\",\"string\"]},"
    "\"os\":{\"anyOf\":[{\"type\":\"string\"},{\"type\":\"null\"}]},"
    "\"e\":{\"enum\":[1,\"x\",null]},\"c\":{\"const\":true},\"p\":{\"$ref\":\"#/$defs/Point\"},"
    "\"l\":{\"$ref\":\"#/$defs/Loop\"},\"list\":{\"type\":\"list\"},\"odd\":{\"type\":\"odd\"},"
    "\"all\":{\"allOf\":[{\"oneOf\":[{\"type\":\"Int\"}]}]}}}}},"
    "{\"type\":\"function\",\"function\":{\"name\":\"g\"}}]";

/* ---- arguments ---- */

static const struct {
    const char *parameter, *text, *wanted;
} typed[] = {
    {"s", "null", "\"null\""},
    {"s", "12", "\"12\""},
    {"s", "true", "\"true\""},
    {"s", "a\"b\\\n\x01\x7f", "\"a\\\"b\\\\\\n\\u0001\x7f\""},
    {"s", "\xC3\xA9", "\"\xC3\xA9\""},
    {"unknown", "3", "\"3\""},
    {"i", "3", "3"},
    {"i", " -007 ", "-7"},
    {"i", "+5", "5"},
    {"i", "-0", "0"},
    {"i", "123456789012345678901234567890", "123456789012345678901234567890"},
    {"i", "3.0", "3.0"},
    {"i", "x", "\"x\""},
    {"i", "", "\"\""},
    {"n", "3.0", "3"},
    {"n", "0.5", "0.5"},
    {"n", "1e22", "10000000000000000000000"},
    {"n", "-0.0", "0"},
    {"n", "1e400", "\"1e400\""},
    {"n", "nan", "\"nan\""},
    {"n", "12345678901234567890", "12345678901234567890"},
    {"n", ".5", "0.5"},
    {"b", " True ", "true"},
    {"b", "0", "false"},
    {"b", "1", "true"},
    {"b", "yes", "\"yes\""},
    {"b", "null", "null"},
    {"o", "{\"a\":1,\"b\":[1,2]}", "{\"a\": 1, \"b\": [1, 2]}"},
    {"o", " {\"a\" : \"x, y: \\\"z\" }\n", "{\"a\": \"x, y: \\\"z\"}"},
    {"o", "{\"a\":123456789012345678901234567890.0}", "{\"a\": 123456789012345678901234567890.0}"},
    {"o", "[1]", "[1]"},
    {"o", "{'a': 1}", "\"{'a': 1}\""},
    {"o", "{\"a\":1e999}", "\"{\\\"a\\\":1e999}\""},
    {"a", "[1,{\"x\":null}]", "[1, {\"x\": null}]"},
    {"a", "[]", "[]"},
    {"list", "[1]", "[1]"},
    {"z", "NULL", "null"},
    {"z", " null", "null"},
    {"is", "12", "12"},
    {"is", "x", "\"x\""},
    {"is", "1.5", "\"1.5\""},
    {"os", "null", "null"},
    {"os", "3", "\"3\""},
    {"e", "1", "1"},
    {"e", "x", "\"x\""},
    {"e", "null", "null"},
    {"c", "false", "false"},
    {"p", "{\"x\":1}", "{\"x\": 1}"},
    {"l", "[1]", "\"[1]\""},
    {"odd", "[1]", "\"[1]\""},
    {"all", "4", "4"},
};

// A parameter that is a string must stay one, and one that is not must not be a string.
TEST(arguments_are_typed_by_the_schema) {
    json_t *tools = json_loads(tools_text, 0, NULL);
    for (size_t i = 0; i < sizeof typed / sizeof *typed; i++) {
        struct strbuf out = {0};
        unsigned types =
            argument_types(tools, "f", 1, typed[i].parameter, strlen(typed[i].parameter));
        argument_add(&out, types, typed[i].text, strlen(typed[i].text));
        CHECK_STR(strbuf_str(&out), typed[i].wanted);
        json_t *v = json_loads(strbuf_str(&out), JSON_DECODE_ANY | JSON_DECODE_INT_AS_REAL, NULL);
        CHECK(v != NULL);
        json_decref(v);
        strbuf_fini(&out);
    }
    json_decref(tools);
}

// No JSON has one, wherever it stands.
TEST(a_value_with_a_nul_is_a_string) {
    static const struct {
        unsigned types;
        const char *text;
        size_t len;
        const char *wanted;
    } cases[] = {
        {ARGUMENT_INTEGER, "3\0", 2, "\"3\\u0000\""},
        {ARGUMENT_INTEGER,
         "\0"
         "3",
         2, "\"\\u00003\""},
        {ARGUMENT_NUMBER, "0.5\0", 4, "\"0.5\\u0000\""},
        {ARGUMENT_BOOLEAN, "1\0", 2, "\"1\\u0000\""},
        {ARGUMENT_ARRAY, "[1\0]", 4, "\"[1\\u0000]\""},
        {ARGUMENT_ARRAY, "[1\0,2]", 6, "\"[1\\u0000,2]\""},
        {ARGUMENT_OBJECT, "{\"a\":1\0}", 8, "\"{\\\"a\\\":1\\u0000}\""},
        {ARGUMENT_OBJECT, "{\"a\":1}\0", 8, "\"{\\\"a\\\":1}\\u0000\""},
    };
    struct strbuf out = {0};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        strbuf_reset(&out);
        argument_add(&out, cases[i].types, cases[i].text, cases[i].len);
        CHECK_STR(strbuf_str(&out), cases[i].wanted);
        CHECK_EQ_U64(out.len, strlen(cases[i].wanted));
    }
    strbuf_fini(&out);
}

TEST(a_value_nested_too_deeply_is_a_string) {
    char text[200];
    memset(text, '[', 100);
    memset(text + 100, ']', 100);
    struct strbuf out = {0};
    argument_add(&out, ARGUMENT_ARRAY, text, sizeof text);
    CHECK_EQ(out.p[0], '"');
    strbuf_fini(&out);
}

/* ---- replies ---- */

// Text of cases: @ <tool_call>, # </tool_call>, ~ <think>, ^ </think>, % <|im_end|> as ids; the rest byte by byte or in words.
static void read_ids(const char *text, bool words, struct ids *out) {
    static const char marks[] = "@#~^%";
    static const uint32_t mark_ids[] = {TINY_CALL, TINY_END_CALL, TINY_THINK, TINY_END_THINK,
                                        TINY_IM_END};
    while (*text) {
        const char *mark = strchr(marks, *text);
        uint32_t id = mark ? mark_ids[mark - marks] : (unsigned char)*text;
        size_t len = 1;
        for (size_t w = 0; words && !mark && w < TINY_WORD_COUNT; w++)
            if (strlen(tiny_words[w]) > len && !strncmp(text, tiny_words[w], strlen(tiny_words[w])))
                len = strlen(tiny_words[w]), id = TINY_WORDS + (uint32_t)w;
        ids_add(out, id);
        text += len;
    }
}

struct result { // reasoning|content|name(arguments)name(arguments)...
    struct strbuf text;
    struct strbuf reasoning, content, calls;
    int32_t call; // open in calls
    size_t taken;
    uint32_t complete;
    enum reply_end end;
};

static void add_delta(struct result *t, const struct reply_delta *d) {
    size_t reasoning = 0, content = 0, calls = 0;
    for (size_t i = 0; i < d->piece_count; i++) {
        const struct reply_piece *p = &d->pieces[i];
        if (p->kind == REPLY_REASONING) {
            strbuf_add(&t->reasoning, d->reasoning.p + reasoning, p->len);
            reasoning += p->len;
        } else if (p->kind == REPLY_CONTENT) {
            CHECK_EQ(utf8_valid(d->content.p + content, p->len), p->len);
            strbuf_add(&t->content, d->content.p + content, p->len);
            content += p->len;
        } else {
            if (p->kind == REPLY_CALL) {
                CHECK_EQ((int32_t)p->call, t->call + 1);
                t->call = (int32_t)p->call;
                if (p->call) strbuf_add_str(&t->calls, ")");
            }
            CHECK_EQ((int32_t)p->call, t->call);
            CHECK_EQ(utf8_valid(d->calls.p + calls, p->len), p->len);
            strbuf_add(&t->calls, d->calls.p + calls, p->len);
            if (p->kind == REPLY_CALL) strbuf_add_str(&t->calls, "(");
            calls += p->len;
        }
    }
    CHECK(reasoning == d->reasoning.len && content == d->content.len && calls == d->calls.len);
}

static void run(struct result *t, const struct reply_options *o, const struct ids *ids, size_t cut,
                size_t step, bool limit) {
    struct reply *r = reply_new(o);
    struct reply_delta d = {0};
    *t = (struct result){.call = -1};
    for (size_t at = 0; at < ids->len && reply_state(r) == REPLY_OPEN;) {
        size_t n = at < cut ? cut - at : step;
        if (n > ids->len - at) n = ids->len - at;
        size_t took = reply_push(r, ids->v + at, n, &d);
        at += took;
        t->taken += took;
        add_delta(t, &d);
        reply_delta_reset(&d);
    }
    reply_finish(r, limit, &d);
    add_delta(t, &d);
    t->complete = reply_calls(r);
    t->end = reply_state(r);
    strbuf_add(&t->text, strbuf_str(&t->reasoning), t->reasoning.len);
    strbuf_add_str(&t->text, "|");
    strbuf_add(&t->text, strbuf_str(&t->content), t->content.len);
    strbuf_add_str(&t->text, "|");
    strbuf_add(&t->text, strbuf_str(&t->calls), t->calls.len);
    if (t->calls.len) strbuf_add_str(&t->text, ")");
    reply_delta_fini(&d);
    reply_free(r);
}

static void result_fini(struct result *t) {
    strbuf_fini(&t->text);
    strbuf_fini(&t->reasoning);
    strbuf_fini(&t->content);
    strbuf_fini(&t->calls);
}

#define CALL(inner) "@\n<function=f>\n" inner "</function>\n#"
#define VALUE(key, value) "<parameter=" key ">\n" value "\n</parameter>\n"

static const struct reply_case {
    const char *text, *wanted;
    uint32_t complete;
    bool thought, limit, one, off;
    const char *stop;
    size_t taken; // 0: all
} cases[] = {
    // One call, as the template writes it.
    {CALL(VALUE("s", "Paris")), "||f({\"s\": \"Paris\"})", 1},
    {"Let me look.\n\n" CALL(VALUE("i", "3")), "|Let me look.|f({\"i\": 3})", 1},
    {CALL(""), "||f({})", 1},
    {CALL(VALUE("s", "a") VALUE("i", "3") VALUE("o", "{\"a\":1}")),
     "||f({\"s\": \"a\", \"i\": 3, \"o\": {\"a\": 1}})", 1},
    // Several calls: in pairs of marks of their own, and two functions in one.
    {CALL(VALUE("s", "a")) "\n" CALL(VALUE("s", "b")), "||f({\"s\": \"a\"})f({\"s\": \"b\"})", 2},
    {"@<function=f></function><function=g></function>#", "||f({})g({})", 2},
    {"@<function=f><function=g></function>#", "||f({})g({})", 2},
    // The thought: ended by its mark, or by the call.
    {"hm\n^\n\n" CALL(VALUE("s", "a")), "hm||f({\"s\": \"a\"})", 1, .thought = true},
    {"hm" CALL(VALUE("s", "a")), "hm||f({\"s\": \"a\"})", 1, .thought = true},
    {"hm^so" CALL("") "^", "hm|so|f({})", 1, .thought = true},
    {"<function=f></function>^x", "<function=f></function>|x|", 0, .thought = true},
    // Text that spells the marks is text; a bare <function= begins a call.
    {"a <tool_call> b", "|a <tool_call> b|", 0},
    {"go\n<function=f>\n</function>#\non", "|goon|f({})", 1},
    {"a < b <func <function x", "|a < b <func <function x|", 0},
    {"<<function=f></function>", "|<|f({})", 1},
    {"a <func" CALL(""), "|a <func|f({})", 1},
    {"x \n ", "|x \n |", 0},
    {"  \n" CALL("") "\n  \n", "||f({})", 1},
    {CALL("") "\n\nDone. \n", "|Done. \n|f({})", 1},
    // Values: one newline is cut at each end, no more; the tags bear spaces; what only looks like a tag stays.
    {CALL("<parameter=s>\n\n  x\n\n\n</parameter>"), "||f({\"s\": \"\\n  x\\n\\n\"})", 1},
    {CALL("<parameter=s></parameter>"), "||f({\"s\": \"\"})", 1},
    {CALL("<parameter=s>\n</parameter>"), "||f({\"s\": \"\"})", 1},
    {CALL("<parameter=s>x</parameter>"), "||f({\"s\": \"x\"})", 1},
    {CALL("< parameter = s >\nx\n< / parameter >"), "||f({\"s\": \"x\"})", 1},
    {CALL(VALUE("s", "a < b <par </p> <<parameter")),
     "||f({\"s\": \"a < b <par </p> <<parameter\"})", 1},
    {CALL(VALUE("s", "a\n<b>\n</b>\n")), "||f({\"s\": \"a\\n<b>\\n</b>\\n\"})", 1},
    {CALL(VALUE("s", "\"q\" \\ \t")), "||f({\"s\": \"\\\"q\\\" \\\\ \\t\"})", 1},
    {CALL(VALUE("s", "x^~@#")), "||f({\"s\": \"x</think><think><tool_call></tool_call>\"})", 1},
    {CALL(VALUE("s", "\xC3\xA9\xF0\x9F\x98\x80")), "||f({\"s\": \"\xC3\xA9\xF0\x9F\x98\x80\"})", 1},
    {CALL(VALUE("s", "\xC3 \xFF")), "||f({\"s\": \"\xEF\xBF\xBD \xEF\xBF\xBD\"})", 1},
    {CALL("<parameter=s>a<parameter=i>2</parameter>"), "||f({\"s\": \"a\", \"i\": 2})", 1},
    {CALL("<parameter=i>2"), "||f({\"i\": 2})", 1},
    {CALL("<parameter=s>a\n"), "||f({\"s\": \"a\"})", 1},
    {CALL("junk" VALUE("s", "a") "junk"), "||f({\"s\": \"a\"})", 1},
    {"@junk<function=f>junk</function>junk#", "||f({})", 1},
    {CALL(VALUE("a\"b", "x")), "||f({\"a\\\"b\": \"x\"})", 1},
    // Names: as written, offered or not; trimmed; a call without one is none.
    {"@<function= h >" VALUE("i", "3") "</function>#", "||h({\"i\": \"3\"})", 1},
    {"@<function=f</function>#", "||f({})", 1},
    {"@<function=></function>#", "||", 0},
    {"@#x", "|x|", 0},
    {"@<function=f", "||", 0},
    // Marks that come early close what is open.
    {"@<function=f>" VALUE("s", "a") "#", "||f({\"s\": \"a\"})", 1},
    {"@<function=f>" VALUE("s", "a") "@<function=g></function>#", "||f({\"s\": \"a\"})g({})", 2},
    // The end: by a limit the arguments stay as they are; by a stop they are closed.
    {"@<function=f><parameter=s>ab\ncd", "||f({\"s\": \"ab\\ncd)", 0, .limit = true},
    {"@<function=f><parameter=s>ab</para", "||f({\"s\": \"ab)", 0, .limit = true},
    {"@<function=f><parameter=i>12", "||f()", 0, .limit = true},
    {"@<function=f>" VALUE("s", "a") "<parameter=i>12", "||f({\"s\": \"a\")", 0, .limit = true},
    {CALL("") "@<function=f>", "||f({})f()", 1, .limit = true},
    {"@<function=f><parameter=s>ab", "||f({\"s\": \"ab\"})", 1},
    {"@<function=f><parameter=i>12", "||f({\"i\": 12})", 1},
    {"@<function=f>", "||f({})", 1},
    // Only the first call, when asked: the reply is over behind its </function>.
    {"a" CALL("") CALL(""), "|a|f({})", 1, .one = true, .taken = 1 + 2 + 13 + 11},
    {"@<function=f>#more", "||f({})", 1, .one = true, .taken = 14},
    {"a", "|a|", 0, .one = true},
    // Stop strings are looked for in the content alone, and not across a call.
    {"a" CALL(VALUE("s", "END")) "bENDc", "|ab|f({\"s\": \"END\"})", 1, .stop = "END", .taken = 64},
    {"aE" CALL("") "ND", "|aEND|f({})", 1, .stop = "END"},
    {"a<function=f></function>", "|a|f({})", 1, .stop = "<function=x"},
    {"a<function=xy", "|a|", 0, .stop = "<function=x", .taken = 12},
    {"a \nb", "|a|", 0, .stop = " \n", .taken = 3},
    {"a \n<b", "|a \n|", 0, .stop = "<b", .taken = 5},
    // Without tools a call is content, in the thought too.
    {"a@<function=f>#", "|a<tool_call><function=f></tool_call>|", 0, .off = true},
    {"a@b", "a|<tool_call>b|", 0, .off = true, .thought = true},
};

static struct reply_options options_of(const struct reply_case *c, const struct tokenizer *t,
                                       const json_t *tools, const char **stop, size_t *stop_len) {
    *stop = c->stop;
    *stop_len = c->stop ? strlen(c->stop) : 0;
    return (struct reply_options){.tokenizer = t,
                                  .in_thought = c->thought,
                                  .split_thought = true,
                                  .parse_calls = !c->off,
                                  .one_call = c->one,
                                  .content_ids = true,
                                  .tools = tools,
                                  .stops = stop,
                                  .stop_lens = stop_len,
                                  .stop_count = c->stop != NULL};
}

static void check_case(const struct reply_case *c, const struct reply_options *o,
                       const struct ids *ids, size_t cut, size_t step) {
    struct result t;
    run(&t, o, ids, cut, step, c->limit);
    CHECK_STR(strbuf_str(&t.text), c->wanted);
    CHECK_EQ(t.complete, c->complete);
    result_fini(&t);
}

// vLLM 43074, 30439, 43713, 39056, 48753 and their kin: each shape of a call, cut at every id, in bytes and in words.
TEST(a_call_is_the_same_however_the_ids_are_cut) {
    struct tokenizer *t = tiny_tokenizer();
    json_t *tools = json_loads(tools_text, 0, NULL);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *stop;
        size_t stop_len;
        struct reply_options o = options_of(&cases[i], t, tools, &stop, &stop_len);
        for (int words = 0; words < 2; words++) {
            struct ids ids = {0};
            read_ids(cases[i].text, words, &ids);
            for (size_t cut = 0; cut <= ids.len; cut++)
                check_case(&cases[i], &o, &ids, cut, ids.len);
            check_case(&cases[i], &o, &ids, 0, 1);
            check_case(&cases[i], &o, &ids, 0, 3);
            if (!words) {
                struct result r;
                run(&r, &o, &ids, 0, ids.len, cases[i].limit);
                CHECK_EQ(r.taken, cases[i].taken ? cases[i].taken : ids.len);
                result_fini(&r);
            }
            ids_fini(&ids);
        }
    }
    json_decref(tools);
    tokenizer_free(t);
}

// vLLM 30439: a long text must not wait for its end.
TEST(a_string_streams_as_it_is_written) {
    struct tokenizer *t = tiny_tokenizer();
    json_t *tools = json_loads(tools_text, 0, NULL);
    struct reply_options o = {
        .tokenizer = t, .split_thought = true, .parse_calls = true, .tools = tools};
    struct reply *r = reply_new(&o);
    struct reply_delta d = {0};
    struct ids ids = {0};
    read_ids("@\n<function=f>\n<parameter=s>\n", false, &ids);
    reply_push(r, ids.v, ids.len, &d);
    CHECK_STR(strbuf_str(&d.calls), "f{\"s\": \"");
    static const char text[] = "abc<d>\ne";
    static const char *const shown[] = {"a", "b", "c", "", "<d", ">", "", "\\ne"};
    for (size_t i = 0; i < sizeof text - 1; i++) {
        uint32_t id = (unsigned char)text[i];
        reply_delta_reset(&d);
        reply_push(r, &id, 1, &d);
        CHECK_STR(strbuf_str(&d.calls), shown[i]);
    }
    ids_fini(&ids);
    reply_delta_fini(&d);
    reply_free(r);
    json_decref(tools);
    tokenizer_free(t);
}

/* ---- which ids the content is made of ---- */

static void check_ids(const struct reply_options *o, const char *text, bool words, size_t step,
                      const char *wanted) {
    struct ids ids = {0};
    struct strbuf found = {0};
    struct reply_delta d = {0};
    struct reply *r = reply_new(o);
    read_ids(text, words, &ids);
    for (size_t at = 0; at < ids.len && !reply_state(r); at += step)
        reply_push(r, ids.v + at, ids.len - at < step ? ids.len - at : step, &d);
    reply_finish(r, false, &d);
    size_t of_pieces = 0;
    for (size_t i = 0; i < d.piece_count; i++) of_pieces += d.pieces[i].ids;
    CHECK_EQ(of_pieces, d.id_count);
    for (size_t i = 0; i < d.id_count; i++)
        strbuf_printf(&found, "%zu@%zu ", d.ids[i].idx, d.ids[i].char_first);
    CHECK_STR(strbuf_str(&found), wanted);
    reply_free(r);
    reply_delta_fini(&d);
    strbuf_fini(&found);
    ids_fini(&ids);
}

// llama.cpp's and tabby's null logprobs: every id that is seen in the content is told of, once, and no other.
TEST(the_ids_of_the_content_are_told_in_order) {
    struct tokenizer *t = tiny_tokenizer();
    const char *stop = "ND";
    size_t stop_len = 2;
    struct reply_options o = {.tokenizer = t,
                              .split_thought = true,
                              .content_ids = true,
                              .skip_special = true,
                              .stops = &stop,
                              .stop_lens = &stop_len,
                              .stop_count = 1};
    struct reply_options calls = o, thought = o, all = o;
    calls.parse_calls = true;
    calls.stop_count = 0;
    thought.in_thought = true;
    all.split_thought = false;
    for (size_t step = 1; step < 9; step++) {
        check_ids(&o, "abc", false, step, "0@0 1@1 2@2 ");
        check_ids(&o, "aENDx", false, step, "0@0 1@1 ");
        check_ids(&o, "a%b", false, step, "0@0 2@1 ");
        // A character over several ids; one that the end cuts.
        check_ids(&o, "\xC3\xA9x\xC3", false, step, "0@0 1@0 2@1 ");
        // Two bytes, one id; white space and text of a call are no content.
        check_ids(&calls, "aa\n\n" CALL("") "x", true, step, "0@0 30@30 ");
        check_ids(&calls, "b\nc <fun", false, step, "0@0 1@1 2@2 3@3 4@4 5@5 6@6 7@7 ");
        check_ids(&thought, "ab^\n\nc", false, step, "5@2 ");
        check_ids(&all, "a^b", false, step, "0@0 1@1 2@9 ");
    }
    tokenizer_free(t);
}
