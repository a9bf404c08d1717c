/* origin: see origin.h. */
#include "router/text/origin.h"
#include "common/mem.h"
#include "router/text/reply.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

void origin_fini(struct origin *o) {
    free(o->v);
    *o = (struct origin){0};
}

static void make_room(struct origin *o) {
    if (o->len < o->cap) return;
    if (o->head > o->len / 2) {
        o->len -= o->head;
        o->open -= o->head;
        memmove(o->v, o->v + o->head, o->len * sizeof *o->v);
        o->head = 0;
        return;
    }
    o->cap = o->cap ? o->cap * 2 : 16;
    o->v = mem_realloc_array(o->v, o->cap, sizeof *o->v);
}

void origin_id(struct origin *o, size_t idx, size_t raw_len) {
    make_room(o);
    o->raw_in += raw_len;
    o->v[o->len++] = (struct origin_entry){.idx = idx,
                                           .char_first = o->chars,
                                           .raw_last = o->raw_in,
                                           .first = o->in,
                                           .last = SIZE_MAX};
}

void origin_char(struct origin *o, size_t raw_len, size_t len) {
    o->raw_done += raw_len;
    o->in += len;
    o->chars++;
    while (o->open < o->len && o->v[o->open].raw_last <= o->raw_done) o->v[o->open++].last = o->in;
}

static void tell(struct reply_delta *d, const struct origin_entry *e) {
    if (d->id_count == d->id_cap) {
        d->id_cap = d->id_cap ? d->id_cap * 2 : 16;
        d->ids = mem_realloc_array(d->ids, d->id_cap, sizeof *d->ids);
    }
    d->ids[d->id_count++] = (struct reply_content_id){e->idx, e->char_first};
}

size_t origin_out(struct origin *o, size_t len, bool shown, struct reply_delta *d) {
    size_t told = 0;
    o->out += len;
    for (; o->head < o->len && o->v[o->head].first < o->out; o->head++) {
        struct origin_entry *e = &o->v[o->head];
        e->shown |= shown;
        if (e->last > o->out) break;
        if (!e->shown) continue;
        tell(d, e);
        told++;
    }
    return told;
}
