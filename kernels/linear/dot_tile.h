/* dot_tile: the dot products of linear.h for a small block of rows and columns, kept in registers.
 *
 * dot_tile_run(x, ..) gives ret[r * cols + c] = dot(x row r, w row c): the same bits for every block shape, so blocks are
 * cut to fit the registers of each instruction set. */
#pragma once
#include "kernels/cpu_vec.h"

#if defined(CPU_SMALL_BLOCKS) // no block shape changes a bit
enum { DOT_ROWS = 1, DOT_COLS = 2, DOT_COLS_ONE = 2 };
#elif defined(__AVX512F__)
enum { DOT_ROWS = 6, DOT_COLS = 4, DOT_COLS_ONE = 8 }; // 24 of 32 registers are sums
#elif defined(__AVX2__)
enum { DOT_ROWS = 2, DOT_COLS = 2, DOT_COLS_ONE = 4 }; // 8 of 16
#else
enum { DOT_ROWS = 1, DOT_COLS = 2, DOT_COLS_ONE = 2 };
#endif
enum { DOT_COLS_MAX = 8 }; // DOT_COLS_ONE: for one row, where the sums' latency counts

enum { DOT_SUMS_MAX = DOT_ROWS * DOT_COLS_MAX > 16 ? DOT_ROWS *DOT_COLS_MAX : 16 };

struct dot_operand {
    const float *x;
    uint64_t x_stride;
    const void *w;
    uint64_t w_stride; // elements between two columns' weights
    uint32_t k;
    uint64_t ahead; // bytes from a weight to the one to fetch meanwhile; 0: none worth it
    // Of products of which this is not the beginning, or not the end: the lanes' sums to go on from, NULL: zeros; where they
    // are left, NULL: ret gets their sum. [rows * cols][LANES].
    const float *from;
    float *to;
    // NULL, or where the weights are left as fp32, wide_stride apart, for the blocks of other rows.
    float *wide;
    uint64_t wide_stride;
};

// count: at most DOT_SUMS_MAX.
CPU_INLINE void dot_store(const vn (*acc)[PARTS], const uint32_t count, float *ret) {
    vn f[DOT_SUMS_MAX];
    uint32_t i = 0;
#pragma GCC unroll 64
    for (uint32_t n = 0; n < count; n++) f[n] = vn_fold(acc[n]);
#pragma GCC unroll 4
    for (; i + 16 <= count; i += 16) vn_sums(f + i, 16, ret + i);
    if (i + 8 <= count) {
        vn_sums(f + i, 8, ret + i);
        i += 8;
    }
    if (i + 4 <= count) {
        vn_sums(f + i, 4, ret + i);
        i += 4;
    }
#pragma GCC unroll 4
    for (; i < count; i++) {
        float s[4];
        vn_sums((const vn[4]){f[i], f[i], f[i], f[i]}, 4, s);
        ret[i] = s[0];
    }
}

// One step of LANES values: x and w point at them, strides in elements.
CPU_INLINE void dot_step(vn (*acc)[PARTS], const float *x, uint64_t x_stride, const void *w,
                         uint64_t w_first, uint64_t w_stride, const uint32_t rows,
                         const uint32_t cols, const enum dtype d, float *wide,
                         uint64_t wide_stride) {
#pragma GCC unroll 4
    for (uint32_t p = 0; p < PARTS; p++) {
        vn weight[DOT_COLS_MAX];
#pragma GCC unroll 8
        for (uint32_t c = 0; c < cols; c++)
            weight[c] = vn_load_dtype(w, w_first + c * w_stride + p * NATIVE, d);
        if (d != DTYPE_F32 && wide)
#pragma GCC unroll 8
            for (uint32_t c = 0; c < cols; c++)
                vn_store(wide + c * wide_stride + p * NATIVE, weight[c]);
#pragma GCC unroll 8
        for (uint32_t r = 0; r < rows; r++) {
            vn v = vn_load(x + r * x_stride + p * NATIVE);
#pragma GCC unroll 8
            for (uint32_t c = 0; c < cols; c++)
                acc[r * cols + c][p] = vn_fma(v, weight[c], acc[r * cols + c][p]);
        }
    }
}

