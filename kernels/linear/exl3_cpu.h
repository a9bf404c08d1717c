/* exl3_cpu: products with an EXL3 weight on the CPU, a block of 128 output columns at a time. Inside kernels/ only.
 *
 *     y[t,n] = svh[n] * sum_j H[n][j] * (sum_k W[j,k] * (sum_i H[k][i] * suh[i] * x[t,i])) + bias[n]
 *
 * H being hadamard.h's, block by block. All of a block is worked out where it is used: its rotation of x costs a twentieth of
 * its products, and nothing is shared between blocks.
 * Order   W's sum over k as linear.h has it: 16 lanes, ascending k, lanes added by halves; then rotation, svh, bias, and
 *         the old y last. It depends on K alone.
 * Cost    few rows: decoding W; 64 rows are the most that share one decoding. */
#pragma once
#include <stdbool.h>
#include <stdint.h>

#include "kernels/cpu.h"

enum {
    EXL3_INT_ROWS = 64, // of a call
    EXL3_PANEL =
        1024, // inputs decoded at a time: a strip of 16 outputs stays in the first-level cache's neighbour
    EXL3_PAD = 16, // columns of power-of-two strides would share the cache's sets
    EXL3_STRIDE = EXL3_PANEL + EXL3_PAD,
};

// A thread's working memory; cpu.scratch has one for each.
struct exl3_scratch {
    float x[EXL3_INT_ROWS][EXL3_STRIDE];      // rotated
    float w[16][EXL3_STRIDE];             // decoded
    float acc[EXL3_INT_ROWS][EXL3_BLOCK][16]; // lanes' sums
};

struct exl3_int_rows {
    const float *x; // [rows, w.cols]
    float *y;       // [rows, w.rows]
    uint32_t count; // up to EXL3_INT_ROWS
    bool add;       // y += instead of y =
};

// Columns 128 block .. of all rows.
void CPU_NAME(exl3_block)(struct exl3_scratch *s, const struct weight *w,
                          const struct exl3_int_rows *rows, uint32_t block);
