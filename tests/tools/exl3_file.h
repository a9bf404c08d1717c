/* exl3_file: writes an EXL3 checkpoint: one safetensors file, config.json with its quantization_config, and
 * quantization_config.json with what is stored for each linear. */
#pragma once
#include <stdint.h>

#include <jansson.h>

#include "kernels/types.h"
#include "worker/engine/safetensors.h"

struct err;
struct exl3_linear;
struct exl3_source;
struct exl3_file; // what will be written, in memory

struct exl3_file *exl3_file_new(void);
void exl3_file_free(struct exl3_file *f); // NULL is fine

// Shape and bytes are copied; data must stay until exl3_file_write.
void exl3_file_add(struct exl3_file *f, const char *name, enum safetensors_dtype dtype,
                   const uint64_t *dims, uint32_t dims_count, const void *data, uint64_t bytes);
// Takes over what l holds.
void exl3_file_add_linear(struct exl3_file *f, const struct exl3_source *s, struct exl3_linear *l);

struct exl3_file_total {
    uint64_t bytes; // of all tensors
    uint64_t weights,
        bits; // of the EXL3 linears but the head: their average is "bits" of the config
};
struct exl3_file_total exl3_file_total(const struct exl3_file *f);

// Into a folder that exists. config: of the model, without quantization_config. head_bits: 16 for a plain head.
int exl3_file_write(struct exl3_file *f, const char *dir, const json_t *config,
                    enum exl3_codebook codebook, double head_bits, struct err *e);
