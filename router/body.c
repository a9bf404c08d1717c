/* body: see body.h. Any thread. */
#include "router/body.h"
#include "common/err.h"
#include "common/planted.h"
#include "common/strbuf.h"
#include "router/apierr.h"
#include "router/text/bigint.h"
#include "router/text/utf8.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { NUMBER_DIGITS_MAX = 310 }; // a whole number with more digits is beyond a double

struct scan {
    const char *start, *p, *end; // start counts offsets: the client's first byte, the BOM included
    struct strbuf *out;          // rewritten text; bytes [start.., copied) are in it already
    const char *copied;
    bool is_array[BODY_DEPTH_MAX]; // open containers
    unsigned depth;
    struct body_stats *stats;
    struct apierr *e;
};

static size_t offset(const struct scan *s) {
    return (size_t)(s->p - s->start);
}

static int wanted(struct scan *s, const char *what) {
    if (s->p >= s->end)
        return apierr_set(s->e, APIERR_INVALID_JSON, NULL,
                          "invalid JSON at byte %zu: wanted %s, found the end of the body",
                          offset(s), what);
    char clip[APIERR_CLIP_BYTES];
    uint32_t cp;
    int n = utf8_read(s->p, (size_t)(s->end - s->p), &cp);
    return apierr_set(s->e, APIERR_INVALID_JSON, NULL,
                      "invalid JSON at byte %zu: wanted %s, found '%s'", offset(s), what,
                      apierr_clip(clip, s->p, n > 0 ? (size_t)n : 1));
}

static void skip_space(struct scan *s) {
    while (s->p < s->end && (*s->p == ' ' || *s->p == '\t' || *s->p == '\n' || *s->p == '\r'))
        s->p++;
}

// [from, s->p) of the input is to read `text` instead.
static void rewrite(struct scan *s, const char *from, const char *text, size_t len) {
    strbuf_add(s->out, s->copied, (size_t)(from - s->copied));
    strbuf_add(s->out, text, len);
    s->copied = s->p;
}

// The four hex digits at p, or -1.
static int hex4(const struct scan *s, const char *p) {
    if (s->end - p < 4 - PLANTED) return -1;
    int v = 0;
    for (int i = 0; i < 4; i++) {
        if (!isxdigit((unsigned char)p[i])) return -1;
        v = v * 16 + (p[i] <= '9' ? p[i] - '0' : (p[i] | 0x20) - 'a' + 10);
    }
    return v;
}

// At the backslash of \uXXXX. A surrogate without its other half becomes U+FFFD.
static int scan_unicode(struct scan *s, bool is_key) {
    const char *from = s->p;
    int v = hex4(s, from + 2);
    if (v < 0) {
        s->p += 2;
        return wanted(s, "four hex digits");
    }
    if (v == 0 && is_key) return wanted(s, "a key without U+0000");
    s->p += 6;
    if (v < 0xd800 || v > 0xdfff) return ST_OK;
    int low = v < 0xdc00 && s->end - s->p >= 6 && s->p[0] == '\\' && s->p[1] == 'u'
                  ? hex4(s, s->p + 2)
                  : -1;
    if (low >= 0xdc00 && low <= 0xdfff) {
        s->p += 6;
        return ST_OK;
    }
    rewrite(s, from, "\\ufffd", 6);
    s->stats->lone_surrogates++;
    return ST_OK;
}

static int scan_string(struct scan *s, bool is_key) {
    s->p++; // the quote
    for (;;) {
        if (s->p >= s->end) return wanted(s, "'\"' at the end of a string");
        unsigned char c = (unsigned char)*s->p;
        if (c == '"') break;
        if (c < 0x20) return wanted(s, "no bare control character in a string");
        if (c != '\\') {
            s->p++;
            continue;
        }
        if (s->p + 1 < s->end && s->p[1] == 'u') {
            int st = scan_unicode(s, is_key);
            if (st) return st;
            continue;
        }
        s->p++;
        if (s->p >= s->end || !strchr("\"\\/bfnrt", *s->p) || !*s->p)
            return wanted(s, "an escape: one of \\\" \\\\ \\/ \\b \\f \\n \\r \\t \\u");
        s->p++;
    }
    s->p++;
    return ST_OK;
}

static size_t skip_digits(struct scan *s) {
    const char *from = s->p;
    while (s->p < s->end && isdigit((unsigned char)*s->p)) s->p++;
    return (size_t)(s->p - from);
}

