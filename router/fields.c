/* fields: see fields.h. */
#include "router/fields.h"
#include "common/arena.h"
#include "common/err.h"
#include "router/apierr.h"
#include "router/body.h"
#include "router/messages.h"
#include "router/params.h"
#include "router/text/bigint.h"

#include <assert.h>
#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int wrong_type(const char *param, const char *wanted, const json_t *v, struct apierr *e) {
    return apierr_set(e, APIERR_INVALID_TYPE, param, "%s must be %s, got %s", param, wanted,
                      body_type_name(v));
}

static int out_of_range(const char *param, double min, double max, const char *got,
                        struct apierr *e) {
    if (isinf(max) && !isinf(min) && got[0] == '-')
        return apierr_set(e, APIERR_INVALID_VALUE, param, "%s must be at least %.15g, got %s",
                          param, min, got);
    if (isinf(max)) // nothing that counts ids is beyond a double's whole numbers
        return apierr_set(e, APIERR_INVALID_VALUE, param, "%s must be at most 2^53, got %s", param,
                          got);
    return apierr_set(e, APIERR_INVALID_VALUE, param, "%s must be %.15g to %.15g, got %s", param,
                      min, max, got);
}

int fields_int(const json_t *v, const char *param, double min, double max, int64_t *ret,
               struct apierr *e) {
    char got[APIERR_CLIP_BYTES];
    const char *big = bigint_digits(v);
    if (big) return out_of_range(param, min, max, apierr_clip(got, big, strlen(big)), e);
    if (!json_is_number(v)) return wrong_type(param, "an integer", v, e);
    double x = json_number_value(v);
    if (json_is_real(v) && x != floor(x))
        return apierr_set(e, APIERR_INVALID_TYPE, param, "%s must be an integer, got %.15g", param,
                          x);
    // The nearest double of a large int64 may be 2^63 itself.
    bool fits = json_is_integer(v) || (x >= -0x1p63 && x < 0x1p63);
    int64_t n = json_is_integer(v) ? json_integer_value(v) : fits ? (int64_t)x : 0;
    if (!fits || x < min || x > max) {
        snprintf(got, sizeof got, "%.17g", x);
        return out_of_range(param, min, max, got, e);
    }
    *ret = n;
    return ST_OK;
}

static int read_number(const json_t *v, const struct field *f, double *ret, struct apierr *e) {
    const char *big = bigint_digits(v);
    if (!big && !json_is_number(v)) return wrong_type(f->name, "a number", v, e);
    double x = big ? strtod(big, NULL) : json_number_value(v);
    if (x < f->min || x > f->max) {
        char got[40];
        snprintf(got, sizeof got, "%.15g", x);
        return out_of_range(f->name, f->min, f->max, got, e);
    }
    *ret = x;
    return ST_OK;
}

static int read_text(struct field_context *c, const json_t *v, const struct field *f,
                     const char **ret, struct apierr *e) {
    if (!body_is_text(v)) return wrong_type(f->name, "a string", v, e);
    size_t len = json_string_length(v);
    if (f->max > 0 && ((double)len < f->min || (double)len > f->max))
        return apierr_set(e, APIERR_INVALID_VALUE, f->name,
                          "%s must have %.15g to %.15g bytes, got %zu", f->name, f->min, f->max,
                          len);
    // Names and keys, not content: what is behind a NUL would be lost without a word.
    if (strlen(json_string_value(v)) != len)
        return apierr_set(e, APIERR_INVALID_VALUE, f->name, "%s must not hold a NUL", f->name);
    *ret = arena_strndup(c->arena, json_string_value(v), len);
    return ST_OK;
}

/* ---- fields with a form of their own ---- */

static int read_messages(struct field_context *c, const json_t *v, struct apierr *e) {
    struct messages_options o = {c->late_system_as_user, c->lone_surrogates};
    return messages_read(v, &o, &c->params->messages, e);
}

static int read_member_bool(const json_t *o, const char *param, const char *key, bool *ret,
                            struct apierr *e) {
    const json_t *v = json_object_get(o, key);
    if (!v || json_is_null(v)) return ST_OK;
    char path[APIERR_PARAM_BYTES];
    snprintf(path, sizeof path, "%s.%s", param, key);
    if (!json_is_boolean(v)) return wrong_type(path, "a boolean", v, e);
    *ret = json_is_true(v);
    return ST_OK;
}

