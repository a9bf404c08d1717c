/* apierr: see apierr.h. No state. */
#include "router/apierr.h"
#include "common/err.h"
#include "common/strbuf.h"
#include "router/jsontext.h"

#include <assert.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static const struct {
    int status;
    const char *name, *type;
    bool no_retry;
} codes[APIERR_CODE_COUNT] = {
    [APIERR_NONE] = {200, "", "", false},
    [APIERR_INVALID_JSON] = {400, "invalid_json", "invalid_request_error", false},
    [APIERR_INVALID_UTF8] = {400, "invalid_utf8", "invalid_request_error", false},
    [APIERR_INVALID_TYPE] = {400, "invalid_type", "invalid_request_error", false},
    [APIERR_INVALID_VALUE] = {400, "invalid_value", "invalid_request_error", false},
    [APIERR_MISSING_PARAMETER] = {400, "missing_required_parameter", "invalid_request_error",
                                  false},
    [APIERR_UNSUPPORTED_PARAMETER] = {400, "unsupported_parameter", "invalid_request_error", false},
    [APIERR_CONTEXT_LENGTH] = {400, "context_length_exceeded", "invalid_request_error", false},
    [APIERR_TEMPLATE] = {400, "template_error", "invalid_request_error", false},
    [APIERR_BAD_REQUEST] = {400, "invalid_value", "invalid_request_error", false},
    [APIERR_MISSING_KEY] = {401, "missing_api_key", "authentication_error", false},
    [APIERR_INVALID_KEY] = {401, "invalid_api_key", "authentication_error", false},
    [APIERR_FORBIDDEN] = {403, "forbidden", "permission_error", false},
    [APIERR_MODEL_NOT_FOUND] = {404, "model_not_found", "invalid_request_error", false},
    [APIERR_UNKNOWN_URL] = {404, "unknown_url", "invalid_request_error", false},
    [APIERR_NOT_FOUND] = {404, "not_found", "invalid_request_error", false},
    [APIERR_METHOD_NOT_ALLOWED] = {405, "method_not_allowed", "invalid_request_error", false},
    [APIERR_BODY_TIMEOUT] = {408, "body_timeout", "invalid_request_error", false},
    [APIERR_CONFLICT] = {409, "conflict", "invalid_request_error", false},
    [APIERR_BODY_TOO_LARGE] = {413, "body_too_large", "invalid_request_error", false},
    [APIERR_URI_TOO_LONG] = {414, "uri_too_long", "invalid_request_error", false},
    [APIERR_UNSUPPORTED_MEDIA_TYPE] = {415, "unsupported_media_type", "invalid_request_error",
                                       false},
    [APIERR_HEADERS_TOO_LARGE] = {431, "headers_too_large", "invalid_request_error", false},
    [APIERR_QUEUE_FULL] = {429, "queue_full", "rate_limit_error", false},
    [APIERR_QUEUE_TIMEOUT] = {429, "queue_timeout", "rate_limit_error", false},
    [APIERR_CLIENT_CLOSED] = {499, "client_closed", "", false},
    [APIERR_INTERNAL] = {500, "internal_error", "server_error", false},
    [APIERR_FAILED_REPEATEDLY] = {500, "request_failed_repeatedly", "server_error", true},
    [APIERR_CANCELLED_BY_OPERATOR] = {500, "cancelled_by_operator", "server_error", true},
    [APIERR_NO_READY_WORKER] = {503, "no_ready_worker", "service_unavailable", false},
    [APIERR_DRAINING] = {503, "draining", "service_unavailable", false},
    [APIERR_OVERLOADED] = {503, "overloaded", "service_unavailable", false},
    [APIERR_WORKER_LOST] = {503, "worker_lost", "server_error", false},
    [APIERR_DEADLINE] = {504, "deadline_exceeded", "server_error", true},
};

int apierr_status(enum apierr_code code) {
    assert((unsigned)code < APIERR_CODE_COUNT);
    return codes[code].status;
}

const char *apierr_name(enum apierr_code code) {
    assert((unsigned)code < APIERR_CODE_COUNT);
    return codes[code].name;
}

const char *apierr_type(enum apierr_code code) {
    assert((unsigned)code < APIERR_CODE_COUNT);
    return codes[code].type;
}

bool apierr_no_retry(enum apierr_code code) {
    assert((unsigned)code < APIERR_CODE_COUNT);
    return codes[code].no_retry;
}

// A text that was cut by its buffer must not end inside a character.
static void trim_cut(char *s, size_t cap) {
    size_t n = strlen(s);
    if (n < cap - 1) return;
    while (n > 0 && ((unsigned char)s[n - 1] & 0xc0) == 0x80) n--;
    if (n > 0 && (unsigned char)s[n - 1] >= 0xc0) n--;
    s[n] = '\0';
}

int apierr_set(struct apierr *e, enum apierr_code code, const char *param, const char *fmt, ...) {
    *e = (struct apierr){.code = code};
    snprintf(e->param, sizeof e->param, "%s", param ? param : "");
    trim_cut(e->param, sizeof e->param);
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(e->message, sizeof e->message, fmt, ap);
    va_end(ap);
    trim_cut(e->message, sizeof e->message);
    return ST_INVAL;
}

const char *apierr_clip(char ret[APIERR_CLIP_BYTES], const char *s, size_t len) {
    size_t n = 0;
    size_t chars = 0;
    size_t i = 0;
    for (; i < len; i++) {
        unsigned char c = (unsigned char)s[i];
        bool starts = (c & 0xc0) != 0x80;
        if (starts && chars++ == APIERR_CLIP_CHARS) break;
        // Input may be no UTF-8 at all: a run of continuation bytes is no reason to grow.
        if (n == APIERR_CLIP_CHARS * 4) break;
        ret[n++] = c < 0x20 || c == 0x7f ? '?' : (char)c;
    }
    if (i < len) n += (size_t)snprintf(ret + n, 4, "...");
    ret[n] = '\0';
    return ret;
}

static void add_or_null(struct strbuf *out, const char *s) {
    if (*s)
        jsontext_string(out, s, strlen(s));
    else
        strbuf_add_str(out, "null");
}

void apierr_body(const struct apierr *e, const char *request_id, struct strbuf *out) {
    strbuf_add_str(out, "{\"error\":{\"message\":");
    jsontext_string(out, e->message, strlen(e->message));
    strbuf_add_str(out, ",\"type\":");
    jsontext_string(out, apierr_type(e->code), strlen(apierr_type(e->code)));
    strbuf_add_str(out, ",\"param\":");
    add_or_null(out, e->param);
    strbuf_add_str(out, ",\"code\":");
    add_or_null(out, apierr_name(e->code));
    strbuf_add_str(out, "},\"request_id\":");
    jsontext_string(out, request_id, strlen(request_id));
    strbuf_add_str(out, "}");
}
