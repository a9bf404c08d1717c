/* linear_ref: the twin of linear.cu and exl3.cu: sixteen outputs at a time, row by row. MUL1 parts: exl3_int_ref.c. */
#include "common/mem.h"
#include "kernels/cuda/mma_step.h"
#include "kernels/cuda/refs.h"
#include "kernels/cuda/sums_ref.h"
#include "kernels/linear/exl3_decode.h"
#include "kernels/linear/exl3_int.h"
#include "kernels/linear/exl3_ref.h"
#include "kernels/linear/linear.h"
#include "kernels/linear/linear_from.h"
#include "kernels/linear/linear_order.h"

#include <stdbool.h>
#include <stdlib.h>

static void store(const struct linear_part *p, uint32_t row, uint32_t n, float v) {
    float *y = (float *)refs_ptr(p->y) + (uint64_t)row * p->w.rows + n;
    *y = p->add ? v + *y : v;
}

// All segments, of `per` steps, of a row and sixteen outputs.
static void sum_segments(const struct mma_vec *w, const struct mma_one *x, uint32_t cols,
                         uint32_t per, float ret[MMA_LANES]) {
    uint32_t steps = (cols + MMA_K - 1) / MMA_K;
    mma_chain(ret, w, x, steps < per ? steps : per);
    for (uint32_t first = per; first < steps; first += per) {
        float sum[MMA_LANES];
        mma_chain(sum, w + first * MMA_K, x + first * MMA_K,
                  steps - first < per ? steps - first : per);
        for (uint32_t l = 0; l < MMA_LANES; l++) ret[l] = ret[l] + sum[l];
    }
}

static uint16_t to_half(float x, enum dtype d) {
    return d == DTYPE_BF16 ? arith_to_bf16(x) : arith_to_f16(x);
}

static void run_half(const struct linear_args *a, const struct linear_part *p) {
    uint32_t cols = p->w.cols, padded = (cols + MMA_K - 1) / MMA_K * MMA_K;
    const uint16_t *w = refs_ptr(p->w.data);
    struct mma_one *x = mem_calloc((size_t)a->rows * padded, sizeof *x);
    struct mma_vec *v = mem_calloc(padded, sizeof *v);
    for (uint32_t row = 0; row < a->rows; row++)
        for (uint32_t k = 0; k < padded; k++) {
            float f = k < cols ? ((const float *)refs_ptr(a->x))[(uint64_t)row * cols + k] : 0;
            x[(size_t)row * padded + k] = mma_split(to_half(f, p->w.dtype), p->w.dtype);
        }
    for (uint32_t n = 0; n < p->w.rows; n += MMA_LANES) {
        for (uint32_t k = 0; k < padded; k++)
            for (uint32_t l = 0; l < MMA_LANES; l++) {
                bool have = k < cols && n + l < p->w.rows;
                mma_put(&v[k], l,
                        mma_split(have ? w[(uint64_t)(n + l) * cols + k] : 0, p->w.dtype));
            }
        for (uint32_t row = 0; row < a->rows; row++) {
            float y[MMA_LANES];
            sum_segments(v, x + (size_t)row * padded, cols, linear_segment_steps(cols), y);
            for (uint32_t l = 0; l < MMA_LANES && n + l < p->w.rows; l++)
                store(p, row, n + l, y[l]);
        }
    }
    free(x);
    free(v);
}

static void run_f32(const struct linear_args *a, const struct linear_part *p) {
    for (uint32_t row = 0; row < a->rows; row++)
        for (uint32_t n = 0; n < p->w.rows; n++) {
            const float *x = (const float *)refs_ptr(a->x) + (uint64_t)row * p->w.cols;
            const float *w = (const float *)refs_ptr(p->w.data) + (uint64_t)n * p->w.cols;
            float lanes[SUMS_WARP] = {0};
            for (uint32_t k = 0; k < p->w.cols; k++)
                lanes[k % SUMS_WARP] = fmaf(x[k], w[k], lanes[k % SUMS_WARP]);
            store(p, row, n, sums_warp(lanes));
        }
}

static void rotate(float v[EXL3_BLOCK]) {
    for (uint32_t d = 1; d < EXL3_BLOCK; d *= 2)
        for (uint32_t i = 0; i < EXL3_BLOCK; i++)
            if (!(i & d)) {
                float a = v[i], b = v[i + d];
                v[i] = a + b;
                v[i + d] = a - b;
            }
    for (uint32_t i = 0; i < EXL3_BLOCK; i++) v[i] = v[i] * 0.088388347648f;
}

// Where input k stands in the order of steps.
static uint32_t step_place(uint32_t k) {
    uint32_t tile = k / 16 % 4, in = k % 16, s = in % 8 / 2;
    return k / 64 * 64 + s * 16 + tile * 4 + in / 8 * 2 + in % 2;
}

