/* server: see server.h. */
#include "router/server.h"
#include "common/err.h"
#include "common/log.h"
#include "common/mono.h"
#include "common/notify.h"
#include "common/num.h"
#include "router/access.h"
#include "router/activate.h"
#include "router/admin.h"
#include "router/api_chat.h"
#include "router/api_completions.h"
#include "router/api_models.h"
#include "router/api_openapi.h"
#include "router/api_status.h"
#include "router/api_tokenize.h"
#include "router/apierr.h"
#include "router/backend.h"
#include "router/config.h"
#include "router/control.h"
#include "router/http.h"
#include "router/keys.h"
#include "router/listen.h"
#include "router/metrics.h"
#include "router/model.h"
#include "router/ops.h"
#include "router/place.h"
#include "router/proxies.h"
#include "router/relay.h"
#include "router/reload.h"
#include "router/report.h"
#include "router/request.h"
#include "router/send.h"
#include "router/snapshot.h"

#include <assert.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

enum {
    TICK_MS = 100,
    QUEUE_PER_WORKER = 64, // queue.requests_max by default
    GUEST_RANKS = 8,       // of `serve`, for workers started by hand
    OPS_STALL_MS = 10000,  // the ops loop has not turned for so long: no sign of life
    CUT_GRACE_MS = 1000,   // for the last bytes after everything has ended
    STOP_GRACE_S = 10,     // a child's time between SIGTERM and SIGKILL
};

// What only server.c needs. The rest of the router sees struct server.
struct runner {
    struct server s; // first: handlers get it
    bool spawn;
    bool run_dir_temporary;
    char *program;
    char **worker_argv;
    uv_timer_t tick;
    uv_prepare_t prepare;
    uv_signal_t term, interrupt, hangup, reopen;
    uint64_t tick_at_ms;
    uint64_t beat_ms;        // the last sign of life to the service manager
    uint64_t drain_since_ms; // 0: not draining
    uint64_t over_since_ms;  // every request has ended
    bool given_up;           // no worker will come any more: the exit status says so
    enum { RUNNING, SETTLING, FINISHING, CUTTING, STOPPING_WORKERS, CLOSED } phase;
    bool was_ready;
};

/* ---- placing ---- */

void server_want_place(struct server *s) {
    s->place_wanted = true;
}

static void on_prepare(uv_prepare_t *p) {
    struct server *s = p->data;
    if (s->place_wanted) {
        s->place_wanted = false;
        place_all(s);
    }
    metrics_set_live(s->metrics, &(struct metrics_live){.streams = relay_streams(s->relay),
                                                        .queued_choices = s->queue.items,
                                                        .queued_requests = s->queue.requests,
                                                        .queued_tokens = s->queue.tokens});
    for (uint32_t i = 0; i < s->listener_count; i++)
        send_set_flush(listener_sends(s->listeners[i]));
}

uint32_t server_context_max(const struct server *s) {
    uint32_t best = 0;
    for (uint32_t rank = 0; rank < backends_count(s->backends); rank++) {
        struct backend_info info;
        backend_info(backends_at(s->backends, rank), &info);
        best = max_u32(best, info.status.context_max);
    }
    return best ? best : s->model->context_max;
}

void server_no_worker(const struct server *s, struct apierr *ret) {
    char fault[SNAPSHOT_FAULTS_BYTES];
    snapshot_fault(snapshots_own(s->snapshots), SNAPSHOT_CLIENT, fault, sizeof fault);
    apierr_set(ret, APIERR_NO_READY_WORKER, NULL, "no worker is ready%s%s", *fault ? ": " : "",
               fault);
    ret->retry_after_ms = 2000;
}

uint32_t server_queue_requests_max(const struct server *s) {
    int64_t max = s->config->queue_requests_max;
    return max ? (uint32_t)max : QUEUE_PER_WORKER * s->ranks;
}

uint32_t server_ready_workers(const struct server *s) {
    uint32_t n = 0;
    for (uint32_t rank = 0; rank < backends_count(s->backends); rank++)
        n += backend_state(backends_at(s->backends, rank)) == BACKEND_READY;
    return n;
}

bool server_worker_ready(const struct server *s, uint32_t rank) {
    return rank < backends_count(s->backends) &&
           backend_state(backends_at(s->backends, rank)) == BACKEND_READY;
}

/* ---- workers' news ---- */

