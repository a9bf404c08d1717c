/* api_chat: see api_chat.h. What decides is request.c; here is only the shape of chat replies. */
#include "router/api_chat.h"
#include "common/strbuf.h"
#include "router/apierr.h"
#include "router/config.h"
#include "router/http.h"
#include "router/jsontext.h"
#include "router/model.h"
#include "router/request.h"
#include "router/send.h"
#include "router/server.h"

#include <string.h>

static void add_json(struct strbuf *out, const char *s) {
    jsontext_string(out, s, strlen(s));
}

/* ---- parts of both shapes ---- */

static void add_head(struct strbuf *out, const struct request *r, const char *object) {
    const char *model = r->params.model ? r->params.model : r->server->model->names[0];
    strbuf_printf(out, "{\"id\":\"%s\",\"object\":\"%s\",\"created\":%lld,\"model\":", r->id,
                  object, (long long)r->created_s);
    add_json(out, model);
    strbuf_printf(out, ",\"system_fingerprint\":\"%s\"", r->fingerprint);
}

static void add_ids(struct strbuf *out, const char *key, const uint32_t *v, size_t count) {
    strbuf_printf(out, ",\"%s\":[", key);
    for (size_t i = 0; i < count; i++) strbuf_printf(out, i ? ",%u" : "%u", v[i]);
    strbuf_add_char(out, ']');
}

// The ids that no earlier part of the reply has told.
static void add_new_ids(struct strbuf *out, struct request *r) {
    if (!r->params.return_token_ids) return;
    add_ids(out, "token_ids", r->ids.v + r->sent_ids, r->taken - r->sent_ids);
    r->sent_ids = r->taken;
}

static void add_reasoning(struct strbuf *out, const struct request *r, const struct strbuf *text) {
    const char *fields = r->server->config->reasoning_fields;
    bool content = strcmp(fields, "reasoning"), plain = strcmp(fields, "reasoning_content");
    if (content) {
        strbuf_add_str(out, "\"reasoning_content\":");
        jsontext_string(out, strbuf_str(text), text->len);
    }
    if (plain) {
        strbuf_add_str(out, content ? ",\"reasoning\":" : "\"reasoning\":");
        jsontext_string(out, strbuf_str(text), text->len);
    }
}

static void add_usage(struct strbuf *out, const struct request *r) {
    struct request_usage u = request_usage(r);
    strbuf_printf(out,
                  "\"usage\":{\"prompt_tokens\":%u,\"completion_tokens\":%u,\"total_tokens\":%llu,"
                  "\"prompt_tokens_details\":{\"cached_tokens\":%u},"
                  "\"completion_tokens_details\":{\"reasoning_tokens\":%u}}",
                  u.prompt, u.completion, (unsigned long long)u.prompt + u.completion, u.cached,
                  u.reasoning);
}

static void add_logits_hash(struct strbuf *out, const struct request *r) {
    if (!r->params.return_logits_hash) return;
    if (r->has_logits_hash)
        strbuf_printf(out, ",\"logits_hash\":\"%016llx\"", (unsigned long long)r->logits_hash);
    else
        strbuf_add_str(out, ",\"logits_hash\":null");
}

// ",\"railyard\":{...}": facts of this run.
static void add_extras(struct strbuf *out, const struct request *r) {
    if (!r->server->config->reply_extras) return;
    strbuf_printf(
        out,
        ",\"railyard\":{\"worker\":%d,\"queue_ms\":%.3f,\"prefill_ms\":%.3f,"
        "\"first_token_ms\":%.3f,\"decode_ms\":%.3f,\"rounds\":%llu,\"drafted\":%llu,"
        "\"accepted\":%llu,\"tokens_per_round\":%.3f,\"resumed\":%u,\"schema_ignored\":[]",
        r->rank, request_queue_ms(r), request_prefill_ms(r), request_first_token_ms(r),
        request_decode_ms(r), (unsigned long long)r->rounds, (unsigned long long)r->drafted,
        (unsigned long long)r->accepted, r->rounds ? (double)r->taken / (double)r->rounds : 0.0,
        r->resume.times);
    add_logits_hash(out, r);
    strbuf_add_char(out, '}');
}

static const char *finish_name(const struct request *r) {
    return r->finish == REQUEST_FINISH_STOP ? "stop" : "length";
}

