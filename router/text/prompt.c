/* prompt: see prompt.h. */
#include "router/text/prompt.h"
#include "common/mem.h"
#include "common/num.h"
#include "router/text/template.h"
#include "router/text/utf8.h"

#include <stdlib.h>

void template_prompt_fini(struct template_prompt *p) {
    strbuf_fini(&p->text);
    free(p->plain);
    *p = (struct template_prompt){0};
}

void prompt_reset(struct template_prompt *p) {
    strbuf_reset(&p->text);
    p->plain_count = 0;
}

void prompt_add_mark(struct template_prompt *p, const char *text) {
    strbuf_add_str(&p->text, text);
}

static void add_span(struct template_prompt *p, size_t len) {
    struct text_span *last = p->plain_count ? &p->plain[p->plain_count - 1] : NULL;
    if (last && last->first + last->len == p->text.len) {
        last->len += len;
        return;
    }
    if (p->plain_count == p->plain_cap) {
        p->plain_cap = p->plain_cap ? p->plain_cap * 2 : 16;
        p->plain = mem_realloc_array(p->plain, p->plain_cap, sizeof *p->plain);
    }
    p->plain[p->plain_count++] = (struct text_span){p->text.len, len};
}

void prompt_add_plain(struct template_prompt *p, const char *text, size_t len) {
    if (len == 0) return;
    add_span(p, len);
    strbuf_add(&p->text, text, len);
}

void prompt_add_slice(struct template_prompt *p, const struct template_prompt *from, size_t first,
                      size_t last) {
    for (size_t i = 0; i < from->plain_count && first < last; i++) {
        size_t plain = max_size(from->plain[i].first, first);
        size_t end = min_size(from->plain[i].first + from->plain[i].len, last);
        if (plain >= end) continue;
        strbuf_add(&p->text, from->text.p + first, plain - first);
        prompt_add_plain(p, from->text.p + plain, end - plain);
        first = end;
    }
    if (first < last) strbuf_add(&p->text, from->text.p + first, last - first);
}

static bool is_python_space(uint32_t cp) {
    return (cp >= 0x09 && cp <= 0x0D) || (cp >= 0x1C && cp <= 0x20) || cp == 0x85 || cp == 0xA0 ||
           cp == 0x1680 || (cp >= 0x2000 && cp <= 0x200A) || cp == 0x2028 || cp == 0x2029 ||
           cp == 0x202F || cp == 0x205F || cp == 0x3000;
}

void prompt_strip(const char *text, size_t *first, size_t *last) {
    uint32_t cp = 0;
    while (*first < *last) {
        int n = utf8_read(text + *first, *last - *first, &cp);
        if (n <= 0 || !is_python_space(cp)) break;
        *first += (size_t)n;
    }
    while (*first < *last) {
        size_t at = *last - 1;
        while (at > *first && ((unsigned char)text[at] & 0xC0) == 0x80) at--;
        if (utf8_read(text + at, *last - at, &cp) <= 0 || !is_python_space(cp)) break;
        *last = at;
    }
}