static void count_pinned(const struct server *s, struct snapshot *shot) {
    uint32_t waiting[SNAPSHOT_WORKERS_MAX] = {0};
    const struct request *r;
    TAILQ_FOREACH(r, &s->requests, link) {
        for (uint32_t i = 0; i < r->choice_count && r->pinned >= 0; i++)
            waiting[r->pinned] += r->choices[i].queue_item.queued;
    }
    for (uint32_t i = 0; i < shot->worker_count; i++)
        shot->workers[i].pinned = waiting[shot->workers[i].rank];
}

void server_publish(struct server *s) {
    struct snapshot *shot = snapshots_begin(s->snapshots);
    shot->config = s->config;
    shot->draining = s->draining;
    shot->ending = s->ending;
    shot->ever_ready = s->ever_ready;
    shot->wait_predicted_s = queue_wait_s(&s->queue);
    snapshot_fill_workers(shot, s->backends);
    if (s->listener_count > 1) count_pinned(s, shot);
    snapshots_publish(s->snapshots);
}

static void on_frame(void *arg, struct backend *b, const struct frame *f) {
    struct server *s = arg;
    relay_on_frame(s->relay, b, f);
}

static void on_state(void *arg, struct backend *b, enum backend_state old) {
    struct runner *r = arg;
    struct server *s = &r->s;
    if (!s->backends) return; // the set is being made
    if (r->phase < STOPPING_WORKERS) control_on_state(s->control, b);
    bool ready = server_ready_workers(s) > 0;
    s->no_ready_since_ms = ready ? 0 : s->no_ready_since_ms ? s->no_ready_since_ms : mono_ms();
    s->ever_ready |= ready;
    if (r->phase < STOPPING_WORKERS && !r->was_ready &&
        server_ready_workers(s) >= (uint32_t)s->config->ready_workers_min) {
        r->was_ready = true;
        report_ready(s);
        notify_send("READY=1");
    }
    notify_send("STATUS=%u of %u workers ready", server_ready_workers(s), s->ranks);
    server_publish(s);
    server_want_place(s);
}

static void on_room(void *arg, struct backend *b) {
    server_want_place(arg);
}

static void on_lost(void *arg, struct backend *b, const char *reason, bool planned) {
    struct server *s = arg;
    relay_on_lost(s->relay, b, reason, planned);
}

static void on_failed(void *arg, struct backend *b, enum backend_failure why) {
    struct server *s = arg;
    metrics_worker_failed(s->metrics, backend_rank(b), why);
}

/* ---- HTTP ---- */

static const struct http_endpoint endpoints[] = {
    {"/v1/chat/completions", false, HTTP_POST, api_chat_handle, "chat_completions", HTTP_KEYED},
    {"/v1/chat/completions/render", false, HTTP_POST, api_render_handle, "render", HTTP_KEYED},
    {"/v1/completions", false, HTTP_POST, api_completions_handle, "completions", HTTP_KEYED},
    {"/v1/models", false, HTTP_GET, api_models_list, "models", HTTP_KEYED},
    {"/v1/models/", true, HTTP_GET, api_models_one, "models", HTTP_KEYED},
    {"/v1/tokenize", false, HTTP_POST, api_tokenize_handle, "tokenize", HTTP_KEYED},
    {"/v1/detokenize", false, HTTP_POST, api_detokenize_handle, "detokenize", HTTP_KEYED},
    {"/livez", false, HTTP_GET, api_status_livez, "livez", HTTP_OPEN},
    {"/readyz", false, HTTP_GET, api_status_readyz, "readyz", HTTP_OPEN},
    {"/health", false, HTTP_GET, api_status_health, "health", HTTP_OPEN},
    {"/metrics", false, HTTP_GET, api_status_metrics, "metrics", HTTP_METRICS},
    {"/version", false, HTTP_GET, api_status_version, "version", HTTP_METRICS},
    {"/openapi.json", false, HTTP_GET, api_openapi_handle, "openapi", HTTP_KEYED},
};

static void on_call_over(void *app, struct http_call *c) {
    struct server *s = app;
    double seconds = (double)(mono_us() - c->begun_us) / 1e6;
    if (c->key && c->facts.generated)
        metrics_key_tokens(s->metrics, c->key->name, c->facts.prompt_tokens,
                           c->facts.completion_tokens);
    metrics_http(s->metrics, c->endpoint ? c->endpoint->name : NULL, c->status, seconds);
    access_write(s->access, c, s->model->names[0]);
}

