/* linear_plain_plan: the launches of the plain parts of a call, type by type; linear.cu says what each kernel is for. Which one runs,
 * and how its blocks share the work, follows from the counts of rows and outputs and changes no bit. */
#include "common/num.h"
#include "kernels/cuda/launch.h"
#include "kernels/linear/linear_order.h"
#include "kernels/linear/linear_params.h"

#include <assert.h>

enum {
    FEW_STATIC_BYTES = 2 * LINEAR_FEW_WARPS * LINEAR_FEW_ROWS * LINEAR_TILE * 4,
    BLOCK_BYTES = 1 << 10, // of shared memory that the system keeps of each block
    ALIGN = 256,
    SUMS_BYTES_MAX = 24 << 20, // beyond, sums do not go through memory
};

// A variant of linear_wide.
struct wide {
    const char *bf16, *f16;
    uint32_t rows, groups, stages; // at most: of a block
};

static const struct wide wides[] = {
    {"linear_wide_16_bf16", "linear_wide_16_f16", 16, 3, 10},
    {"linear_wide_32_bf16", "linear_wide_32_f16", 32, 3, 9},
    {"linear_wide_64_bf16", "linear_wide_64_f16", 64, 3, 8},
    {"linear_wide_128_bf16", "linear_wide_128_f16", 128, 3, 6},
    {"linear_wide_192_bf16", "linear_wide_192_f16", 192, 2, 5},
};
enum { WIDES = sizeof wides / sizeof *wides };

static struct launch *add(struct launch_list *ret, const char *kernel,
                          const struct linear_params *p, uint32_t x, uint32_t y, uint32_t threads) {
    struct launch *l = launch_add(ret, kernel, p, sizeof *p);
    l->grid[0] = x;
    l->grid[1] = y;
    l->block[0] = threads;
    l->early = true;
    return l;
}

static uint32_t padded_of(const struct linear_params *p) {
    return ceil_div_u32(p->a.parts[0].w.cols, LINEAR_SPAN) * LINEAR_SPAN;
}

static void plan_round(const struct linear_params *p, bool bf16, struct launch_list *ret) {
    ret->scratch_bytes = max_u64(ret->scratch_bytes, (uint64_t)p->a.rows * padded_of(p) * 2);
    add(ret, bf16 ? "linear_round_bf16" : "linear_round_f16", p,
        ceil_div_u32(padded_of(p), LINEAR_THREADS * 4), p->a.rows, LINEAR_THREADS);
}

/* False where linear_wide is as good, or the rows do not fit into shared memory. Two blocks of a multiprocessor hide each other's
 * beginning and end; few outputs have one, and with it more copies on their way. */
static bool plan_few(struct linear_params *p, bool bf16, const struct cuda_arch *arch,
                     struct launch_list *ret) {
    static const struct {
        const char *bf16, *f16;
        uint32_t stages, blocks;
    } kernels[] = {{"linear_few_5_bf16", "linear_few_5_f16", 5, 2},
                   {"linear_few_4_bf16", "linear_few_4_f16", 4, 2},
                   {"linear_few_8_bf16", "linear_few_8_f16", 8, 1},
                   {"linear_few_5_bf16", "linear_few_5_f16", 5, 1},
                   {"linear_few_4_bf16", "linear_few_4_f16", 4, 1},
                   {"linear_few_3_bf16", "linear_few_3_f16", 3, 1}};
    uint32_t segments = linear_segments(p->a.parts[0].w.cols), units = LINEAR_FEW_WARPS / segments;
    uint32_t rows_bytes = units * p->a.rows * padded_of(p) * 2;
    // From three rows on, wide bands of outputs are as fast, and need no room for the rows.
    bool wide = p->a.rows > 2 && p->outputs >= arch->sm_count * 64;
    if (p->a.rows > LINEAR_FEW_ROWS || wide) return false;
    for (uint32_t i = 0; i < sizeof kernels / sizeof *kernels; i++) {
        uint32_t blocks = kernels[i].blocks, most = (arch->shared_max + BLOCK_BYTES) / blocks;
        uint32_t shared =
            LINEAR_FEW_WARPS * kernels[i].stages * LINEAR_FEW_PIECES * 16 + rows_bytes;
        if (shared + FEW_STATIC_BYTES + BLOCK_BYTES > most) continue;
        if (blocks > 1 && p->outputs < arch->sm_count * LINEAR_TILE) continue;
        plan_round(p, bf16, ret);
        struct launch *l = add(ret, bf16 ? kernels[i].bf16 : kernels[i].f16, p,
                               min_u32(arch->sm_count * blocks, ceil_div_u32(p->outputs, units)), 1,
                               LINEAR_FEW_WARPS * 32);
        l->shared_bytes = shared;
        return true;
    }
    return false;
}

// How the blocks of linear_wide share the work.
struct sharing {
    const struct wide *kernel;
    uint32_t groups, splits, bands, per; // per: outputs of a band
    uint32_t turns;                      // of the multiprocessors
};

// What lines of a group lie behind the band's are read too, for nothing: into the next stage, and behind the last one.
static uint32_t wide_bytes(const struct sharing *s) {
    uint32_t line = LINEAR_SPAN * 2, lines = ceil_div_u32(s->per, 8) * 8 + s->kernel->rows;
    uint32_t bytes = lines * line * s->kernel->stages, read = s->groups * 64 * line;
    return max_u32(bytes, bytes - lines * line + read) + s->kernel->stages * 8;
}

static double max(double a, double b) {
    return a > b ? a : b;
}

