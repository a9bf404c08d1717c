/* argument: what a tool call's argument, which the model writes as bare text, is in JSON: by the types that the
 * tool's schema gives the parameter.
 *
 * The types of a parameter: those of `type`, of the values of `enum` and `const`, and the same of the members of anyOf,
 * oneOf and allOf; a `$ref` into the tool's own schema is followed. None found: a string. Then, in this order, the
 * first that fits is taken: null, integer, number, boolean, object or array, string; and if none does, any JSON
 * value, else a string. Numbers of objects and arrays keep the digits that the model wrote. Pure, any thread. */
#pragma once
#include <jansson.h>
#include <stddef.h>

struct strbuf;

enum argument_type { // bits
    ARGUMENT_NULL = 1,
    ARGUMENT_INTEGER = 2,
    ARGUMENT_NUMBER = 4,
    ARGUMENT_BOOLEAN = 8,
    ARGUMENT_OBJECT = 16,
    ARGUMENT_ARRAY = 32,
    ARGUMENT_STRING = 64,
};

// tools: the request's array, or NULL. A tool or a parameter that is not there is a string.
unsigned argument_types(const json_t *tools, const char *tool, size_t tool_len, const char *name,
                        size_t name_len);
// Appends text (valid UTF-8) as one JSON value, separators ", " and ": ".
void argument_add(struct strbuf *out, unsigned types, const char *text, size_t len);
