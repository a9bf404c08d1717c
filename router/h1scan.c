/* h1scan: see h1scan.h. RFC 9112: 5 (fields), 6 (message body), 7.1 (chunks). */
#include "router/h1scan.h"
#include "common/err.h"
#include "common/planted.h"
#include "router/apierr.h"
#include "router/listen.h"

#include <inttypes.h>
#include <string.h>
#include <strings.h>

enum {
    LENGTH_DIGITS_MAX = 18,
    CHUNK_DIGITS_MAX = 15,
    CHUNK_LINE_BYTES_MAX = 256,
    HTTP2_MARK_BYTES = 12, // "PRI * HTTP/2"
};

/* ---- a head ---- */

struct facts {
    unsigned hosts, lengths, codings;
    bool folded, lengths_differ, other_coding;
    const char *length;
    size_t length_len;
};

static bool is_name(const char *line, size_t len, const char *name) {
    return len == strlen(name) && !strncasecmp(line, name, len);
}

static void note_field(struct facts *f, const char *line, size_t len) {
    const char *colon = memchr(line, ':', len);
    if (line[0] == ' ' || line[0] == '\t') f->folded = true;
    if (!colon) return;
    size_t name_len = (size_t)(colon - line);
    const char *v = colon + 1;
    size_t v_len = len - name_len - 1;
    while (v_len && (*v == ' ' || *v == '\t')) v++, v_len--;
    while (v_len && (v[v_len - 1] == ' ' || v[v_len - 1] == '\t')) v_len--;
    if (is_name(line, name_len, "host")) f->hosts++;
    if (is_name(line, name_len, "transfer-encoding")) {
        f->codings++;
        if (v_len != 7 || strncasecmp(v, "chunked", 7)) f->other_coding = true;
    }
    if (is_name(line, name_len, "content-length")) {
        bool same = f->lengths && v_len == f->length_len && !memcmp(v, f->length, v_len);
        if (f->lengths++ && !same) f->lengths_differ = true;
        f->length = v;
        f->length_len = v_len;
    }
}

static bool read_length(const struct facts *f, uint64_t *ret) {
    uint64_t n = 0;
    if (!f->lengths) return true;
    if (f->length_len < 1 || f->length_len > LENGTH_DIGITS_MAX) return false;
    for (size_t i = 0; i < f->length_len; i++) {
        if (f->length[i] < '0' || f->length[i] > '9') return false;
        n = n * 10 + (uint64_t)(f->length[i] - '0');
    }
    *ret = n;
    return true;
}

int h1scan_head(const char *head, size_t len, bool is_http_1_1, struct h1scan_framing *ret,
                struct apierr *e) {
    struct facts f = {0};
    bool first = true; // the request line
    for (size_t i = 0; i < len;) {
        const char *nl = memchr(head + i, '\n', len - i);
        size_t n = nl ? (size_t)(nl - head) - i : len - i;
        size_t text = n && head[i + n - 1] == '\r' ? n - 1 : n;
        if (text == 0) break;
        if (!first) note_field(&f, head + i, text);
        first = false;
        i += n + 1;
    }
    *ret = (struct h1scan_framing){.chunked = f.codings > 0};
    if (f.lengths == 1) {
        ret->length_at = (size_t)(f.length - head);
        ret->length_len = f.length_len;
    }
    const char *why = f.folded                      ? "a header field must not be folded"
                      : f.hosts > 1                 ? "Host must be given once"
                      : is_http_1_1 && f.hosts == 0 ? "Host is required"
                      : f.codings && f.lengths
                          ? "Transfer-Encoding and Content-Length exclude each other"
                      : f.lengths_differ                ? "Content-Length must be given once"
                      : f.codings > 1 || f.other_coding ? "the only transfer coding is chunked"
                      : f.codings && !is_http_1_1       ? "Transfer-Encoding is of HTTP/1.1"
                      : !read_length(&f, &ret->length)  ? "Content-Length must be a whole number"
                                                        : NULL;
    return why ? apierr_set(e, APIERR_BAD_REQUEST, NULL, "%s", why) : ST_OK;
}

/* ---- the bytes ---- */

static void expect(struct h1scan *s, enum h1scan_state state) {
    s->state = state;
    s->seen = s->line = 0;
    s->digits = s->was_cr = false;
}

static int refuse(struct apierr *e, const char *why) {
    return apierr_set(e, APIERR_BAD_REQUEST, NULL, "%s", why);
}

static bool ends_in_1_1(const char *head, size_t len) {
    const char *nl = memchr(head, '\n', len);
    size_t n = nl ? (size_t)(nl - head) : 0;
    if (n && head[n - 1] == '\r') n--;
    return n >= 8 && !memcmp(head + n - 8, "HTTP/1.1", 8);
}

// The head's last byte has come.
static int end_head(struct h1scan *s, const char *head, size_t len, size_t body_bytes_max,
                    struct apierr *e) {
    struct h1scan_framing f;
    if (len + PLANTED >= HTTP2_MARK_BYTES && !memcmp(head, "PRI * HTTP/2", HTTP2_MARK_BYTES)) {
        if (s->begun) return refuse(e, "HTTP/2 must begin with the connection");
        s->state = H1SCAN_HTTP2;
        return ST_OK;
    }
    s->begun = true;
    int st = h1scan_head(head, len, ends_in_1_1(head, len), &f, e);
    if (st) return st;
    if (f.length > body_bytes_max && f.length - body_bytes_max > HTTP_BODY_SLACK_BYTES) {
        s->body_refused = f.length_len > 0;
        s->length_at = f.length_at;
        s->length_len = f.length_len;
        return apierr_set(e, APIERR_BODY_TOO_LARGE, NULL,
                          "the body must have at most %zu bytes, got %" PRIu64, body_bytes_max,
                          f.length);
    }
    expect(s, f.chunked ? H1SCAN_CHUNK_SIZE : f.length ? H1SCAN_BODY : H1SCAN_HEAD);
    s->left = f.length;
    return ST_OK;
}

