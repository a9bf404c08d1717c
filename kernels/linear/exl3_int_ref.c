/* exl3_int_ref: the twin of the EXL3 parts with the MUL1 codebook, written from the format: sixteen outputs at a time. */
#include "common/mem.h"
#include "kernels/cuda/refs.h"
#include "kernels/linear/exl3_int.h"
#include "kernels/linear/exl3_ref.h"

#include <stdlib.h>
#include <string.h>

enum { TILE = 16, STATES = TILE * TILE };

struct row {
    uint32_t size;
    int32_t q_sum;
    int32_t *q; // [K]
};

static void quantize(const struct linear_args *a, const struct weight *w, uint32_t row,
                     struct row *ret) {
    float *v = mem_calloc(w->cols, sizeof *v);
    exl3_ref_rotate_row(a, w, row, v);
    for (uint32_t k = 0; k < w->cols; k++)
        if (exl3_int_size(v[k]) > ret->size) ret->size = exl3_int_size(v[k]);
    float inverse = exl3_int_inverse(ret->size);
    for (uint32_t k = 0; k < w->cols; k++) {
        ret->q[k] = exl3_int_value(v[k], inverse);
        ret->q_sum += ret->q[k];
    }
    free(v);
}

static int32_t centred(uint32_t state) {
    uint32_t x = state * EXL3_INT_MULTIPLIER;
    return (int32_t)((x & 255) + (x >> 8 & 255) + (x >> 16 & 255) + (x >> 24)) - EXL3_INT_MIDDLE;
}

// A tile's b', by input and output.
static void decode_tile(const uint32_t *words, uint32_t half_bits, int32_t (*ret)[TILE]) {
    uint32_t count = 4 * half_bits;
    for (uint32_t i = 0; i < STATES; i++) {
        uint32_t end = (i + 1) * half_bits / 2, start = (end + 32 * count - 16) % (32 * count);
        uint64_t pair = (uint64_t)words[start / 32] << 32 | words[(start / 32 + 1) % count];
        uint32_t lane = i / 8, in = 2 * (lane & 3) + (i & 1) + 8 * (i >> 1 & 1);
        ret[in][lane / 4 + 8 * (i >> 2 & 1)] =
            centred((uint32_t)(pair >> (48 - start % 32)) & 0xffffu);
    }
}

// Sums of sixteen outputs, modulo 2^32.
static void sum_strip(const int32_t (*b)[TILE], const int32_t *q, uint32_t cols,
                      uint32_t ret[TILE]) {
    memset(ret, 0, TILE * sizeof *ret);
    for (uint32_t k = 0; k < cols; k++)
        for (uint32_t n = 0; n < TILE; n++) ret[n] += (uint32_t)b[k][n] * (uint32_t)q[k];
}

static void run_strip(const struct linear_args *a, const struct weight *w, uint32_t strip,
                      const struct row *rows, int32_t (*b)[TILE], float *y) {
    uint32_t tile_words = 4 * w->exl3.half_bits;
    const uint32_t *data = refs_ptr(w->data);
    for (uint32_t k = 0; k < w->cols; k += TILE)
        decode_tile(data + ((uint64_t)k / TILE * (w->rows / TILE) + strip) * tile_words,
                    w->exl3.half_bits, b + k);
    for (uint32_t row = 0; row < a->rows; row++) {
        uint32_t sums[TILE];
        sum_strip((const int32_t(*)[TILE])b, rows[row].q, w->cols, sums);
        for (uint32_t n = 0; n < TILE; n++)
            y[(size_t)row * w->rows + strip * TILE + n] =
                exl3_int_answer((int32_t)sums[n], rows[row].q_sum, exl3_int_scale(rows[row].size));
    }
}

void exl3_int_ref(const struct linear_args *a, const struct linear_part *p) {
    const struct weight *w = &p->w;
    struct row *rows = mem_calloc(a->rows, sizeof *rows);
    int32_t *q = mem_calloc((size_t)a->rows * w->cols, sizeof *q);
    int32_t(*b)[TILE] = mem_calloc(w->cols, sizeof *b);
    float *y = mem_calloc((size_t)a->rows * w->rows, sizeof *y);
    for (uint32_t row = 0; row < a->rows; row++) {
        rows[row].q = q + (size_t)row * w->cols;
        quantize(a, w, row, &rows[row]);
    }
    for (uint32_t strip = 0; strip < w->rows / TILE; strip++) run_strip(a, w, strip, rows, b, y);
    for (uint32_t row = 0; row < a->rows; row++)
        exl3_ref_finish_row(p, row, y + (size_t)row * w->rows);
    free(rows);
    free(q);
    free(b);
    free(y);
}