static int read_stream_options(struct field_context *c, const json_t *v, struct apierr *e) {
    if (!json_is_object(v)) return wrong_type("stream_options", "an object", v, e);
    int st = read_member_bool(v, "stream_options", "include_usage", &c->params->include_usage, e);
    if (st) return st;
    return read_member_bool(v, "stream_options", "continuous_usage_stats",
                            &c->params->continuous_usage, e);
}

// -1 is "as much as there is room for", the same as absent.
static int read_limit(const json_t *v, const char *name, int64_t *ret, struct apierr *e) {
    int64_t n = 0;
    int st = fields_int(v, name, -INFINITY, INFINITY, &n, e);
    if (st) return st;
    if (n != -1 && n < 1)
        return apierr_set(e, APIERR_INVALID_VALUE, name, "%s must be at least 1, got %lld", name,
                          (long long)n);
    *ret = n == -1 ? 0 : n;
    return ST_OK;
}

static int read_max_tokens(struct field_context *c, const json_t *v, struct apierr *e) {
    return read_limit(v, "max_tokens", &c->params->max_tokens, e);
}

static int read_max_completion_tokens(struct field_context *c, const json_t *v, struct apierr *e) {
    return read_limit(v, "max_completion_tokens", &c->params->max_completion_tokens, e);
}

static int read_top_k(struct field_context *c, const json_t *v, struct apierr *e) {
    int64_t k = 0;
    int st = fields_int(v, "top_k", -1, c->vocab_size, &k, e);
    if (!st) c->params->top_k = k < 0 ? 0 : k;
    return st;
}

static int read_repetition(struct field_context *c, const json_t *v, struct apierr *e) {
    static const struct field f = {.name = "repetition_penalty", .min = 0, .max = 2};
    double x = 0;
    int st = read_number(v, &f, &x, e);
    if (st) return st;
    if (x <= 0)
        return apierr_set(e, APIERR_INVALID_VALUE, f.name, "%s must be more than 0, got %.15g",
                          f.name, x);
    c->params->repetition = x;
    return ST_OK;
}

static bool decimal_id(const char *s, size_t len, uint32_t below, uint32_t *ret) {
    if (len == 0 || len > 10) return false;
    uint64_t n = 0;
    for (size_t i = 0; i < len; i++) {
        if (!isdigit((unsigned char)s[i])) return false;
        n = n * 10 + (uint64_t)(s[i] - '0');
    }
    if (n >= below) return false;
    *ret = (uint32_t)n;
    return true;
}

static int read_one_bias(struct field_context *c, const char *key, const json_t *v,
                         struct apierr *e) {
    struct params *p = c->params;
    char clip[APIERR_CLIP_BYTES], path[APIERR_PARAM_BYTES + 32];
    apierr_clip(clip, key, strlen(key));
    snprintf(path, sizeof path, "logit_bias.%s", clip);
    uint32_t id;
    if (!decimal_id(key, strlen(key), c->vocab_size, &id))
        return apierr_set(e, APIERR_INVALID_VALUE, path, "logit_bias: '%s' is no token id below %u",
                          clip, c->vocab_size);
    struct field f = {.name = path, .min = -100, .max = 100};
    double x = 0;
    int st = read_number(v, &f, &x, e);
    if (st) return st;
    // "7" and "007" are two keys and one id: the later one counts, as for a repeated key.
    uint32_t i = 0;
    while (i < p->bias_count && p->bias_ids[i] != id) i++;
    p->bias_ids[i] = id;
    p->bias[i] = (float)x;
    if (i == p->bias_count) p->bias_count++;
    return ST_OK;
}

static int read_logit_bias(struct field_context *c, const json_t *v, struct apierr *e) {
    if (!json_is_object(v)) return wrong_type("logit_bias", "an object", v, e);
    size_t n = json_object_size(v);
    if (n > PARAMS_BIAS_MAX)
        return apierr_set(e, APIERR_INVALID_VALUE, "logit_bias",
                          "logit_bias must have at most %d entries, got %zu", PARAMS_BIAS_MAX, n);
    c->params->bias_ids = arena_calloc(c->arena, n, sizeof *c->params->bias_ids);
    c->params->bias = arena_calloc(c->arena, n, sizeof *c->params->bias);
    const char *key;
    json_t *one;
    json_object_foreach((json_t *)(uintptr_t)v, key, one) {
        int st = read_one_bias(c, key, one, e);
        if (st) return st;
    }
    return ST_OK;
}

