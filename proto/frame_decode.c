/* frame_decode: untrusted bytes to frames, by the tables of frame_layout.c. See frame.h. */
#include "common/arena.h"
#include "common/err.h"
#include "common/num.h"
#include "proto/frame_layout.h"
#include "proto/frame_scan.h"

#include <math.h>
#include <msgpack.h>
#include <stdio.h>
#include <string.h>
#include <utf8proc.h>

struct reader {
    enum frame_type type;
    struct arena *a;
    struct err *e;
};

static int get_group(struct reader *r, const struct frame_group *g, const char *name,
                     const msgpack_object *o, void *to);

static const char *kind_name(msgpack_object_type t) {
    switch (t) {
    case MSGPACK_OBJECT_NIL: return "nil";
    case MSGPACK_OBJECT_BOOLEAN: return "a truth value";
    case MSGPACK_OBJECT_POSITIVE_INTEGER: return "a whole number";
    case MSGPACK_OBJECT_NEGATIVE_INTEGER: return "a negative number";
    case MSGPACK_OBJECT_FLOAT32:
    case MSGPACK_OBJECT_FLOAT64: return "a real number";
    case MSGPACK_OBJECT_STR: return "text";
    case MSGPACK_OBJECT_BIN: return "bytes";
    case MSGPACK_OBJECT_ARRAY: return "an array";
    case MSGPACK_OBJECT_MAP: return "a map";
    default: return "an extension";
    }
}

static int bad(struct reader *r, const char *field, const char *wanted, const char *found) {
    return err_set(r->e, ST_CORRUPT, "%s: field %s: wanted %s, found %s", frame_type_name(r->type),
                   field, wanted, found);
}

static int bad_kind(struct reader *r, const struct frame_field *f, const char *wanted,
                    const msgpack_object *o) {
    return bad(r, f->name, wanted, kind_name(o->type));
}

// what: the unit behind the numbers, with a space before it, or "".
static int bad_range(struct reader *r, const struct frame_field *f, const char *what,
                     const char *found) {
    char wanted[96];
    snprintf(wanted, sizeof wanted, "%lld to %llu%s", (long long)f->min, (unsigned long long)f->max,
             what);
    return bad(r, f->name, wanted, found);
}

static int bad_count(struct reader *r, const struct frame_field *f, const char *what,
                     uint64_t found) {
    char text[32];
    snprintf(text, sizeof text, "%llu", (unsigned long long)found);
    return bad_range(r, f, what, text);
}

static int get_unsigned(struct reader *r, const struct frame_field *f, const msgpack_object *o,
                        uint64_t *ret) {
    if (o->type != MSGPACK_OBJECT_POSITIVE_INTEGER) return bad_kind(r, f, "a whole number", o);
    uint64_t v = o->via.u64;
    if ((f->min > 0 && v < (uint64_t)f->min) || v > f->max) return bad_count(r, f, "", v);
    *ret = v;
    return ST_OK;
}

static int get_signed(struct reader *r, const struct frame_field *f, const msgpack_object *o,
                      int64_t *ret) {
    if (o->type == MSGPACK_OBJECT_POSITIVE_INTEGER) {
        if (o->via.u64 > f->max) return bad_count(r, f, "", o->via.u64);
        *ret = (int64_t)o->via.u64;
        return ST_OK;
    }
    if (o->type != MSGPACK_OBJECT_NEGATIVE_INTEGER) return bad_kind(r, f, "a whole number", o);
    if (o->via.i64 < f->min) {
        char found[32];
        snprintf(found, sizeof found, "%lld", (long long)o->via.i64);
        return bad_range(r, f, "", found);
    }
    *ret = o->via.i64;
    return ST_OK;
}

// The pointer at `at`, whatever it points to.
static void set_pointer(void *at, const void *p) {
    memcpy(at, &p, sizeof p);
}

