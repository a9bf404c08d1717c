/* fieldread: see fieldread.h. */
#include "router/fieldread.h"
#include "common/arena.h"
#include "common/err.h"
#include "router/apierr.h"
#include "router/body.h"
#include "router/messages.h"
#include "router/params.h"
#include "router/text/bigint.h"
#include "router/text/tokenizer.h"

#include <assert.h>
#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int fieldread_wrong_type(const char *param, const char *wanted, const json_t *v, struct apierr *e) {
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
    if (!json_is_number(v)) return fieldread_wrong_type(param, "an integer", v, e);
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

int fieldread_number(const json_t *v, const struct field *f, double *ret, struct apierr *e) {
    const char *big = bigint_digits(v);
    if (!big && !json_is_number(v)) return fieldread_wrong_type(f->name, "a number", v, e);
    double x = big ? strtod(big, NULL) : json_number_value(v);
    if (x < f->min || x > f->max) {
        char got[40];
        snprintf(got, sizeof got, "%.15g", x);
        return out_of_range(f->name, f->min, f->max, got, e);
    }
    *ret = x;
    return ST_OK;
}

int fieldread_text(struct field_context *c, const json_t *v, const struct field *f,
                   const char **ret, struct apierr *e) {
    if (!body_is_text(v)) return fieldread_wrong_type(f->name, "a string", v, e);
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

int fieldread_messages(struct field_context *c, const json_t *v, struct apierr *e) {
    struct messages_options o = {c->late_system_as_user, c->lone_surrogates};
    return messages_read(v, &o, &c->params->messages, e);
}

static int read_member_bool(const json_t *o, const char *param, const char *key, bool *ret,
                            struct apierr *e) {
    const json_t *v = json_object_get(o, key);
    if (!v || json_is_null(v)) return ST_OK;
    char path[APIERR_PARAM_BYTES];
    snprintf(path, sizeof path, "%s.%s", param, key);
    if (!json_is_boolean(v)) return fieldread_wrong_type(path, "a boolean", v, e);
    *ret = json_is_true(v);
    return ST_OK;
}

int fieldread_stream_options(struct field_context *c, const json_t *v, struct apierr *e) {
    if (!json_is_object(v)) return fieldread_wrong_type("stream_options", "an object", v, e);
    int st = read_member_bool(v, "stream_options", "include_usage", &c->params->include_usage, e);
    if (st) return st;
    return read_member_bool(v, "stream_options", "continuous_usage_stats",
                            &c->params->continuous_usage, e);
}

// -1 is "as much as there is room for". 0 has a sense in completions alone: the prompt given back.
static int read_limit(struct field_context *c, const json_t *v, const char *name, int64_t *ret,
                      struct apierr *e) {
    int64_t n = 0;
    int st = fields_int(v, name, -INFINITY, INFINITY, &n, e);
    if (st) return st;
    if (n == 0 && c->set == FIELDS_COMPLETION) {
        c->params->echo_only = true;
        return ST_OK;
    }
    if (n != -1 && n < 1)
        return apierr_set(e, APIERR_INVALID_VALUE, name, "%s must be at least 1, got %lld", name,
                          (long long)n);
    *ret = n == -1 ? PARAMS_ROOM_LEFT : n;
    return ST_OK;
}

int fieldread_max_tokens(struct field_context *c, const json_t *v, struct apierr *e) {
    return read_limit(c, v, "max_tokens", &c->params->max_tokens, e);
}

int fieldread_max_completion_tokens(struct field_context *c, const json_t *v, struct apierr *e) {
    return read_limit(c, v, "max_completion_tokens", &c->params->max_completion_tokens, e);
}

int fieldread_top_k(struct field_context *c, const json_t *v, struct apierr *e) {
    int64_t k = 0;
    int st = fields_int(v, "top_k", -1, c->vocab_size, &k, e);
    if (!st) c->params->top_k = k < 0 ? 0 : k;
    return st;
}

int fieldread_repetition(struct field_context *c, const json_t *v, struct apierr *e) {
    static const struct field f = {.name = "repetition_penalty", .min = -INFINITY, .max = INFINITY};
    double x = 0;
    int st = fieldread_number(v, &f, &x, e);
    if (st) return st;
    if (x <= 0 || x > 2)
        return apierr_set(e, APIERR_INVALID_VALUE, f.name,
                          "%s must be above 0 and at most 2, got %.15g", f.name, x);
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
    int st = fieldread_number(v, &f, &x, e);
    if (st) return st;
    // "7" and "007" are two keys and one id: the later one counts, as for a repeated key.
    uint32_t i = 0;
    while (i < p->bias_count && p->bias_ids[i] != id) i++;
    p->bias_ids[i] = id;
    p->bias[i] = (float)x;
    if (i == p->bias_count) p->bias_count++;
    return ST_OK;
}

int fieldread_logit_bias(struct field_context *c, const json_t *v, struct apierr *e) {
    if (!json_is_object(v)) return fieldread_wrong_type("logit_bias", "an object", v, e);
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
int fieldread_seed(struct field_context *c, const json_t *v, struct apierr *e) {
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
    int st = fieldread_text(c, v, &f, &s, e);
    if (st) return st;
    p->stops[p->stop_count] = s;
    p->stop_lens[p->stop_count++] = json_string_length(v);
    return ST_OK;
}

int fieldread_stop(struct field_context *c, const json_t *v, struct apierr *e) {
    size_t n = json_is_array(v) ? json_array_size(v) : 1;
    if (n > PARAMS_STOPS_MAX)
        return apierr_set(e, APIERR_INVALID_VALUE, "stop",
                          "stop must have at most %d strings, got %zu", PARAMS_STOPS_MAX, n);
    c->params->stops = arena_calloc(c->arena, n, sizeof *c->params->stops);
    c->params->stop_lens = arena_calloc(c->arena, n, sizeof *c->params->stop_lens);
    if (body_is_text(v)) return add_stop(c, "stop", v, e);
    if (!json_is_array(v))
        return fieldread_wrong_type("stop", "a string or an array of strings", v, e);
    for (size_t i = 0; i < n; i++) {
        char path[32];
        snprintf(path, sizeof path, "stop[%zu]", i);
        int st = add_stop(c, path, json_array_get(v, i), e);
        if (st) return st;
    }
    return ST_OK;
}

int fieldread_stop_ids(struct field_context *c, const json_t *v, struct apierr *e) {
    if (!json_is_array(v)) return fieldread_wrong_type("stop_token_ids", "an array of ids", v, e);
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
    if (!body_is_text(v)) return fieldread_wrong_type(param, "a string", v, e);
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        if (strcmp(words[i], json_string_value(v))) continue;
        *ret = words[i];
        return ST_OK;
    }
    char clip[APIERR_CLIP_BYTES];
    return apierr_set(e, APIERR_INVALID_VALUE, param, "%s must be %s, got '%s'", param,
                      effort_words, apierr_clip(clip, json_string_value(v), json_string_length(v)));
}

int fieldread_effort(struct field_context *c, const json_t *v, struct apierr *e) {
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

int fieldread_kwargs(struct field_context *c, const json_t *v, struct apierr *e) {
    struct params *p = c->params;
    if (!json_is_object(v)) return fieldread_wrong_type("chat_template_kwargs", "an object", v, e);
    int st = read_tri(v, "enable_thinking", &p->enable_thinking, e);
    if (!st) st = read_tri(v, "preserve_thinking", &p->preserve_thinking, e);
    if (!st)
        st = read_member_bool(v, "chat_template_kwargs", "add_vision_id", &p->add_vision_id, e);
    const json_t *effort = json_object_get(v, "reasoning_effort");
    if (st || !effort || json_is_null(effort)) return st;
    return read_effort_word(c, "chat_template_kwargs.reasoning_effort", effort, &p->kwargs_effort,
                            e);
}

int fieldread_modalities(struct field_context *c, const json_t *v, struct apierr *e) {
    if (!json_is_array(v)) return fieldread_wrong_type("modalities", "an array", v, e);
    for (size_t i = 0; i < json_array_size(v); i++) {
        const json_t *one = json_array_get(v, i);
        if (body_is_text(one) && !strcmp(json_string_value(one), "text")) continue;
        return apierr_set(e, APIERR_UNSUPPORTED_PARAMETER, "modalities",
                          "modalities: only [\"text\"] can be had");
    }
    return ST_OK;
}

int fieldread_response_format(struct field_context *c, const json_t *v, struct apierr *e) {
    if (!json_is_object(v)) return fieldread_wrong_type("response_format", "an object", v, e);
    const json_t *type = json_object_get(v, "type");
    if (!type)
        return apierr_set(e, APIERR_MISSING_PARAMETER, "response_format.type",
                          "response_format.type must be text, json_object or json_schema");
    if (!body_is_text(type))
        return fieldread_wrong_type("response_format.type", "a string", type, e);
    const char *t = json_string_value(type);
    if (!strcmp(t, "text") || !strcmp(t, "json_object") || !strcmp(t, "json_schema")) return ST_OK;
    char clip[APIERR_CLIP_BYTES];
    return apierr_set(e, APIERR_INVALID_VALUE, "response_format.type",
                      "response_format.type must be text, json_object or json_schema, got '%s'",
                      apierr_clip(clip, t, json_string_length(type)));
}

// The longer name wins: it is the one that vLLM documents.
int fieldread_think_budget(struct field_context *c, const json_t *v, struct apierr *e) {
    return fields_int(v, "thinking_token_budget", -1, INFINITY, &c->params->think_budget, e);
}

int fieldread_think_budget_alias(struct field_context *c, const json_t *v, struct apierr *e) {
    int64_t n = -1;
    int st = fields_int(v, "thinking_budget", -1, INFINITY, &n, e);
    if (!st && c->params->think_budget < 0) c->params->think_budget = n;
    return st;
}

/* ---- of completions ---- */

static int read_prompt_id(struct field_context *c, const char *path, const json_t *v,
                          struct apierr *e) {
    int64_t id = 0;
    int st = fields_int(v, path, 0, c->vocab_size - 1.0, &id, e);
    if (st || tokenizer_id_used(c->tokenizer, (uint32_t)id)) return st;
    return apierr_set(e, APIERR_INVALID_VALUE, path, "%s: no token has the id %lld", path,
                      (long long)id);
}

// One prompt: a text, or a list of ids.
static int check_prompt(struct field_context *c, const char *path, const json_t *v,
                        struct apierr *e) {
    if (body_is_text(v)) return ST_OK;
    if (!json_is_array(v))
        return fieldread_wrong_type(path, "a string or an array of token ids", v, e);
    for (size_t i = 0; i < json_array_size(v); i++) {
        char one[APIERR_PARAM_BYTES];
        snprintf(one, sizeof one, "%s[%zu]", path, i);
        int st = read_prompt_id(c, one, json_array_get(v, i), e);
        if (st) return st;
    }
    return ST_OK;
}

int fieldread_prompt(struct field_context *c, const json_t *v, struct apierr *e) {
    const json_t *first = json_array_get(v, 0);
    bool many = json_is_array(v) && (body_is_text(first) || json_is_array(first));
    size_t n = many ? json_array_size(v) : 1;
    if (n > PARAMS_PROMPTS_MAX)
        return apierr_set(e, APIERR_INVALID_VALUE, "prompt",
                          "prompt must have at most %d prompts, got %zu", PARAMS_PROMPTS_MAX, n);
    for (size_t i = 0; i < n; i++) {
        char path[32] = "prompt";
        if (many) snprintf(path, sizeof path, "prompt[%zu]", i);
        const json_t *one = many ? json_array_get(v, i) : v;
        if (many && json_is_array(one) != json_is_array(first))
            return fieldread_wrong_type(path,
                                        json_is_array(first) ? "an array, as the first is"
                                                             : "a string, as the first is",
                                        one, e);
        int st = check_prompt(c, path, one, e);
        if (st) return st;
    }
    json_decref(c->params->prompts);
    c->params->prompts =
        many ? json_incref((json_t *)(uintptr_t)v) : json_pack("[O]", (json_t *)(uintptr_t)v);
    return ST_OK;
}

int fieldread_completion_logprobs(struct field_context *c, const json_t *v, struct apierr *e) {
    c->params->logprobs = true;
    return fields_int(v, "logprobs", 0, 20, &c->params->top_logprobs, e);
}