// -2^63 .. 2^64-1, taken modulo 2^64.
static int read_seed(struct field_context *c, const json_t *v, struct apierr *e) {
    const char *big = bigint_digits(v);
    if (big) {
        char *end;
        size_t digits = strlen(big);
        unsigned long long n = strtoull(big, &end, 10);
        char text[24];
        if (digits < sizeof text) snprintf(text, sizeof text, "%llu", n);
        if (*big == '-' || digits >= sizeof text || strcmp(text, big)) {
            char clip[APIERR_CLIP_BYTES];
            return apierr_set(e, APIERR_INVALID_VALUE, "seed",
                              "seed must be -2^63 to 2^64-1, got %s",
                              apierr_clip(clip, big, digits));
        }
        c->params->seed = n;
    } else if (json_is_real(v) && json_real_value(v) >= 0x1p63 && json_real_value(v) < 0x1p64) {
        c->params->seed = (uint64_t)json_real_value(v); // such a double has no fraction
    } else {
        int64_t n = 0;
        int st = fields_int(v, "seed", -0x1p63, 0x1p64, &n, e);
        if (st) return st;
        c->params->seed = (uint64_t)n;
    }
    c->params->has_seed = true;
    return ST_OK;
}

static int add_stop(struct field_context *c, const char *path, const json_t *v, struct apierr *e) {
    struct params *p = c->params;
    struct field f = {.name = path, .min = 1, .max = PARAMS_STOP_BYTES_MAX};
    const char *s = NULL;
    int st = read_text(c, v, &f, &s, e);
    if (st) return st;
    p->stops[p->stop_count] = s;
    p->stop_lens[p->stop_count++] = json_string_length(v);
    return ST_OK;
}

static int read_stop(struct field_context *c, const json_t *v, struct apierr *e) {
    size_t n = json_is_array(v) ? json_array_size(v) : 1;
    if (n > PARAMS_STOPS_MAX)
        return apierr_set(e, APIERR_INVALID_VALUE, "stop",
                          "stop must have at most %d strings, got %zu", PARAMS_STOPS_MAX, n);
    c->params->stops = arena_calloc(c->arena, n, sizeof *c->params->stops);
    c->params->stop_lens = arena_calloc(c->arena, n, sizeof *c->params->stop_lens);
    if (body_is_text(v)) return add_stop(c, "stop", v, e);
    if (!json_is_array(v)) return wrong_type("stop", "a string or an array of strings", v, e);
    for (size_t i = 0; i < n; i++) {
        char path[32];
        snprintf(path, sizeof path, "stop[%zu]", i);
        int st = add_stop(c, path, json_array_get(v, i), e);
        if (st) return st;
    }
    return ST_OK;
}

static int read_stop_ids(struct field_context *c, const json_t *v, struct apierr *e) {
    if (!json_is_array(v)) return wrong_type("stop_token_ids", "an array of ids", v, e);
    size_t n = json_array_size(v);
    if (n > PARAMS_STOP_IDS_MAX)
        return apierr_set(e, APIERR_INVALID_VALUE, "stop_token_ids",
                          "stop_token_ids must have at most %d ids, got %zu", PARAMS_STOP_IDS_MAX,
                          n);
    c->params->stop_ids = arena_calloc(c->arena, n, sizeof *c->params->stop_ids);
    for (size_t i = 0; i < n; i++) {
        char path[40];
        snprintf(path, sizeof path, "stop_token_ids[%zu]", i);
        int64_t id = 0;
        int st = fields_int(json_array_get(v, i), path, 0, c->vocab_size - 1.0, &id, e);
        if (st) return st;
        c->params->stop_ids[c->params->stop_id_count++] = (uint32_t)id;
    }
    return ST_OK;
}

static const char *const effort_words = "none, minimal, low, medium, high, xhigh or max";

