/* prepare: a request's body into token ids: JSON, fields, model name, capabilities, template, length; in this order
 * and the first failure is the answer. Touches nothing but what it is given: any thread. */
#pragma once
#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "router/fields.h"

struct apierr;
struct arena;
struct config;
struct ids;
struct metrics;
struct model;
struct params;
struct request;
struct request_prompt;
struct template_prompt;

struct prepare {
    const struct config *config;
    const struct model *model;
    struct metrics *metrics;
    uint32_t context_max; // as known when the body came
    const char *body;
    size_t body_len;
};

// Fills params, prompts and in_thought of r.
int prepare_chat(const struct prepare *p, struct request *r, struct apierr *e);
int prepare_completion(const struct prepare *p, struct request *r, struct apierr *e);
// The conversation in q as prompt text; the caller gives *ret back. For render and /tokenize too.
int prepare_render(const struct prepare *p, const struct params *q, struct template_prompt *ret,
                   struct apierr *e);
int prepare_encode_prompt(const struct prepare *p, const struct template_prompt *t, struct ids *ret,
                          struct apierr *e);
// Text of a client's: with plain, what spells a control token in it is text.
int prepare_encode_text(const struct prepare *p, const char *text, size_t len, bool plain,
                        struct ids *ret, struct apierr *e);
// JSON, with what the metrics want to know of it. The caller gives *ret back with json_decref.
int prepare_body(const struct prepare *p, json_t **ret, struct apierr *e);
// Fields, model name, capabilities of a body into q, whose strings go into a.
int prepare_fields(const struct prepare *p, enum fields_set set, const json_t *body,
                   struct params *q, struct arena *a, struct apierr *e);
int prepare_model_name(const struct prepare *p, const char *name, struct apierr *e); // NULL is fine
// How long the replies to q may be in a window of context_max ids. APIERR_CONTEXT_LENGTH: the prompt fills it.
int prepare_limit(const struct request *r, const struct request_prompt *q, uint32_t context_max,
                  int64_t output_default, uint32_t *ret, struct apierr *e);