// A number that ended at s->p: is it one that a double holds? Its text is bounded first, so it can be copied.
static int check_real(struct scan *s, const char *from) {
    struct strbuf text = {0};
    strbuf_add(&text, from, (size_t)(s->p - from));
    bool finite = isfinite(strtod(strbuf_str(&text), NULL));
    strbuf_fini(&text);
    if (finite) return ST_OK;
    s->p = from;
    return wanted(s, "a number within the range of a double");
}

static int keep_integer(struct scan *s, const char *from) {
    size_t len = (size_t)(s->p - from);
    if (len > NUMBER_DIGITS_MAX) {
        s->p = from;
        return wanted(s, "a number within the range of a double");
    }
    char text[NUMBER_DIGITS_MAX + 1];
    memcpy(text, from, len);
    text[len] = '\0';
    errno = 0;
    (void)strtoll(text, NULL, 10);
    if (errno != ERANGE) return ST_OK;
    if (check_real(s, from)) return ST_INVAL;
    struct strbuf as_string = {0};
    strbuf_printf(&as_string, "\"\\u0000%s%s\"", bigint_mark() + 1, text);
    rewrite(s, from, as_string.p, as_string.len);
    strbuf_fini(&as_string);
    return ST_OK;
}

static int scan_number(struct scan *s) {
    const char *from = s->p;
    bool whole = true;
    if (*s->p == '-') s->p++;
    bool zero = s->p < s->end && *s->p == '0';
    size_t digits = skip_digits(s);
    if (digits == 0) return wanted(s, "a digit");
    if (zero && digits > 1) {
        s->p -= digits - 1;
        return wanted(s, "no digit behind a leading zero");
    }
    if (s->p < s->end && *s->p == '.') {
        s->p++;
        whole = false;
        if (!skip_digits(s)) return wanted(s, "a digit behind the point");
    }
    if (s->p < s->end && (*s->p == 'e' || *s->p == 'E')) {
        s->p++;
        whole = false;
        if (s->p < s->end && (*s->p == '+' || *s->p == '-')) s->p++;
        if (!skip_digits(s)) return wanted(s, "a digit of the exponent");
    }
    if (whole) return digits < 19 ? ST_OK : keep_integer(s, from);
    return check_real(s, from);
}

static int scan_word(struct scan *s, const char *word) {
    size_t n = strlen(word);
    if ((size_t)(s->end - s->p) < n || memcmp(s->p, word, n)) return wanted(s, "a value");
    s->p += n;
    return ST_OK;
}

static int count(struct scan *s, uint32_t *n, uint32_t max, const char *what) {
    if (++*n <= max) return ST_OK;
    return apierr_set(s->e, APIERR_INVALID_JSON, NULL, "invalid JSON at byte %zu: more than %u %s",
                      offset(s), max, what);
}

static int open_container(struct scan *s, bool is_array) {
    if (s->depth == BODY_DEPTH_MAX)
        return apierr_set(s->e, APIERR_INVALID_JSON, NULL,
                          "invalid JSON at byte %zu: nested deeper than %d levels", offset(s),
                          BODY_DEPTH_MAX);
    int st = count(s, &s->stats->containers, BODY_CONTAINERS_MAX, "objects and arrays");
    if (st) return st;
    s->is_array[s->depth++] = is_array;
    s->p++;
    return ST_OK;
}

static int scan_scalar(struct scan *s) {
    if (s->p >= s->end) return wanted(s, "a value");
    switch (*s->p) {
    case '"': return scan_string(s, false);
    case 't': return scan_word(s, "true");
    case 'f': return scan_word(s, "false");
    case 'n': return scan_word(s, "null");
    default:
        if (*s->p == '-' || isdigit((unsigned char)*s->p)) return scan_number(s);
        return wanted(s, "a value");
    }
}

static int scan_key(struct scan *s) {
    if (s->p >= s->end || *s->p != '"') return wanted(s, "a key in quotes");
    int st = count(s, &s->stats->keys, BODY_KEYS_MAX, "keys");
    if (!st) st = scan_string(s, true);
    if (st) return st;
    skip_space(s);
    if (s->p >= s->end || *s->p != ':') return wanted(s, "':' behind the key");
    s->p++;
    skip_space(s);
    return ST_OK;
}