static int read_effort_word(struct field_context *c, const char *param, const json_t *v,
                            const char **ret, struct apierr *e) {
    static const char *const words[] = {"none", "minimal", "low", "medium", "high", "xhigh", "max"};
    if (!body_is_text(v)) return wrong_type(param, "a string", v, e);
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        if (strcmp(words[i], json_string_value(v))) continue;
        *ret = words[i];
        return ST_OK;
    }
    char clip[APIERR_CLIP_BYTES];
    return apierr_set(e, APIERR_INVALID_VALUE, param, "%s must be %s, got '%s'", param,
                      effort_words, apierr_clip(clip, json_string_value(v), json_string_length(v)));
}

static int read_effort(struct field_context *c, const json_t *v, struct apierr *e) {
    return read_effort_word(c, "reasoning_effort", v, &c->params->reasoning_effort, e);
}

static int read_tri(const json_t *o, const char *key, enum template_tri *ret, struct apierr *e) {
    bool b = false;
    const json_t *v = json_object_get(o, key);
    if (!v || json_is_null(v)) return ST_OK;
    int st = read_member_bool(o, "chat_template_kwargs", key, &b, e);
    if (!st) *ret = b ? TEMPLATE_TRUE : TEMPLATE_FALSE;
    return st;
}

static int read_kwargs(struct field_context *c, const json_t *v, struct apierr *e) {
    struct params *p = c->params;
    if (!json_is_object(v)) return wrong_type("chat_template_kwargs", "an object", v, e);
    int st = read_tri(v, "enable_thinking", &p->enable_thinking, e);
    if (!st) st = read_tri(v, "preserve_thinking", &p->preserve_thinking, e);
    if (!st)
        st = read_member_bool(v, "chat_template_kwargs", "add_vision_id", &p->add_vision_id, e);
    const json_t *effort = json_object_get(v, "reasoning_effort");
    if (st || !effort || json_is_null(effort)) return st;
    return read_effort_word(c, "chat_template_kwargs.reasoning_effort", effort, &p->kwargs_effort,
                            e);
}

static int read_modalities(struct field_context *c, const json_t *v, struct apierr *e) {
    if (!json_is_array(v)) return wrong_type("modalities", "an array", v, e);
    for (size_t i = 0; i < json_array_size(v); i++) {
        const json_t *one = json_array_get(v, i);
        if (body_is_text(one) && !strcmp(json_string_value(one), "text")) continue;
        return apierr_set(e, APIERR_UNSUPPORTED_PARAMETER, "modalities",
                          "modalities: only [\"text\"] can be had");
    }
    return ST_OK;
}

static int read_tools(struct field_context *c, const json_t *v, struct apierr *e) {
    return json_is_array(v) ? ST_OK : wrong_type("tools", "an array", v, e);
}

static int read_tool_choice(struct field_context *c, const json_t *v, struct apierr *e) {
    return body_is_text(v) || json_is_object(v)
               ? ST_OK
               : wrong_type("tool_choice", "a string or an object", v, e);
}

static int read_response_format(struct field_context *c, const json_t *v, struct apierr *e) {
    if (!json_is_object(v)) return wrong_type("response_format", "an object", v, e);
    const json_t *type = json_object_get(v, "type");
    if (!type)
        return apierr_set(e, APIERR_MISSING_PARAMETER, "response_format.type",
                          "response_format.type must be text, json_object or json_schema");
    if (!body_is_text(type)) return wrong_type("response_format.type", "a string", type, e);
    const char *t = json_string_value(type);
    if (!strcmp(t, "text") || !strcmp(t, "json_object") || !strcmp(t, "json_schema")) return ST_OK;
    char clip[APIERR_CLIP_BYTES];
    return apierr_set(e, APIERR_INVALID_VALUE, "response_format.type",
                      "response_format.type must be text, json_object or json_schema, got '%s'",
                      apierr_clip(clip, t, json_string_length(type)));
}

/* ---- values of refused fields that ask for nothing ---- */

static bool is_false(const json_t *v) {
    return json_is_false(v);
}

static bool is_zero(const json_t *v) {
    return json_is_number(v) && json_number_value(v) == 0;
}

static bool is_one(const json_t *v) {
    return json_is_number(v) && json_number_value(v) == 1;
}

