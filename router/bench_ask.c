/* bench_ask: see bench_ask.h. */
#include "router/bench_ask.h"
#include "common/err.h"
#include "common/num.h"
#include "router/httpc.h"
#include "router/text/utf8.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- the request ---- */

enum { REFUSAL_BYTES_MAX = 64 << 10 };

// Each value is named, so that no default of a checkpoint or server has a part in it.
static const char greedy_settings[] =
    "{\"temperature\":0,\"top_p\":1,\"top_k\":0,\"min_p\":0,\"presence_penalty\":0,"
    "\"frequency_penalty\":0,\"repetition_penalty\":1}";
static const char sampled_settings[] =
    "{\"temperature\":0.8,\"top_p\":0.95,\"top_k\":50,\"min_p\":0,\"presence_penalty\":0,"
    "\"frequency_penalty\":0,\"repetition_penalty\":1}";

const char *bench_ask_settings(void) {
    static char text[sizeof greedy_settings + sizeof sampled_settings];
    snprintf(text, sizeof text, "%s %s", greedy_settings, sampled_settings);
    return text;
}

char *bench_ask_body(const struct bench_request *r) {
    json_t *o = json_loads(r->draw == BENCH_GREEDY ? greedy_settings : sampled_settings, 0, NULL);
    json_object_set_new(o, "messages", json_deep_copy(r->messages));
    json_object_set_new(o, "seed", json_integer((json_int_t)r->seed));
    json_object_set_new(o, "max_tokens", json_integer(r->tokens));
    json_object_set_new(o, "ignore_eos", json_true());
    json_object_set_new(o, "draft", json_boolean(r->draft));
    json_object_set_new(o, "stream", json_true());
    json_object_set_new(o, "stream_options", json_pack("{s:b}", "include_usage", 1));
    json_object_set_new(o, "return_token_ids", json_true());
    json_object_set_new(o, "return_logits_hash", json_true());
    if (r->salt) json_object_set_new(o, "cache_salt", json_string(r->salt));
    char *body = json_dumps(o, JSON_COMPACT);
    json_decref(o);
    return body;
}

/* ---- the reply ---- */

