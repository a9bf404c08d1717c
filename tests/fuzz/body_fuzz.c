/* body_fuzz: any bytes as the body of a chat request, up to its checked fields. What the scan takes, jansson must take
 * too; a refusal has its code and a message without control characters. */
#include "common/arena.h"
#include "router/apierr.h"
#include "router/body.h"
#include "router/fields.h"
#include "router/model.h"
#include "router/params.h"
#include "tests/lib/tiny_tokenizer.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len);

static void check(bool right) {
    if (!right) abort();
}

static void check_refusal(const struct apierr *e) {
    check(e->code != APIERR_NONE && apierr_status(e->code) == 400);
    check(*e->message && strncmp(e->message, "invalid JSON near byte", 22));
    for (const char *p = e->message; *p; p++) check((unsigned char)*p >= 0x20);
}

static void read_fields(enum fields_set set, const json_t *body) {
    static const struct model m = {.sampling = {1, 1, 0, 1, 0}};
    static struct tokenizer *t;
    if (!t) t = tiny_tokenizer();
    struct params p;
    struct arena a = {0};
    struct apierr e = {0};
    const char *unknown[FIELDS_UNKNOWN_MAX];
    uint32_t surrogates = 0;
    struct field_context c = {.set = set,
                              .params = &p,
                              .arena = &a,
                              .tokenizer = t,
                              .vocab_size = 1000,
                              .lone_surrogates = &surrogates,
                              .unknown = unknown};
    params_init(&p, &m, false);
    int st = fields_read(&c, body, &e);
    if (!st) st = fields_capabilities(set, body, &p, &e);
    if (st) check_refusal(&e);
    params_fini(&p);
    arena_fini(&a);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len) {
    json_t *body = NULL;
    struct body_stats stats;
    struct apierr e = {0};
    if (body_parse((const char *)bytes, len, &body, &stats, &e)) {
        check_refusal(&e);
        check(!body);
        return 0;
    }
    check(json_is_object(body));
    read_fields(FIELDS_CHAT, body);
    read_fields(FIELDS_COMPLETION, body);
    json_decref(body);
    return 0;
}