static bool is_minus_one(const json_t *v) {
    return json_is_number(v) && json_number_value(v) == -1;
}

static bool is_empty_array(const json_t *v) {
    return json_is_array(v) && json_array_size(v) == 0;
}

static bool is_tool_choice_of_none(const json_t *v) {
    const char *s = json_string_value(v);
    return s && (!strcmp(s, "none") || !strcmp(s, "auto"));
}

static bool is_format_text(const json_t *v) {
    const char *type = json_string_value(json_object_get(v, "type"));
    return type && !strcmp(type, "text");
}

/* ---- the table ---- */

#define IN(member) offsetof(struct params, member)
#define NOWHERE FIELDS_NOWHERE
#define CUSTOM(name_, read_)                                                                       \
    { .name = name_, .kind = FIELD_CUSTOM, .read = read_ }
#define BOOL(name_, offset_)                                                                       \
    { .name = name_, .kind = FIELD_BOOL, .offset = offset_ }
#define INT(name_, min_, max_, offset_)                                                            \
    { .name = name_, .kind = FIELD_INT, .min = min_, .max = max_, .offset = offset_ }
#define NUMBER(name_, min_, max_, offset_)                                                         \
    { .name = name_, .kind = FIELD_NUMBER, .min = min_, .max = max_, .offset = offset_ }
#define TEXT(name_, min_, offset_)                                                                 \
    {                                                                                              \
        .name = name_, .kind = FIELD_TEXT, .min = min_, .max = PARAMS_TEXT_BYTES_MAX,              \
        .offset = offset_                                                                          \
    }
#define IGNORED(name_)                                                                             \
    { .name = name_, .support = FIELD_IGNORED, .kind = FIELD_ANY, .offset = NOWHERE }
#define REFUSED(name_, harmless_, hint_)                                                           \
    {                                                                                              \
        .name = name_, .support = FIELD_REFUSED, .kind = FIELD_ANY, .offset = NOWHERE,             \
        .harmless = harmless_, .hint = hint_                                                       \
    }

static const char no_grammar[] = "this build has no constrained output";
static const char no_tools[] = "this build has no tool calls";

