/* cors: which web pages of other origins may read replies (api.cors_origins; docs/http.md). Constant after cors_init. */
#pragma once
#include <stdbool.h>
#include <stddef.h>

struct err;

struct cors {
    bool any;         // "*"
    const char *list; // origins split by commas, kept by the caller; NULL: none, or any
};

// text: "" (any when keys are asked for, else none), "none", "*", or origins split by commas.
int cors_init(struct cors *c, const char *text, bool has_keys, struct err *e);
static inline bool cors_on(const struct cors *c) {
    return c->any || c->list;
}
// Whether a page of this origin may read the reply.
bool cors_allows(const struct cors *c, const char *origin, size_t len);
