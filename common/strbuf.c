/* strbuf: see strbuf.h. */
#include "common/strbuf.h"
#include "common/mem.h"

#include <assert.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void strbuf_fini(struct strbuf *b) {
    free(b->p);
    *b = (struct strbuf){0};
}

void strbuf_reset(struct strbuf *b) {
    b->len = 0;
    if (b->p) b->p[0] = '\0';
}

void strbuf_reserve(struct strbuf *b, size_t more_bytes) {
    assert(more_bytes < SIZE_MAX / 4 && b->len < SIZE_MAX / 4);
    size_t want = b->len + more_bytes + 1;
    if (want <= b->cap) return;
    size_t cap = b->cap ? b->cap * 2 : 64;
    while (cap < want) cap *= 2;
    b->p = mem_realloc(b->p, cap);
    b->cap = cap;
}

void strbuf_add(struct strbuf *b, const void *p, size_t len) {
    strbuf_reserve(b, len);
    if (len) memcpy(b->p + b->len, p, len);
    b->len += len;
    b->p[b->len] = '\0';
}

void strbuf_add_str(struct strbuf *b, const char *s) {
    strbuf_add(b, s, strlen(s));
}

void strbuf_add_char(struct strbuf *b, char c) {
    strbuf_add(b, &c, 1);
}

void strbuf_vprintf(struct strbuf *b, const char *fmt, va_list ap) {
    va_list again;
    va_copy(again, ap);
    strbuf_reserve(b, 128);
    int n = vsnprintf(b->p + b->len, b->cap - b->len, fmt, ap);
    assert(n >= 0);
    if ((size_t)n >= b->cap - b->len) {
        strbuf_reserve(b, (size_t)n);
        vsnprintf(b->p + b->len, b->cap - b->len, fmt, again);
    }
    va_end(again);
    b->len += (size_t)n;
}

void strbuf_printf(struct strbuf *b, const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    strbuf_vprintf(b, fmt, ap);
    va_end(ap);
}

void strbuf_drop_front(struct strbuf *b, size_t bytes) {
    assert(bytes <= b->len);
    if (bytes == 0) return;
    memmove(b->p, b->p + bytes, b->len - bytes);
    b->len -= bytes;
    b->p[b->len] = '\0';
}

char *strbuf_take(struct strbuf *b) {
    strbuf_reserve(b, 0);
    b->p[b->len] = '\0';
    char *p = b->p;
    *b = (struct strbuf){0};
    return p;
}

const char *strbuf_str(const struct strbuf *b) {
    return b->p ? b->p : "";
}