// The last k % LANES values, padded with zeros.
CPU_INLINE void dot_tail(vn (*acc)[PARTS], const struct dot_operand *o, uint32_t k,
                         const uint32_t rows, const uint32_t cols, const enum dtype d) {
    float x[DOT_ROWS * LANES] = {0}, w[DOT_COLS_MAX * LANES];
    uint32_t n = o->k - k;
    for (uint32_t r = 0; r < rows; r++)
        memcpy(x + r * LANES, o->x + r * o->x_stride + k, n * sizeof *x);
    for (uint32_t c = 0; c < cols; c++)
        vf_store(w + c * LANES, vf_load_dtype_part(o->w, c * o->w_stride + k, n, d));
    dot_step(acc, x, LANES, w, 0, LANES, rows, cols, DTYPE_F32, NULL, 0);
    if (d != DTYPE_F32 && o->wide)
        for (uint32_t c = 0; c < cols; c++)
            memcpy(o->wide + c * o->wide_stride + k, w + c * LANES, LANES * sizeof *w);
}

// The lanes' sums go on from what acc holds. rows, cols and d are constants at every call, so that acc lives in registers.
CPU_INLINE void dot_add(const struct dot_operand *o, const uint32_t rows, const uint32_t cols,
                        const enum dtype d, vn (*acc)[PARTS]) {
    enum { LINE = 64 };
    uint32_t k = 0, two = 2 * LANES;
    float *wide = o->wide;
    for (; k + two <= o->k; k += two) {
        if (o->ahead)
#pragma GCC unroll 8
            for (uint32_t c = 0; c < cols; c++)
#pragma GCC unroll 2
                for (uint32_t b = 0; b < two * dtype_bytes(d); b += LINE)
                    __builtin_prefetch((const char *)o->w + (c * o->w_stride + k) * dtype_bytes(d) +
                                           b + o->ahead,
                                       0, 2);
        dot_step(acc, o->x + k, o->x_stride, o->w, k, o->w_stride, rows, cols, d, wide,
                 o->wide_stride);
        if (wide) wide += LANES;
        dot_step(acc, o->x + k + LANES, o->x_stride, o->w, k + LANES, o->w_stride, rows, cols, d,
                 wide, o->wide_stride);
        if (wide) wide += LANES;
    }
    if (k + LANES <= o->k) {
        dot_step(acc, o->x + k, o->x_stride, o->w, k, o->w_stride, rows, cols, d, wide,
                 o->wide_stride);
        k += LANES;
    }
    if (k < o->k) dot_tail(acc, o, k, rows, cols, d);
}

CPU_INLINE void dot_tile(const struct dot_operand *o, const uint32_t rows, const uint32_t cols,
                         const enum dtype d, float *ret) {
    vn acc[DOT_ROWS * DOT_COLS_MAX][PARTS];
#pragma GCC unroll 64
    for (uint32_t i = 0; i < rows * cols; i++)
#pragma GCC unroll 4
        for (uint32_t p = 0; p < PARTS; p++)
            acc[i][p] = o->from ? vn_load(o->from + i * LANES + p * NATIVE) : vn_set(0);
    dot_add(o, rows, cols, d, acc);
    if (!o->to) {
        dot_store((const vn(*)[PARTS])acc, rows * cols, ret);
        return;
    }
#pragma GCC unroll 64
    for (uint32_t i = 0; i < rows * cols; i++)
#pragma GCC unroll 4
        for (uint32_t p = 0; p < PARTS; p++) vn_store(o->to + i * LANES + p * NATIVE, acc[i][p]);
}

#define DOT_CASE(rows_, cols_)                                                                     \
    case (rows_)*16 + (cols_): dot_tile(o, rows_, cols_, d, ret); break

// rows up to DOT_ROWS and cols one of 1, DOT_COLS, or with one row DOT_COLS_ONE. d is a constant at the call.
CPU_INLINE void dot_tile_run(const struct dot_operand *o, uint32_t rows, uint32_t cols,
                             const enum dtype d, float *ret) {
    switch (rows * 16 + cols) {
        DOT_CASE(1, 1);
        DOT_CASE(1, DOT_COLS);
#if defined(__AVX2__) && !defined(CPU_SMALL_BLOCKS)
        DOT_CASE(1, DOT_COLS_ONE);
        DOT_CASE(2, 1);
        DOT_CASE(2, DOT_COLS);
#endif
#if defined(__AVX512F__) && !defined(CPU_SMALL_BLOCKS)
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

// Rows go in blocks of about the same size: 16 are 6, 5 and 5. How many blocks; how many of `left` rows the next one takes.
CPU_INLINE uint32_t dot_blocks(uint32_t rows) {
    return (rows + DOT_ROWS - 1) / DOT_ROWS;
}

CPU_INLINE uint32_t dot_rows(uint32_t left, uint32_t blocks) {
    return (left + blocks - 1) / blocks;
}

// How many columns of `left` the next block takes.
CPU_INLINE uint32_t dot_cols(uint32_t rows, uint32_t left) {
    if (rows == 1 && left >= DOT_COLS_ONE) return DOT_COLS_ONE;
    return left >= DOT_COLS ? DOT_COLS : 1;
}
