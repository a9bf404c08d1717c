/* messages: see messages.h. */
#include "router/messages.h"
#include "common/err.h"
#include "common/strbuf.h"
#include "router/apierr.h"
#include "router/body.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

struct reader {
    const struct messages_options *o;
    struct apierr *e;
    size_t idx;              // of the message being read
    char path[128];          // "messages[3]"
    struct strbuf text;      // content of that message
    struct body_stats stats; // of the texts of all calls' arguments
};

static int wrong_type(struct reader *r, const char *member, const char *wanted, const json_t *v) {
    char param[APIERR_PARAM_BYTES];
    snprintf(param, sizeof param, "%s%s", r->path, member);
    return apierr_set(r->e, v ? APIERR_INVALID_TYPE : APIERR_MISSING_PARAMETER, param,
                      "%s must be %s, got %s", param, wanted, body_type_name(v));
}

static int unsupported(struct reader *r, const char *member, const char *what) {
    char param[APIERR_PARAM_BYTES];
    snprintf(param, sizeof param, "%s%s", r->path, member);
    return apierr_set(r->e, APIERR_UNSUPPORTED_PARAMETER, param, "%s: %s", param, what);
}

static void add_text(struct reader *r, const json_t *v) {
    strbuf_add(&r->text, json_string_value(v), json_string_length(v));
}

static int read_part(struct reader *r, size_t j, const json_t *part) {
    char member[64];
    snprintf(member, sizeof member, ".content[%zu]", j);
    if (!json_is_object(part)) return wrong_type(r, member, "an object", part);
    const json_t *type = json_object_get(part, "type");
    snprintf(member, sizeof member, ".content[%zu].type", j);
    if (!body_is_text(type)) return wrong_type(r, member, "a string", type);
    const char *t = json_string_value(type);
    if (!strcmp(t, "image_url") || !strcmp(t, "input_image"))
        return unsupported(r, member, "this build reads no images");
    if (!strcmp(t, "input_audio") || !strcmp(t, "file") || !strcmp(t, "video_url"))
        return unsupported(r, member, "only text parts are read");
    const char *key = !strcmp(t, "text") || !strcmp(t, "input_text") ? "text"
                      : !strcmp(t, "refusal")                        ? "refusal"
                                                                     : NULL;
    if (!key) {
        char param[APIERR_PARAM_BYTES], clip[APIERR_CLIP_BYTES];
        snprintf(param, sizeof param, "%s%s", r->path, member);
        return apierr_set(r->e, APIERR_INVALID_VALUE, param,
                          "%s must be text, input_text or refusal, got '%s'", param,
                          apierr_clip(clip, t, json_string_length(type)));
    }
    const json_t *text = json_object_get(part, key);
    snprintf(member, sizeof member, ".content[%zu].%s", j, key);
    if (!body_is_text(text)) return wrong_type(r, member, "a string", text);
    add_text(r, text);
    return ST_OK;
}

// Into r->text.
static int read_content(struct reader *r, const json_t *v, bool optional) {
    strbuf_reset(&r->text);
    if (!v || json_is_null(v))
        return optional ? ST_OK : wrong_type(r, ".content", "a string or an array of parts", v);
    if (body_is_text(v)) {
        add_text(r, v);
        return ST_OK;
    }
    if (!json_is_array(v)) return wrong_type(r, ".content", "a string or an array of parts", v);
    if (json_array_size(v) > MESSAGES_PARTS_MAX) {
        char param[APIERR_PARAM_BYTES];
        snprintf(param, sizeof param, "%s.content", r->path);
        return apierr_set(r->e, APIERR_INVALID_VALUE, param,
                          "%s must have at most %d parts, got %zu", param, MESSAGES_PARTS_MAX,
                          json_array_size(v));
    }
    for (size_t j = 0; j < json_array_size(v); j++) {
        int st = read_part(r, j, json_array_get(v, j));
        if (st) return st;
    }
    return ST_OK;
}

