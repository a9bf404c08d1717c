/* prepare: see prepare.h. */
#include "router/prepare.h"
#include "common/arena.h"
#include "common/err.h"
#include "common/mono.h"
#include "common/num.h"
#include "router/apierr.h"
#include "router/body.h"
#include "router/config.h"
#include "router/fields.h"
#include "router/metrics.h"
#include "router/model.h"
#include "router/nonce.h"
#include "router/request.h"
#include "router/text/tokenizer.h"

#include <string.h>

enum { RANDOM_SEED_BITS = 53 }; // so that a client whose numbers are doubles can give it back

// reasoning_effort as the rules understand it: docs/api.md has the table.
static void apply_effort(const struct params *p, enum template_rules rules,
                         struct template_input *in) {
    const char *effort = p->kwargs_effort ? p->kwargs_effort : p->reasoning_effort;
    bool large = rules == TEMPLATE_3_8_LARGE;
    bool takes_effort = large || rules == TEMPLATE_3_8;
    if (!effort) return;
    bool none = !strcmp(effort, "none");
    if (in->enable_thinking == TEMPLATE_UNSET)
        in->enable_thinking = none ? TEMPLATE_FALSE : TEMPLATE_TRUE;
    if (!takes_effort || none) return;
    bool low = !strcmp(effort, "minimal") || !strcmp(effort, "low");
    in->reasoning_effort = low ? "low" : !strcmp(effort, "medium") ? "medium" : "xhigh";
}

int prepare_render(const struct prepare *p, const struct params *q, struct template_prompt *ret,
                   struct apierr *e) {
    struct template_input in = {
        .messages = q->messages,
        .tools = q->tools,
        .add_generation_prompt = q->add_generation_prompt,
        .continue_final = q->continue_final,
        .enable_thinking = q->enable_thinking,
        .preserve_thinking = q->preserve_thinking,
        .add_vision_id = q->add_vision_id,
    };
    struct err why = {0};
    apply_effort(q, p->model->rules, &in);
    int st = template_render(p->model->rules, &in, ret, &why);
    if (st)
        apierr_set(e, st == ST_INVAL ? APIERR_TEMPLATE : APIERR_INTERNAL, "messages", "%s",
                   why.msg);
    return st;
}

static int encode(const struct prepare *p, const char *text, size_t len,
                  const struct text_span *plain, size_t plain_count, struct ids *ret,
                  struct apierr *e) {
    struct err why = {0};
    uint64_t begun_us = mono_us();
    int st = tokenizer_encode(p->model->tokenizer, text, len, plain, plain_count, ret, &why);
    if (st) apierr_set(e, APIERR_INTERNAL, NULL, "the prompt could not be tokenised");
    metrics_observe(p->metrics, METRIC_TOKENIZE_S, (double)(mono_us() - begun_us) / 1e6, 1);
    return st;
}

int prepare_encode_prompt(const struct prepare *p, const struct template_prompt *t, struct ids *ret,
                          struct apierr *e) {
    bool plain = p->config->plain_control_text;
    return encode(p, strbuf_str(&t->text), t->text.len, plain ? t->plain : NULL,
                  plain ? t->plain_count : 0, ret, e);
}

int prepare_encode_text(const struct prepare *p, const char *text, size_t len, bool plain,
                        struct ids *ret, struct apierr *e) {
    struct text_span all = {0, len};
    plain = plain && len;
    return encode(p, text, len, plain ? &all : NULL, plain, ret, e);
}

// The reply's bound that was asked for; 0: as long as there is room.
static int64_t asked_tokens(const struct request *r, int64_t output_default) {
    const struct params *p = &r->params;
    if (p->max_completion_tokens > 0) return p->max_completion_tokens;
    if (p->max_tokens > 0) return p->max_tokens;
    bool says = p->max_completion_tokens || p->max_tokens || p->echo_only;
    if (!r->kind->is_chat && !says) return PARAMS_COMPLETION_TOKENS;
    return output_default;
}

int prepare_limit(const struct request *r, const struct request_prompt *q, uint32_t context_max,
                  int64_t output_default, uint32_t *ret, struct apierr *e) {
    context_max = min_u32(context_max, FRAME_PROMPT_IDS_MAX); // what a frame can carry
    if (q->ids.len >= context_max)
        return apierr_set(
            e, APIERR_CONTEXT_LENGTH, r->kind->is_chat ? "messages" : "prompt",
            "This model's maximum context length is %u tokens. The prompt has %zu tokens, "
            "which leaves no room for a reply.",
            context_max, q->ids.len);
    int64_t room = context_max - (int64_t)q->ids.len, asked = asked_tokens(r, output_default);
    *ret = (uint32_t)(asked && asked < room ? asked : room);
    return ST_OK;
}

int prepare_model_name(const struct prepare *p, const char *name, struct apierr *e) {
    if (!name || model_has_name(p->model, name, strlen(name))) return ST_OK;
    char clip[APIERR_CLIP_BYTES];
    return apierr_set(e, APIERR_MODEL_NOT_FOUND, "model", "no model '%s' is served here",
                      apierr_clip(clip, name, strlen(name)));
}

