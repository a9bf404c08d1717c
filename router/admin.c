/* admin: see admin.h. */
#include "router/admin.h"
#include "common/err.h"
#include "common/log.h"
#include "common/mem.h"
#include "common/mono.h"
#include "common/num.h"
#include "common/strbuf.h"
#include "router/api_status.h"
#include "router/apierr.h"
#include "router/backend.h"
#include "router/body.h"
#include "router/config.h"
#include "router/control.h"
#include "router/http.h"
#include "router/inbox.h"
#include "router/jsontext.h"
#include "router/listen.h"
#include "router/request.h"
#include "router/send.h"
#include "router/server.h"

#include <assert.h>
#include <inttypes.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    POLL_MS = 50,      // between two looks of a call that waits
    WAIT_S_MAX = 3600, // of such a call
    REQUESTS_LIMIT_MAX = 10000,
    START_S_DEFAULT = 600,
    PATH_BYTES = 128,
};

struct job {
    struct admin *admin;
    TAILQ_ENTRY(job) link; // of those that wait for their next look
    // The ops thread's.
    struct send *send; // NULL: the client has gone
    uint64_t until_ms; // a call that waits: until then
    char wait_state[24];
    // From the call; then the request loop's, until it is posted back.
    void (*run)(struct server *s, struct job *j);
    uint32_t rank, operation, limit;
    enum control_verb verb;
    struct control_how how;
    bool on;
    int32_t only_worker; // of a list of requests; -1: any
    char name[PATH_BYTES];
    // The answer.
    bool refused, again; // again: what is waited for has not come
    bool worker_object;  // the answer is the worker's object, from the snapshot
    struct apierr e;
    int status;
    struct strbuf out;
};

TAILQ_HEAD(job_list, job);

struct admin {
    struct server *server;
    struct inbox to_loop, to_ops;
    bool ops_over; // nobody is there to answer to
    _Atomic uint64_t beat_ms;
    // The ops thread's.
    struct send_set *sends;
    struct job_list waiting;
    uv_timer_t poll;
};

/* ---- to the loop and back ---- */

static void job_free(struct job *j) {
    strbuf_fini(&j->out);
    free(j);
}

static void on_answer(void *owner, struct nng_msg *msg);

static void on_loop(void *owner, struct nng_msg *msg) {
    struct job *j = owner;
    struct admin *a = j->admin;
    (void)msg;
    if (a->ops_over) {
        job_free(j);
        return;
    }
    j->again = false;
    j->run(a->server, j);
    inbox_post(&a->to_ops, on_answer, j, NULL);
}

static void post(struct job *j) {
    inbox_post(&j->admin->to_loop, on_loop, j, NULL);
}

static void answer(struct job *j) {
    if (!j->send) return;
    if (j->refused) {
        send_error(j->send, &j->e);
        return;
    }
    strbuf_add_char(&j->out, '\n');
    send_whole(j->send, &SEND_HEAD(.status = j->status, .content_type = "application/json"),
               j->out.p, j->out.len);
}

// What the snapshot of that moment says, on the ops thread, which may read it.
static bool add_worker_object(struct job *j) {
    const struct status_source *status = &j->admin->server->status;
    char state[24];
    bool there = api_status_add_worker(status, j->rank, &j->out, state);
    if (!there) {
        j->refused = true;
        apierr_set(&j->e, APIERR_NOT_FOUND, NULL, "no worker has the rank %u", j->rank);
    }
    return !there || !j->wait_state[0] || !strcmp(state, j->wait_state);
}

static void on_answer(void *owner, struct nng_msg *msg) {
    struct job *j = owner;
    (void)msg;
    bool waits = j->again;
    if (j->worker_object && !j->refused) {
        strbuf_reset(&j->out);
        waits = !add_worker_object(j);
    }
    if (j->send && waits && mono_ms() < j->until_ms) {
        TAILQ_INSERT_TAIL(&j->admin->waiting, j, link);
        return;
    }
    answer(j);
    job_free(j);
}

