/* pyjson: JSON text as Python's json.dumps(v, ensure_ascii=False) prints it, which is what chat templates insert.
 *
 * ", " and ": ", keys as they came; strings escape only '"', '\' and what is below U+0020; reals are the shortest text
 * that reads back as the same number, with ".0" or an exponent. Integers are jansson's (64 bits) or of any size (bigint.h). Pure, any thread. */
#pragma once
#include <jansson.h>
#include <stddef.h>

struct strbuf;
void pyjson_add(struct strbuf *out, const json_t *v);
void pyjson_add_escaped(struct strbuf *out, const char *s, size_t len); // inside of a string
void pyjson_add_real(struct strbuf *out, double v);                     // Python's repr of a float
