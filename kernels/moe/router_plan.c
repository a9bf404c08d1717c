/* router_plan: see launch.h. A warp a row. */
#include "kernels/cuda/launch.h"
#include "kernels/cuda/plans.h"
#include "kernels/moe/router.h"

void router_plan(const struct router_args *a, const struct cuda_arch *arch,
                 const struct cuda_work *w, struct launch_list *ret) {
    if (!a->rows) return;
    struct launch *l = launch_add(ret, "router", a, sizeof *a);
    l->grid[0] = a->rows;
    l->block[0] = 32;
    l->early = true;
}
