/* shape: see shape.h. */
#include "router/shape.h"
#include "common/mem.h"
#include "common/num.h"
#include "common/strbuf.h"
#include "router/apierr.h"
#include "router/config.h"
#include "router/jsontext.h"
#include "router/model.h"
#include "router/request.h"
#include "router/send.h"
#include "router/server.h"
#include "router/text/tokenizer.h"

#include <stdio.h>
#include <string.h>

void shape_text(struct strbuf *out, const char *s, size_t len) {
    jsontext_string(out, s, len);
}

void shape_head(struct strbuf *out, const struct request *r, const char *object) {
    const char *model = r->params.model ? r->params.model : r->server->model->names[0];
    strbuf_printf(out, "{\"id\":\"%s\",\"object\":\"%s\",\"created\":%lld,\"model\":", r->id,
                  object, (long long)r->created_s);
    shape_text(out, model, strlen(model));
    if (*r->fingerprint)
        strbuf_printf(out, ",\"system_fingerprint\":\"%s\"", r->fingerprint);
    else // no worker has had it
        strbuf_add_str(out, ",\"system_fingerprint\":null");
}

void shape_ids(struct strbuf *out, const char *key, const uint32_t *v, size_t count) {
    strbuf_printf(out, ",\"%s\":[", key);
    for (size_t i = 0; i < count; i++) strbuf_printf(out, i ? ",%u" : "%u", v[i]);
    strbuf_add_char(out, ']');
}

void shape_new_ids(struct strbuf *out, struct choice *c) {
    if (!c->request->params.return_token_ids) return;
    shape_ids(out, "token_ids", c->ids.v + c->sent_ids, c->taken - c->sent_ids);
    c->sent_ids = c->taken;
}

void shape_usage(struct strbuf *out, const struct request *r) {
    struct request_usage u = request_usage(r);
    strbuf_printf(out,
                  "\"usage\":{\"prompt_tokens\":%u,\"completion_tokens\":%u,\"total_tokens\":%llu,"
                  "\"prompt_tokens_details\":{\"cached_tokens\":%u},"
                  "\"completion_tokens_details\":{\"reasoning_tokens\":%u}}",
                  u.prompt, u.completion, (unsigned long long)u.prompt + u.completion, u.cached,
                  u.reasoning);
}

static void add_logits_hash(struct strbuf *out, const struct choice *c) {
    if (!c->request->params.return_logits_hash) return;
    if (c->has_logits_hash)
        strbuf_printf(out, ",\"logits_hash\":\"%016llx\"", (unsigned long long)c->logits_hash);
    else
        strbuf_add_str(out, ",\"logits_hash\":null");
}

// Of the kinds that there were: "drafts":{"mtp":{"drafted":12,"accepted":9}}
static void add_drafts(struct strbuf *out, const struct request_figures *f) {
    const char *comma = "";
    strbuf_add_str(out, ",\"drafts\":{");
    for (uint32_t k = 0; k < FRAME_DRAFT_KINDS; k++) {
        if (!f->drafted_by[k]) continue;
        strbuf_printf(out, "%s\"%s\":{\"drafted\":%llu,\"accepted\":%llu}", comma,
                      frame_draft_kind(k), (unsigned long long)f->drafted_by[k],
                      (unsigned long long)f->accepted_by[k]);
        comma = ",";
    }
    strbuf_add_char(out, '}');
}

void shape_extras(struct strbuf *out, const struct request *r) {
    if (!r->server->config->reply_extras) return;
    struct request_figures f = request_figures(r);
    uint32_t tokens = request_usage(r).completion;
    strbuf_printf(
        out,
        ",\"railyard\":{\"worker\":%d,\"queue_ms\":%.3f,\"prefill_ms\":%.3f,"
        "\"first_token_ms\":%.3f,\"decode_ms\":%.3f,\"rounds\":%llu,\"drafted\":%llu,"
        "\"accepted\":%llu,\"tokens_per_round\":%.3f,\"resumed\":%u,\"schema_ignored\":[]",
        f.rank, f.queue_ms, f.prefill_ms, f.first_token_ms, f.decode_ms,
        (unsigned long long)f.rounds, (unsigned long long)f.drafted, (unsigned long long)f.accepted,
        f.rounds ? (double)tokens / (double)f.rounds : 0.0, f.resumed);
    add_drafts(out, &f);
    add_logits_hash(out, &r->choices[0]);
    strbuf_add_char(out, '}');
}

const char *shape_finish(const struct choice *c) {
    static const char *const names[] = {"stop", "length", "tool_calls"};
    return names[c->finish];
}

void shape_stop_reason(struct strbuf *out, const struct choice *c) {
    size_t len;
    const char *s = reply_stop_string(c->reply, &len);
    strbuf_add_str(out, ",\"stop_reason\":");
    if (s)
        shape_text(out, s, len);
    else if (c->stop_id >= 0)
        strbuf_printf(out, "%lld", (long long)c->stop_id);
    else
        strbuf_add_str(out, "null");
}

