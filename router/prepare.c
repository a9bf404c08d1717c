/* prepare: see prepare.h. */
#include "router/prepare.h"
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

int prepare_prompt(const struct prepare *p, const struct params *q, struct ids *ret,
                   bool *ret_in_thought, struct apierr *e) {
    struct template_input in = {
        .messages = q->messages,
        .add_generation_prompt = q->add_generation_prompt,
        .continue_final = q->continue_final,
        .enable_thinking = q->enable_thinking,
        .preserve_thinking = q->preserve_thinking,
        .add_vision_id = q->add_vision_id,
    };
    apply_effort(q, p->model->rules, &in);
    struct template_prompt t = {0};
    struct err why = {0};
    uint64_t begun_us = mono_us();
    int st = template_render(p->model->rules, &in, &t, &why);
    if (st) {
        apierr_set(e, st == ST_INVAL ? APIERR_TEMPLATE : APIERR_INTERNAL, "messages", "%s",
                   why.msg);
        goto out;
    }
    bool plain = p->config->plain_control_text;
    st = tokenizer_encode(p->model->tokenizer, strbuf_str(&t.text), t.text.len,
                          plain ? t.plain : NULL, plain ? t.plain_count : 0, ret, &why);
    if (st) apierr_set(e, APIERR_INTERNAL, NULL, "the prompt could not be tokenised");
    *ret_in_thought = t.in_thought;
    metrics_observe(p->metrics, METRIC_TOKENIZE_S, (double)(mono_us() - begun_us) / 1e6, 1);
out:
    template_prompt_fini(&t);
    return st;
}

int prepare_limit(struct request *r, uint32_t context_max, int64_t output_default,
                  struct apierr *e) {
    const struct params *p = &r->params;
    context_max = min_u32(context_max, FRAME_PROMPT_IDS_MAX); // what a frame can carry
    if (r->prompt.len >= context_max)
        return apierr_set(
            e, APIERR_CONTEXT_LENGTH, "messages",
            "This model's maximum context length is %u tokens. The prompt has %zu tokens, "
            "which leaves no room for a reply.",
            context_max, r->prompt.len);
    int64_t room = context_max - (int64_t)r->prompt.len;
    int64_t asked = p->max_completion_tokens ? p->max_completion_tokens
                    : p->max_tokens          ? p->max_tokens
                    : output_default         ? output_default
                                             : room;
    r->max_tokens = (uint32_t)(asked < room ? asked : room);
    return ST_OK;
}

int prepare_model_name(const struct prepare *p, const char *name, struct apierr *e) {
    if (!name || model_has_name(p->model, name, strlen(name))) return ST_OK;
    char clip[APIERR_CLIP_BYTES];
    return apierr_set(e, APIERR_MODEL_NOT_FOUND, "model", "no model '%s' is served here",
                      apierr_clip(clip, name, strlen(name)));
}

int prepare_fields(const struct prepare *p, const json_t *body, struct params *q, struct arena *a,
                   struct apierr *e) {
    const char *unknown[FIELDS_UNKNOWN_MAX];
    uint32_t surrogates = 0;
    struct field_context c = {
        .params = q,
        .arena = a,
        .vocab_size = tokenizer_size(p->model->tokenizer),
        .late_system_as_user = !strcmp(p->config->late_system, "user"),
        .lone_surrogates = &surrogates,
        .unknown = unknown,
    };
    params_init(q, p->model, !strcmp(p->config->sampling_defaults, "openai"));
    int st = fields_read(&c, body, e);
    if (!st) st = prepare_model_name(p, q->model, e);
    if (!st) st = fields_capabilities(body, q, e);
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

int prepare_chat(const struct prepare *p, struct request *r, struct apierr *e) {
    json_t *body = NULL;
    int st = prepare_body(p, &body, e);
    if (st) return st;
    st = prepare_fields(p, body, &r->params, &r->arena, e);
    json_decref(body);
    if (st) return st;
    draw_seed(&r->params);
    st = prepare_prompt(p, &r->params, &r->prompt, &r->in_thought, e);
    return st ? st : prepare_limit(r, p->context_max, p->config->output_default, e);
}
