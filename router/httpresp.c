/* httpresp: see httpresp.h. */
#include "router/httpresp.h"
#include "common/err.h"
#include "common/num.h"

#include <ctype.h>
#include <string.h>
#include <strings.h>

void httpresp_fini(struct httpresp *r) {
    strbuf_fini(&r->line);
}

/* ---- the head ---- */

static int read_status_line(struct httpresp *r, const char *line, struct err *e) {
    // "HTTP/1.1 200 OK"; the reason may be missing
    bool ok = strlen(line) >= 12 && !strncmp(line, "HTTP/1.", 7) && isdigit((unsigned char)line[7]);
    for (int i = 9; i < 12 && ok; i++) ok = isdigit((unsigned char)line[i]);
    if (!ok || line[8] != ' ' || (line[12] && line[12] != ' ') || line[9] == '0')
        return err_set(e, ST_CORRUPT, "wanted the status line of an HTTP/1 reply, found '%.60s'",
                       line);
    r->status = (line[9] - '0') * 100 + (line[10] - '0') * 10 + (line[11] - '0');
    r->state = HTTPRESP_HEADERS;
    r->chunked = r->has_length = false;
    return ST_OK;
}

static int read_length(struct httpresp *r, const char *value, struct err *e) {
    uint64_t n = 0;
    const char *p = value;
    for (; isdigit((unsigned char)*p) && n < UINT64_MAX / 16; p++)
        n = n * 10 + (uint64_t)(*p - '0');
    if (p == value || *p || (r->has_length && r->left != n))
        return err_set(e, ST_CORRUPT, "content-length: wanted one whole number, found '%.60s'",
                       value);
    r->left = n;
    r->has_length = true;
    return ST_OK;
}

static int read_header(struct httpresp *r, char *line, struct err *e) {
    char *colon = strchr(line, ':');
    if (!colon || colon == line)
        return err_set(e, ST_CORRUPT, "wanted a header line, found '%.60s'", line);
    *colon = '\0';
    char *value = colon + 1 + strspn(colon + 1, " \t");
    size_t n = strlen(value);
    while (n && (value[n - 1] == ' ' || value[n - 1] == '\t')) value[--n] = '\0';
    if (!strcasecmp(line, "content-length")) return read_length(r, value, e);
    if (strcasecmp(line, "transfer-encoding")) return ST_OK;
    if (strcasecmp(value, "chunked"))
        return err_set(e, ST_CORRUPT, "transfer-encoding: wanted chunked, found '%.60s'", value);
    r->chunked = true;
    return ST_OK;
}

// The blank line behind the headers: how the body comes (RFC 9112, section 6.3).
static void end_head(struct httpresp *r) {
    r->head_bytes = 0;
    if (r->status < 200) {
        r->state = HTTPRESP_STATUS_LINE;
        return;
    }
    if (r->status == 204 || r->status == 304 || (!r->chunked && r->has_length && !r->left))
        r->state = HTTPRESP_DONE;
    else if (r->chunked)
        r->state = HTTPRESP_CHUNK_SIZE;
    else
        r->state = r->has_length ? HTTPRESP_BODY_LENGTH : HTTPRESP_BODY_CLOSE;
    if (r->on_head) r->on_head(r->arg, r->status);
}

/* ---- chunks ---- */

static int read_chunk_size(struct httpresp *r, const char *line, struct err *e) {
    size_t n = strspn(line, "0123456789abcdefABCDEF");
    const char *rest = line + n + strspn(line + n, " \t");
    if (n == 0 || n > 15 || (*rest && *rest != ';'))
        return err_set(e, ST_CORRUPT, "wanted the size of a chunk, found '%.60s'", line);
    r->left = 0;
    for (size_t i = 0; i < n; i++) {
        unsigned char c = (unsigned char)line[i];
        r->left = r->left * 16 + (uint64_t)(isdigit(c) ? c - '0' : tolower(c) - 'a' + 10);
    }
    r->head_bytes = 0;
    r->state = r->left ? HTTPRESP_CHUNK_DATA : HTTPRESP_TRAILERS;
    return ST_OK;
}

