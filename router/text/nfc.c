/* nfc: see nfc.h. Decomposing and composing are utf8proc's; the ordering of marks is done here, because
 * utf8proc's takes time quadratic in the number of marks on one letter. */
#include "router/text/nfc.h"
#include "common/mem.h"
#include "common/strbuf.h"
#include "router/text/utf8.h"

#include <assert.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

enum {
    FIRST_MARK = 0x300,  // below it nothing decomposes or combines but by what is above it
    DECOMPOSED_MAX = 18, // no character's canonical form is longer (it is 4 in Unicode 15)
    ORDER_SHORT = 16,    // up to so many marks are ordered by insertion
};

// Marks and composed letters of Unicode 10 to 16 (UnicodeData.txt: combining class or canonical mapping).
// Checked against tokenizers 0.23 for every code point and, for what decomposes, every pair.
static const struct range {
    uint32_t first, last;
} young[] = {
    {0x07fd, 0x07fd},   {0x0897, 0x089f},   {0x08ca, 0x08d3},   {0x09fe, 0x09fe},
    {0x0c3c, 0x0c3c},   {0x0cf3, 0x0cf3},   {0x0d3b, 0x0d3c},   {0x0eba, 0x0eba},
    {0x0ece, 0x0ece},   {0x1715, 0x1715},   {0x1abf, 0x1ace},   {0x1df6, 0x1dfa},
    {0xa82c, 0xa82c},   {0x105c0, 0x105f3}, {0x10d24, 0x10d27}, {0x10d69, 0x10d6d},
    {0x10eab, 0x10eac}, {0x10efc, 0x10eff}, {0x10f46, 0x10f50}, {0x10f82, 0x10f85},
    {0x11070, 0x11070}, {0x11241, 0x11241}, {0x1133b, 0x1133b}, {0x11380, 0x113b5},
    {0x113b8, 0x113c0}, {0x113c2, 0x113c2}, {0x113c5, 0x113c5}, {0x113c7, 0x113ca},
    {0x113cc, 0x113d0}, {0x113d2, 0x113d2}, {0x113e1, 0x113e2}, {0x1145e, 0x1145e},
    {0x11839, 0x1183a}, {0x11930, 0x11930}, {0x11938, 0x11938}, {0x1193d, 0x1193e},
    {0x11943, 0x11943}, {0x119e0, 0x119e0}, {0x11a34, 0x11a34}, {0x11a47, 0x11a47},
    {0x11a99, 0x11a99}, {0x11d42, 0x11d42}, {0x11d44, 0x11d45}, {0x11d97, 0x11d97},
    {0x11f00, 0x11f01}, {0x11f03, 0x11f03}, {0x11f34, 0x11f3a}, {0x11f3e, 0x11f42},
    {0x11f5a, 0x11f5a}, {0x13440, 0x13440}, {0x13447, 0x13455}, {0x1611e, 0x1612f},
    {0x16d40, 0x16d6c}, {0x16ff0, 0x16ff1}, {0x1e08f, 0x1e08f}, {0x1e130, 0x1e136},
    {0x1e2ae, 0x1e2ae}, {0x1e2ec, 0x1e2ef}, {0x1e4ec, 0x1e4ef}, {0x1e5ee, 0x1e5ef},
};

static bool is_young(uint32_t cp) {
    size_t low = 0, high = sizeof young / sizeof young[0];
    while (low < high) {
        size_t mid = (low + high) / 2;
        if (cp > young[mid].last)
            low = mid + 1;
        else
            high = mid;
    }
    return low < sizeof young / sizeof young[0] && cp >= young[low].first;
}

bool nfc_is_plain(const char *text, size_t len) {
    // U+0300 is CC 80: every character below it begins with a byte below CC.
    for (size_t i = 0; i < len; i++)
        if ((uint8_t)text[i] >= 0xCC) return false;
    return true;
}

struct run { // decomposed characters, waiting to be composed
    int32_t *cp;
    size_t len, cap;
    int32_t *marks; // room to sort in
    size_t marks_cap;
};

static uint8_t class_of(int32_t cp) {
    return (uint8_t)utf8proc_get_property(cp)->combining_class;
}

static void order_short(int32_t *marks, size_t count) {
    for (size_t i = 1; i < count; i++) {
        int32_t cp = marks[i];
        size_t j = i;
        for (; j > 0 && class_of(marks[j - 1]) > class_of(cp); j--) marks[j] = marks[j - 1];
        marks[j] = cp;
    }
}

// A stable counting sort by class.
static void order_long(struct run *r, int32_t *marks, size_t count) {
    size_t start[257] = {0};
    if (count > r->marks_cap) {
        r->marks = mem_realloc_array(r->marks, count, sizeof *r->marks);
        r->marks_cap = count;
    }
    for (size_t i = 0; i < count; i++) start[class_of(marks[i]) + 1]++;
    for (size_t c = 1; c < 257; c++) start[c] += start[c - 1];
    for (size_t i = 0; i < count; i++) r->marks[start[class_of(marks[i])]++] = marks[i];
    memcpy(marks, r->marks, count * sizeof *marks);
}

static void order(struct run *r) {
    for (size_t i = 0; i < r->len;) {
        size_t first = i;
        while (i < r->len && class_of(r->cp[i])) i++;
        if (i - first > ORDER_SHORT)
            order_long(r, r->cp + first, i - first);
        else if (i - first > 1)
            order_short(r->cp + first, i - first);
        else if (i == first)
            i++;
    }
}

static void flush(struct run *r, struct strbuf *out) {
    order(r);
    utf8proc_ssize_t n = utf8proc_normalize_utf32(r->cp, (utf8proc_ssize_t)r->len,
                                                  UTF8PROC_STABLE | UTF8PROC_COMPOSE);
    assert(n >= 0);
    for (utf8proc_ssize_t i = 0; i < n; i++) utf8_add(out, (uint32_t)r->cp[i]);
    r->len = 0;
}

static void decompose(struct run *r, uint32_t cp) {
    if (r->cap - r->len < DECOMPOSED_MAX) {
        r->cap = r->cap * 2 + 256;
        r->cp = mem_realloc_array(r->cp, r->cap, sizeof *r->cp);
    }
    int last = 0;
    utf8proc_ssize_t n = utf8proc_decompose_char((int32_t)cp, r->cp + r->len, DECOMPOSED_MAX,
                                                 UTF8PROC_STABLE | UTF8PROC_DECOMPOSE, &last);
    assert(n > 0 && n <= DECOMPOSED_MAX);
    r->len += (size_t)n;
}

void nfc_add(struct strbuf *out, const char *text, size_t len) {
    struct run r = {0};
    strbuf_reserve(out, len);
    for (size_t i = 0; i < len;) {
        uint32_t cp;
        int n = utf8_read(text + i, len - i, &cp);
        assert(n > 0);
        // A plain letter before another plain letter is finished: short runs stay in the cache.
        bool next_plain = i + (size_t)n >= len || (uint8_t)text[i + (size_t)n] < 0xCC;
        if (is_young(cp) || (cp < FIRST_MARK && next_plain)) {
            if (r.len) flush(&r, out);
            strbuf_add(out, text + i, (size_t)n);
        } else {
            decompose(&r, cp);
        }
        i += (size_t)n;
    }
    if (r.len) flush(&r, out);
    free(r.cp);
    free(r.marks);
}
