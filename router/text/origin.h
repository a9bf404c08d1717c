/* origin: which ids the content of a reply is made of: told for each id when the last of its bytes comes out.
 *
 * Bytes of ids go in, become characters (origin_char), and leave in the same order, shown or not (origin_out). An id
 * is told of if any of its bytes was shown. Pure. */
#pragma once
#include <stdbool.h>
#include <stddef.h>

struct reply_delta;

struct origin_entry {
    size_t idx, char_first;
    size_t raw_last;    // its bytes end there, among all raw ones
    size_t first, last; // and here among those of characters; last SIZE_MAX: not known yet
    bool shown;
};

struct origin { // zero-initialised is empty and valid
    struct origin_entry *v;
    size_t head, open, len, cap; // told of: before head; last is known: before open
    size_t raw_in, raw_done, in, out, chars;
};

void origin_fini(struct origin *o);
void origin_id(struct origin *o, size_t idx, size_t raw_len); // an id and so many raw bytes come in
void origin_char(struct origin *o, size_t raw_len, size_t len);
// Into the ids of d. Returns how many.
size_t origin_out(struct origin *o, size_t len, bool shown, struct reply_delta *d);
