/* template_qwen: Qwen3.5's family of chat templates as code; docs/notes/templates.md tells the rules and where the
 * five sets differ. A message's text is built in `c`, then copied into the prompt. */
#include "common/err.h"
#include "common/num.h"
#include "common/planted.h"
#include "router/text/bigint.h"
#include "router/text/prompt.h"
#include "router/text/pyjson.h"
#include "router/text/template.h"

#include <assert.h>
#include <string.h>

static const char tools_head[] =
    "# Tools\n\nYou have access to the following functions:\n\n<tools>";
static const char tools_tail[] =
    "\n</tools>\n\nIf you choose to call a function ONLY reply in the following format with NO "
    "suffix:\n\n<tool_call>\n<function=example_function_name>\n<parameter=example_parameter_1>\n"
    "value_1\n</parameter>\n<parameter=example_parameter_2>\nThis is the value for the second "
    "parameter\nthat can span\nmultiple lines\n</parameter>\n</function>\n</tool_call>\n\n"
    "<IMPORTANT>\nReminder:\n- Function calls MUST follow the specified format: an inner "
    "<function=...></function> block must be nested within <tool_call></tool_call> XML tags\n"
    "- Required parameters MUST be specified\n- You may provide optional reasoning for your "
    "function call in natural language BEFORE the function call, but NOT after\n- If there is no "
    "function call available, answer the question like normal with your current knowledge and do "
    "not tell the user about function calls\n</IMPORTANT>";
static const char effort_xhigh[] =
    "Reasoning effort is set to xhigh. Please think carefully through the task, validate key "
    "assumptions, consider plausible alternatives, and prioritize correctness, consistency, and "
    "clarity in the final answer.";
static const char effort_low[] =
    "Reasoning effort is set to low. Keep your thinking brief and focused, moving directly to the "
    "conclusion without unnecessary elaboration.";
// The published texts' sizes: a slip of the keyboard does not compile.
static_assert(sizeof tools_head - 1 == 61, "tools head");
static_assert(sizeof tools_tail - 1 == 826, "tools tail");
static_assert(sizeof effort_xhigh - 1 == 207, "effort xhigh");
static_assert(sizeof effort_low - 1 == 136, "effort low");

// Where the rule sets differ.
struct rules {
    bool thinks_by_default;
    bool thinks_always;  // a wish not to think is refused
    bool has_effort;     // an effort sentence in the system block
    bool keeps_thoughts; // of earlier turns, unless told otherwise
    bool can_keep;       // of earlier turns, when told
    bool extracts;       // a thought spelt in the content is taken for one
    bool python_scalars; // True, False, None in call parameters
    bool has_vision;
};
static const struct rules rule_sets[] = {
    [TEMPLATE_3_5] = {.thinks_by_default = true,
                      .extracts = true,
                      .python_scalars = true,
                      .has_vision = true},
    [TEMPLATE_3_5_SMALL] = {.extracts = true, .python_scalars = true, .has_vision = true},
    [TEMPLATE_3_6] = {.thinks_by_default = true,
                      .can_keep = true,
                      .extracts = true,
                      .has_vision = true},
    [TEMPLATE_3_8] = {.thinks_by_default = true,
                      .has_effort = true,
                      .keeps_thoughts = true,
                      .can_keep = true,
                      .has_vision = true},
    [TEMPLATE_3_8_LARGE] = {.thinks_by_default = true,
                            .thinks_always = true,
                            .has_effort = true,
                            .keeps_thoughts = true,
                            .can_keep = true},
};

struct render {
    const struct rules *rules;
    const struct template_input *in;
    struct template_prompt *out;
    struct err *e;
    size_t count, query_idx; // messages; the last that is a user's question
    unsigned pictures, videos;
    struct template_prompt c; // the message at hand; its stripped text is [first, last)
    size_t first, last;
};

static const json_t *message(const struct render *r, size_t i) {
    return json_array_get(r->in->messages, i);
}

static bool has_role(const json_t *m, const char *role) {
    const char *s = json_string_value(json_object_get(m, "role"));
    return s && !strcmp(s, role);
}

static void mark(struct render *r, const char *text) {
    prompt_add_mark(r->out, text);
}

static void plain_json(struct render *r, const json_t *v) {
    struct strbuf text = {0};
    pyjson_add(&text, v);
    prompt_add_plain(r->out, text.p, text.len);
    strbuf_fini(&text);
}

static void plain_string(struct template_prompt *p, const json_t *v) {
    prompt_add_plain(p, json_string_value(v), json_string_length(v));
}

/* ---- a message's text ---- */

enum place { IN_SYSTEM, IN_SEARCH, IN_TURN }; // pictures are refused, not counted, counted

