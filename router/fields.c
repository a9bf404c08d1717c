/* fields: see fields.h. */
#include "router/fields.h"
#include "common/err.h"
#include "router/apierr.h"
#include "router/body.h"
#include "router/fieldread.h"
#include "router/params.h"
#include "router/tools.h"

#include <math.h>
#include <string.h>

/* ---- values of refused fields that ask for nothing ---- */

static bool is_false(const json_t *v) {
    return json_is_false(v);
}

static bool is_format_text(const json_t *v) {
    const char *type = json_string_value(json_object_get(v, "type"));
    return type && !strcmp(type, "text");
}

static bool is_empty_text(const json_t *v) {
    return body_is_text(v) && json_string_length(v) == 0;
}

/* ---- the tables ---- */

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

// Of every endpoint that generates.
static const struct field common_fields[] = {
    {.name = "model", .kind = FIELD_TEXT, .max = 4096, .offset = IN(model)},
    BOOL("stream", IN(stream)),
    CUSTOM("stream_options", fieldread_stream_options),
    CUSTOM("max_completion_tokens", fieldread_max_completion_tokens),
    CUSTOM("max_tokens", fieldread_max_tokens),
    INT("min_tokens", 0, INFINITY, IN(min_tokens)),
    NUMBER("temperature", 0, 2, IN(temperature)),
    NUMBER("top_p", 0, 1, IN(top_p)),
    CUSTOM("top_k", fieldread_top_k),
    NUMBER("min_p", 0, 1, IN(min_p)),
    NUMBER("presence_penalty", -2, 2, IN(presence)),
    NUMBER("frequency_penalty", -2, 2, IN(frequency)),
    CUSTOM("repetition_penalty", fieldread_repetition),
    CUSTOM("logit_bias", fieldread_logit_bias),
    CUSTOM("seed", fieldread_seed),
    INT("n", 1, 8, IN(n)),
    CUSTOM("stop", fieldread_stop),
    CUSTOM("stop_token_ids", fieldread_stop_ids),
    BOOL("include_stop_str_in_output", IN(include_stop)),
    BOOL("ignore_eos", IN(ignore_eos)),
    {.name = "response_format",
     .support = FIELD_REFUSED,
     .kind = FIELD_CUSTOM,
     .read = fieldread_response_format,
     .harmless = is_format_text,
     .hint = no_grammar},
    REFUSED("structured_outputs", NULL, no_grammar),
    REFUSED("guided_json", NULL, no_grammar),
    REFUSED("guided_regex", NULL, no_grammar),
    REFUSED("guided_choice", NULL, no_grammar),
    REFUSED("guided_grammar", NULL, no_grammar),
    BOOL("skip_special_tokens", IN(skip_special)),
    BOOL("draft", IN(draft)),
    BOOL("return_token_ids", IN(return_token_ids)),
    BOOL("return_logits_hash",
         IN(return_logits_hash)), // ours: the running hash of the logits' bits
    INT("stream_interval", 1, 64, IN(stream_interval)),
    INT("priority", -100, 100, IN(priority)),
    TEXT("cache_salt", 1, IN(cache_salt)),
    TEXT("prompt_cache_key", 0, IN(prompt_cache_key)),
    TEXT("user", 0, IN(user)),
    TEXT("safety_identifier", 0, NOWHERE),
    IGNORED("metadata"),
    IGNORED("store"),
    IGNORED("service_tier"),
    IGNORED("verbosity"),
    IGNORED("prediction"),
    IGNORED("prompt_cache_retention"),
    IGNORED("prompt_cache_options"),
    CUSTOM("modalities", fieldread_modalities),
    REFUSED("audio", NULL, "only text can be had"),
    REFUSED("functions", NULL, "use tools"),
    REFUSED("function_call", NULL, "use tools and tool_choice"),
    REFUSED("web_search_options", NULL, "this server searches nothing"),
    REFUSED("moderation", NULL, "this server moderates nothing"),
};

static const struct field chat_fields[] = {
    CUSTOM("messages", fieldread_messages),
    BOOL("logprobs", IN(logprobs)),
    INT("top_logprobs", 0, 20, IN(top_logprobs)),
    CUSTOM("tools", tools_read),
    {.name = "tool_choice",
     .support = FIELD_REFUSED,
     .kind = FIELD_CUSTOM,
     .read = tools_read_choice,
     .harmless = tools_choice_is_free,
     .hint = no_grammar},
    BOOL("parallel_tool_calls", IN(parallel_calls)),
    CUSTOM("reasoning_effort", fieldread_effort),
    CUSTOM("chat_template_kwargs", fieldread_kwargs),
    CUSTOM("thinking_token_budget", fieldread_think_budget),
    CUSTOM("thinking_budget", fieldread_think_budget_alias),
    BOOL("include_reasoning", IN(include_reasoning)),
    BOOL("add_generation_prompt", IN(add_generation_prompt)),
    BOOL("continue_final_message", IN(continue_final)),
    {.name = "add_special_tokens",
     .support = FIELD_REFUSED,
     .kind = FIELD_BOOL,
     .offset = NOWHERE,
     .harmless = is_false,
     .hint = "a chat prompt has the template's own marks only"},
    REFUSED("documents", is_false, "the template takes no documents"),
    REFUSED("chat_template", is_false, "the checkpoint's own template is used"),
};

