/* safetensors: see safetensors.h. Owns the mapping and the table of tensors, sorted by name. */
#include "worker/engine/safetensors.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/arena.h"
#include "common/err.h"
#include "common/mem.h"
#include "common/num.h"
#include "common/planted.h"
#include "worker/engine/json_text.h"

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "the format is little-endian");

enum { LENGTH_BYTES = 8 };

static const struct {
    const char *name;
    uint32_t bytes;
} dtypes[SAFETENSORS_DTYPE_COUNT] = {
    [SAFETENSORS_BOOL] = {"BOOL", 1},       [SAFETENSORS_U8] = {"U8", 1},
    [SAFETENSORS_I8] = {"I8", 1},           [SAFETENSORS_F8_E4M3] = {"F8_E4M3", 1},
    [SAFETENSORS_F8_E5M2] = {"F8_E5M2", 1}, [SAFETENSORS_F8_E8M0] = {"F8_E8M0", 1},
    [SAFETENSORS_U16] = {"U16", 2},         [SAFETENSORS_I16] = {"I16", 2},
    [SAFETENSORS_F16] = {"F16", 2},         [SAFETENSORS_BF16] = {"BF16", 2},
    [SAFETENSORS_U32] = {"U32", 4},         [SAFETENSORS_I32] = {"I32", 4},
    [SAFETENSORS_F32] = {"F32", 4},         [SAFETENSORS_U64] = {"U64", 8},
    [SAFETENSORS_I64] = {"I64", 8},         [SAFETENSORS_F64] = {"F64", 8},
    [SAFETENSORS_C64] = {"C64", 8},
};

struct safetensors {
    char *path;
    const uint8_t *file;
    uint64_t file_bytes;
    uint64_t data_start;
    bool mapped; // file is a mapping of ours
    struct arena names;
    struct safetensors_tensor *tensors; // by name
    uint32_t count;
};

const char *safetensors_dtype_name(enum safetensors_dtype d) {
    return (unsigned)d < SAFETENSORS_DTYPE_COUNT ? dtypes[d].name : "unknown";
}

uint32_t safetensors_dtype_bytes(enum safetensors_dtype d) {
    assert((unsigned)d < SAFETENSORS_DTYPE_COUNT);
    return dtypes[d].bytes;
}

void safetensors_shape_text(const uint64_t *dims, uint32_t dims_count, char *ret,
                            size_t ret_bytes) {
    size_t n = (size_t)snprintf(ret, ret_bytes, "[");
    for (uint32_t i = 0; i < dims_count && n < ret_bytes; i++)
        n += (size_t)snprintf(ret + n, ret_bytes - n, i ? ", %llu" : "%llu",
                              (unsigned long long)dims[i]);
    if (n < ret_bytes) snprintf(ret + n, ret_bytes - n, "]");
}

