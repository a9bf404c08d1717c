/* api_chat: see api_chat.h. What decides is request.c; here is only the shape of chat replies. */
#include "router/api_chat.h"
#include "common/sha256.h"
#include "common/strbuf.h"
#include "router/apierr.h"
#include "router/config.h"
#include "router/http.h"
#include "router/prepare.h"
#include "router/request.h"
#include "router/send.h"
#include "router/server.h"
#include "router/shape.h"

#include <stdio.h>
#include <string.h>

/* ---- parts of both shapes ---- */

static void add_reasoning(struct strbuf *out, const struct request *r, const char *text,
                          size_t len) {
    const char *fields = r->server->config->reasoning_fields;
    bool content = strcmp(fields, "reasoning"), plain = strcmp(fields, "reasoning_content");
    if (content) {
        strbuf_add_str(out, "\"reasoning_content\":");
        shape_text(out, text, len);
    }
    if (plain) {
        strbuf_add_str(out, content ? ",\"reasoning\":" : "\"reasoning\":");
        shape_text(out, text, len);
    }
}

// A call's id follows from where it stands: 24 digits of a hash, unlike any other's.
static void add_call_id(struct strbuf *out, const struct choice *c, uint32_t call) {
    char text[96], hex[SHA256_HEX_BYTES];
    uint8_t digest[SHA256_BYTES];
    struct sha256 *h = sha256_new();
    int n = snprintf(text, sizeof text, "%s/%u/%u", c->request->id, c->index, call);
    sha256_add(h, text, (size_t)n);
    sha256_digest(h, digest);
    sha256_hex(digest, hex);
    sha256_free(h);
    strbuf_printf(out, "\"id\":\"call_%.24s\"", hex);
}

/* ---- whole ---- */

static void end_call(struct choice *c) {
    if (c->calls_begun) strbuf_add_str(&c->calls, "\"}}");
}

// Arguments are kept as the inside of a JSON string.
static void add_inside(struct strbuf *out, const char *s, size_t len) {
    struct strbuf quoted = {0};
    shape_text(&quoted, s, len);
    strbuf_add(out, quoted.p + 1, quoted.len - 2);
    strbuf_fini(&quoted);
}

static void keep_calls(struct choice *c, const struct reply_delta *d) {
    const char *s = strbuf_str(&d->calls);
    for (size_t i = 0; i < d->piece_count; i++) {
        const struct reply_piece *p = &d->pieces[i];
        if (p->kind != REPLY_CALL && p->kind != REPLY_ARGUMENTS) continue;
        if (p->kind == REPLY_CALL) {
            end_call(c);
            strbuf_add_str(&c->calls, c->calls_begun++ ? ",{" : "{");
            add_call_id(&c->calls, c, p->call);
            strbuf_add_str(&c->calls, ",\"type\":\"function\",\"function\":{\"name\":");
            shape_text(&c->calls, s, p->len);
            strbuf_add_str(&c->calls, ",\"arguments\":\"");
        } else {
            add_inside(&c->calls, s, p->len);
        }
        s += p->len;
    }
}

static void whole_delta(struct choice *c, const struct reply_delta *d) {
    shape_keep(c, d);
    keep_calls(c, d);
}

static void add_message(struct strbuf *out, const struct choice *c) {
    const struct request *r = c->request;
    strbuf_add_str(out, "\"message\":{\"role\":\"assistant\",\"content\":");
    if (c->calls_begun && !c->content.len)
        strbuf_add_str(out, "null");
    else
        shape_text(out, strbuf_str(&c->content), c->content.len);
    if (c->reasoning.len && r->params.include_reasoning) {
        strbuf_add_char(out, ',');
        add_reasoning(out, r, c->reasoning.p, c->reasoning.len);
    }
    strbuf_add_str(out, ",\"refusal\":null");
    if (c->calls_begun) strbuf_printf(out, ",\"tool_calls\":[%s\"}}]", c->calls.p);
    strbuf_add_char(out, '}');
}

static void add_choice(struct strbuf *out, struct choice *c) {
    strbuf_printf(out, "%s{\"index\":%u,\"finish_reason\":\"%s\"", c->index ? "," : "", c->index,
                  shape_finish(c));
    shape_stop_reason(out, c);
    strbuf_add_str(out, ",\"logprobs\":");
    if (c->request->params.logprobs)
        shape_chat_logprobs(out, c, c->content_ids, c->content_id_count);
    else
        strbuf_add_str(out, "null");
    strbuf_add_char(out, ',');
    add_message(out, c);
    shape_end(out, c);
    shape_new_ids(out, c);
    strbuf_add_char(out, '}');
}

/* ---- streamed ---- */

static const char chunk_object[] = "chat.completion.chunk";

// Up to the delta's first member.
static struct strbuf *open_delta(struct choice *c) {
    struct strbuf *out = shape_open_chunk(c->request, chunk_object);
    strbuf_printf(out, ",\"choices\":[{\"index\":%u,\"delta\":{", c->index);
    return out;
}

// From behind the delta on: logprobs of these ids, if any are asked for, and the ids that are new.
static void close_delta(struct strbuf *out, struct choice *c, const struct reply_content_id *ids,
                        size_t count, bool with_ids) {
    strbuf_add_str(out, "},\"logprobs\":");
    if (count)
        shape_chat_logprobs(out, c, ids, count);
    else
        strbuf_add_str(out, "null");
    strbuf_add_str(out, ",\"finish_reason\":null");
    if (with_ids) shape_new_ids(out, c);
    strbuf_add_str(out, "}]");
    shape_close_chunk(out, c->request, false, false);
}