static const struct field completion_fields[] = {
    CUSTOM("prompt", fieldread_prompt),
    BOOL("echo", IN(echo)),
    CUSTOM("logprobs", fieldread_completion_logprobs),
    REFUSED("suffix", is_empty_text, "text can be added behind a prompt only"),
    INT("best_of", 1, 8, IN(best_of)),
    BOOL("add_special_tokens", NOWHERE), // this family has none
};

#define COUNT(a) (sizeof a / sizeof *a)

const struct field *fields_at(enum fields_set set, size_t i) {
    const struct field *own = set == FIELDS_CHAT ? chat_fields : completion_fields;
    size_t n = set == FIELDS_CHAT ? COUNT(chat_fields) : COUNT(completion_fields);
    if (i < n) return &own[i];
    return i - n < COUNT(common_fields) ? &common_fields[i - n] : NULL;
}

static int read_bool(const json_t *v, const struct field *f, bool *ret, struct apierr *e) {
    if (!json_is_boolean(v)) return fieldread_wrong_type(f->name, "a boolean", v, e);
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
    case FIELD_NUMBER: return fieldread_number(v, f, to, e);
    case FIELD_TEXT: return fieldread_text(c, v, f, to, e);
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

static int check_lengths(const struct params *p, struct apierr *e) {
    int64_t max = p->max_completion_tokens > 0 ? p->max_completion_tokens : p->max_tokens;
    if (max > 0 && p->min_tokens > max)
        return apierr_set(e, APIERR_INVALID_VALUE, "min_tokens",
                          "min_tokens must be at most max_tokens (%lld), got %lld", (long long)max,
                          (long long)p->min_tokens);
    return ST_OK;
}

static int check_chat(const struct params *p, const json_t *body, struct apierr *e) {
    if (!p->messages)
        return apierr_set(e, APIERR_MISSING_PARAMETER, "messages", "messages is required");
    if (p->top_logprobs > 0 && !p->logprobs)
        return combination("top_logprobs", "top_logprobs needs logprobs: true", e);
    int st = tools_check_choice(p, json_object_get(body, "tool_choice"), e);
    if (st) return st;
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

static int check_completion(const struct params *p, struct apierr *e) {
    if (!p->prompts) return apierr_set(e, APIERR_MISSING_PARAMETER, "prompt", "prompt is required");
    size_t choices = json_array_size(p->prompts) * (size_t)p->n;
    if (choices > PARAMS_PROMPTS_MAX)
        return apierr_set(e, APIERR_INVALID_VALUE, "n",
                          "prompts times n must be at most %d, got %zu", PARAMS_PROMPTS_MAX,
                          choices);
    if (p->echo_only && !p->echo)
        return combination("max_tokens", "max_tokens must be at least 1, or 0 with echo", e);
    return ST_OK;
}

static int check_combinations(enum fields_set set, const struct params *p, const json_t *body,
                              struct apierr *e) {
    const json_t *options = json_object_get(body, "stream_options");
    if (options && !json_is_null(options) && !p->stream)
        return combination("stream_options", "stream_options is only allowed with stream: true", e);
    int st = check_lengths(p, e);
    if (st) return st;
    return set == FIELDS_CHAT ? check_chat(p, body, e) : check_completion(p, e);
}

static bool is_known(enum fields_set set, const char *name) {
    const struct field *f;
    for (size_t i = 0; (f = fields_at(set, i)); i++)
        if (!strcmp(f->name, name)) return true;
    return false;
}

static void list_unknown(struct field_context *c, const json_t *body) {
    const char *key;
    json_t *v;
    json_object_foreach((json_t *)(uintptr_t)body, key, v) {
        if (c->unknown_count == FIELDS_UNKNOWN_MAX) return;
        if (!is_known(c->set, key)) c->unknown[c->unknown_count++] = key;
    }
}

int fields_read(struct field_context *c, const json_t *body, struct apierr *e) {
    const struct field *f;
    for (size_t i = 0; (f = fields_at(c->set, i)); i++) {
        const json_t *v = json_object_get(body, f->name);
        if (!v || json_is_null(v)) continue;
        int st = read_field(c, f, v, e);
        if (st) return st;
    }
    if (c->params->continue_final) c->params->add_generation_prompt = false;
    int st = check_combinations(c->set, c->params, body, e);
    if (!st) list_unknown(c, body);
    return st;
}

static int refuse(const char *param, const char *why, struct apierr *e) {
    return apierr_set(e, APIERR_UNSUPPORTED_PARAMETER, param, "%s is not supported: %s", param,
                      why);
}

static int check_completion_capabilities(const struct params *p, struct apierr *e) {
    if (p->best_of && p->best_of != p->n)
        return refuse("best_of", "other than n, nothing is thrown away here", e);
    if (p->echo && p->logprobs)
        return refuse("logprobs",
                      "with echo it asks for logprobs of the prompt, which the engine "
                      "does not give (prompt_logprobs)",
                      e);
    return ST_OK;
}

int fields_capabilities(enum fields_set set, const json_t *body, const struct params *p,
                        struct apierr *e) {
    const struct field *f;
    for (size_t i = 0; (f = fields_at(set, i)); i++) {
        const json_t *v = json_object_get(body, f->name);
        if (f->support != FIELD_REFUSED || !v || json_is_null(v)) continue;
        if (f->harmless && f->harmless(v)) continue;
        return refuse(f->name, f->hint, e);
    }
    return set == FIELDS_CHAT ? tools_capabilities(p, e) : check_completion_capabilities(p, e);
}
