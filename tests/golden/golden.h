/* golden: what the golden tests share: an engine on the CPU backend, and the comparison with stored logits. */
#pragma once
#include <stddef.h>
#include <stdint.h>

#include <jansson.h>

struct engine;

// The whole file; the caller frees. Ends the test when it cannot be read.
void *golden_read_file(const char *path, size_t *ret_len);
json_t *golden_read_json(const char *path);
// A list of ids; the caller frees.
uint32_t *golden_ids(const json_t *list, uint32_t *ret_count);

/* A numpy .npy file: little-endian fp32 or int32, C order. data points into file, which the caller frees. */
struct golden_array {
    void *file;
    const void *data;
    char kind; // 'f' or 'i'
    size_t rows, columns;
};
void golden_read_npy(struct golden_array *ret, const char *path);

struct engine *golden_engine(const char *model_dir);

struct golden_case {
    const uint32_t *ids;
    uint32_t ids_count;
    const uint32_t *rows;
    uint32_t rows_count;
    const float *want; // [rows_count, vocab]
    double range;      // of the logits of the case
};
// The worst |engine - want| over all stored rows, in parts of the range. chunk as in engine_logits.
double golden_worst(struct engine *eng, const struct golden_case *c, uint32_t chunk);
// count ids drawn with temperature 0 behind the prompt.
void golden_greedy(struct engine *eng, const struct golden_case *c, uint32_t count, uint32_t *ret);
