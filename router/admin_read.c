/* admin_read: what an administrative call says: body and query. See admin_int.h. Ops thread. */
#include "common/err.h"
#include "router/admin_int.h"
#include "router/body.h"
#include "router/http.h"

#include <string.h>

static int read_seconds(const json_t *body, const char *key, double *ret, struct apierr *e) {
    const json_t *v = json_object_get(body, key);
    if (!v || json_is_null(v)) return ST_OK;
    double x = json_number_value(v);
    if (!json_is_number(v) || !(x >= 0) || x > 7 * 86400)
        return apierr_set(e, APIERR_INVALID_VALUE, key,
                          "%s must be a number of 0 to 604800, got %s", key,
                          json_is_number(v) ? "one outside" : body_type_name(v));
    *ret = x;
    return ST_OK;
}

static int read_streams(const json_t *body, enum control_streams *ret, struct apierr *e) {
    const json_t *v = json_object_get(body, "streams");
    char clip[APIERR_CLIP_BYTES];
    if (!v || json_is_null(v)) return ST_OK;
    for (int i = 0; json_is_string(v) && i < CONTROL_STREAMS_COUNT; i++) {
        if (strcmp(json_string_value(v), control_streams_name((enum control_streams)i))) continue;
        *ret = (enum control_streams)i;
        return ST_OK;
    }
    const char *found = json_is_string(v) ? json_string_value(v) : body_type_name(v);
    return apierr_set(e, APIERR_INVALID_VALUE, "streams",
                      "streams must be finish, move or cancel, got %s",
                      apierr_clip(clip, found, strlen(found)));
}

static int read_force(const json_t *body, bool *ret, struct apierr *e) {
    const json_t *v = json_object_get(body, "force");
    if (!v || json_is_null(v)) return ST_OK;
    if (!json_is_boolean(v))
        return apierr_set(e, APIERR_INVALID_TYPE, "force", "force must be a boolean, got %s",
                          body_type_name(v));
    *ret = json_is_true(v);
    return ST_OK;
}

int admin_check_keys(const json_t *body, const char *const *known, struct apierr *e) {
    const char *key;
    json_t *v;
    char clip[APIERR_CLIP_BYTES];
    json_object_foreach((json_t *)(uintptr_t)body, key, v) {
        size_t i = 0;
        while (known[i] && strcmp(known[i], key)) i++;
        if (!known[i])
            return apierr_set(e, APIERR_INVALID_VALUE, apierr_clip(clip, key, strlen(key)),
                              "%s is no field of this call", clip);
    }
    return ST_OK;
}

int admin_parse_body(const struct http_call *c, json_t **ret, struct apierr *e) {
    struct body_stats stats;
    *ret = NULL;
    if (!c->req->entity.len) return ST_OK;
    int st = http_check_json_type(c, e);
    return st ? st : body_parse(c->req->entity.base, c->req->entity.len, ret, &stats, e);
}

int admin_read_how(const struct http_call *c, struct control_how *how, struct apierr *e) {
    static const char *const known[] = {"timeout_s", "start_s", "streams", "force", NULL};
    json_t *body;
    int st = admin_parse_body(c, &body, e);
    if (!st && body) {
        st = admin_check_keys(body, known, e);
        if (!st) st = read_seconds(body, "timeout_s", &how->timeout_s, e);
        if (!st) st = read_seconds(body, "start_s", &how->start_s, e);
        if (!st) st = read_streams(body, &how->streams, e);
        if (!st) st = read_force(body, &how->force, e);
    }
    json_decref(body);
    return st;
}

bool admin_take_number(h2o_iovec_t text, uint32_t max, uint32_t *ret) {
    uint64_t n = 0;
    if (text.len < 1 || text.len > 9) return false;
    for (size_t i = 0; i < text.len; i++) {
        if (text.base[i] < '0' || text.base[i] > '9') return false;
        n = n * 10 + (uint64_t)(text.base[i] - '0');
    }
    *ret = (uint32_t)n;
    return n <= max;
}

int admin_query_number(const struct http_call *c, const char *key, uint32_t max, uint32_t *ret,
                       struct apierr *e) {
    h2o_iovec_t v = http_query(c, key);
    char clip[APIERR_CLIP_BYTES];
    if (!v.base || admin_take_number(v, max, ret)) return ST_OK;
    return apierr_set(e, APIERR_INVALID_VALUE, key,
                      "%s must be a whole number of 0 to %u, got '%s'", key, max,
                      apierr_clip(clip, v.base, v.len));
}
