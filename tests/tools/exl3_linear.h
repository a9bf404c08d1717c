/* exl3_linear: turns one matrix into an EXL3 linear: factors, rotated trellis, and what it lost.
 *
 * Method  Columns, then rows of the rotated matrix are scaled to one deviation (the factors, as the fp16 numbers that are
 *         stored, so that rounding them costs nothing). Rows of tiles are coded from the last input to the first; with second
 *         moments of the inputs, each takes over what the rows behind it got wrong, through the block Cholesky factor of
 *         the moments in the coordinates of the scaled, rotated matrix (LDLQ, with the whole factors in it).
 * Sums    double, but for the coder's own; in one order, so the result depends on the arguments alone, not on the threads. */
#pragma once
#include <stdint.h>

#include "kernels/types.h"

struct cpu_pool;
struct err;

struct exl3_source {
    const char *name;     // for messages, and for the signs
    uint32_t rows, cols;  // outputs, inputs; multiples of EXL3_BLOCK
    const float *w;       // [rows, cols]
    const float *moments; // [cols, cols]: the mean of x x^T over the inputs x, or NULL
    enum exl3_codebook codebook;
    uint32_t half_bits; // MUL1 alone has half widths
    uint64_t seed;      // of the factors' signs
};

struct exl3_linear {
    uint16_t *trellis;   // [cols / 16, rows / 16, 8 half_bits]
    uint16_t *suh, *svh; // fp16 [cols], [rows]
    uint64_t trellis_bytes;
    // Squared error over squared weight: of the weights, and of the outputs under the moments (NAN without). Taken from what
    // kernels/linear/exl3_decode.h makes of the trellis.
    double weight_loss, output_loss;
};

// ST_INVAL: a size or a number that is not finite; ST_CORRUPT: moments without a Cholesky factor.
int exl3_linear_make(struct exl3_linear *ret, const struct exl3_source *s, struct cpu_pool *pool,
                     struct err *e);
void exl3_linear_fini(struct exl3_linear *l); // zeroed is fine
// The weight [rows, cols] that an EXL3 linear stands for, by the engine's decoder.
void exl3_linear_dense(const struct exl3_linear *l, const struct exl3_source *s, double *ret);