// The arguments of a call as an object: given as one, as JSON text of one, or as "". *ret is the caller's.
static int read_arguments(struct reader *r, const char *member, const json_t *v, json_t **ret) {
    if (!v || json_is_null(v) || (body_is_text(v) && json_string_length(v) == 0)) {
        *ret = json_object();
        return ST_OK;
    }
    if (json_is_object(v)) {
        *ret = json_deep_copy(v);
        return ST_OK;
    }
    json_t *parsed = NULL;
    struct apierr why;
    bool text = body_is_text(v);
    if (text &&
        !body_parse_next(json_string_value(v), json_string_length(v), &parsed, &r->stats, &why)) {
        *ret = parsed;
        return ST_OK;
    }
    char param[APIERR_PARAM_BYTES];
    snprintf(param, sizeof param, "%s%s", r->path, member);
    return apierr_set(r->e, APIERR_INVALID_VALUE, param,
                      "%s must be a JSON object, as such or in a string%s%s", param,
                      text ? ": " : "", text ? why.message : "");
}

static int read_call(struct reader *r, size_t j, const json_t *call, json_t *out) {
    char member[64];
    snprintf(member, sizeof member, ".tool_calls[%zu]", j);
    if (!json_is_object(call)) return wrong_type(r, member, "an object", call);
    const json_t *function = json_object_get(call, "function");
    snprintf(member, sizeof member, ".tool_calls[%zu].function", j);
    if (!json_is_object(function)) return wrong_type(r, member, "an object", function);
    const json_t *name = json_object_get(function, "name");
    snprintf(member, sizeof member, ".tool_calls[%zu].function.name", j);
    if (!body_is_text(name)) return wrong_type(r, member, "a string", name);
    snprintf(member, sizeof member, ".tool_calls[%zu].function.arguments", j);
    json_t *arguments = NULL;
    int st = read_arguments(r, member, json_object_get(function, "arguments"), &arguments);
    if (st) return st;
    json_array_append_new(out,
                          json_pack("{s:s, s:{s:O, s:o}}", "type", "function", "function", "name",
                                    (json_t *)(uintptr_t)name, "arguments", arguments));
    return ST_OK;
}

static int read_calls(struct reader *r, const json_t *v, json_t *out) {
    if (!v || json_is_null(v)) return ST_OK;
    if (!json_is_array(v)) return wrong_type(r, ".tool_calls", "an array", v);
    if (json_array_size(v) == 0) return ST_OK;
    json_t *calls = json_array();
    json_object_set_new(out, "tool_calls", calls);
    for (size_t j = 0; j < json_array_size(v); j++) {
        int st = read_call(r, j, json_array_get(v, j), calls);
        if (st) return st;
    }
    return ST_OK;
}

static int read_reasoning(struct reader *r, const json_t *m, json_t *out) {
    static const char *const keys[] = {"reasoning_content", "reasoning"};
    for (size_t k = 0; k < 2; k++) {
        json_t *v = json_object_get(m, keys[k]);
        if (!v || json_is_null(v)) continue;
        char member[32];
        snprintf(member, sizeof member, ".%s", keys[k]);
        if (!body_is_text(v)) return wrong_type(r, member, "a string", v);
        json_object_set(out, "reasoning_content", v);
        return ST_OK;
    }
    return ST_OK;
}

enum role { ROLE_SYSTEM, ROLE_USER, ROLE_ASSISTANT, ROLE_TOOL };
static const char *const role_names[] = {"system", "user", "assistant", "tool"};

