/* sse: see sse.h. */
#include "router/sse.h"
#include "common/err.h"

#include <string.h>

void sse_fini(struct sse *s) {
    strbuf_fini(&s->line);
    strbuf_fini(&s->data);
}

bool sse_inside(const struct sse *s) {
    return s->line.len || s->has_data;
}

static void end_event(struct sse *s) {
    if (s->has_data) s->on_event(s->arg, strbuf_str(&s->data), s->data.len);
    strbuf_reset(&s->data);
    s->has_data = false;
}

// "data: text" or "data:text"; one space behind the colon is no part of the value.
static void take_field(struct sse *s, const char *line, size_t len) {
    const char *colon = memchr(line, ':', len);
    size_t name = colon ? (size_t)(colon - line) : len;
    if (name != 4 || memcmp(line, "data", 4)) return;
    size_t from = colon ? name + 1 : len;
    if (from < len && line[from] == ' ') from++;
    if (s->has_data) strbuf_add_char(&s->data, '\n');
    strbuf_add(&s->data, line + from, len - from);
    s->has_data = true;
}

static void end_line(struct sse *s) {
    const char *line = strbuf_str(&s->line);
    size_t len = s->line.len;
    if (!s->past_start && len >= 3 && !memcmp(line, "\xEF\xBB\xBF", 3)) line += 3, len -= 3;
    s->past_start = true;
    if (len)
        take_field(s, line, len);
    else
        end_event(s);
    strbuf_reset(&s->line);
}

int sse_feed(struct sse *s, const char *p, size_t len, struct err *e) {
    while (len) {
        if (s->after_cr && *p == '\n') p++, len--;
        s->after_cr = false;
        size_t n = 0;
        while (n < len && p[n] != '\n' && p[n] != '\r') n++;
        strbuf_add(&s->line, p, n);
        if (s->line.len + s->data.len > SSE_EVENT_BYTES_MAX)
            return err_set(e, ST_CORRUPT, "an event is over %d bytes", SSE_EVENT_BYTES_MAX);
        if (n == len) return ST_OK;
        s->after_cr = p[n] == '\r';
        end_line(s);
        p += n + 1;
        len -= n + 1;
    }
    return ST_OK;
}