// at: the byte, in the input; the seen bytes before it are the head's.
static int take_head(struct h1scan *s, const char *at, const struct http_limits *limits,
                     struct apierr *e) {
    size_t bytes_max = limits->head_bytes_max;
    char c = *at;
    bool blank = c == '\n' && s->line == 0;
    if (s->was_cr && c != '\n') return refuse(e, "CR without LF in a head");
    s->was_cr = c == '\r';
    s->seen++;
    if (c == '\n' && !blank)
        s->line = 0;
    else if (c != '\r' && c != '\n')
        s->line++;
    if (s->seen > bytes_max)
        return apierr_set(e, APIERR_HEADERS_TOO_LARGE, NULL,
                          "the request's head must have at most %zu bytes", bytes_max);
    if (!blank) return ST_OK;
    if (s->seen <= 2) { // an empty line before a request: RFC 9112, 2.2
        expect(s, H1SCAN_HEAD);
        return ST_OK;
    }
    return end_head(s, at + 1 - s->seen, s->seen, limits->body_bytes_max, e);
}

static int hex_of(char c) {
    if (c >= '0' && c <= '9') return c - '0';
    char low = c | 0x20;
    return low >= 'a' && low <= 'f' ? low - 'a' + 10 : -1;
}

static int take_chunk_line(struct h1scan *s, char c, struct apierr *e) {
    int digit = s->state == H1SCAN_CHUNK_SIZE ? hex_of(c) : -1;
    if (++s->seen > CHUNK_LINE_BYTES_MAX) return refuse(e, "a chunk's line is too long");
    if (digit >= 0) {
        if (s->seen > CHUNK_DIGITS_MAX) return refuse(e, "a chunk is too large");
        s->left = (s->digits ? s->left * 16 : 0) + (uint64_t)digit;
        s->digits = true;
        return ST_OK;
    }
    if (!s->digits) return refuse(e, "a chunk must begin with its size");
    if (c == '\r')
        s->state = H1SCAN_CHUNK_SIZE_LF;
    else if (s->state == H1SCAN_CHUNK_EXT)
        return (unsigned char)c >= ' ' || c == '\t' ? ST_OK : refuse(e, "a chunk's extension");
    else if (c == ';')
        s->state = H1SCAN_CHUNK_EXT;
    else if (c == ' ' || c == '\t')
        s->state = H1SCAN_CHUNK_SPACE;
    else
        return refuse(e, "a chunk's size must be hex digits");
    return ST_OK;
}

static int take_trailer(struct h1scan *s, char c, size_t bytes_max, struct apierr *e) {
    if (++s->seen > bytes_max)
        return apierr_set(e, APIERR_HEADERS_TOO_LARGE, NULL,
                          "the trailers must have at most %zu bytes", bytes_max);
    if (s->state == H1SCAN_TRAILER) {
        if (c == '\n') return refuse(e, "LF without CR in the trailers");
        if (c == '\r')
            s->state = H1SCAN_TRAILER_LF;
        else
            s->line++;
        return ST_OK;
    }
    if (c != '\n') return refuse(e, "CR without LF in the trailers");
    if (s->line == 0)
        expect(s, H1SCAN_HEAD);
    else
        s->state = H1SCAN_TRAILER;
    s->line = 0;
    return ST_OK;
}

static int take_byte(struct h1scan *s, const char *at, const struct http_limits *limits,
                     struct apierr *e) {
    switch (s->state) {
    case H1SCAN_HEAD: return take_head(s, at, limits, e);
    case H1SCAN_CHUNK_SIZE:
    case H1SCAN_CHUNK_SPACE:
    case H1SCAN_CHUNK_EXT: return take_chunk_line(s, *at, e);
    case H1SCAN_CHUNK_SIZE_LF:
        if (*at != '\n') return refuse(e, "CR without LF behind a chunk's size");
        expect(s, s->left ? H1SCAN_CHUNK_DATA : H1SCAN_TRAILER);
        return ST_OK;
    case H1SCAN_CHUNK_CR:
        if (*at != '\r') return refuse(e, "a chunk must end in CR LF");
        s->state = H1SCAN_CHUNK_LF;
        return ST_OK;
    case H1SCAN_CHUNK_LF:
        if (*at != '\n') return refuse(e, "a chunk must end in CR LF");
        expect(s, H1SCAN_CHUNK_SIZE);
        return ST_OK;
    default: return take_trailer(s, *at, limits->head_bytes_max, e);
    }
}

int h1scan_take(struct h1scan *s, const char *input, size_t len, size_t fresh,
                const struct http_limits *limits, size_t *ret_good, struct apierr *e) {
    size_t i = len - fresh;
    *ret_good = fresh;
    while (i < len && s->state != H1SCAN_HTTP2) {
        if (s->state == H1SCAN_BODY || s->state == H1SCAN_CHUNK_DATA) {
            size_t n = s->left < len - i ? (size_t)s->left : len - i;
            i += n;
            s->left -= n;
            if (!s->left) expect(s, s->state == H1SCAN_BODY ? H1SCAN_HEAD : H1SCAN_CHUNK_CR);
            continue;
        }
        enum h1scan_state was = s->state;
        if (take_byte(s, input + i, limits, e)) {
            s->head_refused = was == H1SCAN_HEAD;
            s->state = H1SCAN_BAD;
            *ret_good = i - (len - fresh);
            return ST_INVAL;
        }
        i++;
    }
    return ST_OK;
}
