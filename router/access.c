/* access: see access.h. */
#include "router/access.h"
#include "common/err.h"
#include "common/log.h"
#include "common/logfd.h"
#include "common/mem.h"
#include "common/mono.h"
#include "common/strbuf.h"
#include "router/http.h"
#include "router/jsontext.h"
#include "router/keys.h"
#include "router/listen.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

struct access_log {
    bool on, is_stderr;
    int fd; // -1: stderr or off
    struct logfd out;
    char *path; // NULL: no file
};

int access_open(struct access_log **ret, const char *where, struct err *e) {
    int fd = -1;
    bool is_stderr = !strcmp(where, "stderr"), off = !*where || !strcmp(where, "off");
    if (!is_stderr && !off) {
        // A pipe that nobody reads is refused here and now rather than waited for.
        fd = open(where, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NONBLOCK, 0640);
        if (fd < 0) return err_errno(e, "open log.access '%s'", where);
    }
    struct access_log *l = mem_calloc(1, sizeof *l);
    *l = (struct access_log){.on = !off, .is_stderr = is_stderr, .fd = fd};
    logfd_open(&l->out, fd);
    l->path = fd >= 0 ? mem_strdup(where) : NULL;
    *ret = l;
    return ST_OK;
}

void access_reopen(struct access_log *l) {
    struct err e = {0};
    if (!l->path) return;
    int fd = open(l->path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0640);
    if (fd < 0) {
        err_errno(&e, "open log.access '%s'", l->path);
        log_warn("reopen", "reason=\"%s\"", e.msg);
        return;
    }
    logfd_close(&l->out);
    close(l->fd);
    l->fd = fd;
    logfd_open(&l->out, fd);
}

void access_close(struct access_log *l) {
    if (!l) return;
    free(l->path);
    logfd_close(&l->out);
    if (l->fd >= 0) close(l->fd);
    free(l);
}

static void add_text(struct strbuf *b, const char *key, const char *s, size_t len) {
    strbuf_printf(b, ",\"%s\":", key);
    if (s)
        jsontext_string(b, s, len);
    else
        strbuf_add_str(b, "null");
}

static void add_str(struct strbuf *b, const char *key, const char *s) {
    add_text(b, key, s, s ? strlen(s) : 0);
}

static void add_time(struct strbuf *b) {
    struct timespec ts;
    struct tm tm;
    char text[40];
    clock_gettime(CLOCK_REALTIME, &ts);
    gmtime_r(&ts.tv_sec, &tm);
    strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%S", &tm);
    strbuf_printf(b, "{\"time\":\"%s.%03ldZ\"", text, ts.tv_nsec / 1000000);
}

static void add_facts(struct strbuf *b, const struct access_facts *f, const char *model) {
    if (!f->generated) return;
    add_str(b, "id", f->id);
    add_str(b, "model", model);
    if (f->worker >= 0) strbuf_printf(b, ",\"worker\":%d", f->worker);
    strbuf_printf(b,
                  ",\"stream\":%s,\"n\":%u,\"prompt_tokens\":%u,\"cached_tokens\":%u,"
                  "\"completion_tokens\":%u,\"reasoning_tokens\":%u",
                  f->stream ? "true" : "false", f->n, f->prompt_tokens, f->cached_tokens,
                  f->completion_tokens, f->reasoning_tokens);
    add_str(b, "finish_reason", f->finish_reason);
    strbuf_printf(b, ",\"queue_ms\":%.1f,\"prefill_ms\":%.1f,\"first_token_ms\":%.1f", f->queue_ms,
                  f->prefill_ms, f->first_token_ms);
    strbuf_printf(b, ",\"rounds\":%llu,\"drafted\":%llu,\"accepted\":%llu,\"resumed\":%u",
                  (unsigned long long)f->rounds, (unsigned long long)f->drafted,
                  (unsigned long long)f->accepted, f->resumed);
    add_str(b, "token_sha256", *f->token_sha256 ? f->token_sha256 : NULL);
}

static const char *protocol(const struct http_call *c) {
    return c->req->version >= 0x200 ? "h2" : c->req->version >= 0x101 ? "http/1.1" : "http/1.0";
}

void access_write(struct access_log *l, const struct http_call *c, const char *model) {
    if (!l->on) return;
    const struct access_facts *f = &c->facts;
    struct strbuf b = {0};
    add_time(&b);
    add_str(&b, "request_id", c->request_id);
    add_str(&b, "client_request_id", c->has_client_id ? c->request_id : NULL);
    h2o_iovec_t trace = http_header(c->req, "traceparent");
    if (trace.len && trace.len <= 128) add_text(&b, "trace_id", trace.base, trace.len);
    add_str(&b, "key", c->key ? c->key->name : NULL);
    add_str(&b, "remote", c->remote);
    add_str(&b, "proto", protocol(c));
    size_t method_len = c->req->input.method.len;
    add_text(&b, "method", c->req->input.method.base, method_len < 32 ? method_len : 32);
    add_str(&b, "endpoint", c->endpoint ? c->endpoint->name : "none");
    strbuf_printf(&b, ",\"status\":%d", c->status);
    add_str(&b, "code", f->code);
    add_facts(&b, f, model);
    strbuf_printf(&b, ",\"total_ms\":%.1f,\"bytes_in\":%zu,\"bytes_out\":%zu}\n",
                  (double)(mono_us() - c->begun_us) / 1000, c->req->entity.len, c->bytes_out);
    access_flush(l);
    if (l->is_stderr)
        log_raw(b.p, b.len);
    else
        logfd_write(&l->out, b.p, b.len);
    strbuf_fini(&b);
}

void access_flush(struct access_log *l) {
    uint64_t dropped = l->is_stderr ? 0 : logfd_take_dropped(&l->out); // the log counts its own
    if (!dropped) return;
    struct strbuf b = {0};
    add_time(&b);
    strbuf_printf(&b, ",\"dropped\":%llu}\n", (unsigned long long)dropped);
    logfd_write(&l->out, b.p, b.len);
    strbuf_fini(&b);
}
