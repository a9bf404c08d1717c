/* linear_plain_plan: the launches of the plain parts of a call, type by type; linear.cu says what each kernel is for. Which one runs
 * follows from the counts of rows and outputs and changes no bit. */
#include "common/num.h"
#include "kernels/cuda/launch.h"
#include "kernels/linear/linear_order.h"
#include "kernels/linear/linear_params.h"

enum { FEW_STATIC_BYTES = 2 * LINEAR_FEW_WARPS * LINEAR_FEW_ROWS * LINEAR_TILE * 4 };

struct kernels {
    const char *few, *round, *band[3], *add, *tile;
};

static const struct kernels bf16 = {
    "linear_few_bf16",
    "linear_round_bf16",
    {"linear_band_16_bf16", "linear_band_32_bf16", "linear_band_64_bf16"},
    "linear_add_bf16",
    "linear_tile_bf16",
};
static const struct kernels f16 = {
    "linear_few_f16",
    "linear_round_f16",
    {"linear_band_16_f16", "linear_band_32_f16", "linear_band_64_f16"},
    "linear_add_f16",
    "linear_tile_f16",
};

static struct launch *add(struct launch_list *ret, const char *kernel,
                          const struct linear_params *p, uint32_t x, uint32_t y, uint32_t threads) {
    struct launch *l = launch_add(ret, kernel, p, sizeof *p);
    l->grid[0] = x;
    l->grid[1] = y;
    l->block[0] = threads;
    l->early = true;
    return l;
}

// Shared memory of linear_few; too much, and the rows go through linear_band.
static uint32_t few_bytes(uint32_t rows, uint32_t cols) {
    return LINEAR_FEW_WARPS * LINEAR_FEW_STAGES * LINEAR_FEW_PIECES * 16 +
           rows * ((uint32_t)align_up_u64(cols, LINEAR_BAND_K) * 2 + 16);
}

static void plan_few(const struct linear_params *p, const struct kernels *k,
                     const struct cuda_arch *arch, struct launch_list *ret) {
    uint32_t cols = p->a.parts[0].w.cols, units = LINEAR_FEW_WARPS / linear_segments(cols);
    struct launch *l = add(ret, k->few, p, min_u32(arch->sm_count, ceil_div_u32(p->outputs, units)),
                           1, LINEAR_FEW_WARPS * 32);
    l->shared_bytes = few_bytes(p->a.rows, cols);
}

static uint32_t band_bytes(uint32_t outputs, uint32_t rows) {
    return (outputs + rows) * LINEAR_BAND_K * 2 * LINEAR_BAND_STAGES;
}

// Even bands, as many as multiprocessors or a multiple of that; where they would be narrow, blocks share the segments.
static void plan_band(struct linear_params *p, const struct kernels *k,
                      const struct cuda_arch *arch, struct launch_list *ret) {
    enum { NARROW = 64 };
    uint32_t tiles = p->a.rows <= 16 ? 0 : p->a.rows <= 32 ? 1 : 2, rows = 16u << tiles;
    uint32_t segments = linear_segments(p->a.parts[0].w.cols);
    uint32_t widest = LINEAR_BAND_WARPS_MAX * LINEAR_TILE;
    while (band_bytes(widest, rows) > arch->shared_max) widest -= LINEAR_TILE;
    p->splits = 1;
    while (p->splits < segments && ceil_div_u32(p->outputs, arch->sm_count / p->splits) < NARROW)
        p->splits *= 2;
    uint32_t bands = arch->sm_count / p->splits;
    bands *= ceil_div_u32(p->outputs, bands * widest);
    p->per = ceil_div_u32(p->outputs, bands);
    uint32_t warps = ceil_div_u32(p->per, LINEAR_TILE);
    struct launch *l =
        add(ret, k->band[tiles], p, ceil_div_u32(p->outputs, p->per), p->splits, warps * 32);
    l->shared_bytes = band_bytes(warps * LINEAR_TILE, rows);
    if (p->splits == 1) return;
    ret->scratch_bytes =
        p->sums - p->rounded + (uint64_t)segments * p->a.rows * p->outputs * sizeof(float);
    add(ret, k->add, p, ceil_div_u32(p->outputs, LINEAR_SUM_THREADS), p->a.rows,
        LINEAR_SUM_THREADS);
}

static void plan_tile(const struct linear_params *p, const struct kernels *k,
                      struct launch_list *ret) {
    struct launch *l = add(ret, k->tile, p, ceil_div_u32(p->a.rows, LINEAR_TILE_ROWS),
                           ceil_div_u32(p->outputs, LINEAR_TILE_OUTPUTS), LINEAR_TILE_THREADS);
    l->shared_bytes =
        (LINEAR_TILE_OUTPUTS + LINEAR_TILE_ROWS) * LINEAR_BAND_K * 2 * LINEAR_TILE_STAGES;
}

static void plan_half(struct linear_params *p, const struct kernels *k,
                      const struct cuda_arch *arch, struct launch_list *ret) {
    uint32_t rows = p->a.rows, cols = p->a.parts[0].w.cols;
    if (rows <= LINEAR_FEW_ROWS && few_bytes(rows, cols) + FEW_STATIC_BYTES <= arch->shared_max) {
        plan_few(p, k, arch, ret);
        return;
    }
    uint64_t padded = align_up_u64(cols, LINEAR_BAND_K), bytes = rows * padded * 2;
    p->sums = p->rounded + align_up_u64(bytes, 256);
    ret->scratch_bytes = max_u64(ret->scratch_bytes, bytes);
    add(ret, k->round, p, (uint32_t)ceil_div_u64(padded, LINEAR_SUM_THREADS * 4), rows,
        LINEAR_SUM_THREADS);
    if (rows <= 64)
        plan_band(p, k, arch, ret);
    else
        plan_tile(p, k, ret);
}

static uint32_t outputs_of(const struct linear_args *a, enum dtype d) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < a->parts_count; i++)
        if (!a->parts[i].w.exl3.half_bits && a->parts[i].w.dtype == d) n += a->parts[i].w.rows;
    return n;
}

void linear_plain_plan(const struct linear_args *a, const struct cuda_arch *arch,
                       const struct cuda_work *w, struct launch_list *ret) {
    struct linear_params p = {.a = *a, .rounded = w->scratch};
    if ((p.outputs = outputs_of(a, DTYPE_BF16))) plan_half(&p, &bf16, arch, ret);
    if ((p.outputs = outputs_of(a, DTYPE_F16))) plan_half(&p, &f16, arch, ret);
    if ((p.outputs = outputs_of(a, DTYPE_F32)))
        add(ret, "linear_f32", &p, ceil_div_u32(p.outputs, LINEAR_FEW_WARPS), a->rows,
            LINEAR_FEW_WARPS * 32);
}
