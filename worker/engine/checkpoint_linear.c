/* checkpoint_linear: see checkpoint_linear.h. */
#include "worker/engine/checkpoint_linear.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "common/err.h"
#include "worker/engine/checkpoint.h"

enum { NAME_BYTES = SAFETENSORS_NAME_BYTES_MAX + 16, SHAPE_BYTES = 96, TILE = 16 };

static const struct codebook {
    const char *name, *marker; // the marker's tensor; NULL: none
    uint32_t value;            // of the marker, which is the codebook's multiplier
} codebooks[] = {
    [EXL3_3INST] = {"3INST", NULL, 0},
    [EXL3_MCG] = {"MCG", "mcg", 0xcbac1fed},
    [EXL3_MUL1] = {"MUL1", "mul1", 0x83dcd12d},
};

static const struct safetensors_tensor *part(const struct checkpoint *c, const char *key,
                                             const char *end) {
    char name[NAME_BYTES];
    int n = snprintf(name, sizeof name, "%s.%s", key, end);
    return n > 0 && (size_t)n < sizeof name ? checkpoint_find(c, name) : NULL;
}

static int refuse(const struct safetensors_tensor *t, int st, struct err *e, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
static int refuse(const struct safetensors_tensor *t, int st, struct err *e, const char *fmt, ...) {
    char text[256];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    return err_set(e, st, "file '%s': tensor '%s': %s", t->path, t->name, text);
}

static int check_dtype(const struct safetensors_tensor *t, enum safetensors_dtype want,
                       struct err *e) {
    if (t->dtype == want) return ST_OK;
    return refuse(t, ST_UNSUPPORTED, e, "wanted %s, found %s", safetensors_dtype_name(want),
                  safetensors_dtype_name(t->dtype));
}

static int check_vector(const struct safetensors_tensor *t, uint64_t count, struct err *e) {
    char found[SHAPE_BYTES];
    if (t->dims_count == 1 && t->dims[0] == count) return ST_OK;
    safetensors_shape_text(t->dims, t->dims_count, found, sizeof found);
    return refuse(t, ST_CORRUPT, e, "wanted shape [%llu], found %s", (unsigned long long)count,
                  found);
}

static int read_trellis(struct checkpoint_linear *l, struct err *e) {
    const struct safetensors_tensor *t = l->main;
    char found[SHAPE_BYTES];
    int st = check_dtype(t, SAFETENSORS_I16, e);
    if (st) return st;
    safetensors_shape_text(t->dims, t->dims_count, found, sizeof found);
    if (t->dims_count != 3)
        return refuse(t, ST_CORRUPT, e, "wanted three dimensions, found %s", found);
    // 8 words for half a bit: the file's size has been checked, so that these products are far below 2^64
    if (t->dims[2] % 8 || t->dims[2] / 8 < EXL3_HALF_BITS_MIN ||
        t->dims[2] / 8 > EXL3_HALF_BITS_MAX)
        return refuse(t, ST_CORRUPT, e,
                      "wanted tiles of 16 to 128 words in steps of 8 (1 to 8 bits), found %s",
                      found);
    l->cols = t->dims[0] * TILE;
    l->rows = t->dims[1] * TILE;
    l->half_bits = (uint32_t)t->dims[2] / 8;
    if (l->cols % EXL3_BLOCK || l->rows % EXL3_BLOCK)
        return refuse(t, ST_CORRUPT, e,
                      "wanted multiples of 128 inputs and outputs, found %llu and %llu in %s",
                      (unsigned long long)l->cols, (unsigned long long)l->rows, found);
    return ST_OK;
}

static int read_marker(struct checkpoint_linear *l, const struct safetensors_tensor *t,
                       enum exl3_codebook codebook, struct err *e) {
    uint32_t found = 0;
    if (l->codebook != EXL3_3INST)
        return refuse(t, ST_CORRUPT, e, "wanted one codebook marker, found '.%s' too",
                      codebooks[l->codebook].marker);
    int st = check_dtype(t, SAFETENSORS_I32, e);
    if (st) return st;
    if (t->elements != 1)
        return refuse(t, ST_CORRUPT, e, "wanted one element, found %llu",
                      (unsigned long long)t->elements);
    memcpy(&found, t->data, sizeof found);
    if (found != codebooks[codebook].value)
        return refuse(t, ST_UNSUPPORTED, e, "wanted 0x%08X, the multiplier of %s, found 0x%08X",
                      codebooks[codebook].value, codebooks[codebook].name, found);
    l->codebook = codebook;
    l->bytes += t->bytes;
    return ST_OK;
}

static int read_codebook(const struct checkpoint *c, const char *key, struct checkpoint_linear *l,
                         struct err *e) {
    l->codebook = EXL3_3INST;
    for (int i = EXL3_MCG; i <= EXL3_MUL1; i++) {
        const struct safetensors_tensor *t = part(c, key, codebooks[i].marker);
        int st = t ? read_marker(l, t, (enum exl3_codebook)i, e) : ST_OK;
        if (st) return st;
    }
    if (l->half_bits % 2 && l->codebook != EXL3_MUL1)
        return refuse(l->main, ST_UNSUPPORTED, e, "wanted the codebook MUL1 with %g bits, found %s",
                      l->half_bits / 2.0, codebooks[l->codebook].name);
    return ST_OK;
}

// Factors of `count` channels: `whole`, or as signs `packed`.
static int read_factors(const struct checkpoint *c, const char *key, struct checkpoint_linear *l,
                        const char *whole, const char *packed, uint64_t count,
                        const struct safetensors_tensor **ret, struct err *e) {
    const struct safetensors_tensor *t = part(c, key, whole);
    bool signs = !t;
    if (!t) t = part(c, key, packed);
    if (!t)
        return refuse(l->main, ST_CORRUPT, e, "wanted '.%s' or '.%s' with it, found neither", whole,
                      packed);
    int st = check_dtype(t, signs ? SAFETENSORS_I16 : SAFETENSORS_F16, e);
    if (!st) st = check_vector(t, signs ? count / 16 : count, e);
    if (st) return st;
    *ret = t;
    l->bytes += t->bytes;
    return ST_OK;
}

static int read_bias(const struct checkpoint *c, const char *key, struct checkpoint_linear *l,
                     struct err *e) {
    const struct safetensors_tensor *t = part(c, key, "bias");
    if (!t) return ST_OK;
    int st = t->dtype == SAFETENSORS_F32 ? ST_OK : check_dtype(t, SAFETENSORS_F16, e);
    if (!st) st = check_vector(t, l->rows, e);
    l->bias = t;
    l->bytes += t->bytes;
    return st;
}

int checkpoint_linear(const struct checkpoint *c, const char *key, struct checkpoint_linear *ret,
                      struct err *e) {
    struct checkpoint_linear l = {.main = part(c, key, "trellis")};
    bool exl3 = l.main != NULL;
    if (!exl3) l.main = part(c, key, "weight");
    if (!l.main)
        return err_set(e, ST_NOT_FOUND, "tensor '%s.weight': wanted, found in no file", key);
    l.bytes = l.main->bytes;
    if (!exl3) {
        l.rows = l.main->dims_count ? l.main->dims[0] : 1;
        l.cols = l.main->elements / l.rows;
        *ret = l;
        return ST_OK;
    }
    int st = read_trellis(&l, e);
    if (!st) st = read_codebook(c, key, &l, e);
    if (!st) st = read_factors(c, key, &l, "suh", "su", l.cols, &l.in_factors, e);
    if (!st) st = read_factors(c, key, &l, "svh", "sv", l.rows, &l.out_factors, e);
    if (!st) st = read_bias(c, key, &l, e);
    if (!st) *ret = l;
    return st;
}

int checkpoint_linear_at(const struct checkpoint *c, uint32_t idx, struct checkpoint_linear *ret,
                         struct err *e) {
    const struct safetensors_tensor *t = checkpoint_at(c, idx);
    const char *dot = strrchr(t->name, '.');
    bool weight = dot && !strcmp(dot, ".weight") && t->dims_count == 2;
    char key[NAME_BYTES];
    if (!weight && !(dot && !strcmp(dot, ".trellis")))
        return err_set(e, ST_NOT_FOUND, "tensor '%s': wanted a linear layer's", t->name);
    snprintf(key, sizeof key, "%.*s", (int)(dot - t->name), t->name);
    struct checkpoint_linear l;
    int st = checkpoint_linear(c, key, &l, e);
    if (!st && l.main != t) // a .weight that stands beside a .trellis is not read
        return err_set(e, ST_NOT_FOUND, "tensor '%s': wanted alone, found '.trellis' too", t->name);
    if (!st) *ret = l;
    return st;
}

void checkpoint_linear_format(const struct checkpoint_linear *l,
                              char ret[CHECKPOINT_FORMAT_BYTES]) {
    if (l->half_bits)
        snprintf(ret, CHECKPOINT_FORMAT_BYTES, "EXL3 %g bits %s", l->half_bits / 2.0,
                 codebooks[l->codebook].name);
    else
        snprintf(ret, CHECKPOINT_FORMAT_BYTES, "%s", safetensors_dtype_name(l->main->dtype));
}
