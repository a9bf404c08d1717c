/* exl3_int_many_plan: see exl3_int_many.h. Parts of one width go together: their rows' integers, then their products. Sums are integers, so
 * that grids may follow the count of multiprocessors, and forms that of the rows. */
#include "common/num.h"
#include "kernels/cuda/launch.h"
#include "kernels/linear/exl3_int.h"
#include "kernels/linear/exl3_int_many.h"
#include "kernels/linear/exl3_wide.h"

#include <stdbool.h>

enum {
    ALIGN = 256,
    WIDTHS = 6,
    WIDE_ROWS = 129,    // from which weights are written out first: measured
    FIXED_BYTES = 2048, // static shared memory, and what a block costs beside its own
    STAGE_ALIGN = 1024,
    OTHER_LAUNCHES = 2 * (LINEAR_PARTS_MAX - 1), // of parts of other widths
};

static const uint32_t widths[WIDTHS] = {0, 6, 7, 8, 10, 12};

// A tile of rows: what it takes, in no unit.
static const struct form {
    uint32_t rows, cost, blocks; // blocks: of a multiprocessor
    const char *kernels[WIDTHS];
} forms[] = {
#define FORM(rows_, cost_, blocks_)                                                                \
    {                                                                                              \
        rows_, cost_, blocks_, {                                                                   \
            "exl3_int_many_" #rows_ "_0", "exl3_int_many_" #rows_ "_6",                            \
                "exl3_int_many_" #rows_ "_7", "exl3_int_many_" #rows_ "_8",                        \
                "exl3_int_many_" #rows_ "_10", "exl3_int_many_" #rows_ "_12"                       \
        }                                                                                          \
    }
    FORM(16, 6, 4),
    FORM(32, 7, 4),
    FORM(64, 10, 2),
};
enum { FORMS = sizeof forms / sizeof *forms };

static const char *const expand_kernels[WIDTHS] = {"exl3_int_expand_0",  "exl3_int_expand_6",
                                                   "exl3_int_expand_7",  "exl3_int_expand_8",
                                                   "exl3_int_expand_10", "exl3_int_expand_12"};

// The parts of one width.
struct group {
    struct exl3_int_many_params p;
    uint32_t width; // of the kernels
    uint32_t cols;
    devptr scratch, counters;
    uint64_t used; // bytes of scratch
};

static devptr take(struct group *g, uint64_t bytes) {
    devptr p = g->scratch + g->used;
    g->used += align_up_u64(bytes, ALIGN);
    return p;
}

// What every form needs of the rows.
static void take_rows(struct group *g, uint32_t tile) {
    struct exl3_int_many_params *p = &g->p;
    p->rows_padded = ceil_div_u32(p->a.rows, tile) * tile;
    uint64_t units = (uint64_t)p->a.parts_count * (g->cols / EXL3_INT_MANY_UNIT) * p->rows_padded;
    p->q = take(g, units * EXL3_INT_MANY_UNIT * sizeof(uint16_t));
    p->flat = take(g, units);
    p->info =
        take(g, (uint64_t)p->a.parts_count * p->rows_padded * sizeof(struct exl3_int_many_info));
}

static void add_rows(const struct group *g, struct launch_list *ret) {
    bool lengthy = g->cols > EXL3_INT_MANY_ROWS_THREADS / 32 * EXL3_INT_MANY_ROWS_KEPT * EXL3_BLOCK;
    struct launch *l = launch_add(ret, lengthy ? "exl3_int_many_rows_long" : "exl3_int_many_rows",
                                  &g->p, sizeof g->p);
    l->grid[0] = g->p.rows_padded;
    l->grid[1] = g->p.a.parts_count;
    l->block[0] = lengthy ? 2 * EXL3_INT_MANY_ROWS_THREADS : EXL3_INT_MANY_ROWS_THREADS;
    l->early = true;
}

// Two slots of sums for each thread block of a launch, and its counters.
static void take_sums(struct group *g, uint32_t grid, uint32_t integers, uint32_t counters,
                      struct launch_list *ret) {
    g->p.sums = take(g, (uint64_t)2 * grid * integers * sizeof(int32_t));
    g->p.counters = g->counters;
    ret->counters = max_u32(ret->counters, grid * counters);
}

static const struct form *find_form(uint32_t rows) {
    const struct form *best = forms;
    for (const struct form *f = forms; f < forms + FORMS; f++)
        if (ceil_div_u32(rows, f->rows) * f->cost < ceil_div_u32(rows, best->rows) * best->cost)
            best = f;
    return best;
}

static void plan_many(struct group *g, const struct cuda_arch *arch, struct launch_list *ret) {
    struct exl3_int_many_params *p = &g->p;
    const struct form *f = find_form(p->a.rows);
    uint32_t bytes =
        EXL3_INT_MANY_STAGES * exl3_int_many_stage(f->rows, p->half_bits) + STAGE_ALIGN;
    take_rows(g, f->rows);
    uint32_t wholes = p->blocks * (p->rows_padded / f->rows);
    uint32_t beside = min_u32(f->blocks, (arch->shared_max + FIXED_BYTES) / (bytes + FIXED_BYTES));
    uint32_t grid = min_u32(wholes * (g->cols / EXL3_INT_MANY_UNIT), arch->sm_count * beside);
    take_sums(g, grid, f->rows * EXL3_BLOCK, 1, ret);
    add_rows(g, ret);
    struct launch *l = launch_add(ret, f->kernels[g->width], p, sizeof *p);
    l->grid[0] = grid;
    l->block[0] = EXL3_INT_MANY_THREADS;
    l->shared_bytes = bytes;
    l->early = true;
}

