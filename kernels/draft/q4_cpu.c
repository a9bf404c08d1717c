/* q4_cpu: see q4_pack.h and q4_linear.h. A unit of q4_linear is a strip of outputs with up to ROWS rows: each weight is decoded
 * once for all of them, panel by panel of inputs. */
#include "kernels/cpu.h"
#include "kernels/draft/q4_linear.h"
#include "kernels/draft/q4_pack.h"
#include "kernels/linear/dot_tile.h"

#include <assert.h>
#include <math.h>

enum { STRIP = 16, ROWS = 64, PANEL = 1024, STRIDE = PANEL + LANES, HALF_LANES = LANES / 2 };

static float to_bf16(float x, uint16_t *ret) {
    vh h = vf_to_bf16(vf_set(x));
    uint32_t bits = (uint32_t)h[0] << 16;
    *ret = h[0];
    memcpy(&x, &bits, sizeof x);
    return x;
}

static void pack_group(const float *w, uint8_t *codes, uint16_t *factors) {
    float lo = w[0], hi = w[0];
    for (uint32_t i = 1; i < Q4_GROUP; i++) {
        lo = w[i] < lo ? w[i] : lo;
        hi = w[i] > hi ? w[i] : hi;
    }
    float scale = to_bf16((hi - lo) / 15, &factors[0]), bias = to_bf16(lo, &factors[1]);
    for (uint32_t i = 0; i < Q4_GROUP; i++) {
        float q = scale > 0 ? floorf((w[i] - bias) / scale + 0.5f) : 0;
        q = q < 0 ? 0 : q > 15 ? 15 : q;
        codes[i / 2] = (uint8_t)(i % 2 ? codes[i / 2] | (uint8_t)q << 4 : (uint8_t)q);
    }
}

static void pack_row(void *arg, uint32_t row, uint32_t thread) {
    const struct q4_pack_args *a = arg;
    uint32_t cols = a->to.cols;
    uint8_t *codes = (uint8_t *)cpu_ptr(a->to.codes) + (uint64_t)row * cols / 2;
    uint16_t *factors = (uint16_t *)cpu_ptr(a->to.factors) + (uint64_t)row * (cols / Q4_GROUP) * 2;
    for (uint32_t k = 0; k < cols; k += Q4_GROUP) {
        float w[Q4_GROUP];
        for (uint32_t i = 0; i < Q4_GROUP; i += LANES)
            vf_store(w + i, vf_load_dtype(cpu_ptr(a->from.data), (uint64_t)row * cols + k + i,
                                          a->from.dtype));
        pack_group(w, codes + k / 2, factors + k / Q4_GROUP * 2);
    }
}

void CPU_NAME(q4_pack)(void *ctx, const struct q4_pack_args *a) {
    struct q4_pack_args args = *a;
    assert(!a->from.exl3.half_bits && a->to.cols % Q4_GROUP == 0);
    cpu_for(ctx, (uint64_t)a->to.rows * a->to.cols, a->to.rows, pack_row, &args);
}

struct job {
    struct q4_linear_args a;
    uint32_t first_unit[LINEAR_PARTS_MAX], k;
};

// Sixteen codes, the first in the lowest bits.
CPU_INLINE vf decode_16(const uint8_t *codes, vf scale, vf bias) {
    static const uint32_t shift[LANES] = {0, 4, 8, 12, 16, 20, 24, 28, 0, 4, 8, 12, 16, 20, 24, 28};
    uint32_t half[2], words[LANES];
    memcpy(half, codes, sizeof half);
    for (uint32_t i = 0; i < LANES; i++) words[i] = half[i / HALF_LANES];
    vu q = (vu_load(words) >> vu_load(shift)) & 15u;
    return __builtin_convertvector((vi)q, vf) * scale + bias;
}

static float factor_of(uint16_t h) {
    uint32_t bits = (uint32_t)h << 16;
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}

// Inputs first .. first + count - 1 of output `col`.
static void decode(const struct q4 *w, uint32_t col, uint32_t first, uint32_t count, float *ret) {
    const uint8_t *codes =
        (const uint8_t *)cpu_ptr(w->codes) + ((uint64_t)col * w->cols + first) / 2;
    const uint16_t *factors =
        (const uint16_t *)cpu_ptr(w->factors) + ((uint64_t)col * w->cols + first) / Q4_GROUP * 2;
    for (uint32_t k = 0; k < count; k += Q4_GROUP, factors += 2) {
        vf scale = vf_set(factor_of(factors[0])), bias = vf_set(factor_of(factors[1]));
#pragma GCC unroll 4
        for (uint32_t i = 0; i < Q4_GROUP; i += LANES)
            vf_store(ret + k + i, decode_16(codes + (k + i) / 2, scale, bias));
    }
}

struct sums {
    float w[DOT_COLS][STRIDE];
    vn acc[ROWS * DOT_COLS][PARTS];
};