// The first trouble is the one that is told.
static void fail(struct bench_ask *a, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static void fail(struct bench_ask *a, const char *fmt, ...) {
    if (a->reply.failed) return;
    struct err e = {0};
    va_list ap;
    va_start(ap, fmt);
    err_setv(&e, ST_IO, fmt, ap); // one line, whatever the server said
    va_end(ap);
    struct strbuf text = {0};
    utf8_add_lossy(&text, e.msg, strlen(e.msg));
    size_t n = utf8_valid(text.p, min_size(text.len, sizeof a->reply.why - 1));
    memcpy(a->reply.why, text.p, n);
    a->reply.why[n] = '\0';
    a->reply.failed = true;
    strbuf_fini(&text);
}

static void copy_text(char *to, size_t bytes, const json_t *v) {
    const char *s = json_string_value(v);
    if (s && strlen(s) < bytes) strcpy(to, s);
}

static uint32_t count_of(const json_t *o, const char *key) {
    json_int_t n = json_integer_value(json_object_get(o, key));
    return n > 0 && n <= UINT32_MAX ? (uint32_t)n : 0;
}

static void take_ids(struct bench_ask *a, const json_t *ids) {
    size_t n = json_array_size(ids);
    if (!n) return;
    for (size_t i = 0; i < n; i++) {
        uint32_t id = (uint32_t)json_integer_value(json_array_get(ids, i));
        sha256_add_le32(a->hash, &id, 1);
    }
    a->read_ids += (uint32_t)n;
    a->read_rounds++;
}

static void take_choice(struct bench_ask *a, const json_t *c) {
    struct bench_digest *d = &a->reply.digest;
    take_ids(a, json_object_get(c, "token_ids"));
    copy_text(d->token_sha256, sizeof d->token_sha256, json_object_get(c, "token_sha256"));
    copy_text(d->logits_hash, sizeof d->logits_hash, json_object_get(c, "logits_hash"));
}

static void take_usage(struct bench_ask *a, const json_t *u) {
    if (!json_is_object(u)) return;
    a->reply.prompt_tokens = count_of(u, "prompt_tokens");
    a->reply.tokens = count_of(u, "completion_tokens");
    a->reply.cached_tokens = count_of(json_object_get(u, "prompt_tokens_details"), "cached_tokens");
}

static void take_extras(struct bench_ask *a, const json_t *x) {
    if (!json_is_object(x)) return;
    const json_t *fill = json_object_get(x, "prefill_ms");
    a->reply.rounds = count_of(x, "rounds");
    if (json_is_number(fill)) a->reply.fill_ms = json_number_value(fill);
}

static void on_event(void *arg, const char *data, size_t len) {
    struct bench_ask *a = arg;
    if (a->done) fail(a, "an event came behind [DONE]");
    if (!strcmp(data, "[DONE]")) {
        a->done = true;
        return;
    }
    json_error_t why;
    json_t *o = json_loadb(data, len, 0, &why);
    const json_t *error = json_object_get(o, "error");
    if (!json_is_object(o)) fail(a, "an event is no JSON object: %.80s", data);
    if (error) {
        const char *message = json_string_value(json_object_get(error, "message"));
        fail(a, "error event: %.150s", message ? message : data);
    }
    take_choice(a, json_array_get(json_object_get(o, "choices"), 0));
    take_usage(a, json_object_get(o, "usage"));
    take_extras(a, json_object_get(o, "railyard"));
    json_decref(o);
}

// What came in one read came at one time, however many chunks and events it was.
static void end_read(struct bench_ask *a) {
    if (a->read_rounds)
        bench_arrivals_add(&a->arrivals, a->read_ns, a->read_ids, a->read_rounds, a->gaps);
    a->read_ids = a->read_rounds = 0;
}

static void on_head(void *arg, int status) {
    ((struct bench_ask *)arg)->status = status;
}

static void on_body(void *arg, const char *p, size_t len) {
    struct bench_ask *a = arg;
    struct err e = {0};
    if (a->status != 200) {
        if (a->refusal.len < REFUSAL_BYTES_MAX) strbuf_add(&a->refusal, p, len);
        return;
    }
    if (httpc_read_ns(a->http) != a->read_ns) end_read(a);
    a->read_ns = httpc_read_ns(a->http);
    if (sse_feed(&a->sse, p, len, &e)) {
        fail(a, "%s", e.msg);
        httpc_cancel(a->http);
    }
}

static void fail_refused(struct bench_ask *a) {
    json_t *o = json_loadb(strbuf_str(&a->refusal), a->refusal.len, 0, NULL);
    const char *message =
        json_string_value(json_object_get(json_object_get(o, "error"), "message"));
    fail(a, "status %d: %.150s", a->status, message ? message : strbuf_str(&a->refusal));
    json_decref(o);
}

// Whether the reply that came is one that can be measured and compared.
static void judge(struct bench_ask *a) {
    const struct bench_reply *r = &a->reply;
    uint8_t digest[SHA256_BYTES];
    char hex[SHA256_HEX_BYTES];
    sha256_digest(a->hash, digest);
    sha256_hex(digest, hex);
    if (a->status != 200)
        fail_refused(a);
    else if (sse_inside(&a->sse) || !a->done)
        fail(a, "the stream ended without [DONE]");
    else if (!*r->digest.token_sha256)
        fail(a, "the reply has no token_sha256; is this a railyard server?");
    else if (strcmp(r->digest.token_sha256, hex))
        fail(a, "token_sha256 is not the hash of the %u ids that came", a->arrivals.ids);
    else if (r->tokens != a->tokens_wanted || a->arrivals.ids != a->tokens_wanted)
        fail(a, "wanted %u tokens, found %u ids and a usage of %u", a->tokens_wanted,
             a->arrivals.ids, r->tokens);
    else if (a->must_be_cold && r->cached_tokens)
        fail(a, "wanted no kept prompt, found %u tokens of one", r->cached_tokens);
}

static void on_end(void *arg, int st, const struct err *e) {
    struct bench_ask *a = arg;
    end_read(a);
    if (st) fail(a, "%s", e->msg);
    judge(a);
    a->sent_ns = httpc_sent_ns(a->http);
    if (a->arrivals.rounds)
        a->reply.first_token_ms = (double)(a->arrivals.first_ns - a->sent_ns) / 1e6;
    a->reply.tokens_per_s = bench_rate_per_s(bench_arrivals_rate(&a->arrivals, 1));
    if (!a->reply.rounds) a->reply.rounds = a->arrivals.rounds;
    a->over = true;
    sse_fini(&a->sse);
    sha256_free(a->hash);
    strbuf_fini(&a->refusal);
}

void bench_ask_start(struct bench_ask *a, uv_loop_t *loop, const struct bench_target *t,
                     const struct bench_request *r, struct bench_list *gaps) {
    *a = (struct bench_ask){.gaps = gaps,
                            .hash = sha256_new(),
                            .tokens_wanted = r->tokens,
                            .must_be_cold = r->salt != NULL,
                            .sse = {.on_event = on_event, .arg = a},
                            .reply = {.first_token_ms = NAN, .fill_ms = NAN, .tokens_per_s = NAN}};
    char *body = bench_ask_body(r);
    struct httpc_request q = {.method = "POST",
                              .path = "/v1/chat/completions",
                              .key = t->key,
                              .body = body,
                              .body_len = strlen(body),
                              .stall_ms = t->stall_ms};
    struct httpc_events events = {a, on_head, on_body, on_end};
    a->http = httpc_start(loop, t->address, &q, &events);
    free(body);
}