static int get_real(struct reader *r, const struct frame_field *f, const msgpack_object *o,
                    double *ret) {
    if (o->type != MSGPACK_OBJECT_FLOAT64 && o->type != MSGPACK_OBJECT_FLOAT32)
        return bad_kind(r, f, "a real number", o);
    double v = o->via.f64;
    bool any = f->min == INT64_MIN; // no range but to be a number
    if (!isfinite(v) || (!any && (v < (double)f->min || v > (double)f->max))) {
        char found[40];
        snprintf(found, sizeof found, "%g", v);
        return bad(r, f->name, "a finite number in range", found);
    }
    *ret = v;
    return ST_OK;
}

static int get_float(struct reader *r, const struct frame_field *f, const msgpack_object *o,
                     float *ret) {
    double v;
    int st = get_real(r, f, o, &v);
    if (st) return st;
    if (!isfinite((float)v)) return bad(r, f->name, "a 32-bit real number", "a larger one");
    *ret = (float)v;
    return ST_OK;
}

static int get_text(struct reader *r, const struct frame_field *f, const msgpack_object *o,
                    void *at) {
    if (o->type != MSGPACK_OBJECT_STR) return bad_kind(r, f, "text", o);
    const char *s = o->via.str.ptr;
    size_t len = o->via.str.size;
    if (len > f->max) return bad_count(r, f, " bytes of text", len);
    for (size_t i = 0; i < len;) {
        utf8proc_int32_t cp;
        utf8proc_ssize_t n =
            utf8proc_iterate((const uint8_t *)s + i, (utf8proc_ssize_t)(len - i), &cp);
        if (n <= 0 || cp == 0) return bad(r, f->name, "UTF-8 text without NUL", "other bytes");
        i += (size_t)n;
    }
    set_pointer(at, arena_strndup(r->a, s, len));
    return ST_OK;
}

// Bytes that hold whole 32-bit words, as many as the field allows.
static int get_bin(struct reader *r, const struct frame_field *f, const msgpack_object *o,
                   struct frame_ids *ret) {
    if (o->type != MSGPACK_OBJECT_BIN) return bad_kind(r, f, "bytes", o);
    size_t bytes = o->via.bin.size;
    if (bytes % 4) return bad_count(r, f, " words of four bytes each; their bytes", bytes);
    if ((int64_t)(bytes / 4) < f->min || bytes / 4 > f->max)
        return bad_count(r, f, " words", bytes / 4);
    *ret = (struct frame_ids){(const uint8_t *)o->via.bin.ptr, (uint32_t)(bytes / 4)};
    return ST_OK;
}

static uint32_t *words_of(struct reader *r, const struct frame_ids *l) {
    uint32_t *v = arena_alloc(r->a, 4 * (size_t)l->count);
    for (uint32_t i = 0; i < l->count; i++) v[i] = frame_id_at(l, i);
    return v;
}

static int get_words(struct reader *r, const struct frame_field *f, const msgpack_object *o,
                     void *at, uint32_t *ret_count) {
    struct frame_ids l;
    int st = get_bin(r, f, o, &l);
    if (st) return st;
    set_pointer(at, words_of(r, &l));
    *ret_count = l.count;
    return ST_OK;
}

static int get_floats(struct reader *r, const struct frame_field *f, const msgpack_object *o,
                      void *at, uint32_t count) {
    struct frame_ids l;
    int st = get_bin(r, f, o, &l);
    if (st) return st;
    if (l.count != count) return bad(r, f->name, "one number for each id", "another count");
    uint32_t *words = words_of(r, &l);
    float *v = arena_alloc(r->a, count * sizeof *v);
    memcpy(v, words, count * sizeof *v);
    for (uint32_t i = 0; i < count; i++)
        if (!isfinite(v[i])) return bad(r, f->name, "finite numbers", "one that is not");
    set_pointer(at, v);
    return ST_OK;
}

static int get_counts(struct reader *r, const struct frame_field *f, const msgpack_object *o,
                      uint64_t *ret) {
    if (o->type != MSGPACK_OBJECT_ARRAY) return bad_kind(r, f, "an array", o);
    if (o->via.array.size < f->max) return bad_count(r, f, " counts", o->via.array.size);
    for (uint64_t i = 0; i < f->max; i++) {
        const msgpack_object *x = &o->via.array.ptr[i];
        if (x->type != MSGPACK_OBJECT_POSITIVE_INTEGER) return bad_kind(r, f, "whole numbers", x);
        ret[i] = x->via.u64;
    }
    return ST_OK;
}

