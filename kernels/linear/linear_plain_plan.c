/* linear_plain_plan: the launches of the plain parts of a call, type by type; linear.cu says what each kernel is for. Which one runs,
 * and how its blocks share the work, follows from the counts of rows and outputs and changes no bit. */
#include "common/num.h"
#include "kernels/cuda/launch.h"
#include "kernels/linear/linear_order.h"
#include "kernels/linear/linear_params.h"

enum {
    FEW_STATIC_BYTES = 2 * LINEAR_FEW_WARPS * LINEAR_FEW_ROWS * LINEAR_TILE * 4,
    FEW_QUADS =
        12, // a lane's share of the rows, in fp32, up to which linear_few rounds them itself
    ALIGN = 256,
};

// A variant of linear_wide.
struct wide {
    const char *bf16, *f16;
    uint32_t rows, groups, stages; // at most: of a block
};

static const struct wide wides[] = {
    {"linear_wide_16_bf16", "linear_wide_16_f16", 16, 3, 8},
    {"linear_wide_32_bf16", "linear_wide_32_f16", 32, 3, 8},
    {"linear_wide_64_bf16", "linear_wide_64_f16", 64, 3, 7},
    {"linear_wide_128_bf16", "linear_wide_128_f16", 128, 3, 5},
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

// False where the rows do not fit into shared memory.
static bool plan_few(struct linear_params *p, bool bf16, const struct cuda_arch *arch,
                     struct launch_list *ret) {
    static const struct {
        const char *bf16, *f16;
        uint32_t stages;
    } kernels[] = {{"linear_few_8_bf16", "linear_few_8_f16", 8},
                   {"linear_few_5_bf16", "linear_few_5_f16", 5},
                   {"linear_few_3_bf16", "linear_few_3_f16", 3}};
    uint32_t segments = linear_segments(p->a.parts[0].w.cols), units = LINEAR_FEW_WARPS / segments;
    uint32_t rows_bytes = units * p->a.rows * padded_of(p) * 2;
    if (p->a.rows > LINEAR_FEW_ROWS) return false;
    for (uint32_t i = 0; i < sizeof kernels / sizeof *kernels; i++) {
        uint32_t shared =
            LINEAR_FEW_WARPS * kernels[i].stages * LINEAR_FEW_PIECES * 16 + rows_bytes;
        if (shared + FEW_STATIC_BYTES > arch->shared_max) continue;
        if (p->a.rows * (padded_of(p) / segments) <= FEW_QUADS * 4 * 32)
            p->rounded = 0;
        else
            plan_round(p, bf16, ret);
        struct launch *l =
            add(ret, bf16 ? kernels[i].bf16 : kernels[i].f16, p,
                min_u32(arch->sm_count, ceil_div_u32(p->outputs, units)), 1, LINEAR_FEW_WARPS * 32);
        l->shared_bytes = shared;
        return true;
    }
    return false;
}

// How the blocks of linear_wide share the work.
struct sharing {
    const struct wide *kernel;
    uint32_t groups, splits, bands;
};

static uint32_t wide_bytes(const struct sharing *s) {
    return ((s->groups * 64 + s->kernel->rows) * LINEAR_SPAN * 2 + 8) * s->kernel->stages;
}

static double max(double a, double b) {
    return a > b ? a : b;
}

/* Clocks that it takes, roughly: a block multiplies 2,048 factors a clock and has its share of the memory's 2,600 bytes and of the
 * cache's; what it adds up through memory goes at half of that. */
static double clocks_of(const struct sharing *s, const struct linear_params *p,
                        const struct cuda_arch *arch) {
    double tiles = ceil_div_u32(p->a.rows, s->kernel->rows);
    double per = ceil_div_u32(p->outputs, s->bands), rows = s->kernel->rows, cols = padded_of(p);
    double multiply = s->groups * 64.0 * rows / 2048.0, shared = (per + rows) * 2 / 36.0;
    double flying = (s->kernel->stages - 2) * per * LINEAR_SPAN * 2 / 1500.0;
    double read = per * 2 / (tiles > 1 ? tiles : 1) / (flying < 20 ? flying : 20);
    double step = max(max(multiply, shared), 5.5);
    uint32_t blocks = (uint32_t)tiles * s->bands * s->splits;
    double turns = ceil_div_u32(blocks, arch->sm_count);
    double sum = s->splits == 1 ? 0 : 8.0 * p->a.rows * p->outputs * 8 / 1300.0 + 2500;
    return turns * (cols / s->splits * max(step, read) + 4000) + sum;
}

static struct sharing wide_sharing(const struct linear_params *p, const struct cuda_arch *arch) {
    struct sharing best = {0};
    uint32_t segments = linear_segments(p->a.parts[0].w.cols);
    double least = 0;
    for (uint32_t k = 0; k < WIDES; k++)
        for (uint32_t groups = 1; groups <= wides[k].groups; groups++)
            for (uint32_t splits = 1; splits <= segments; splits *= 2) {
                struct sharing s = {&wides[k], groups, splits, 0};
                if (wide_bytes(&s) > arch->shared_max || (splits > 1 && p->a.rows > 256)) continue;
                // Even bands, so many that the last turn of the multiprocessors is a full one.
                uint32_t each = ceil_div_u32(p->a.rows, s.kernel->rows) * splits;
                s.bands = ceil_div_u32(p->outputs, groups * 64);
                uint32_t turns = ceil_div_u32(s.bands * each, arch->sm_count);
                uint32_t full = turns * arch->sm_count / each;
                s.bands = min_u32(max_u32(s.bands, full), ceil_div_u32(p->outputs, 8));
                double clocks = clocks_of(&s, p, arch);
                if (best.kernel && clocks >= least) continue;
                best = s;
                least = clocks;
            }
    return best;
}

static void plan_wide(struct linear_params *p, bool bf16, const struct cuda_arch *arch,
                      struct launch_list *ret) {
    plan_round(p, bf16, ret);
    struct sharing s = wide_sharing(p, arch);
    uint64_t rounded = align_up_u64((uint64_t)p->a.rows * padded_of(p) * 2, ALIGN);
    p->per = ceil_div_u32(p->outputs, s.bands);
    p->splits = s.splits;
    p->sums = p->rounded + rounded;
    struct launch *l =
        add(ret, bf16 ? s.kernel->bf16 : s.kernel->f16, p, ceil_div_u32(p->a.rows, s.kernel->rows),
            ceil_div_u32(p->outputs, p->per), s.groups * 128);
    l->grid[2] = s.splits;
    l->shared_bytes = wide_bytes(&s);
    if (s.splits == 1) return;
    uint64_t segments = linear_segments(p->a.parts[0].w.cols);
    ret->scratch_bytes =
        max_u64(ret->scratch_bytes, rounded + segments * p->a.rows * p->outputs * sizeof(float));
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
