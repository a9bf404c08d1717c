/* api_models: see api_models.h. */
#include "router/api_models.h"
#include "common/mem.h"
#include "common/strbuf.h"
#include "router/apierr.h"
#include "router/http.h"
#include "router/jsontext.h"
#include "router/model.h"
#include "router/send.h"
#include "router/server.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

static void add_model(struct strbuf *out, const struct server *s, const char *name) {
    uint32_t context = server_context_max(s);
    strbuf_add_str(out, "{\"id\":");
    jsontext_string(out, name, strlen(name));
    strbuf_printf(out, ",\"object\":\"model\",\"created\":%lld,\"owned_by\":\"railyard\",\"root\":",
                  (long long)s->model->created_s);
    jsontext_string(out, s->model->names[0], strlen(s->model->names[0]));
    strbuf_printf(out,
                  ",\"max_model_len\":%u,\"context_length\":%u,\"capabilities\":{\"vision\":false,"
                  "\"tools\":true,\"reasoning\":true,\"structured_outputs\":[],"
                  "\"prompt_logprobs\":false}}",
                  context, context);
}

static void reply_json(struct http_call *c, struct strbuf *body) {
    send_reply(c, &SEND_HEAD(.status = 200, .content_type = "application/json"), body->p,
               body->len);
    strbuf_fini(body);
}

// Probes on this path expect 503 until a worker has been ready once, and 200 ever after.
static bool refuse_before_ready(struct http_call *c, const struct server *s) {
    if (s->ever_ready) return false;
    struct apierr e;
    server_no_worker(s, &e);
    send_reply_error(c, &e);
    return true;
}

void api_models_list(struct http_call *c) {
    const struct server *s = c->app;
    if (refuse_before_ready(c, s)) return;
    struct strbuf body = {0};
    strbuf_add_str(&body, "{\"object\":\"list\",\"data\":[");
    for (size_t i = 0; i < s->model->name_count; i++) {
        if (i) strbuf_add_char(&body, ',');
        add_model(&body, s, s->model->names[i]);
    }
    strbuf_add_str(&body, "]}");
    reply_json(c, &body);
}

static int hex_value(char c) {
    return !isxdigit((unsigned char)c) ? -1 : c <= '9' ? c - '0' : (c | 0x20) - 'a' + 10;
}

// Percent-decoded; what is no escape stands for itself. The caller frees.
static char *decode(h2o_iovec_t v) {
    char *out = mem_alloc(v.len + 1);
    size_t n = 0;
    for (size_t i = 0; i < v.len; i++) {
        int high = v.base[i] == '%' && i + 2 < v.len ? hex_value(v.base[i + 1]) : -1;
        int low = high >= 0 ? hex_value(v.base[i + 2]) : -1;
        if (low >= 0) {
            out[n++] = (char)(high << 4 | low);
            i += 2;
        } else {
            out[n++] = v.base[i];
        }
    }
    out[n] = '\0';
    return out;
}

void api_models_one(struct http_call *c) {
    const struct server *s = c->app;
    if (refuse_before_ready(c, s)) return;
    char *name = decode(http_path_rest(c));
    struct strbuf body = {0};
    struct apierr e;
    if (model_has_name(s->model, name, strlen(name))) {
        add_model(&body, s, name);
        reply_json(c, &body);
    } else {
        char clip[APIERR_CLIP_BYTES];
        apierr_set(&e, APIERR_MODEL_NOT_FOUND, "model", "no model '%s' is served here",
                   apierr_clip(clip, name, strlen(name)));
        send_reply_error(c, &e);
    }
    free(name);
}