static bool is_kind(const json_t *item, const char *key, const char *other_key) {
    const char *type = json_string_value(json_object_get(item, "type"));
    return json_object_get(item, key) || (other_key && json_object_get(item, other_key)) ||
           (type && !strcmp(type, key));
}

static int add_vision(struct render *r, enum place place, bool is_video) {
    unsigned *n = is_video ? &r->videos : &r->pictures;
    if (place == IN_SYSTEM)
        return err_set(r->e, ST_INVAL, "System message cannot contain %s.",
                       is_video ? "videos" : "images");
    if (place == IN_TURN) ++*n;
    if (r->in->add_vision_id)
        strbuf_printf(&r->c.text, "%s %u: ", is_video ? "Video" : "Picture", *n);
    prompt_add_mark(&r->c, is_video ? "<|vision_start|><|video_pad|><|vision_end|>"
                                    : "<|vision_start|><|image_pad|><|vision_end|>");
    return ST_OK;
}

static int add_item(struct render *r, const json_t *item, enum place place) {
    bool sees = r->rules->has_vision;
    if (sees && is_kind(item, "image", "image_url")) return add_vision(r, place, false);
    if (sees && is_kind(item, "video", NULL)) return add_vision(r, place, true);
    const json_t *text = json_object_get(item, "text");
    if (!json_is_string(text)) return err_set(r->e, ST_INVAL, "Unexpected item type in content.");
    plain_string(&r->c, text);
    return ST_OK;
}

// Fills c with the text of message i.
static int read_content(struct render *r, size_t i, enum place place) {
    const json_t *content = json_object_get(message(r, i), "content");
    int st = ST_OK;
    prompt_reset(&r->c);
    if (json_is_string(content))
        plain_string(&r->c, content);
    else if (json_is_array(content))
        for (size_t k = 0; !st && k < json_array_size(content); k++)
            st = add_item(r, json_array_get(content, k), place);
    else if (content && !json_is_null(content))
        st = err_set(r->e, ST_INVAL, "Unexpected content type.");
    r->first = 0;
    r->last = r->c.text.len;
    prompt_strip(strbuf_str(&r->c.text), &r->first, &r->last);
    return st;
}

static void add_content(struct render *r) {
    prompt_add_slice(r->out, &r->c, r->first, r->last);
}

/* ---- the system block ---- */

static int read_effort(struct render *r, const char **ret) {
    enum template_tri think = r->in->enable_thinking;
    *ret = "";
    if (!r->rules->has_effort) return ST_OK;
    if (r->rules->thinks_always && think == TEMPLATE_FALSE)
        return err_set(r->e, ST_INVAL, "Disabling thinking is not supported.");
    if (!r->rules->thinks_always && think != TEMPLATE_UNSET && think != TEMPLATE_TRUE) return ST_OK;
    const char *effort = r->in->reasoning_effort ? r->in->reasoning_effort : "xhigh";
    if (!strcmp(effort, "xhigh")) return *ret = effort_xhigh, ST_OK;
    if (!strcmp(effort, "low")) return *ret = effort_low, ST_OK;
    if (!strcmp(effort, "medium")) return ST_OK;
    return err_set(r->e, ST_INVAL,
                   "Unexpected reasoning effort %s. Supported types are xhigh (default), medium, "
                   "and low.",
                   effort);
}

static void add_tools(struct render *r, const char *effort) {
    mark(r, effort);
    if (*effort) mark(r, "\n\n");
    mark(r, tools_head);
    for (size_t i = 0; i < json_array_size(r->in->tools); i++) {
        mark(r, "\n");
        plain_json(r, json_array_get(r->in->tools, i));
    }
    mark(r, tools_tail);
}

static int add_system_block(struct render *r) {
    const char *effort;
    int st = read_effort(r, &effort);
    if (st) return st;
    bool has_system = has_role(message(r, 0), "system");
    bool has_tools = json_array_size(r->in->tools) > 0;
    if (has_system) st = read_content(r, 0, IN_SYSTEM);
    if (st) return st;
    bool has_text = has_system && r->first < r->last;
    // 3.5 and 3.6 print an empty system message, 3.8 does not.
    bool prints_system = r->rules->has_effort ? has_text : has_system;
    if (!has_tools && !*effort && !prints_system) return ST_OK;
    mark(r, "<|im_start|>system\n");
    if (has_tools)
        add_tools(r, effort);
    else
        mark(r, effort);
    if (has_text && (has_tools || *effort)) mark(r, "\n\n");
    if (has_text) add_content(r);
    mark(r, "<|im_end|>\n");
    return ST_OK;
}

/* ---- turns ---- */

static bool is_tool_response(const struct render *r) {
    static const char head[] = "<tool_response>", tail[] = "</tool_response>";
    const char *p = r->c.text.p;
    size_t len = r->last - r->first;
    return len >= sizeof head - 1 && !memcmp(p + r->first, head, sizeof head - 1) &&
           len >= sizeof tail - 1 &&
           !memcmp(p + r->last - (sizeof tail - 1), tail, sizeof tail - 1);
}

