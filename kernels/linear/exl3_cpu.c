/* exl3_cpu: see exl3_cpu.h. Panels of inputs, in ascending order; in a panel, strips of 16 columns, decoded once for all rows. */
#include "kernels/linear/exl3_cpu.h"
#include "kernels/linear/dot_tile.h"
#include "kernels/linear/exl3_decode.h"
#include "kernels/linear/hadamard.h"

#include <assert.h>

static_assert((int)EXL3_BLOCK == (int)HADAMARD_CHANNELS, "one block");
static_assert(EXL3_PANEL % EXL3_BLOCK == 0, "whole rotations");

enum { SUMS_AT_ONCE = PARTS == 1 ? 16 : 4 }; // of a row's outputs; what registers hold

struct panel {
    struct exl3_scratch *s;
    const struct weight *w;
    const struct exl3_int_rows *rows;
    uint32_t block;
    uint32_t first, count; // inputs
};

// suh and rotation of a panel's inputs.
static void rotate_inputs(const struct panel *p) {
    const void *suh = cpu_ptr(p->w->exl3.suh);
    for (uint32_t r = 0; r < p->rows->count; r++) {
        const float *x = p->rows->x + (uint64_t)r * p->w->cols + p->first;
        for (uint32_t k = 0; k < p->count; k += HADAMARD_CHANNELS) {
            vf v[HADAMARD_VECTORS];
#pragma GCC unroll 8
            for (uint32_t i = 0; i < HADAMARD_VECTORS; i++)
                v[i] = vf_load(x + k + i * LANES) *
                       vf_load_dtype(suh, p->first + k + i * LANES, DTYPE_F16);
            hadamard_128(v);
#pragma GCC unroll 8
            for (uint32_t i = 0; i < HADAMARD_VECTORS; i++)
                vf_store(&p->s->x[r][k + i * LANES], v[i]);
        }
    }
}

CPU_INLINE void decode_tiles(const struct panel *p, uint32_t strip,
                             const enum exl3_codebook codebook) {
    uint32_t half_bits = p->w->exl3.half_bits, tile = exl3_tile_bytes(half_bits);
    struct exl3_picks picks = exl3_picks_of(half_bits);
    uint32_t outputs = p->w->exl3.rows_whole ? p->w->exl3.rows_whole : p->w->rows;
    uint64_t row = (uint64_t)outputs / EXL3_TILE * tile; // bytes of all tiles of 16 inputs
    const char *at = (const char *)cpu_ptr(p->w->data) + p->first / EXL3_TILE * row +
                     (p->block * (EXL3_BLOCK / EXL3_TILE) + strip) * (uint64_t)tile;
    for (uint32_t k = 0; k < p->count; k += EXL3_TILE, at += row) {
        // The next strip's tile: tiles of one strip lie too far apart for the hardware to see it coming.
        __builtin_prefetch(at + tile, 0, 2);
        __builtin_prefetch(at + 2 * tile - 1, 0, 2);
        exl3_tile_by(&picks, at, half_bits, codebook, &p->s->w[0][k], EXL3_STRIDE);
    }
}

static void decode_strip(const struct panel *p, uint32_t strip) {
    switch (p->w->exl3.codebook) {
    case EXL3_3INST: decode_tiles(p, strip, EXL3_3INST); break;
    case EXL3_MCG: decode_tiles(p, strip, EXL3_MCG); break;
    case EXL3_MUL1: decode_tiles(p, strip, EXL3_MUL1); break;
    }
}

CPU_INLINE void add_block(const struct dot_operand *o, float *acc, const uint32_t rows,
                          const uint32_t cols) {
    vn v[DOT_ROWS * DOT_COLS_MAX][PARTS];
#pragma GCC unroll 8
    for (uint32_t r = 0; r < rows; r++)
#pragma GCC unroll 8
        for (uint32_t c = 0; c < cols; c++)
#pragma GCC unroll 4
            for (uint32_t p = 0; p < PARTS; p++)
                v[r * cols + c][p] = vn_load(acc + (r * EXL3_BLOCK + c) * LANES + p * NATIVE);
    dot_add(o, rows, cols, DTYPE_F32, v);
#pragma GCC unroll 8
    for (uint32_t r = 0; r < rows; r++)
#pragma GCC unroll 8
        for (uint32_t c = 0; c < cols; c++)
#pragma GCC unroll 4
            for (uint32_t p = 0; p < PARTS; p++)
                vn_store(acc + (r * EXL3_BLOCK + c) * LANES + p * NATIVE, v[r * cols + c][p]);
}