static void configure_listener(struct server *s, struct listener_config *ret) {
    const struct config *c = s->config;
    *ret = (struct listener_config){
        .loop = &s->loop,
        .address = c->api_listen,
        .app = s,
        .endpoints = endpoints,
        .endpoint_count = sizeof endpoints / sizeof *endpoints,
        .metrics = s->metrics,
        .on_call_over = on_call_over,
        .limits = {.head_bytes_max = (size_t)c->head_bytes_max,
                   .fields_max = (size_t)c->head_fields_max,
                   .uri_bytes_max = (size_t)c->uri_bytes_max,
                   .body_bytes_max = (size_t)c->body_bytes_max},
        .bodies_bytes_max = (size_t)c->bodies_bytes_max,
        .body_rate_min = (double)c->body_rate_min,
        .body_rate_after_s = c->body_rate_after_s,
        .h2_streams_max = (uint32_t)c->h2_streams_max,
        .h2_resets_max = (uint32_t)c->h2_resets_max,
        .tls_cert = c->tls_cert,
        .tls_key = c->tls_key,
        .keys = s->keys,
        .proxies = s->proxies,
        .rank = -1,
        .metrics_auth = c->metrics_auth,
        .header_s = c->header_s,
        .body_s = c->body_s,
        .keepalive_s = c->keepalive_s,
        .write_stall_s = c->write_stall_s,
        .connections_max = (uint32_t)c->connections_max,
        .half_close = c->half_close,
        .overload_status = atoi(c->overload_status),
    };
}

static int open_listener(struct server *s, const struct listener_config *lc, const char *setting,
                         struct err *e) {
    struct listener *l;
    int st = listener_new(&l, lc, e);
    if (st) return (int)err_prefix(e, "%s", setting);
    s->listeners[s->listener_count++] = l;
    return ST_OK;
}

// A port for each of the first workers, on the host of api.listen.
static int open_worker_ports(struct server *s, struct listener_config *lc, struct err *e) {
    const char *colon = strrchr(lc->address, ':');
    int host = colon ? (int)(colon - lc->address) : 0;
    if (!strncmp(lc->address, "unix:", 5) || !host)
        return err_set(e, ST_INVAL,
                       "api.worker_ports: wanted HOST:PORT in api.listen, found '%.100s'",
                       lc->address);
    for (int32_t rank = 0; rank < SERVER_WORKER_PORTS && (uint32_t)rank < s->ranks; rank++) {
        char address[256];
        snprintf(address, sizeof address, "%.*s:%lld", host, s->config->api_listen,
                 (long long)(s->config->worker_ports + rank));
        lc->address = address;
        lc->rank = rank;
        int st = open_listener(s, lc, "api.worker_ports", e);
        if (st) return st;
    }
    return ST_OK;
}

static int open_api(struct server *s, struct err *e) {
    const struct config *c = s->config;
    struct listener_config lc;
    configure_listener(s, &lc);
    lc.fd = activate_take("api");
    lc.inherited = lc.fd >= 0;
    int st = cors_init(&lc.cors, c->cors_origins, keys_any(s->keys), e);
    if (!st) st = open_listener(s, &lc, "api.listen", e);
    if (st) return st;
    s->api = s->listeners[0];
    lc.inherited = false;
    return c->worker_ports ? open_worker_ports(s, &lc, e) : ST_OK;
}

/* ---- the end: docs/api.md, "Start and end" ---- */

static void fail_all(struct server *s, const struct apierr *why) {
    struct request *r, *next;
    for (r = TAILQ_FIRST(&s->requests); r; r = next) {
        next = TAILQ_NEXT(r, link); // ending one never ends another
        if (r->preparing_on_pool) continue;
        request_fail(r, why);
    }
}

static void on_api_closed(void *arg) {
    (void)arg;
}

static void close_rest(struct runner *r) {
    r->phase = CLOSED;
    ops_stop(r->s.ops); // it reads what the workers' list holds
    r->s.ops = NULL;
    admin_close(r->s.admin);
    uv_close((uv_handle_t *)&r->tick, NULL);
    uv_close((uv_handle_t *)&r->prepare, NULL);
    uv_close((uv_handle_t *)&r->term, NULL);
    uv_close((uv_handle_t *)&r->interrupt, NULL);
    uv_close((uv_handle_t *)&r->hangup, NULL);
    uv_close((uv_handle_t *)&r->reopen, NULL);
}

static void on_workers_stopped(void *arg) {
    close_rest(arg);
}

static void each_listener(const struct server *s, void (*f)(struct listener *l)) {
    for (uint32_t i = 0; i < s->listener_count; i++) f(s->listeners[i]);
}