// One message about one tensor: "file 'F': tensor 'T': ...".
static int bad(const struct safetensors *s, const char *name, struct err *e, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
static int bad(const struct safetensors *s, const char *name, struct err *e, const char *fmt, ...) {
    char clean[JSON_TEXT_BYTES];
    va_list ap;
    va_start(ap, fmt);
    err_setv(e, ST_CORRUPT, fmt, ap);
    va_end(ap);
    if (name) err_prefix(e, "tensor '%s'", json_text_clean(clean, name));
    err_prefix(e, "file '%s'", s->path);
    return ST_CORRUPT;
}

static int read_dtype(const struct safetensors *s, struct safetensors_tensor *t, const json_t *v,
                      struct err *e) {
    char found[JSON_TEXT_BYTES];
    if (!json_is_string(v))
        return bad(s, t->name, e, "dtype: wanted a string, found %s", json_text(found, v));
    for (int i = 0; i < SAFETENSORS_DTYPE_COUNT; i++) {
        if (strcmp(json_string_value(v), dtypes[i].name) != 0) continue;
        t->dtype = (enum safetensors_dtype)i;
        return ST_OK;
    }
    return bad(s, t->name, e, "dtype: wanted BF16, F16, F32 or another of the format, found %s",
               json_text(found, v));
}

static int read_shape(const struct safetensors *s, struct safetensors_tensor *t, const json_t *v,
                      struct err *e) {
    char found[JSON_TEXT_BYTES];
    if (!json_is_array(v))
        return bad(s, t->name, e, "shape: wanted a list, found %s", json_text(found, v));
    if (json_array_size(v) > SAFETENSORS_DIMS_MAX + PLANTED)
        return bad(s, t->name, e, "shape: wanted at most %d dimensions, found %zu",
                   SAFETENSORS_DIMS_MAX, json_array_size(v));
    t->dims_count = (uint32_t)json_array_size(v);
    t->elements = 1;
    for (uint32_t i = 0; i < t->dims_count; i++) {
        const json_t *d = json_array_get(v, i);
        if (!json_is_integer(d) || json_integer_value(d) < 1)
            return bad(s, t->name, e, "shape: dimension %u: wanted a whole number from 1, found %s",
                       i, json_text(found, d));
        t->dims[i] = (uint64_t)json_integer_value(d);
        if (__builtin_mul_overflow(t->elements, t->dims[i], &t->elements))
            return bad(s, t->name, e, "shape: wanted fewer than 2^64 elements, found %s",
                       json_text(found, v));
    }
    if (__builtin_mul_overflow(t->elements, (uint64_t)dtypes[t->dtype].bytes, &t->bytes))
        return bad(s, t->name, e, "shape: wanted fewer than 2^64 bytes, found %s",
                   json_text(found, v));
    return ST_OK;
}

static int read_offsets(const struct safetensors *s, struct safetensors_tensor *t, const json_t *v,
                        struct err *e) {
    char found[JSON_TEXT_BYTES], shape[128];
    const json_t *a = json_array_get(v, 0), *b = json_array_get(v, 1);
    if (json_array_size(v) != 2 || !json_is_integer(a) || !json_is_integer(b) ||
        json_integer_value(a) < 0 || json_integer_value(b) < 0)
        return bad(s, t->name, e, "data_offsets: wanted two whole numbers from 0, found %s",
                   json_text(found, v));
    uint64_t begin = (uint64_t)json_integer_value(a), end = (uint64_t)json_integer_value(b);
    uint64_t data_bytes = s->file_bytes - s->data_start;
    if (begin > end || end > data_bytes)
        return bad(s, t->name, e,
                   "data_offsets: wanted ascending and at most %llu (bytes of data in the file), "
                   "found %s",
                   (unsigned long long)data_bytes, json_text(found, v));
    if (end - begin != t->bytes) {
        safetensors_shape_text(t->dims, t->dims_count, shape, sizeof shape);
        return bad(s, t->name, e, "data_offsets: wanted %llu bytes for %s %s, found %llu",
                   (unsigned long long)t->bytes, dtypes[t->dtype].name, shape,
                   (unsigned long long)(end - begin));
    }
    if ((s->data_start + begin) % dtypes[t->dtype].bytes)
        return bad(s, t->name, e,
                   "data_offsets: wanted a start on a multiple of %u (%s), found byte %llu of the "
                   "file",
                   dtypes[t->dtype].bytes, dtypes[t->dtype].name,
                   (unsigned long long)(s->data_start + begin));
    t->data = s->file + s->data_start + begin;
    return ST_OK;
}

static int read_tensor(struct safetensors *s, const char *name, const json_t *v, struct err *e) {
    char found[JSON_TEXT_BYTES];
    if (strlen(name) > SAFETENSORS_NAME_BYTES_MAX)
        return bad(s, name, e, "wanted a name of at most %d bytes, found %zu",
                   SAFETENSORS_NAME_BYTES_MAX, strlen(name));
    if (!json_is_object(v))
        return bad(s, name, e, "wanted an object with dtype, shape, data_offsets, found %s",
                   json_text(found, v));
    struct safetensors_tensor *t = &s->tensors[s->count];
    t->name = arena_strdup(&s->names, name);
    t->path = s->path;
    int st = read_dtype(s, t, json_object_get(v, "dtype"), e);
    if (!st) st = read_shape(s, t, json_object_get(v, "shape"), e);
    if (!st) st = read_offsets(s, t, json_object_get(v, "data_offsets"), e);
    if (!st) s->count++;
    return st;
}

static int by_data(const void *a, const void *b) {
    const struct safetensors_tensor *x = a, *y = b;
    return x->data < y->data ? -1 : x->data > y->data;
}

static int by_name(const void *a, const void *b) {
    return strcmp(((const struct safetensors_tensor *)a)->name,
                  ((const struct safetensors_tensor *)b)->name);
}

// The tensors must tile the data: a byte of two tensors or of none is a lie of the header.
static int check_tiling(struct safetensors *s, struct err *e) {
    qsort(s->tensors, s->count, sizeof *s->tensors, by_data);
    const uint8_t *want = s->file + s->data_start;
    for (uint32_t i = 0; i < s->count; i++) {
        const struct safetensors_tensor *t = &s->tensors[i];
        const uint8_t *at = t->data;
        if (at != want)
            return bad(s, t->name, e, "wanted its data at byte %lld of the data, found %lld: %s",
                       (long long)(want - s->file) - (long long)s->data_start,
                       (long long)(at - s->file) - (long long)s->data_start,
                       at < want ? "it overlaps the tensor before it" : "bytes of no tensor");
        want = at + t->bytes;
    }
    uint64_t end = (uint64_t)(want - s->file);
    if (end != s->file_bytes)
        return bad(s, NULL, e, "wanted %llu bytes for the tensors of its header, found %llu",
                   (unsigned long long)end, (unsigned long long)s->file_bytes);
    return ST_OK;
}

static int read_tensors(struct safetensors *s, json_t *root, struct err *e) {
    size_t n = json_object_size(root);
    if (n > SAFETENSORS_TENSORS_MAX)
        return bad(s, NULL, e, "wanted at most %d tensors, found %zu", SAFETENSORS_TENSORS_MAX, n);
    s->tensors = mem_calloc(n, sizeof *s->tensors);
    const char *name;
    json_t *v;
    json_object_foreach(root, name, v) {
        if (strcmp(name, "__metadata__") == 0) continue;
        int st = read_tensor(s, name, v, e);
        if (st) return st;
    }
    int st = check_tiling(s, e);
    if (!st) qsort(s->tensors, s->count, sizeof *s->tensors, by_name);
    return st;
}

static int read_length(struct safetensors *s, struct err *e) {
    if (s->file_bytes >= 4 && memcmp(s->file, "GGUF", 4) == 0)
        return err_set(e, ST_UNSUPPORTED,
                       "file '%s': wanted safetensors, found GGUF (known, not in this build)",
                       s->path);
    if (s->file_bytes < LENGTH_BYTES)
        return bad(s, NULL, e, "wanted at least %d bytes, found %llu", LENGTH_BYTES,
                   (unsigned long long)s->file_bytes);
    uint64_t n;
    memcpy(&n, s->file, sizeof n);
    if (n > SAFETENSORS_HEADER_BYTES_MAX)
        return bad(s, NULL, e, "header length: wanted at most %d, found %llu",
                   SAFETENSORS_HEADER_BYTES_MAX, (unsigned long long)n);
    if (n > s->file_bytes - LENGTH_BYTES)
        return bad(s, NULL, e,
                   "header length: wanted at most %llu (what the file holds), found %llu",
                   (unsigned long long)(s->file_bytes - LENGTH_BYTES), (unsigned long long)n);
    s->data_start = LENGTH_BYTES + n;
    return ST_OK;
}

static int read_header(struct safetensors *s, struct err *e) {
    int st = read_length(s, e);
    if (st) return st;
    json_error_t je;
    json_t *root = json_loadb((const char *)s->file + LENGTH_BYTES, s->data_start - LENGTH_BYTES,
                              JSON_REJECT_DUPLICATES, &je);
    if (!root) {
        char clean[JSON_TEXT_BYTES];
        return bad(s, NULL, e, "header: wanted JSON, found at byte %d: %s", je.position,
                   json_text_clean(clean, je.text));
    }
    if (json_is_object(root))
        st = read_tensors(s, root, e);
    else
        st = bad(s, NULL, e, "header: wanted a JSON object, found %s", json_text_kind(root));
    json_decref(root);
    return st;
}

int safetensors_open_mem(struct safetensors **ret, const char *path, const void *p, size_t len,
                         struct err *e) {
    struct safetensors *s = mem_calloc(1, sizeof *s);
    s->path = mem_strdup(path);
    s->file = p;
    s->file_bytes = len;
    int st = read_header(s, e);
    if (st)
        safetensors_close(s);
    else
        *ret = s;
    return st;
}

static const char *kind_of(mode_t mode) {
    return S_ISDIR(mode) ? "a folder" : S_ISFIFO(mode) ? "a pipe" : "something else";
}

int safetensors_open(struct safetensors **ret, const char *path, struct err *e) {
    struct stat sb;
    void *p = NULL;
    int st = ST_OK;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); // a pipe must not hold us up
    if (fd < 0) return err_errno(e, "file '%s'", path);
    if (fstat(fd, &sb)) {
        st = err_errno(e, "file '%s': fstat", path);
        goto out;
    }
    if (!S_ISREG(sb.st_mode)) {
        st = err_set(e, ST_IO, "file '%s': wanted a regular file, found %s", path,
                     kind_of(sb.st_mode));
        goto out;
    }
    if (sb.st_size > 0) { // mmap refuses a length of 0; an empty file fails in read_length
        p = mmap(NULL, (size_t)sb.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
        if (p == MAP_FAILED) {
            p = NULL;
            st = err_errno(e, "file '%s': mmap of %lld bytes", path, (long long)sb.st_size);
            goto out;
        }
    }
    st = safetensors_open_mem(ret, path, p, (size_t)sb.st_size, e);
    if (st) goto out;
    (*ret)->mapped = true;
    p = NULL; // the mapping went over to *ret
out:
    if (p) munmap(p, (size_t)sb.st_size);
    close(fd);
    return st;
}

void safetensors_close(struct safetensors *s) {
    if (!s) return;
    if (s->mapped) munmap((void *)s->file, s->file_bytes);
    arena_fini(&s->names);
    free(s->tensors);
    free(s->path);
    free(s);
}

uint32_t safetensors_count(const struct safetensors *s) {
    return s->count;
}

const struct safetensors_tensor *safetensors_at(const struct safetensors *s, uint32_t idx) {
    assert(idx < s->count);
    return &s->tensors[idx];
}

const struct safetensors_tensor *safetensors_find(const struct safetensors *s, const char *name) {
    struct safetensors_tensor key = {.name = name};
    return bsearch(&key, s->tensors, s->count, sizeof key, by_name);
}

const char *safetensors_path(const struct safetensors *s) {
    return s->path;
}

uint64_t safetensors_file_bytes(const struct safetensors *s) {
    return s->file_bytes;
}

const void *safetensors_file(const struct safetensors *s) {
    return s->file;
}

uint64_t safetensors_data_start(const struct safetensors *s) {
    return s->data_start;
}

static float f32_of_bits(uint32_t b) {
    float f;
    memcpy(&f, &b, sizeof f);
    return f;
}

// Every half is a float: normals shift, subnormals are a small integer times 2^-24, infinity and NaN keep their kind.
static float f32_of_f16(uint16_t h) {
    uint32_t sign = (uint32_t)(h & 0x8000) << 16, exponent = (h >> 10) & 31, m = h & 0x3ff;
    if (exponent == 31) return f32_of_bits(sign | 0x7f800000 | m << 13);
    if (exponent) return f32_of_bits(sign | (exponent + 112) << 23 | m << 13);
    float v = (float)m * 0x1p-24f;
    return sign ? -v : v;
}

void safetensors_to_f32(const struct safetensors_tensor *t, uint64_t first, uint64_t count,
                        float *ret) {
    assert(first <= t->elements && count <= t->elements - first);
    const uint16_t *h = t->data;
    switch (t->dtype) {
    case SAFETENSORS_F32: memcpy(ret, (const float *)t->data + first, count * sizeof *ret); break;
    case SAFETENSORS_BF16:
        for (uint64_t i = 0; i < count; i++) ret[i] = f32_of_bits((uint32_t)h[first + i] << 16);
        break;
    case SAFETENSORS_F16:
        for (uint64_t i = 0; i < count; i++) ret[i] = f32_of_f16(h[first + i]);
        break;
    default: assert(!"safetensors_to_f32: dtype");
    }
}
