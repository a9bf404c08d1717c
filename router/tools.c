/* tools: see tools.h. */
#include "router/tools.h"
#include "common/err.h"
#include "common/strbuf.h"
#include "router/apierr.h"
#include "router/body.h"
#include "router/fieldread.h"
#include "router/params.h"
#include "router/text/pyjson.h"

#include <stdio.h>
#include <string.h>

static bool is_set(const json_t *v) {
    return v && !json_is_null(v);
}

static int bad_value(const char *param, const char *what, struct apierr *e) {
    return apierr_set(e, APIERR_INVALID_VALUE, param, "%s %s", param, what);
}

// A member that must be there and be of a type.
static int wrong_member(const char *param, const char *wanted, const json_t *v, struct apierr *e) {
    if (is_set(v)) return fieldread_wrong_type(param, wanted, v, e);
    return apierr_set(e, APIERR_MISSING_PARAMETER, param, "%s is required: %s", param, wanted);
}

/* ---- one tool ---- */

static bool is_tool_name(const json_t *v) {
    static const char allowed[] =
        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.-";
    const char *s = json_string_value(v);
    size_t len = json_string_length(v);
    return len >= 1 && len <= TOOL_NAME_MAX && strspn(s, allowed) == len;
}

static int check_name(const char *param, const json_t *v, struct apierr *e) {
    if (!body_is_text(v)) return wrong_member(param, "a string", v, e);
    if (is_tool_name(v)) return ST_OK;
    char clip[APIERR_CLIP_BYTES];
    return apierr_set(e, APIERR_INVALID_VALUE, param,
                      "%s must be 1 to %d characters of A-Z a-z 0-9 _ . -, got '%s'", param,
                      TOOL_NAME_MAX,
                      apierr_clip(clip, json_string_value(v), json_string_length(v)));
}

static int check_parameters(const char *param, const json_t *v, struct apierr *e) {
    if (!is_set(v)) return ST_OK;
    if (!json_is_object(v)) return fieldread_wrong_type(param, "a JSON schema object", v, e);
    const json_t *type = json_object_get(v, "type");
    if (!type || (json_is_string(type) && !strcmp(json_string_value(type), "object"))) return ST_OK;
    return bad_value(param, "must be a JSON schema of type object", e);
}

static int check_function(const char *path, const json_t *function, struct apierr *e) {
    char param[APIERR_PARAM_BYTES];
    const json_t *description = json_object_get(function, "description");
    const json_t *strict = json_object_get(function, "strict");
    snprintf(param, sizeof param, "%s.name", path);
    int st = check_name(param, json_object_get(function, "name"), e);
    if (st) return st;
    snprintf(param, sizeof param, "%s.description", path);
    if (is_set(description) && !body_is_text(description))
        return fieldread_wrong_type(param, "a string", description, e);
    snprintf(param, sizeof param, "%s.strict", path);
    if (is_set(strict) && !json_is_boolean(strict))
        return fieldread_wrong_type(param, "a boolean", strict, e);
    snprintf(param, sizeof param, "%s.parameters", path);
    return check_parameters(param, json_object_get(function, "parameters"), e);
}

static int check_tool(size_t i, const json_t *tool, struct apierr *e) {
    char param[64];
    snprintf(param, sizeof param, "tools[%zu]", i);
    if (!json_is_object(tool)) return fieldread_wrong_type(param, "an object", tool, e);
    snprintf(param, sizeof param, "tools[%zu].type", i);
    const json_t *type = json_object_get(tool, "type");
    if (!body_is_text(type)) return wrong_member(param, "a string", type, e);
    if (strcmp(json_string_value(type), "function")) return bad_value(param, "must be function", e);
    snprintf(param, sizeof param, "tools[%zu].function", i);
    const json_t *function = json_object_get(tool, "function");
    if (!json_is_object(function)) return wrong_member(param, "an object", function, e);
    return check_function(param, function, e);
}

static const json_t *function_of(const json_t *tools, size_t i) {
    return json_object_get(json_array_get(tools, i), "function");
}

static const json_t *name_of(const json_t *tools, size_t i) {
    return json_object_get(function_of(tools, i), "name");
}

static bool is_offered(const json_t *tools, size_t count, const json_t *name) {
    for (size_t i = 0; i < count; i++)
        if (json_equal(name_of(tools, i), name)) return true;
    return false;
}

/* ---- all of them ---- */

static int check_bytes(const json_t *tools, struct apierr *e) {
    struct strbuf text = {0};
    pyjson_add(&text, tools);
    size_t len = text.len;
    strbuf_fini(&text);
    if (len <= TOOLS_BYTES_MAX) return ST_OK;
    return apierr_set(e, APIERR_INVALID_VALUE, "tools",
                      "tools must have at most %d bytes in all, got %zu", TOOLS_BYTES_MAX, len);
}

