/* conv_plan: see launch.h. A thread a quad of channels; strips of rows long enough to keep inputs, short enough to fill the card. */
#include "common/num.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/plans.h"
#include "kernels/delta/conv.h"

enum { THREADS = 128, STRIP_MAX = 16, BLOCKS_PER_SM = 8 };

static uint32_t strip_of(uint32_t rows, uint32_t blocks_x, const struct cuda_arch *arch) {
    uint32_t strip = ceil_div_u32(rows * blocks_x, arch->sm_count * BLOCKS_PER_SM);
    return min_u32(strip, STRIP_MAX);
}

void conv_plan(const struct conv_args *a, const struct cuda_arch *arch, const struct cuda_work *w,
               struct launch_list *ret) {
    if (!a->rows.count) return;
    struct launch *l = launch_add(ret, "conv", a, sizeof *a);
    l->grid[0] = ceil_div_u32(a->channels, THREADS * 4);
    l->grid[1] = ceil_div_u32(a->rows.count, strip_of(a->rows.count, l->grid[0], arch));
    l->block[0] = THREADS;
    l->early = true;
}

void conv_store_plan(const struct conv_store_args *a, const struct cuda_arch *arch,
                     const struct cuda_work *w, struct launch_list *ret) {
    if (!a->runs_count) return;
    struct launch *l = launch_add(ret, "conv_store", a, sizeof *a);
    l->grid[0] = ceil_div_u32(a->channels, THREADS * 4);
    l->grid[1] = a->runs_count;
    l->block[0] = THREADS;
    l->early = true;
}
