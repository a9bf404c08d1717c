/* fieldread: readers of request fields that have a form of their own, for the table in fields.c. Each checks type
 * and range, and writes into the params. Pure, any thread. */
#pragma once
#include "router/fields.h"

int fieldread_messages(struct field_context *c, const json_t *v, struct apierr *e);
int fieldread_stream_options(struct field_context *c, const json_t *v, struct apierr *e);
int fieldread_max_tokens(struct field_context *c, const json_t *v, struct apierr *e);
int fieldread_max_completion_tokens(struct field_context *c, const json_t *v, struct apierr *e);
int fieldread_top_k(struct field_context *c, const json_t *v, struct apierr *e);
int fieldread_repetition(struct field_context *c, const json_t *v, struct apierr *e);
int fieldread_logit_bias(struct field_context *c, const json_t *v, struct apierr *e);
int fieldread_seed(struct field_context *c, const json_t *v, struct apierr *e);
int fieldread_stop(struct field_context *c, const json_t *v, struct apierr *e);
int fieldread_stop_ids(struct field_context *c, const json_t *v, struct apierr *e);
int fieldread_effort(struct field_context *c, const json_t *v, struct apierr *e);
int fieldread_kwargs(struct field_context *c, const json_t *v, struct apierr *e);
int fieldread_modalities(struct field_context *c, const json_t *v, struct apierr *e);
int fieldread_response_format(struct field_context *c, const json_t *v, struct apierr *e);
int fieldread_think_budget(struct field_context *c, const json_t *v, struct apierr *e);
int fieldread_think_budget_alias(struct field_context *c, const json_t *v, struct apierr *e);
int fieldread_prompt(struct field_context *c, const json_t *v, struct apierr *e);
int fieldread_completion_logprobs(struct field_context *c, const json_t *v, struct apierr *e);

// For readers elsewhere.
int fieldread_wrong_type(const char *param, const char *wanted, const json_t *v, struct apierr *e);
int fieldread_number(const json_t *v, const struct field *f, double *ret, struct apierr *e);
int fieldread_text(struct field_context *c, const json_t *v, const struct field *f,
                   const char **ret, struct apierr *e);
