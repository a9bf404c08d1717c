/* rmsnorm_plan: see launch.h. A block a row. */
#include "kernels/cuda/launch.h"
#include "kernels/cuda/plans.h"
#include "kernels/norm/rmsnorm.h"
#include "kernels/norm/rmsnorm_order.h"

void rmsnorm_plan(const struct rmsnorm_args *a, const struct cuda_arch *arch,
                  const struct cuda_work *w, struct launch_list *ret) {
    if (!a->rows) return;
    struct launch *l = launch_add(ret, "rmsnorm", a, sizeof *a);
    l->grid[0] = a->rows;
    l->block[0] = rmsnorm_threads(a->dim);
    l->early = true;
}
