/* admin_workers: administrative calls about workers and the whole router. See admin_int.h: what is named run_... is on the
 * request loop, the rest on the ops thread. */
#include "common/err.h"
#include "common/mono.h"
#include "router/admin.h"
#include "router/admin_int.h"
#include "router/backend.h"
#include "router/http.h"
#include "router/jsontext.h"
#include "router/reload.h"
#include "router/server.h"

#include <inttypes.h>
#include <string.h>

/* ---- workers ---- */

static bool split(h2o_iovec_t text, char mark, h2o_iovec_t *ret_first, h2o_iovec_t *ret_rest) {
    const char *p = text.len ? memchr(text.base, mark, text.len) : NULL;
    *ret_first = text;
    if (!p) return false;
    ret_first->len = (size_t)(p - text.base);
    *ret_rest = h2o_iovec_init(p + 1, text.len - ret_first->len - 1);
    return true;
}

static void run_verb(struct server *s, struct job *j) {
    bool changed = false;
    j->refused = control_worker(s->control, j->rank, j->verb, &j->how, &changed, &j->e);
    j->status = changed ? 202 : 200;
    server_publish(s); // the answer shows the state that this has led to
}

static void run_nothing(struct server *s, struct job *j) {}

static int read_verb(h2o_iovec_t text, enum control_verb *ret) {
    for (int v = 0; v < CONTROL_VERB_COUNT; v++) {
        const char *name = control_verb_name((enum control_verb)v);
        if (!h2o_memis(text.base, text.len, name, strlen(name))) continue;
        *ret = (enum control_verb)v;
        return ST_OK;
    }
    return ST_NOT_FOUND;
}

static int read_wait(const struct http_call *c, struct job *j, struct apierr *e) {
    uint32_t seconds = 60;
    char clip[APIERR_CLIP_BYTES];
    h2o_iovec_t state = http_query(c, "wait_state");
    int st = admin_query_number(c, "timeout_s", ADMIN_WAIT_S_MAX, &seconds, e);
    if (st || !state.base) return st;
    if (!backend_state_is_name(state.base, state.len))
        return apierr_set(e, APIERR_INVALID_VALUE, "wait_state",
                          "wait_state must be a worker's state (ready, drained, ...), got '%s'",
                          apierr_clip(clip, state.base, state.len));
    memcpy(j->wait_state, state.base, state.len);
    j->until_ms = mono_ms() + seconds * 1000ull;
    return ST_OK;
}

void admin_handle_worker(struct http_call *c) {
    h2o_iovec_t rank, verb = {0}, path = http_path_rest(c);
    struct apierr e;
    char clip[APIERR_CLIP_BYTES];
    bool has_verb = split(path, '/', &rank, &verb);
    unsigned wanted = has_verb ? HTTP_POST : HTTP_GET;
    struct job *j = admin_job_new(c, has_verb ? run_verb : run_nothing);
    int st = ST_OK;
    j->worker_object = true;
    if (!admin_take_number(rank, 999999999, &j->rank))
        st = apierr_set(&e, APIERR_NOT_FOUND, NULL, "no worker has the rank '%s'",
                        apierr_clip(clip, rank.base, rank.len));
    else if (has_verb && read_verb(verb, &j->verb))
        st = apierr_set(&e, APIERR_UNKNOWN_URL, NULL, "a worker has no '%s'",
                        apierr_clip(clip, verb.base, verb.len));
    if (!st && http_method_of(c) != wanted) {
        http_wrong_method(c, wanted);
        admin_job_free(j);
        return;
    }
    if (!st) st = has_verb ? admin_read_how(c, &j->how, &e) : read_wait(c, j, &e);
    if (st)
        admin_job_refuse(j, c, &e);
    else
        admin_job_begin(j, c);
}

/* ---- operations ---- */

static void write_operation(struct job *j, const struct control_operation *o) {
    static const char *const states[] = {"running", "done", "failed", "cancelled"};
    strbuf_printf(&j->out,
                  "{\"id\":\"%u\",\"kind\":\"restart\",\"state\":\"%s\",\"step\":%u,\"steps\":%u,"
                  "\"passed\":%u,\"rank\":",
                  o->id, states[o->state], o->step, o->steps, o->passed);
    if (o->rank < 0)
        strbuf_add_str(&j->out, "null");
    else
        strbuf_printf(&j->out, "%d", o->rank);
    strbuf_add_str(&j->out, ",\"error\":");
    if (o->error[0])
        jsontext_string(&j->out, o->error, strlen(o->error));
    else
        strbuf_add_str(&j->out, "null");
    strbuf_add_char(&j->out, '}');
    j->again = o->state == CONTROL_RUNNING;
}

