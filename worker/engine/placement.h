/* placement: where the rows of the embedding live: on the card, or in pinned host memory that the card reads over the bus.
 *
 * They go to the host only when a discrete card cannot hold them beside everything else and one stream of the asked context.
 * Everything else is in place when the room is asked, so the rule has no margin: a context that fits with the rows on
 * the card never maps them. Pure. */
#pragma once
#include <stdbool.h>
#include <stdint.h>

struct err;

enum embedding_mode { EMBEDDING_AUTO, EMBEDDING_CARD, EMBEDDING_HOST };

struct placement_ask {
    enum embedding_mode mode;
    bool unified; // one memory for both: there is nothing to gain
    bool tied;    // the rows are the head too, and are read whole for every token
    uint64_t room;
    uint64_t need_card,
        need_host; // of the card, for one stream of the context, with the rows here and there
};

struct placement {
    bool host;
    const char *why; // a literal, for the report
};

// ST_NOMEM: it fits neither way it may be (the caller says with which numbers); ST_INVAL: asked for what never is.
int placement_choose(struct placement *ret, const struct placement_ask *a, struct err *e);
// NULL is auto. ST_INVAL.
int placement_mode(enum embedding_mode *ret, const char *name, struct err *e);
