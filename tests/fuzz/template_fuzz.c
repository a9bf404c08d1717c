/* template_fuzz: any JSON given as a request (tests/lib/render_request.h) is refused with a message or rendered to
 * valid UTF-8 with ascending spans. */
#include "common/err.h"
#include "router/text/utf8.h"
#include "tests/lib/render_request.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len);

static void check(bool right) {
    if (!right) abort();
}

static void render(enum template_rules rules, const struct template_input *in) {
    struct template_prompt p = {0};
    struct err e = {0};
    if (template_render(rules, in, &p, &e)) {
        check(e.msg[0] && !p.text.p && !p.plain);
        return;
    }
    size_t at = 0;
    for (size_t i = 0; i < p.plain_count; i++) {
        check(p.plain[i].first >= at && p.plain[i].len > 0);
        at = p.plain[i].first + p.plain[i].len;
    }
    check(at <= p.text.len && utf8_valid(strbuf_str(&p.text), p.text.len) == p.text.len);
    template_prompt_fini(&p);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len) {
    json_t *q = json_loadb((const char *)bytes, len, JSON_ALLOW_NUL, NULL);
    enum template_rules rules;
    struct template_input in;
    if (q && render_request_read(q, &rules, &in)) {
        render(rules, &in);
        for (int r = TEMPLATE_3_5; r <= TEMPLATE_3_8_LARGE; r++)
            if (r != (int)rules) render((enum template_rules)r, &in);
    }
    json_decref(q);
    return 0;
}
