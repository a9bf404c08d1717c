/* api_tokenize: see api_tokenize.h. */
#include "router/api_tokenize.h"
#include "common/arena.h"
#include "common/err.h"
#include "common/ids.h"
#include "common/mem.h"
#include "common/strbuf.h"
#include "router/apierr.h"
#include "router/body.h"
#include "router/config.h"
#include "router/fields.h"
#include "router/http.h"
#include "router/jsontext.h"
#include "router/listen.h"
#include "router/model.h"
#include "router/params.h"
#include "router/prepare.h"
#include "router/send.h"
#include "router/server.h"
#include "router/text/tokenizer.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct job {
    uv_work_t work;
    int (*make)(struct job *j, const json_t *body); // the reply into out, or e
    struct send *send;                              // NULL: the client has gone
    struct prepare prepare;
    char *body;
    uint32_t context_max;
    int st;
    struct apierr e;
    struct strbuf out;
};

static int read_flag(const json_t *body, const char *key, bool *ret, struct apierr *e) {
    const json_t *v = json_object_get(body, key);
    if (!v || json_is_null(v)) return ST_OK;
    if (!json_is_boolean(v))
        return apierr_set(e, APIERR_INVALID_TYPE, key, "%s must be a boolean, got %s", key,
                          body_type_name(v));
    *ret = json_is_true(v);
    return ST_OK;
}

// The conversation of a chat body as prompt text and ids.
static int render(const struct prepare *p, const json_t *body, struct template_prompt *ret,
                  struct ids *ids, struct apierr *e) {
    struct arena arena = {0};
    struct params q = {0};
    int st = prepare_fields(p, FIELDS_CHAT, body, &q, &arena, e);
    if (!st) st = prepare_render(p, &q, ret, e);
    if (!st) st = prepare_encode_prompt(p, ret, ids, e);
    params_fini(&q);
    arena_fini(&arena);
    return st;
}

static int check_model(const struct prepare *p, const json_t *body, struct apierr *e) {
    const json_t *model = json_object_get(body, "model");
    if (model && !json_is_null(model) && !body_is_text(model))
        return apierr_set(e, APIERR_INVALID_TYPE, "model", "model must be a string, got %s",
                          body_type_name(model));
    return prepare_model_name(p, json_string_value(model), e);
}

/* ---- tokenize ---- */

static int encode_messages(const struct prepare *p, const json_t *body, struct ids *ids,
                           struct apierr *e) {
    struct template_prompt t = {0};
    int st = render(p, body, &t, ids, e);
    template_prompt_fini(&t);
    return st;
}

static int encode(const struct prepare *p, const json_t *body, struct ids *ids, struct apierr *e) {
    const json_t *messages = json_object_get(body, "messages");
    if (messages && !json_is_null(messages)) return encode_messages(p, body, ids, e);
    const char *key = json_object_get(body, "prompt") ? "prompt" : "content";
    const json_t *text = json_object_get(body, key);
    if (!text)
        return apierr_set(e, APIERR_MISSING_PARAMETER, "prompt",
                          "one of prompt, content and messages is required");
    if (!body_is_text(text))
        return apierr_set(e, APIERR_INVALID_TYPE, key, "%s must be a string, got %s", key,
                          body_type_name(text));
    bool parse_special = true, add_special = false;
    int st = read_flag(body, "parse_special", &parse_special, e);
    if (!st) st = read_flag(body, "add_special_tokens", &add_special, e); // this family has none
    if (!st) st = check_model(p, body, e);
    if (st) return st;
    return prepare_encode_text(p, json_string_value(text), json_string_length(text), !parse_special,
                               ids, e);
}

static void add_ids(struct strbuf *out, const char *key, const struct ids *ids) {
    strbuf_printf(out, "\"%s\":[", key);
    for (size_t i = 0; i < ids->len; i++) strbuf_printf(out, i ? ",%u" : "%u", ids->v[i]);
    strbuf_add_char(out, ']');
}

static void add_strs(struct job *j, const struct ids *ids) {
    strbuf_add_str(&j->out, ",\"token_strs\":[");
    for (size_t i = 0; i < ids->len; i++) {
        size_t len;
        const char *s = tokenizer_bytes(j->prepare.model->tokenizer, ids->v[i], &len);
        if (i) strbuf_add_char(&j->out, ',');
        jsontext_string(&j->out, s, len);
    }
    strbuf_add_char(&j->out, ']');
}

static int make_tokenize(struct job *j, const json_t *body) {
    struct ids ids = {0};
    bool with_strs = false;
    int st = read_flag(body, "return_token_strs", &with_strs, &j->e);
    if (!st) st = read_flag(body, "with_pieces", &with_strs, &j->e);
    if (!st) st = encode(&j->prepare, body, &ids, &j->e);
    if (!st) {
        strbuf_printf(&j->out, "{\"count\":%zu,\"max_model_len\":%u,", ids.len, j->context_max);
        add_ids(&j->out, "tokens", &ids);
        if (with_strs) add_strs(j, &ids);
        strbuf_add_char(&j->out, '}');
    }
    ids_fini(&ids);
    return st;
}

