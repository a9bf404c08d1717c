/* model: what the router knows of a checkpoint: its name, tokeniser, template rules, sampling defaults, stop ids, and
 * the VOCAB frame made of them. Opened before any thread starts, constant afterwards; any thread may read. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "proto/frame.h"
#include "router/text/template.h"

struct err;
struct tokenizer;

struct model {
    char *dir;         // real path
    char *dir_name;    // its last part: what workers call the model
    char **names;      // what clients may call it: the name, then the aliases
    size_t name_count; // >= 1
    int64_t created_s; // of the config file

    struct tokenizer *tokenizer;
    enum template_rules rules;
    const char *rules_why;

    uint32_t vocab_size;  // padded rows of the head
    uint32_t context_max; // as the checkpoint allows; a worker's may be less
    struct {
        double temperature, top_p, min_p, repetition;
        uint32_t top_k;
    } sampling; // generation_config.json, or (1, 1, 0, 1, off)

    uint32_t *stop_ids; // ascending
    uint32_t stop_count;
    struct frame_vocab vocab;
    uint32_t *special_ids;
};

struct model_config {
    const char *dir;
    const char *name;    // "": the last part of the path
    const char *aliases; // split by commas; may be ""
    const char *rules;   // "auto" or a rule set's name
};

// Every refusal names file, key, wanted and found.
int model_open(struct model **ret, const struct model_config *c, struct err *e);
void model_close(struct model *m); // NULL is fine
bool model_has_name(const struct model *m, const char *name, size_t len);
bool model_is_stop_id(const struct model *m, uint32_t id);
