/* render: chat requests to prompts, one JSON object a line, for tests that compare with another renderer.
 *
 * In: {"rules", "messages", "tools"?, "add_generation_prompt"?, "continue_final"?, "enable_thinking"?,
 * "preserve_thinking"?, "reasoning_effort"?, "add_vision_id"?}. Out: {"prompt", "in_thought", "plain": [[first, len]]}
 * or {"error"}. */
#include "common/err.h"
#include "common/strbuf.h"
#include "router/text/template.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static enum template_tri tri(const json_t *v) {
    if (!v) return TEMPLATE_UNSET;
    return json_is_true(v) ? TEMPLATE_TRUE : json_is_false(v) ? TEMPLATE_FALSE : TEMPLATE_OTHER;
}

static json_t *spans(const struct template_prompt *p) {
    json_t *list = json_array();
    for (size_t i = 0; i < p->plain_count; i++)
        json_array_append_new(
            list, json_pack("[II]", (json_int_t)p->plain[i].first, (json_int_t)p->plain[i].len));
    return list;
}

static json_t *answer(const json_t *q) {
    enum template_rules rules;
    const char *name = json_string_value(json_object_get(q, "rules"));
    if (!name || template_rules_parse(name, &rules)) return json_pack("{ss}", "error", "rules");
    struct template_input in = {
        .messages = json_object_get(q, "messages"),
        .tools = json_object_get(q, "tools"),
        .add_generation_prompt = json_is_true(json_object_get(q, "add_generation_prompt")),
        .continue_final = json_is_true(json_object_get(q, "continue_final")),
        .enable_thinking = tri(json_object_get(q, "enable_thinking")),
        .preserve_thinking = tri(json_object_get(q, "preserve_thinking")),
        .reasoning_effort = json_string_value(json_object_get(q, "reasoning_effort")),
        .add_vision_id = json_is_true(json_object_get(q, "add_vision_id")),
    };
    struct template_prompt p = {0};
    struct err e = {0};
    if (template_render(rules, &in, &p, &e)) return json_pack("{ss}", "error", e.msg);
    json_t *a = json_pack("{s:s%,s:b,s:o}", "prompt", strbuf_str(&p.text), p.text.len, "in_thought",
                          (int)p.in_thought, "plain", spans(&p));
    template_prompt_fini(&p);
    return a;
}

int main(void) {
    char *line = NULL;
    size_t cap = 0;
    ssize_t len;
    while ((len = getline(&line, &cap, stdin)) > 0) {
        json_error_t je;
        json_t *q = json_loadb(line, (size_t)len, JSON_ALLOW_NUL, &je), *a;
        a = q ? answer(q) : json_pack("{ss}", "error", je.text);
        json_dumpf(a, stdout, JSON_COMPACT);
        putchar('\n');
        json_decref(a);
        json_decref(q);
    }
    free(line);
    return 0;
}
