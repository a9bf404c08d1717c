/* api_status: see api_status.h. The thread of the listener that was asked. */
#include "router/api_status.h"
#include "common/mono.h"
#include "common/strbuf.h"
#include "common/version.h"
#include "router/apierr.h"
#include "router/backend.h"
#include "router/config.h"
#include "router/http.h"
#include "router/jsontext.h"
#include "router/listen.h"
#include "router/metrics.h"
#include "router/send.h"
#include "router/snapshot.h"

#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

const struct snapshot *api_status_snapshot(const struct status_source *s) {
    return s->is_writer ? snapshots_own(s->snapshots) : snapshots_read(s->snapshots);
}

static void reply_json(struct http_call *c, int status, struct strbuf *body) {
    strbuf_add_char(body, '\n');
    send_reply(c,
               &SEND_HEAD(.status = status, .content_type = "application/json",
                          .retry_after_ms = status == 503 ? 1000 : 0),
               body->p, body->len);
    strbuf_fini(body);
}

static void add_text(struct strbuf *out, const char *key, const char *s) {
    strbuf_printf(out, ",\"%s\":", key);
    jsontext_string(out, s, strlen(s));
}

void api_status_livez(struct http_call *c) {
    const struct status_source *s = c->app;
    struct strbuf body = {0};
    uint64_t now = mono_ms(), beat = snapshots_last_beat_ms(s->snapshots);
    uint64_t still_ms = mono_since(beat, now);
    bool stalled = (double)still_ms > api_status_snapshot(s)->config->loop_stall_s * 1000;
    if (stalled)
        strbuf_printf(&body,
                      "{\"status\":\"stalled\",\"loop\":\"api0\",\"stalled_ms\":%" PRIu64 "}",
                      still_ms);
    else
        strbuf_add_str(&body, "{\"status\":\"ok\"}");
    reply_json(c, stalled ? 503 : 200, &body);
}

// NULL: ready.
static const char *why_not_ready(const struct snapshot *shot) {
    if (shot->draining) return "draining";
    if (shot->ready >= (uint32_t)shot->config->ready_workers_min) return NULL;
    if (!shot->ever_ready) return "loading";
    return shot->ready ? "too_few_ready_workers" : "no_ready_worker";
}

static void not_ready_error(struct strbuf *out, const char *why, bool ending) {
    strbuf_printf(out,
                  ",\"error\":{\"code\":503,\"message\":\"%s\",\"type\":\"unavailable_error\"}",
                  !strcmp(why, "loading")           ? "Loading model"
                  : ending                          ? "Shutting down"
                  : !strcmp(why, "draining")        ? "Draining"
                  : !strcmp(why, "no_ready_worker") ? "No ready worker"
                                                    : "Too few ready workers");
}

// Of the worker whose port was asked.
static void worker_ready(struct http_call *c, uint32_t rank, bool with_error) {
    const struct snapshot *shot = api_status_snapshot(c->app);
    const struct snapshot_worker *w = NULL;
    struct strbuf body = {0};
    for (uint32_t i = 0; i < shot->worker_count; i++)
        if (shot->workers[i].rank == rank) w = &shot->workers[i];
    int state = w ? w->state : BACKEND_STOPPED;
    bool is_ready = state == BACKEND_READY;
    bool loading = state == BACKEND_STARTING || state == BACKEND_LOADING;
    const char *why = shot->draining || state == BACKEND_DRAINING ? "draining"
                      : is_ready                                  ? NULL
                      : loading                                   ? "loading"
                                                                  : "no_ready_worker";
    strbuf_printf(&body,
                  "{\"status\":\"%s\",\"workers\":{\"ready\":%d,\"total\":1},"
                  "\"queue\":{\"requests\":%u,\"tokens\":%" PRIu64 "}",
                  why ? why : "ok", is_ready, w ? w->pinned + w->queue_requests : 0,
                  w ? w->queue_tokens : 0);
    if (why && w && *w->fault) add_text(&body, "reason", w->fault);
    if (why && with_error) not_ready_error(&body, why, shot->ending);
    strbuf_add_char(&body, '}');
    reply_json(c, why ? 503 : 200, &body);
}