static void add_stop_reason(struct strbuf *out, const struct request *r) {
    size_t len;
    const char *s = reply_stop_string(r->reply, &len);
    strbuf_add_str(out, ",\"stop_reason\":");
    if (s)
        jsontext_string(out, s, len);
    else if (r->stop_id >= 0)
        strbuf_printf(out, "%lld", (long long)r->stop_id);
    else
        strbuf_add_str(out, "null");
}

// What stands behind a choice's text: how it ended, and what makes it repeatable.
static void add_end(struct strbuf *out, const struct request *r) {
    char hash[65];
    reply_token_sha256(r->reply, hash);
    strbuf_printf(out, ",\"seed\":%llu,\"token_sha256\":\"%s\"", (unsigned long long)r->params.seed,
                  hash);
    add_logits_hash(out, r);
}

static struct send_head head_of(const struct request *r, int status, const char *type) {
    struct send_head h = SEND_HEAD(.status = status, .content_type = type);
    if (!r->server->config->reply_headers) return h;
    h.worker = r->rank;
    if (r->submitted_us) h.queue_ms = (int64_t)request_queue_ms(r);
    if (r->first_us) h.first_token_ms = (int64_t)request_first_token_ms(r);
    return h;
}

/* ---- whole ---- */

static void whole_delta(struct request *r, const struct reply_delta *d) {
    strbuf_add(&r->reasoning, strbuf_str(&d->reasoning), d->reasoning.len);
    strbuf_add(&r->content, strbuf_str(&d->content), d->content.len);
}

static void add_message(struct strbuf *out, const struct request *r) {
    strbuf_add_str(out, "\"message\":{\"role\":\"assistant\",\"content\":");
    jsontext_string(out, strbuf_str(&r->content), r->content.len);
    if (r->reasoning.len && r->params.include_reasoning) {
        strbuf_add_char(out, ',');
        add_reasoning(out, r, &r->reasoning);
    }
    strbuf_add_str(out, ",\"refusal\":null}");
}

static void whole_finish(struct request *r) {
    struct strbuf out = {0};
    add_head(&out, r, "chat.completion");
    if (r->params.return_token_ids) add_ids(&out, "prompt_token_ids", r->prompt.v, r->prompt.len);
    strbuf_printf(&out, ",\"choices\":[{\"index\":0,\"finish_reason\":\"%s\"", finish_name(r));
    add_stop_reason(&out, r);
    strbuf_add_str(&out, ",\"logprobs\":null,");
    add_message(&out, r);
    add_end(&out, r);
    add_new_ids(&out, r);
    strbuf_add_str(&out, "}],");
    add_usage(&out, r);
    add_extras(&out, r);
    strbuf_add_char(&out, '}');
    struct send_head h = head_of(r, 200, "application/json");
    h.processing_ms = (int64_t)(request_first_token_ms(r) + request_decode_ms(r));
    send_whole(r->send, &h, out.p, out.len);
    strbuf_fini(&out);
}

static void whole_begin(struct request *r) {
    (void)r; // nothing leaves before the whole reply
}

static void whole_error(struct request *r, const struct apierr *e) {
    send_error(r->send, e);
}

static const struct request_format whole = {whole_begin, whole_delta, whole_finish, whole_error};

/* ---- streamed ---- */

static void stream_begin(struct request *r) {
    struct send_head h = head_of(r, 200, "text/event-stream; charset=utf-8");
    h.stream = true;
    send_begin(r->send, &h);
}

static struct strbuf *open_chunk(struct request *r) {
    if (!r->chunk_head.len) {
        strbuf_add_str(&r->chunk_head, "data: ");
        add_head(&r->chunk_head, r, "chat.completion.chunk");
    }
    struct strbuf *out = send_buffer(r->send);
    strbuf_add(out, r->chunk_head.p, r->chunk_head.len);
    return out;
}

// railyard: the object of extras belongs here too.
static void close_chunk(struct strbuf *out, struct request *r, bool with_usage, bool with_extras) {
    const struct params *p = &r->params;
    if (with_usage || p->continuous_usage) {
        strbuf_add_char(out, ',');
        add_usage(out, r);
    } else if (p->include_usage) {
        strbuf_add_str(out, ",\"usage\":null");
    }
    if (with_extras) add_extras(out, r);
    strbuf_add_str(out, "}\n\n");
}

