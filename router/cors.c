/* cors: see cors.h. */
#include "router/cors.h"
#include "common/err.h"

#include <string.h>

// scheme://host[:port], nothing behind it: what browsers send.
static bool is_origin(const char *s, size_t n) {
    const char *sep = memmem(s, n, "://", 3);
    if (!sep || sep == s || sep + 3 == s + n) return false;
    for (const char *p = sep + 3; p < s + n; p++)
        if (*p == '/' || *p == '?' || *p == '#' || *p == '@' || (unsigned char)*p <= ' ')
            return false;
    return true;
}

int cors_init(struct cors *c, const char *text, bool has_keys, struct err *e) {
    *c = (struct cors){0};
    if (!*text) {
        c->any = has_keys;
        return ST_OK;
    }
    if (!strcmp(text, "none")) return ST_OK;
    if (!strcmp(text, "*")) {
        c->any = true;
        return ST_OK;
    }
    for (const char *at = text; *at;) {
        size_t n = strcspn(at, ",");
        if (!is_origin(at, n))
            return err_set(e, ST_INVAL,
                           "api.cors_origins: wanted none, * or origins like https://host[:port] "
                           "split by commas, found '%.*s'",
                           (int)(n < 100 ? n : 100), at);
        at += n + (at[n] == ',');
    }
    c->list = text;
    return ST_OK;
}

bool cors_allows(const struct cors *c, const char *origin, size_t len) {
    if (c->any) return true;
    for (const char *at = c->list; at && *at;) {
        size_t n = strcspn(at, ",");
        if (n == len && !memcmp(at, origin, n)) return true;
        at += n + (at[n] == ',');
    }
    return false;
}