static const struct field chat_fields[] = {
    {.name = "model", .kind = FIELD_TEXT, .max = 4096, .offset = IN(model)},
    CUSTOM("messages", read_messages),
    BOOL("stream", IN(stream)),
    CUSTOM("stream_options", read_stream_options),
    CUSTOM("max_completion_tokens", read_max_completion_tokens),
    CUSTOM("max_tokens", read_max_tokens),
    INT("min_tokens", 0, INFINITY, IN(min_tokens)),
    NUMBER("temperature", 0, 2, IN(temperature)),
    NUMBER("top_p", 0, 1, IN(top_p)),
    CUSTOM("top_k", read_top_k),
    NUMBER("min_p", 0, 1, IN(min_p)),
    NUMBER("presence_penalty", -2, 2, IN(presence)),
    NUMBER("frequency_penalty", -2, 2, IN(frequency)),
    CUSTOM("repetition_penalty", read_repetition),
    CUSTOM("logit_bias", read_logit_bias),
    CUSTOM("seed", read_seed),
    {.name = "n",
     .support = FIELD_REFUSED,
     .kind = FIELD_INT,
     .min = 1,
     .max = 8,
     .offset = IN(n),
     .harmless = is_one,
     .hint = "this build makes one choice a request"},
    CUSTOM("stop", read_stop),
    CUSTOM("stop_token_ids", read_stop_ids),
    BOOL("include_stop_str_in_output", IN(include_stop)),
    BOOL("ignore_eos", IN(ignore_eos)),
    {.name = "logprobs",
     .support = FIELD_REFUSED,
     .kind = FIELD_BOOL,
     .offset = IN(logprobs),
     .harmless = is_false,
     .hint = "this build gives no logprobs"},
    {.name = "top_logprobs",
     .support = FIELD_REFUSED,
     .kind = FIELD_INT,
     .min = 0,
     .max = 20,
     .offset = IN(top_logprobs),
     .harmless = is_zero,
     .hint = "this build gives no logprobs"},
    {.name = "tools",
     .support = FIELD_REFUSED,
     .kind = FIELD_CUSTOM,
     .read = read_tools,
     .harmless = is_empty_array,
     .hint = no_tools},
    {.name = "tool_choice",
     .support = FIELD_REFUSED,
     .kind = FIELD_CUSTOM,
     .read = read_tool_choice,
     .harmless = is_tool_choice_of_none,
     .hint = no_tools},
    BOOL("parallel_tool_calls", NOWHERE), // speaks of calls only: nothing to honour without tools
    {.name = "response_format",
     .support = FIELD_REFUSED,
     .kind = FIELD_CUSTOM,
     .read = read_response_format,
     .harmless = is_format_text,
     .hint = no_grammar},
    REFUSED("structured_outputs", NULL, no_grammar),
    REFUSED("guided_json", NULL, no_grammar),
    REFUSED("guided_regex", NULL, no_grammar),
    REFUSED("guided_choice", NULL, no_grammar),
    REFUSED("guided_grammar", NULL, no_grammar),
    CUSTOM("reasoning_effort", read_effort),
    CUSTOM("chat_template_kwargs", read_kwargs),
    {.name = "thinking_token_budget",
     .support = FIELD_REFUSED,
     .kind = FIELD_INT,
     .min = -1,
     .max = INFINITY,
     .offset = NOWHERE,
     .harmless = is_minus_one,
     .hint = "this build does not bound a thought"},
    {.name = "thinking_budget",
     .support = FIELD_REFUSED,
     .kind = FIELD_INT,
     .min = -1,
     .max = INFINITY,
     .offset = NOWHERE,
     .harmless = is_minus_one,
     .hint = "this build does not bound a thought"},
    BOOL("include_reasoning", IN(include_reasoning)),
    BOOL("add_generation_prompt", IN(add_generation_prompt)),
    BOOL("continue_final_message", IN(continue_final)),
    BOOL("skip_special_tokens", IN(skip_special)),
    {.name = "add_special_tokens",
     .support = FIELD_REFUSED,
     .kind = FIELD_BOOL,
     .offset = NOWHERE,
     .harmless = is_false,
     .hint = "a chat prompt has the template's own marks only"},
    REFUSED("documents", is_false, "the template takes no documents"),
    REFUSED("chat_template", is_false, "the checkpoint's own template is used"),
    BOOL("draft", IN(draft)),
    BOOL("return_token_ids", IN(return_token_ids)),
    BOOL("return_logits_hash",
         IN(return_logits_hash)), // ours: the running hash of the logits' bits
    INT("stream_interval", 1, 64, IN(stream_interval)),
    INT("priority", -100, 100, IN(priority)),
    TEXT("cache_salt", 1, IN(cache_salt)),
    TEXT("prompt_cache_key", 0, NOWHERE),
    TEXT("user", 0, NOWHERE),
    TEXT("safety_identifier", 0, NOWHERE),
    IGNORED("metadata"),
    IGNORED("store"),
    IGNORED("service_tier"),
    IGNORED("verbosity"),
    IGNORED("prediction"),
    IGNORED("prompt_cache_retention"),
    IGNORED("prompt_cache_options"),
    CUSTOM("modalities", read_modalities),
    REFUSED("audio", NULL, "only text can be had"),
    REFUSED("functions", NULL, "use tools"),
    REFUSED("function_call", NULL, "use tools and tool_choice"),
    REFUSED("web_search_options", NULL, "this server searches nothing"),
    REFUSED("moderation", NULL, "this server moderates nothing"),
};
enum { CHAT_FIELD_COUNT = sizeof chat_fields / sizeof *chat_fields };

const struct field *fields_chat(size_t *ret_count) {
    *ret_count = CHAT_FIELD_COUNT;
    return chat_fields;
}

static int read_bool(const json_t *v, const struct field *f, bool *ret, struct apierr *e) {
    if (!json_is_boolean(v)) return wrong_type(f->name, "a boolean", v, e);
    *ret = json_is_true(v);
    return ST_OK;
}