/* ---- lines and bytes ---- */

// A whole line, its end cut off, in a state that reads lines.
static int take_line(struct httpresp *r, char *line, struct err *e) {
    switch (r->state) {
    case HTTPRESP_STATUS_LINE: return read_status_line(r, line, e);
    case HTTPRESP_HEADERS:
        if (*line) return read_header(r, line, e);
        end_head(r);
        return ST_OK;
    case HTTPRESP_CHUNK_SIZE: return read_chunk_size(r, line, e);
    case HTTPRESP_CHUNK_END:
        if (*line) return err_set(e, ST_CORRUPT, "wanted the end of a chunk, found '%.60s'", line);
        r->state = HTTPRESP_CHUNK_SIZE;
        return ST_OK;
    default: // trailers
        if (!*line) r->state = HTTPRESP_DONE;
        return ST_OK;
    }
}

// Collects one line from p; *ret_used bytes were taken.
static int feed_line(struct httpresp *r, const char *p, size_t len, size_t *ret_used,
                     struct err *e) {
    const char *lf = memchr(p, '\n', len);
    size_t n = lf ? (size_t)(lf - p) : len;
    r->head_bytes += n + 1;
    if (r->head_bytes > HTTPRESP_HEAD_BYTES_MAX)
        return err_set(e, ST_CORRUPT, "the reply's head is over %d bytes", HTTPRESP_HEAD_BYTES_MAX);
    strbuf_add(&r->line, p, n);
    *ret_used = lf ? n + 1 : n;
    if (!lf) return ST_OK;
    if (r->line.len && r->line.p[r->line.len - 1] == '\r') r->line.p[--r->line.len] = '\0';
    if (r->line.len && memchr(r->line.p, '\0', r->line.len))
        return err_set(e, ST_CORRUPT, "the reply's head has a NUL byte");
    char empty[1] = "";
    int st = take_line(r, r->line.len ? r->line.p : empty, e);
    strbuf_reset(&r->line);
    return st;
}

static void feed_bytes(struct httpresp *r, const char *p, size_t len, size_t *ret_used) {
    bool counted = r->state != HTTPRESP_BODY_CLOSE;
    size_t n = counted ? (size_t)min_u64(r->left, len) : len;
    if (r->on_body && n) r->on_body(r->arg, p, n);
    *ret_used = n;
    if (!counted) return;
    r->left -= n;
    if (r->left) return;
    r->state = r->state == HTTPRESP_CHUNK_DATA ? HTTPRESP_CHUNK_END : HTTPRESP_DONE;
}

int httpresp_feed(struct httpresp *r, const char *p, size_t len, struct err *e) {
    while (len) {
        size_t used = 0;
        int st = ST_OK;
        if (r->state == HTTPRESP_DONE)
            return err_set(e, ST_CORRUPT, "%zu bytes behind the end of the reply", len);
        if (r->state == HTTPRESP_BODY_LENGTH || r->state == HTTPRESP_BODY_CLOSE ||
            r->state == HTTPRESP_CHUNK_DATA)
            feed_bytes(r, p, len, &used);
        else
            st = feed_line(r, p, len, &used, e);
        if (st) return st;
        p += used;
        len -= used;
    }
    return ST_OK;
}

int httpresp_close(struct httpresp *r, struct err *e) {
    if (r->state == HTTPRESP_BODY_CLOSE) r->state = HTTPRESP_DONE;
    if (r->state == HTTPRESP_DONE) return ST_OK;
    bool nothing = r->state == HTTPRESP_STATUS_LINE && !r->line.len;
    return err_set(e, ST_CLOSED,
                   nothing ? "the connection ended before a reply came"
                           : "the connection ended within the reply");
}
