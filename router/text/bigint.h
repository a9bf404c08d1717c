/* bigint: whole numbers beyond 64 bits in a jansson tree, which has no such type. They stand there as strings with a
 * mark in front that no client can spell: a NUL and 128 random bits of this process. Any thread. */
#pragma once
#include <jansson.h>

enum { BIGINT_MARK_BYTES = 34 }; // the NUL, 32 hex digits, a colon

const char *bigint_mark(void); // BIGINT_MARK_BYTES of it; the digits stand behind
// The digits, '-' in front of a negative one, or NULL: v is something else.
const char *bigint_digits(const json_t *v);