// h2o turns the loop while it takes its context apart: by then none may take a connection, and nothing may find the one that is closing.
static void close_api(struct server *s) {
    each_listener(s, listener_stop);
    s->api = NULL;
    while (s->listener_count) listener_close(s->listeners[--s->listener_count], on_api_closed, s);
}

static uint32_t connections(const struct server *s) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < s->listener_count; i++) n += listener_connections(s->listeners[i]);
    return n;
}

static void stop_workers(struct runner *r) {
    r->phase = STOPPING_WORKERS;
    close_api(&r->s);
    backends_stop(r->s.backends, STOP_GRACE_S, on_workers_stopped, r);
}

int server_set_draining(struct server *s, bool on, struct apierr *e) {
    struct runner *r = (struct runner *)s;
    if (r->phase != RUNNING) return apierr_set(e, APIERR_CONFLICT, NULL, "the router is ending");
    if (s->draining != on) log_info("operator_drain", "on=%d", on);
    if (!s->draining && on) s->operator_drain_ms = mono_ms();
    s->draining = on;
    if (!on) s->refusing = false;
    for (uint32_t i = 0; i < s->listener_count; i++) listener_set_closing(s->listeners[i], on);
    server_publish(s);
    return ST_OK;
}

void server_drain(const struct server *s, struct server_drain *ret) {
    *ret = (struct server_drain){
        .draining = s->draining,
        .ending = s->ending,
        .drained = s->draining && s->refusing && TAILQ_EMPTY(&s->requests),
        .requests = metrics_get_in_flight(s->metrics),
    };
}

void server_draining(const struct server *s, struct apierr *ret) {
    apierr_set(ret, APIERR_DRAINING, NULL, "the server is %s",
               s->ending ? "shutting down" : "being drained by its operator");
    ret->retry_after_ms = 1000;
}

// Refusing begins when load balancers have had the time to see that it is not ready.
static void go_on_with_operator_drain(struct server *s, uint64_t now) {
    if (!s->draining) return;
    double settle_ms = s->config->settle_s * 1000;
    double since_ms = (double)mono_since(s->operator_drain_ms, now);
    s->refusing |= since_ms >= settle_ms;
    if (since_ms < settle_ms + s->config->drain_s * 1000 || TAILQ_EMPTY(&s->requests)) return;
    struct apierr e;
    server_draining(s, &e);
    fail_all(s, &e);
}

static void begin_drain(struct runner *r) {
    r->phase = SETTLING;
    notify_send("STOPPING=1\nSTATUS=draining");
    r->drain_since_ms = mono_ms();
    r->s.draining = r->s.ending = true;
    log_info("drain", "requests=%llu settle_s=%.15g timeout_s=%.15g",
             (unsigned long long)metrics_get_in_flight(r->s.metrics), r->s.config->settle_s,
             r->s.config->drain_s);
    each_listener(&r->s, listener_drain);
    server_publish(&r->s);
}

// One step at a time, from the tick.
static void drain(struct runner *r, uint64_t now) {
    struct server *s = &r->s;
    uint64_t since = mono_since(r->drain_since_ms, now);
    double settle_ms = s->config->settle_s * 1000,
           timeout_ms = settle_ms + s->config->drain_s * 1000;
    if (r->phase == SETTLING && (double)since >= settle_ms) {
        r->phase = FINISHING;
        s->refusing = true;
        each_listener(s, listener_stop);
    }
    if (r->phase == FINISHING && (double)since >= timeout_ms) {
        struct apierr e;
        server_draining(s, &e);
        fail_all(s, &e);
    }
    if (r->phase == FINISHING && TAILQ_EMPTY(&s->requests)) {
        r->phase = CUTTING;
        r->over_since_ms = now;
    }
    if (r->phase != CUTTING) return;
    if (now - r->over_since_ms >= CUT_GRACE_MS) each_listener(s, listener_cut);
    if (connections(s) == 0) stop_workers(r);
}

// Nobody will compute anything here: whoever started us is to know, by the exit status.
static void give_up_without_workers(struct runner *r) {
    struct server *s = &r->s;
    if (!r->spawn || !backends_given_up(s->backends)) return;
    struct apierr e;
    log_error("no_workers", "count=%u: every worker has failed for good", s->ranks);
    server_no_worker(s, &e);
    r->given_up = true;
    begin_drain(r);
    s->refusing = true;
    r->phase = FINISHING;
    each_listener(s, listener_stop);
    fail_all(s, &e);
}

