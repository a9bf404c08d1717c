/* expert_sum_plan: see launch.h. A block a row. */
#include "kernels/cuda/launch.h"
#include "kernels/cuda/plans.h"
#include "kernels/moe/expert_sum.h"

void expert_sum_plan(const struct expert_sum_args *a, const struct cuda_arch *arch,
                     const struct cuda_work *w, struct launch_list *ret) {
    if (!a->rows) return;
    struct launch *l = launch_add(ret, "expert_sum", a, sizeof *a);
    l->grid[0] = a->rows;
    l->block[0] = 256;
}