// Of a count of ready workers below the one that is wanted.
static void add_shortage(struct strbuf *out, const struct snapshot *shot,
                         enum snapshot_reader reader) {
    char fault[SNAPSHOT_REASONS_BYTES], text[SNAPSHOT_REASONS_BYTES + 96] = "";
    snapshot_fault(shot, reader, fault,
                   reader == SNAPSHOT_CLIENT ? SNAPSHOT_FAULTS_BYTES : sizeof fault);
    if (shot->ready)
        snprintf(text, sizeof text, "%u worker%s ready, and ready.workers_min is %" PRId64 "%s",
                 shot->ready, shot->ready == 1 ? "" : "s", shot->config->ready_workers_min,
                 *fault ? "; " : "");
    strncat(text, fault, sizeof text - strlen(text) - 1);
    if (*text) add_text(out, "reason", text);
}

static void all_ready(struct http_call *c, bool with_error) {
    const struct status_source *s = c->app;
    const struct snapshot *shot = api_status_snapshot(s);
    const char *why = why_not_ready(shot);
    int64_t wanted = shot->config->ready_workers_min;
    struct strbuf body = {0};
    uint64_t requests, tokens;
    metrics_get_queue(s->metrics, &requests, &tokens);
    strbuf_printf(&body,
                  "{\"status\":\"%s\",\"workers\":{\"ready\":%u,\"wanted\":%" PRId64
                  ",\"total\":%u},\"queue\":{\"requests\":%" PRIu64 ",\"tokens\":%" PRIu64 "}",
                  why ? why : "ok", shot->ready, wanted, shot->total, requests, tokens);
    // What is no listener of the API is the operator's.
    enum snapshot_reader reader = s->is_writer ? SNAPSHOT_CLIENT : SNAPSHOT_OPERATOR;
    if (why && shot->ready < wanted) add_shortage(&body, shot, reader);
    if (why && with_error) not_ready_error(&body, why, shot->ending);
    strbuf_add_char(&body, '}');
    reply_json(c, why ? 503 : 200, &body);
}

static void ready(struct http_call *c, bool with_error) {
    int32_t rank = listener_rank(c->listener);
    if (rank >= 0) {
        worker_ready(c, (uint32_t)rank, with_error);
        return;
    }
    all_ready(c, with_error);
}

void api_status_readyz(struct http_call *c) {
    ready(c, false);
}

void api_status_health(struct http_call *c) {
    ready(c, true);
}

void api_status_metrics(struct http_call *c) {
    const struct status_source *s = c->app;
    struct strbuf body = {0};
    metrics_write(s->metrics, api_status_snapshot(s), listener_rank(c->listener), mono_ms(), &body);
    send_reply(
        c, &SEND_HEAD(.status = 200, .content_type = "text/plain; version=0.0.4; charset=utf-8"),
        body.p, body.len);
    strbuf_fini(&body);
}

// ,"key":[...]: the different texts that the workers have in one field; prefix goes before each.
static void add_distinct(struct strbuf *out, const struct snapshot *s, const char *key,
                         const char *prefix, size_t field) {
    bool any = false;
    strbuf_printf(out, ",\"%s\":[", key);
    for (uint32_t i = 0; i < s->worker_count; i++) {
        const char *text = (const char *)&s->workers[i] + field;
        bool again = !*text;
        for (uint32_t j = 0; j < i && !again; j++)
            again = !strcmp(text, (const char *)&s->workers[j] + field);
        if (again) continue;
        struct strbuf whole = {0};
        strbuf_printf(&whole, "%s%s", prefix, text);
        if (any) strbuf_add_char(out, ',');
        jsontext_string(out, whole.p, whole.len);
        strbuf_fini(&whole);
        any = true;
    }
    strbuf_add_char(out, ']');
}

void api_status_version(struct http_call *c) {
    const struct snapshot *shot = api_status_snapshot(c->app);
    struct strbuf body = {0};
    char prefix[64];
    snprintf(prefix, sizeof prefix, "b%s-", version_string());
    strbuf_printf(&body, "{\"version\":\"%s\",\"commit\":\"%s\"", version_string(),
                  version_commit());
    add_distinct(&body, shot, "fingerprints", prefix,
                 offsetof(struct snapshot_worker, fingerprint));
    add_distinct(&body, shot, "checkpoints", "", offsetof(struct snapshot_worker, checkpoint));
    add_distinct(&body, shot, "devices", "", offsetof(struct snapshot_worker, device));
    strbuf_add_char(&body, '}');
    reply_json(c, 200, &body);
}

static uint64_t age_ms(uint64_t then, uint64_t now) {
    return then ? mono_since(then, now) : 0;
}