static int get_groups(struct reader *r, const struct frame_field *f, const msgpack_object *o,
                      void *at) {
    uint32_t count = o->via.array.size;
    char *v = arena_calloc(r->a, count, f->group->bytes);
    for (uint32_t i = 0; i < count; i++) {
        int st =
            get_group(r, f->group, f->name, &o->via.array.ptr[i], v + i * (size_t)f->group->bytes);
        if (st) return st;
    }
    set_pointer(at, v);
    return ST_OK;
}

static int get_list(struct reader *r, const struct frame_field *f, const msgpack_object *o,
                    void *at, uint32_t *ret_count) {
    if (o->type != MSGPACK_OBJECT_ARRAY) return bad_kind(r, f, "an array", o);
    if (o->via.array.size > f->max) return bad_count(r, f, " entries", o->via.array.size);
    *ret_count = o->via.array.size;
    return get_groups(r, f, o, at);
}

static int get_per_id(struct reader *r, const struct frame_field *f, const msgpack_object *o,
                      void *at, uint32_t count) {
    if (o->type == MSGPACK_OBJECT_NIL) return set_pointer(at, NULL), ST_OK;
    if (o->type != MSGPACK_OBJECT_ARRAY) return bad_kind(r, f, "an array or nil", o);
    if (o->via.array.size != count)
        return bad(r, f->name, "one entry for each id", "another count");
    return get_groups(r, f, o, at);
}

static uint32_t *count_at(const struct frame_field *f, char *to) {
    return (uint32_t *)(to + f->count_offset);
}

static int get_field(struct reader *r, const struct frame_field *f, const msgpack_object *o,
                     char *to) {
    void *at = to + f->offset;
    uint64_t u = 0;
    int64_t i = 0;
    int st = ST_OK;
    switch (f->kind) {
    case FRAME_KIND_U32:
        st = get_unsigned(r, f, o, &u);
        *(uint32_t *)at = (uint32_t)u;
        return st;
    case FRAME_KIND_U64: return get_unsigned(r, f, o, at);
    case FRAME_KIND_I32:
        st = get_signed(r, f, o, &i);
        *(int32_t *)at = (int32_t)i;
        return st;
    case FRAME_KIND_I64: return get_signed(r, f, o, at);
    case FRAME_KIND_BOOL:
        if (o->type != MSGPACK_OBJECT_BOOLEAN) return bad_kind(r, f, "a truth value", o);
        *(bool *)at = o->via.boolean;
        return ST_OK;
    case FRAME_KIND_REAL: return get_real(r, f, o, at);
    case FRAME_KIND_F32: return get_float(r, f, o, at);
    case FRAME_KIND_TEXT: return get_text(r, f, o, at);
    case FRAME_KIND_IDS: return get_bin(r, f, o, at);
    case FRAME_KIND_WORDS: return get_words(r, f, o, at, count_at(f, to));
    case FRAME_KIND_FLOATS: return get_floats(r, f, o, at, *count_at(f, to));
    case FRAME_KIND_COUNTS: return get_counts(r, f, o, at);
    case FRAME_KIND_GROUP: return get_group(r, f->group, f->name, o, at);
    case FRAME_KIND_LIST: return get_list(r, f, o, at, count_at(f, to));
    case FRAME_KIND_PER_ID: return get_per_id(r, f, o, at, *count_at(f, to));
    }
    return err_set(r->e, ST_INTERNAL, "field %s has no kind", f->name);
}

// What stands behind g's fields is a later version's; of g's own only the later ones may be missing.
static int get_fields(struct reader *r, const struct frame_group *g, const msgpack_object *objects,
                      uint32_t count, void *to) {
    for (uint32_t i = 0; i < min_u32(g->count, count); i++) {
        int st = get_field(r, &g->fields[i], &objects[i], to);
        if (st) return st;
    }
    return ST_OK;
}

