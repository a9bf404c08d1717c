/* linear_cpu: see linear.h. A unit is a strip of output columns of one part, with all rows: its weights are read from
 * memory once and stay in the cache while the rows pass. Of an EXL3 part it is a block of columns with up to EXL3_ROWS. */
#include "kernels/cpu.h"
#include "kernels/linear/dot_tile.h"
#include "kernels/linear/exl3_cpu.h"
#include "kernels/linear/linear.h"
#include "kernels/linear/linear_from.h"

#include <assert.h>

enum {
    STRIP_BYTES = 16384, // of weights: half of a small first-level cache
    STRIP_COLS_MIN = 8,
    // How far ahead of their use weights are fetched into the second-level cache: the loads of a short row end before the
    // hardware has seen a pattern. Without it one row runs at 8 to 20 GB/s where 36 to 40 are to be had (Zen 4).
    AHEAD_BYTES = 65536,
    UNITS_PER_THREAD = 6, // enough to even out a thread that is held up
    // Several blocks of rows share weights that are widened to fp32 once: so many of each column at a time, for so many rows.
    WIDE_K = 1024,
    WIDE_ROWS = 24,
    WIDE_STRIDE = WIDE_K + LANES, // columns a page apart would share the sets of the cache
};

struct job {
    struct linear_args a;
    struct exl3_scratch *exl3;
    uint32_t k;
    uint32_t strip[LINEAR_PARTS_MAX];      // columns of a unit
    uint32_t first_unit[LINEAR_PARTS_MAX]; // of each part
};

struct jobs {
    const struct job *jobs; // by first unit
    uint32_t count;
};

CPU_INLINE void store(const struct linear_part *p, uint32_t row, uint32_t col, uint32_t rows,
                      uint32_t cols, const float *v) {
    typedef float v4 __attribute__((vector_size(16)));
    for (uint32_t r = 0; r < rows; r++) {
        float *y = (float *)cpu_ptr(p->y) + (uint64_t)(row + r) * p->w.rows + col;
        uint32_t c = 0;
        for (; c + 4 <= cols; c += 4) {
            v4 new, old;
            memcpy(&new, v + r * cols + c, sizeof new);
            memcpy(&old, y + c, sizeof old);
            if (p->add) new = new + old;
            memcpy(y + c, &new, sizeof new);
        }
        for (; c < cols; c++) y[c] = p->add ? v[r * cols + c] + y[c] : v[r * cols + c];
    }
}

// Not inlined: it is all blocks of all types.
static __attribute__((noinline)) void tile(const struct dot_operand *o, uint32_t rows,
                                           uint32_t cols, enum dtype d, float *ret) {
    switch (d) {
    case DTYPE_F32: dot_tile_run(o, rows, cols, DTYPE_F32, ret); break;
    case DTYPE_BF16: dot_tile_run(o, rows, cols, DTYPE_BF16, ret); break;
    case DTYPE_F16: dot_tile_run(o, rows, cols, DTYPE_F16, ret); break;
    case DTYPE_E4M3: assert(0); // of the KV cache alone
    }
}

// Rows row .. row + rows - 1, all columns of the strip.
static void block(const struct job *j, const struct linear_part *p, uint32_t row, uint32_t rows,
                  uint32_t col, uint32_t end) {
    enum dtype d = p->w.dtype;
    float v[DOT_ROWS * DOT_COLS_MAX] = {0};
    while (col < end) {
        uint32_t cols = dot_cols(rows, end - col);
        struct dot_operand o = {.x = (const float *)cpu_ptr(j->a.x) + (uint64_t)row * j->k,
                                .x_stride = j->k,
                                .w = (const char *)cpu_ptr(p->w.data) +
                                     (uint64_t)col * j->k * dtype_bytes(d),
                                .w_stride = j->k,
                                .k = j->k,
                                .ahead = row ? 0 : AHEAD_BYTES};
        tile(&o, rows, cols, d, v);
        store(p, row, col, rows, cols, v);
        col += cols;
    }
}

// What block does, for up to WIDE_ROWS rows and no more columns than a block has: the first rows leave the weights as fp32 for
// the others.
static void wide_block(const struct job *j, const struct linear_part *p, uint32_t row,
                       uint32_t rows, uint32_t col, uint32_t cols) {
    float wide[DOT_COLS * WIDE_STRIDE] __attribute__((aligned(64)));
    float sums[WIDE_ROWS * DOT_COLS * LANES] __attribute__((aligned(64)));
    float v[DOT_ROWS * DOT_COLS_MAX] = {0};
    uint64_t size = dtype_bytes(p->w.dtype);
    const float *x = (const float *)cpu_ptr(j->a.x) + (uint64_t)row * j->k;
    const char *w = (const char *)cpu_ptr(p->w.data) + (uint64_t)col * j->k * size;
    for (uint32_t k = 0, n; k < j->k; k += n) {
        n = j->k - k < WIDE_K ? j->k - k : WIDE_K;
        for (uint32_t blocks = dot_blocks(rows), done = 0, take; blocks; blocks--, done += take) {
            take = dot_rows(rows - done, blocks);
            float *s = sums + (uint64_t)done * cols * LANES;
            struct dot_operand o = {.x = x + (uint64_t)done * j->k + k,
                                    .x_stride = j->k,
                                    .w = done ? (const void *)wide : w + k * size,
                                    .w_stride = done ? WIDE_STRIDE : j->k,
                                    .k = n,
                                    .ahead = row || done ? 0 : AHEAD_BYTES,
                                    .from = k ? s : NULL,
                                    .to = k + n < j->k ? s : NULL,
                                    .wide = done ? NULL : wide,
                                    .wide_stride = WIDE_STRIDE};
            tile(&o, take, cols, done ? DTYPE_F32 : p->w.dtype, v);
            if (!o.to) store(p, row + done, col, take, cols, v);
        }
    }
}