int prepare_fields(const struct prepare *p, enum fields_set set, const json_t *body,
                   struct params *q, struct arena *a, struct apierr *e) {
    const char *unknown[FIELDS_UNKNOWN_MAX];
    uint32_t surrogates = 0;
    struct field_context c = {
        .set = set,
        .params = q,
        .tokenizer = p->model->tokenizer,
        .arena = a,
        .vocab_size = tokenizer_size(p->model->tokenizer),
        .late_system_as_user = !strcmp(p->config->late_system, "user"),
        .lone_surrogates = &surrogates,
        .unknown = unknown,
    };
    params_init(q, p->model, !strcmp(p->config->sampling_defaults, "openai"));
    int st = fields_read(&c, body, e);
    if (!st) st = prepare_model_name(p, q->model, e);
    if (!st) st = fields_capabilities(set, body, q, e);
    metrics_add(p->metrics, METRIC_LONE_SURROGATES, surrogates);
    for (uint32_t i = 0; i < c.unknown_count; i++) metrics_unknown_field(p->metrics, unknown[i]);
    return st;
}

int prepare_body(const struct prepare *p, json_t **ret, struct apierr *e) {
    struct body_stats stats;
    uint64_t begun_us = mono_us();
    int st = body_parse(p->body, p->body_len, ret, &stats, e);
    metrics_observe(p->metrics, METRIC_JSON_PARSE_S, (double)(mono_us() - begun_us) / 1e6, 1);
    if (st && e->code == APIERR_INVALID_UTF8) metrics_add(p->metrics, METRIC_INVALID_UTF8, 1);
    if (!st) metrics_add(p->metrics, METRIC_LONE_SURROGATES, stats.lone_surrogates);
    return st;
}

static void draw_seed(struct params *p) {
    if (!p->has_seed) p->seed = nonce_u64() >> (64 - RANDOM_SEED_BITS);
    p->has_seed = true;
}

// With tool_choice none the tools stay in the prompt, so that kept prefixes hold, and the mark of a call is forbidden.
static void mask_calls(const struct prepare *p, struct request *r) {
    struct params *q = &r->params;
    int64_t call = tokenizer_find(p->model->tokenizer, "<tool_call>");
    if (!q->tools || q->tool_choice != TOOL_CHOICE_NONE || call < 0) return;
    uint32_t *ids = arena_calloc(&r->arena, q->bias_count + 1, sizeof *ids);
    float *bias = arena_calloc(&r->arena, q->bias_count + 1, sizeof *bias);
    uint32_t n = 0;
    for (uint32_t i = 0; i < q->bias_count; i++) {
        if (q->bias_ids[i] == call) continue;
        ids[n] = q->bias_ids[i];
        bias[n++] = q->bias[i];
    }
    ids[n] = (uint32_t)call;
    bias[n++] = PARAMS_BIAS_FORBIDS;
    q->bias_ids = ids;
    q->bias = bias;
    q->bias_count = n;
}

static int limit_all(const struct prepare *p, struct request *r, struct apierr *e) {
    for (uint32_t i = 0; i < r->prompt_count; i++) {
        struct request_prompt *q = &r->prompts[i];
        int st = prepare_limit(r, q, p->context_max, p->config->output_default, &q->max_tokens, e);
        if (st) return st;
    }
    return ST_OK;
}

static int read_fields(const struct prepare *p, enum fields_set set, struct request *r,
                       struct apierr *e) {
    json_t *body = NULL;
    int st = prepare_body(p, &body, e);
    if (!st) st = prepare_fields(p, set, body, &r->params, &r->arena, e);
    json_decref(body);
    if (!st) draw_seed(&r->params);
    return st;
}

int prepare_chat(const struct prepare *p, struct request *r, struct apierr *e) {
    struct template_prompt t = {0};
    int st = read_fields(p, FIELDS_CHAT, r, e);
    if (st) return st;
    mask_calls(p, r);
    request_set_prompts(r, 1);
    st = prepare_render(p, &r->params, &t, e);
    if (!st) st = prepare_encode_prompt(p, &t, &r->prompts[0].ids, e);
    r->in_thought = t.in_thought;
    template_prompt_fini(&t);
    return st ? st : limit_all(p, r, e);
}

// A text as it is: what spells a control token in it is one, as /tokenize has it.
static int read_prompt(const struct prepare *p, struct request *r, uint32_t i, struct apierr *e) {
    const json_t *v = json_array_get(r->params.prompts, i);
    struct request_prompt *q = &r->prompts[i];
    int st = ST_OK;
    if (json_is_string(v))
        st = prepare_encode_text(p, json_string_value(v), json_string_length(v), false, &q->ids, e);
    else
        for (size_t k = 0; k < json_array_size(v); k++)
            ids_add(&q->ids, (uint32_t)json_number_value(json_array_get(v, k)));
    if (st) return st;
    if (q->ids.len == 0)
        return apierr_set(e, APIERR_INVALID_VALUE, "prompt", "prompt must have at least one token");
    if (!r->params.echo) return ST_OK;
    struct strbuf text = {0};
    if (json_is_string(v))
        strbuf_add(&text, json_string_value(v), json_string_length(v));
    else
        tokenizer_decode(p->model->tokenizer, q->ids.v, q->ids.len, false, &text);
    q->echo = arena_strndup(&r->arena, strbuf_str(&text), text.len);
    q->echo_len = text.len;
    strbuf_fini(&text);
    return ST_OK;
}

int prepare_completion(const struct prepare *p, struct request *r, struct apierr *e) {
    int st = read_fields(p, FIELDS_COMPLETION, r, e);
    if (st) return st;
    request_set_prompts(r, (uint32_t)json_array_size(r->params.prompts));
    for (uint32_t i = 0; !st && i < r->prompt_count; i++) st = read_prompt(p, r, i, e);
    return st ? st : limit_all(p, r, e);
}
