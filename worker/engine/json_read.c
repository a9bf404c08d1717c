/* json_read: see json_read.h. */
#include "worker/engine/json_read.h"

#include <stdarg.h>
#include <string.h>

#include "worker/engine/json_text.h"

void json_read_refuse(struct json_reader *r, enum st st, const char *key, const char *fmt, ...) {
    if (*r->st) return;
    va_list ap;
    va_start(ap, fmt);
    err_setv(r->e, st, fmt, ap);
    va_end(ap);
    err_prefix(r->e, "file '%s': %s%s", r->path, r->prefix, key);
    *r->st = st;
}

// In these files null means "not given".
const json_t *json_read_any(struct json_reader *r, const char *key) {
    const json_t *v = json_object_get(r->obj, key);
    return json_is_null(v) ? NULL : v;
}

uint32_t json_read_u32(struct json_reader *r, const char *key, uint32_t dflt, uint32_t min,
                       uint32_t max) {
    char found[JSON_TEXT_BYTES];
    const json_t *v = json_read_any(r, key);
    if (!v) return dflt;
    if (!json_is_integer(v) || json_integer_value(v) < min || json_integer_value(v) > max) {
        json_read_refuse(r, ST_CORRUPT, key, "wanted a whole number from %u to %u, found %s", min,
                         max, json_text(found, v));
        return min;
    }
    return (uint32_t)json_integer_value(v);
}

uint32_t json_read_needed_u32(struct json_reader *r, const char *key, uint32_t min, uint32_t max) {
    if (json_read_any(r, key)) return json_read_u32(r, key, min, min, max);
    json_read_refuse(r, ST_CORRUPT, key, "wanted a whole number from %u to %u, found nothing", min,
                     max);
    return min;
}

double json_read_real(struct json_reader *r, const char *key, double dflt, double min, double max) {
    char found[JSON_TEXT_BYTES];
    const json_t *v = json_read_any(r, key);
    if (!v) return dflt;
    double x = json_number_value(v);
    if (!json_is_number(v) || !(x >= min && x <= max)) {
        json_read_refuse(r, ST_CORRUPT, key, "wanted a number from %g to %g, found %s", min, max,
                         json_text(found, v));
        return dflt;
    }
    return x;
}

bool json_read_bool(struct json_reader *r, const char *key, bool dflt) {
    char found[JSON_TEXT_BYTES];
    const json_t *v = json_read_any(r, key);
    if (!v) return dflt;
    if (!json_is_boolean(v))
        json_read_refuse(r, ST_CORRUPT, key, "wanted true or false, found %s", json_text(found, v));
    return json_is_true(v);
}

const char *json_read_word(struct json_reader *r, const char *key, const char *dflt,
                           const char *words) {
    char found[JSON_TEXT_BYTES];
    const json_t *v = json_read_any(r, key);
    if (!v) return dflt;
    const char *s = json_is_string(v) ? json_string_value(v) : "";
    size_t n = strlen(s);
    for (const char *w = words; n && w; w = strchr(w, '|')) {
        w += *w == '|';
        if (strncmp(w, s, n) == 0 && (w[n] == '|' || !w[n])) return s;
    }
    json_read_refuse(r, ST_UNSUPPORTED, key, "wanted %s, found %s", words, json_text(found, v));
    return dflt;
}

const json_t *json_read_object(struct json_reader *r, const char *key) {
    char found[JSON_TEXT_BYTES];
    const json_t *v = json_read_any(r, key);
    if (v && !json_is_object(v))
        json_read_refuse(r, ST_CORRUPT, key, "wanted an object, found %s", json_text(found, v));
    return json_is_object(v) ? v : NULL;
}
