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
#include <stdlib.h>
#include <string.h>

struct job {
    uv_work_t work;
    struct send *send; // NULL: the client has gone
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

static int encode_messages(const struct prepare *p, const json_t *body, struct ids *ids,
                           struct apierr *e) {
    struct arena arena = {0};
    struct params q = {0};
    struct template_prompt t = {0};
    int st = prepare_fields(p, FIELDS_CHAT, body, &q, &arena, e);
    if (!st) st = prepare_render(p, &q, &t, e);
    if (!st) st = prepare_encode_prompt(p, &t, ids, e);
    template_prompt_fini(&t);
    params_fini(&q);
    arena_fini(&arena);
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
    const json_t *model = json_object_get(body, "model");
    if (!st && model && !json_is_null(model) && !body_is_text(model))
        st = apierr_set(e, APIERR_INVALID_TYPE, "model", "model must be a string, got %s",
                        body_type_name(model));
    if (!st) st = prepare_model_name(p, json_string_value(model), e);
    if (st) return st;
    return prepare_encode_text(p, json_string_value(text), json_string_length(text), !parse_special,
                               ids, e);
}

static void write_reply(struct job *j, const struct ids *ids, bool with_strs) {
    struct strbuf *out = &j->out;
    strbuf_printf(out, "{\"count\":%zu,\"max_model_len\":%u,\"tokens\":[", ids->len,
                  j->context_max);
    for (size_t i = 0; i < ids->len; i++) strbuf_printf(out, i ? ",%u" : "%u", ids->v[i]);
    strbuf_add_char(out, ']');
    if (with_strs) {
        strbuf_add_str(out, ",\"token_strs\":[");
        for (size_t i = 0; i < ids->len; i++) {
            size_t len;
            const char *s = tokenizer_bytes(j->prepare.model->tokenizer, ids->v[i], &len);
            if (i) strbuf_add_char(out, ',');
            jsontext_string(out, s, len);
        }
        strbuf_add_char(out, ']');
    }
    strbuf_add_char(out, '}');
}

static void on_pool(uv_work_t *w) {
    struct job *j = w->data;
    json_t *body = NULL;
    struct ids ids = {0};
    bool with_strs = false;
    j->st = prepare_body(&j->prepare, &body, &j->e);
    if (!j->st) j->st = read_flag(body, "return_token_strs", &with_strs, &j->e);
    if (!j->st) j->st = read_flag(body, "with_pieces", &with_strs, &j->e);
    if (!j->st) j->st = encode(&j->prepare, body, &ids, &j->e);
    if (!j->st) write_reply(j, &ids, with_strs);
    ids_fini(&ids);
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

void api_tokenize_handle(struct http_call *c) {
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
