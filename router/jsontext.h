/* jsontext: JSON text written by hand, for what goes out per token and per scrape. Pure, any thread. */
#pragma once
#include <stddef.h>
#include <stdint.h>

struct strbuf;

// Appends s as a JSON string, quotes included. s is valid UTF-8 (what the tokeniser's decoder and the body's check
// let through); a run of bytes that is not would make the event invalid and is written as U+FFFD.
void jsontext_string(struct strbuf *out, const char *s, size_t len);
void jsontext_uint(struct strbuf *out, uint64_t x); // in decimal; several times as fast as printf
// Appends a number so that a reader gets the same double; never NaN or infinity, those become null.
void jsontext_real(struct strbuf *out, double x);
