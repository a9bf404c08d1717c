/* exl3_file: see exl3_file.h. */
#include "tests/tools/exl3_file.h"
#include "common/err.h"
#include "common/mem.h"
#include "tests/tools/exl3_linear.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { HEADER_STEP = 256 };            // data begin on a multiple of it
static const char VERSION[] = "1.4.1"; // of the format's own writer, whose layout this is

struct entry {
    char *name;
    enum safetensors_dtype dtype;
    uint64_t dims[SAFETENSORS_DIMS_MAX], bytes;
    uint32_t dims_count;
    const void *data;
    void *owned; // freed with the file
};

struct exl3_file {
    struct entry *entries;
    size_t count;
    json_t *storage; // tensor_storage
    uint64_t weights, half_bits;
};

static const uint32_t markers[] = {
    [EXL3_3INST] = 0, [EXL3_MCG] = 0xcbac1fed, [EXL3_MUL1] = 0x83dcd12d};
static const char *const codebooks[] = {
    [EXL3_3INST] = "3inst", [EXL3_MCG] = "mcg", [EXL3_MUL1] = "mul1"};

struct exl3_file *exl3_file_new(void) {
    struct exl3_file *f = mem_calloc(1, sizeof *f);
    f->storage = json_object();
    return f;
}

void exl3_file_free(struct exl3_file *f) {
    if (!f) return;
    for (size_t i = 0; i < f->count; i++) {
        free(f->entries[i].name);
        free(f->entries[i].owned);
    }
    free(f->entries);
    json_decref(f->storage);
    free(f);
}

void exl3_file_add(struct exl3_file *f, const char *name, enum safetensors_dtype dtype,
                   const uint64_t *dims, uint32_t dims_count, const void *data, uint64_t bytes) {
    f->entries = mem_realloc_array(f->entries, f->count + 1, sizeof *f->entries);
    struct entry *n = &f->entries[f->count++];
    *n = (struct entry){.name = mem_strdup(name),
                        .dtype = dtype,
                        .dims_count = dims_count,
                        .data = data,
                        .bytes = bytes};
    if (dims_count) memcpy(n->dims, dims, dims_count * sizeof *dims);
}

static json_t *shape_of(const struct entry *n) {
    json_t *shape = json_array();
    for (uint32_t i = 0; i < n->dims_count; i++)
        json_array_append_new(shape, json_integer((json_int_t)n->dims[i]));
    return shape;
}

static const char *torch_name(enum safetensors_dtype d) {
    return d == SAFETENSORS_I16   ? "torch.int16"
           : d == SAFETENSORS_I32 ? "torch.int32"
                                  : "torch.float16";
}

// A tensor of the linear, which the file owns from now on.
static void add_part(struct exl3_file *f, json_t *stored, const char *key, const char *part,
                     enum safetensors_dtype dtype, const uint64_t *dims, uint32_t dims_count,
                     void *data, uint64_t bytes) {
    char name[SAFETENSORS_NAME_BYTES_MAX];
    snprintf(name, sizeof name, "%s.%s", key, part);
    exl3_file_add(f, name, dtype, dims, dims_count, data, bytes);
    struct entry *n = &f->entries[f->count - 1];
    n->owned = data;
    json_object_set_new(stored, name,
                        json_pack("{s:o, s:I, s:s}", "shape", shape_of(n), "n_bytes",
                                  (json_int_t)bytes, "dtype", torch_name(dtype)));
}

void exl3_file_add_linear(struct exl3_file *f, const struct exl3_source *s, struct exl3_linear *l) {
    uint64_t tiles[3] = {s->cols / 16, s->rows / 16, 8 * s->half_bits};
    json_t *stored = json_object();
    add_part(f, stored, s->name, "trellis", SAFETENSORS_I16, tiles, 3, l->trellis,
             l->trellis_bytes);
    add_part(f, stored, s->name, "suh", SAFETENSORS_F16, &(uint64_t){s->cols}, 1, l->suh,
             2 * s->cols);
    add_part(f, stored, s->name, "svh", SAFETENSORS_F16, &(uint64_t){s->rows}, 1, l->svh,
             2 * s->rows);
    json_t *module = json_pack("{s:o, s:s, s:f}", "stored_tensors", stored, "quant_format", "exl3",
                               "bits_per_weight", s->half_bits / 2.0);
    if (s->half_bits % 2 == 0)
        json_object_set_new(module, "bits_per_weight", json_integer(s->half_bits / 2));
    if (s->codebook != EXL3_3INST) {
        char key[40];
        uint32_t *marker = mem_alloc(sizeof *marker);
        *marker = markers[s->codebook];
        add_part(f, stored, s->name, codebooks[s->codebook], SAFETENSORS_I32, NULL, 0, marker,
                 sizeof *marker);
        snprintf(key, sizeof key, "%s_multiplier", codebooks[s->codebook]);
        json_object_set_new(module, key, json_integer(markers[s->codebook]));
    }
    json_object_set_new(f->storage, s->name, module);
    if (strcmp(s->name, "lm_head")) {
        f->weights += (uint64_t)s->rows * s->cols;
        f->half_bits += (uint64_t)s->rows * s->cols * s->half_bits;
    }
    *l = (struct exl3_linear){0};
}