// The first chunk: who speaks. Once the prompt's ids, when asked for.
static void send_role(struct choice *c) {
    struct request *r = c->request;
    if (c->role_sent) return;
    c->role_sent = true;
    struct strbuf *out = shape_open_chunk(r, chunk_object);
    const struct ids *prompt = choice_prompt(c);
    if (r->params.return_token_ids && c->index == 0)
        shape_ids(out, "prompt_token_ids", prompt->v, prompt->len);
    strbuf_printf(out,
                  ",\"choices\":[{\"index\":%u,\"delta\":{\"role\":\"assistant\",\"content\":\"\"",
                  c->index);
    close_delta(out, c, NULL, 0, false);
}

static void add_call(struct strbuf *out, const struct choice *c, uint32_t call, const char *name,
                     size_t len) {
    strbuf_printf(out, "\"tool_calls\":[{\"index\":%u,", call);
    add_call_id(out, c, call);
    strbuf_add_str(out, ",\"type\":\"function\",\"function\":{\"name\":");
    shape_text(out, name, len);
    strbuf_add_str(out, ",\"arguments\":\"\"}}]");
}

static void add_arguments(struct strbuf *out, uint32_t call, const char *text, size_t len) {
    strbuf_printf(out, "\"tool_calls\":[{\"index\":%u,\"function\":{\"arguments\":", call);
    shape_text(out, text, len);
    strbuf_add_str(out, "}}]");
}

// A chunk holds one piece, or none: then only ids are new.
static void send_piece(struct choice *c, const struct reply_piece *p, const char *text,
                       const struct reply_content_id *ids) {
    struct strbuf *out = open_delta(c);
    if (p && p->kind == REPLY_REASONING) {
        add_reasoning(out, c->request, text, p->len);
    } else if (p && p->kind == REPLY_CONTENT) {
        strbuf_add_str(out, "\"content\":");
        shape_text(out, text, p->len);
    } else if (p && p->kind == REPLY_CALL) {
        add_call(out, c, p->call, text, p->len);
    } else if (p) {
        add_arguments(out, p->call, text, p->len);
    }
    close_delta(out, c, ids, p ? p->ids : 0, true);
    c->any_text = true;
}

static void send_pieces(struct choice *c, const struct reply_delta *d) {
    const char *text[] = {strbuf_str(&d->reasoning), strbuf_str(&d->content),
                          strbuf_str(&d->calls)};
    const struct reply_content_id *ids = d->ids;
    for (size_t i = 0; i < d->piece_count; i++) {
        const struct reply_piece *p = &d->pieces[i];
        const char **from = &text[p->kind == REPLY_ARGUMENTS ? REPLY_CALL : p->kind];
        if (p->kind != REPLY_REASONING || c->request->params.include_reasoning)
            send_piece(c, p, *from, ids);
        *from += p->len;
        ids += p->ids;
    }
}

static bool shows(const struct choice *c, const struct reply_delta *d) {
    const struct params *p = &c->request->params;
    bool only_hidden =
        d->piece_count == 1 && d->pieces[0].kind == REPLY_REASONING && !p->include_reasoning;
    return (d->piece_count && !only_hidden) || (p->return_token_ids && c->sent_ids < c->taken);
}

static void stream_delta(struct choice *c, const struct reply_delta *d) {
    struct request *r = c->request;
    if (!shows(c, d)) return;
    if (!send_begun(r->send)) shape_stream_begin(r);
    send_role(c);
    send_pieces(c, d);
    if (r->params.return_token_ids && c->sent_ids < c->taken) send_piece(c, NULL, NULL, NULL);
    send_touch(r->send);
}

static void stream_choice_over(struct choice *c) {
    struct request *r = c->request;
    if (!send_begun(r->send)) shape_stream_begin(r);
    send_role(c);
    struct strbuf *out = shape_open_chunk(r, chunk_object);
    strbuf_printf(out, ",\"choices\":[{\"index\":%u,\"delta\":{}", c->index);
    shape_choice_end(out, c);
}

/* ---- which ---- */

// Whether a reply is streamed is known only when the body has been read.
static void chat_begin(struct request *r) {
    if (r->params.stream)
        shape_stream_begin(r);
    else
        shape_whole_begin(r);
}

static void chat_delta(struct choice *c, const struct reply_delta *d) {
    if (c->request->params.stream)
        stream_delta(c, d);
    else
        whole_delta(c, d);
}

static void chat_choice_over(struct choice *c) {
    if (c->request->params.stream) stream_choice_over(c);
}

static void chat_finish(struct request *r) {
    if (r->params.stream)
        shape_stream_finish(r, chunk_object);
    else
        shape_whole_finish(r, "chat.completion", true, add_choice);
}

static const struct request_format chat = {chat_begin, chat_delta, chat_choice_over, chat_finish,
                                           shape_error};
static const struct request_kind kind = {
    .format = &chat, .prepare = prepare_chat, .id_prefix = "chatcmpl-", .is_chat = true};

void api_chat_handle(struct http_call *c) {
    struct apierr e;
    if (http_check_json_type(c, &e))
        send_reply_error(c, &e);
    else
        request_start(c->app, c, &kind);
}