static int get_group(struct reader *r, const struct frame_group *g, const char *name,
                     const msgpack_object *o, void *to) {
    if (o->type != MSGPACK_OBJECT_ARRAY) return bad(r, name, "an array", kind_name(o->type));
    if (o->via.array.size < g->count - g->later) {
        char wanted[48], found[32];
        snprintf(wanted, sizeof wanted, "an array of %u", g->count - g->later);
        snprintf(found, sizeof found, "one of %u", o->via.array.size);
        return bad(r, name, wanted, found);
    }
    return get_fields(r, g, o->via.array.ptr, o->via.array.size, to);
}

// Ranges ascend without touching and stay inside the head.
static int check_vocab(struct reader *r, const struct frame_vocab *v) {
    uint64_t next = 0; // first id that a range may begin at
    for (uint32_t i = 0; i < v->used_count; i++) {
        const struct frame_range *x = &v->used[i];
        if (x->first < next || (uint64_t)x->first + x->count > v->size)
            return bad(r, "used", "ascending ranges that do not touch, within size", "others");
        next = (uint64_t)x->first + x->count + 1;
    }
    if (v->used_count == 0) return bad(r, "used", "at least one range", "none");
    return ST_OK;
}

// What spans several fields of a frame.
static int check_whole(struct reader *r, const struct frame *f) {
    if (f->type == FRAME_VOCAB) return check_vocab(r, &f->vocab);
    if (f->type == FRAME_SUBMIT &&
        (uint64_t)f->submit.prompt.count + f->submit.given.count > FRAME_PROMPT_IDS_MAX)
        return bad(r, "given", "no more ids in all than a frame may hold", "more");
    if (f->type == FRAME_HELLO && f->hello.version_min > f->hello.version_max)
        return bad(r, "version_min", "at most version_max", "more");
    return ST_OK;
}

static bool is_u32(const msgpack_object *o) {
    return o->type == MSGPACK_OBJECT_POSITIVE_INTEGER && o->via.u64 <= UINT32_MAX;
}

// [type, generation, field...] to *ret.
static int get_frame(struct frame *ret, const msgpack_object *o, struct arena *a, struct err *e) {
    const msgpack_object *v = o->via.array.ptr;
    uint32_t n = o->type == MSGPACK_OBJECT_ARRAY ? o->via.array.size : 0;
    if (n < 2 || !is_u32(&v[0]) || !is_u32(&v[1]))
        return err_set(e, ST_CORRUPT, "frame: wanted [type, generation, ...], found %s",
                       kind_name(o->type));
    const struct frame_group *g = frame_layout(v[0].via.u64);
    if (!g)
        return err_set(e, ST_UNSUPPORTED, "frame of type %llu", (unsigned long long)v[0].via.u64);
    struct frame f = {.type = (enum frame_type)v[0].via.u64, .generation = (uint32_t)v[1].via.u64};
    struct reader r = {f.type, a, e};
    if (n - 2 < g->count - g->later)
        return err_set(e, ST_CORRUPT, "%s: wanted %u fields, found %u", frame_type_name(f.type),
                       g->count - g->later, n - 2);
    int st = get_fields(&r, g, v + 2, n - 2, &f.hello);
    if (!st) st = check_whole(&r, &f);
    if (!st) *ret = f;
    return st;
}

int frame_decode(struct frame *ret, const uint8_t *bytes, size_t len, struct arena *a,
                 struct err *e) {
    int st = frame_scan(bytes, len, e);
    if (st) return st;
    msgpack_unpacked u;
    msgpack_unpacked_init(&u);
    size_t off = 0;
    msgpack_unpack_return got = msgpack_unpack_next(&u, (const char *)bytes, len, &off);
    if (got != MSGPACK_UNPACK_SUCCESS || off != len)
        st = err_set(e, ST_CORRUPT, "frame does not unpack (%d at byte %zu)", (int)got, off);
    else
        st = get_frame(ret, &u.data, a, e);
    msgpack_unpacked_destroy(&u);
    return st;
}
