/* render: chat requests to prompts, one JSON object a line, for tests that compare with another renderer.
 *
 * In: tests/lib/render_request.h. Out: {"prompt", "in_thought", "plain": [[first, len]]} or {"error"}. */
#include "common/err.h"
#include "common/strbuf.h"
#include "router/text/template.h"
#include "tests/lib/render_request.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static json_t *spans(const struct template_prompt *p) {
    json_t *list = json_array();
    for (size_t i = 0; i < p->plain_count; i++)
        json_array_append_new(
            list, json_pack("[II]", (json_int_t)p->plain[i].first, (json_int_t)p->plain[i].len));
    return list;
}

static json_t *answer(const json_t *q) {
    enum template_rules rules;
    struct template_input in;
    if (!render_request_read(q, &rules, &in)) return json_pack("{ss}", "error", "rules");
    struct template_prompt p = {0};
    struct err e = {0};
    if (template_render(rules, &in, &p, &e)) return json_pack("{ss}", "error", e.msg);
    json_t *a = json_pack("{s:s%,s:b,s:o}", "prompt", strbuf_str(&p.text), p.text.len, "in_thought",
                          (int)p.in_thought, "plain", spans(&p));
    template_prompt_fini(&p);
    return a;
}

int main(void) {
    char *line = NULL;
    size_t cap = 0;
    ssize_t len;
    while ((len = getline(&line, &cap, stdin)) > 0) {
        json_error_t je;
        json_t *q = json_loadb(line, (size_t)len, JSON_ALLOW_NUL, &je), *a;
        a = q ? answer(q) : json_pack("{ss}", "error", je.text);
        json_dumpf(a, stdout, JSON_COMPACT);
        putchar('\n');
        json_decref(a);
        json_decref(q);
    }
    free(line);
    return 0;
}
