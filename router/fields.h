/* fields: the tables of every request field of the endpoints that generate: what type and range, and whether this build
 * honours it, refuses it by name, or knows that it has no effect (docs/api.md). A field that is not in the table is
 * ignored and counted. Pure, any thread. */
#pragma once
#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct apierr;
struct arena;
struct params;
struct tokenizer;

enum fields_set { FIELDS_CHAT, FIELDS_COMPLETION }; // of which endpoint

enum field_support {
    FIELD_SUPPORTED,
    FIELD_REFUSED, // known and not there yet: 400 unless its value asks for nothing
    FIELD_IGNORED, // known, has no effect by design
};

struct field_context { // of one request
    enum fields_set set;
    struct params *params;
    struct arena *arena;
    const struct tokenizer *tokenizer; // for ids of a prompt; may be NULL without one
    uint32_t vocab_size;               // ids a client may name are below
    bool late_system_as_user;          // see messages.h
    uint32_t *lone_surrogates;         // added to, for texts parsed inside the body
    const char *
        *unknown; // names of unknown fields, at most FIELDS_UNKNOWN_MAX; they live in the body
    uint32_t unknown_count;
};
enum { FIELDS_UNKNOWN_MAX = 64 };

struct field {
    const char *name;
    enum field_support support;
    enum { FIELD_ANY, FIELD_BOOL, FIELD_INT, FIELD_NUMBER, FIELD_TEXT, FIELD_CUSTOM } kind;
    double min, max; // INT, NUMBER: inclusive; TEXT: bytes. Both 0: any
    size_t offset;   // in struct params; FIELDS_NOWHERE: checked and dropped
    int (*read)(struct field_context *c, const json_t *v, struct apierr *e); // CUSTOM
    // REFUSED: a value that asks for nothing special and so is let through. NULL: only null is.
    bool (*harmless)(const json_t *v);
    const char *hint; // added to the refusal
};
#define FIELDS_NOWHERE SIZE_MAX

const struct field *fields_at(enum fields_set set, size_t i); // the i-th of a set; NULL: no more

// In this order the first failure is the answer: types and ranges of every known field, missing ones, combinations.
int fields_read(struct field_context *c, const json_t *body, struct apierr *e);
// Afterwards, and after the model's name: refused fields whose value asks for something.
int fields_capabilities(enum fields_set set, const json_t *body, const struct params *p,
                        struct apierr *e);

// A whole number: 8, 8.0 and 8e0, not 8.5 and not "8". Refusals name param.
int fields_int(const json_t *v, const char *param, double min, double max, int64_t *ret,
               struct apierr *e);
