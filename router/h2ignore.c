/* h2ignore: see h2ignore.h. Frames: RFC 9113, 4.1. */
#include "router/h2ignore.h"

#include <string.h>

enum { HEAD_BYTES = 9, DATA = 0, RST_STREAM = 3, END_STREAM = 1 };

struct frame {
    size_t bytes; // with its head
    uint32_t length, id;
    uint8_t type, flags;
};

// False: not all of it is here, or h2o will not have it.
static bool read_frame(const uint8_t *p, size_t len, struct frame *ret) {
    if (len < HEAD_BYTES) return false;
    ret->length = (uint32_t)p[0] << 16 | (uint32_t)p[1] << 8 | p[2];
    ret->bytes = HEAD_BYTES + ret->length;
    ret->type = p[3];
    ret->flags = p[4];
    ret->id =
        ((uint32_t)p[5] << 24 | (uint32_t)p[6] << 16 | (uint32_t)p[7] << 8 | p[8]) & 0x7fffffff;
    return ret->length <= H2IGNORE_FRAME_MAX && ret->bytes <= len;
}

static struct h2ignore_stream *find(struct h2ignore *g, uint32_t id) {
    for (uint32_t i = 0; i < g->count; i++)
        if (g->streams[i].id == id) return &g->streams[i];
    return NULL;
}

static void forget(struct h2ignore *g, struct h2ignore_stream *s) {
    size_t behind = (size_t)(g->streams + g->count - (s + 1));
    memmove(s, s + 1, behind * sizeof *s);
    g->count--;
}

void h2ignore_add(struct h2ignore *g, uint32_t stream_id) {
    if (g->count == H2IGNORE_STREAMS_MAX) forget(g, &g->streams[0]);
    g->streams[g->count++] = (struct h2ignore_stream){.id = stream_id};
}

size_t h2ignore_take(struct h2ignore *g, void *in, size_t len, size_t *ret_taken) {
    uint8_t *p = in;
    size_t at = 0, kept = 0;
    struct frame f;
    *ret_taken = 0;
    for (; g->count && read_frame(p + at, len - at, &f); at += f.bytes) {
        struct h2ignore_stream *s = find(g, f.id);
        if (s && f.type == DATA) {
            s->taken += f.length;
            s->total += f.length;
            *ret_taken += f.length;
        } else {
            memmove(p + kept, p + at, f.bytes);
            kept += f.bytes;
        }
        if (s && (f.type == RST_STREAM || (f.type == DATA && f.flags & END_STREAM))) forget(g, s);
    }
    memmove(p + kept, p + at, len - at);
    return kept + (len - at);
}

bool h2ignore_next(struct h2ignore *g, uint32_t *ret_id, uint32_t *ret_taken, bool *ret_reset) {
    for (uint32_t i = 0; i < g->count; i++) {
        struct h2ignore_stream *s = &g->streams[i];
        if (!s->taken) continue;
        *ret_id = s->id;
        *ret_taken = s->taken;
        *ret_reset = s->total > H2IGNORE_BYTES_MAX && s->total - s->taken <= H2IGNORE_BYTES_MAX;
        s->taken = 0;
        return true;
    }
    return false;
}
