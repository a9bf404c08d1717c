/* strbuf: growable bytes. Zero-initialised is empty and valid; strbuf_fini gives the memory back.
 * A NUL always stands behind the last byte once anything was added. Not for several threads at once. */
#pragma once
#include <stdarg.h>
#include <stddef.h>

struct strbuf {
    char *p;
    size_t len; // bytes in use, without the NUL
    size_t cap;
};

void strbuf_fini(struct strbuf *b);
void strbuf_reset(struct strbuf *b);                      // empties it, keeps the memory
void strbuf_reserve(struct strbuf *b, size_t more_bytes); // room for more_bytes and a NUL
void strbuf_add(struct strbuf *b, const void *p, size_t len);
void strbuf_add_str(struct strbuf *b, const char *s);
void strbuf_add_char(struct strbuf *b, char c);
void strbuf_printf(struct strbuf *b, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void strbuf_vprintf(struct strbuf *b, const char *fmt, va_list ap);
void strbuf_drop_front(struct strbuf *b, size_t bytes); // moves the rest to the start
char *strbuf_take(struct strbuf *b);                    // the caller frees; b is empty again
const char *strbuf_str(const struct strbuf *b);         // "" when nothing was added