void shape_end(struct strbuf *out, const struct choice *c) {
    char hash[65];
    reply_token_sha256(c->reply, hash);
    strbuf_printf(out, ",\"seed\":%llu,\"token_sha256\":\"%s\"", (unsigned long long)c->seed, hash);
    add_logits_hash(out, c);
}

struct send_head shape_send_head(const struct request *r, const char *type) {
    struct send_head h = SEND_HEAD(.status = 200, .content_type = type);
    if (!r->server->config->reply_headers) return h;
    struct request_figures f = request_figures(r);
    h.worker = f.rank;
    if (f.rank >= 0) h.queue_ms = (int64_t)f.queue_ms;
    if (f.first_token_ms > 0) h.first_token_ms = (int64_t)f.first_token_ms;
    return h;
}

/* ---- logprobs ---- */

// The shortest text that reads back as the same float.
static void add_float(struct strbuf *out, float x) {
    char text[32];
    snprintf(text, sizeof text, "%.6g", (double)x);
    float back;
    if (sscanf(text, "%f", &back) != 1 || back != x) snprintf(text, sizeof text, "%.9g", (double)x);
    strbuf_add_str(out, text);
}

static const char *bytes_of(const struct choice *c, uint32_t id, size_t *ret_len) {
    const char *s = tokenizer_bytes(c->request->server->model->tokenizer, id, ret_len);
    if (!s) *ret_len = 0;
    return s ? s : "";
}

static void add_token(struct strbuf *out, const struct choice *c, uint32_t id) {
    size_t len;
    const char *s = bytes_of(c, id, &len);
    shape_text(out, s, len);
}

static void add_chat_token(struct strbuf *out, const struct choice *c, uint32_t id, float logprob) {
    size_t len;
    const char *s = bytes_of(c, id, &len);
    strbuf_add_str(out, "{\"token\":");
    shape_text(out, s, len);
    strbuf_add_str(out, ",\"logprob\":");
    add_float(out, logprob);
    strbuf_add_str(out, ",\"bytes\":[");
    for (size_t i = 0; i < len; i++)
        strbuf_printf(out, i ? ",%u" : "%u", (unsigned)(unsigned char)s[i]);
    strbuf_add_char(out, ']');
}

static const struct frame_logprob *tops_of(const struct choice *c, size_t idx) {
    return c->tops + idx * (size_t)c->request->params.top_logprobs;
}

void shape_chat_logprobs(struct strbuf *out, const struct choice *c,
                         const struct reply_content_id *ids, size_t count) {
    size_t best = (size_t)c->request->params.top_logprobs;
    strbuf_add_str(out, "{\"content\":[");
    for (size_t i = 0; i < count; i++) {
        size_t idx = ids[i].idx;
        if (i) strbuf_add_char(out, ',');
        add_chat_token(out, c, c->ids.v[idx], c->logprobs[idx]);
        strbuf_add_str(out, ",\"top_logprobs\":[");
        for (size_t k = 0; k < best; k++) {
            if (k) strbuf_add_char(out, ',');
            add_chat_token(out, c, tops_of(c, idx)[k].id, tops_of(c, idx)[k].logprob);
            strbuf_add_char(out, '}');
        }
        strbuf_add_str(out, "]}");
    }
    strbuf_add_str(out, "],\"refusal\":null}");
}

static void add_top_map(struct strbuf *out, const struct choice *c, size_t idx) {
    size_t best = (size_t)c->request->params.top_logprobs;
    strbuf_add_char(out, '{');
    for (size_t k = 0; k < best; k++) {
        if (k) strbuf_add_char(out, ',');
        add_token(out, c, tops_of(c, idx)[k].id);
        strbuf_add_char(out, ':');
        add_float(out, tops_of(c, idx)[k].logprob);
    }
    strbuf_add_char(out, '}');
}

void shape_completion_logprobs(struct strbuf *out, const struct choice *c,
                               const struct reply_content_id *ids, size_t count, size_t offset) {
    strbuf_add_str(out, "{\"tokens\":[");
    for (size_t i = 0; i < count; i++) {
        if (i) strbuf_add_char(out, ',');
        add_token(out, c, c->ids.v[ids[i].idx]);
    }
    strbuf_add_str(out, "],\"token_logprobs\":[");
    for (size_t i = 0; i < count; i++) {
        if (i) strbuf_add_char(out, ',');
        add_float(out, c->logprobs[ids[i].idx]);
    }
    strbuf_add_str(out, "],\"top_logprobs\":");
    if (c->request->params.top_logprobs) {
        strbuf_add_char(out, '[');
        for (size_t i = 0; i < count; i++) {
            if (i) strbuf_add_char(out, ',');
            add_top_map(out, c, ids[i].idx);
        }
        strbuf_add_char(out, ']');
    } else {
        strbuf_add_str(out, "null");
    }
    strbuf_add_str(out, ",\"text_offset\":[");
    for (size_t i = 0; i < count; i++)
        strbuf_printf(out, i ? ",%zu" : "%zu", offset + ids[i].char_first);
    strbuf_add_str(out, "]}");
}

