/* jsontext: see jsontext.h. No state. */
#include "router/jsontext.h"
#include "common/strbuf.h"
#include "router/text/utf8.h"

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
    size_t from = 0; // bytes before i that go out as they are
    size_t i = 0;
    strbuf_reserve(out, len + 2);
    strbuf_add_char(out, '"');
    while (i < len) {
        unsigned char c = (unsigned char)s[i];
        uint32_t cp;
        int n = c < 0x80 ? 1 : utf8_read(s + i, len - i, &cp);
        if (n > 1 || (n == 1 && c >= 0x20 && c != '"' && c != '\\')) {
            i += (size_t)n;
            continue;
        }
        strbuf_add(out, s + from, i - from);
        if (n == 1)
            add_escape(out, c);
        else
            strbuf_add_str(out, "\xef\xbf\xbd");
        i += n < 0 ? (size_t)-n : n == 0 ? len - i : 1;
        from = i;
    }
    strbuf_add(out, s + from, len - from);
    strbuf_add_char(out, '"');
}

void jsontext_uint(struct strbuf *out, uint64_t x) {
    char text[20]; // of UINT64_MAX
    size_t at = sizeof text;
    do text[--at] = (char)('0' + x % 10);
    while (x /= 10);
    strbuf_add(out, text + at, sizeof text - at);
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