static int read_role(struct reader *r, const json_t *m, enum role *ret) {
    const json_t *v = json_object_get(m, "role");
    if (!body_is_text(v)) return wrong_type(r, ".role", "a string", v);
    const char *name = json_string_value(v);
    if (!strcmp(name, "developer")) name = "system";
    for (int i = 0; i <= ROLE_TOOL; i++) {
        if (strcmp(name, role_names[i])) continue;
        *ret = (enum role)i;
        return ST_OK;
    }
    char param[APIERR_PARAM_BYTES], clip[APIERR_CLIP_BYTES];
    snprintf(param, sizeof param, "%s.role", r->path);
    return apierr_set(r->e, APIERR_INVALID_VALUE, param,
                      "%s must be system, developer, user, assistant or tool, got '%s'", param,
                      apierr_clip(clip, name, json_string_length(v)));
}

// A system message behind others at the head is glued to the one before it. *ret_done: nothing is left to add.
static int place_system(struct reader *r, json_t *out, enum role *role, bool *ret_done) {
    *ret_done = false;
    size_t n = json_array_size(out);
    if (n == 0) return ST_OK;
    json_t *first = json_array_get(out, 0);
    bool at_head = n == 1 && !strcmp(json_string_value(json_object_get(first, "role")), "system");
    if (at_head) {
        const json_t *old = json_object_get(first, "content");
        struct strbuf both = {0};
        strbuf_add(&both, json_string_value(old), json_string_length(old));
        strbuf_add_str(&both, "\n\n");
        strbuf_add(&both, strbuf_str(&r->text), r->text.len);
        json_object_set_new(first, "content", json_stringn_nocheck(both.p, both.len));
        strbuf_fini(&both);
        *ret_done = true;
        return ST_OK;
    }
    if (r->o->late_system_as_user) {
        *role = ROLE_USER;
        return ST_OK;
    }
    char param[APIERR_PARAM_BYTES];
    snprintf(param, sizeof param, "%s.role", r->path);
    return apierr_set(r->e, APIERR_TEMPLATE, param, "%s: system messages must be at the beginning",
                      param);
}

static int read_message(struct reader *r, const json_t *m, json_t *out) {
    if (!json_is_object(m)) return wrong_type(r, "", "an object", m);
    enum role role = ROLE_USER;
    int st = read_role(r, m, &role);
    if (st) return st;
    st = read_content(r, json_object_get(m, "content"), role == ROLE_ASSISTANT);
    if (st) return st;
    bool done = false;
    if (role == ROLE_SYSTEM) st = place_system(r, out, &role, &done);
    if (st || done) return st;
    json_t *one = json_pack("{s:s}", "role", role_names[role]);
    json_object_set_new(one, "content", json_stringn_nocheck(strbuf_str(&r->text), r->text.len));
    json_array_append_new(out, one); // first, so that a refusal below leaks nothing
    if (role != ROLE_ASSISTANT) return ST_OK;
    st = read_reasoning(r, m, one);
    return st ? st : read_calls(r, json_object_get(m, "tool_calls"), one);
}

int messages_read(const json_t *v, const struct messages_options *o, json_t **ret,
                  struct apierr *e) {
    struct reader r = {.o = o, .e = e};
    if (!json_is_array(v))
        return apierr_set(e, v ? APIERR_INVALID_TYPE : APIERR_MISSING_PARAMETER, "messages",
                          "messages must be an array, got %s", body_type_name(v));
    size_t n = json_array_size(v);
    if (n < 1 || n > MESSAGES_MAX)
        return apierr_set(e, APIERR_INVALID_VALUE, "messages",
                          "messages must have 1 to %d entries, got %zu", MESSAGES_MAX, n);
    json_t *out = json_array();
    int st = ST_OK;
    for (r.idx = 0; !st && r.idx < n; r.idx++) {
        snprintf(r.path, sizeof r.path, "messages[%zu]", r.idx);
        st = read_message(&r, json_array_get(v, r.idx), out);
    }
    strbuf_fini(&r.text);
    *o->lone_surrogates += r.stats.lone_surrogates;
    if (st) {
        json_decref(out);
        return st;
    }
    *ret = out;
    return ST_OK;
}
