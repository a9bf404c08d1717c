/* prepare: a request's body into token ids: JSON, fields, model name, capabilities, template, length; in this order
 * and the first failure is the answer. Touches nothing but what it is given: any thread. */
#pragma once
#include <stddef.h>
#include <stdint.h>

struct apierr;
struct config;
struct metrics;
struct model;
struct request;

struct prepare {
    const struct config *config;
    const struct model *model;
    struct metrics *metrics;
    uint32_t context_max; // as known when the body came
    const char *body;
    size_t body_len;
};

// Fills params, prompt, in_thought and max_tokens of r.
int prepare_chat(const struct prepare *p, struct request *r, struct apierr *e);
// Renders the conversation in r->params and tokenises it into r->prompt. For /tokenize too.
int prepare_prompt(const struct prepare *p, struct request *r, struct apierr *e);
// Limits the reply to what is left of a window of context_max ids. APIERR_CONTEXT_LENGTH: nothing is.
int prepare_limit(struct request *r, uint32_t context_max, int64_t output_default, struct apierr *e);
