/* tools: checks the tools that a chat request offers and what it says about their use. Pure, any thread. */
#pragma once
#include <jansson.h>
#include <stdbool.h>

struct apierr;
struct field_context;
struct params;

enum { TOOLS_MAX = 128, TOOLS_BYTES_MAX = 512 << 10, TOOL_NAME_MAX = 64 };

// Readers for the table of fields. An empty array is the same as none.
int tools_read(struct field_context *c, const json_t *v, struct apierr *e);
int tools_read_choice(struct field_context *c, const json_t *v, struct apierr *e);
bool tools_choice_is_free(const json_t *v); // none or auto: needs no grammar
// Of both together: a choice needs tools, and a named tool has to be among them. choice may be NULL.
int tools_check_choice(const struct params *p, const json_t *choice, struct apierr *e);
// What this build does not do with them.
int tools_capabilities(const struct params *p, struct apierr *e);