static void wide_strip(const struct job *j, const struct linear_part *p, uint32_t col,
                       uint32_t end) {
    for (uint32_t row = 0, rows; row < j->a.rows; row += rows) {
        rows = j->a.rows - row < WIDE_ROWS ? j->a.rows - row : WIDE_ROWS;
        for (uint32_t c = col, cols; c < end; c += cols) {
            cols = end - c >= DOT_COLS ? DOT_COLS : 1;
            wide_block(j, p, row, rows, c, cols);
        }
    }
}

static void strip(const struct job *j, const struct linear_part *p, uint32_t col, uint32_t end) {
    if (p->w.dtype != DTYPE_F32 && j->a.rows > DOT_ROWS) {
        wide_strip(j, p, col, end);
        return;
    }
    uint32_t left = j->a.rows;
    for (uint32_t blocks = dot_blocks(left), rows; blocks; blocks--, left -= rows) {
        rows = dot_rows(left, blocks);
        block(j, p, j->a.rows - left, rows, col, end);
    }
}

// Units of all blocks with the first rows, then with the next ones.
static void exl3_unit(const struct job *j, const struct linear_part *p, uint32_t unit,
                      uint32_t thread) {
    uint32_t blocks = p->w.rows / EXL3_BLOCK, row = unit / blocks * EXL3_ROWS;
    uint32_t left = j->a.rows - row;
    struct exl3_rows rows = {.x = (const float *)cpu_ptr(j->a.x) + (uint64_t)row * j->k,
                             .y = (float *)cpu_ptr(p->y) + (uint64_t)row * p->w.rows,
                             .count = left < EXL3_ROWS ? left : EXL3_ROWS,
                             .add = p->add};
    CPU_NAME(exl3_block)(&j->exl3[thread], &p->w, &rows, unit % blocks);
}

static void linear_unit(void *arg, uint32_t unit, uint32_t thread) {
    const struct jobs *all = arg;
    uint32_t idx = all->count - 1;
    while (unit < all->jobs[idx].first_unit[0]) idx--;
    const struct job *j = &all->jobs[idx];
    uint32_t part = j->a.parts_count - 1;
    while (unit < j->first_unit[part]) part--;
    const struct linear_part *p = &j->a.parts[part];
    if (p->w.exl3.half_bits) {
        exl3_unit(j, p, unit - j->first_unit[part], thread);
        return;
    }
    uint32_t col = (unit - j->first_unit[part]) * j->strip[part];
    uint32_t end = col + j->strip[part] < p->w.rows ? col + j->strip[part] : p->w.rows;
    strip(j, p, col, end);
}

// Columns of a unit: what the cache holds, or less so that all threads have several; never changes a bit.
static uint32_t strip_cols(const struct cpu *c, const struct weight *w, uint32_t cols_all) {
    uint32_t fits = STRIP_BYTES / (w->cols * dtype_bytes(w->dtype) + 1);
    uint32_t fair = cols_all / (c->threads * UNITS_PER_THREAD);
    uint32_t cols = fits < fair ? fits : fair;
    return (cols > STRIP_COLS_MIN ? cols : STRIP_COLS_MIN) / STRIP_COLS_MIN * STRIP_COLS_MIN;
}

static uint32_t units_of(const struct job *j, const struct linear_part *p, uint32_t strip) {
    if (p->w.exl3.half_bits)
        return p->w.rows / EXL3_BLOCK * ((j->a.rows + EXL3_ROWS - 1) / EXL3_ROWS);
    return (p->w.rows + strip - 1) / strip;
}

static uint32_t cols_of(const struct linear_args *a) {
    uint32_t cols = 0;
    for (uint32_t i = 0; i < a->parts_count; i++) cols += a->parts[i].w.rows;
    return cols;
}

// Plans one call whose units start at first; gives the unit behind its last.
static uint32_t plan(const struct cpu *c, struct job *j, const struct linear_args *a,
                     uint32_t cols_all, uint32_t first) {
    *j = (struct job){.a = *a, .exl3 = c->exl3, .k = a->parts[0].w.cols};
    for (uint32_t i = 0; i < a->parts_count; i++) {
        j->strip[i] = strip_cols(c, &a->parts[i].w, cols_all);
        j->first_unit[i] = first;
        if (a->rows) first += units_of(j, &a->parts[i], j->strip[i]);
    }
    return first;
}

void CPU_NAME(linear_many)(void *ctx, const struct linear_args *a, uint32_t count) {
    struct job jobs[CPU_LINEAR_MANY];
    uint32_t units = 0, cols_all = 0;
    uint64_t work = 0;
    assert(count <= CPU_LINEAR_MANY);
    for (uint32_t i = 0; i < count; i++) cols_all += cols_of(&a[i]);
    for (uint32_t i = 0; i < count; i++) {
        units = plan(ctx, &jobs[i], &a[i], cols_all, units);
        work += (uint64_t)a[i].rows * cols_of(&a[i]) * jobs[i].k;
    }
    if (units) cpu_for(ctx, work, units, linear_unit, &(struct jobs){jobs, count});
}

void CPU_NAME(linear)(void *ctx, const struct linear_args *a) {
    struct rmsnorm_args norm = linear_from_norm(a);
    struct swiglu_args swiglu = linear_from_swiglu(a);
    if (a->from.maker == LINEAR_NORM) CPU_NAME(rmsnorm)(ctx, &norm);
    if (a->from.maker == LINEAR_SWIGLU) CPU_NAME(swiglu)(ctx, &swiglu);
    CPU_NAME(linear_many)(ctx, a, 1);
}
