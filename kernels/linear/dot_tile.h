/* dot_tile: the dot products of linear.h for a small block of rows and columns, kept in registers.
 *
 * dot_tile_run(x, ..) gives ret[r * cols + c] = dot(x row r, w row c): the same bits for every block shape, so blocks are
 * cut to fit the registers of each instruction set. */
#pragma once
#include "kernels/cpu_vec.h"

#if defined(__AVX512F__)
enum { DOT_ROWS = 6, DOT_COLS = 4 }; // 24 of 32 registers are sums
#elif defined(__AVX2__)
enum { DOT_ROWS = 2, DOT_COLS = 2 }; // a lane vector takes 2 of 16 registers
#else
enum { DOT_ROWS = 1, DOT_COLS = 2 };
#endif
enum { DOT_COLS_ONE = 8, DOT_COLS_MAX = 8 }; // columns for one row, where the sums' latency counts

struct dot_operand {
    const float *x;
    uint64_t x_stride;
    const void *w;
    uint64_t w_stride; // elements between two columns' weights
    uint32_t k;
    uint64_t ahead; // bytes from a weight to the one to fetch meanwhile; 0: none worth it
};

CPU_INLINE void dot_store(const vf *acc, uint32_t count, float *ret) {
    uint32_t i = 0;
#pragma GCC unroll 8
    for (; i + 4 <= count; i += 4) vf_sum4(acc[i], acc[i + 1], acc[i + 2], acc[i + 3], ret + i);
#pragma GCC unroll 4
    for (; i < count; i++) ret[i] = vf_sum(acc[i]);
}

// The lanes' sums go on from what acc holds. rows, cols and d are constants at every call, so that acc lives in registers.
CPU_INLINE void dot_add(const struct dot_operand *o, const uint32_t rows, const uint32_t cols,
                        const enum dtype d, vf *acc) {
    const float *x = o->x;
    uint32_t k = 0;
    for (; k + LANES <= o->k; k += LANES) {
        vf w[DOT_COLS_MAX];
#pragma GCC unroll 8
        for (uint32_t c = 0; c < cols; c++) {
            uint64_t at = c * o->w_stride + k;
            if (o->ahead)
                __builtin_prefetch((const char *)o->w + at * dtype_bytes(d) + o->ahead, 0, 2);
            w[c] = vf_load_dtype(o->w, at, d);
        }
#pragma GCC unroll 8
        for (uint32_t r = 0; r < rows; r++) {
            vf v = vf_load(x + r * o->x_stride + k);
#pragma GCC unroll 8
            for (uint32_t c = 0; c < cols; c++) acc[r * cols + c] = acc[r * cols + c] + v * w[c];
        }
    }
    if (k < o->k) {
        uint32_t n = o->k - k;
#pragma GCC unroll 8
        for (uint32_t r = 0; r < rows; r++) {
            vf v = vf_load_part(x + r * o->x_stride + k, n);
#pragma GCC unroll 8
            for (uint32_t c = 0; c < cols; c++)
                acc[r * cols + c] =
                    acc[r * cols + c] + v * vf_load_dtype_part(o->w, c * o->w_stride + k, n, d);
        }
    }
}

CPU_INLINE void dot_tile(const struct dot_operand *o, const uint32_t rows, const uint32_t cols,
                         const enum dtype d, float *ret) {
    vf acc[DOT_ROWS * DOT_COLS_MAX];
#pragma GCC unroll 64
    for (uint32_t i = 0; i < rows * cols; i++) acc[i] = vf_set(0);
    dot_add(o, rows, cols, d, acc);
    dot_store(acc, rows * cols, ret);
}

#define DOT_CASE(rows_, cols_)                                                                     \
    case (rows_)*16 + (cols_): dot_tile(o, rows_, cols_, d, ret); break

// rows up to DOT_ROWS and cols one of 1, DOT_COLS, or with one row DOT_COLS_ONE. d is a constant at the call.
CPU_INLINE void dot_tile_run(const struct dot_operand *o, uint32_t rows, uint32_t cols,
                             const enum dtype d, float *ret) {
    switch (rows * 16 + cols) {
        DOT_CASE(1, 1);
        DOT_CASE(1, DOT_COLS);
        DOT_CASE(1, DOT_COLS_ONE);
#if defined(__AVX2__)
        DOT_CASE(2, 1);
        DOT_CASE(2, DOT_COLS);
#endif
#if defined(__AVX512F__)
        DOT_CASE(3, 1);
        DOT_CASE(3, DOT_COLS);
        DOT_CASE(4, 1);
        DOT_CASE(4, DOT_COLS);
        DOT_CASE(5, 1);
        DOT_CASE(5, DOT_COLS);
        DOT_CASE(6, 1);
        DOT_CASE(6, DOT_COLS);
#endif
    default: __builtin_unreachable();
    }
}

// How many columns of `left` the next block takes.
CPU_INLINE uint32_t dot_cols(uint32_t rows, uint32_t left) {
    if (rows == 1 && left >= DOT_COLS_ONE) return DOT_COLS_ONE;
    return left >= DOT_COLS ? DOT_COLS : 1;
}
