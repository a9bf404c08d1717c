/* render_request: a template's input as one JSON object, for the render program and the fuzz entry.
 *
 * {"rules", "messages", "tools"?, "add_generation_prompt"?, "continue_final"?, "enable_thinking"?,
 * "preserve_thinking"?, "reasoning_effort"?, "add_vision_id"?}; *ret points into it. */
#pragma once
#include "router/text/template.h"

static inline enum template_tri render_request_tri(const json_t *v) {
    if (!v) return TEMPLATE_UNSET;
    return json_is_true(v) ? TEMPLATE_TRUE : json_is_false(v) ? TEMPLATE_FALSE : TEMPLATE_OTHER;
}

// False: no rule set is named.
static inline bool render_request_read(const json_t *q, enum template_rules *ret_rules,
                                       struct template_input *ret) {
    const char *name = json_string_value(json_object_get(q, "rules"));
    if (!name || template_rules_parse(name, ret_rules)) return false;
    *ret = (struct template_input){
        .messages = json_object_get(q, "messages"),
        .tools = json_object_get(q, "tools"),
        .add_generation_prompt = json_is_true(json_object_get(q, "add_generation_prompt")),
        .continue_final = json_is_true(json_object_get(q, "continue_final")),
        .enable_thinking = render_request_tri(json_object_get(q, "enable_thinking")),
        .preserve_thinking = render_request_tri(json_object_get(q, "preserve_thinking")),
        .reasoning_effort = json_string_value(json_object_get(q, "reasoning_effort")),
        .add_vision_id = json_is_true(json_object_get(q, "add_vision_id")),
    };
    return true;
}