static void on_signal(uv_signal_t *h, int signum) {
    struct runner *r = h->data;
    if (signum == SIGHUP) {
        struct reload_news news = {0};
        struct err e = {0};
        reload_all(&r->s, &news, &e);
        reload_news_fini(&news);
        return;
    }
    if (signum == SIGUSR1) {
        access_reopen(r->s.access);
        return;
    }
    if (r->phase == RUNNING) {
        begin_drain(r);
        return;
    }
    log_warn("killed", "signal=%d while shutting down", signum);
    _exit(1); // supervised workers end with their parent
}

/* ---- time ---- */

// The manager's watchdog: every loop of ours turns.
static void beat(struct runner *r, uint64_t now) {
    uint64_t every_ms = notify_watchdog_ms();
    bool ops_turns = !r->s.ops || mono_since(admin_last_beat_ms(r->s.admin), now) < OPS_STALL_MS;
    if (!every_ms || now - r->beat_ms < every_ms || !ops_turns) return;
    r->beat_ms = now;
    notify_send("WATCHDOG=1");
}

static void on_tick(uv_timer_t *t) {
    struct runner *r = t->data;
    struct server *s = &r->s;
    uint64_t now = mono_ms();
    uint64_t late = now > r->tick_at_ms + TICK_MS ? now - r->tick_at_ms - TICK_MS : 0;
    if (r->tick_at_ms) metrics_observe(s->metrics, METRIC_LOOP_LAG_S, (double)late / 1000, 1);
    r->tick_at_ms = now;
    struct request *q, *next;
    for (q = TAILQ_FIRST(&s->requests); q; q = next) {
        next = TAILQ_NEXT(q, link); // ending one never ends another
        request_tick(q, now);
    }
    if (r->phase == RUNNING) give_up_without_workers(r);
    if (r->phase == RUNNING) go_on_with_operator_drain(s, now);
    if (r->phase < STOPPING_WORKERS) control_tick(s->control);
    if (r->phase != RUNNING && r->phase < STOPPING_WORKERS) drain(r, now);
    access_flush(s->access);
    log_flush();
    server_publish(s);
    snapshots_beat(s->snapshots, now);
    beat(r, now);
}

/* ---- start ---- */

static void mask_signals(int how) {
    static const int signals[] = {SIGTERM, SIGINT, SIGHUP, SIGUSR1};
    sigset_t set;
    sigemptyset(&set);
    for (size_t i = 0; i < sizeof signals / sizeof *signals; i++) sigaddset(&set, signals[i]);
    pthread_sigmask(how, &set, NULL);
}

void server_hold_signals(void) {
    mask_signals(SIG_BLOCK);
}

static void start_timers(struct runner *r) {
    struct server *s = &r->s;
    uv_timer_init(&s->loop, &r->tick);
    uv_prepare_init(&s->loop, &r->prepare);
    uv_signal_init(&s->loop, &r->term);
    uv_signal_init(&s->loop, &r->interrupt);
    uv_signal_init(&s->loop, &r->hangup);
    uv_signal_init(&s->loop, &r->reopen);
    r->tick.data = r->prepare.data = r->term.data = r->interrupt.data = r;
    r->hangup.data = r->reopen.data = r;
    uv_timer_start(&r->tick, on_tick, TICK_MS, TICK_MS);
    uv_prepare_start(&r->prepare, on_prepare);
    uv_signal_start(&r->term, on_signal, SIGTERM);
    uv_signal_start(&r->interrupt, on_signal, SIGINT);
    uv_signal_start(&r->hangup, on_signal, SIGHUP);
    uv_signal_start(&r->reopen, on_signal, SIGUSR1);
    mask_signals(SIG_UNBLOCK);
}

static int start_workers(struct runner *r, struct err *e) {
    struct server *s = &r->s;
    const struct config *c = s->config;
    if (r->spawn) {
        r->program = config_worker_program();
        if (!r->program)
            return err_set(e, ST_IO, "cannot find out where this program is: no /proc");
        r->worker_argv = config_worker_argv(c, r->program);
    }
    struct backends_config bc = {
        .loop = &s->loop,
        .run_dir = c->run_dir,
        .ranks = s->ranks,
        .spawn = r->spawn,
        .guest_ranks = r->spawn ? min_u32(GUEST_RANKS, SNAPSHOT_WORKERS_MAX - s->ranks) : 0,
        .worker_argv = r->worker_argv,
        .progress_s = c->progress_s,
        .hello_s = c->start_s,
        .events = {.arg = s,
                   .on_frame = on_frame,
                   .on_state = on_state,
                   .on_room = on_room,
                   .on_lost = on_lost,
                   .on_failed = on_failed},
        .vocab = &s->model->vocab,
        .model = s->model->dir_name,
    };
    return backends_new(&s->backends, &bc, e);
}