static int read_field(struct field_context *c, const struct field *f, const json_t *v,
                      struct apierr *e) {
    union {
        bool b;
        int64_t i;
        double x;
        const char *s;
    } dropped; // of a field that is only checked
    void *to = f->offset == NOWHERE ? (void *)&dropped : (char *)c->params + f->offset;
    switch (f->kind) {
    case FIELD_ANY: return ST_OK;
    case FIELD_BOOL: return read_bool(v, f, to, e);
    case FIELD_INT: return fields_int(v, f->name, f->min, f->max, to, e);
    case FIELD_NUMBER: return read_number(v, f, to, e);
    case FIELD_TEXT: return read_text(c, v, f, to, e);
    case FIELD_CUSTOM: return f->read(c, v, e);
    }
    return ST_OK;
}

static int combination(const char *param, const char *message, struct apierr *e) {
    return apierr_set(e, APIERR_INVALID_VALUE, param, "%s", message);
}

static bool last_is_assistant(const struct params *p) {
    const json_t *last = json_array_get(p->messages, json_array_size(p->messages) - 1);
    return !strcmp(json_string_value(json_object_get(last, "role")), "assistant");
}

static int check_combinations(const struct params *p, const json_t *body, struct apierr *e) {
    const json_t *options = json_object_get(body, "stream_options");
    if (options && !json_is_null(options) && !p->stream)
        return combination("stream_options", "stream_options is only allowed with stream: true", e);
    if (p->top_logprobs > 0 && !p->logprobs)
        return combination("top_logprobs", "top_logprobs needs logprobs: true", e);
    int64_t max = p->max_completion_tokens ? p->max_completion_tokens : p->max_tokens;
    if (max && p->min_tokens > max)
        return apierr_set(e, APIERR_INVALID_VALUE, "min_tokens",
                          "min_tokens must be at most max_tokens (%lld), got %lld", (long long)max,
                          (long long)p->min_tokens);
    const json_t *tools = json_object_get(body, "tools");
    const json_t *choice = json_object_get(body, "tool_choice");
    bool no_tools_given = !tools || json_is_null(tools) || is_empty_array(tools);
    if (no_tools_given && choice && !json_is_null(choice) && !is_tool_choice_of_none(choice))
        return combination("tool_choice", "tool_choice other than none or auto needs tools", e);
    // continue_final_message alone switches the generation prompt off; asking for both by name is a contradiction.
    if (p->continue_final && json_is_true(json_object_get(body, "add_generation_prompt")))
        return combination("continue_final_message",
                           "continue_final_message and add_generation_prompt cannot both be true",
                           e);
    if (p->continue_final && !last_is_assistant(p))
        return combination("continue_final_message",
                           "continue_final_message needs a last message of role assistant", e);
    return ST_OK;
}

static bool is_known(const char *name) {
    for (size_t i = 0; i < CHAT_FIELD_COUNT; i++)
        if (!strcmp(chat_fields[i].name, name)) return true;
    return false;
}

static void list_unknown(struct field_context *c, const json_t *body) {
    const char *key;
    json_t *v;
    json_object_foreach((json_t *)(uintptr_t)body, key, v) {
        if (c->unknown_count == FIELDS_UNKNOWN_MAX) return;
        if (!is_known(key)) c->unknown[c->unknown_count++] = key;
    }
}

int fields_read(struct field_context *c, const json_t *body, struct apierr *e) {
    for (size_t i = 0; i < CHAT_FIELD_COUNT; i++) {
        const json_t *v = json_object_get(body, chat_fields[i].name);
        if (!v || json_is_null(v)) continue;
        int st = read_field(c, &chat_fields[i], v, e);
        if (st) return st;
    }
    if (!c->params->messages)
        return apierr_set(e, APIERR_MISSING_PARAMETER, "messages", "messages is required");
    if (c->params->continue_final) c->params->add_generation_prompt = false;
    int st = check_combinations(c->params, body, e);
    if (!st) list_unknown(c, body);
    return st;
}

int fields_capabilities(const json_t *body, const struct params *p, struct apierr *e) {
    for (size_t i = 0; i < CHAT_FIELD_COUNT; i++) {
        const struct field *f = &chat_fields[i];
        const json_t *v = json_object_get(body, f->name);
        if (f->support != FIELD_REFUSED || !v || json_is_null(v)) continue;
        if (f->harmless && f->harmless(v)) continue;
        return apierr_set(e, APIERR_UNSUPPORTED_PARAMETER, f->name, "%s is not supported: %s",
                          f->name, f->hint);
    }
    return ST_OK;
}