static void run_operation(struct server *s, struct job *j) {
    struct control_operation o;
    if (control_operation(s->control, j->operation, &o)) {
        write_operation(j, &o);
        return;
    }
    j->refused = true;
    apierr_set(&j->e, APIERR_NOT_FOUND, NULL, "no operation has the id %u", j->operation);
}

static void run_cancel_operation(struct server *s, struct job *j) {
    bool changed;
    j->refused = control_cancel(s->control, j->operation, &changed, &j->e);
    j->status = changed ? 202 : 200;
    if (!j->refused) run_operation(s, j);
}

static void run_restart(struct server *s, struct job *j) {
    j->refused = control_restart_all(s->control, &j->how, &j->operation, &j->e);
    j->status = 202;
    if (!j->refused) run_operation(s, j);
    j->again = false;
}

void admin_handle_restart(struct http_call *c) {
    struct apierr e;
    struct job *j = admin_job_new(c, run_restart);
    if (admin_read_how(c, &j->how, &e))
        admin_job_refuse(j, c, &e);
    else
        admin_job_begin(j, c);
}

void admin_handle_operation(struct http_call *c) {
    struct apierr e;
    char clip[APIERR_CLIP_BYTES];
    h2o_iovec_t id = http_path_rest(c);
    uint32_t seconds = 0;
    bool cancels = http_method_of(c) == HTTP_DELETE;
    struct job *j = admin_job_new(c, cancels ? run_cancel_operation : run_operation);
    int st = admin_query_number(c, "wait_s", ADMIN_WAIT_S_MAX, &seconds, &e);
    j->until_ms = mono_ms() + seconds * 1000ull;
    if (!st && !admin_take_number(id, 999999999, &j->operation))
        st = apierr_set(&e, APIERR_NOT_FOUND, NULL, "no operation has the id '%s'",
                        apierr_clip(clip, id.base, id.len));
    if (st)
        admin_job_refuse(j, c, &e);
    else
        admin_job_begin(j, c);
}

/* ---- the whole router ---- */

static void run_drain_state(struct server *s, struct job *j) {
    struct server_drain d;
    server_drain(s, &d);
    strbuf_printf(&j->out,
                  "{\"draining\":%s,\"drained\":%s,\"ending\":%s,\"requests\":%" PRIu64 "}",
                  d.draining ? "true" : "false", d.drained ? "true" : "false",
                  d.ending ? "true" : "false", d.requests);
    j->again = d.draining && !d.drained;
}

static void run_drain(struct server *s, struct job *j) {
    j->refused = server_set_draining(s, j->on, &j->e);
    if (!j->refused) run_drain_state(s, j);
    j->again = false;
}

// GET waits with ?wait_s= until it is drained, or drains no more.
void admin_handle_drain(struct http_call *c) {
    bool sets = http_method_of(c) == HTTP_POST;
    struct job *j = admin_job_new(c, sets ? run_drain : run_drain_state);
    struct apierr e;
    uint32_t seconds = 0;
    j->on = true;
    if (admin_query_number(c, "wait_s", ADMIN_WAIT_S_MAX, &seconds, &e)) {
        admin_job_refuse(j, c, &e);
        return;
    }
    j->until_ms = mono_ms() + seconds * 1000ull;
    admin_job_begin(j, c);
}

void admin_handle_undrain(struct http_call *c) {
    admin_job_begin(admin_job_new(c, run_drain), c);
}

// Names of settings, split by spaces, as an array: none of them needs an escape.
static void write_names(struct strbuf *out, const char *key, const struct strbuf *names) {
    const char *p = strbuf_str(names);
    strbuf_printf(out, ",\"%s\":[", key);
    for (bool first = true; *p; first = false) {
        size_t n = strcspn(p, " ");
        strbuf_printf(out, "%s\"%.*s\"", first ? "" : ",", (int)n, p);
        p += n + (p[n] == ' ');
    }
    strbuf_add_char(out, ']');
}

static void run_reload(struct server *s, struct job *j) {
    struct reload_news news = {0};
    struct err e = {0};
    j->refused = reload_all(s, &news, &e) != ST_OK;
    if (j->refused) {
        apierr_set(&j->e, APIERR_CONFLICT, NULL, "what was there stays: %s", e.msg);
    } else {
        strbuf_add_str(&j->out, "{\"reloaded\":true");
        write_names(&j->out, "changed", &news.changed);
        write_names(&j->out, "needs_restart", &news.kept);
        strbuf_add_char(&j->out, '}');
    }
    reload_news_fini(&news);
}

void admin_handle_reload(struct http_call *c) {
    admin_job_begin(admin_job_new(c, run_reload), c);
}
