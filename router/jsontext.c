/* jsontext: see jsontext.h. No state. */
#include "router/jsontext.h"
#include "common/strbuf.h"
#include "router/utf8.h"

#include <math.h>
#include <stdbool.h>
#include <stdio.h>

static void add_escape(struct strbuf *out, unsigned char c) {
    static const char *const named[0x20] = {
        ['\b'] = "\\b", ['\t'] = "\\t", ['\n'] = "\\n", ['\f'] = "\\f", ['\r'] = "\\r"};
    if (c == '"' || c == '\\') {
        strbuf_add_char(out, '\\');
        strbuf_add_char(out, (char)c);
    } else if (named[c]) {
        strbuf_add_str(out, named[c]);
    } else {
        strbuf_printf(out, "\\u%04x", c);
    }
}

void jsontext_string(struct strbuf *out, const char *s, size_t len) {
    const unsigned char *p = (const unsigned char *)s;
    size_t from = 0; // bytes before i that go out as they are
    size_t i = 0;
    strbuf_reserve(out, len + 2);
    strbuf_add_char(out, '"');
    while (i < len) {
        size_t n = utf8_char_len(p + i, len - i);
        bool plain = n > 1 || (n == 1 && p[i] >= 0x20 && p[i] != '"' && p[i] != '\\');
        if (plain) {
            i += n;
            continue;
        }
        strbuf_add(out, s + from, i - from);
        if (n)
            add_escape(out, p[i]);
        else
            strbuf_add_str(out, "\xef\xbf\xbd");
        from = ++i;
    }
    strbuf_add(out, s + from, len - from);
    strbuf_add_char(out, '"');
}

void jsontext_real(struct strbuf *out, double x) {
    if (!isfinite(x)) {
        strbuf_add_str(out, "null");
        return;
    }
    char text[40];
    snprintf(text, sizeof text, "%.15g", x);
    double back;
    if (sscanf(text, "%lf", &back) != 1 || back != x) snprintf(text, sizeof text, "%.17g", x);
    strbuf_add_str(out, text);
}