// Every part in GiB, with what is pinned of the host and what is left of the card.
static void add_memory(struct strbuf *out, const struct snapshot_worker *w) {
    strbuf_add_str(out, ",\"memory\":{\"embedding\":");
    jsontext_string(out, w->embedding, strlen(w->embedding));
    strbuf_add_str(out, ",\"gib\":{");
    for (uint32_t i = 0; i < w->memory_count; i++) {
        if (i) strbuf_add_char(out, ',');
        jsontext_string(out, w->memory[i].name, strlen(w->memory[i].name));
        strbuf_printf(out, ":%.6f", (double)w->memory[i].bytes / (1 << 30));
    }
    strbuf_add_str(out, "}}");
}

static void add_worker(struct strbuf *out, const struct snapshot *shot,
                       const struct snapshot_worker *w, uint64_t now) {
    strbuf_printf(out, "{\"rank\":%u", w->rank);
    add_text(out, "name", w->name);
    add_text(out, "state", backend_state_name((enum backend_state)w->state));
    add_text(out, "reason", w->reason);
    strbuf_printf(out, ",\"router_draining\":%s", shot->draining ? "true" : "false");
    strbuf_printf(out, ",\"since_ms\":%" PRIu64 ",\"pid\":%u,\"generation\":%u,\"supervised\":%s",
                  age_ms(w->since_ms, now), w->pid, w->generation,
                  w->supervised ? "true" : "false");
    strbuf_add_str(out, ",\"gpu\":{\"name\":");
    jsontext_string(out, w->gpu_name, strlen(w->gpu_name));
    add_text(out, "uuid", w->gpu_uuid);
    add_text(out, "pci", w->gpu_pci);
    strbuf_add_char(out, '}');
    add_text(out, "fingerprint", w->fingerprint);
    add_text(out, "model", w->model);
    add_text(out, "version", w->version);
    strbuf_printf(
        out,
        ",\"context_max\":%u,\"streams\":{\"running\":%u,\"max\":%u,\"room\":%u,\"sent\":%u},"
        "\"queue\":{\"requests\":%u,\"tokens\":%" PRIu64 "},"
        "\"kv\":{\"blocks_total\":%u,\"blocks_used\":%u,\"block_tokens\":%u},"
        "\"kept_prefix_tokens\":%" PRIu64 ",\"fill_tokens_per_s\":",
        w->context_max, w->streams_running, w->streams_max, w->room, w->streams_sent,
        w->queue_requests, w->queue_tokens, w->kv_blocks_total, w->kv_blocks_used,
        w->kv_block_tokens, w->kept_prefix_tokens);
    jsontext_real(out, w->fill_tokens_per_s);
    strbuf_add_str(out, ",\"round_ms\":");
    jsontext_real(out, w->round_ms);
    add_memory(out, w);
    strbuf_printf(out,
                  ",\"restarts\":%" PRIu64 ",\"rounds\":%" PRIu64 ",\"tokens\":%" PRIu64
                  ",\"last_progress_ms\":%" PRIu64 ",\"uptime_s\":%" PRIu64 "}",
                  w->restarts, w->rounds, w->tokens, age_ms(w->last_progress_ms, now),
                  w->up_ms / 1000);
}

void api_status_workers(struct http_call *c) {
    const struct snapshot *shot = api_status_snapshot(c->app);
    struct strbuf body = {0};
    uint64_t now = mono_ms();
    strbuf_add_char(&body, '[');
    for (uint32_t i = 0; i < shot->worker_count; i++) {
        if (i) strbuf_add_char(&body, ',');
        add_worker(&body, shot, &shot->workers[i], now);
    }
    strbuf_add_char(&body, ']');
    reply_json(c, 200, &body);
}

bool api_status_add_worker(const struct status_source *s, uint32_t rank, struct strbuf *out,
                           char ret_state[24], bool *ret_stays_down) {
    const struct snapshot *shot = api_status_snapshot(s);
    for (uint32_t i = 0; i < shot->worker_count; i++) {
        const struct snapshot_worker *w = &shot->workers[i];
        if (w->rank != rank) continue;
        snprintf(ret_state, 24, "%s", backend_state_name((enum backend_state)w->state));
        *ret_stays_down = w->supervised && w->state == BACKEND_FAILED;
        add_worker(out, shot, w, mono_ms());
        return true;
    }
    return false;
}
