/* dflash_tiny: the tiny drafter of known numbers: weights from a counter, written as published files are. */
#pragma once
#include <stdbool.h>
#include <stdint.h>

enum {
    TINY_D = 32,
    TINY_I = 48,
    TINY_LAYERS = 2,
    TINY_HEADS = 4,
    TINY_KV = 2,
    TINY_HEAD_DIM = 8,
    TINY_VOCAB = 64,
    TINY_TAPS = 2,
    TINY_BLOCK = 4,
    TINY_RANK = 4,
    TINY_TARGET_LAYERS = 4,
};

// Element i of tensor t: spread over b +- s.
float tiny_fill(uint32_t t, uint64_t i, float s, float b);
void tiny_fill_all(float *ret, uint32_t t, uint64_t count, float s, float b);

struct tiny_tensor {
    char name[96];
    uint32_t dims_count, dims[3];
    float *data; // owned
};
enum { TINY_TENSORS_MAX = 48 };
struct tiny_files {
    struct tiny_tensor tensors[TINY_TENSORS_MAX];
    uint32_t count;
    char config[2000];
};

// layer_types: the words of a list. extra: further keys of the top level, each with a comma behind it.
void tiny_files_make(struct tiny_files *f, bool v2, const char *layer_types, const char *extra);
void tiny_files_add(struct tiny_files *f, const char *name, uint32_t dims_count,
                    const uint32_t *dims, uint32_t t, float s, float b);
struct tiny_tensor *tiny_files_find(struct tiny_files *f, const char *name);
void tiny_files_drop(struct tiny_files *f, const char *name);
// Into a fresh folder of the test, whose path it gives.
void tiny_files_write(const struct tiny_files *f, char *ret_dir, uint32_t ret_bytes);
void tiny_files_fini(struct tiny_files *f);