struct exl3_file_total exl3_file_total(const struct exl3_file *f) {
    struct exl3_file_total t = {.weights = f->weights, .bits = f->half_bits / 2};
    for (size_t i = 0; i < f->count; i++) t.bytes += f->entries[i].bytes;
    return t;
}

// Larger elements first, so that each tensor stands on a multiple of its element without holes; then by name.
static int by_place(const void *a, const void *b) {
    const struct entry *x = a, *y = b;
    uint32_t p = safetensors_dtype_bytes(x->dtype), q = safetensors_dtype_bytes(y->dtype);
    return p != q ? (p < q) - (p > q) : strcmp(x->name, y->name);
}

static char *header_of(const struct exl3_file *f, size_t *ret_len) {
    json_t *header = json_pack("{s:{s:s}}", "__metadata__", "format", "pt");
    uint64_t at = 0;
    for (size_t i = 0; i < f->count; i++) {
        const struct entry *n = &f->entries[i];
        json_object_set_new(header, n->name,
                            json_pack("{s:s, s:o, s:[I, I]}", "dtype",
                                      safetensors_dtype_name(n->dtype), "shape", shape_of(n),
                                      "data_offsets", (json_int_t)at, (json_int_t)(at + n->bytes)));
        at += n->bytes;
    }
    char *text = json_dumps(header, JSON_COMPACT);
    size_t len = strlen(text), padded = (len + 8 + HEADER_STEP - 1) / HEADER_STEP * HEADER_STEP - 8;
    text = mem_realloc(text, padded + 1);
    memset(text + len, ' ', padded - len);
    json_decref(header);
    *ret_len = padded;
    return text;
}

static int write_tensors(struct exl3_file *f, const char *path, struct err *e) {
    FILE *out = fopen(path, "wb");
    if (!out) return err_errno(e, "create '%s'", path);
    qsort(f->entries, f->count, sizeof *f->entries, by_place);
    size_t len;
    char *header = header_of(f, &len);
    uint8_t size[8];
    for (int i = 0; i < 8; i++) size[i] = (uint8_t)((uint64_t)len >> 8 * i);
    bool ok = fwrite(size, 1, 8, out) == 8 && fwrite(header, 1, len, out) == len;
    for (size_t i = 0; i < f->count && ok; i++)
        ok = fwrite(f->entries[i].data, 1, f->entries[i].bytes, out) == f->entries[i].bytes;
    free(header);
    if (fclose(out) || !ok) return err_errno(e, "write '%s'", path);
    return ST_OK;
}

static int write_json(const json_t *v, const char *path, struct err *e) {
    FILE *out = fopen(path, "w");
    if (!out) return err_errno(e, "create '%s'", path);
    bool ok =
        json_dumpf(v, out, JSON_INDENT(2) | JSON_REAL_PRECISION(6)) == 0 && fputc('\n', out) != EOF;
    if (fclose(out) || !ok) return err_errno(e, "write '%s'", path);
    return ST_OK;
}

static json_t *number(double v) {
    return v == floor(v) ? json_integer((json_int_t)v) : json_real(v);
}

int exl3_file_write(struct exl3_file *f, const char *dir, const json_t *config,
                    enum exl3_codebook codebook, double head_bits, struct err *e) {
    char path[4096];
    double bits = f->weights ? (double)f->half_bits / 2 / (double)f->weights : 16;
    json_t *q = json_pack("{s:s, s:s, s:o, s:o, s:s}", "quant_method", "exl3", "version", VERSION,
                          "bits", number(round(bits * 100) / 100), "head_bits", number(head_bits),
                          "codebook", codebooks[codebook]);
    json_t *whole = json_deep_copy(config);
    json_object_set(whole, "quantization_config", q);
    snprintf(path, sizeof path, "%s/model.safetensors", dir);
    int st = write_tensors(f, path, e);
    snprintf(path, sizeof path, "%s/config.json", dir);
    if (!st) st = write_json(whole, path, e);
    json_object_set(q, "tensor_storage", f->storage);
    snprintf(path, sizeof path, "%s/quantization_config.json", dir);
    if (!st) st = write_json(q, path, e);
    json_decref(whole);
    json_decref(q);
    return st;
}
