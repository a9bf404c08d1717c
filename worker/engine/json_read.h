/* json_read: the keys of someone else's JSON config, each checked for type and range. A failure names file and key, what was wanted
 * and what was found; the first one sticks in *st, and later reads do nothing but give something in range. A null is no value. Pure. */
#pragma once
#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/err.h"

struct json_reader {
    const char *path;   // of the file
    const char *prefix; // of the keys in messages: "" or "text_config." ...
    const json_t *obj;  // NULL: reads as empty
    struct err *e;
    int *st;
};

void json_read_refuse(struct json_reader *r, enum st st, const char *key, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
const json_t *json_read_any(struct json_reader *r, const char *key); // NULL: missing or null
uint32_t json_read_u32(struct json_reader *r, const char *key, uint32_t dflt, uint32_t min,
                       uint32_t max);
uint32_t json_read_needed_u32(struct json_reader *r, const char *key, uint32_t min, uint32_t max);
double json_read_real(struct json_reader *r, const char *key, double dflt, double min, double max);
bool json_read_bool(struct json_reader *r, const char *key, bool dflt);
// One of the words, '|' between them; ST_UNSUPPORTED for another.
const char *json_read_word(struct json_reader *r, const char *key, const char *dflt,
                           const char *words);
const json_t *json_read_object(struct json_reader *r, const char *key);