static int find_query(struct render *r) {
    for (size_t i = r->count; i-- > 0;) {
        if (!has_role(message(r, i), "user")) continue;
        int st = read_content(r, i, IN_SEARCH);
        if (st) return st;
        if (is_tool_response(r)) continue;
        r->query_idx = i;
        return ST_OK;
    }
    return err_set(r->e, ST_INVAL, "No user query found in messages.");
}

static void add_tool_turn(struct render *r, size_t i) {
    if (i > 0 && !has_role(message(r, i - 1), "tool")) mark(r, "<|im_start|>user");
    mark(r, "\n<tool_response>\n");
    add_content(r);
    mark(r, "\n</tool_response>");
    if (i + 1 == r->count || !has_role(message(r, i + 1), "tool")) mark(r, "<|im_end|>\n");
}

/* ---- the assistant's turn ---- */

struct thought { // bytes [first, last) of text, or of c when text is NULL
    const char *text;
    size_t first, last;
};

static const char *find(const char *p, const char *end, const char *word) {
    return memmem(p, (size_t)(end - p), word, strlen(word));
}

static const char *find_last(const char *p, const char *end, const char *word) {
    const char *last = NULL;
    for (const char *at; (at = find(p, end, word)); p = at + strlen(word)) last = at;
    return last;
}

// Takes a thought that is spelt in the content out of it.
static void extract_thought(struct render *r, struct thought *t) {
    static const char open_mark[] = "<think>", close_mark[] = "</think>";
    if (r->first == r->last) return;
    const char *base = r->c.text.p, *p = base + r->first, *end = base + r->last;
    const char *close_at = find(p, end, close_mark);
    if (!close_at) return;
    const char *to = close_at;
    if (PLANTED && to > p && to[-2] == '\r') to--; // CR LF, were there two bytes
    while (to > p && to[-1] == '\n') to--;
    const char *open_at = find_last(p, to, open_mark);
    const char *from = open_at ? open_at + sizeof open_mark - 1 : p;
    while (from < to && *from == '\n') from++;
    *t = (struct thought){NULL, (size_t)(from - base), (size_t)(to - base)};
    p = find_last(close_at, end, close_mark) + sizeof close_mark - 1;
    while (p < end && *p == '\n') p++;
    r->first = (size_t)(p - base);
}

static void read_thought(struct render *r, const json_t *m, struct thought *t) {
    const json_t *reasoning = json_object_get(m, "reasoning_content");
    *t = (struct thought){"", 0, 0};
    if (json_is_string(reasoning))
        *t = (struct thought){json_string_value(reasoning), 0, json_string_length(reasoning)};
    else if (r->rules->extracts)
        extract_thought(r, t);
    prompt_strip(t->text ? t->text : r->c.text.p, &t->first, &t->last);
}

static void add_thought(struct render *r, const struct thought *t) {
    if (t->text)
        prompt_add_plain(r->out, t->text + t->first, t->last - t->first);
    else
        prompt_add_slice(r->out, &r->c, t->first, t->last);
}

static bool shows_thought(const struct render *r, size_t i) {
    if (i > r->query_idx || (r->rules->can_keep && r->in->preserve_thinking == TEMPLATE_TRUE))
        return true;
    return r->rules->keeps_thoughts && r->in->preserve_thinking == TEMPLATE_UNSET;
}

static void add_value(struct render *r, const json_t *v) {
    if (json_is_string(v) && !bigint_digits(v))
        plain_string(r->out, v);
    else if (r->rules->python_scalars && json_is_boolean(v))
        prompt_add_plain(r->out, json_is_true(v) ? "True" : "False", json_is_true(v) ? 4 : 5);
    else if (r->rules->python_scalars && json_is_null(v))
        prompt_add_plain(r->out, "None", 4);
    else
        plain_json(r, v);
}

static int add_arguments(struct render *r, const json_t *arguments) {
    const char *key;
    size_t len;
    json_t *v;
    if (!arguments) return ST_OK;
    if (r->rules->has_effort && json_is_string(arguments) && json_string_length(arguments) == 0)
        return ST_OK;
    if (!json_is_object(arguments))
        return err_set(r->e, ST_INVAL, "Can only get item pairs from a mapping.");
    json_object_keylen_foreach((json_t *)arguments, key, len, v) {
        mark(r, "<parameter=");
        prompt_add_plain(r->out, key, len);
        mark(r, ">\n");
        add_value(r, v);
        mark(r, "\n</parameter>\n");
    }
    return ST_OK;
}

