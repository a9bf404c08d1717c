/* added: finds added tokens in text, leftmost and longest. Immutable once filled: any thread. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct text_span;
struct added; // defined in added.c

struct added *added_new(void);
void added_free(struct added *a); // NULL is fine
// False: the same text is there already. len > 0. Call added_sort() behind the last.
bool added_put(struct added *a, const char *text, size_t len, uint32_t id);
void added_sort(struct added *a);

struct added_match {
    size_t first, len;
    uint32_t id;
};
struct added_scan { // where a search stands; zeroed at the start of a text
    size_t pos, span_idx;
};
// The next match that touches no byte of the plain spans (they ascend). False: there is none up to the end.
bool added_next(const struct added *a, const char *text, size_t len, const struct text_span *plain,
                size_t plain_count, struct added_scan *scan, struct added_match *ret);
int64_t added_find(const struct added *a, const char *text, size_t len); // id, or -1
