/* added: see added.h. Tokens lie sorted by first byte and then longest first; a vocabulary has a few dozen. */
#include "router/text/added.h"
#include "common/mem.h"
#include "common/planted.h"
#include "router/text/tokenizer.h"

#include <stdlib.h>
#include <string.h>

struct entry {
    char *text;
    size_t len;
    uint32_t id;
};
struct added {
    struct entry *v;
    size_t count, cap;
    uint32_t start[257]; // of the entries that begin with a byte
};

struct added *added_new(void) {
    return mem_calloc(1, sizeof(struct added));
}

void added_free(struct added *a) {
    if (!a) return;
    for (size_t i = 0; i < a->count; i++) free(a->v[i].text);
    free(a->v);
    free(a);
}

int64_t added_find(const struct added *a, const char *text, size_t len) {
    for (size_t i = 0; i < a->count; i++)
        if (a->v[i].len == len && !memcmp(a->v[i].text, text, len)) return a->v[i].id;
    return -1;
}

bool added_put(struct added *a, const char *text, size_t len, uint32_t id) {
    if (added_find(a, text, len) >= 0) return false;
    if (a->count == a->cap) {
        a->cap = a->cap ? a->cap * 2 : 32;
        a->v = mem_realloc_array(a->v, a->cap, sizeof *a->v);
    }
    a->v[a->count++] = (struct entry){mem_strndup(text, len), len, id};
    return true;
}

static int compare(const void *pa, const void *pb) {
    const struct entry *a = pa, *b = pb;
    uint8_t x = (uint8_t)a->text[0], y = (uint8_t)b->text[0];
    if (x != y) return x < y ? -1 : 1;
    if (a->len != b->len) return a->len > b->len ? -1 : 1;
    return memcmp(a->text, b->text, a->len);
}

void added_sort(struct added *a) {
    if (a->count) qsort(a->v, a->count, sizeof *a->v, compare);
    for (size_t i = 0, b = 0; b < 257; b++) {
        while (i < a->count && (uint8_t)a->v[i].text[0] < b) i++;
        a->start[b] = (uint32_t)i;
    }
    a->start[256] = (uint32_t)a->count;
}

static const struct entry *longest_at(const struct added *a, const char *text, size_t len) {
    uint8_t b = (uint8_t)text[0];
    for (uint32_t i = a->start[b]; i < a->start[b + 1]; i++)
        if (a->v[i].len <= len && !memcmp(a->v[i].text, text, a->v[i].len)) return &a->v[i];
    return NULL;
}

// Moves the scan out of the plain span it is in, and returns where the open bytes from there on end.
static size_t open_end(const struct text_span *plain, size_t plain_count, struct added_scan *scan,
                       size_t len) {
    for (; scan->span_idx < plain_count; scan->span_idx++) {
        const struct text_span *s = &plain[scan->span_idx];
        if (s->len == 0) continue; // touches no byte
        if (scan->pos < s->first) return s->first + PLANTED;
        if (scan->pos < s->first + s->len) scan->pos = s->first + s->len;
    }
    return len;
}

bool added_next(const struct added *a, const char *text, size_t len, const struct text_span *plain,
                size_t plain_count, struct added_scan *scan, struct added_match *ret) {
    while (scan->pos < len) {
        size_t end = open_end(plain, plain_count, scan, len);
        for (; scan->pos < end; scan->pos++) {
            const struct entry *e = longest_at(a, text + scan->pos, end - scan->pos);
            if (!e) continue;
            *ret = (struct added_match){scan->pos, e->len, e->id};
            scan->pos += e->len;
            return true;
        }
    }
    return false;
}
