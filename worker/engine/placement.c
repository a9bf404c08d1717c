/* placement: see placement.h. */
#include "worker/engine/placement.h"
#include "common/err.h"

#include <string.h>

static int choose_host(struct placement *ret, const struct placement_ask *a, const char *why,
                       struct err *e) {
    if (a->need_host > a->room)
        return err_set(e, ST_NOMEM, "memory: the model does not fit the card");
    *ret = (struct placement){.host = true, .why = why};
    return ST_OK;
}

int placement_choose(struct placement *ret, const struct placement_ask *a, struct err *e) {
    bool fits = a->need_card <= a->room;
    if (a->mode == EMBEDDING_HOST && a->unified)
        return err_set(e, ST_INVAL,
                       "embedding: wanted auto or card where host and card share one "
                       "memory, found 'host'");
    if (a->mode == EMBEDDING_HOST && a->tied)
        return err_set(e, ST_INVAL,
                       "embedding: wanted auto or card where the head is tied to it, found 'host'");
    if (a->mode == EMBEDDING_HOST) return choose_host(ret, a, "as asked", e);
    if (fits) {
        const char *why = a->unified                  ? "host and card share one memory"
                          : a->tied                   ? "it is the head too"
                          : a->mode == EMBEDDING_CARD ? "as asked"
                                                      : "there is room";
        *ret = (struct placement){.why = why};
        return ST_OK;
    }
    if (a->mode == EMBEDDING_CARD || a->unified || a->tied)
        return err_set(e, ST_NOMEM, "memory: the model does not fit the card");
    return choose_host(ret, a, "the card has no room for it beside one stream", e);
}

int placement_mode(enum embedding_mode *ret, const char *name, struct err *e) {
    if (!name || !strcmp(name, "auto"))
        *ret = EMBEDDING_AUTO;
    else if (!strcmp(name, "card"))
        *ret = EMBEDDING_CARD;
    else if (!strcmp(name, "host"))
        *ret = EMBEDDING_HOST;
    else
        return err_set(e, ST_INVAL, "embedding: wanted auto, card or host, found '%s'", name);
    return ST_OK;
}
