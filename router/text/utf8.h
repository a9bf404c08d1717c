/* utf8: checking, reading and writing UTF-8 (Unicode 15.0, table 3-7). Pure, any thread. */
#pragma once
#include <stddef.h>
#include <stdint.h>

struct strbuf;

// Reads the character at p. Positive: its bytes, *ret_cp is set. 0: the bytes up to len are the start of a character
// that ends behind them. Negative: -n bytes are no character (the longest such run that one U+FFFD stands for).
int utf8_read(const char *p, size_t len, uint32_t *ret_cp);
// Bytes of text before the first that belongs to no whole character; len when all is well.
size_t utf8_valid(const char *text, size_t len);
// cp is a scalar value: no surrogate, at most U+10FFFF.
size_t utf8_write(char ret[4], uint32_t cp);
void utf8_add(struct strbuf *out, uint32_t cp);
// Adds text with each run of bytes that is no character replaced by U+FFFD.
void utf8_add_lossy(struct strbuf *out, const char *text, size_t len);