// The first chunk: who speaks. Once the prompt's ids, when asked for.
static void send_role(struct request *r) {
    if (r->role_sent) return;
    r->role_sent = true;
    struct strbuf *out = open_chunk(r);
    if (r->params.return_token_ids) add_ids(out, "prompt_token_ids", r->prompt.v, r->prompt.len);
    strbuf_add_str(out,
                   ",\"choices\":[{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"\"},"
                   "\"logprobs\":null,\"finish_reason\":null}]");
    close_chunk(out, r, false, false);
}

// One chunk with one kind of text, or with ids alone (text NULL).
static void send_text(struct request *r, const struct strbuf *text, bool is_reasoning) {
    struct strbuf *out = open_chunk(r);
    strbuf_add_str(out, ",\"choices\":[{\"index\":0,\"delta\":{");
    if (text && is_reasoning) {
        add_reasoning(out, r, text);
    } else if (text) {
        strbuf_add_str(out, "\"content\":");
        jsontext_string(out, text->p, text->len);
    }
    strbuf_add_str(out, "},\"logprobs\":null,\"finish_reason\":null");
    add_new_ids(out, r);
    strbuf_add_str(out, "}]");
    close_chunk(out, r, false, false);
}

static void stream_delta(struct request *r, const struct reply_delta *d) {
    bool reasoning = d->reasoning.len && r->params.include_reasoning;
    bool ids_alone = !reasoning && !d->content.len && r->params.return_token_ids;
    if (!reasoning && !d->content.len && !ids_alone) return;
    if (!send_begun(r->send)) stream_begin(r);
    send_role(r);
    if (reasoning) send_text(r, &d->reasoning, true);
    if (d->content.len) send_text(r, &d->content, false);
    if (ids_alone && r->sent_ids < r->taken) send_text(r, NULL, false);
    r->any_text = true;
    send_touch(r->send);
}

static void send_finish(struct request *r) {
    struct strbuf *out = open_chunk(r);
    strbuf_printf(
        out, ",\"choices\":[{\"index\":0,\"delta\":{},\"logprobs\":null,\"finish_reason\":\"%s\"",
        finish_name(r));
    add_stop_reason(out, r);
    add_end(out, r);
    if (r->sent_ids < r->taken) add_new_ids(out, r);
    strbuf_add_str(out, "}]");
    close_chunk(out, r, false, !r->params.include_usage);
}

// The last event, the end mark and the end of the body: one write.
static void stream_finish(struct request *r) {
    if (!send_begun(r->send)) stream_begin(r);
    send_role(r);
    send_finish(r);
    if (r->params.include_usage) {
        struct strbuf *out = open_chunk(r);
        strbuf_add_str(out, ",\"choices\":[]");
        close_chunk(out, r, true, true);
    }
    strbuf_add_str(send_buffer(r->send), "data: [DONE]\n\n");
    send_end(r->send);
}

static void stream_error(struct request *r, const struct apierr *e) {
    if (!send_begun(r->send)) {
        send_error(r->send, e);
        return;
    }
    struct strbuf *out = send_buffer(r->send);
    strbuf_add_str(out, "data: ");
    apierr_body(e, r->request_id, out);
    strbuf_add_str(out, "\n\n");
    if (r->server->config->done_after_error) strbuf_add_str(out, "data: [DONE]\n\n");
    send_end(r->send);
}

static const struct request_format streamed = {stream_begin, stream_delta, stream_finish,
                                               stream_error};

/* ---- which ---- */

// Whether a reply is streamed is known only when the body has been read.
static const struct request_format *shape(const struct request *r) {
    return r->params.stream ? &streamed : &whole;
}

static void chat_begin(struct request *r) {
    shape(r)->begin(r);
}

static void chat_delta(struct request *r, const struct reply_delta *d) {
    shape(r)->delta(r, d);
}

static void chat_finish(struct request *r) {
    shape(r)->finish(r);
}

static void chat_error(struct request *r, const struct apierr *e) {
    shape(r)->error(r, e);
}

static const struct request_format chat = {chat_begin, chat_delta, chat_finish, chat_error};

void api_chat_handle(struct http_call *c) {
    struct apierr e;
    if (http_check_json_type(c, &e))
        send_reply_error(c, &e);
    else
        request_start(c->app, c, &chat, "chatcmpl-");
}