static void on_poll(uv_timer_t *t) {
    struct admin *a = t->data;
    struct job *j;
    atomic_store_explicit(&a->beat_ms, mono_ms(), memory_order_relaxed);
    while ((j = TAILQ_FIRST(&a->waiting))) {
        TAILQ_REMOVE(&a->waiting, j, link);
        strbuf_reset(&j->out);
        post(j);
    }
}

static void on_gone(void *arg) {
    struct job *j = arg;
    j->send = NULL;
}

/* ---- life ---- */

struct admin *admin_new(struct server *s) {
    struct admin *a = mem_calloc(1, sizeof *a);
    a->server = s;
    TAILQ_INIT(&a->waiting);
    a->beat_ms = mono_ms();
    int rc = inbox_open(&a->to_loop, &s->loop);
    assert(rc == 0); // the loop is new: a descriptor is there
    return a;
}

static void on_inbox_closed(void *arg) {
    (void)arg;
}

void admin_close(struct admin *a) {
    if (!a) return;
    a->ops_over = true;
    inbox_drain(&a->to_loop);
    inbox_close(&a->to_loop, on_inbox_closed, a);
}

void admin_free(struct admin *a) {
    free(a);
}

void admin_attach(struct admin *a, uv_loop_t *loop, struct send_set *sends) {
    a->sends = sends;
    int rc = inbox_open(&a->to_ops, loop);
    assert(rc == 0);
    uv_timer_init(loop, &a->poll);
    a->poll.data = a;
    uv_timer_start(&a->poll, on_poll, POLL_MS, POLL_MS);
}

void admin_detach(struct admin *a) {
    inbox_drain(&a->to_ops);
    for (struct job *j; (j = TAILQ_FIRST(&a->waiting));) {
        TAILQ_REMOVE(&a->waiting, j, link);
        job_free(j);
    }
    inbox_close(&a->to_ops, on_inbox_closed, a);
    uv_close((uv_handle_t *)&a->poll, NULL);
}

uint64_t admin_last_beat_ms(const struct admin *a) {
    return atomic_load_explicit(&a->beat_ms, memory_order_relaxed);
}

/* ---- calls ---- */

static struct job *job_new(struct http_call *c, void (*run)(struct server *, struct job *)) {
    struct status_source *status = c->app;
    struct job *j = mem_calloc(1, sizeof *j);
    j->admin = status->admin;
    j->run = run;
    j->status = 200;
    j->how = (struct control_how){.timeout_s = status->config->drain_s, .start_s = START_S_DEFAULT};
    return j;
}

static void begin(struct job *j, struct http_call *c) {
    j->send = send_new(c, j->admin->sends, &(struct send_events){.arg = j, .on_gone = on_gone});
    post(j);
}

static void refuse(struct job *j, struct http_call *c, const struct apierr *e) {
    send_reply_error(c, e);
    job_free(j);
}

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
    static const char *const words[] = {"finish", "move", "cancel"};
    const json_t *v = json_object_get(body, "streams");
    if (!v || json_is_null(v)) return ST_OK;
    for (size_t i = 0; json_is_string(v) && i < sizeof words / sizeof *words; i++) {
        if (strcmp(json_string_value(v), words[i])) continue;
        *ret = (enum control_streams)i;
        return ST_OK;
    }
    return apierr_set(e, APIERR_INVALID_VALUE, "streams", "streams must be finish, move or cancel");
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

