/* template: renders a conversation into prompt text by native rule sets, one per family of chat templates.
 *
 * The result tells which bytes came from the client, so that the tokeniser can take control tokens spelt there as
 * plain text. Pure; any thread. Rules: docs/notes/templates.md (credit: Qwen's published chat templates). */
#pragma once
#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

#include "common/strbuf.h"
#include "router/text/tokenizer.h"

struct err;

enum template_rules {
    TEMPLATE_3_5 = 1,
    TEMPLATE_3_5_SMALL,
    TEMPLATE_3_6,
    TEMPLATE_3_8,
    TEMPLATE_3_8_LARGE,
};

enum template_tri { TEMPLATE_UNSET, TEMPLATE_TRUE, TEMPLATE_FALSE, TEMPLATE_OTHER };

struct template_input {
    const json_t *messages; // array of normalised messages: roles system, user, assistant, tool
    const json_t *tools;    // array or NULL
    bool add_generation_prompt;
    bool continue_final; // the last message is the assistant's and stays open
    enum template_tri enable_thinking, preserve_thinking;
    const char *reasoning_effort; // NULL: unset
    bool add_vision_id;
};

struct template_prompt {
    struct strbuf text;
    struct text_span *plain; // client bytes, ascending
    size_t plain_count, plain_cap;
    bool in_thought; // the text ends inside an open thought
};

void template_prompt_fini(struct template_prompt *p);
// ST_INVAL: the conversation is refused; e is the template's own message. *ret: zeroed by the caller.
int template_render(enum template_rules rules, const struct template_input *in,
                    struct template_prompt *ret, struct err *e);
// Reads chat_template.jinja, else tokenizer_config.json's chat_template, of a checkpoint folder and picks the rules
// by hash, else by features; *ret_why is a constant string that says which for the start-up report.
// ST_UNSUPPORTED: a template we have no rules for, with how to name a rule set by hand.
int template_detect(const char *model_dir, enum template_rules *ret, const char **ret_why,
                    struct err *e);
int template_rules_parse(const char *name,
                         enum template_rules *ret); // "3.5", "3.5-small", ...; ST_INVAL
const char *template_rules_name(enum template_rules rules);