void exl3_ref_rotate_row(const struct linear_args *a, const struct weight *w, uint32_t row,
                         float *ret) {
    const float *x = (const float *)refs_ptr(a->x) + (uint64_t)row * w->cols;
    for (uint32_t k = 0; k < w->cols; k++) ret[k] = x[k] * refs_load(w->exl3.suh, k, DTYPE_F16);
    for (uint32_t first = 0; first < w->cols; first += EXL3_BLOCK) rotate(ret + first);
}

static void rotate_row(const struct linear_args *a, const struct weight *w, uint32_t row,
                       struct mma_one *ret) {
    float *v = mem_calloc(w->cols, sizeof *v);
    exl3_ref_rotate_row(a, w, row, v);
    for (uint32_t k = 0; k < w->cols; k++)
        ret[step_place(k)] = mma_split(arith_to_f16(v[k]), DTYPE_F16);
    free(v);
}

static void decode_tile(const void *tile, const struct exl3 *q, float ret[EXL3_TILE * EXL3_TILE]) {
    switch (q->codebook) {
    case EXL3_3INST: exl3_tile(tile, q->half_bits, EXL3_3INST, ret, EXL3_TILE); break;
    case EXL3_MCG: exl3_tile(tile, q->half_bits, EXL3_MCG, ret, EXL3_TILE); break;
    case EXL3_MUL1: exl3_tile(tile, q->half_bits, EXL3_MUL1, ret, EXL3_TILE); break;
    }
}

// All inputs of sixteen outputs.
static void decode_strip(const struct weight *w, uint32_t strip, struct mma_vec *ret) {
    uint64_t bytes = exl3_tile_bytes(w->exl3.half_bits);
    const char *data = refs_ptr(w->data);
    for (uint32_t k = 0; k < w->cols; k += EXL3_TILE) {
        float v[EXL3_TILE * EXL3_TILE];
        decode_tile(data + ((uint64_t)k / EXL3_TILE * (w->rows / EXL3_TILE) + strip) * bytes,
                    &w->exl3, v);
        for (uint32_t i = 0; i < EXL3_TILE; i++)
            for (uint32_t n = 0; n < EXL3_TILE; n++)
                mma_put(&ret[step_place(k + i)], n,
                        mma_split(arith_to_f16(v[n * EXL3_TILE + i]), DTYPE_F16));
    }
}

void exl3_ref_finish_row(const struct linear_part *p, uint32_t row, float *y) {
    for (uint32_t first = 0; first < p->w.rows; first += EXL3_BLOCK) {
        rotate(y + first);
        for (uint32_t n = first; n < first + EXL3_BLOCK; n++) {
            y[n] = y[n] * refs_load(p->w.exl3.svh, n, DTYPE_F16);
            if (p->w.exl3.bias) y[n] = y[n] + refs_load(p->w.exl3.bias, n, DTYPE_F32);
            store(p, row, n, y[n]);
        }
    }
}

void exl3_chain_ref(const struct linear_args *a, const struct linear_part *p) {
    uint32_t cols = p->w.cols, outputs = p->w.rows;
    struct mma_one *x = mem_calloc((size_t)a->rows * cols, sizeof *x);
    struct mma_vec *v = mem_calloc(cols, sizeof *v);
    float *y = mem_calloc((size_t)a->rows * outputs, sizeof *y);
    for (uint32_t row = 0; row < a->rows; row++) rotate_row(a, &p->w, row, x + (size_t)row * cols);
    for (uint32_t strip = 0; strip < outputs / EXL3_TILE; strip++) {
        decode_strip(&p->w, strip, v);
        for (uint32_t row = 0; row < a->rows; row++)
            sum_segments(v, x + (size_t)row * cols, cols, linear_exl3_groups(cols) * LINEAR_GROUP,
                         y + (size_t)row * outputs + strip * EXL3_TILE);
    }
    for (uint32_t row = 0; row < a->rows; row++)
        exl3_ref_finish_row(p, row, y + (size_t)row * outputs);
    free(x);
    free(v);
    free(y);
}

void linear_ref(const struct linear_args *a) {
    struct rmsnorm_args norm = linear_from_norm(a);
    struct swiglu_args swiglu = linear_from_swiglu(a);
    if (a->from.maker == LINEAR_NORM) rmsnorm_ref(&norm);
    if (a->from.maker == LINEAR_SWIGLU) swiglu_ref(&swiglu);
    for (uint32_t i = 0; i < a->parts_count; i++) {
        const struct linear_part *p = &a->parts[i];
        if (exl3_int_weight(&p->w))
            exl3_int_ref(a, p);
        else if (p->w.exl3.half_bits)
            exl3_chain_ref(a, p);
        else if (p->w.dtype == DTYPE_F32)
            run_f32(a, p);
        else
            run_half(a, p);
    }
}