// Fields that are not known are refused: a mistyped "force" must not drain the last worker.
static int check_keys(const json_t *body, const char *const *known, struct apierr *e) {
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

// An empty body is {}.
static int parse_body(const struct http_call *c, json_t **ret, struct apierr *e) {
    struct body_stats stats;
    *ret = NULL;
    if (!c->req->entity.len) return ST_OK;
    int st = http_check_json_type(c, e);
    return st ? st : body_parse(c->req->entity.base, c->req->entity.len, ret, &stats, e);
}

static int read_how(const struct http_call *c, struct control_how *how, struct apierr *e) {
    static const char *const known[] = {"timeout_s", "start_s", "streams", "force", NULL};
    json_t *body;
    int st = parse_body(c, &body, e);
    if (!st && body) {
        st = check_keys(body, known, e);
        if (!st) st = read_seconds(body, "timeout_s", &how->timeout_s, e);
        if (!st) st = read_seconds(body, "start_s", &how->start_s, e);
        if (!st) st = read_streams(body, &how->streams, e);
        if (!st) st = read_force(body, &how->force, e);
    }
    json_decref(body);
    return st;
}

static bool take_number(h2o_iovec_t text, uint32_t max, uint32_t *ret) {
    uint64_t n = 0;
    if (text.len < 1 || text.len > 9) return false;
    for (size_t i = 0; i < text.len; i++) {
        if (text.base[i] < '0' || text.base[i] > '9') return false;
        n = n * 10 + (uint64_t)(text.base[i] - '0');
    }
    *ret = (uint32_t)n;
    return n <= max;
}

// A number of the query; absent leaves *ret.
static int query_number(const struct http_call *c, const char *key, uint32_t max, uint32_t *ret,
                        struct apierr *e) {
    h2o_iovec_t v = http_query(c, key);
    if (!v.base || take_number(v, max, ret)) return ST_OK;
    return apierr_set(e, APIERR_INVALID_VALUE, key, "%s must be a whole number of 0 to %u", key,
                      max);
}

static bool split(h2o_iovec_t text, char mark, h2o_iovec_t *ret_first, h2o_iovec_t *ret_rest) {
    const char *p = text.len ? memchr(text.base, mark, text.len) : NULL;
    *ret_first = text;
    if (!p) return false;
    ret_first->len = (size_t)(p - text.base);
    *ret_rest = h2o_iovec_init(p + 1, text.len - ret_first->len - 1);
    return true;
}

/* ---- workers ---- */

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
    h2o_iovec_t state = http_query(c, "wait_state");
    int st = query_number(c, "timeout_s", WAIT_S_MAX, &seconds, e);
    if (st || !state.base) return st;
    if (!backend_state_is_name(state.base, state.len))
        return apierr_set(e, APIERR_INVALID_VALUE, "wait_state",
                          "wait_state must be a worker's state");
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
    struct job *j = job_new(c, has_verb ? run_verb : run_nothing);
    int st = ST_OK;
    j->worker_object = true;
    if (!take_number(rank, 999999999, &j->rank))
        st = apierr_set(&e, APIERR_NOT_FOUND, NULL, "no worker has the rank '%s'",
                        apierr_clip(clip, rank.base, rank.len));
    else if (has_verb && read_verb(verb, &j->verb))
        st = apierr_set(&e, APIERR_UNKNOWN_URL, NULL, "a worker has no '%s'",
                        apierr_clip(clip, verb.base, verb.len));
    if (!st && http_method_of(c) != wanted) {
        http_wrong_method(c, wanted);
        job_free(j);
        return;
    }
    if (!st) st = has_verb ? read_how(c, &j->how, &e) : read_wait(c, j, &e);
    if (st)
        refuse(j, c, &e);
    else
        begin(j, c);
}

/* ---- operations ---- */

