/* delta_norm_plan: see launch.h. A warp a head, or a few. */
#include "common/num.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/plans.h"
#include "kernels/delta/delta_norm.h"
#include "kernels/delta/delta_norm_order.h"

enum { WARPS = 4 };

void delta_norm_plan(const struct delta_norm_args *a, const struct cuda_arch *arch,
                     const struct cuda_work *w, struct launch_list *ret) {
    if (!a->rows) return;
    bool many = a->rows >= DELTA_NORM_MANY;
    struct launch *l = launch_add(ret, many ? "delta_norm_many" : "delta_norm", a, sizeof *a);
    l->grid[0] = a->rows;
    l->grid[1] = ceil_div_u32(2 * a->key_heads, WARPS * (many ? DELTA_NORM_HEADS : 1));
    l->block[0] = WARPS * 32;
    l->early = true;
}
