/* draft_top_plan: see launch.h. A block a row. */
#include "kernels/cuda/launch.h"
#include "kernels/cuda/plans.h"
#include "kernels/draft/draft_order.h"
#include "kernels/draft/draft_top.h"

void draft_top_plan(const struct draft_top_args *a, const struct cuda_arch *arch,
                    const struct cuda_work *w, struct launch_list *ret) {
    if (!a->rows) return;
    struct launch *l = launch_add(ret, "draft_top", a, sizeof *a);
    l->grid[0] = a->rows;
    l->block[0] = DRAFT_TOP_THREADS;
    l->early = true;
}
