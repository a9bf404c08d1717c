/* bench_server: see bench_server.h. */
#include "router/bench_server.h"
#include "common/err.h"
#include "common/strbuf.h"
#include "router/bench_ask.h"
#include "router/httpc.h"

#include <jansson.h>
#include <stdio.h>
#include <string.h>

// *ret is NULL when the server has no such page.
static int get(const struct bench_target *t, const char *path, json_t **ret, struct err *e) {
    struct httpc_request q = {
        .method = "GET", .path = path, .key = t->key, .stall_ms = t->stall_ms};
    struct strbuf body = {0};
    int status = 0;
    int st = httpc_fetch(t->address, &q, &status, &body, e);
    if (!st && status != 200 && status != 404)
        st = err_set(e, ST_IO, "%.100s%s: status %d: %.200s", t->address->text, path, status,
                     strbuf_str(&body));
    if (!st) *ret = status == 200 ? json_loadb(strbuf_str(&body), body.len, 0, NULL) : NULL;
    strbuf_fini(&body);
    return st;
}

// An array of texts as one text; several (workers that differ) are told apart by commas.
static void join(char *to, size_t bytes, const json_t *list) {
    size_t used = 0;
    *to = '\0';
    for (size_t i = 0; i < json_array_size(list); i++) {
        const char *s = json_string_value(json_array_get(list, i));
        if (!s || used + strlen(s) + 2 > bytes) continue;
        used += (size_t)snprintf(to + used, bytes - used, "%s%s", used ? "," : "", s);
    }
}

static void take_version(struct bench_receipt *r, const json_t *o) {
    const char *version = json_string_value(json_object_get(o, "version"));
    const char *commit = json_string_value(json_object_get(o, "commit"));
    if (version) snprintf(r->build, sizeof r->build, "%s %s", version, commit ? commit : "unknown");
    join(r->fingerprint, sizeof r->fingerprint, json_object_get(o, "fingerprints"));
    join(r->checkpoint, sizeof r->checkpoint, json_object_get(o, "checkpoints"));
    join(r->device, sizeof r->device, json_object_get(o, "devices"));
}

int bench_server_learn(struct bench_receipt *r, const struct bench_target *t, struct err *e) {
    json_t *o = NULL;
    int st = get(t, "/v1/models", &o, e); // first: 503 until a worker has been ready
    if (st) return st;
    const json_t *model = json_array_get(json_object_get(o, "data"), 0);
    const char *id = json_string_value(json_object_get(model, "id"));
    snprintf(r->model, sizeof r->model, "%s", id ? id : "");
    json_decref(o);
    o = NULL;
    st = get(t, "/version", &o, e);
    if (!st) take_version(r, o);
    json_decref(o);
    return st;
}
