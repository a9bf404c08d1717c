/* rope_plan: see launch.h. A block a row. */
#include "kernels/cuda/launch.h"
#include "kernels/cuda/plans.h"
#include "kernels/rope/rope.h"

void rope_plan(const struct rope_args *a, const struct cuda_arch *arch, const struct cuda_work *w,
               struct launch_list *ret) {
    if (!a->rows || !a->pairs) return;
    struct launch *l = launch_add(ret, "rope", a, sizeof *a);
    l->grid[0] = a->rows;
    l->block[0] = 32;
    l->early = true;
}
