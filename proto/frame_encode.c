/* frame_encode: frames to bytes, by the tables of frame_layout.c. See frame.h. */
#include "common/err.h"
#include "common/num.h"
#include "common/strbuf.h"
#include "proto/frame_layout.h"

#include <assert.h>
#include <math.h>
#include <msgpack.h>
#include <string.h>
#include <utf8proc.h>

struct writer {
    struct strbuf *out;
    msgpack_packer pk;
    size_t objects;
};

static int append(void *out, const char *p, size_t len) {
    strbuf_add(out, p, len);
    return 0;
}

static void put_group(struct writer *w, const struct frame_group *g, const void *from);

static bool in_range(const struct frame_field *f, int64_t v) {
    return v >= f->min && (v < 0 || (uint64_t)v <= f->max);
}

static void put_signed(struct writer *w, const struct frame_field *f, int64_t v) {
    assert(in_range(f, v));
    msgpack_pack_int64(&w->pk, v);
}

static void put_unsigned(struct writer *w, const struct frame_field *f, uint64_t v) {
    assert((f->min <= 0 || v >= (uint64_t)f->min) && v <= f->max);
    msgpack_pack_uint64(&w->pk, v);
}

static void put_text(struct writer *w, const char *s) {
    size_t len = strlen(s);
    assert(len <= FRAME_TEXT_BYTES_MAX);
    msgpack_pack_str(&w->pk, len);
    for (size_t i = 0; i < len;) {
        utf8proc_int32_t cp;
        utf8proc_ssize_t n =
            utf8proc_iterate((const uint8_t *)s + i, (utf8proc_ssize_t)(len - i), &cp);
        if (n > 0)
            msgpack_pack_str_body(&w->pk, s + i, (size_t)n);
        else
            msgpack_pack_str_body(&w->pk, "?", 1);
        i += n > 0 ? (size_t)n : 1;
    }
}

static void put_bin(struct writer *w, const struct frame_field *f, const void *p, uint32_t count) {
    size_t bytes = 4 * (size_t)count;
    assert((int64_t)count >= f->min && count <= f->max);
    msgpack_pack_bin(&w->pk, bytes);
    if (bytes) msgpack_pack_bin_body(&w->pk, p, bytes);
}

// 32-bit words of the host (ids or floats), as little-endian ones.
static void put_words(struct writer *w, const struct frame_field *f, const void *p,
                      uint32_t count) {
    if (__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__) return put_bin(w, f, p, count);
    assert(count <= f->max);
    msgpack_pack_bin(&w->pk, 4 * (size_t)count);
    for (uint32_t i = 0; i < count; i++) {
        uint32_t word;
        memcpy(&word, (const uint8_t *)p + 4 * (size_t)i, sizeof word);
        word = __builtin_bswap32(word);
        msgpack_pack_bin_body(&w->pk, &word, sizeof word);
    }
}

static void put_groups(struct writer *w, const struct frame_field *f, const char *p,
                       uint32_t count) {
    assert(count <= f->max);
    msgpack_pack_array(&w->pk, count);
    for (uint32_t i = 0; i < count; i++) put_group(w, f->group, p + i * (size_t)f->group->bytes);
}

static uint32_t count_of(const struct frame_field *f, const char *from) {
    uint32_t n;
    memcpy(&n, from + f->count_offset, sizeof n);
    return n;
}

// The pointer at `at`, whatever it points to.
static const void *pointer_at(const void *at) {
    const void *p;
    memcpy(&p, at, sizeof p);
    return p;
}

static void put_field(struct writer *w, const struct frame_field *f, const char *from) {
    const char *at = from + f->offset;
    w->objects++;
    switch (f->kind) {
    case FRAME_KIND_U32: put_unsigned(w, f, *(const uint32_t *)at); return;
    case FRAME_KIND_U64: put_unsigned(w, f, *(const uint64_t *)at); return;
    case FRAME_KIND_I32: put_signed(w, f, *(const int32_t *)at); return;
    case FRAME_KIND_I64: put_signed(w, f, *(const int64_t *)at); return;
    case FRAME_KIND_BOOL:
        if (*(const bool *)at)
            msgpack_pack_true(&w->pk);
        else
            msgpack_pack_false(&w->pk);
        return;
    case FRAME_KIND_REAL:
        assert(isfinite(*(const double *)at));
        msgpack_pack_double(&w->pk, *(const double *)at);
        return;
    case FRAME_KIND_F32:
        assert(isfinite(*(const float *)at));
        msgpack_pack_float(&w->pk, *(const float *)at);
        return;
    case FRAME_KIND_TEXT: put_text(w, pointer_at(at)); return;
    case FRAME_KIND_IDS: {
        const struct frame_ids *ids = (const void *)at;
        put_bin(w, f, ids->le, ids->count);
        return;
    }
    case FRAME_KIND_WORDS:
    case FRAME_KIND_FLOATS: put_words(w, f, pointer_at(at), count_of(f, from)); return;
    case FRAME_KIND_COUNTS:
        msgpack_pack_array(&w->pk, f->max);
        for (uint64_t i = 0; i < f->max; i++)
            msgpack_pack_uint64(&w->pk, ((const uint64_t *)at)[i]);
        w->objects += f->max;
        return;
    case FRAME_KIND_GROUP:
        w->objects--; // put_group counts it
        put_group(w, f->group, at);
        return;
    case FRAME_KIND_LIST: put_groups(w, f, pointer_at(at), count_of(f, from)); return;
    case FRAME_KIND_PER_ID:
        if (pointer_at(at))
            put_groups(w, f, pointer_at(at), count_of(f, from));
        else
            msgpack_pack_nil(&w->pk);
        return;
    }
}

static void put_fields(struct writer *w, const struct frame_group *g, const void *from) {
    for (uint32_t i = 0; i < g->count; i++) put_field(w, &g->fields[i], from);
}

static void put_group(struct writer *w, const struct frame_group *g, const void *from) {
    w->objects++;
    msgpack_pack_array(&w->pk, g->count);
    put_fields(w, g, from);
}

int frame_encode(struct strbuf *out, const struct frame *f, struct err *e) {
    const struct frame_group *g = frame_layout(f->type);
    assert(g); // a type of ours
    size_t before = out->len;
    struct writer w = {.out = out, .objects = 3}; // the array, the type, the generation
    msgpack_packer_init(&w.pk, out, append);
    msgpack_pack_array(&w.pk, g->count + 2);
    msgpack_pack_uint32(&w.pk, f->type);
    msgpack_pack_uint32(&w.pk, f->generation);
    put_fields(&w, g, &f->hello);
    size_t bytes = out->len - before;
    if (bytes <= FRAME_BYTES_MAX && w.objects <= FRAME_OBJECTS_MAX) return ST_OK;
    out->len = before;
    out->p[before] = '\0';
    return err_set(e, ST_FULL, "%s of %zu bytes and %zu objects, at most %d and %d go into a frame",
                   frame_type_name(f->type), bytes, w.objects, FRAME_BYTES_MAX, FRAME_OBJECTS_MAX);
}