// Behind a value: closes what ends here. *ret_more: a comma was read and another member follows.
static int scan_behind(struct scan *s, bool *ret_more) {
    *ret_more = false;
    while (s->depth) {
        bool in_array = s->is_array[s->depth - 1];
        skip_space(s);
        if (s->p < s->end && *s->p == ',') {
            s->p++;
            skip_space(s);
            *ret_more = true;
            return ST_OK;
        }
        if (s->p >= s->end || *s->p != (in_array ? ']' : '}'))
            return wanted(s, in_array ? "',' or ']'" : "',' or '}'");
        s->p++;
        s->depth--;
    }
    return ST_OK;
}

// One value and all inside it. Iterative: the depth is the client's choice.
static int scan_value(struct scan *s) {
    bool more = true;
    bool key = false; // the next member needs its key first
    while (more) {
        int st = key ? scan_key(s) : ST_OK;
        if (!st) st = count(s, &s->stats->values, BODY_VALUES_MAX, "values");
        if (st) return st;
        char c = s->p < s->end ? *s->p : '\0';
        if (c == '{' || c == '[') {
            st = open_container(s, c == '[');
            if (st) return st;
            skip_space(s);
            key = c == '{';
            if (s->p >= s->end || *s->p != (key ? '}' : ']')) continue;
            s->p++;
            s->depth--;
        } else if ((st = scan_scalar(s))) {
            return st;
        }
        st = scan_behind(s, &more);
        if (st) return st;
        key = more && !s->is_array[s->depth - 1];
    }
    return ST_OK;
}

static int check_utf8(const char *bytes, size_t len, struct apierr *e) {
    size_t i = utf8_valid(bytes, len);
    if (i == len) return ST_OK;
    return apierr_set(e, APIERR_INVALID_UTF8, NULL,
                      "the body is not valid UTF-8: byte %zu (0x%02x) begins no character", i,
                      (unsigned char)bytes[i]);
}

static int build(const char *text, size_t len, json_t **ret, struct apierr *e) {
    json_error_t why;
    json_t *v = json_loadb(text, len, JSON_ALLOW_NUL | JSON_DECODE_ANY, &why);
    // What the scan lets through, jansson takes; a difference would be our mistake, and still only a refusal.
    if (!v)
        return apierr_set(e, APIERR_INVALID_JSON, NULL, "invalid JSON near byte %d", why.position);
    *ret = v;
    return ST_OK;
}

int body_parse_next(const char *bytes, size_t len, json_t **ret, struct body_stats *stats,
                    struct apierr *e) {
    int st = check_utf8(bytes, len, e);
    if (st) return st;
    struct strbuf out = {0};
    struct scan s = {
        .start = bytes, .p = bytes, .end = bytes + len, .out = &out, .stats = stats, .e = e};
    if (len >= 3 && !memcmp(bytes, "\xef\xbb\xbf", 3)) s.p += 3;
    s.copied = s.p;
    skip_space(&s);
    if (s.p >= s.end || *s.p != '{') {
        st = wanted(&s, "a JSON object");
        goto out;
    }
    st = scan_value(&s);
    if (st) goto out;
    skip_space(&s);
    if (s.p < s.end) {
        st = wanted(&s, "nothing behind the value");
        goto out;
    }
    if (!out.len) {
        st = build(s.copied, (size_t)(s.end - s.copied), ret, e);
        goto out;
    }
    rewrite(&s, s.end, "", 0);
    st = build(out.p, out.len, ret, e);
out:
    strbuf_fini(&out);
    return st;
}

int body_parse(const char *bytes, size_t len, json_t **ret, struct body_stats *ret_stats,
               struct apierr *e) {
    *ret_stats = (struct body_stats){0};
    return body_parse_next(bytes, len, ret, ret_stats, e);
}

bool body_is_text(const json_t *v) {
    return json_is_string(v) && !bigint_digits(v);
}

const char *body_type_name(const json_t *v) {
    if (!v) return "nothing";
    if (bigint_digits(v)) return "an integer";
    switch (json_typeof(v)) {
    case JSON_OBJECT: return "an object";
    case JSON_ARRAY: return "an array";
    case JSON_STRING: return "a string";
    case JSON_INTEGER: return "an integer";
    case JSON_REAL: return "a number";
    case JSON_TRUE:
    case JSON_FALSE: return "a boolean";
    case JSON_NULL: return "null";
    }
    return "something else";
}