static void write_operation(struct job *j, const struct control_operation *o) {
    static const char *const states[] = {"running", "done", "failed"};
    strbuf_printf(&j->out,
                  "{\"id\":\"%u\",\"kind\":\"restart\",\"state\":\"%s\",\"step\":%u,\"steps\":%u,"
                  "\"rank\":",
                  o->id, states[o->state], o->step, o->steps);
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

static void run_restart(struct server *s, struct job *j) {
    j->refused = control_restart_all(s->control, &j->how, &j->operation, &j->e);
    j->status = 202;
    if (!j->refused) run_operation(s, j);
    j->again = false;
}

void admin_handle_restart(struct http_call *c) {
    struct apierr e;
    struct job *j = job_new(c, run_restart);
    if (read_how(c, &j->how, &e))
        refuse(j, c, &e);
    else
        begin(j, c);
}

void admin_handle_operation(struct http_call *c) {
    struct apierr e;
    char clip[APIERR_CLIP_BYTES];
    h2o_iovec_t id = http_path_rest(c);
    uint32_t seconds = 0;
    struct job *j = job_new(c, run_operation);
    int st = query_number(c, "wait_s", WAIT_S_MAX, &seconds, &e);
    j->until_ms = mono_ms() + seconds * 1000ull;
    if (!st && !take_number(id, 999999999, &j->operation))
        st = apierr_set(&e, APIERR_NOT_FOUND, NULL, "no operation has the id '%s'",
                        apierr_clip(clip, id.base, id.len));
    if (st)
        refuse(j, c, &e);
    else
        begin(j, c);
}

/* ---- the whole router ---- */

static void run_drain(struct server *s, struct job *j) {
    j->refused = server_set_draining(s, j->on, &j->e);
    strbuf_printf(&j->out, "{\"draining\":%s}", j->on ? "true" : "false");
}

static void handle_draining(struct http_call *c, bool on) {
    struct job *j = job_new(c, run_drain);
    j->on = on;
    begin(j, c);
}

void admin_handle_drain(struct http_call *c) {
    handle_draining(c, true);
}

void admin_handle_undrain(struct http_call *c) {
    handle_draining(c, false);
}

/* ---- requests ---- */

struct standing { // of a request: over its choices
    const char *state;
    int32_t rank; // a worker that runs one; -1: none
    size_t ids;
    uint32_t deaths;
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
        s.deaths += c->resume.deaths;
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
    strbuf_printf(
        out,
        ",\"state\":\"%s\",\"worker\":%d,\"prompt_tokens\":%u,\"completion_tokens\":%zu,"
        "\"age_ms\":%" PRIu64 ",\"queue_ms\":%.1f,\"resumed\":%u,\"deaths\":%u,\"stream\":%s}",
        t->state, t->rank, request_usage(r).prompt, t->ids, (now_us - r->received_us) / 1000,
        f.queue_ms, f.resumed, t->deaths, r->params.stream ? "true" : "false");
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
    struct job *j = job_new(c, run_requests);
    j->limit = 1000;
    int st = query_number(c, "limit", REQUESTS_LIMIT_MAX, &j->limit, &e);
    if (!st) st = query_number(c, "worker", 999999, &worker, &e);
    j->only_worker = worker == UINT32_MAX ? -1 : (int32_t)worker;
    if (!st && !take_name(j, http_query(c, "state")))
        st = apierr_set(&e, APIERR_INVALID_VALUE, "state", "state must be a request's state");
    if (st)
        refuse(j, c, &e);
    else
        begin(j, c);
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
    struct job *j = job_new(c, run_cancel);
    if (take_name(j, id)) {
        begin(j, c);
        return;
    }
    apierr_set(&e, APIERR_NOT_FOUND, NULL, "no request in flight has the id '%s'",
               apierr_clip(clip, id.base, id.len));
    refuse(j, c, &e);
}

/* ---- settings: no need of the loop ---- */

void admin_handle_config(struct http_call *c) {
    const struct status_source *status = c->app;
    struct strbuf out = {0};
    config_write_json(status->config, &out);
    strbuf_add_char(&out, '\n');
    send_reply(c, &SEND_HEAD(.status = 200, .content_type = "application/json"), out.p, out.len);
    strbuf_fini(&out);
}

void admin_handle_log_level(struct http_call *c) {
    static const char *const known[] = {"level", NULL};
    struct apierr e;
    json_t *body;
    enum log_level level;
    int st = parse_body(c, &body, &e);
    if (!st) st = check_keys(body, known, &e);
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
