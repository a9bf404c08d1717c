/* gated_norm_plan: see launch.h. A warp a head. */
#include "common/num.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/plans.h"
#include "kernels/delta/gated_norm.h"

enum { WARPS = 4 };

void gated_norm_plan(const struct gated_norm_args *a, const struct cuda_arch *arch,
                     const struct cuda_work *w, struct launch_list *ret) {
    if (!a->rows) return;
    struct launch *l = launch_add(ret, "gated_norm", a, sizeof *a);
    l->grid[0] = a->rows;
    l->grid[1] = ceil_div_u32(a->heads, WARPS);
    l->block[0] = WARPS * 32;
    l->early = true;
}