int tools_read(struct field_context *c, const json_t *v, struct apierr *e) {
    if (!json_is_array(v)) return fieldread_wrong_type("tools", "an array", v, e);
    size_t n = json_array_size(v);
    if (n > TOOLS_MAX)
        return apierr_set(e, APIERR_INVALID_VALUE, "tools",
                          "tools must have at most %d entries, got %zu", TOOLS_MAX, n);
    for (size_t i = 0; i < n; i++) {
        int st = check_tool(i, json_array_get(v, i), e);
        if (st) return st;
        if (!is_offered(v, i, name_of(v, i))) continue;
        char param[64];
        snprintf(param, sizeof param, "tools[%zu].function.name", i);
        return bad_value(param, "stands for an earlier tool too", e);
    }
    int st = check_bytes(v, e);
    if (st || n == 0) return st;
    json_decref(c->params->tools);
    c->params->tools = json_incref((json_t *)(uintptr_t)v);
    return ST_OK;
}

/* ---- the choice ---- */

static bool is_word(const json_t *v, const char *word) {
    return body_is_text(v) && !strcmp(json_string_value(v), word);
}

bool tools_choice_is_free(const json_t *v) {
    return is_word(v, "none") || is_word(v, "auto");
}

static int check_chosen(const char *path, const json_t *v, struct apierr *e) {
    char param[APIERR_PARAM_BYTES];
    if (!json_is_object(v)) return wrong_member(path, "an object", v, e);
    const json_t *function = json_object_get(v, "function");
    snprintf(param, sizeof param, "%s.function", path);
    if (!json_is_object(function)) return wrong_member(param, "an object", function, e);
    snprintf(param, sizeof param, "%s.function.name", path);
    const json_t *name = json_object_get(function, "name");
    return body_is_text(name) ? ST_OK : wrong_member(param, "a string", name, e);
}

static int check_allowed(const json_t *v, struct apierr *e) {
    static const char path[] = "tool_choice.allowed_tools";
    const json_t *mode = json_object_get(v, "mode"), *tools = json_object_get(v, "tools");
    if (!json_is_object(v)) return wrong_member(path, "an object", v, e);
    if (!is_word(mode, "auto") && !is_word(mode, "required"))
        return bad_value("tool_choice.allowed_tools.mode", "must be auto or required", e);
    if (!json_is_array(tools))
        return wrong_member("tool_choice.allowed_tools.tools", "an array", tools, e);
    for (size_t i = 0; i < json_array_size(tools); i++) {
        char param[64];
        snprintf(param, sizeof param, "%s.tools[%zu]", path, i);
        int st = check_chosen(param, json_array_get(tools, i), e);
        if (st) return st;
    }
    return ST_OK;
}

int tools_read_choice(struct field_context *c, const json_t *v, struct apierr *e) {
    c->params->tool_choice = is_word(v, "none")   ? TOOL_CHOICE_NONE
                             : is_word(v, "auto") ? TOOL_CHOICE_AUTO
                                                  : TOOL_CHOICE_FORCED;
    if (tools_choice_is_free(v) || is_word(v, "required")) return ST_OK;
    if (body_is_text(v)) return bad_value("tool_choice", "must be none, auto or required", e);
    if (!json_is_object(v))
        return fieldread_wrong_type("tool_choice", "a string or an object", v, e);
    const json_t *type = json_object_get(v, "type");
    if (is_word(type, "function")) return check_chosen("tool_choice", v, e);
    if (is_word(type, "allowed_tools"))
        return check_allowed(json_object_get(v, "allowed_tools"), e);
    return bad_value("tool_choice.type", "must be function or allowed_tools", e);
}

static int check_offered(const struct params *p, const char *path, const json_t *chosen,
                         struct apierr *e) {
    const json_t *name = json_object_get(json_object_get(chosen, "function"), "name");
    if (is_offered(p->tools, json_array_size(p->tools), name)) return ST_OK;
    char param[APIERR_PARAM_BYTES], clip[APIERR_CLIP_BYTES];
    snprintf(param, sizeof param, "%s.function.name", path);
    return apierr_set(e, APIERR_INVALID_VALUE, param, "%s: no tool '%s' is offered", param,
                      apierr_clip(clip, json_string_value(name), json_string_length(name)));
}

int tools_check_choice(const struct params *p, const json_t *choice, struct apierr *e) {
    if (!is_set(choice) || tools_choice_is_free(choice)) return ST_OK;
    if (!p->tools)
        return apierr_set(e, APIERR_INVALID_VALUE, "tool_choice",
                          "tool_choice other than none or auto needs tools");
    if (is_word(json_object_get(choice, "type"), "function"))
        return check_offered(p, "tool_choice", choice, e);
    const json_t *allowed = json_object_get(json_object_get(choice, "allowed_tools"), "tools");
    for (size_t i = 0; i < json_array_size(allowed); i++) {
        char path[64];
        snprintf(path, sizeof path, "tool_choice.allowed_tools.tools[%zu]", i);
        int st = check_offered(p, path, json_array_get(allowed, i), e);
        if (st) return st;
    }
    return ST_OK;
}

int tools_capabilities(const struct params *p, struct apierr *e) {
    for (size_t i = 0; i < json_array_size(p->tools); i++) {
        if (!json_is_true(json_object_get(function_of(p->tools, i), "strict"))) continue;
        char param[64];
        snprintf(param, sizeof param, "tools[%zu].function.strict", i);
        return apierr_set(e, APIERR_UNSUPPORTED_PARAMETER, param,
                          "%s is not supported: this build has no constrained output", param);
    }
    return ST_OK;
}
