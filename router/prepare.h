/* prepare: a request's body into token ids: JSON, fields, model name, capabilities, template, length; in this order
 * and the first failure is the answer. Touches nothing but what it is given: any thread. */
#pragma once
#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct apierr;
struct arena;
struct config;
struct ids;
struct metrics;
struct model;
struct params;
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
// Renders the conversation in q and tokenises it, appending to *ret. For /tokenize too.
int prepare_prompt(const struct prepare *p, const struct params *q, struct ids *ret,
                   bool *ret_in_thought, struct apierr *e);
// JSON, with what the metrics want to know of it. The caller gives *ret back with json_decref.
int prepare_body(const struct prepare *p, json_t **ret, struct apierr *e);
// Fields, model name, capabilities of a chat body into q, whose strings go into a.
int prepare_fields(const struct prepare *p, const json_t *body, struct params *q, struct arena *a,
                   struct apierr *e);
int prepare_model_name(const struct prepare *p, const char *name, struct apierr *e); // NULL is fine
// Limits the reply to what is left of a window of context_max ids. APIERR_CONTEXT_LENGTH: nothing is.
int prepare_limit(struct request *r, uint32_t context_max, int64_t output_default,
                  struct apierr *e);
