/* messages: checks a conversation and brings it into the one form that the template rules read.
 *
 * Out comes an array of objects: role (system, user, assistant, tool), content (always a string), and for the
 * assistant reasoning_content (string) and tool_calls [{type, function: {name, arguments: object}}] where given.
 * System and developer messages at the head are joined by a blank line. Pure, any thread. */
#pragma once
#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

struct apierr;

enum { MESSAGES_MAX = 10000, MESSAGES_PARTS_MAX = 1024 };

struct messages_options {
    bool
        late_system_as_user; // a system message further down becomes a user turn instead of a refusal
    uint32_t *lone_surrogates; // added to by texts parsed in here (arguments of calls)
};

// *ret: the caller gives it back with json_decref. Every refusal has its path in param: messages[2].content[0].type.
int messages_read(const json_t *v, const struct messages_options *o, json_t **ret,
                  struct apierr *e);