/* ---- whole ---- */

void shape_keep(struct choice *c, const struct reply_delta *d) {
    strbuf_add(&c->reasoning, strbuf_str(&d->reasoning), d->reasoning.len);
    strbuf_add(&c->content, strbuf_str(&d->content), d->content.len);
    if (!d->id_count) return;
    if (c->content_id_count + d->id_count > c->content_id_cap) {
        c->content_id_cap = max_size(2 * c->content_id_cap, c->content_id_count + d->id_count);
        c->content_ids =
            mem_realloc_array(c->content_ids, c->content_id_cap, sizeof *c->content_ids);
    }
    memcpy(c->content_ids + c->content_id_count, d->ids, d->id_count * sizeof *d->ids);
    c->content_id_count += d->id_count;
}

// What was begun with spaces goes on with the reply.
static void send_json(struct request *r, const struct send_head *h, const struct strbuf *out) {
    if (!send_begun(r->send)) {
        send_whole(r->send, h, out->p, out->len);
        return;
    }
    strbuf_add(send_buffer(r->send), out->p, out->len);
    send_end(r->send);
}

void shape_whole_begin(struct request *r) {
    struct send_head h = shape_send_head(r, "application/json");
    send_begin(r->send, &h);
    strbuf_add_char(send_buffer(r->send), ' ');
}

void shape_whole_finish(struct request *r, const char *object, bool prompt_ids,
                        void (*add_choice)(struct strbuf *out, struct choice *c)) {
    struct strbuf out = {0};
    const struct ids *prompt = &r->prompts[0].ids;
    shape_head(&out, r, object);
    if (prompt_ids && r->params.return_token_ids)
        shape_ids(&out, "prompt_token_ids", prompt->v, prompt->len);
    strbuf_add_str(&out, ",\"choices\":[");
    for (uint32_t i = 0; i < r->choice_count; i++) add_choice(&out, &r->choices[i]);
    strbuf_add_str(&out, "],");
    shape_usage(&out, r);
    shape_extras(&out, r);
    strbuf_add_char(&out, '}');
    struct send_head h = shape_send_head(r, "application/json");
    struct request_figures f = request_figures(r);
    h.processing_ms = (int64_t)(f.first_token_ms + f.decode_ms);
    send_json(r, &h, &out);
    strbuf_fini(&out);
}

/* ---- streams ---- */

void shape_stream_begin(struct request *r) {
    struct send_head h = shape_send_head(r, "text/event-stream; charset=utf-8");
    h.stream = true;
    send_begin(r->send, &h);
}

struct strbuf *shape_open_chunk(struct request *r, const char *object) {
    if (!r->chunk_head.len) {
        strbuf_add_str(&r->chunk_head, "data: ");
        shape_head(&r->chunk_head, r, object);
    }
    struct strbuf *out = send_buffer(r->send);
    strbuf_add(out, r->chunk_head.p, r->chunk_head.len);
    return out;
}

void shape_close_chunk(struct strbuf *out, struct request *r, bool with_usage, bool with_extras) {
    const struct params *p = &r->params;
    if (with_usage || p->continuous_usage) {
        strbuf_add_char(out, ',');
        shape_usage(out, r);
    } else if (p->include_usage) {
        strbuf_add_str(out, ",\"usage\":null");
    }
    if (with_extras) shape_extras(out, r);
    strbuf_add_str(out, "}\n\n");
}

void shape_choice_end(struct strbuf *out, struct choice *c) {
    struct request *r = c->request;
    strbuf_printf(out, ",\"logprobs\":null,\"finish_reason\":\"%s\"", shape_finish(c));
    shape_stop_reason(out, c);
    shape_end(out, c);
    if (c->sent_ids < c->taken) shape_new_ids(out, c);
    strbuf_add_str(out, "}]");
    shape_close_chunk(out, r, false, r->choices_open == 1 && !r->params.include_usage);
    send_touch(r->send);
}

// The last event, the end mark and the end of the body: one write.
void shape_stream_finish(struct request *r, const char *object) {
    if (r->params.include_usage) {
        struct strbuf *out = shape_open_chunk(r, object);
        strbuf_add_str(out, ",\"choices\":[]");
        shape_close_chunk(out, r, true, true);
    }
    strbuf_add_str(send_buffer(r->send), "data: [DONE]\n\n");
    send_end(r->send);
}

void shape_error(struct request *r, const struct apierr *e) {
    if (!send_begun(r->send)) {
        send_error(r->send, e);
        return;
    }
    struct strbuf *out = send_buffer(r->send);
    if (!r->params.stream) {
        apierr_body(e, r->request_id, out);
        send_end(r->send);
        return;
    }
    strbuf_add_str(out, "data: ");
    apierr_body(e, r->request_id, out);
    strbuf_add_str(out, "\n\n");
    if (r->server->config->done_after_error) strbuf_add_str(out, "data: [DONE]\n\n");
    send_end(r->send);
}
