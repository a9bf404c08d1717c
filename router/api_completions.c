/* api_completions: see api_completions.h. What decides is request.c; here is only the shape of the replies. */
#include "router/api_completions.h"
#include "common/strbuf.h"
#include "router/apierr.h"
#include "router/http.h"
#include "router/prepare.h"
#include "router/request.h"
#include "router/send.h"
#include "router/server.h"
#include "router/shape.h"
#include "router/text/utf8.h"

#include <string.h>

static const char object[] = "text_completion";

static const struct request_prompt *prompt_of(const struct choice *c) {
    return &c->request->prompts[c->prompt_idx];
}

// Characters of the echoed prompt: what the offsets of generated text count from.
static size_t echo_chars(const struct choice *c) {
    const struct request_prompt *p = prompt_of(c);
    size_t chars = 0;
    for (size_t i = 0; i < p->echo_len; i++) chars += ((unsigned char)p->echo[i] & 0xC0) != 0x80;
    return chars;
}

static bool is_first_of_prompt(const struct choice *c) {
    return c->index % (uint32_t)c->request->params.n == 0;
}

static void add_logprobs(struct strbuf *out, const struct choice *c,
                         const struct reply_content_id *ids, size_t count, bool any) {
    strbuf_add_str(out, ",\"logprobs\":");
    if (any)
        shape_completion_logprobs(out, c, ids, count, echo_chars(c));
    else
        strbuf_add_str(out, "null");
}

// With each prompt's first choice, once, its ids.
static void add_prompt_ids(struct strbuf *out, const struct choice *c) {
    const struct ids *prompt = choice_prompt(c);
    if (c->request->params.return_token_ids && is_first_of_prompt(c))
        shape_ids(out, "prompt_token_ids", prompt->v, prompt->len);
}

/* ---- whole ---- */

static void add_choice(struct strbuf *out, struct choice *c) {
    const struct request_prompt *p = prompt_of(c);
    struct strbuf text = {0};
    if (p->echo_len) strbuf_add(&text, p->echo, p->echo_len);
    strbuf_add(&text, strbuf_str(&c->content), c->content.len);
    strbuf_printf(out, "%s{\"index\":%u,\"text\":", c->index ? "," : "", c->index);
    shape_text(out, strbuf_str(&text), text.len);
    add_logprobs(out, c, c->content_ids, c->content_id_count, c->request->params.logprobs);
    strbuf_printf(out, ",\"finish_reason\":\"%s\"", shape_finish(c));
    shape_stop_reason(out, c);
    shape_end(out, c);
    add_prompt_ids(out, c);
    shape_new_ids(out, c);
    strbuf_add_char(out, '}');
    strbuf_fini(&text);
}

/* ---- streamed ---- */

static struct strbuf *open_choice(struct choice *c, const char *text, size_t len) {
    struct strbuf *out = shape_open_chunk(c->request, object);
    strbuf_printf(out, ",\"choices\":[{\"index\":%u,\"text\":", c->index);
    shape_text(out, text, len);
    return out;
}

static void close_choice(struct strbuf *out, struct choice *c) {
    strbuf_add_str(out, ",\"finish_reason\":null");
    shape_new_ids(out, c);
    strbuf_add_str(out, "}]");
    shape_close_chunk(out, c->request, false, false);
}

// What stands before the first text: the prompt, when it is to be given back, and its ids.
static void send_prompt(struct choice *c) {
    const struct request_prompt *p = prompt_of(c);
    bool ids = c->request->params.return_token_ids && is_first_of_prompt(c);
    if (c->role_sent) return;
    c->role_sent = true;
    if (!p->echo_len && !ids) return;
    struct strbuf *out = open_choice(c, p->echo_len ? p->echo : "", p->echo_len);
    strbuf_add_str(out, ",\"logprobs\":null");
    add_prompt_ids(out, c);
    strbuf_add_str(out, ",\"finish_reason\":null}]");
    shape_close_chunk(out, c->request, false, false);
}

static void stream_delta(struct choice *c, const struct reply_delta *d) {
    struct request *r = c->request;
    bool new_ids = r->params.return_token_ids && c->sent_ids < c->taken;
    if (!d->piece_count && !new_ids) return;
    if (!send_begun(r->send)) shape_stream_begin(r);
    send_prompt(c);
    struct strbuf *out = open_choice(c, strbuf_str(&d->content), d->content.len);
    add_logprobs(out, c, d->ids, d->id_count, d->id_count > 0);
    close_choice(out, c);
    c->any_text = true;
    send_touch(r->send);
}

static void stream_choice_over(struct choice *c) {
    struct request *r = c->request;
    if (!send_begun(r->send)) shape_stream_begin(r);
    send_prompt(c);
    shape_choice_end(open_choice(c, "", 0), c);
}

/* ---- which ---- */

static void completion_begin(struct request *r) {
    if (r->params.stream)
        shape_stream_begin(r);
    else
        shape_whole_begin(r);
}

static void completion_delta(struct choice *c, const struct reply_delta *d) {
    if (c->request->params.stream)
        stream_delta(c, d);
    else
        shape_keep(c, d);
}

static void completion_choice_over(struct choice *c) {
    if (c->request->params.stream) stream_choice_over(c);
}

static void completion_finish(struct request *r) {
    if (r->params.stream)
        shape_stream_finish(r, object);
    else
        shape_whole_finish(r, object, false, add_choice);
}

static const struct request_format format = {
    completion_begin, completion_delta, completion_choice_over, completion_finish, shape_error};
static const struct request_kind kind = {
    .format = &format, .prepare = prepare_completion, .id_prefix = "cmpl-"};

void api_completions_handle(struct http_call *c) {
    struct apierr e;
    if (http_check_json_type(c, &e))
        send_reply_error(c, &e);
    else
        request_start(c->app, c, &kind);
}
