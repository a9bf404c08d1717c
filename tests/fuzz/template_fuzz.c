/* template_fuzz: any JSON given as a request (tests/lib/render_request.h) is refused with a message or rendered to
 * valid UTF-8 with ascending spans. Inputs that are JSON stay so: mostly one of their strings is mutated. */
#include "common/err.h"
#include "router/text/utf8.h"
#include "tests/lib/render_request.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len);
size_t LLVMFuzzerCustomMutator(uint8_t *bytes, size_t len, size_t len_max, unsigned seed);
// libFuzzer's own, which the program that replays the corpus does not have.
__attribute__((weak)) size_t LLVMFuzzerMutate(uint8_t *bytes, size_t len, size_t len_max);

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

// The string of v that *skip others stand before, or NULL: then *skip is less by all there are.
static json_t *find_string(json_t *v, size_t *skip) {
    const char *key;
    json_t *inner, *found = NULL;
    size_t i;
    if (json_is_string(v)) return (*skip)-- ? NULL : v;
    json_array_foreach(v, i, inner) {
        if ((found = find_string(inner, skip))) return found;
    }
    json_object_foreach(v, key, inner) {
        if ((found = find_string(inner, skip))) return found;
    }
    return NULL;
}

// Mutates one string of q in place. False: it would be no UTF-8, or too long.
static bool mutate_string(json_t *q, unsigned seed) {
    enum { BYTES_MAX = 1024 };
    static uint8_t text[BYTES_MAX];
    size_t skip = SIZE_MAX;
    find_string(q, &skip);
    if (skip == SIZE_MAX) return false;
    skip = seed % (SIZE_MAX - skip);
    json_t *v = find_string(q, &skip);
    size_t len = json_string_length(v);
    if (len > BYTES_MAX) return false;
    memcpy(text, json_string_value(v), len);
    len = LLVMFuzzerMutate(text, len, BYTES_MAX);
    return !json_string_setn(v, (const char *)text, len);
}

size_t LLVMFuzzerCustomMutator(uint8_t *bytes, size_t len, size_t len_max, unsigned seed) {
    json_t *q = seed % 4 ? json_loadb((const char *)bytes, len, JSON_ALLOW_NUL, NULL) : NULL;
    size_t made = 0;
    if (q && mutate_string(q, seed / 4)) made = json_dumpb(q, (char *)bytes, len_max, JSON_COMPACT);
    json_decref(q);
    return made && made <= len_max ? made : LLVMFuzzerMutate(bytes, len, len_max);
}