static bool wide_fits(const struct group *g, const struct cuda_arch *arch,
                      const struct launch_list *ret) {
    if (arch->sm != 90 || g->p.a.rows < WIDE_ROWS) return false;
    if (g->cols / (2 * EXL3_INT_MANY_UNIT) > EXL3_WIDE_PAIRS_MAX) return false;
    // Of a slice one, and one for each of its parts, which may be cut; one for all rows.
    uint32_t launches = 2 * exl3_wide_slices(&g->p.a) + g->p.a.parts_count;
    return ret->count + launches + OTHER_LAUNCHES <= LAUNCHES_MAX;
}

// The weights of a slice, part by part.
static void add_expand(struct group *g, const struct exl3_wide_params *w, struct launch_list *ret) {
    struct exl3_int_many_params p = g->p;
    uint32_t before = 0, pairs = g->cols / (2 * EXL3_INT_MANY_UNIT);
    for (uint32_t i = 0; i < w->slice.parts; i++) {
        p.part = w->slice.part + i;
        p.from = w->slice.first;
        p.count = w->slice.parts == 1 ? w->slice.count : p.a.parts[p.part].w.rows / EXL3_BLOCK;
        p.wide = w->wide + (uint64_t)before * g->cols * EXL3_BLOCK * sizeof(uint16_t);
        p.w_norms = w->w_norms + (uint64_t)before * pairs * EXL3_INT_WIDE_NORMS * sizeof(float);
        struct launch *l = launch_add(ret, expand_kernels[g->width], &p, sizeof p);
        l->grid[0] = pairs;
        l->grid[1] = p.count;
        l->block[0] = EXL3_WIDE_EXPAND_THREADS;
        l->shared_bytes = EXL3_WIDE_EXPAND_BYTES;
        l->early = true;
        before += p.count;
        // The first one clears the norms of the rows, which the next launch makes.
        if (p.clear) add_rows(g, ret);
        p.clear = g->p.clear = 0;
    }
}

static void plan_wide(struct group *g, const struct cuda_arch *arch, struct launch_list *ret) {
    struct exl3_int_many_params *p = &g->p;
    uint64_t pairs = g->cols / (2 * EXL3_INT_MANY_UNIT), blocks = exl3_wide_blocks(&p->a);
    take_rows(g, EXL3_WIDE_ROWS);
    p->by_tile = 1;
    p->clear = p->a.parts_count * (uint32_t)pairs * EXL3_INT_WIDE_NORMS *
               (p->rows_padded / EXL3_INT_WIDE_HALF);
    p->q_norms = take(g, p->clear * sizeof(uint32_t));
    struct exl3_wide_params w = {
        .a = p->a, .stride = p->rows_padded, .q = p->q, .info = p->info, .q_norms = p->q_norms};
    w.counters = g->counters;
    w.sums = take(g, (uint64_t)exl3_wide_slots(arch, 0) * 2 * EXL3_WIDE_SUMS * sizeof(int32_t));
    w.w_norms = take(g, blocks * pairs * EXL3_INT_WIDE_NORMS * sizeof(float));
    w.wide = take(g, blocks * g->cols * EXL3_BLOCK * sizeof(uint16_t));
    ret->counters = max_u32(ret->counters, exl3_wide_counters(arch));
    while (exl3_wide_next(&p->a, &w.slice)) {
        add_expand(g, &w, ret);
        exl3_wide_add(&w, "exl3_int_wide", (uint32_t)pairs, arch, ret);
    }
}

static uint32_t width_of(uint32_t half_bits) {
    uint32_t i = WIDTHS - 1;
    while (i && widths[i] != half_bits) i--;
    return i;
}

// The MUL1 parts from the first of a width on that have it too; false: an earlier one has it, or it is none.
static bool find_group(const struct linear_args *a, uint32_t first, struct group *ret) {
    uint32_t half_bits = a->parts[first].w.exl3.half_bits;
    *ret = (struct group){.p = {.a = {.x = a->x, .rows = a->rows}, .half_bits = half_bits},
                          .width = width_of(half_bits),
                          .cols = a->parts[first].w.cols};
    for (uint32_t i = 0; i < a->parts_count; i++) {
        const struct weight *w = &a->parts[i].w;
        if (!exl3_int_weight(w) || w->exl3.half_bits != half_bits) continue;
        if (i < first) return false;
        ret->p.a.parts[ret->p.a.parts_count++] = a->parts[i];
        ret->p.blocks += w->rows / EXL3_BLOCK;
    }
    return exl3_int_weight(&a->parts[first].w);
}

void exl3_int_many_plan(const struct linear_args *a, const struct cuda_arch *arch,
                        const struct cuda_work *w, struct launch_list *ret) {
    uint64_t base = align_up_u64(ret->scratch_bytes, ALIGN);
    for (uint32_t i = 0; i < a->parts_count; i++) {
        struct group g;
        if (!find_group(a, i, &g)) continue;
        g.scratch = w->scratch + base;
        g.counters = w->counters;
        if (wide_fits(&g, arch, ret))
            plan_wide(&g, arch, ret);
        else
            plan_many(&g, arch, ret);
        ret->scratch_bytes = max_u64(ret->scratch_bytes, base + g.used);
    }
}
