/* ops: see ops.h. The main thread starts and stops it; all else runs on its own thread. */
#include "router/ops.h"
#include "common/err.h"
#include "common/mem.h"
#include "router/admin.h"
#include "router/api_status.h"
#include "router/config.h"
#include "router/http.h"
#include "router/listen.h"

#include <assert.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    OPS_CONNECTIONS_MAX = 1024,
    OPS_BODY_BYTES_MAX = 64 << 10,
    OPS_BODIES_BYTES_MAX = 8 << 20,
    OPS_CUT_MS = 500, // a reply under way at the stop gets this long
};

struct ops {
    struct status_source status; // first: api_status reads it
    uv_loop_t loop;
    uv_async_t wake; // asks the thread to stop
    uv_timer_t cut;
    uv_thread_t thread;
    uv_sem_t over; // the thread has let go of everything here
    struct listener *listener;
};

static const struct http_endpoint endpoints[] = {
    {"/livez", false, HTTP_GET, api_status_livez, "livez", HTTP_OPEN},
    {"/readyz", false, HTTP_GET, api_status_readyz, "readyz", HTTP_OPEN},
    {"/health", false, HTTP_GET, api_status_health, "health", HTTP_OPEN},
    {"/metrics", false, HTTP_GET, api_status_metrics, "metrics", HTTP_METRICS},
    {"/version", false, HTTP_GET, api_status_version, "version", HTTP_METRICS},
    {"/admin/v1/workers", false, HTTP_GET, api_status_workers, "admin", HTTP_ADMIN},
    {"/admin/v1/workers/", true, HTTP_GET | HTTP_POST, admin_handle_worker, "admin", HTTP_ADMIN},
    {"/admin/v1/restart", false, HTTP_POST, admin_handle_restart, "admin", HTTP_ADMIN},
    {"/admin/v1/operations/", true, HTTP_GET | HTTP_DELETE, admin_handle_operation, "admin",
     HTTP_ADMIN},
    {"/admin/v1/drain", false, HTTP_GET | HTTP_POST, admin_handle_drain, "admin", HTTP_ADMIN},
    {"/admin/v1/undrain", false, HTTP_POST, admin_handle_undrain, "admin", HTTP_ADMIN},
    {"/admin/v1/reload", false, HTTP_POST, admin_handle_reload, "admin", HTTP_ADMIN},
    {"/admin/v1/requests", false, HTTP_GET, admin_handle_requests, "admin", HTTP_ADMIN},
    {"/admin/v1/requests/", true, HTTP_DELETE, admin_handle_request, "admin", HTTP_ADMIN},
    {"/admin/v1/config", false, HTTP_GET, admin_handle_config, "admin", HTTP_ADMIN},
    {"/admin/v1/log_level", false, HTTP_PUT, admin_handle_log_level, "admin", HTTP_ADMIN},
};

static void on_closed(void *arg) {
    (void)arg;
}

// Turns until the last connection is gone, then gives the listener back.
static void on_cut(uv_timer_t *t) {
    struct ops *o = t->data;
    if (listener_connections(o->listener)) {
        listener_cut(o->listener);
        return;
    }
    admin_detach(o->status.admin);
    uv_close((uv_handle_t *)&o->cut, NULL);
    uv_close((uv_handle_t *)&o->wake, NULL);
    listener_close(o->listener, on_closed, o); // turns the loop
}

static void on_wake(uv_async_t *a) {
    struct ops *o = a->data;
    listener_stop(o->listener);
    uv_timer_start(&o->cut, on_cut, listener_connections(o->listener) ? OPS_CUT_MS : 0, 50);
}

// h2o keeps freed blocks in lists of each thread and has no call that gives them back, so the thread stays, asleep,
// until the process ends: then nothing is lost.
static void run(void *arg) {
    struct ops *o = arg;
    uv_run(&o->loop, UV_RUN_DEFAULT);
    uv_loop_close(&o->loop);
    uv_sem_post(&o->over);
    for (;;) pause();
}

int ops_start(struct ops **ret, const struct ops_config *oc, struct err *e) {
    const struct config *c = oc->config;
    struct ops *o = mem_calloc(1, sizeof *o);
    o->status = (struct status_source){
        .metrics = oc->metrics, .snapshots = oc->snapshots, .admin = oc->admin};
    uv_loop_init(&o->loop);
    struct listener_config lc = {
        .loop = &o->loop,
        .address = c->ops_listen,
        .inherited = oc->fd >= 0,
        .fd = oc->fd,
        .app = o,
        .endpoints = endpoints,
        .endpoint_count = sizeof endpoints / sizeof *endpoints,
        .metrics = oc->metrics,
        .limits = {.head_bytes_max = (size_t)c->head_bytes_max,
                   .fields_max = (size_t)c->head_fields_max,
                   .uri_bytes_max = (size_t)c->uri_bytes_max,
                   .body_bytes_max = OPS_BODY_BYTES_MAX},
        .bodies_bytes_max = OPS_BODIES_BYTES_MAX,
        .body_rate_min = (double)c->body_rate_min,
        .body_rate_after_s = c->body_rate_after_s,
        .h2_streams_max = (uint32_t)c->h2_streams_max,
        .h2_resets_max = (uint32_t)c->h2_resets_max,
        .keys = oc->keys,
        .rank = -1,
        .metrics_auth = c->metrics_auth,
        .header_s = c->header_s,
        .body_s = c->body_s,
        .keepalive_s = c->keepalive_s,
        .write_stall_s = c->write_stall_s,
        .connections_max = OPS_CONNECTIONS_MAX,
        .overload_status = 429,
    };
    int st = listener_new(&o->listener, &lc, e);
    if (st) {
        err_prefix(e, "ops.listen");
        uv_run(&o->loop, UV_RUN_DEFAULT);
        uv_loop_close(&o->loop);
        free(o);
        return st;
    }
    uv_sem_init(&o->over, 0);
    uv_async_init(&o->loop, &o->wake, on_wake);
    uv_timer_init(&o->loop, &o->cut);
    o->wake.data = o->cut.data = o;
    admin_attach(oc->admin, &o->loop, listener_sends(o->listener));
    // Signals are the request loop's business.
    sigset_t all, old;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    int rc = uv_thread_create(&o->thread, run, o);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    assert(rc == 0);
    *ret = o;
    return ST_OK;
}

const char *ops_url(const struct ops *o) {
    return listener_url(o->listener);
}

void ops_stop(struct ops *o) {
    if (!o) return;
    uv_async_send(&o->wake);
    uv_sem_wait(&o->over);
    uv_sem_destroy(&o->over);
    free(o);
}
