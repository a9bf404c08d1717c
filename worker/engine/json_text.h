/* json_text: pieces of someone else's JSON for our one-line messages: short, printable, one line. Pure. */
#pragma once
#include <jansson.h>

enum { JSON_TEXT_BYTES = 160 };

// s with control characters as '?', cut with "..." on a character border. Returns ret.
const char *json_text_clean(char ret[JSON_TEXT_BYTES], const char *s);
// The value as JSON, cleaned; "nothing" for NULL (a missing key), its kind when it is large. Returns ret.
const char *json_text(char ret[JSON_TEXT_BYTES], const json_t *v);
const char *json_text_kind(const json_t *v); // "an object", "a list", ...; "nothing" for NULL
