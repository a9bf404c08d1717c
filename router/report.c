/* report: see report.h. */
#include "router/report.h"
#include "common/log.h"
#include "common/strbuf.h"
#include "common/version.h"
#include "router/config.h"
#include "router/listen.h"
#include "router/model.h"
#include "router/ops.h"
#include "router/server.h"
#include "router/text/tokenizer.h"

#include <string.h>

static void put(struct strbuf *b) {
    log_raw(b->p, b->len); // whole: a report is not torn by log lines
    strbuf_fini(b);
}

static void add_sampling(struct strbuf *b, const struct model *m) {
    strbuf_printf(b, "  sampling   temperature %.15g, top_p %.15g", m->sampling.temperature,
                  m->sampling.top_p);
    if (m->sampling.top_k) strbuf_printf(b, ", top_k %u", m->sampling.top_k);
    strbuf_add_str(b, " unless a request says otherwise; stop ids");
    for (uint32_t i = 0; i < m->stop_count; i++) strbuf_printf(b, " %u", m->stop_ids[i]);
    strbuf_add_char(b, '\n');
}

void report_start(const struct server *s) {
    const struct model *m = s->model;
    struct strbuf b = {0};
    strbuf_printf(&b, "railyard %s (%s)\n", version_string(), version_commit());
    strbuf_printf(&b, "  model      %s", m->names[0]);
    for (size_t i = 1; i < m->name_count; i++) strbuf_printf(&b, ", %s", m->names[i]);
    strbuf_printf(&b, " from %s\n", m->dir);
    strbuf_printf(&b, "  template   rules %s: %s\n", template_rules_name(m->rules), m->rules_why);
    strbuf_printf(&b, "  tokeniser  %u ids in use of %u, context up to %u\n",
                  tokenizer_count(m->tokenizer), m->vocab_size, m->context_max);
    add_sampling(&b, m);
    strbuf_printf(&b, "  API        %s\n", listener_url(s->api));
    strbuf_printf(&b, "  ops        %s\n", s->ops ? ops_url(s->ops) : "none");
    strbuf_printf(&b, "  workers    %u, sockets in %s\n", s->ranks, s->config->run_dir);
    put(&b);
}

void report_ready(const struct server *s) {
    const char *url = listener_url(s->api);
    bool is_unix = !strncmp(url, "unix:", 5);
    struct strbuf b = {0};
    strbuf_printf(&b, "ready: %s%s\n", url, is_unix ? "" : "/v1");
    strbuf_printf(&b, "  try: curl %s%s%s/v1/chat/completions -H 'Content-Type: application/json' ",
                  is_unix ? "--unix-socket " : "", is_unix ? url + 5 : "",
                  is_unix ? " http://localhost" : url);
    strbuf_add_str(&b, "-d '{\"messages\":[{\"role\":\"user\",\"content\":\"Hello\"}]}'\n");
    put(&b);
}