/* ---- detokenize ---- */

static int read_tokens(const struct prepare *p, const json_t *v, struct ids *ids,
                       struct apierr *e) {
    const struct tokenizer *t = p->model->tokenizer;
    if (!json_is_array(v))
        return apierr_set(e, v ? APIERR_INVALID_TYPE : APIERR_MISSING_PARAMETER, "tokens",
                          "tokens must be an array of token ids, got %s", body_type_name(v));
    for (size_t i = 0; i < json_array_size(v); i++) {
        char param[40];
        int64_t id = 0;
        snprintf(param, sizeof param, "tokens[%zu]", i);
        int st = fields_int(json_array_get(v, i), param, 0, tokenizer_size(t) - 1.0, &id, e);
        if (st) return st;
        if (!tokenizer_id_used(t, (uint32_t)id))
            return apierr_set(e, APIERR_INVALID_VALUE, param, "%s: no token has the id %lld", param,
                              (long long)id);
        ids_add(ids, (uint32_t)id);
    }
    return ST_OK;
}

static int make_detokenize(struct job *j, const json_t *body) {
    struct ids ids = {0};
    int st = read_tokens(&j->prepare, json_object_get(body, "tokens"), &ids, &j->e);
    if (!st) st = check_model(&j->prepare, body, &j->e);
    if (!st) {
        struct strbuf text = {0};
        tokenizer_decode(j->prepare.model->tokenizer, ids.v, ids.len, false, &text);
        strbuf_add_str(&j->out, "{\"prompt\":");
        jsontext_string(&j->out, strbuf_str(&text), text.len);
        strbuf_add_str(&j->out, ",\"content\":"); // llama.cpp's name for it
        jsontext_string(&j->out, strbuf_str(&text), text.len);
        strbuf_add_char(&j->out, '}');
        strbuf_fini(&text);
    }
    ids_fini(&ids);
    return st;
}

/* ---- render ---- */

static int make_render(struct job *j, const json_t *body) {
    struct ids ids = {0};
    struct template_prompt t = {0};
    int st = render(&j->prepare, body, &t, &ids, &j->e);
    if (!st) {
        strbuf_add_str(&j->out, "{\"prompt\":");
        jsontext_string(&j->out, strbuf_str(&t.text), t.text.len);
        strbuf_add_char(&j->out, ',');
        add_ids(&j->out, "token_ids", &ids);
        strbuf_printf(&j->out, ",\"count\":%zu}", ids.len);
    }
    template_prompt_fini(&t);
    ids_fini(&ids);
    return st;
}

/* ---- all of them, on the pool ---- */

static void on_pool(uv_work_t *w) {
    struct job *j = w->data;
    json_t *body = NULL;
    j->st = prepare_body(&j->prepare, &body, &j->e);
    if (!j->st) j->st = j->make(j, body);
    json_decref(body);
}

static void after_pool(uv_work_t *w, int status) {
    struct job *j = w->data;
    if (j->send && j->st)
        send_error(j->send, &j->e);
    else if (j->send)
        send_whole(j->send, &SEND_HEAD(.status = 200, .content_type = "application/json"), j->out.p,
                   j->out.len);
    strbuf_fini(&j->out);
    free(j->body);
    free(j);
}

static void on_gone(void *arg) {
    struct job *j = arg;
    j->send = NULL;
}

static void start(struct http_call *c, int (*make)(struct job *j, const json_t *body)) {
    struct server *s = c->app;
    struct apierr e;
    size_t len = c->req->entity.len, max = (size_t)s->config->tokenize_bytes_max;
    int st = http_check_json_type(c, &e);
    if (!st && len > max)
        st = apierr_set(&e, APIERR_BODY_TOO_LARGE, NULL,
                        "the body must have at most %zu bytes, got %zu", max, len);
    if (st) {
        send_reply_error(c, &e);
        return;
    }
    struct job *j = mem_calloc(1, sizeof *j);
    j->make = make;
    j->body = mem_alloc(len);
    if (len) memcpy(j->body, c->req->entity.base, len);
    j->context_max = server_context_max(s);
    j->prepare = (struct prepare){.config = s->config,
                                  .model = s->model,
                                  .metrics = s->metrics,
                                  .context_max = j->context_max,
                                  .body = j->body,
                                  .body_len = len};
    j->work.data = j;
    j->send = send_new(c, listener_sends(c->listener),
                       &(struct send_events){.arg = j, .on_gone = on_gone});
    int rc = uv_queue_work(&s->loop, &j->work, on_pool, after_pool);
    assert(rc == 0);
}

void api_tokenize_handle(struct http_call *c) {
    start(c, make_tokenize);
}

void api_detokenize_handle(struct http_call *c) {
    start(c, make_detokenize);
}

void api_render_handle(struct http_call *c) {
    start(c, make_render);
}
