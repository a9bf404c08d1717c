/* pretoken: cuts text into the pieces that are merged apart, by the regex of a tokenizer.json.
 *
 * The reference matches with Oniguruma (Unicode 16), this with PCRE2. The pattern is therefore read first: only
 * constructs that mean the same in both are let through, \s becomes White_Space, and \p{L}, \p{M}, \p{N} are widened by
 * what PCRE2's older Unicode does not know. Immutable after opening: any thread; a work area is one thread's. */
#pragma once
#include <stddef.h>

struct err;
struct pretoken;      // defined in pretoken.c
struct pretoken_work; // defined in pretoken.c

// ST_UNSUPPORTED: a construct that is not let through, named with its offset.
int pretoken_new(struct pretoken **ret, const char *pattern, struct err *e);
void pretoken_free(struct pretoken *p); // NULL is fine

struct pretoken_work *pretoken_work_new(const struct pretoken *p);
void pretoken_work_free(struct pretoken_work *w); // NULL is fine
// Text is valid UTF-8, first < len. *ret_end: where the piece that begins at first ends; a stretch that the pattern
// does not match is a piece too. ST_UNSUPPORTED: the pattern needs too many steps on this text.
int pretoken_next(const struct pretoken *p, struct pretoken_work *w, const char *text, size_t len,
                  size_t first, size_t *ret_end, struct err *e);