static int open_all(struct runner *r, struct err *e) {
    struct server *s = &r->s;
    const struct config *c = s->config;
    struct model_config mc = {c->model, c->model_name, c->model_aliases, c->template_rules};
    int st = model_open(&s->model, &mc, e);
    if (!st) st = keys_open(&s->keys, c->keys_file, c->keys, e);
    if (!st) st = proxies_open(&s->proxies, c->trusted_proxies, e);
    if (!st && !*c->tls_cert != !*c->tls_key)
        st = err_set(e, ST_INVAL, "wanted both of api.tls_cert and api.tls_key, found one");
    if (!st) st = access_open(&s->access, c->access_log, e);
    if (!st) st = config_make_run_dir(s->config, &r->run_dir_temporary, e);
    if (st) return st;
    s->ranks = (uint32_t)c->workers;
    s->metrics = metrics_new(s->model->names[0]);
    s->snapshots = snapshots_new();
    s->relay = relay_new(s);
    s->admin = admin_new(s);
    s->control = control_new(s);
    queue_init(&s->queue, server_queue_requests_max(s), (uint64_t)c->queue_tokens_max);
    TAILQ_INIT(&s->requests);
    s->no_ready_since_ms = mono_ms();
    snapshots_beat(s->snapshots, mono_ms());
    s->status =
        (struct status_source){.metrics = s->metrics, .snapshots = s->snapshots, .is_writer = true};
    snapshots_begin(s->snapshots)->config = s->config; // the ops thread may be asked at once
    snapshots_publish(s->snapshots);
    // Workers last: a port that is taken should not cost a load.
    st = open_api(s, e);
    int ops_fd = activate_take("ops");
    if (!st && (*c->ops_listen || ops_fd >= 0))
        st = ops_start(&s->ops,
                       &(struct ops_config){c, ops_fd, s->metrics, s->snapshots, s->admin, s->keys},
                       e);
    activate_close_rest();
    return st ? st : start_workers(r, e);
}

static void close_all(struct runner *r) {
    struct server *s = &r->s;
    backends_free(s->backends);
    relay_free(s->relay);
    queue_fini(&s->queue);
    control_free(s->control);
    admin_free(s->admin);
    snapshots_free(s->snapshots);
    metrics_free(s->metrics);
    access_close(s->access);
    keys_close(s->keys);
    proxies_close(s->proxies);
    model_close(s->model);
    config_free_argv(r->worker_argv);
    free(r->program);
    if (r->run_dir_temporary) config_remove_run_dir(s->config);
    config_free_reloaded(s->config);
}

// The loop runs dry: what is being closed closes.
static void fail_start(struct runner *r) {
    struct server *s = &r->s;
    close_api(s);
    ops_stop(s->ops);
    admin_close(s->admin);
    uv_run(&s->loop, UV_RUN_DEFAULT);
}

// Two descriptors a stream; the soft limit is often 1024.
static void raise_fd_limit(void) {
    struct rlimit l;
    if (getrlimit(RLIMIT_NOFILE, &l)) return;
    l.rlim_cur = l.rlim_max;
    setrlimit(RLIMIT_NOFILE, &l);
}

int server_run(struct config *c, bool spawn) {
    struct runner r = {.spawn = spawn, .s.config = c};
    struct err e = {0};
    signal(SIGPIPE, SIG_IGN);
    notify_init();
    activate_init();
    raise_fd_limit();
    uv_loop_init(&r.s.loop);
    int st = open_all(&r, &e);
    if (st) {
        fprintf(stderr, "railyard %s: %s\n", spawn ? "serve" : "router", e.msg);
        fail_start(&r);
    } else {
        start_timers(&r);
        report_start(&r.s);
        if (!strcmp(c->start_notify, "listening")) notify_send("READY=1");
        config_log(c);
        uv_run(&r.s.loop, UV_RUN_DEFAULT);
    }
    close_all(&r);
    int rc = uv_loop_close(&r.s.loop);
    if (rc) log_warn("loop_busy", "reason=\"%s\"", uv_strerror(rc));
    // A setting that is wrong stays wrong, and whoever looks after this process need not try again.
    return st == ST_INVAL ? 2 : st || r.given_up ? 1 : 0;
}
