/* embed_plan: see launch.h. */
#include "kernels/cuda/launch.h"
#include "kernels/cuda/plans.h"
#include "kernels/embed/embed.h"

void embed_plan(const struct embed_args *a, const struct cuda_arch *arch, const struct cuda_work *w,
                struct launch_list *ret) {
    if (!a->rows) return;
    struct launch *l = launch_add(ret, "embed", a, sizeof *a);
    l->grid[0] = a->rows;
    l->block[0] = 256;
    l->early = true;
}