static int add_call(struct render *r, const json_t *call, bool is_first) {
    const json_t *function = json_object_get(call, "function");
    if (!function) function = call;
    const json_t *name = json_object_get(function, "name");
    if (!json_is_string(name)) return err_set(r->e, ST_INVAL, "A tool call has no name.");
    if (!is_first)
        mark(r, "\n");
    else if (r->first < r->last)
        mark(r, "\n\n");
    mark(r, "<tool_call>\n<function=");
    plain_string(r->out, name);
    mark(r, ">\n");
    int st = add_arguments(r, json_object_get(function, "arguments"));
    mark(r, "</function>\n</tool_call>");
    return st;
}

// The last message, to be gone on with: no end of turn, and with no content yet the thought itself stays open.
static int leave_open(struct render *r, const json_t *m, const struct thought *t, bool shows) {
    const json_t *content = json_object_get(m, "content");
    if (json_array_size(json_object_get(m, "tool_calls")))
        return err_set(r->e, ST_INVAL,
                       "continue_final_message: a last message with tool_calls cannot go on");
    bool in_thought = (!content || json_is_null(content)) && t->first < t->last && shows;
    if (shows) {
        mark(r, "<think>\n");
        add_thought(r, t);
        if (!in_thought) mark(r, "\n</think>\n\n");
    }
    add_content(r);
    r->out->in_thought = in_thought;
    return ST_OK;
}

static int add_assistant_turn(struct render *r, size_t i) {
    const json_t *m = message(r, i), *calls = json_object_get(m, "tool_calls");
    struct thought t;
    read_thought(r, m, &t);
    mark(r, "<|im_start|>assistant\n");
    if (r->in->continue_final && i + 1 == r->count)
        return leave_open(r, m, &t, shows_thought(r, i));
    if (shows_thought(r, i)) {
        mark(r, "<think>\n");
        add_thought(r, &t);
        mark(r, "\n</think>\n\n");
    }
    add_content(r);
    for (size_t n = 0; n < json_array_size(calls); n++) {
        int st = add_call(r, json_array_get(calls, n), n == 0);
        if (st) return st;
    }
    mark(r, "<|im_end|>\n");
    return ST_OK;
}

/* ---- the whole ---- */

static int add_turn(struct render *r, size_t i) {
    const json_t *m = message(r, i);
    bool leads = i == 0 && has_role(m, "system");
    int st = read_content(r, i, leads ? IN_SYSTEM : IN_TURN);
    if (st || leads) return st;
    if (has_role(m, "system"))
        return err_set(r->e, ST_INVAL, "System message must be at the beginning.");
    if (has_role(m, "assistant")) return add_assistant_turn(r, i);
    if (has_role(m, "tool")) return add_tool_turn(r, i), ST_OK;
    if (!has_role(m, "user")) return err_set(r->e, ST_INVAL, "Unexpected message role.");
    mark(r, "<|im_start|>user\n");
    add_content(r);
    mark(r, "<|im_end|>\n");
    return ST_OK;
}

static void add_generation_prompt(struct render *r) {
    enum template_tri think = r->in->enable_thinking;
    bool thinks = r->rules->thinks_always ||
                  (r->rules->thinks_by_default ? think != TEMPLATE_FALSE : think == TEMPLATE_TRUE);
    mark(r, "<|im_start|>assistant\n");
    mark(r, thinks ? "<think>\n" : "<think>\n\n</think>\n\n");
    r->out->in_thought = thinks;
}

static int check_input(const struct render *r) {
    if (r->count == 0) return err_set(r->e, ST_INVAL, "No messages provided.");
    if (!r->in->continue_final) return ST_OK;
    if (r->in->add_generation_prompt)
        return err_set(r->e, ST_INVAL,
                       "continue_final_message and add_generation_prompt exclude each other");
    if (!has_role(message(r, r->count - 1), "assistant"))
        return err_set(r->e, ST_INVAL,
                       "continue_final_message: wanted a last message of role assistant");
    return ST_OK;
}

static int render(struct render *r) {
    int st = check_input(r);
    if (!st) st = add_system_block(r);
    if (!st) st = find_query(r);
    for (size_t i = 0; !st && i < r->count; i++) st = add_turn(r, i);
    if (!st && r->in->add_generation_prompt) add_generation_prompt(r);
    return st;
}

int template_render(enum template_rules rules, const struct template_input *in,
                    struct template_prompt *ret, struct err *e) {
    assert(rules >= TEMPLATE_3_5 && rules <= TEMPLATE_3_8_LARGE);
    struct template_prompt out = {0};
    struct render r = {.rules = &rule_sets[rules],
                       .in = in,
                       .out = &out,
                       .e = e,
                       .count = json_array_size(in->messages)};
    int st = render(&r);
    template_prompt_fini(&r.c);
    if (st)
        template_prompt_fini(&out);
    else
        *ret = out;
    return st;
}
