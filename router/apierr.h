/* apierr: one refusal or failure as a client sees it: status, code, type, parameter and message (docs/api.md).
 *
 * The table of codes is here and nowhere else. A message names the field and the limit and never echoes more than
 * APIERR_CLIP_CHARS characters of input, no path, address or stack of ours. Pure, any thread. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct strbuf;

enum apierr_code {
    APIERR_NONE = 0,
    APIERR_INVALID_JSON,
    APIERR_INVALID_UTF8,
    APIERR_INVALID_TYPE,
    APIERR_INVALID_VALUE,
    APIERR_MISSING_PARAMETER,
    APIERR_UNSUPPORTED_PARAMETER,
    APIERR_CONTEXT_LENGTH,
    APIERR_TEMPLATE,
    APIERR_BAD_REQUEST, // a head that breaks the protocol's own rules
    APIERR_MISSING_KEY,
    APIERR_INVALID_KEY,
    APIERR_FORBIDDEN,
    APIERR_MODEL_NOT_FOUND,
    APIERR_UNKNOWN_URL,
    APIERR_NOT_FOUND,
    APIERR_METHOD_NOT_ALLOWED,
    APIERR_BODY_TIMEOUT,
    APIERR_CONFLICT,
    APIERR_BODY_TOO_LARGE,
    APIERR_URI_TOO_LONG,
    APIERR_UNSUPPORTED_MEDIA_TYPE,
    APIERR_HEADERS_TOO_LARGE,
    APIERR_QUEUE_FULL,
    APIERR_QUEUE_TIMEOUT,
    APIERR_CLIENT_CLOSED, // for the log only
    APIERR_INTERNAL,
    APIERR_FAILED_REPEATEDLY, // it was live at too many deaths of workers
    APIERR_CANCELLED_BY_OPERATOR,
    APIERR_NO_READY_WORKER,
    APIERR_DRAINING,
    APIERR_OVERLOADED,
    APIERR_WORKER_LOST,
    APIERR_DEADLINE,
    APIERR_CODE_COUNT,
};

enum {
    APIERR_MESSAGE_BYTES = 1024,
    APIERR_PARAM_BYTES = 256,
    APIERR_CLIP_CHARS = 64,
    APIERR_CLIP_BYTES = APIERR_CLIP_CHARS * 4 + 4, // four bytes a character, "..." and the NUL
};

struct apierr {
    enum apierr_code code;
    uint32_t retry_after_ms;        // 0: no Retry-After
    char param[APIERR_PARAM_BYTES]; // "": null
    char message[APIERR_MESSAGE_BYTES];
};

// Fills e and returns ST_INVAL, so that "return apierr_set(...)" reads well. param NULL: none.
int apierr_set(struct apierr *e, enum apierr_code code, const char *param, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));

int apierr_status(enum apierr_code code);
const char *apierr_name(enum apierr_code code); // "invalid_json", ...; "" for APIERR_NONE
const char *apierr_type(enum apierr_code code);
// A retry cannot help, though the status says so: x-should-retry: false.
bool apierr_no_retry(enum apierr_code code);

// Input as a message may show it: at most APIERR_CLIP_CHARS characters, controls as '?'. Returns ret.
const char *apierr_clip(char ret[APIERR_CLIP_BYTES], const char *s, size_t len);

// Appends {"error":{...},"request_id":".."}.
void apierr_body(const struct apierr *e, const char *request_id, struct strbuf *out);
