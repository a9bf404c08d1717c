/* pyjson: see pyjson.h. */
#include "router/text/pyjson.h"
#include "common/strbuf.h"
#include "router/text/bigint.h"

#include <inttypes.h>
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { DIGITS_MAX = 17, EXPONENT_FROM = 16, EXPONENT_BELOW = -4 };

static void add_escaped(struct strbuf *out, unsigned char c) {
    static const char names[] = {['"'] = '"',  ['\\'] = '\\', ['\n'] = 'n', ['\r'] = 'r',
                                 ['\t'] = 't', ['\b'] = 'b',  ['\f'] = 'f'};
    if (c < sizeof names && names[c]) {
        strbuf_add_char(out, '\\');
        strbuf_add_char(out, names[c]);
    } else {
        strbuf_printf(out, "\\u%04x", c);
    }
}

void pyjson_add_escaped(struct strbuf *out, const char *s, size_t len) {
    for (size_t i = 0, first = 0; i <= len; i++) {
        if (i < len && (unsigned char)s[i] >= 0x20 && s[i] != '"' && s[i] != '\\') continue;
        strbuf_add(out, s + first, i - first);
        if (i < len) add_escaped(out, (unsigned char)s[i]);
        first = i + 1;
    }
}

static void add_string(struct strbuf *out, const char *s, size_t len) {
    strbuf_add_char(out, '"');
    pyjson_add_escaped(out, s, len);
    strbuf_add_char(out, '"');
}

struct decimal { // 0.d1d2d3... times ten to the power of point
    char digits[DIGITS_MAX + 1];
    int count, point;
};

static bool reads_back(const struct decimal *d, double v) {
    char text[40];
    snprintf(text, sizeof text, "0.%se%d", d->digits, d->point);
    return strtod(text, NULL) == v;
}

// The next decimal of as many digits, away from zero. False when it has fewer digits that matter.
static bool step_up(struct decimal *d) {
    int i = d->count - 1;
    while (i >= 0 && d->digits[i] == '9') d->digits[i--] = '0';
    if (i < 0) return false;
    d->digits[i]++;
    return true;
}

// The shortest decimal that reads back as v > 0, and of these the closest.
static struct decimal shortest(double v) {
    struct decimal d = {.count = 0};
    for (int n = 1; n <= DIGITS_MAX; n++) {
        char text[40];
        snprintf(text, sizeof text, "%.*e", n - 1, v);
        d.digits[0] = text[0];
        memcpy(d.digits + 1, text + 2, (size_t)n - 1);
        d.digits[n] = '\0';
        d.count = n;
        d.point = atoi(strchr(text, 'e') + 1) + 1;
        if (reads_back(&d, v)) break;
        // Above a power of two the neighbours lie further apart than below: the next one up may read back.
        struct decimal up = d;
        if (step_up(&up) && reads_back(&up, v)) return up;
    }
    return d;
}

static void add_scientific(struct strbuf *out, const struct decimal *d) {
    int exponent = d->point - 1;
    strbuf_add_char(out, d->digits[0]);
    if (d->count > 1) strbuf_printf(out, ".%s", d->digits + 1);
    strbuf_printf(out, "e%c%02d", exponent < 0 ? '-' : '+', abs(exponent));
}

static void add_positional(struct strbuf *out, const struct decimal *d) {
    if (d->point <= 0) {
        strbuf_add_str(out, "0.");
        for (int i = d->point; i < 0; i++) strbuf_add_char(out, '0');
        strbuf_add_str(out, d->digits);
        return;
    }
    for (int i = 0; i < d->point; i++) strbuf_add_char(out, i < d->count ? d->digits[i] : '0');
    strbuf_printf(out, ".%s", d->point < d->count ? d->digits + d->point : "0");
}

void pyjson_add_real(struct strbuf *out, double v) {
    if (isnan(v)) {
        strbuf_add_str(out, "NaN");
        return;
    }
    if (signbit(v)) strbuf_add_char(out, '-');
    v = fabs(v);
    if (isinf(v)) {
        strbuf_add_str(out, "Infinity");
    } else if (v == 0) {
        strbuf_add_str(out, "0.0");
    } else {
        struct decimal d = shortest(v);
        if (d.point - 1 < EXPONENT_BELOW || d.point - 1 >= EXPONENT_FROM)
            add_scientific(out, &d);
        else
            add_positional(out, &d);
    }
}

static void add_array(struct strbuf *out, const json_t *v) {
    strbuf_add_char(out, '[');
    for (size_t i = 0; i < json_array_size(v); i++) {
        if (i) strbuf_add_str(out, ", ");
        pyjson_add(out, json_array_get(v, i));
    }
    strbuf_add_char(out, ']');
}

static void add_object(struct strbuf *out, const json_t *v) {
    const char *key;
    size_t len;
    json_t *item;
    bool first = true;
    strbuf_add_char(out, '{');
    json_object_keylen_foreach((json_t *)v, key, len, item) {
        if (!first) strbuf_add_str(out, ", ");
        first = false;
        add_string(out, key, len);
        strbuf_add_str(out, ": ");
        pyjson_add(out, item);
    }
    strbuf_add_char(out, '}');
}

static void add_string_or_bigint(struct strbuf *out, const json_t *v) {
    const char *digits = bigint_digits(v);
    if (digits)
        strbuf_add_str(out, digits);
    else
        add_string(out, json_string_value(v), json_string_length(v));
}

void pyjson_add(struct strbuf *out, const json_t *v) {
    switch (json_typeof(v)) {
    case JSON_OBJECT: add_object(out, v); break;
    case JSON_ARRAY: add_array(out, v); break;
    case JSON_STRING: add_string_or_bigint(out, v); break;
    case JSON_INTEGER: strbuf_printf(out, "%" PRId64, (int64_t)json_integer_value(v)); break;
    case JSON_REAL: pyjson_add_real(out, json_real_value(v)); break;
    case JSON_TRUE: strbuf_add_str(out, "true"); break;
    case JSON_FALSE: strbuf_add_str(out, "false"); break;
    case JSON_NULL: strbuf_add_str(out, "null"); break;
    }
}