/* Clocks that it takes, roughly, as measured on an H200: a multiprocessor multiplies 2,048 factors a clock at nine tenths; it reads
 * 20 bytes a clock from memory and 36 from the cache; a stage takes some 4,600 clocks to come, less where other rows read the same.
 * Three groups leave few registers for 128 rows. Sums that go through memory are written and read. */
static double clocks_of(const struct sharing *s, const struct linear_params *p) {
    double tiles = ceil_div_u32(p->a.rows, s->kernel->rows), rows = s->kernel->rows;
    double multiply = s->groups * 64 * rows / 1850, cached = (s->per + rows) * 2 / 36;
    double step = max(multiply, max(cached, s->per * 2 / 20.0 / tiles));
    if (s->groups == 3 && rows >= 128) step *= 1.15;
    double late = tiles == 1 ? 4600 : s->turns == 1 ? 3400 : 2600;
    double stage = max(step * LINEAR_SPAN + 100, late / (s->kernel->stages - 2));
    double sums = s->splits > 1 ? (double)p->a.rows * p->outputs * 64 / 1300 + 3000 : 0;
    double stages = (double)padded_of(p) / LINEAR_SPAN / s->splits;
    return s->turns * (stages * stage + 3000) + sums;
}

// Even bands, so many that the last turn of the multiprocessors is a full one. False: it does not fit.
static bool share(struct sharing *s, const struct linear_params *p, const struct cuda_arch *arch) {
    uint32_t each = ceil_div_u32(p->a.rows, s->kernel->rows) * s->splits;
    uint32_t widest = arch->shared_max / (LINEAR_SPAN * 2) / s->kernel->stages;
    if (widest < s->kernel->rows + 16) return false;
    widest = min_u32((widest - s->kernel->rows - 1) / 8 * 8, s->groups * 64);
    s->bands = ceil_div_u32(p->outputs, widest);
    s->turns = ceil_div_u32(s->bands * each, arch->sm_count);
    uint32_t full = s->turns * arch->sm_count / each;
    s->bands = min_u32(max_u32(s->bands, full), ceil_div_u32(p->outputs, 8));
    s->per = ceil_div_u32(p->outputs, s->bands);
    s->bands = ceil_div_u32(p->outputs, s->per);
    return s->per > (s->groups - 1) * 64 && wide_bytes(s) <= arch->shared_max;
}

// Of all segments, should blocks share them.
static uint64_t sums_bytes(const struct linear_params *p) {
    return (uint64_t)linear_segments(p->a.parts[0].w.cols) * p->a.rows * p->outputs * sizeof(float);
}

static struct sharing wide_sharing(const struct linear_params *p, const struct cuda_arch *arch) {
    struct sharing best = {0};
    uint32_t segments = linear_segments(p->a.parts[0].w.cols);
    double least = 0;
    bool narrow = p->outputs < arch->sm_count * 64;
    for (uint32_t k = 0; k < WIDES; k++)
        for (uint32_t groups = 1; groups <= wides[k].groups; groups++)
            for (uint32_t splits = 1; splits <= segments; splits *= 2) {
                struct sharing s = {.kernel = &wides[k], .groups = groups, .splits = splits};
                if (splits > 1 && (!narrow || sums_bytes(p) > SUMS_BYTES_MAX)) continue;
                if (!share(&s, p, arch)) continue;
                double clocks = clocks_of(&s, p);
                if (best.kernel && clocks >= least) continue;
                best = s;
                least = clocks;
            }
    assert(best.kernel);
    return best;
}

static void plan_wide(struct linear_params *p, bool bf16, const struct cuda_arch *arch,
                      struct launch_list *ret) {
    plan_round(p, bf16, ret);
    struct sharing s = wide_sharing(p, arch);
    uint64_t rounded = align_up_u64((uint64_t)p->a.rows * padded_of(p) * 2, ALIGN);
    p->per = s.per;
    p->splits = s.splits;
    p->sums = p->rounded + rounded;
    struct launch *l = add(ret, bf16 ? s.kernel->bf16 : s.kernel->f16, p,
                           ceil_div_u32(p->a.rows, s.kernel->rows), s.bands, s.groups * 128);
    l->grid[2] = s.splits;
    l->shared_bytes = wide_bytes(&s);
    // As much as any lower count of rows may take.
    uint64_t sums = p->outputs < arch->sm_count * 64 ? min_u64(sums_bytes(p), SUMS_BYTES_MAX) : 0;
    ret->scratch_bytes = max_u64(ret->scratch_bytes, rounded + sums);
    if (s.splits > 1)
        add(ret, bf16 ? "linear_add_bf16" : "linear_add_f16", p,
            ceil_div_u32(p->outputs, LINEAR_THREADS), p->a.rows, LINEAR_THREADS);
}

static uint32_t outputs_of(const struct linear_args *a, enum dtype d) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < a->parts_count; i++)
        if (!a->parts[i].w.exl3.half_bits && a->parts[i].w.dtype == d) n += a->parts[i].w.rows;
    return n;
}

void linear_plain_plan(const struct linear_args *a, const struct cuda_arch *arch,
                       const struct cuda_work *w, struct launch_list *ret) {
    static const enum dtype halves[] = {DTYPE_BF16, DTYPE_F16};
    struct linear_params p = {.a = *a};
    for (uint32_t i = 0; i < 2; i++) {
        p.outputs = outputs_of(a, halves[i]);
        p.rounded = w->scratch;
        if (p.outputs && !plan_few(&p, i == 0, arch, ret)) plan_wide(&p, i == 0, arch, ret);
    }
    p.outputs = outputs_of(a, DTYPE_F32);
    if (p.outputs)
        add(ret, "linear_f32", &p, ceil_div_u32(p.outputs, LINEAR_FEW_WARPS), a->rows,
            LINEAR_FEW_WARPS * 32);
}
