/* admin_requests: administrative calls about requests and settings. See admin_int.h: what is named run_... is on the
 * request loop, the rest on the ops thread. */
#include "common/err.h"
#include "common/log.h"
#include "common/mono.h"
#include "router/admin.h"
#include "router/admin_int.h"
#include "router/api_status.h"
#include "router/config.h"
#include "router/http.h"
#include "router/jsontext.h"
#include "router/request.h"
#include "router/send.h"
#include "router/server.h"
#include "router/snapshot.h"

#include <inttypes.h>
#include <string.h>

enum { REQUESTS_LIMIT_MAX = 10000 };

/* ---- requests ---- */

struct standing { // of a request: over its choices
    const char *state;
    int32_t rank; // a worker that runs one; -1: none
    size_t ids;
};

static const char *state_name(const struct choice *c) {
    static const char *const names[] = {"queued", "prefill", "decode", "flushing", "flushing"};
    return c->state == CHOICE_QUEUED && resume_waits(&c->resume) ? "resuming" : names[c->state];
}

// The state is that of the choice that is furthest and not over.
static struct standing standing_of(const struct request *r) {
    struct standing s = {.rank = -1};
    const struct choice *furthest = NULL;
    for (uint32_t i = 0; i < r->choice_count; i++) {
        const struct choice *c = &r->choices[i];
        s.ids += c->ids.len;
        if (s.rank < 0 && c->stream.id) s.rank = c->rank;
        if (c->state == CHOICE_OVER) continue;
        if (!furthest || c->state > furthest->state) furthest = c;
    }
    s.state = furthest ? state_name(furthest) : "flushing";
    return s;
}

static bool runs_at(const struct request *r, int32_t rank) {
    for (uint32_t i = 0; i < r->choice_count; i++)
        if (r->choices[i].stream.id && r->choices[i].rank == rank) return true;
    return false;
}

static void add_request(struct strbuf *out, const struct request *r, const struct standing *t,
                        uint64_t now_us) {
    struct request_figures f = request_figures(r);
    strbuf_add_str(out, "{\"id\":");
    jsontext_string(out, r->id, strlen(r->id));
    strbuf_add_str(out, ",\"request_id\":");
    jsontext_string(out, r->request_id, strlen(r->request_id));
    strbuf_printf(out,
                  ",\"state\":\"%s\",\"worker\":%d,\"prompt_tokens\":%u,\"completion_tokens\":%zu,"
                  "\"age_ms\":%" PRIu64
                  ",\"queue_ms\":%.1f,\"resumed\":%u,\"deaths\":%u,\"stream\":%s}",
                  t->state, t->rank, request_usage(r).prompt, t->ids,
                  mono_since(r->received_us, now_us) / 1000, f.queue_ms, f.resumed, r->deaths.count,
                  r->params.stream ? "true" : "false");
}

static void run_requests(struct server *s, struct job *j) {
    const struct request *r;
    uint32_t shown = 0;
    uint64_t now = mono_us();
    strbuf_add_char(&j->out, '[');
    TAILQ_FOREACH(r, &s->requests, link) {
        if (shown == j->limit) break;
        if (!r->accepted) continue; // its fields may be a pool thread's
        struct standing t = standing_of(r);
        if (j->name[0] && strcmp(j->name, t.state)) continue;
        if (j->only_worker >= 0 && !runs_at(r, j->only_worker)) continue;
        if (shown++) strbuf_add_char(&j->out, ',');
        add_request(&j->out, r, &t, now);
    }
    strbuf_add_char(&j->out, ']');
}

static bool take_name(struct job *j, h2o_iovec_t v) {
    if (v.len >= sizeof j->name) return false;
    if (v.len) memcpy(j->name, v.base, v.len);
    return true;
}

void admin_handle_requests(struct http_call *c) {
    struct apierr e;
    uint32_t worker = UINT32_MAX;
    struct job *j = admin_job_new(c, run_requests);
    j->limit = 1000;
    int st = admin_query_number(c, "limit", REQUESTS_LIMIT_MAX, &j->limit, &e);
    if (!st) st = admin_query_number(c, "worker", 999999, &worker, &e);
    j->only_worker = worker == UINT32_MAX ? -1 : (int32_t)worker;
    if (!st && !take_name(j, http_query(c, "state")))
        st = apierr_set(&e, APIERR_INVALID_VALUE, "state", "state must be a request's state");
    if (st)
        admin_job_refuse(j, c, &e);
    else
        admin_job_begin(j, c);
}

static void run_cancel(struct server *s, struct job *j) {
    struct request *r;
    char clip[APIERR_CLIP_BYTES];
    TAILQ_FOREACH(r, &s->requests, link)
    if (!strcmp(r->id, j->name) || !strcmp(r->request_id, j->name)) break;
    if (!r || !r->accepted) {
        j->refused = true;
        apierr_set(&j->e, APIERR_NOT_FOUND, NULL, "no request in flight has the id '%s'",
                   apierr_clip(clip, j->name, strlen(j->name)));
        return;
    }
    struct apierr e;
    apierr_set(&e, APIERR_CANCELLED_BY_OPERATOR, NULL, "an operator cancelled this request");
    request_fail(r, &e);
    strbuf_add_str(&j->out, "{\"cancelled\":true}");
}

void admin_handle_request(struct http_call *c) {
    struct apierr e;
    char clip[APIERR_CLIP_BYTES];
    h2o_iovec_t id = http_path_rest(c);
    struct job *j = admin_job_new(c, run_cancel);
    if (take_name(j, id)) {
        admin_job_begin(j, c);
        return;
    }
    apierr_set(&e, APIERR_NOT_FOUND, NULL, "no request in flight has the id '%s'",
               apierr_clip(clip, id.base, id.len));
    admin_job_refuse(j, c, &e);
}

/* ---- settings: no need of the loop ---- */

void admin_handle_config(struct http_call *c) {
    const struct status_source *status = c->app;
    struct strbuf out = {0};
    config_write_json(api_status_snapshot(status)->config, &out);
    strbuf_add_char(&out, '\n');
    send_reply(c, &SEND_HEAD(.status = 200, .content_type = "application/json"), out.p, out.len);
    strbuf_fini(&out);
}

void admin_handle_log_level(struct http_call *c) {
    static const char *const known[] = {"level", NULL};
    struct apierr e;
    json_t *body;
    enum log_level level;
    int st = admin_parse_body(c, &body, &e);
    if (!st) st = admin_check_keys(body, known, &e);
    const char *name = json_string_value(json_object_get(body, "level"));
    if (!st && (!name || log_level_parse(name, &level)))
        st = apierr_set(&e, APIERR_INVALID_VALUE, "level",
                        "level must be debug, info, warn or error");
    if (st) {
        send_reply_error(c, &e);
    } else {
        log_set_level(level);
        log_info("log_level", "level=%s", name);
        struct strbuf out = {0};
        strbuf_printf(&out, "{\"level\":\"%s\"}\n", name);
        send_reply(c, &SEND_HEAD(.status = 200, .content_type = "application/json"), out.p,
                   out.len);
        strbuf_fini(&out);
    }
    json_decref(body);
}