// All 16 columns of the strip for rows row .. row + rows - 1.
CPU_INLINE void add_rows(const struct panel *p, uint32_t strip, uint32_t row, const uint32_t rows) {
    const uint32_t cols = rows == 1 ? DOT_COLS_ONE : DOT_COLS;
    for (uint32_t c = 0; c < EXL3_TILE; c += cols) {
        struct dot_operand o = {.x = p->s->x[row],
                                .x_stride = EXL3_STRIDE,
                                .w = p->s->w[c],
                                .w_stride = EXL3_STRIDE,
                                .k = p->count};
        add_block(&o, p->s->acc[row][strip * EXL3_TILE + c], rows, cols);
    }
}

static void add_strip(const struct panel *p, uint32_t strip) {
    uint32_t left = p->rows->count, blocks = dot_blocks(left);
    for (uint32_t row = 0, rows; blocks; blocks--, row += rows, left -= rows) {
        rows = dot_rows(left, blocks);
        switch (rows) {
        case 1: add_rows(p, strip, row, 1); break;
#if defined(__AVX2__) && !defined(CPU_SMALL_BLOCKS)
        case 2: add_rows(p, strip, row, 2); break;
#endif
#if defined(__AVX512F__) && !defined(CPU_SMALL_BLOCKS)
        case 3: add_rows(p, strip, row, 3); break;
        case 4: add_rows(p, strip, row, 4); break;
        case 5: add_rows(p, strip, row, 5); break;
        case 6: add_rows(p, strip, row, 6); break;
#endif
        default: __builtin_unreachable();
        }
    }
}

static void finish_row(const struct panel *p, uint32_t r) {
    const struct exl3 *q = &p->w->exl3;
    uint32_t first = p->block * EXL3_BLOCK;
    float *y = p->rows->y + (uint64_t)r * p->w->rows + first;
    float sums[EXL3_BLOCK];
    vf v[HADAMARD_VECTORS];
    for (uint32_t c = 0; c < EXL3_BLOCK; c += SUMS_AT_ONCE) {
        vn acc[SUMS_AT_ONCE][PARTS];
        memcpy(acc, p->s->acc[r][c], sizeof acc);
        dot_store((const vn(*)[PARTS])acc, SUMS_AT_ONCE, sums + c);
    }
    for (uint32_t i = 0; i < HADAMARD_VECTORS; i++) v[i] = vf_load(sums + i * LANES);
    hadamard_128(v);
    for (uint32_t i = 0; i < HADAMARD_VECTORS; i++) {
        uint32_t n = first + i * LANES;
        v[i] = v[i] * vf_load_dtype(cpu_ptr(q->svh), n, DTYPE_F16);
        if (q->bias) v[i] = v[i] + vf_load((const float *)cpu_ptr(q->bias) + n);
        if (p->rows->add) v[i] = v[i] + vf_load(y + i * LANES);
        vf_store(y + i * LANES, v[i]);
    }
}

void CPU_NAME(exl3_block)(struct exl3_scratch *s, const struct weight *w,
                          const struct exl3_int_rows *rows, uint32_t block) {
    struct panel p = {.s = s, .w = w, .rows = rows, .block = block};
    memset(s->acc, 0, rows->count * sizeof *s->acc);
    for (p.first = 0; p.first < w->cols; p.first += EXL3_PANEL) {
        uint32_t left = w->cols - p.first;
        p.count = left < EXL3_PANEL ? left : EXL3_PANEL;
        rotate_inputs(&p);
        for (uint32_t strip = 0; strip < EXL3_BLOCK / EXL3_TILE; strip++) {
            decode_strip(&p, strip);
            add_strip(&p, strip);
        }
    }
    for (uint32_t r = 0; r < rows->count; r++) finish_row(&p, r);
}
