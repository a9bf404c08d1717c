/* conv_plan: see launch.h. A thread a channel. */
#include "common/num.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/plans.h"
#include "kernels/delta/conv.h"

enum { THREADS = 128 };

void conv_plan(const struct conv_args *a, const struct cuda_arch *arch, const struct cuda_work *w,
               struct launch_list *ret) {
    if (!a->rows.count) return;
    struct launch *l = launch_add(ret, "conv", a, sizeof *a);
    l->grid[0] = ceil_div_u32(a->channels, THREADS);
    l->grid[1] = a->rows.count;
    l->block[0] = THREADS;
}

void conv_store_plan(const struct conv_store_args *a, const struct cuda_arch *arch,
                     const struct cuda_work *w, struct launch_list *ret) {
    if (!a->runs_count) return;
    struct launch *l = launch_add(ret, "conv_store", a, sizeof *a);
    l->grid[0] = ceil_div_u32(a->channels, THREADS);
    l->grid[1] = a->runs_count;
    l->block[0] = THREADS;
}
