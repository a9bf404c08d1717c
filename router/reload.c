/* reload: see reload.h. */
#include "router/reload.h"
#include "common/err.h"
#include "common/log.h"
#include "router/config.h"
#include "router/keys.h"
#include "router/listen.h"
#include "router/server.h"

#include <string.h>

void reload_news_fini(struct reload_news *n) {
    strbuf_fini(&n->changed);
    strbuf_fini(&n->kept);
}

static int reload_keys(struct server *s, struct err *e) {
    int st = keys_reload(s->keys, e);
    if (st)
        log_warn("reload_keys", "reason=\"%s\"", e->msg);
    else
        log_info("reload_keys", "keys=%zu", keys_count(s->keys));
    return st;
}

// Read once, so that all ports have the same.
static int share_tls(struct server *s, struct err *e) {
    int st = listener_reload_tls(s->listeners[0], e);
    for (uint32_t i = 1; i < s->listener_count && !st; i++)
        listener_share_tls(s->listeners[i], s->listeners[0]);
    return st;
}

static int reload_tls(struct server *s, struct err *e) {
    if (!s->listener_count || !*s->config->tls_cert) return ST_OK;
    int st = share_tls(s, e);
    if (st)
        log_warn("reload_tls", "reason=\"%s\"", e->msg);
    else
        log_info("reload_tls", "cert=\"%s\"", s->config->tls_cert);
    return st;
}

// What is kept beside the config.
static void apply(struct server *s, const struct config *before) {
    const struct config *c = s->config;
    enum log_level level;
    queue_set_bounds(&s->queue, server_queue_requests_max(s), (uint64_t)c->queue_tokens_max);
    // One that was set by PUT /admin/v1/log_level stays until the file says another.
    if (strcmp(before->log_level, c->log_level) && !log_level_parse(c->log_level, &level))
        log_set_level(level);
    server_publish(s);
}

static int reload_settings(struct server *s, struct reload_news *ret, struct err *e) {
    struct config *next, *before = s->config;
    int st = config_reload(&next, before, &ret->changed, &ret->kept, e);
    if (st) {
        log_warn("reload_settings", "reason=\"%s\"", e->msg);
        return st;
    }
    if (ret->kept.len)
        log_warn("reload_settings", "kept=\"%s\" reason=\"these change with a restart alone\"",
                 strbuf_str(&ret->kept));
    if (!next) return ST_OK;
    s->config = next;
    apply(s, before);
    log_info("reload_settings", "changed=\"%s\"", strbuf_str(&ret->changed));
    config_log(next);
    return ST_OK;
}

int reload_all(struct server *s, struct reload_news *ret, struct err *e) {
    struct err first[3] = {0};
    int st[] = {reload_keys(s, &first[0]), reload_tls(s, &first[1]),
                reload_settings(s, ret, &first[2])};
    for (int i = 0; i < 3; i++) {
        if (!st[i]) continue;
        *e = first[i];
        return st[i];
    }
    return ST_OK;
}