CPU_INLINE void add_block(const struct dot_operand *o, vn (*acc)[PARTS], const uint32_t rows) {
    vn v[DOT_ROWS * DOT_COLS][PARTS];
#pragma GCC unroll 32
    for (uint32_t i = 0; i < rows * DOT_COLS; i++)
#pragma GCC unroll 4
        for (uint32_t p = 0; p < PARTS; p++) v[i][p] = acc[i][p];
    dot_add(o, rows, DOT_COLS, DTYPE_F32, v);
#pragma GCC unroll 32
    for (uint32_t i = 0; i < rows * DOT_COLS; i++)
#pragma GCC unroll 4
        for (uint32_t p = 0; p < PARTS; p++) acc[i][p] = v[i][p];
}

static void add_rows(const struct dot_operand *o, vn (*acc)[PARTS], uint32_t rows) {
    switch (rows) {
    case 1: add_block(o, acc, 1); break;
#if defined(__AVX2__) && !defined(CPU_SMALL_BLOCKS)
    case 2: add_block(o, acc, 2); break;
#endif
#if defined(__AVX512F__) && !defined(CPU_SMALL_BLOCKS)
    case 3: add_block(o, acc, 3); break;
    case 4: add_block(o, acc, 4); break;
    case 5: add_block(o, acc, 5); break;
    case 6: add_block(o, acc, 6); break;
#endif
    default: __builtin_unreachable();
    }
}

static void add_panel(const struct job *j, struct sums *s, uint32_t row, uint32_t count,
                      uint32_t first, uint32_t inputs) {
    uint32_t left = count, at = 0;
    for (uint32_t blocks = dot_blocks(left), rows; blocks; blocks--, at += rows, left -= rows) {
        rows = dot_rows(left, blocks);
        struct dot_operand o = {.x = (const float *)cpu_ptr(j->a.x) + (uint64_t)(row + at) * j->k +
                                     first,
                                .x_stride = j->k,
                                .w = s->w,
                                .w_stride = STRIDE,
                                .k = inputs};
        add_rows(&o, s->acc + at * DOT_COLS, rows);
    }
}

// DOT_COLS outputs from col on, for `count` rows.
static void columns(const struct job *j, const struct q4_linear_part *p, struct sums *s,
                    uint32_t row, uint32_t count, uint32_t col) {
    memset(s->acc, 0, count * DOT_COLS * sizeof *s->acc);
    for (uint32_t k = 0; k < j->k; k += PANEL) {
        uint32_t inputs = j->k - k < PANEL ? j->k - k : PANEL;
        for (uint32_t c = 0; c < DOT_COLS; c++) decode(&p->w, col + c, k, inputs, s->w[c]);
        add_panel(j, s, row, count, k, inputs);
    }
    for (uint32_t r = 0; r < count; r++) {
        float v[DOT_COLS], *y = (float *)cpu_ptr(p->y) + (uint64_t)(row + r) * p->w.rows + col;
        dot_store((const vn(*)[PARTS])(s->acc + r * DOT_COLS), DOT_COLS, v);
        for (uint32_t c = 0; c < DOT_COLS; c++) y[c] = p->add ? v[c] + y[c] : v[c];
    }
}

static uint32_t strips(const struct q4 *w) {
    return (w->rows + STRIP - 1) / STRIP;
}

static void linear_unit(void *arg, uint32_t unit, uint32_t thread) {
    const struct job *j = arg;
    uint32_t part = j->a.parts_count - 1;
    while (unit < j->first_unit[part]) part--;
    const struct q4_linear_part *p = &j->a.parts[part];
    uint32_t n = strips(&p->w), row = (unit - j->first_unit[part]) / n * ROWS;
    uint32_t col = (unit - j->first_unit[part]) % n * STRIP;
    uint32_t count = j->a.rows - row < ROWS ? j->a.rows - row : ROWS;
    struct sums s;
    for (uint32_t end = col + STRIP < p->w.rows ? col + STRIP : p->w.rows; col < end;
         col += DOT_COLS)
        columns(j, p, &s, row, count, col);
}

void CPU_NAME(q4_linear)(void *ctx, const struct q4_linear_args *a) {
    struct job j = {.a = *a, .k = a->parts[0].w.cols};
    uint32_t units = 0;
    uint64_t work = 0;
    for (uint32_t i = 0; i < a->parts_count; i++) {
        assert(a->parts[i].w.rows % 4 == 0 && a->parts[i].w.cols % Q4_GROUP == 0);
        j.first_unit[i] = units;
        units += strips(&a->parts[i].w) * ((a->rows + ROWS - 1) / ROWS);
        work += (uint64_t)a->rows * a->parts[i].w.rows * j.k;
    }
    if (units) cpu_for(ctx, work, units, linear_unit, &j);
}
