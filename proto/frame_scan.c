/* frame_scan: see frame_scan.h. Format: the msgpack specification, https://github.com/msgpack/msgpack. */
#include "proto/frame_scan.h"
#include "common/err.h"
#include "proto/frame.h"

struct head { // of one object: what follows it
    uint64_t body_bytes;
    uint64_t children;
    uint32_t length_bytes; // of the length field behind the first byte
    enum { HEAD_PLAIN, HEAD_ARRAY, HEAD_MAP } form;
};

// False: a byte that stands for no type, or an extension, of which frames have none.
static bool head_of(uint8_t c, struct head *ret) {
    *ret = (struct head){0};
    if (c <= 0x7f || c >= 0xe0) return true; // small numbers
    if (c <= 0x8f) return ret->form = HEAD_MAP, ret->children = 2u * (c & 15u), true;
    if (c <= 0x9f) return ret->form = HEAD_ARRAY, ret->children = c & 15u, true;
    if (c <= 0xbf) return ret->body_bytes = c & 31u, true;
    switch (c) {
    case 0xc0:
    case 0xc2:
    case 0xc3: return true; // nil, false, true
    case 0xc4:
    case 0xd9: return ret->length_bytes = 1, true;
    case 0xc5:
    case 0xda: return ret->length_bytes = 2, true;
    case 0xc6:
    case 0xdb: return ret->length_bytes = 4, true;
    case 0xcc:
    case 0xd0: return ret->body_bytes = 1, true;
    case 0xcd:
    case 0xd1: return ret->body_bytes = 2, true;
    case 0xca:
    case 0xce:
    case 0xd2: return ret->body_bytes = 4, true;
    case 0xcb:
    case 0xcf:
    case 0xd3: return ret->body_bytes = 8, true;
    case 0xdc: return ret->form = HEAD_ARRAY, ret->length_bytes = 2, true;
    case 0xdd: return ret->form = HEAD_ARRAY, ret->length_bytes = 4, true;
    case 0xde: return ret->form = HEAD_MAP, ret->length_bytes = 2, true;
    case 0xdf: return ret->form = HEAD_MAP, ret->length_bytes = 4, true;
    default: return false;
    }
}

// Reads the length field at p + *i into h and moves *i past it. False: the bytes end first.
static bool read_length(const uint8_t *p, size_t len, size_t *i, struct head *h) {
    if (len - *i < h->length_bytes) return false;
    uint64_t n = 0;
    for (uint32_t k = 0; k < h->length_bytes; k++) n = n << 8 | p[(*i)++];
    if (h->length_bytes && h->form == HEAD_PLAIN) h->body_bytes = n;
    if (h->length_bytes && h->form != HEAD_PLAIN) h->children = h->form == HEAD_MAP ? 2 * n : n;
    return true;
}

static int cut(struct err *e, size_t at) {
    return err_set(e, ST_CORRUPT, "frame ends inside the object at byte %zu", at);
}

int frame_scan(const uint8_t *p, size_t len, struct err *e) {
    if (len > FRAME_BYTES_MAX)
        return err_set(e, ST_CORRUPT, "frame of %zu bytes, at most %d allowed", len,
                       FRAME_BYTES_MAX);
    uint64_t missing[FRAME_DEPTH_MAX + 1] = {1}; // objects still to come at each depth
    uint32_t depth = 0, objects = 0;
    size_t i = 0;
    for (;;) {
        while (missing[depth] == 0 && depth > 0) depth--;
        if (missing[depth] == 0) break;
        missing[depth]--;
        size_t at = i;
        struct head h;
        if (i >= len) return cut(e, at);
        if (++objects > FRAME_OBJECTS_MAX)
            return err_set(e, ST_CORRUPT, "frame of more than %d objects", FRAME_OBJECTS_MAX);
        if (!head_of(p[i], &h))
            return err_set(e, ST_CORRUPT, "frame has type byte 0x%02x at byte %zu", p[i], at);
        i++;
        if (!read_length(p, len, &i, &h) || h.body_bytes > len - i) return cut(e, at);
        i += h.body_bytes;
        if (h.children == 0) continue;
        if (h.children > len - i)
            return err_set(e, ST_CORRUPT, "frame claims %llu objects at byte %zu, %zu bytes left",
                           (unsigned long long)h.children, at, len - i);
        if (depth == FRAME_DEPTH_MAX)
            return err_set(e, ST_CORRUPT, "frame nests deeper than %d at byte %zu", FRAME_DEPTH_MAX,
                           at);
        missing[++depth] = h.children;
    }
    if (i < len) return err_set(e, ST_CORRUPT, "frame has %zu bytes behind its end", len - i);
    return ST_OK;
}
